"""A packet that vendors quote on, and the ranking of what they return with a real result file of vLLM."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.places import said_to_be_in
from tokonomics.errors import BadInput
from tokonomics.measure.quotes import LONGEST_S, MOST_SENT, AskedTraffic, packet, ranked_quotes
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.units import HOURS_PER_MONTH

VLLM = Path(__file__).parent / "results" / "vllm.json"
MEASURED = json.loads(VLLM.read_text())
SLO = "ttft_p99=1"


@pytest.fixture
def files() -> dict[str, str]:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    return {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}


def asked_for(rate: float) -> AskedTraffic:
    """Ask for the requests of the real result file, at a rate."""
    return AskedTraffic(
        model="tiny",
        repository="",
        weights="bf16",
        kv="bf16",
        slo=SLO,
        requests_per_s=rate,
        planned_requests_per_s=rate,
        tokens_per_month=1e9,
        input_tokens=MEASURED["total_input_tokens"] / 20,
        output_tokens=MEASURED["total_output_tokens"] / 20,
        requests=20,
        requests_sha256="0" * 64,
    )


def returned(
    folder: Path,
    name: str,
    asked: AskedTraffic,
    usd: float,
    gpus: int = 1,
    ttft_factor: float = 1.0,
    region: str = "",
    changed: dict[str, int] | None = None,
) -> Path:
    """Write what a vendor returns: the real result, perhaps slower or changed, and its quote beside it."""
    told = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asked.model_dump().items())
    quote = f'vendor = "{name}"\ngpu = "H100"\ngpus = {gpus}\nusd_per_gpu_hour = {usd}\nregion = "{region}"\n'
    (folder / f"{name}.toml").write_text(f'[asked]\nseal = "{asked.seal}"\n{told}\n\n[quote]\n{quote}')
    result = folder / f"{name}.json"
    slower = {key: value * ttft_factor for key, value in MEASURED.items() if "ttft" in key and "ttfts" not in key}
    slower |= {"ttfts": [value * ttft_factor for value in MEASURED["ttfts"]]} if "ttfts" in MEASURED else {}
    result.write_text(json.dumps(MEASURED | slower | (changed or {})))
    return result


def test_the_cheapest_quote_that_meets_the_slo_comes_first(tmp_path: Path) -> None:
    asked = asked_for(100.0)
    paths = [
        returned(tmp_path, "slow", asked, 0.5, ttft_factor=1000),
        returned(tmp_path, "dear", asked, 3.0),
        returned(tmp_path, "fair", asked, 2.0),
    ]
    ranking = ranked_quotes(paths)
    assert [row.quote.vendor for row in ranking.quotes] == ["fair", "dear", "slow"]
    assert [row.met for row in ranking.quotes] == [True, True, False]
    assert ranking.quotes[-1].usd_per_month is None
    assert ranking.quotes[0].usd_per_month == pytest.approx(2.0 * HOURS_PER_MONTH)


def test_prices_follow_from_what_was_measured(tmp_path: Path) -> None:
    """$/Mtok within the SLO: the machine's seconds over the tokens that it served in them."""
    (row,) = ranked_quotes([returned(tmp_path, "one", asked_for(100.0), 2.0, gpus=4)]).quotes
    tokens_per_s = MEASURED["total_token_throughput"]
    assert row.usd_per_mtok == pytest.approx(4 * 2.0 / 3600 / tokens_per_s * 1e6)
    assert row.planned_usd_per_mtok == pytest.approx(4 * 2.0 * HOURS_PER_MONTH / 1e9 * 1e6)


def test_a_part_of_the_load_counts_as_so_many_machines(tmp_path: Path) -> None:
    served = MEASURED["request_throughput"]
    rows = {
        factor: ranked_quotes([returned(tmp_path, "one", asked_for(factor * served), 2.0)]).quotes[0]
        for factor in (0.4, 1.0, 1.5, 2.5)
    }
    assert {factor: row.machines for factor, row in rows.items()} == {0.4: 1, 1.0: 1, 1.5: 2, 2.5: 3}
    assert rows[2.5].usd_per_month == pytest.approx(3 * 2.0 * HOURS_PER_MONTH)


