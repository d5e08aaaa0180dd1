"""Compute what keeping the KV of shared prompt beginnings saves: the user's trace served with and without it.

Each setting (no cache, the GPU's own, with prefix-aware routing, with every choice of the slower memories behind it) is
simulated on as few replicas as keep up and meet the SLOs: the bill and the latencies are of the same fleet. A setting
that meets them on no number of replicas has no bill, and says what breaks. If no SLO is set, fewer replicas that answer
later than today (the first token, the next ones or the whole, at p99) are not counted as a saving, and are marked. How
the hits depend on size and time to live is found by replaying the trace through one LRU cache
(``traffic.prefix_reuse``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput, option
from tokonomics.money.cache_tiers import TierBreakEven, TierPrice, break_even
from tokonomics.money.cost import BeforeAfter, CostTree, replica_hour
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.session_outcome import SessionOutcome
from tokonomics.serving.tiers import TierHits, gpu_cache_bytes, kv_bytes_per_token
from tokonomics.sizing.attempt import Attempts, Sized, cached_share, serve
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.search import NeverHolds, size
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.traffic.prefix_reuse import found_share
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import Spread, lengths_text
from tokonomics.types import Noun, copied
from tokonomics.units import BYTES_PER_GB, SECONDS_PER_HOUR, TOKENS_PER_MTOK, plural

TTLS_S = (60.0, 300.0, 900.0, 3600.0)
"""From a minute to an hour; five minutes and an hour are what API providers sell (Anthropic, prompt caching)."""
_SAME = 1e-9
_SIZES = 24  # points of the curve of hits against size


class CacheSetting(Noun):
    """One setting of the cache to simulate."""

    name: str
    prefix_cache: bool = True
    router: Router | None = None
    """None: round robin or the least outstanding requests, whichever needs fewer replicas."""
    tiers: tuple[TierPrice, ...] = ()


class CacheRow(Noun):
    """One setting, simulated."""

    setting: CacheSetting
    replicas: PositiveInt
    """The replicas behind the figures up to ``outcome``: those it needs, or the number asked for; if no number meets
    the SLOs, the fewest that keep up."""
    max_sequences: PositiveInt | None = None  # at a time, if it is not the engine's own limit
    cached_share: NonNegativeFloat  # of the prompt tokens of answered requests
    computed_tokens_per_hour: NonNegativeFloat  # prompt tokens that had to be computed
    prefill_replicas: NonNegativeFloat  # mean number of replicas that are busy with prompts
    tier_hits: tuple[TierHits, ...]
    outcome: Outcome
    needs: PositiveInt | None  # the fewest replicas that keep up and meet the SLOs; None: no number of them does
    breaks: str | None  # the SLO that is missed if no number does, in words
    ttft_s: Spread  # on the replicas it needs, like the next two; if no number does, on the fewest that keep up
    tpot_s: Spread
    e2e_s: Spread
    bill: CostTree | None  # of an hour of those, memories included
    usd_per_mtok: float | None
    usd_per_job: float | None = None  # of traffic in sessions
    sessions: SessionOutcome | None = None  # on the replicas that it needs, or on the fewest that keep up


class Slower(Noun):
    """A setting with a lower bill that answers later, if no SLO was set."""

    name: str
    saved_usd_per_hour: float
    ttft_times: float  # its TTFT p99 ÷ that without a cache, each on the replicas that it needs; like the next two
    tpot_times: float
    e2e_times: float


class SizePoint(Noun):
    """The share of the prompt tokens that one cache of that size finds."""

    size_bytes: NonNegativeFloat
    share: NonNegativeFloat


class TtlPoint(Noun):
    """The share of the prompt tokens that an unlimited cache finds if blocks unused for ``ttl_s`` are dropped."""

    ttl_s: float | None
    share: NonNegativeFloat
    held_bytes: NonNegativeFloat  # the most it has to hold


class PrefixCacheLever(Noun):
    """The effect of prefix caching on a deployment and a trace."""

    deployment: str
    source: str
    requests: NonNegativeInt
    input_tokens: NonNegativeInt
    gpu_cache_bytes: NonNegativeInt
    """The room for KV on a replica's GPUs, each head counted once; running requests and cache share it."""
    kv_bytes_per_token: NonNegativeInt
    rows: tuple[CacheRow, ...]
    bill: BeforeAfter | None
    """From the first row to the cheapest; of equal bills, the one with the fastest first token. If no SLO is set, only
    to one whose TTFT, TPOT and whole answer at p99 are no worse than without a cache. None if one of the two misses its
    SLOs."""
    best: str | None  # None if no setting meets the SLOs
    slower: Slower | None  # cheaper, but it answers later
    sizes: tuple[SizePoint, ...]
    ttls: tuple[TtlPoint, ...]
    break_evens: tuple[TierBreakEven, ...]


