"""Compute what keeping the KV of shared prompt beginnings saves: the user's trace served with and without it.

Each setting (no cache, the GPU's own, with prefix-aware routing, with every choice of the slower memories behind it) is
simulated on as few replicas as keep up and meet the SLOs: the bill and the latencies are of the same fleet. Memories
whose size is not given get the one that pays (``memory_sizes``), one behind the others. A setting that meets the SLOs
on no number of replicas has no bill, and says what breaks. If no SLO is set, fewer replicas that answer later than
today (the first token, the next ones or the whole, at p99) are not counted as a saving, and are marked. How the hits
depend on size and time to live is found by replaying the trace (``traffic.prefix_reuse``).
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.errors import BadInput, option
from tokonomics.levers.cache_settings import (
    SAME,
    CacheComparison,
    CacheRow,
    CacheSetting,
    cost_then_wait,
    times_later,
)
from tokonomics.levers.memory_sizes import MemoryAnswer, MemorySearch
from tokonomics.money.cache_tiers import TierBreakEven, TierPrice, break_even
from tokonomics.money.cost import BeforeAfter
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.tiers import gpu_cache_bytes, kv_bytes_per_token, tiers_of_every_size
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.prefix_reuse import FoundBySize, found_share
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import lengths_text
from tokonomics.types import Noun

TTLS_S = (60.0, 300.0, 900.0, 3600.0)
"""From a minute to an hour; five minutes and an hour are what API providers sell (Anthropic, prompt caching)."""
_SIZES = 24  # points of the curve of hits against size


class Slower(Noun):
    """A setting with a lower bill that answers later, if no SLO was set."""

    name: str
    saved_usd_per_hour: float
    ttft_times: float  # its TTFT p99 ÷ that without a cache, each on the replicas that it needs; like the next two
    tpot_times: float
    e2e_times: float


class SizePoint(Noun):
    """The share of the prompt tokens that a cache of that size at each replica finds."""

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
    memory: MemoryAnswer | None = None  # None: every memory had a size
    sizes: tuple[SizePoint, ...]
    ttls: tuple[TtlPoint, ...]
    break_evens: tuple[TierBreakEven, ...]


def prefix_cache_lever(
    deployment: Deployment,
    trace: Trace,
    usd_per_replica_hour: Callable[[int], float],
    *,
    tiers: Sequence[TierPrice] = (),
    machine_gb: Callable[[int], float] = lambda count: 0.0,
    replicas: int | None = None,
    slos: Sequence[Slo] = (),
    say: Say = silent,
) -> PrefixCacheLever:
    """Simulate every setting on the fewest replicas that it needs and, if asked, on ``replicas``.

    The sizes of unsized tiers are searched. ``machine_gb`` is the host memory that machines of a fleet of so many
    replicas have left for each.
    """
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
    load = load_of_requests(trace)
    compared = CacheComparison(deployment, load, tuple(slos), replicas, usd_per_replica_hour, machine_gb, say)
    fleets = [compared.needed(setting) for setting in plain]
    if (replicas or 1) == max(fleet.sized.replicas for fleet in fleets) == 1:
        plain, fleets = plain[:2], fleets[:2]  # one replica needs no router
    for setting, fleet in zip(plain, fleets, strict=True):
        compared.add(setting, fleet)
    rows = compared.rows
    # Slower memories use the better of the two routers: following prefixes can make the load uneven.
    base = min(rows[1:], key=cost_then_wait)
    simulation, _ = serve(compared.setup(base.setting), base.replicas, base.max_sequences)
    per_token = kv_bytes_per_token(deployment)
    block_bytes, by_size = trace.prefix.block_tokens * per_token, tiers_of_every_size(simulation)
    memory = None
    if all(price.is_sized for price in tiers):
        # Try every choice of the memories: it is not known beforehand which of them pay.
        for chosen in (some for count in range(1, len(tiers) + 1) for some in combinations(tiers, count)):
            compared.behind(base.setting, chosen)
    else:
        memory, by_size = MemorySearch(compared, base, simulation, tuple(tiers)).find()
    in_time = [row for row in rows if compared.is_in_time(row)]
    # At the same bill, prefer the cache with the fewest parts: each row adds to those before it.
    best = min(in_time, key=lambda one: (cost_then_wait(one)[0], one is rows[0]), default=None)
    if memory and best and best.setting.tiers:
        best = next(row for row in rows if row.setting.name == memory.keep)
    per_replica = usd_per_replica_hour(replicas or fleets[0].sized.replicas)
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
        memory=memory,
        sizes=hits_by_size(by_size, block_bytes),
        ttls=hits_by_ttl(trace, per_token),
        break_evens=tuple(break_even(deployment, price, per_replica) for price in tiers),
    )


def hits_by_size(found: FoundBySize, block_bytes: int) -> tuple[SizePoint, ...]:
    """Return what a cache at each replica finds, from nearly nothing to the size that finds all."""
    most = found.most_blocks
    if not most:
        return ()
    sizes = np.unique(np.geomspace(max(1, most // 2000), max(2, most), _SIZES).astype(np.int64)).tolist()
    return tuple(SizePoint(size_bytes=float(blocks * block_bytes), share=found.share(blocks)) for blocks in sizes)


def hits_by_ttl(trace: Trace, bytes_per_token: int, ttls_s: Sequence[float] = TTLS_S) -> tuple[TtlPoint, ...]:
    """Return the hits of one unlimited cache for each time to live; the last point keeps everything."""
    if trace.prefix is None:
        return ()
    block_bytes, points = trace.prefix.block_tokens * bytes_per_token, []
    for ttl_s in (*(ttl_s for ttl_s in ttls_s if ttl_s < trace.duration_s), None):
        share, held = found_share(trace, ttl_s=ttl_s)
        points.append(TtlPoint(ttl_s=ttl_s, share=share, held_bytes=float(held * block_bytes)))
    return tuple(points)


def _slower(rows: Sequence[CacheRow], best: CacheRow | None) -> Slower | None:
    """Return the cheapest row if it is not the best because it answers later."""
    cheapest, now = min(rows, key=cost_then_wait), rows[0].bill
    if not (best and best.bill and cheapest.bill and now) or cheapest.bill.usd >= best.bill.usd * (1 - SAME):
        return None
    ttft, tpot, e2e = times_later(cheapest, rows[0])
    name, saved = cheapest.setting.name.strip(), now.usd - cheapest.bill.usd
    return Slower(name=name, saved_usd_per_hour=saved, ttft_times=ttft, tpot_times=tpot, e2e_times=e2e)