def test_a_quote_has_room_for_as_much_growth_as_the_plan_beside_it(tmp_path: Path) -> None:
    """A plan with --headroom 20% buys for a fifth more; a quote for the planned rate alone would look cheaper."""
    served = MEASURED["request_throughput"]
    counted = {}
    for headroom in (0.0, 0.2, 1.5):
        asked = asked_for(served).model_copy(update={"headroom": headroom})
        (row,) = ranked_quotes([returned(tmp_path, "one", asked, 2.0)]).quotes
        counted[headroom] = row.machines
    assert counted == {0.0: 1, 0.2: 2, 1.5: 3}
    load = replace(load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300")), headroom=0.2)
    files = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}
    assert tomllib.loads(files["quote.toml"])["asked"]["headroom"] == 0.2


def test_the_users_own_slo_counts_instead(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    (row,) = ranked_quotes([path], parse_slos("ttft_p99=0.000001")).quotes
    assert not row.met


def test_other_requests_are_noted(tmp_path: Path) -> None:
    other = asked_for(100.0).model_copy(update={"input_tokens": 1000.0})
    (row,) = ranked_quotes([returned(tmp_path, "one", other, 2.0)]).quotes
    assert any("prompts" in note for note in row.notes)
    (row,) = ranked_quotes([returned(tmp_path, "two", asked_for(100.0), 2.0)]).quotes
    assert not any("prompts" in note or "answers" in note for note in row.notes)
    assert any("4 users" in note for note in row.notes)  # a closed loop is not the traffic that was asked for


def test_results_of_other_lengths_rank_below_those_of_the_lengths_asked(tmp_path: Path) -> None:
    """Prompts 15 % shorter are other traffic, 5 % shorter are not; a miss with the right lengths still ranks above."""
    tokens = MEASURED["total_input_tokens"]
    asked = asked_for(100.0)
    paths = [
        returned(tmp_path, "short", asked, 0.5, changed={"total_input_tokens": round(tokens * 0.85)}),
        returned(tmp_path, "near", asked, 3.0, changed={"total_input_tokens": round(tokens * 0.95)}),
        returned(tmp_path, "missed", asked, 1.0, ttft_factor=1000),
        returned(tmp_path, "same", asked, 2.0),
    ]
    rows = ranked_quotes(paths).quotes
    assert [(row.quote.vendor, row.same_traffic) for row in rows] == [
        ("same", True), ("near", True), ("missed", True), ("short", False)
    ]  # fmt: skip


def test_quotes_for_elsewhere_are_marked_and_rank_below(tmp_path: Path) -> None:
    asked = asked_for(100.0).model_copy(update={"region": ("us-east-1",)})
    places = {"away": "eu-west-1", "silent": "", "there": "AWS us-east-1"}
    paths = [
        returned(tmp_path, name, asked, usd, region=places[name])
        for name, usd in (("away", 1.0), ("silent", 1.5), ("there", 2.0))
    ]
    rows = ranked_quotes(paths).quotes
    assert [(row.quote.vendor, row.in_region) for row in rows] == [("there", True), ("away", False), ("silent", False)]
    assert any("us-east-1" in note for note in rows[1].notes)
    anywhere = ranked_quotes([returned(tmp_path, "any", asked_for(100.0), 1.0, region="eu-west-1")]).quotes
    assert anywhere[0].in_region


@pytest.mark.parametrize(
    ("named", "provider", "region", "there"),
    [
        ("EU", "acme", "Frankfurt, DE", True),
        ("EU", "acme", "Germany", True),
        ("EU", "AWS", "eu-central-1", True),
        ("us-east", "acme", "us-east-1", True),
        ("EU", "acme", "us-east-1", False),
        ("us-east-1", "acme", "US", False),
        ("US", "acme", "", False),
    ],
)
def test_a_place_in_a_vendors_own_words(named: str, provider: str, region: str, there: bool) -> None:
    assert said_to_be_in([named], provider, region) is there


def test_the_region_asked_for_is_in_the_packet() -> None:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    asked = packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO), ["us-east-1", "EU"])
    files = {file.name: file.text for file in asked}
    assert tomllib.loads(files["quote.toml"])["asked"]["region"] == ["us-east-1", "EU"]
    assert "us-east-1" in files["README.md"]


