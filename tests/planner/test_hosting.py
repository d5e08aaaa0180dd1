"""The self-hosted side of a break-even: its stairs are the planner's own plans."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.planner.small_catalogue import OFFERS, offer
from tests.there import there

import tokonomics as tk
from tokonomics.catalog.offers import Offer
from tokonomics.money.breakeven import break_even
from tokonomics.planner.apis import share_of_api
from tokonomics.planner.hosting import (
    TRICKLE,
    Hosting,
    at_break_even,
    self_hosted,
    tokens_per_request,
    with_shared_head,
)
from tokonomics.planner.plan import study
from tokonomics.questions.breakeven import hosting_of
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.trace import PrefixBlocks, make_trace
from tokonomics.units import SECONDS_PER_MONTH

ASKED = {
    "model": "llama-3.1-8b",
    "input": "const:1000",
    "output": "const:300",
    "slo": "ttft_p99=1,tpot_p99=0.05",
    "kv": ("bf16",),
}


def hosting(share: float = 0.0, offers: tuple[Offer, ...] = OFFERS, **more: object) -> Hosting:
    return hosting_of(BreakevenRequest.checked({**ASKED, "cached_share": share, **more}), offers)


def test_the_stairs_are_what_the_planner_would_pay() -> None:
    asked = hosting(quick=True)
    hosted, kinds = self_hosted(asked, [0.2, 1.0])
    tokens = tokens_per_request(asked.load(1.0))
    for rate in (0.05, 1.0, 5.0, 20.0, 60.0):
        best = there(study(asked.question(rate)).plan.best)
        ours = hosted.usd(rate * tokens * SECONDS_PER_MONTH)
        assert ours >= best.usd_per_month * (1 - 1e-9)
        # Only hardware picked near the volumes asked about competes; it is never far from the best.
        assert ours <= best.usd_per_month * 1.5
    assert {kind.kind.name for kind in kinds} == {kind.name for kind in hosted.kinds}


@pytest.mark.parametrize(("quick", "prices", "offers"), [(True, [0.06, 0.1, 0.4], OFFERS), (False, [0.1], OFFERS[:2])])
def test_at_every_volume_that_is_named_the_bill_is_the_plans(
    quick: bool, prices: list[float], offers: tuple[Offer, ...]
) -> None:
    asked, own_rate = hosting(quick=quick, offers=offers), 7.3
    hosted, _ = self_hosted(asked, prices, own_rate=own_rate)
    tokens = tokens_per_request(asked.load(1.0)) * SECONDS_PER_MONTH
    found = [break_even(hosted, "", price) for price in prices]
    volumes = {10.0**power for power in range(8, 12)} | {own_rate * tokens, *(v for one in found for v in one.volumes)}
    assert hosted.not_planned_for == ()
    assert len(volumes) > 4 + len(prices)
    for volume in sorted(volumes):
        best = there(study(asked.question(volume / tokens), pick_only=True).plan.best)
        assert hosted.usd(volume) == pytest.approx(best.usd_per_month, rel=1e-9), volume


def test_with_headroom_the_bill_at_every_volume_is_the_plans_with_it() -> None:
    asked = hosting(quick=True, headroom=0.5)
    hosted, _ = self_hosted(asked, [0.1])
    tokens = tokens_per_request(asked.load(1.0)) * SECONDS_PER_MONTH
    plain, _ = self_hosted(hosting(quick=True), [0.1])
    bills = []
    for volume in (10.0**power for power in range(8, 12)):
        best = there(study(asked.question(volume / tokens), pick_only=True).plan.best)
        assert hosted.usd(volume) == pytest.approx(best.usd_per_month, rel=1e-9), volume
        bills.append((plain.usd(volume), hosted.usd(volume)))
    assert all(without <= more * (1 + 1e-9) for without, more in bills)
    assert any(without < more * (1 - 1e-9) for without, more in bills)


def test_machines_of_one_name_are_told_apart_by_their_gpus() -> None:
    """A list of one's own may call every machine by one name: one GPU at $3, eight at $18."""
    same = tuple(offer("H100-SXM", gpus, usd, instance="box") for gpus, usd in ((8, 18.0), (1, 3.0)))
    _, kinds = self_hosted(hosting(offers=same, quick=True), [1.0])
    assert kinds
    bought = {(kind.kind.gpus_per_purchase, kind.kind.usd_per_purchase) for kind in kinds}
    assert bought <= {(1, 3.0 * 730), (8, 18.0 * 730)}


