"""A setup on a number of replicas, always as many: simulated, and searched for the fewest that meet its SLOs.

The same replicas are tried behind several routers: taking turns keeps prompts apart, while the least loaded replica
gets whole bursts of them; requests of very unequal length want the opposite. Where the time per token is what breaks,
fewer sequences at a time are let in: the most that keep tokens in time by the closed form, then whichever number
between late tokens and late first tokens meets both targets. A simulation ends when more requests were late than an SLO
allows of all of them. Of long traffic the busiest part is simulated first, for the same reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice

import numpy as np

from tokonomics.errors import option
from tokonomics.money.cache_tiers import TierPrice
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.capacity import (
    BEHIND,
    MOST_REPLICAS,
    apart_in_time,
    fewest_that_hold,
    halved,
    late_allowed,
    sure_to_miss,
    what_breaks,
)
from tokonomics.serving.class_outcome import tokens_late
from tokonomics.serving.fleet import Autoscale, FleetSettings, Router
from tokonomics.serving.loop import NOBODY, Watcher
from tokonomics.serving.outcome import Outcome, outcome, request_latencies
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.steady import MissesSlo, ReplicaCurve
from tokonomics.serving.tiers import TierHits, plan_fetches
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import curve_for, tpot_limit
from tokonomics.sizing.setup import NotServed, Setup
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats, Trace

WHOLE_AT_ONCE = 60_000
"""Requests up to which all are simulated at once; of more, first the busiest part. Three times what a p99 rests on."""
_BEGINNING = 1 / 8
"""Of traffic that is the same all the time: where eight in a hundred are late there, one in a hundred of all is,
whatever follows."""
_BUSIEST = 1 / 8
"""Of long traffic: three hours of a day."""
_ALONE = 200_000
"""Requests served one by one to tell what no fleet betters: all of nearly any log. Of more, every so manieth: the share
beyond a p99 is then known to 2 % of itself."""
_BELOW = (0.5, 2 / 3, 0.75)
"""Of the fewest replicas found behind a prefix-aware router: smaller fleets that are tried as well."""
_CLEARLY = 2.0
"""Times as many late requests as an SLO allows: more than chance makes of it in a simulation that ended early. Our
choice."""
_FASTER = f"Loosen {option('slo')}, or name more or faster GPUs ({option('tp')}, {option('gpu')})."


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A setup on a number of replicas, simulated: whether it meets its SLOs, and how requests fare."""

    replicas: int
    """At the most, those for prompts included; without spare ones."""
    prefill_replicas: int = 0
    max_sequences: int | None = None
    """At a time, where it is not the engine's own limit."""
    router: Router
    breaks: str | None = None
    """What gives way; None when it holds."""
    outcome: Outcome
    tokens_late: float = 0.0
    """Requests with late tokens over those that an SLO allows; 0: no SLO on the time per token is missed."""
    wait_late: float = 0.0
    """The same of the other latencies: the worst of them."""
    simulation: Simulation | None = None
    by_time: Floats | None = None
    """Rows of time and replicas from then on; None where they are always as many."""
    span_s: float = 0.0

    @property
    def holds(self) -> bool:
        return self.breaks is None

    @property
    def mean_replicas(self) -> float:
        return self.mean_over_time(lambda replicas: replicas)

    def mean_over_time(self, counted: Callable[[int], float]) -> float:
        """The mean of what goes with each number of replicas, such as the machines they take."""
        if self.by_time is None or len(self.by_time) == 1:
            return float(counted(self.replicas))
        lasts = np.diff(np.append(self.by_time[:, 0], self.span_s))
        counts, which = np.unique(self.by_time[:, 1], return_inverse=True)
        each = np.array([counted(int(count)) for count in counts], dtype=float)
        return float(np.dot(each[which], lasts) / lasts.sum())


def prefill_share(served: Outcome, otherwise: float = 0.0) -> float:
    """Prompts' share of the working time; ``otherwise`` where none worked."""
    working = served.shares.prefill + served.shares.decode
    return served.shares.prefill / working if working else otherwise


def cached_share(served: Outcome) -> float:
    """Of the prompt tokens, found in a cache."""
    return served.cached_tokens / served.input_tokens if served.input_tokens else 0.0


