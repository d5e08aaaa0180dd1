"""Offers: what the snapshot says, what a user's file may say, and which offer is picked."""

import csv
from datetime import date, timedelta
from importlib.resources import files
from pathlib import Path

import pytest
from tests.there import refused

from tokonomics.catalog.offer_choice import (
    NoOffer,
    apply_discount,
    cheapest_offer,
    cheapest_that_counts,
    machines_usd_per_hour,
    parse_discount,
    parse_discounts,
    select_offers,
)
from tokonomics.catalog.offers import (
    PAID_UPFRONT,
    SNAPSHOT,
    Offer,
    Terms,
    cache_file,
    load_offers,
    read_offers,
    stated_gbit,
    write_offers,
)
from tokonomics.errors import BadInput, UnknownName
from tokonomics.measure.meter.spending import Prices
from tokonomics.questions.cost import cost
from tokonomics.questions.meter import asked as meter_settings
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import CostRequest
from tokonomics.questions.requests.run import MeterWatchRequest, OffersRequest
from tokonomics.questions.result import Listing
from tokonomics.questions.verbs import find_verb
from tokonomics.types import today

HEADER = "provider,instance,gpu,gpus,usd_per_hour\n"


pytestmark = pytest.mark.usefixtures("on_the_thirtieth_of_august")


def offer(**changes: object) -> Offer:
    plain = {
        "provider": "ours", "region": "here", "instance": "box", "gpu": "H100-SXM", "gpus": 8, "usd_per_hour": 16.0,
        "date": date(2026, 8, 22), "source": "test",
    }  # fmt: skip
    return Offer.model_validate({**plain, **changes})


def written(path: Path, text: str) -> Path:
    file = path / "my.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_shipped_snapshot_has_every_row_and_every_price_is_plausible_per_gpu() -> None:
    offers = read_offers(SNAPSHOT)
    assert len(offers) == 4908  # 5,727 of the source, less 807 of GPUs that we do not know and 12 in euro
    assert len({each.provider for each in offers}) == 20
    assert not {each.gpu for each in offers} & {"H100-MEGA", "T4g"}  # names of one GPU are one GPU
    assert next(each for each in offers if each.instance == "a3-megagpu-8g").gpu == "H100-SXM"
    assert "Georgia, US, NA" in {each.region for each in offers}  # one cell
    assert all(each.region and not each.region.startswith(",") for each in offers)
    for each in offers:
        per_gpu = [usd for terms in Terms if (usd := each.usd_per_gpu_hour(terms)) is not None]
        assert per_gpu, each
        assert all(0.04 < usd < 30 for usd in per_gpu), each


def test_the_shipped_prices_are_the_sources_own_for_the_whole_instance() -> None:
    # p5.48xlarge in us-east-1: 8 GPUs, read off the file by hand.
    with SNAPSHOT.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["instance"] == "p5.48xlarge"]
    (row,) = [row for row in rows if "us-east-1" in row["region"].split("|")]
    found = next(o for o in load_offers() if o.instance == "p5.48xlarge" and o.region == "us-east-1")
    assert found.gpus == 8
    assert found.price() == float(row["usd_per_hour"])
    assert found.usd_per_gpu_hour() == pytest.approx(float(row["usd_per_hour"]) / 8)
    assert found.price(Terms.reserved) == float(row["reserved_3yr_usd_per_hour"])


def test_a_price_is_stale_after_ninety_days_and_not_before() -> None:
    quoted = offer(date=date(2026, 5, 1))
    assert quoted.age_days(date(2026, 7, 30)) == 90
    assert not quoted.is_stale(date(2026, 7, 30))
    assert quoted.is_stale(date(2026, 7, 31))


def test_today_can_be_fixed_and_a_bad_day_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert today() == date(2026, 8, 30)
    monkeypatch.setenv("TOKONOMICS_TODAY", "yesterday")
    with pytest.raises(BadInput, match="TOKONOMICS_TODAY"):
        today()


def test_a_refreshed_file_comes_before_the_shipped_one_and_a_broken_one_says_how_to_mend_it() -> None:
    write_offers(cache_file(), [offer()])
    assert load_offers() == (offer(),)
    cache_file().write_text("nonsense")
    with pytest.raises(BadInput, match="offers --refresh"):
        load_offers()


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOKONOMICS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file() == tmp_path / "tokonomics" / "offers.csv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_file() == Path.home() / ".cache" / "tokonomics" / "offers.csv"


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    offers = load_offers()
    write_offers(tmp_path / "copy.csv", offers)
    assert read_offers(tmp_path / "copy.csv") == offers
    assert [file.name for file in tmp_path.iterdir()] == ["copy.csv"]