@pytest.mark.explore
def test_simulated_stairs_hold_what_the_planner_finds_to_hold() -> None:
    single = tuple(each for each in OFFERS if each.gpu == "H100-SXM" and each.gpus == 1)
    asked = hosting(offers=single, gpu=("H100",))
    hosted, kinds = self_hosted(asked, [0.5])
    tokens = tokens_per_request(asked.load(1.0))
    for rate in (5.0, 40.0):
        best = there(study(asked.question(rate)).plan.best)
        replicas = hosted.kind(rate * tokens * SECONDS_PER_MONTH).replicas(rate * tokens * SECONDS_PER_MONTH)
        assert best.replicas <= replicas <= best.replicas + 1
    found = break_even(hosted, "api", 0.5)
    assert at_break_even(kinds, hosted, found).slow < 1 < at_break_even(kinds, hosted, found).fast


def test_break_evens_beyond_the_planned_volumes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = [0.05, 0.2, 1.0, 5.0]
    all_asked, _ = self_hosted(hosting(quick=True), prices)
    assert all_asked.not_planned_for == ()
    monkeypatch.setattr("tokonomics.planner.hosting._MOST_STUDIES", 2)
    few, _ = self_hosted(hosting(quick=True), prices)
    meets = [break_even(few, "", price) for price in prices]
    met = {volume for meet in meets for volume in (meet.first_tokens_per_month, meet.stays_tokens_per_month)}
    assert few.not_planned_for
    assert all(any(volume == pytest.approx(each) for each in met if each) for volume in few.not_planned_for)


def test_a_shared_head_is_found_by_the_cache() -> None:
    load = with_shared_head(load_of_shape(1, "lognormal:mean=800,p99=4000", "100"), 0.5)
    shared = reuse(there(load.trace.prefix), load.trace.input_tokens)[1:]
    share = shared.sum() / load.trace.input_tokens[1:].sum()
    # Whole blocks of 16 tokens, so a little less than half.
    assert 0.47 < share <= 0.5
    assert np.all(shared <= load.trace.input_tokens[1:])


def test_an_api_forgets_after_five_minutes_and_each_use_begins_them_anew() -> None:
    """Four prompts of two blocks, alike: at 0, 200 and 450 s the last use is near enough, at 800 s it is not."""
    prefix = PrefixBlocks(
        ids=np.tile(np.arange(2, dtype=np.int32), 4), starts=np.arange(0, 9, 2), block_tokens=16, distinct=2
    )
    trace = replace(make_trace([0, 200, 450, 800], [64] * 4, [10] * 4), prefix=prefix)
    log = load_of_log(trace)
    assert share_of_api(log, None) == pytest.approx(2 * 32 / (4 * 64))
    assert share_of_api(log.at(log.workload.rate * 2), None) == pytest.approx(3 * 32 / (4 * 64))
    assert share_of_api(log.at(log.workload.rate / 2), None) == 0


def test_the_log_is_asked_at_its_own_pace() -> None:
    asked = hosting(input=None, output=None, trace="mooncake-conversation", quick=True)
    assert asked.recorded().workload.rate > 100 * TRICKLE
    assert share_of_api(asked.recorded(), None) > 2 * share_of_api(asked.load(TRICKLE), None)


def test_cached_prompts_never_make_hosting_dearer() -> None:
    plain, cached = (self_hosted(hosting(share, quick=True), [0.5])[0] for share in (0.0, 0.6))
    for volume in (1e8, 1e10, 1e11):
        assert cached.usd(volume) <= plain.usd(volume)


def test_an_own_offer_is_planned_with(tmp_path: Path) -> None:
    from datetime import date

    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offers import load_offers, write_offers
    from tokonomics.money.own_hardware import Purchase, own_offer

    bought = Purchase(gpus=8, purchase_usd=250_000, years=4, usd_per_kwh=0.12, host_watts=4600)
    write_offers(tmp_path / "mine.csv", [own_offer(bought, find_gpu("H100"), date(2026, 11, 15))])
    asked = hosting(offers=load_offers(tmp_path / "mine.csv"), quick=True)
    hosted, _ = self_hosted(asked, [1.0])
    assert all("own" in kind.name for kind in hosted.kinds)


@pytest.mark.parametrize("said", ["rate", "tokens_per_month", "arrivals", "trace"])
def test_a_break_even_knows_the_users_volume_however_the_traffic_is_said(said: str) -> None:
    """3 requests a second of 1,300 tokens, all month; a log of 301 requests in 100 s."""
    month_s = 730 * 3600
    shape = {"input": "const:1000", "output": "const:300"}
    log = {"arrival_s": [i / 3 for i in range(301)], "input_tokens": [1000] * 301, "output_tokens": [300] * 301}
    ways: dict[str, dict[str, Any]] = {
        "rate": {"rate": 3, **shape},
        "tokens_per_month": {"tokens_per_month": 3 * 1300 * month_s, **shape},
        "arrivals": {"arrivals": "gamma:3,cv=2", **shape},
        "trace": {"trace": log},
    }
    made = tk.breakeven("llama-3.1-8b", gpu="L4", api="openai:gpt-4o-mini", quick=True, **ways[said])
    assert made.own_tokens_per_month == pytest.approx(3 * 1300 * month_s, rel=0.004)