def first_that_holds(trials: Iterable[Sized]) -> Sized:
    """The first that holds; the first of all where none does."""
    first = None  # no other is kept: each has all of its requests
    for trial in trials:
        if trial.holds:
            return trial
        first = first or trial
    assert first is not None
    return first


def serve(
    setup: Setup,
    replicas: int,
    *,
    prefill_replicas: int = 0,
    max_sequences: int | None = None,
    autoscale: Autoscale | None = None,
    load: Load | None = None,
    watch: Watcher = NOBODY,
) -> Simulation:
    """Simulate a setup on so many replicas."""
    router = _routers(setup)[0]
    fleet = FleetSettings(
        replicas=replicas,
        router=router,
        autoscale=autoscale,
        prefill_replicas=prefill_replicas,
        prefill=setup.prefill,
        link_bytes_per_s=setup.link_bytes_per_s,
    )
    trace, limit = (load or setup.load).trace, max_sequences or setup.max_sequences
    return serve_with(setup.deployment, trace, fleet, setup.memories(), setup.prefix_cache, limit, watch)[0]


def serve_with(
    deployment: Deployment,
    trace: Trace,
    fleet: FleetSettings,
    tiers: Sequence[TierPrice] = (),
    prefix_cache: bool = True,
    max_sequences: int | None = None,
    watch: Watcher = NOBODY,
) -> tuple[Simulation, tuple[TierHits, ...]]:
    """Simulate a fleet, and what its slower memories gave: they need a first run that shows which replica gets what."""
    run = partial(simulate, deployment, trace, fleet, prefix_cache=prefix_cache, max_sequences=max_sequences)
    if not tiers:
        return run(watch=watch), ()
    first = run()
    fetches, hits = plan_fetches(first, tuple(price.tier for price in tiers))
    return run(fetches=fetches, watch=watch), hits


def try_fixed(
    setup: Setup,
    replicas: int,
    max_sequences: int | None,
    prefill_replicas: int = 0,
    faster: float = 1.0,
    with_load: bool = True,
) -> Sized:
    """So many replicas, always: simulated as far as it takes to tell whether they hold; to the end where they do."""
    how = replicas, max_sequences, prefill_replicas, faster, with_load
    return _hopeless(setup, *how) or simulated(setup, *how, ends_early=True)


def _hopeless(
    setup: Setup,
    replicas: int,
    max_sequences: int | None,
    prefill_replicas: int,
    faster: float = 1.0,
    with_load: bool = True,
) -> Sized | None:
    """The part that decides alone, where in it more requests are late than the SLO allows of all of them.

    It begins with idle replicas, which the whole does not, and ends with nobody behind it, so it is late no more often.
    With a prefix cache it begins cold, which proves nothing.
    """
    load, decisive = setup.load, _decisive_part(setup, prefill_replicas)
    if decisive is load or load.trace.prefix is not None:
        return None
    part = simulated(replace(setup, load=decisive), replicas, max_sequences, prefill_replicas, faster, with_load)
    if part.breaks is None or part.simulation is None:
        return None
    latencies = request_latencies(part.simulation)
    unserved = np.isnan(latencies[Latency.e2e])
    for slo in setup.slos:
        if slo.statistic == "mean":
            continue
        late = np.count_nonzero(unserved | (latencies[slo.latency] > slo.seconds))
        if late > late_allowed(slo, len(load.trace)):
            # Its latencies are those of the part.
            even = load.is_stationary or part.breaks == BEHIND
            return part if even else replace(part, breaks=f"in its busiest hours {part.breaks}")
    return None


def _decisive_part(setup: Setup, prefill_replicas: int = 0) -> Load:
    """The part of long traffic that decides whether SLOs are met; all of it where it is short.

    Of traffic that is the same all the time a simulation ends by itself when it is settled; that of a disaggregated
    fleet does not, and a beginning shows what is far too slow.
    """
    load = setup.load
    if load.is_stationary and setup.slos and prefill_replicas:
        return load.busiest(round(len(load.trace) * _BEGINNING))
    if load.is_stationary or len(load.trace) <= WHOLE_AT_ONCE or not setup.slos:
        return load
    return load.busiest(max(ENOUGH_REQUESTS, round(len(load.trace) * _BUSIEST)))


