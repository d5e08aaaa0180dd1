"""The questions of the guide, asked with defaults: no headline names what a buyer cannot act on."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import tokonomics as tk
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offer_choice import market_of
from tokonomics.catalog.offers import STALE_AFTER_DAYS, load_offers
from tokonomics.catalog.places import Seller, seller_of
from tokonomics.planner.plan_answer import Candidate
from tokonomics.types import Speed

SHAPE: dict[str, Any] = {"input": 2000, "output": 500, "rate": 2, "slo": "ttft_p99=1,tpot_p99=50ms"}


def plans(model: str, **asked: Any) -> Iterable[Candidate]:
    made = tk.plan(model, quick=True, **asked)
    faithful, rival = made.best_at_checkpoint(), made.runner_up()
    picks = [row for row in (made.best, faithful, rival) if row]
    assert picks
    for row in picks:
        same = [
            offer for offer in made.study.question.offers
            if market_of(offer) == (row.gpu, False) and offer.price(row.terms) is not None
        ]  # fmt: skip
        assert (max(offer.date for offer in same) - row.price_date).days <= STALE_AFTER_DAYS, row
    return picks


def which_gpu_for_a_70b() -> Iterable[Candidate]:
    return plans("llama-3.3-70b", **SHAPE)


def why_is_my_bill_twice_the_plan() -> Iterable[Candidate]:
    return plans("gpt-oss-120b", rate=6, input=1024, output=1024, slo="ttft_p99=1,tpot_p99=30ms")


def own_or_api() -> Iterable[Candidate]:
    made = tk.breakeven("llama-3.3-70b", input=1000, output=300, slo="ttft_p99=1,tpot_p99=80ms", quick=True)
    return [hosted.pick for hosted in made.hardware]


@pytest.mark.parametrize("question", [which_gpu_for_a_70b, why_is_my_bill_twice_the_plan, own_or_api])
def test_no_pick_is_on_a_marketplace_of_assumed_speed_or_below_fp8(question: Callable[[], Iterable[Candidate]]) -> None:
    for row in question():
        assert row.seller in (Seller.hyperscaler, Seller.cloud)
        assert row.speed is not Speed.assumed
        assert not row.weights.is_below(Precision.fp8) or not row.below_checkpoint
        assert row.kv is Precision.bf16


def test_a_fleet_is_bought_from_sellers_with_a_list_at_recent_prices() -> None:
    made = tk.fleet("llama-3.1-8b", demand="10x40,14x6", input=1000, output=300, slo="ttft_p99=2", no_replay=True)
    for purchase in made.plan.purchases:
        kind = made.kind(purchase.offer)
        assert seller_of(kind.provider) is not Seller.marketplace
        newest = max(
            other.date for other in load_offers() if market_of(other) == (kind.gpu, False) and other.usd_per_hour
        )
        assert (newest - kind.price_date).days <= STALE_AFTER_DAYS
        assert kind.speed is not Speed.assumed


QUESTIONS = sorted((Path(__file__).parents[2] / "docs" / "questions").glob("*.md"))
SHOWN = re.compile(r"<!-- output: ([^>]*?) -->\n```console\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", QUESTIONS, ids=lambda page: page.stem)
def test_the_pages_of_the_guide_show_such_headlines(page: Path) -> None:
    """What they show is what the commands print (test_generated)."""
    shown = SHOWN.findall(page.read_text(encoding="utf-8"))
    assert shown
    marketplaces = {offer.provider for offer in load_offers() if offer.seller is Seller.marketplace}
    for command, output in shown:
        lines = [line for line in output.splitlines() if not line.startswith("On a marketplace: ")]
        sold = re.compile(rf"\b({'|'.join(marketplaces - set(command.split()))}) \S")  # a provider and its machine
        assert not any(sold.search(line) for line in lines)
        assert not any(re.match(r"speed +assumed", line) for line in lines)
        headlines = [line for line in lines if re.match(r"(Cheapest|Expected bill|with them)", line)]
        assert "int4" in command or not any("int4" in line for line in headlines)