def test_a_users_file_needs_only_five_columns(tmp_path: Path) -> None:
    (one,) = load_offers(written(tmp_path, HEADER + "Ours,rack,H100,8,18.40\n\n"))
    assert (one.provider, one.gpu) == ("ours", "H100-SXM")
    assert one.usd_per_gpu_hour() == pytest.approx(2.3)
    assert (one.date, one.source, one.region) == (date(2026, 8, 30), "my.csv", "unspecified")


def test_a_users_file_may_use_the_snapshots_column_names_and_bring_others(tmp_path: Path) -> None:
    text = (
        "\ufeffprovider,region,instance_type,gpu_name,gpu_count,price_on_demand_usd_hr,price_spot_usd_hr,snapshot_date,who\n"
        '"ours","A, B",x,L4,1.0,,0.2,2026-01-02,me\n'
    )
    (one,) = read_offers(written(tmp_path, text))
    assert (one.price(), one.price(Terms.spot), one.region, one.date) == (None, 0.2, "A, B", date(2026, 1, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        (HEADER, "no offer"),
        ("provider,gpu\na,L4\n", "missing columns instance, gpus, usd_per_hour"),
        ("provider,instance,gpu,gpu_name,gpus,usd_per_hour\n", "two columns give 'gpu'"),
        ("provider,instance,gpu,gpus,usd_per_hour,spot_usd_per_hou\na,b,L4,1,1,1\n", "spot_usd_per_hour"),
        (HEADER + "a,b,L4,1,cheap\n", ":2, column usd_per_hour: 'cheap' is not a number"),
        (HEADER + "a,b,L4,1,1\na,b,L4,1,-3\n", ":3, column usd_per_hour"),
        (HEADER + "a,b,L4,1,0\n", "not above zero"),
        (HEADER + "a,b,L4,1,nan\n", "not a number"),
        (HEADER + "a,b,L4,1,inf\n", "not a number"),
        (HEADER + "a,b,L4,1,1e999\n", "more than any machine"),
        (HEADER + "a,b,L4,1,100001\n", "more than any machine"),
        (HEADER + "a,b,L4,1,1e-320\n", "less than any machine"),
        (HEADER + "a,b,L4,1,$4.50\n", "plain number"),
        (HEADER + "a,b,L4,0.5,1\n", "column gpus"),
        (HEADER + "a,b,L4,99999999,1\n", "column gpus"),
        (HEADER + "a,b,H1000,1,1\n", ":2, column gpu: unknown GPU 'H1000'"),
        (HEADER + "a,b,L40SS,1,1\n", "Did you mean L40S"),
        (HEADER + "a,b,,1,1\n", "column gpu: is empty"),
        (HEADER + "a,b,L4\n", "column gpus: is empty"),
        (HEADER + "a,b,L4,1,\n", "no price"),
        (HEADER.strip() + ",date\na,b,L4,1,1,22/08/2026\n", "column date: '22/08/2026' is not a date"),
        (HEADER + 'a,"b,L4,1,1\n', "not a CSV file"),
        (HEADER + "a,b,L4,1,1\0\n", "UTF-8"),
    ],
)
def test_every_mistake_in_a_file_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    caught = refused(load_offers, written(tmp_path, text))
    assert says in str(caught)
    assert "my.csv" in str(caught)


def test_files_that_are_no_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path, tmp_path / "none.csv", binary):
        with pytest.raises(BadInput):
            load_offers(path)
    monkeypatch.setattr("tokonomics.catalog.offers.MAX_FILE_BYTES", 10)
    large = tmp_path / "large.csv"
    large.write_bytes(SNAPSHOT.read_bytes())
    with pytest.raises(BadInput, match="not read"):
        load_offers(large)