def simulated(
    setup: Setup,
    replicas: int,
    max_sequences: int | None,
    prefill_replicas: int = 0,
    faster: float = 1.0,
    with_load: bool = True,
    ends_early: bool = False,
) -> Sized:
    """All of the load; where it ``ends_early``, only until an SLO is sure to be missed."""
    if prefill_replicas:
        # Of a slice of the traffic, whole replicas of each kind: those that its share of them holds.
        counts = prefill_replicas, replicas - prefill_replicas
        prompts, answers = (max(1, int(count * setup.load.share + 1e-9)) for count in counts)
        load = replace(setup.load, trace=setup.load.trace.faster(faster)) if faster != 1 else setup.load
        made = serve(setup, answers, prefill_replicas=prompts, max_sequences=max_sequences, load=load)
    else:
        # A replica that serves one at a time evens nothing out: a part of the fleet would ask for more than the whole.
        whole = setup.max_sequences == 1 and setup.load.is_stationary
        trace, served_by = (setup.load.trace, replicas) if whole else setup.load.on(replicas)
        trace = trace.faster(faster) if faster != 1 else trace
        settled = sure_to_miss(setup.slos, trace, fetches=bool(setup.tiers))
        watch = Watcher(is_settled=settled) if ends_early and setup.slos else NOBODY
        load = replace(setup.load, trace=trace)
        made = serve(setup, served_by, max_sequences=max_sequences, load=load, watch=watch)
    summed = outcome(made, setup.slos, with_load)
    breaks = what_breaks(made, summed)
    if breaks and len(made.trace) < len(load.trace):
        breaks = f"{breaks} (the first {len(made.trace):,} of {len(load.trace):,} requests)"
    missed = [slo for slo, judged in zip(setup.slos, summed.slo, strict=True) if not judged.met]
    return Sized(
        replicas=replicas,
        prefill_replicas=prefill_replicas,
        max_sequences=max_sequences,
        router=_routers(setup)[0],
        breaks=breaks,
        outcome=summed,
        tokens_late=max(float(tokens_late(made)), _times_allowed(made, [slo for slo in missed if _is_of_tokens(slo)])),
        wait_late=_times_allowed(made, [slo for slo in missed if not _is_of_tokens(slo)]),
        simulation=made,
    )


def _is_of_tokens(slo: Slo) -> bool:
    return slo.latency is Latency.tpot


def _times_allowed(simulation: Simulation, missed: Sequence[Slo]) -> float:
    """Of the worst of these SLOs, the requests that are late over those that may be; of a mean, seconds. 0: no SLO."""
    latencies = request_latencies(simulation)

    def times(slo: Slo) -> float:
        took_s = latencies[slo.latency]
        known = took_s[~np.isnan(took_s)]
        if not len(known):
            return math.inf
        if slo.statistic == "mean":
            return float(known.mean()) / slo.seconds
        return np.count_nonzero(known > slo.seconds) / (late_allowed(slo, len(known)) - 1)

    return max(map(times, missed), default=0.0)


def _routers(setup: Setup) -> tuple[Router, ...]:
    """To be tried, as the planner does; where a replica serves one at a time, first whoever is free."""
    if setup.router is not None:
        return (setup.router,)
    both = Router.round_robin, Router.least_outstanding
    return both[::-1] if setup.max_sequences == 1 else both


def better(setup: Setup, replicas: int) -> Sized:
    """The first router and limit with which it holds; what the first of them breaks, where none does."""
    routers = _routers(setup)[: 1 if replicas == 1 else None]
    guess = None
    if setup.max_sequences is None:
        with suppress(MissesSlo):
            guess = curve_for(setup.deployment, setup.load).capacity(tpot_limit(setup.slos)).batch

    def serve_behind(router: Router, limit: int | None) -> Sized:
        return try_fixed(replace(setup, router=router), replicas, limit)

    return first_that_holds(ways(serve_behind, routers, guess, setup.deployment.limits.max_sequences))


