"""What descriptions say where a figure could mislead."""

import re
from functools import partial

import pytest

import tokonomics
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.state import MeterTally
from tokonomics.planner.vary import AtSpeed, CostRange
from tokonomics.questions.levers import levers
from tokonomics.questions.requests.traffic import CapacityRequest, LeversRequest
from tokonomics.questions.simulate import capacity
from tokonomics.report.blocks import sections
from tokonomics.report.levers_view import levers as described_levers
from tokonomics.report.meter_view import ledger
from tokonomics.report.plan_view import _interval
from tokonomics.report.rich_text import as_text
from tokonomics.report.simulate_view import capacity as described_capacity
from tokonomics.types import Marked


def test_an_slo_that_slower_machines_miss_is_no_bill_that_stays() -> None:
    bills = {speed: AtSpeed(speed=speed, replicas=1, usd_per_month=500) for speed in (1.2, 1.0)}
    slow = AtSpeed(speed=0.75, replicas=None, usd_per_month=None, refused="TTFT")
    said = _interval(CostRange(fast=bills[1.2], mid=bills[1.0], slow=slow))
    assert said.value[0].text == "from $500.00"
    assert said.note == "25 % slower, no number of replicas meets the SLO"


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        (None, "where memory is full"),
        ("tpot=15ms", "the largest listed that meets the SLO of 15 ms per token"),
        ("tpot=1ms", "which misses the SLO of 1 ms per token"),
        ("tpot=900ms", "where memory is full"),
    ],
)
def test_an_slo_chooses_the_batch_that_meets_it(slo: str | None, said: str) -> None:
    shown = str(tokonomics.curve("llama-3.1-8b", gpu="H100", slo=slo)).partition(":")[0]
    assert said in shown


@pytest.mark.parametrize(
    ("spare", "said"),
    [
        ("zone", "; a zone may fail, assuming that p5.48xlarge is sold in 2 zones of us-east-1: check"),
        ("1", "; 1 machine may fail"),
    ],
)
def test_a_zone_may_fail_only_where_the_machine_is_sold_in_several(spare: str, said: str) -> None:
    plan = partial(tokonomics.plan, "llama-3.3-70b", provider="aws", region="us-east-1", gpu="H100", quick=True)
    shown = str(plan(rate=12, input=1000, output=300, spare=spare))
    _, headline, *_ = (" ".join(block.split()) for block in shown.split("\n\n"))
    assert headline.startswith("Cheapest: ")
    assert f"{said} per Mtok " in headline


def test_the_price_of_an_hour_speaks_before_that_of_minutes() -> None:
    tokens = MeterTally(seconds=60, usd=1.0, output=1e6)
    names = ("Last 5 minutes", "This hour", "Today", "Since the start")

    def headline(*spans: MeterTally) -> str:
        none = bill([], 0.0, 0.0, ())
        return as_text(sections(ledger(dict(zip(names, spans, strict=True)), none, None, ""))).splitlines()[0]

    nothing = MeterTally()
    assert headline(tokens, tokens, tokens, tokens).startswith("This hour: $1.00 per million tokens")
    assert headline(nothing, nothing, tokens, tokens).startswith("Today: ")
    assert headline(tokens, nothing, nothing, nothing).startswith("Last 5 minutes: ")


def test_a_capacity_tells_the_rate_that_holds_from_the_next_that_does_not() -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100", "requests": 300, "input": "const:200", "output": "const:20"}
    request = CapacityRequest.of(asked)
    found = capacity(request)
    for rate, at_most, told in ((12.81, 12.84, ("12.81/s", "12.84/s")), (12.7, 12.83, ("12.7/s", "12.8/s"))):
        best = found.highest_rate.model_copy(update={"rate": rate, "at_most": at_most})
        text = described_capacity(found.model_copy(update={"rate": rate, "highest_rate": best}), request).text()
        said = dict(re.findall(r"^(holds|fails at) +(\S+)", text, re.MULTILINE))
        assert (said["holds"], said["fails at"]) == told


def test_a_lever_that_pays_only_on_top_of_others_says_so_in_its_row() -> None:
    request = LeversRequest.of({"model": "llama-3.1-8b", "gpu": "H100", "rate": "5", "input": "1000", "output": "300"})
    found = levers(request)
    assert "right-sized GPUs" in found.taken
    alone = {"bill": None, "reason": Marked("its machine is not sold"), "saved_usd_per_month": 0.0, "saved_share": 0.0}
    rows = [lever.model_copy(update=alone) if lever.name == "right-sized GPUs" else lever for lever in found.levers]
    changed = found.model_copy(update={"levers": tuple(sorted(rows, key=lambda lever: lever.bill is None))})
    count = sum(lever.bill is None for lever in rows)
    text = described_levers(changed, request).text()
    assert f"{count} levers do not apply alone" in text
    row = re.search("^right-sized GPUs +(.+?) *$", text, re.MULTILINE)
    assert row is not None
    assert row[1] == "taken on top of the others; alone: its machine is not sold"
    assert f"{count - 1} levers do not apply\n" in re.sub(" +\n", "\n", described_levers(found, request).text())