def prefix_cache_lever(
    deployment: Deployment,
    trace: Trace,
    usd_per_replica_hour: Callable[[int], float],
    *,
    tiers: Sequence[TierPrice] = (),
    replicas: int | None = None,
    slos: Sequence[Slo] = (),
    say: Say = silent,
) -> PrefixCacheLever:
    """Simulate every setting on the fewest replicas that it needs and, if asked, on ``replicas``."""
    if trace.prefix is None:
        raise BadInput(
            "does not say which blocks its prompts share",
            where=trace.source,
            fix=f"Say what they share: {option('system_prompts', '20,tokens=500')}. Or use a log with block hashes "
            f"({option('columns', '…,prefix=…')}), or a sample: mooncake-conversation.",
        )
    plain = [
        CacheSetting(name="no cache", prefix_cache=False),
        CacheSetting(name="GPU cache"),
        CacheSetting(name="GPU cache, prefix-aware router", router=Router.prefix_aware),
    ]
    if trace.turns is not None:
        plain.append(CacheSetting(name="GPU cache, session-affine router", router=Router.session_affine))
    load, attempts = load_of_requests(trace), Attempts()

    def setup(setting: CacheSetting) -> Setup:
        kept = copied(setting, "prefix_cache", "router")
        return Setup(deployment, load, slos=tuple(slos), tiers=setting.tiers or None, **kept)

    def needed(setting: CacheSetting) -> _CacheFleet:
        say(f"the replicas it takes: {setting.name}")
        blind = Router.round_robin, Router.least_outstanding
        return _sized(setup(setting), blind if setting.router is None else (setting.router,), attempts)

    def row(setting: CacheSetting, fleet: _CacheFleet) -> CacheRow:
        say(f"{setting.name} on {plural(fleet.sized.replicas, 'replica')}")
        setting = setting.model_copy(update={"router": fleet.sized.router})
        return _row(setup(setting), setting, replicas or fleet.sized.replicas, fleet, usd_per_replica_hour)

    fleets = [needed(setting) for setting in plain]
    if (replicas or 1) == max(fleet.sized.replicas for fleet in fleets) == 1:
        plain, fleets = plain[:2], fleets[:2]  # one replica needs no router
    rows = [row(setting, fleet) for setting, fleet in zip(plain, fleets, strict=True)]
    # Slower memories use the better of the two routers: following prefixes can make the load uneven.
    base = min(rows[1:], key=_cost_then_wait).setting
    # Try every choice of the memories: it is not known beforehand which of them pay.
    for chosen in (some for count in range(1, len(tiers) + 1) for some in combinations(tiers, count)):
        sizes = (f"{price.tier.name} {price.tier.size_bytes / BYTES_PER_GB:g} GB" for price in chosen)
        with_tiers = base.model_copy(update={"name": f"  + {' + '.join(sizes)}", "tiers": chosen})
        rows.append(row(with_tiers, needed(with_tiers)))
    prompt = [row for row in rows if row.bill and (slos or max(_times(row, rows[0])) <= 1 + _SAME)]
    # At the same bill, prefer the cache with the fewest parts: each row adds to those before it.
    best = min(prompt, key=lambda one: (_cost_then_wait(one)[0], one is rows[0]), default=None)
    per_replica = usd_per_replica_hour(replicas or fleets[0].sized.replicas)
    per_token = kv_bytes_per_token(deployment)
    pace = f" at {trace.rate:.3g} requests a second" if trace.turns is not None else ""
    return PrefixCacheLever(
        deployment=str(deployment),
        source=f"{trace.source}{pace}, {lengths_text(trace)}",
        requests=len(trace),
        input_tokens=int(trace.input_tokens.sum(dtype=np.int64)),
        gpu_cache_bytes=gpu_cache_bytes(deployment),
        kv_bytes_per_token=per_token,
        rows=tuple(rows),
        bill=BeforeAfter(before=rows[0].bill, after=best.bill) if rows[0].bill and best and best.bill else None,
        best=best.setting.name if best else None,
        slower=_slower(rows, best),
        sizes=hits_by_size(trace, per_token),
        ttls=hits_by_ttl(trace, per_token),
        break_evens=tuple(break_even(deployment, price, per_replica) for price in tiers),
    )


