"""Choose how much memory for KV to keep behind the GPUs: which sizes to simulate, and what pays.

Sizes double from the GPUs' own KV to the whole working set: the size from which a least-recently-used memory finds all
that can be found. The largest is simulated first. Between two sizes that need as many replicas no size is cheaper than
the smaller one, so only where the replicas differ are sizes between them simulated, and only if one of them could cost
less than the cheapest known. What a size finds, and which time of the GPUs it frees, follows from replays of the log.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.levers.cache_settings import CacheComparison, CacheRow, cost_then_wait, costs_about
from tokonomics.money.cache_tiers import TierPrice
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.tiers import (
    gpu_cache_bytes,
    kv_bytes_per_token,
    plan_fetches,
    prompts_take_s,
    tiers_of_every_size,
)
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.search import CLOSE_ENOUGH
from tokonomics.traffic.prefix_reuse import FoundBySize
from tokonomics.types import Noun
from tokonomics.units import BYTES_PER_GB


class MemorySize(Noun):
    """What a memory of one size behind each replica finds and frees, by replay, and what it costs."""

    size_bytes: NonNegativeFloat
    found_share: NonNegativeFloat
    """Of the prompt tokens: what a cache of this size at each replica finds, wherever else they are found."""
    freed_replicas: dict[str, float]  # by memory: time of the GPUs that fetching from it saves, in replicas
    usd_per_hour: dict[str, float]  # by memory: for all replicas


class MemoryVerdict(Noun):
    """Whether one memory pays, at the size that is kept or, if none is, at the one nearest to paying."""

    name: str
    pays: bool
    size_bytes: NonNegativeFloat
    found_share: NonNegativeFloat  # of the prompt tokens: what it adds to the GPUs and the memories that are kept
    freed_replicas: NonNegativeFloat  # likewise, time of the GPUs, on as many replicas as are kept
    usd_per_hour: NonNegativeFloat
    pays_from_load: float | None
    """The load, in times this one, that makes the freed time a whole replica, if that time is worth more than the
    memory costs and as large a share is found; None: it pays now, or at no load."""
    pays_from_share: float | None
    """The share of prompt tokens it would have to find for its price; None: what it finds is worth it, or nothing."""
    quicker_from_bytes_per_s: float | None
    """The speed into a GPU from which what it finds is quicker to fetch than to compute; None: it is."""


class MemoryAnswer(Noun):
    """How much memory for KV to keep behind each replica's GPUs."""

    keep: str
    """The setting with the least memory to pay for among those whose bill is within 1 % of the lowest, and with what
    costs nothing up to the working set."""
    cheapest: str  # the setting with the lowest bill
    machine_bytes: NonNegativeFloat  # host memory that the machine has left for a replica: it costs nothing
    working_set_bytes: NonNegativeFloat
    """Of each of the replicas that are kept, like the next figures: the size that finds all that can be found."""
    gpu_share: NonNegativeFloat  # of the working set: what the GPUs' own room for KV is
    half_bytes: NonNegativeFloat  # the size of a replica's memory that finds half of what the working set finds
    useless_bytes: NonNegativeFloat
    """Up to this size a memory finds no more than one as large as the GPUs' own: least recently used in a cycle."""
    sizes: tuple[MemorySize, ...]
    verdicts: tuple[MemoryVerdict, ...]


class Tried(NamedTuple):
    """What a simulated setting needs, and whether it counts: it is served, and not later than it may be."""

    needs: float
    counts: bool


def sizes_gb(gpu_gb: float, most_gb: float, free_gb: int = 0) -> tuple[float, ...]:
    """Return whole gigabytes, doubling from the GPUs' own to the most that is of use, and what costs nothing."""
    if not most_gb > 0:
        return ()
    most = math.ceil(most_gb)
    doubled = (max(1, round(gpu_gb)) * 2**power for power in range(64))
    free = {free_gb} if 1 <= free_gb < most else set()
    return tuple(map(float, sorted({*takewhile(lambda size: size < most, doubled), *free, most})))


