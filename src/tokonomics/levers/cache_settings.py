"""Simulate settings of the prefix cache, each on as few replicas as keep up and meet the SLOs.

The bill and the latencies of a setting are of the same fleet. One that meets the SLOs on no number of replicas has no
bill, and says what breaks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import NonNegativeFloat, PositiveInt

from tokonomics.money.cache_tiers import TierPrice
from tokonomics.money.cost import CostTree, replica_hour
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.session_outcome import SessionOutcome
from tokonomics.serving.tiers import TierHits
from tokonomics.sizing.attempt import Attempts, Sized, cached_share, serve
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load
from tokonomics.sizing.search import CLOSE_ENOUGH, NeverHolds, size
from tokonomics.sizing.setup import Say, Setup
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Spread
from tokonomics.types import Noun, copied
from tokonomics.units import BYTES_PER_GB, SECONDS_PER_HOUR, TOKENS_PER_MTOK, plural

SAME = 1e-9


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


@dataclass(frozen=True)
class CacheComparison:
    """Settings of the cache for the same traffic, each simulated on as few replicas as it needs; the first has none."""

    deployment: Deployment
    load: Load
    slos: tuple[Slo, ...]
    replicas: int | None
    usd_per_replica_hour: Callable[[int], float]
    machine_gb: Callable[[int], float]
    say: Say
    attempts: Attempts = field(default_factory=Attempts)
    rows: list[CacheRow] = field(default_factory=list)

    def setup(self, setting: CacheSetting) -> Setup:
        kept = copied(setting, "prefix_cache", "router")
        return Setup(self.deployment, self.load, slos=self.slos, tiers=setting.tiers or None, **kept)

    def needed(self, setting: CacheSetting) -> "_CacheFleet":
        """Return the fleet that a setting needs."""
        self.say(f"the replicas it takes: {setting.name}")
        blind = Router.round_robin, Router.least_outstanding
        routers = blind if setting.router is None else (setting.router,)
        return _sized(self.setup(setting), routers, self.attempts)

    def add(self, setting: CacheSetting, fleet: "_CacheFleet") -> CacheRow:
        """Simulate a setting on the fleet that it needs, and keep the row."""
        self.say(f"{setting.name} on {plural(fleet.sized.replicas, 'replica')}")
        setting = setting.model_copy(update={"router": fleet.sized.router})
        replicas, needs = self.replicas or fleet.sized.replicas, fleet.sized.replicas
        bill = self.bill(setting.name.strip(), needs, setting.tiers) if fleet.breaks is None else None
        row = _row(self.setup(setting), setting, replicas, fleet, bill)
        self.rows.append(row)
        return row

    def bill(self, name: str, replicas: int, tiers: tuple[TierPrice, ...]) -> CostTree:
        """Return the bill of an hour of replicas with memories: what their machines have left costs nothing."""
        memories = (price.line(replicas, self.machine_gb(replicas)) for price in tiers)
        return replica_hour(name, replicas, self.usd_per_replica_hour(replicas), *memories)

    def behind(self, base: CacheSetting, tiers: tuple[TierPrice, ...]) -> CacheRow:
        """Return the row with these memories behind the GPUs; each choice is simulated once."""
        if not tiers:
            return next(row for row in self.rows if row.setting == base)
        sizes = (f"{price.tier.name} {price.tier.size_bytes / BYTES_PER_GB:g} GB" for price in tiers)
        setting = base.model_copy(update={"name": f"  + {' + '.join(sizes)}", "tiers": tiers})
        known = next((row for row in self.rows if row.setting.name == setting.name), None)
        return known or self.add(setting, self.needed(setting))

    def is_in_time(self, row: CacheRow) -> bool:
        """Tell whether a row meets the SLOs; if none is set, whether it answers no later than without a cache."""
        return bool(row.bill and (self.slos or max(times_later(row, self.rows[0])) <= 1 + SAME))


def cost_then_wait(row: CacheRow) -> tuple[float, float]:
    return round(row.bill.usd, 6) if row.bill else math.inf, row.ttft_s.mean or 0.0


def costs_about(row: CacheRow, cheapest: CacheRow) -> bool:
    return cost_then_wait(row)[0] <= cost_then_wait(cheapest)[0] * CLOSE_ENOUGH


def times_later(row: CacheRow, plain: CacheRow) -> tuple[float, float, float]:
    """Return TTFT, TPOT and the whole answer at p99 over those of ``plain``, each on the replicas that it needs."""

    def times(late: Spread, now: Spread) -> float:
        return late.p99 / now.p99 if late.p99 is not None and now.p99 else 1.0

    return times(row.ttft_s, plain.ttft_s), times(row.tpot_s, plain.tpot_s), times(row.e2e_s, plain.e2e_s)


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


def _row(setup: Setup, setting: CacheSetting, replicas: int, fleet: _CacheFleet, bill: CostTree | None) -> CacheRow:
    needs, limit = fleet.sized.replicas, fleet.sized.max_sequences
    simulation, hits = serve(setup, replicas, limit)
    made = outcome(simulation, setup.slos)
    on_needed = made if needs == replicas else outcome(serve(setup, needs, limit)[0], setup.slos)
    hours = made.rated_s / SECONDS_PER_HOUR
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
