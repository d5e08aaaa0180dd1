"""The cheapest alone, by the closed form: found with less work than a table of all, and the same."""

import re
from dataclasses import replace

import pytest
from tests.deployed import on
from tests.planner.small_catalogue import BUSY, asked
from tests.there import there

from tokonomics.planner.plan import Question, study
from tokonomics.planner.prospects import prospects
from tokonomics.planner.vary import stretched
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import curve_for, most_held
from tokonomics.traffic.slo import parse_slos

RATES = (0.01, 3.0, 40.0, 400.0)
STRICT = "tpot_p99=80ms"
ROUNDED = 1.01  # dollars are said to three digits


def at(rate: float, model: str = "llama-3.1-8b") -> Question:
    return asked(model, BUSY.at(rate))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-32b"])
def test_the_pick_alone_is_that_of_the_whole_plan(rate: float, model: str) -> None:
    whole, alone = study(at(rate, model)), study(at(rate, model), pick_only=True)
    assert alone.plan.best == whole.plan.best
    assert len(alone.search.screened) <= len(whole.search.screened)


def test_at_many_replicas_most_are_ruled_out_by_their_answers() -> None:
    whole, alone = study(at(400.0)), study(at(400.0), pick_only=True)
    assert len(alone.search.screened) < len(whole.search.screened)


@pytest.mark.parametrize("gpu", ["L4", "A100-80GB", "H100-SXM"])
@pytest.mark.parametrize("slo", [None, STRICT])
def test_no_replica_holds_more_than_its_answers_alone(gpu: str, slo: str | None) -> None:
    deployment = on(gpu=gpu)
    slos = parse_slos(slo) if slo else ()
    limit = slos[0].seconds if slos else None
    for load in (BUSY, stretched(BUSY, inputs=4), stretched(BUSY, outputs=0.1)):
        assert curve_for(deployment, load).capacity(limit).rate <= most_held(deployment, load, slos)


def test_longer_requests_stand_on_the_same_hosts() -> None:
    def hosts(load: Load) -> dict[int, object]:
        return {id(found): found for found in prospects(at(1.0), load)}

    short, long = hosts(BUSY), hosts(stretched(BUSY, inputs=2))
    assert short
    assert set(long) <= set(short)


@pytest.mark.parametrize("usd_per_hour", [1.0, 3.7, 12.0])
def test_below_a_bill_no_host_is_left_out_that_costs_less(usd_per_hour: float) -> None:
    question = at(1.0)
    whole, few = prospects(question, BUSY), prospects(question, BUSY, usd_per_hour)
    assert set(map(id, few)) <= set(map(id, whole))
    assert all(found in few for found in whole if found.usd_per_hour(1) <= usd_per_hour)
    assert len(few) < len(whole)


@pytest.mark.parametrize("rate", [3.0, 40.0])
def test_what_is_said_of_the_bill_meanwhile_is_true_of_the_answer(rate: float) -> None:
    """Every lower bound is at most the answer's bill, every upper bound at least that."""
    question, heard = replace(at(rate), simulate=True, slos=parse_slos("ttft_p99=2,tpot_p99=50ms")), list[str]()
    best = there(study(question, heard.append).plan.best)
    said = [line.partition("; the cheapest fleet costs ")[2] for line in heard if "; the cheapest fleet costs " in line]
    assert said[-1].startswith("$")
    for text in said:
        bounds = [float(figure.replace(",", "")) for figure in re.findall(r"\$([\d,.]*\d)", text)]
        assert bounds[0] <= best.usd_per_month * ROUNDED
        assert text.endswith("or more") or bounds[-1] >= best.usd_per_month / ROUNDED
    heard.clear()
    study(replace(question, disaggregate=True), heard.append)
    assert heard
    assert not any("cheapest fleet" in line for line in heard)