def test_a_packet_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    quote = path.with_suffix(".toml")
    quote.write_text(quote.read_text().replace("ttft_p99=1", "ttft_p99=100"))
    with pytest.raises(BadInput, match="seal"):
        ranked_quotes([path])


def test_quotes_on_different_packets_are_not_ranked(tmp_path: Path) -> None:
    paths = [returned(tmp_path, "one", asked_for(100.0), 2.0), returned(tmp_path, "two", asked_for(99.0), 2.0)]
    with pytest.raises(BadInput, match="different traffic"):
        ranked_quotes(paths)


def test_a_result_without_a_quote_is_refused_among_quotes(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    alone = shutil.copy(VLLM, tmp_path / "alone.json")
    with pytest.raises(BadInput, match="no quote"):
        ranked_quotes([path, Path(alone)])


def test_what_is_not_filled_in_is_said(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "quote.toml").write_text(files["quote.toml"])
    path = shutil.copy(VLLM, tmp_path / "result.json")
    with pytest.raises(BadInput) as refused:
        ranked_quotes([Path(path)])
    for field in ("gpu", "gpus", "usd_per_gpu_hour"):
        assert re.search(rf"\b{field}\b", str(refused.value))
    assert "quote.toml" in (refused.value.fix or "")


def test_a_filled_in_packet_is_read_back(tmp_path: Path, files: dict[str, str]) -> None:
    filled = files["quote.toml"].replace('gpu = "" ', 'gpu = "H100"').replace("gpus = 0", "gpus = 2")
    (tmp_path / "quote.toml").write_text(filled.replace("usd_per_gpu_hour = 0.0", "usd_per_gpu_hour = 2.5"))
    path = shutil.copy(VLLM, tmp_path / "result.json")
    ranking = ranked_quotes([Path(path)])
    assert ranking.asked.requests_sha256 == sha256(files["requests.csv"].encode()).hexdigest()
    assert ranking.seal in files["README.md"]
    assert ranking.quotes[0].quote.gpus == 2


def test_the_requests_are_times_and_lengths_that_a_bench_reads(tmp_path: Path, files: dict[str, str]) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(files["requests.csv"])
    trace = open_trace(path).read()
    assert files["requests.csv"].partition("\n")[0] == "arrival,input_tokens,output_tokens"
    assert 0 < len(trace) <= MOST_SENT
    assert trace.rate == pytest.approx(5.0, rel=0.1)
    assert trace.duration_s <= LONGEST_S
    assert trace.input_tokens.mean() == pytest.approx(1000, rel=0.05)


def test_the_same_plan_gives_the_same_packet(files: dict[str, str]) -> None:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    again = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}
    assert again == files


def test_of_a_log_the_busiest_quarter_of_an_hour_is_sent(tmp_path: Path) -> None:
    """An hour with 1 request a second, but 3 a second from minute 20 to 40."""
    gaps = [1.0] * 1200 + [1 / 3] * 3600 + [1.0] * 1200
    arrival = np.concatenate([[0.0], np.cumsum(gaps)])
    load = load_of_log(make_trace(arrival, np.full(len(arrival), 100), np.full(len(arrival), 10)), None)
    files = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, ())}
    assert files["requests.csv"].count("\n") - 1 == pytest.approx(2700, abs=2)
    assert "requests_per_s = 3.0" in files["quote.toml"]