def hits_by_size(trace: Trace, bytes_per_token: int) -> tuple[SizePoint, ...]:
    """Return the hits of one cache for all requests, from one block to a size that holds everything."""
    if trace.prefix is None:
        return ()
    block_bytes = trace.prefix.block_tokens * bytes_per_token
    _, most = found_share(trace)
    sizes = np.unique(np.geomspace(max(1, most // 2000), max(2, most), _SIZES).astype(np.int64)).tolist()
    return tuple(
        SizePoint(size_bytes=float(blocks * block_bytes), share=found_share(trace, blocks)[0]) for blocks in sizes
    )


def hits_by_ttl(trace: Trace, bytes_per_token: int, ttls_s: Sequence[float] = TTLS_S) -> tuple[TtlPoint, ...]:
    """Return the hits of one unlimited cache for each time to live; the last point keeps everything."""
    if trace.prefix is None:
        return ()
    block_bytes, points = trace.prefix.block_tokens * bytes_per_token, []
    for ttl_s in (*(ttl_s for ttl_s in ttls_s if ttl_s < trace.duration_s), None):
        share, held = found_share(trace, ttl_s=ttl_s)
        points.append(TtlPoint(ttl_s=ttl_s, share=share, held_bytes=float(held * block_bytes)))
    return tuple(points)


class _CacheFleet(NamedTuple):
    """The fewest replicas that hold; or those that at least keep up, with what breaks on any number of them."""

    sized: Sized
    breaks: str | None = None


def _sized(setup: Setup, routers: Sequence[Router | None], attempts: Attempts) -> _CacheFleet:
    """Size the setup behind the router that needs the fewest replicas."""

    def sized(targets: tuple[Slo, ...]) -> list[Sized | NotServed]:
        return [size(replace(setup, router=router, slos=targets), attempts) for router in routers]

    found = sized(setup.slos)
    if held := [way for way in found if isinstance(way, Sized)]:
        return _CacheFleet(min(held, key=lambda way: way.replicas))
    missed = found[0]
    assert isinstance(missed, NotServed)
    if keeping_up := [way for way in sized(()) if isinstance(way, Sized)]:
        return _CacheFleet(min(keeping_up, key=lambda way: way.replicas), missed.reason)
    raise NeverHolds(missed, f"{setup.deployment}: ")


def _slower(rows: Sequence[CacheRow], best: CacheRow | None) -> Slower | None:
    """Return the cheapest row if it is not the best because it answers later."""
    cheapest, now = min(rows, key=_cost_then_wait), rows[0].bill
    if not (best and best.bill and cheapest.bill and now) or cheapest.bill.usd >= best.bill.usd * (1 - _SAME):
        return None
    ttft, tpot, e2e = _times(cheapest, rows[0])
    name, saved = cheapest.setting.name.strip(), now.usd - cheapest.bill.usd
    return Slower(name=name, saved_usd_per_hour=saved, ttft_times=ttft, tpot_times=tpot, e2e_times=e2e)


def _cost_then_wait(row: CacheRow) -> tuple[float, float]:
    return round(row.bill.usd, 6) if row.bill else math.inf, row.ttft_s.mean or 0.0


def _times(row: CacheRow, plain: CacheRow) -> tuple[float, float, float]:
    """Return TTFT, TPOT and the whole answer at p99 over those of ``plain``, each on the replicas that it needs."""

    def times(late: Spread, now: Spread) -> float:
        return late.p99 / now.p99 if late.p99 is not None and now.p99 else 1.0

    return times(row.ttft_s, plain.ttft_s), times(row.tpot_s, plain.tpot_s), times(row.e2e_s, plain.e2e_s)


def _row(
    setup: Setup, setting: CacheSetting, replicas: int, fleet: _CacheFleet, usd_per_replica_hour: Callable[[int], float]
) -> CacheRow:
    needs, limit = fleet.sized.replicas, fleet.sized.max_sequences
    simulation, hits = serve(setup, replicas, limit)
    made = outcome(simulation, setup.slos)
    on_needed = made if needs == replicas else outcome(serve(setup, needs, limit)[0], setup.slos)
    hours = made.rated_s / SECONDS_PER_HOUR
    bill = None
    if fleet.breaks is None:
        memories = (price.line(needs) for price in setting.tiers)
        bill = replica_hour(setting.name.strip(), needs, usd_per_replica_hour(needs), *memories)
    tokens, span_hours = on_needed.input_tokens + on_needed.output_tokens, on_needed.replica_hours / needs
    jobs = on_needed.sessions.finished if on_needed.sessions else 0
    return CacheRow(
        setting=setting,
        replicas=replicas,
        max_sequences=limit,
        cached_share=cached_share(made),
        computed_tokens_per_hour=(made.input_tokens - made.cached_tokens) / hours if hours else 0.0,
        prefill_replicas=made.shares.prefill * made.mean_replicas,
        tier_hits=hits,
        outcome=made,
        needs=needs if bill else None,
        breaks=fleet.breaks,
        **copied(on_needed, "ttft_s", "tpot_s", "e2e_s"),
        bill=bill,
        usd_per_mtok=bill.usd * span_hours / tokens * TOKENS_PER_MTOK if bill and tokens and span_hours else None,
        usd_per_job=bill.usd * span_hours / jobs if bill and jobs else None,
        sessions=on_needed.sessions,
    )
