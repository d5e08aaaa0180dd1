"""Every API of a comparison has a letter, a row and a column; a verdict names the precision that it rests on."""

import string
from itertools import islice
from typing import Any

import pytest

from tokonomics.catalog.layers import Precision
from tokonomics.money.breakeven import FleetKind, ReplicaHolds, SelfHosted, break_even
from tokonomics.planner.hosting import HostedKind
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.questions.results import BreakevenResult
from tokonomics.report.blocks import Line, sections
from tokonomics.report.breakeven_view import breakeven, letters_for


def testletters_for_go_on_after_z_and_never_come_twice() -> None:
    assert letters_for(26) == list(string.ascii_uppercase)
    assert letters_for(54)[25:28] == ["Z", "AA", "BB"]
    assert len(set(letters_for(100))) == 100


def hosted_at(weights: Precision, fewer: bool, usd_per_mtok: float) -> BreakevenResult:
    """One machine of $1,000 a month against an API, with weights in a precision."""
    kind = FleetKind(
        name="one", gpus_per_purchase=1, replicas_per_purchase=1, usd_per_purchase=1000.0,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=20e9),),
    )  # fmt: skip
    hosted = SelfHosted(kinds=(kind,), extras=())
    pick: dict[str, Any] = {"weights": weights, "kv": Precision.bf16, "below_checkpoint": fewer, "price_age_days": 0}
    hardware: dict[str, Any] = {"kind": kind, "simulated": True, "pick": Candidate.model_construct(**pick)}
    parts: dict[str, Any] = {
        "model": "a model", "lengths": "1 in / 1 out", "input_tokens": 1.0, "output_tokens": 1.0, "cached_share": 0.0,
        "slos": (), "hosted": hosted, "hardware": (HostedKind.model_construct(**hardware),), "apis": (), "bills": (),
        "found": (break_even(hosted, "api", usd_per_mtok),), "own_tokens_per_month": None,
    }  # fmt: skip
    return BreakevenResult.model_construct(**parts)


@pytest.mark.parametrize("usd_per_mtok", [0.2, 0.01], ids=["from a volume on", "never"])
def test_a_verdict_names_fewer_bits_than_published_and_nothing_else(usd_per_mtok: float) -> None:
    for weights, fewer in ((Precision.int4, True), (Precision.bf16, False)):
        made = hosted_at(weights, fewer, usd_per_mtok)
        _, verdict = islice(sections(islice(breakeven(made, BreakevenRequest(api=["api"])).view(), 2)), 2)
        line = verdict.blocks[0]
        assert isinstance(line, Line)
        said = "".join(span.text for span in line.spans)
        assert ("int4 weights, fewer bits than published" in said) == fewer
        assert ("int4 weights, fewer bits than published" in made.headline()) == fewer