def try_sizes(
    sizes: Sequence[float],
    without: Tried,
    at: Callable[[float], Tried],
    least_usd: Callable[[float, float], float],
    best_usd: Callable[[], float],
) -> None:
    """Simulate the sizes among which the cheapest must be.

    ``least_usd`` is the bill of so many replicas with a size, ``best_usd`` the lowest bill of all settings so far.
    """
    if not sizes or least_usd(1, sizes[0]) > best_usd() * CLOSE_ENOUGH:
        return
    known = {-1: without, len(sizes) - 1: at(sizes[-1])}

    def between(low: int, high: int) -> None:
        less, more = known[low], known[high]
        if high - low < 2 or (less.needs <= more.needs and (less.counts or not more.counts)):
            return
        if least_usd(more.needs, sizes[low + 1]) > best_usd() * CLOSE_ENOUGH:
            return
        middle = (low + high) // 2
        known[middle] = at(sizes[middle])
        between(low, middle)
        between(middle, high)

    between(-1, len(sizes) - 1)


class Worth(NamedTuple):
    """What one size of a memory finds and frees, and costs for all replicas."""

    size_bytes: float
    found_share: float
    freed_replicas: float
    usd_per_hour: float
    quicker_from_bytes_per_s: float | None = None


def verdict_on(
    name: str, ways: Sequence[Worth], replicas: int, usd_per_replica_hour: float, *, pays: bool
) -> MemoryVerdict:
    """Judge a memory by the size that is worth most, or comes nearest to its price.

    With freed time f of n replicas at price p and a memory at c a replica, n·p is more than (n − f)·(p + c) if
    f·(p + c) exceeds n·c. Of k times the load on k times the replicas, a whole one is freed from k = 1/f.
    """

    def value(way: Worth) -> float:
        return way.freed_replicas * (usd_per_replica_hour + way.usd_per_hour / replicas)

    def key(way: Worth) -> tuple[float, float]:
        beyond = value(way) - way.usd_per_hour
        return max(0.0, beyond), value(way) / way.usd_per_hour if way.usd_per_hour else value(way)

    way = max(ways, key=key)
    worth_it, frees = value(way) > way.usd_per_hour, way.freed_replicas
    return MemoryVerdict(
        name=name,
        pays=pays,
        **way._asdict(),
        pays_from_load=1 / frees if worth_it and not pays and frees < 1 else None,
        pays_from_share=way.found_share * way.usd_per_hour / value(way) if frees and not (worth_it or pays) else None,
    )


Memories = tuple[TierPrice, ...]


