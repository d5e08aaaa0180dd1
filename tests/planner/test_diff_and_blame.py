"""Two scenarios compared, and limits that nothing meets: which constraint is to blame, and what is nearest."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from tests.planner.small_catalogue import BUSY, OFFERS, RECENT, SLOS, asked, offer
from tests.there import there

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, in_python
from tokonomics.planner.compare import Comparison, Diff, changes, compare, diff, front, parse_quality
from tokonomics.planner.infeasible import Blame, blame
from tokonomics.planner.plan import plan, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.questions.plan import _words
from tokonomics.questions.plan import compare as ask_compare
from tokonomics.questions.requests.buy import CompareRequest, DiffRequest, PlanRequest
from tokonomics.questions.results import OneNoun
from tokonomics.report.answer import Answer
from tokonomics.report.compare_view import diff as described
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos

SAID = {"model": "llama-3.1-8b", "rate": 5, "weights": "bf16", "gpu": ["H100", "L4"]}
TODAY_FILE = _words(PlanRequest.checked(SAID))


def test_only_what_differs_is_listed() -> None:
    proposal = _words(PlanRequest.checked({**SAID, "rate": "7", "gpu": ("H100",), "spare": 1}))
    assert [(change.key, change.before, change.after) for change in changes(TODAY_FILE, proposal)] == [
        ("rate", "5", "7"),
        ("gpu", "H100, L4", "H100"),
        ("spare", None, "1"),
    ]
    assert changes(TODAY_FILE, TODAY_FILE) == ()


def shown(made: Diff) -> Answer:
    return described(OneNoun(noun=made), DiffRequest(model="a", against="b"))


def test_the_saving_is_the_difference_of_the_bills() -> None:
    dear, cheap = (plan(asked(offers=(offer("H100-SXM", 1, price),))) for price in (4.0, 3.0))
    made = diff(("a", TODAY_FILE, dear), ("b", TODAY_FILE, cheap))
    assert made.saved_usd_per_month == pytest.approx(1.0 * 730 * (dear.best.instances if dear.best else 0))
    assert made.saved_share == pytest.approx(0.25)
    assert shown(made).text().startswith("Saves $730.00 a month (25 %); price 14 days old.\n")
    back = diff(("b", TODAY_FILE, cheap), ("a", TODAY_FILE, dear))
    assert back.saved_usd_per_month == -made.saved_usd_per_month
    assert shown(back).markdown().startswith("**Costs $730.00 a month more (33 %); price 14 days old.**\n")


@pytest.mark.parametrize(
    ("forge", "saves", "costs"),
    [
        ("github", ("> [!TIP]\n> **Saves $730.00", "−25 % |"), ("> [!WARNING]\n> **Costs $730.00", "| +33 % |")),
        ("gitlab", ("**Saves $730.00", "{+ −25 % +}"), ("**Costs $730.00", "{- +33 % -}")),
    ],
)
def test_a_comment_is_drawn_as_its_forge_does(forge: str, saves: tuple[str, str], costs: tuple[str, str]) -> None:
    dear, cheap = (plan(asked(offers=(offer("H100-SXM", 1, price),))) for price in (4.0, 3.0))
    sides = ("a", TODAY_FILE, dear), ("b", _words(PlanRequest.checked({**SAID, "rate": 7})), cheap)
    for made, (begins, cell) in ((diff(*sides), saves), (diff(*reversed(sides)), costs)):
        text = described(OneNoun(noun=made), DiffRequest(model="a", against="b", format=forge)).text()
        assert text.startswith(begins)
        (bill,) = [line for line in text.splitlines() if line.startswith("| $ a month |")]
        assert cell in bill
        assert "<details><summary>1 changed</summary>\n\n| scenario |" in text


def test_the_json_has_the_figures_and_the_comment() -> None:
    dear, cheap = (plan(asked(offers=(offer("H100-SXM", 1, price),))) for price in (4.0, 3.0))
    made = OneNoun(noun=diff(("a", TODAY_FILE, dear), ("b", TODAY_FILE, cheap)))
    texts = {
        form: described(made, DiffRequest(model="a", against="b", format=form)).text() for form in ("json", "github")
    }
    read = json.loads(texts["json"])
    assert read.pop("comment") == texts["github"]
    assert read == made.plain()


def test_a_plan_at_an_old_price_is_marked() -> None:
    new, old = (plan(asked(offers=(offer("H100-SXM", 1, 3.0, date=day),))) for day in (RECENT, date(2026, 5, 1)))
    text = shown(diff(("a", TODAY_FILE, new), ("b", TODAY_FILE, old))).text()
    (offered,) = (line for line in text.splitlines() if line.startswith("offer"))
    assert offered.count("acme") == 2
    assert offered.count("†") == 1


def test_less_traffic_never_costs_more_for_an_old_price() -> None:
    """The price of an hour does not depend on how many are bought: the old 0.9 counts for neither."""
    old = offer("A100-80GB", 1, 0.9, date=date(2026, 5, 1))
    offers = (offer("L4", 1, 1.0), offer("A100-80GB", 1, 3.0), old)
    loads = (load_of_shape(rate, "const:1000", "const:300") for rate in (0.1, 5))
    quiet, busy = (there(plan(asked(load=load, offers=offers)).best) for load in loads)
    assert 0.9 not in (quiet.instance_usd_per_hour, busy.instance_usd_per_hour)
    assert quiet.usd_per_month <= busy.usd_per_month


def test_a_scenario_that_nothing_fits_is_not_compared() -> None:
    fine = plan(asked())
    nothing = plan(asked(limits=Limits(max_usd_per_gpu_hour=0.01)))
    with pytest.raises(BadInput, match=r"b\.toml: no offer meets"):
        diff(("a.toml", TODAY_FILE, fine), ("b.toml", TODAY_FILE, nothing))


def blamed(**limits: object) -> tuple[Blame, ...]:
    made = study(asked(**limits))  # type: ignore[arg-type]
    assert made.plan.best is None
    return tuple(blame(made))


def test_a_slo_below_the_floor_names_the_fastest() -> None:
    (found,) = blamed(slos=parse_slos("tpot_p99=0.0005"))
    assert found.constraint == in_python("slo", "tpot_p99=0.0005")
    assert "lone request" in found.why
    # The nearest value is one that a plan can keep: a little above it, there is one.
    fastest_ms = float(found.nearest.rsplit("takes ", 1)[1].split()[0])
    assert plan(asked(slos=parse_slos(f"tpot_p99={1.05 * fastest_ms}ms"))).best is not None
    assert plan(asked(slos=parse_slos(f"tpot_p99={0.95 * fastest_ms}ms"))).best is None


def test_too_few_gpus_names_how_many_would_do() -> None:
    busy = load_of_shape(500, "const:1000", "const:300")
    (found,) = blamed(load=busy, limits=Limits(max_gpus=2))
    assert found.constraint == in_python("gpus", "2")
    number = int(found.nearest.split()[0])
    question = asked(load=busy)
    assert plan(replace(question, limits=Limits(max_gpus=number))).best is not None
    assert plan(replace(question, limits=Limits(max_gpus=number - 1))).best is None


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"limits": Limits(max_usd_per_gpu_hour=0.5)}, ("max_price", "0.5")),
        ({"terms": (Terms.reserved,)}, ("terms", "reserved")),
        ({"slos": (*SLOS, *parse_slos("e2e_p50=0.01"))}, ("slo", "e2e_p50=0.01")),
    ],
)
def test_the_one_constraint_that_cannot_be_met_is_named(given: dict[str, object], constraint: tuple[str, str]) -> None:
    assert [found.constraint for found in blamed(**given)] == [in_python(*constraint)]


def test_a_limit_on_the_price_names_the_cheapest_gpu_hour_that_would_do() -> None:
    (found,) = blamed(limits=Limits(max_usd_per_gpu_hour=0.5))
    least = min((there(sold.usd_per_hour) / sold.gpus, sold.gpu) for sold in OFFERS)
    assert least == (0.7, "L4")
    assert found.nearest == "L4 at acme costs $0.700 a GPU-hour"
    assert there(plan(asked(limits=Limits(max_usd_per_gpu_hour=least[0]))).best).gpu == "L4"
    assert plan(asked(limits=Limits(max_usd_per_gpu_hour=0.99 * least[0]))).best is None


def test_hosts_without_memory_for_the_weights_name_how_much_would_do() -> None:
    """16.06 GB of weights (14.96 GiB) and 3 GiB for the process behind the GPU."""
    thin = tuple(offer("H100-SXM", 1, 3.0, memory_gb=gb, instance=f"{gb}GB") for gb in (4.0, 12.0))
    (found,) = blamed(offers=thin, weights=(Precision.bf16,))
    assert "1 H100-SXM, has 12 GB" in found.why
    assert found.nearest == "18 GB would do"
    enough = tuple(each.model_copy(update={"memory_gb": 18.0}) for each in thin)
    assert plan(asked(offers=enough, weights=(Precision.bf16,))).best is not None


def test_memory_that_would_do_is_of_the_machine_that_comes_nearest() -> None:
    """70B takes 131.4 GiB and 3 for each of eight GPUs; an L4 with 2,000 GB beside it holds no layer more for that."""
    offers = offer("L4", 1, 0.7, memory_gb=2000.0), offer("H100-SXM", 8, 22.0, memory_gb=64.0)
    (found,) = blamed(model="llama-3.3-70b", offers=offers, weights=(Precision.bf16,))
    assert "8 H100-SXM, has 64 GB" in found.why
    assert found.nearest == "156 GB would do"
    # Eight replicas of 8B beside eight GPUs, or one beside one: what is said to do is more than the machine has.
    offers = offer("H100-SXM", 1, 3.0, memory_gb=4.0), offer("H100-SXM", 8, 22.0, memory_gb=30.0)
    (found,) = blamed(offers=offers, weights=(Precision.bf16,))
    assert "8 H100-SXM, has 30 GB" in found.why
    assert found.nearest == "39 GB would do"
    enough = offers[1].model_copy(update={"memory_gb": 39.0})
    assert plan(asked(offers=(offers[0], enough), weights=(Precision.bf16,))).best is not None


# --- models and GPUs side by side -------------------------------------------------------------------------------------


def compared(**quality: float) -> Comparison:
    scores = {name.replace("_", "-").replace("__", "."): value for name, value in quality.items()}
    return compare([asked("llama-3.1-8b", BUSY), asked("qwen2.5-32b", BUSY)], scores)


def test_c37_a_small_model_on_a_big_gpu_is_cheaper_by_the_token_than_a_large_one_on_a_cheap_gpu() -> None:
    found = compared()
    small, large = found.cell("llama-3.1-8b", "H100-SXM"), found.cell("qwen2.5-32b", "A100-80GB")
    assert there(small.usd_per_mtok) < there(large.usd_per_mtok)
    # By the hour it is the other way round.
    assert (OFFERS[3].usd_per_hour or 0) > (OFFERS[1].usd_per_hour or 0)


def test_each_cell_is_the_plan_of_that_model_on_that_gpu() -> None:
    found = compared()
    for cell in found.cells:
        mine = tuple(offer for offer in OFFERS if offer.gpu == cell.gpu)
        best = study(asked(cell.model, BUSY, mine)).plan.best
        assert (cell.pick is None) == (best is None)
        if best is not None and cell.pick is not None:
            assert cell.pick.usd_per_month == best.usd_per_month
        else:
            assert cell.refused


def test_the_best_cell_of_a_model_is_its_plan() -> None:
    found = compared()
    for model in found.models:
        best = there(study(asked(model, BUSY)).plan.best)
        prices = [cell.usd_per_mtok for cell in found.cells if cell.model == model and cell.usd_per_mtok]
        assert min(prices) == pytest.approx(best.usd_per_mtok.blended)


def test_no_pair_beats_one_on_the_front_and_every_other_is_beaten() -> None:
    found = compare(
        [asked("llama-3.1-8b", BUSY), asked("qwen2.5-32b", BUSY)], {"llama-3.1-8b": 0.66, "qwen2.5-32b": 0.8}
    )
    priced = [each for each in found.cells if each.usd_per_mtok is not None]

    def beaten(one: object) -> bool:
        cell = found.cell(*one) if isinstance(one, tuple) else one
        return any(
            (other.usd_per_mtok or 0) <= (cell.usd_per_mtok or 0)  # type: ignore[attr-defined]
            and (other.quality or 0) >= (cell.quality or 0)  # type: ignore[attr-defined]
            and (other.usd_per_mtok, other.quality) != (cell.usd_per_mtok, cell.quality)  # type: ignore[attr-defined]
            for other in priced
        )

    assert found.front
    for each in priced:
        assert beaten(each) == ((each.model, each.gpu) not in found.front)
        assert each.usd_per_quality_mtok == pytest.approx((each.usd_per_mtok or 0) / (each.quality or 1))


def test_without_scores_there_is_no_front() -> None:
    assert compared().front == ()


@pytest.mark.parametrize("text", ["llama-3.1-8c=0.6", "llama-3.1-8b", "llama-3.1-8b=-1"])
def test_what_is_no_score_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_quality([text], ["llama-3.1-8b"])
    assert error.value.field == "quality"


def test_two_pairs_of_one_price_are_both_the_cheapest_and_both_on_the_front() -> None:
    found = compare([asked("llama-3.1-8b", BUSY)], {"llama-3.1-8b": 0.66})
    best = there(found.cheapest())
    twin = best.model_copy(update={"model": "twin", "model_name": "Twin"})
    rest = [cell.model_copy(update={"model": "twin", "model_name": "Twin"}) for cell in found.cells if cell != best]
    cells = (*found.cells, twin, *rest)
    both = found.model_copy(update={"models": (*found.models, "twin"), "cells": cells, "front": front(cells)})
    assert both.front == (("llama-3.1-8b", best.gpu), ("twin", best.gpu))


def test_hosts_of_a_log_read_what_it_repeats_from_their_caches(tmp_path: Path) -> None:
    # Twenty requests, one a second, whose first 512 tokens are the same: all but the first read them.
    rows = [{"timestamp": 1000 * row, "input_length": 1024, "output_length": 10, "hash_ids": [0, row + 1]}
            for row in range(20)]  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    asked = {"model": ["gpt-oss-20b"], "trace": str(log), "gpu": ["H100"]}
    found = ask_compare(CompareRequest.checked(asked))
    (bills,) = found.apis.values()
    assert max(bill.cached_share for bill in bills) == pytest.approx(19 / 20 / 2)
    # As fast as one likes: what repeats does so at the log's own pace.
    faster = ask_compare(CompareRequest.checked({**asked, "rate": "0.001"}))
    assert [bill.cached_share for bill in faster.apis["gpt-oss-20b"]] == [bill.cached_share for bill in bills]