def test_a_price_list_that_changes_is_read_again(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    for many in (3, 2):
        own.write_text("\n".join(lines[: many + 1]) + "\n", encoding="utf-8")
        assert len(load_offers(own)) == many


def test_offers_are_chosen_by_provider_region_gpu_and_price_cheapest_first() -> None:
    some = select_offers(load_offers(), provider="AWS", gpu=["h100", "L4"], max_usd_per_gpu_hour=5)
    prices = [each.usd_per_gpu_hour() or 0 for each in some]
    assert prices == sorted(prices)
    assert 0 < prices[0] <= prices[-1] <= 5
    assert {each.gpu for each in some} <= {"H100-SXM", "L4"}
    assert {each.provider for each in some} == {"aws"}
    assert {o.region for o in select_offers(load_offers(), region="us-east-1")} == {"us-east-1"}
    assert all(each.spot_usd_per_hour for each in select_offers(load_offers(), terms=Terms.spot))
    assert len(select_offers(load_offers(), terms=Terms.reserved)) == 58  # 53 of AWS and 5 of Qubrid


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean .*lambda"):
        select_offers(load_offers(), provider="lamda")
    with pytest.raises(BadInput, match="us-east-1"):
        select_offers(load_offers(), provider="aws", region="us-east1")
    with pytest.raises(UnknownName, match="azure"):
        select_offers(load_offers(), discounts={"azur": 0.2})


def test_a_discount_comes_off_every_price_of_that_provider_only() -> None:
    cut = apply_discount(offer(spot_usd_per_hour=4.0, reserved_3yr_usd_per_hour=8.0), 0.25)
    assert (cut.price(), cut.price(Terms.spot), cut.price(Terms.reserved)) == (12.0, 3.0, 6.0)
    both = select_offers([offer(), offer(provider="theirs")], discounts={"ours": 0.25})
    assert [(each.provider, each.price()) for each in both] == [("ours", 12.0), ("theirs", 16.0)]


def test_discounts_are_parsed_and_checked() -> None:
    assert parse_discount(" AWS=0.2") == ("aws", 0.2)
    assert parse_discounts(["aws=0.2", "gcp=0"]) == {"aws": 0.2, "gcp": 0.0}
    for wrong in ("aws", "aws=", "=0.2", "aws=20%", "aws=1", "aws=-0.1", "aws=nan", ""):
        with pytest.raises(BadInput):
            parse_discount(wrong)
    with pytest.raises(BadInput):
        apply_discount(offer(), 1.0)


def test_a_host_that_could_not_load_a_quarter_of_its_gpus_memory_is_no_bargain() -> None:
    # 80 GiB of GPU: 20 GiB of weights, and 3 for the process.
    thin, enough = offer(gpus=1, usd_per_hour=1.0, memory_gb=22), offer(gpus=1, usd_per_hour=2.0, memory_gb=24)
    untold = offer(gpus=1, usd_per_hour=3.0, memory_gb=None)
    assert cheapest_offer("H100", offers=[thin, enough, untold]) == enough
    assert cheapest_offer("H100", offers=[thin, untold]) == untold
    assert cheapest_offer("H100", offers=[thin]) == thin  # better than no price


def test_neither_cost_nor_the_meter_takes_the_price_of_a_host_that_could_load_nothing() -> None:
    """Two machines with one H100 each: $1 with 4 GB beside it, $2 with 64."""
    tiny, whole = (offer(gpus=1, usd_per_hour=price, memory_gb=size) for price, size in ((1.0, 4), (2.0, 64)))
    write_offers(cache_file(), [tiny, whole])
    costed = cost(CostRequest(gpu="H100", tokens_per_second=2900))
    metered = meter_settings(MeterWatchRequest(urls=("http://gpu:8000",), gpu="H100"))
    assert (costed.usd_per_hour, metered.usd_per_hour) == (2.0, Prices(2.0))


def test_the_cheapest_offer_is_the_lowest_gpu_hour_of_the_last_year() -> None:
    old = offer(provider="old", usd_per_hour=8.0, date=date(2025, 1, 1))
    new, dear = offer(), offer(provider="dear", usd_per_hour=24.0)
    assert cheapest_offer("H100", offers=[old, dear, new]) == new
    with pytest.raises(NoOffer, match="over a year old"):
        cheapest_offer("H100", offers=[old])
    assert old.is_stale(today())
    stale = offer(provider="stale", usd_per_hour=7.0, date=today() - timedelta(days=365))
    assert cheapest_offer("H100", offers=[old, stale]) == stale
    assert cheapest_offer("H100", offers=[old, new, stale]) == new
    assert "older than 90 days" in stale.quoted(today())
    assert "older" not in offer(date=today() - timedelta(days=90)).quoted(today())


def test_gpus_left_over_on_a_machine_are_paid_for() -> None:
    eight = offer(usd_per_hour=16.0)  # cheaper a GPU, but a whole machine for one of them
    three = offer(gpus=3, instance="three", usd_per_hour=7.5)
    assert machines_usd_per_hour(eight, 1) == 16.0
    assert machines_usd_per_hour(three, 4) == 15.0
    assert cheapest_offer("H100", gpus=1, offers=[eight, three]) == three
    assert cheapest_offer("H100", gpus=8, offers=[eight, three]) == eight


def test_a_gpu_nobody_sells_on_those_terms_says_what_to_do() -> None:
    with pytest.raises(BadInput, match=r'offers="my\.csv"'):
        cheapest_offer("H100", terms=Terms.spot, offers=[offer()])
    with pytest.raises(UnknownName):
        cheapest_offer("H1000")
    with pytest.raises(BadInput):
        cheapest_offer("H100", gpus=0)


# --- what sellers state of the network between their machines, and where each figure was read -------------------------

DATA = files("tokonomics.catalog").joinpath("data")


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(DATA.joinpath("networks.csv").read_text(encoding="utf-8").splitlines()))