@dataclass(frozen=True)
class MemorySearch:
    """The search for the sizes of the memories behind the ``base``, whose ``simulation`` has none."""

    compared: CacheComparison
    base: CacheRow
    simulation: Simulation
    tiers: Memories

    @cached_property
    def block_bytes(self) -> int:
        """Return the KV of a block of the log."""
        prefix = self.simulation.trace.prefix
        return prefix.block_tokens * kv_bytes_per_token(self.compared.deployment) if prefix else 0

    @cached_property
    def machine_gb(self) -> float:
        return self.compared.machine_gb(self.base.needs or self.base.replicas)

    @cached_property
    def working_gb(self) -> int:
        """Return the working set of a replica, in whole GB."""
        return math.ceil(tiers_of_every_size(self.simulation).most_blocks * self.block_bytes / BYTES_PER_GB)

    @cached_property
    def sizes(self) -> dict[str, tuple[float, ...]]:
        """Return the sizes to choose from, by memory."""
        # On fewer replicas each has more of the working set: at the most, all of it.
        most_gb = tiers_of_every_size(self.simulation, shared=True).most_blocks * self.block_bytes / BYTES_PER_GB
        gpu_gb = gpu_cache_bytes(self.compared.deployment) / BYTES_PER_GB
        return {
            price.tier.name: (price.tier.size_bytes / BYTES_PER_GB,)
            if price.is_sized
            else sizes_gb(gpu_gb, most_gb, self._free_gb(price))
            for price in self.tiers
        }

    def _free_gb(self, price: TierPrice) -> int:
        """Return what costs nothing, as far as it is of use."""
        free = math.inf if price.usd_per_gb_hour == 0 else self.machine_gb if price.in_machine else 0.0
        return math.floor(min(free, self.working_gb))

    def joined(self, price: TierPrice, gigabytes: float, others: Iterable[TierPrice] = ()) -> Memories:
        """Return a memory of this size with others, fastest first."""
        names = list(self.sizes)
        return tuple(sorted((*others, price.sized(gigabytes)), key=lambda one: names.index(one.tier.name)))

    def _tried(self, memories: Memories) -> Tried:
        row = self.compared.behind(self.base.setting, memories)
        return Tried(row.needs or math.inf, self.compared.is_in_time(row))

    def _try(self, price: TierPrice, others: Memories) -> None:
        def least_usd(needs: float, gigabytes: float) -> float:
            finite = math.isfinite(needs)
            return self.compared.bill("", int(needs), self.joined(price, gigabytes, others)).usd if finite else 0.0

        def best_usd() -> float:
            bills = [row.bill.usd for row in self.compared.rows if row.bill and self.compared.is_in_time(row)]
            return min(bills, default=math.inf)

        def at(gigabytes: float) -> Tried:
            return self._tried(self.joined(price, gigabytes, others))

        try_sizes(self.sizes[price.tier.name], self._tried(others), at, least_usd, best_usd)

    @property
    def _counting(self) -> list[CacheRow]:
        """Return the settings with a cache that count; all of them if none does."""
        cached = self.compared.rows[1:]
        return [row for row in cached if self.compared.is_in_time(row)] or cached

    def _kept(self) -> CacheRow:
        cheapest = min(self._counting, key=cost_then_wait)
        return min((row for row in self._counting if costs_about(row, cheapest)), key=self._memory_needed)

    def _memory_needed(self, row: CacheRow) -> tuple[float, ...]:
        """Return the memory to pay for, then what costs nothing and is of use, most first; then all memory."""
        count, tiers = row.needs or row.replicas, row.setting.tiers
        lines = [price.line(count, self.compared.machine_gb(count)) for price in tiers]
        paid = sum(line.quantity for line in lines if line.usd_per_unit)
        each = [price.tier.size_bytes / BYTES_PER_GB for price in tiers]
        # What is slower to fetch than to compute is of no use, even where it costs nothing.
        helps = all(hit.tokens and hit.quicker_from_bytes_per_s is None for hit in row.tier_hits)
        of_use = min(max(each, default=0.0), self.working_gb) * helps
        return paid, -of_use, sum(each), *cost_then_wait(row)

    def find(self) -> tuple[MemoryAnswer, FoundBySize]:
        """Simulate until no memory changes what to keep; also return what memories of every size find there."""
        for price in self.tiers:
            self._try(price, ())
            if self._free_gb(price) in self.sizes[price.tier.name]:
                self._tried(self.joined(price, self._free_gb(price)))
        kept, before = self._kept(), None
        for _ in self.tiers:
            if kept is before:
                break
            before = kept
            for price in self.tiers:
                self._try(price, _without(kept.setting.tiers, price))
            kept = self._kept()
        return self._answer(kept)

    def _answer(self, keep: CacheRow) -> tuple[MemoryAnswer, FoundBySize]:
        compared, count = self.compared, keep.needs or keep.replicas
        served = self.simulation
        if count != self.base.replicas:
            served, _ = serve(compared.setup(self.base.setting), count, keep.max_sequences)
        by_size, gpu_bytes = tiers_of_every_size(served), gpu_cache_bytes(compared.deployment)
        whole, found = by_size.most_blocks * self.block_bytes, by_size.found(by_size.most_blocks)
        like_the_gpu = by_size.found(gpu_bytes // self.block_bytes)

        def size(gigabytes: float) -> MemorySize:
            worth = {price.tier.name: self._worth(served, count, price, gigabytes) for price in unsized}
            return MemorySize(
                size_bytes=gigabytes * BYTES_PER_GB,
                found_share=by_size.share(gigabytes * BYTES_PER_GB // self.block_bytes),
                freed_replicas={name: way.freed_replicas for name, way in worth.items()},
                usd_per_hour={name: way.usd_per_hour for name, way in worth.items()},
            )

        unsized = [price for price in self.tiers if not price.is_sized]
        sizes = sorted({size for price in unsized for size in self.sizes[price.tier.name]})
        of_use = [size for less, size in zip((0.0, *sizes), sizes, strict=False) if less * BYTES_PER_GB < whole]
        answer = MemoryAnswer(
            keep=keep.setting.name,
            cheapest=min(self._counting, key=cost_then_wait).setting.name,
            machine_bytes=self.machine_gb * BYTES_PER_GB,
            working_set_bytes=whole,
            gpu_share=min(1.0, gpu_bytes / whole) if whole else 1.0,
            half_bytes=by_size.least_blocks(found / 2) * self.block_bytes,
            useless_bytes=by_size.least_blocks(like_the_gpu) * self.block_bytes if found > like_the_gpu else 0,
            sizes=tuple(map(size, of_use)),
            verdicts=tuple(self._verdict(served, count, price, keep) for price in self.tiers),
        )
        return answer, by_size

    def _verdict(self, served: Simulation, replicas: int, price: TierPrice, keep: CacheRow) -> MemoryVerdict:
        others = _without(keep.setting.tiers, price)
        mine = [one.tier.size_bytes / BYTES_PER_GB for one in keep.setting.tiers if one not in others]
        sizes = mine or self.sizes[price.tier.name] or (0.0,)
        ways = [self._worth(served, replicas, price, gigabytes, others) for gigabytes in sizes]
        usd = self.compared.usd_per_replica_hour(replicas)
        return verdict_on(price.tier.name, ways, replicas, usd, pays=bool(mine))

    def _worth(
        self, served: Simulation, replicas: int, price: TierPrice, gigabytes: float, others: Memories = ()
    ) -> Worth:
        """Return what a memory adds to others, by replay."""
        more, less = (self._found(served, memories) for memories in (self.joined(price, gigabytes, others), others))
        usd = price.sized(gigabytes).line(replicas, self.compared.machine_gb(replicas)).usd
        found, freed = max(0.0, more.share - less.share), max(0.0, more.freed - less.freed)
        return Worth(gigabytes * BYTES_PER_GB, found, freed, usd, more.quicker_from.get(price.tier.name))

    @cached_property
    def _prompt_replicas(self) -> float:
        """Return the replicas that would be busy with prompts if all of them were computed whole."""
        whole_s, computed_s = prompts_take_s(self.simulation)
        return self.base.prefill_replicas * whole_s / computed_s if computed_s else 0.0

    def _found(self, served: Simulation, memories: Memories) -> "_Finds":
        """Return what memories find, together."""
        if not memories:
            return _Finds(0.0, 0.0, {})
        _, hits = plan_fetches(served, tuple(price.tier for price in memories))
        asked = int(served.trace.input_tokens.sum(dtype=np.int64))
        freed = sum(hit.saved_share for hit in hits) * self._prompt_replicas
        slow = {hit.name: hit.quicker_from_bytes_per_s for hit in hits}
        return _Finds(sum(hit.tokens for hit in hits) / asked, freed, slow)


class _Finds(NamedTuple):
    share: float  # of the prompt tokens
    freed: float  # the replicas' time that this frees
    quicker_from: dict[str, float | None]  # by memory: the speed from which its fetches are quicker than computing


def _without(memories: Memories, price: TierPrice) -> Memories:
    return tuple(one for one in memories if one.tier.name != price.tier.name)