def ways(
    serve_behind: Callable[[Router, int | None], Sized], routers: Iterable[Router], guess: int | None, most: int
) -> Iterator[Sized]:
    """Behind each router the engine's limit and the guess; then behind each whichever limit may meet both targets."""
    searches = []
    for router in routers:
        search = with_lower_limits(partial(serve_behind, router), guess, most)
        first = next(search)
        yield first
        if first.breaks == BEHIND:
            # Too much work for so many replicas, whoever gets it.
            return
        yield from islice(search, 1)
        searches.append(search)
    yield from chain.from_iterable(searches)


def with_lower_limits(serve_within: Callable[[int | None], Sized], guess: int | None, most: int) -> Iterator[Sized]:
    """The engine's limit on sequences at a time, and where tokens are late, lower ones, from a guess; None: no others.

    Fewer at a time make tokens quicker and first tokens wait. So the search halves the gap, in octaves, between limits
    at which requests wait too long and those at which tokens are late. Where both are clearly late, no limit helps;
    nor does one above a limit that was never reached.
    """
    first = trial = serve_within(None)
    yield first
    if guess is None or not first.tokens_late:
        return
    low, high = 0, most
    limit = guess if guess < most else round(math.sqrt(most))
    while low < limit < high and min(trial.tokens_late, trial.wait_late) < _CLEARLY:
        trial = serve_within(limit)
        yield trial
        low, high = (low, limit) if trial.tokens_late > trial.wait_late else (limit, high)
        if low == limit and trial.outcome == first.outcome:
            return
        limit = max(low + 1, round(math.sqrt(max(low, 1) * high)))


def fewest_replicas(setup: Setup, tried: Callable[[int], Sized], start: int = 1) -> Sized | NotServed:
    """The fewest that hold, from the closed form's guess up or down; behind a router that spreads what
    is cached, a few smaller numbers are tried as well."""
    # Of a slice, no fewer than one replica can be simulated.
    least = max(start, setup.load.fewest_replicas)
    on, alone = cache(tried), cache(lambda: _alone(setup))
    asked: set[int] = set()

    def holds(count: int) -> bool:
        asked.add(count)
        return on(count).holds

    guess = min(max(least, _guess(setup)), MOST_REPLICAS)
    found = fewest_that_hold(holds, guess, least=least, sink=2, hopeless=lambda: alone() is not None)
    if found is None:
        if MOST_REPLICAS in asked:
            return NotServed(f"on {MOST_REPLICAS:,} replicas {on(MOST_REPLICAS).breaks}", _FASTER)
        return NotServed(f"even a request that is alone on a replica: {alone()}", _FASTER)
    if setup.router in (Router.prefix_aware, Router.session_affine):
        below = (max(least, math.ceil(found * share)) for share in _BELOW)
        smaller = next((count for count in below if count < found and holds(count)), found)
        failed = max((count for count in asked if count < smaller and not on(count).holds), default=least - 1)
        found = halved(holds, failed, smaller)
    return on(found)


def _guess(setup: Setup) -> int:
    """Replicas by the closed form: where to begin, whatever comes out."""
    workload = _decisive_part(setup).workload
    curve = ReplicaCurve(
        setup.deployment,
        max(1, round(workload.input_tokens)),
        max(1, round(workload.output_tokens)),
        most_sequences=setup.max_sequences,
        context_tokens=setup.load.context_mean,
    )
    return max(1, math.ceil(workload.rate / float(curve.rates.max())))


def _alone(setup: Setup) -> str | None:
    """What breaks for requests that never meet, and find in a cache whatever any of those before them left.

    No fleet does better: an endless cache holds what the memory and the slower ones behind it can only hold a part of.
    """
    trace = setup.load.trace
    computed = setup.load.computed_tokens if setup.prefix_cache else trace.input_tokens
    prompts = np.ceil(computed).astype(trace.input_tokens.dtype)
    few = apart_in_time(replace(trace, input_tokens=prompts, prefix=None), _ALONE)
    made = serve(replace(setup, tiers=None, router=None), 1, load=replace(setup.load, trace=few))
    return what_breaks(made, outcome(made, setup.slos))