def test_every_figure_was_read_on_a_page_or_says_that_it_was_not() -> None:
    for row in rows():
        if row["address"]:
            assert row["address"].startswith("https://")
            assert date.fromisoformat(row["read"]) <= date(2026, 11, 17)
        else:
            assert not row["read"]
            assert "not verified" in row["source"]


def test_a_machine_of_eight_h100_has_400_gigabit_for_each() -> None:
    assert stated_gbit("AWS", "p5.48xlarge") == 3200
    sold = {"provider": "aws", "region": "us-east-1", "instance": "p5.48xlarge", "gpu": "H100-SXM", "gpus": 8}
    offer = Offer.model_validate({**sold, "usd_per_hour": 55.0, "date": date(2026, 8, 22), "source": "test"})
    assert offer.network_bytes_per_s == 400e9 / 8


def test_the_readme_of_the_data_names_every_file() -> None:
    said = DATA.joinpath("README.md").read_text(encoding="utf-8")
    for file in DATA.iterdir():
        assert f"`{file.name}`" in said or file.name == "README.md"


def test_only_the_reserved_prices_of_aws_are_known_to_be_paid_upfront() -> None:
    """Netflix's package has AWS's three years all upfront; Qubrid's page does not say when its year is paid."""
    reserved = [offer for offer in load_offers() if offer.price(Terms.reserved)]
    upfront = {offer.provider for offer in reserved if PAID_UPFRONT in offer.source}
    assert (upfront, {offer.provider for offer in reserved} - upfront) == ({"aws"}, {"qubrid"})


def test_the_headline_of_a_list_names_the_cheapest_that_other_verbs_take() -> None:
    found = find_verb("offers").answer(OffersRequest.checked({"gpu": ["H100"], "region": ["EU"]}), SILENT)
    assert isinstance(found, Listing)
    certain = [offer.is_place_certain for offer in found.rows]
    assert certain == sorted(certain, reverse=True), "what is only perhaps there comes last"
    best, cheaper = found.best, []
    for offer in found.rows:
        if offer == best:
            break
        cheaper.append(offer)
    assert len(cheaper) < len(found.rows)
    assert best.is_place_certain
    assert best.age_days(today()) <= 365
    newest = max(offer.date for offer in found.rows if offer.is_place_certain)
    assert all(not offer.is_place_certain or (newest - offer.date).days > 90 for offer in cheaper)


@pytest.mark.parametrize(("most", "named"), [(None, "newest"), (3.0, None)])
def test_a_price_above_the_limit_still_shows_an_older_one_out_of_date(most: float | None, named: str | None) -> None:
    day = date(2026, 11, 1)
    sold = [
        Offer(
            provider="aws", region="us-east-1", instance=name, gpu="H100-SXM", gpus=1, usd_per_hour=usd,
            date=day - timedelta(days=days), source="test",
        )
        for name, usd, days in (("two years", 1.0, 730), ("spring", 2.0, 200), ("newest", 4.0, 0))
    ]  # fmt: skip
    best = cheapest_that_counts(sold, Terms.on_demand, day, most)
    assert (best and best.instance) == named
    assert cheapest_that_counts(sold[:2], Terms.on_demand, day) == sold[1]  # nobody shows that it is out of date
    assert cheapest_that_counts(sold[:1], Terms.on_demand, day) is None
