"""Simulate a setup on a number of replicas and say whether it holds its SLOs, or what breaks.

The results of a simulation are kept for later questions of the process. Behind each router the engine's own batch
limit is tried first; routers that keep apart the prompts that share a beginning are left out where the first of them
does worse than one that gathers them. If the time per token breaks, fewer sequences are admitted: first the most that
the closed form allows, then a number between "tokens late" and "first tokens late" that meets both targets. If whole
answers or jobs are late, the limit with the fewest late ones is searched. A simulation stops as soon as more requests
are late than an SLO allows in total.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.physics.calibration import profile_key
from tokonomics.serving.capacity import BEHIND, apart_in_time, late_allowed, sure_to_miss, what_breaks
from tokonomics.serving.class_outcome import owed_to_tenants, tenant_breaks
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Router
from tokonomics.serving.loop import NOBODY, Watcher
from tokonomics.serving.outcome import Outcome, outcome, request_latencies
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.tiers import TierHits, plan_fetches
from tokonomics.sizing import rules
from tokonomics.sizing.load import busiest_of
from tokonomics.sizing.screen import first_limit
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.tenants import by_class
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.units import seconds, seconds_apart

_WHOLE = (Latency.e2e, Latency.job)  # latencies that both waiting and slow tokens lengthen


class Lateness(NamedTuple):
    """How badly an SLO is missed."""

    share: float  # late ÷ allowed requests
    times: float  # its statistic ÷ the objective
    is_clear: bool = False  # more are late than chance causes


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A setup simulated on a number of replicas: whether it meets its SLOs, and the latencies of its requests."""

    replicas: int  # at the most, those for prompts included; without spare ones
    prefill_replicas: int = 0
    max_sequences: int | None = None  # at a time, where it is not the engine's own limit
    router: Router
    breaks: str | None = None  # what gives way; None when it holds
    is_lone: bool = False  # requests never met: it tells of every number of replicas
    outcome: Outcome
    tokens_late: float = 0.0
    """Requests with late tokens ÷ those that an SLO allows; 0: no SLO on the time per token is missed."""
    wait_late: float = 0.0  # the same for first tokens
    whole_late: float = 0.0  # the same for whole answers and jobs
    both_late: bool = False  # tokens and first tokens, by more than chance causes
    late: Floats = field(default_factory=lambda: np.full(2, np.inf))
    """For the worst missed SLO: late ÷ allowed requests, and its statistic ÷ the objective; the lowest of several
    settings. Infinite if none is missed."""
    most_running: int = 0  # sequences at a time on a replica; counted only if whole answers or jobs are late
    simulation: Simulation | None = None
    """Kept only if one attempt is asked for (``attempt``): of hundreds, only the results are kept."""
    by_time: Floats | None = None
    """Rows of a time and the replicas from then on, in the part that counts; None if the number is constant."""
    span_s: float = 0.0  # of that part

    @property
    def holds(self) -> bool:
        return self.breaks is None

    @property
    def mean_replicas(self) -> float:
        return self.mean_over_time(lambda replicas: replicas)

    def mean_over_time(self, counted: Callable[[int], float]) -> float:
        """Average a quantity that depends on the number of replicas, such as machines, over time."""
        if self.by_time is None:
            return float(counted(self.replicas))
        lasts = np.diff(np.append(self.by_time[:, 0], self.span_s))
        counts, which = np.unique(self.by_time[:, 1], return_inverse=True)
        each = np.array([counted(int(count)) for count in counts], dtype=float)
        return float(np.dot(each[which], lasts) / lasts.sum())


def prefill_share(served: Outcome) -> float:
    """Return the share of the working time spent on prompts; 0 if no replica worked."""
    working = served.shares.prefill + served.shares.decode
    return served.shares.prefill / working if working else 0.0


def cached_share(served: Outcome) -> float:
    """Return the share of the prompt tokens that was found in a cache."""
    return served.cached_tokens / served.input_tokens if served.input_tokens else 0.0


# --- one simulation -------------------------------------------------------------------------------------------------


def serve(
    setup: Setup,
    replicas: int,
    max_sequences: int | None = None,
    *,
    autoscale: Autoscale | None = None,
    trace: Trace | None = None,
    watch: Watcher = NOBODY,
) -> tuple[Simulation, tuple[TierHits, ...]]:
    """Simulate a setup on this many decode replicas; also return what the slower KV memories served.

    KV tiers need a first run that shows which replica gets which request.
    """
    how = setup.handling
    fleet = FleetSettings(
        replicas=replicas,
        router=rules.routers(setup, replicas)[0],
        autoscale=autoscale,
        prefill_replicas=setup.prefill_replicas,
        prefill=setup.prefill,
        link_bytes_per_s=setup.link_bytes_per_s,
        retries=how.retries,
        backoff_s=how.backoff_s,
    )
    run = partial(
        simulate,
        setup.deployment,
        setup.load.trace if trace is None else trace,
        fleet,
        prefix_cache=setup.prefix_cache,
        max_sequences=max_sequences or setup.max_sequences,
        timeout_s=how.timeout_s,
        by_priority=how.by_priority,
        max_batched_tokens=how.max_batched_tokens,
        seed=how.seed,
    )
    if not (memories := setup.memories()):
        return run(watch=watch), ()
    fetches, hits = plan_fetches(run(), tuple(price.tier for price in memories))
    return run(fetches=fetches, watch=watch), hits


def attempt(
    setup: Setup, replicas: int, max_sequences: int | None = None, times: float | None = None, *, whole: bool = True
) -> Sized:
    """Simulate this many replicas, prefill replicas included, under ``times`` the load (``rules.pace`` by default).

    Unless the ``whole`` run is wanted, it stops as soon as the setup is sure to miss an SLO.
    """
    times = rules.pace(setup) if times is None else times
    if not whole and (late := _hopeless(setup, replicas, max_sequences, times)):
        return late
    load, prompts = setup.load, setup.prefill_replicas
    if prompts:
        # A slice of the traffic is served by its share of the replicas of each kind, in whole replicas.
        prompts, served_by = (max(1, int(count * load.share + 1e-9)) for count in (prompts, replicas - prompts))
        trace = load.trace
    elif (max_sequences or setup.max_sequences) == 1 and load.is_stationary:
        # If replicas serve one request at a time, a part of the fleet needs relatively more than the whole.
        trace, served_by = load.trace, replicas
    else:
        trace, served_by = load.on(replicas)
    trace = trace.faster(times) if times != 1 else trace
    if not whole and (late := _late_when_busiest(setup, replicas, served_by, max_sequences, trace)):
        return late
    watch = NOBODY
    if not whole and setup.slos and not prompts:
        watch = Watcher(is_settled=sure_to_miss(setup.slos, trace))
    made, _ = serve(replace(setup, prefill_replicas=prompts), served_by, max_sequences, trace=trace, watch=watch)
    return judged_attempt(setup, replicas, max_sequences, made, len(trace))


def simulated(setup: Setup, sized: Sized) -> Simulation:
    """Simulate a sized fleet under exactly its load, to the end."""
    made = attempt(replace(setup, router=sized.router), sized.replicas, sized.max_sequences, 1.0).simulation
    assert made is not None
    return made


def judged_attempt(setup: Setup, replicas: int, max_sequences: int | None, made: Simulation, requests: int) -> Sized:
    """Judge a setup by a simulation, which may have ended before all ``requests`` were sent."""
    summed = outcome(made, setup.slos, with_load=False)
    breaks = what_breaks(made, summed)
    if breaks is None and setup.each_tenant:
        breaks = tenant_breaks(made, setup.slos)
    if breaks and len(made.trace) < requests:
        breaks = f"{breaks} (the first {len(made.trace):,} of {requests:,} requests)"
    # The beginning of traffic whose rate changes says little of the rest.
    is_telling = len(made.trace) == requests or setup.load.is_stationary or setup.load.begins_evenly
    missed = {slo.slo for slo in summed.slo if not slo.met}
    late = _lateness(made, setup, missed, is_telling=is_telling) if breaks else {}
    return _sized(setup, replicas, max_sequences, made, summed, breaks, late)


def _sized(
    setup: Setup,
    replicas: int,
    max_sequences: int | None,
    made: Simulation,
    summed: Outcome,
    breaks: str | None,
    late: Mapping[Latency, Lateness],
) -> Sized:
    shares = {latency: found.share for latency, found in late.items()}
    whole = max((shares.get(latency, 0.0) for latency in _WHOLE), default=0.0)
    return Sized(
        replicas=replicas,
        prefill_replicas=setup.prefill_replicas,
        max_sequences=max_sequences,
        router=rules.routers(setup, replicas)[0],
        breaks=breaks,
        outcome=summed,
        tokens_late=shares.get(Latency.tpot, 0.0),
        wait_late=shares.get(Latency.ttft, 0.0),
        whole_late=whole,
        both_late=all(latency in late and late[latency].is_clear for latency in (Latency.tpot, Latency.ttft)),
        late=np.max([found[:2] for found in late.values()] or [(np.inf, np.inf)], axis=0),
        most_running=_most_running(made) if whole else 0,
        simulation=made,
    )


def _lateness(made: Simulation, setup: Setup, missed: Collection[str], *, is_telling: bool) -> dict[Latency, Lateness]:
    """Return, by latency, how badly its worst SLO is missed; no miss is clear in a part that is not ``is_telling``.

    An SLO on a mean has one ratio for both. The share is above 1 for every SLO in ``missed``.
    """
    latencies, trace = request_latencies(made), made.trace
    owed: list[tuple[Slo, NDArray[np.intp] | None]] = [(slo, None) for slo in setup.slos]
    if setup.each_tenant:
        owed += [(slo, at) for slo, _, at in owed_to_tenants(trace, setup.slos)]
    if trace.service is not None:
        owed += [(slo, at) for place, at in by_class(trace).items() for slo in trace.classes[place].slos]
    found: dict[Latency, Lateness] = {}
    for slo, at in owed:
        counts = (made.job_counts if slo.latency is Latency.job else made.counts) & ~np.isnan(latencies[slo.latency])
        took_s = np.where(counts, latencies[slo.latency], np.nan)
        took_s = took_s if at is None else took_s[at]
        known, is_clear = took_s[~np.isnan(took_s)], False
        if not len(known):
            share = times = math.inf
        elif slo.statistic == "mean":
            share = times = float(known.mean()) / slo.seconds
        else:
            allowed = late_allowed(slo, len(known))
            share = np.count_nonzero(known > slo.seconds) / max(allowed - 1, 1e-9)
            times = float(np.percentile(known, float(slo.statistic[1:]))) / slo.seconds
            is_clear = is_telling and bool(share >= rules.clearly_late(allowed))
        if at is None and str(slo) in missed:
            share = max(share, 1 + 1e-9)
        if share > 1:
            found[slo.latency] = max(Lateness(share, times, is_clear), found.get(slo.latency, Lateness(0.0, 0.0)))
    return found


def _most_running(made: Simulation) -> int:
    """Return the most sequences that ran at once on any replica."""
    served, most = made.served, 1
    began = ~np.isnan(served.start_s)
    # A request still running when a simulation ends early runs until that end.
    finish_s = np.where(np.isnan(served.finish_s), made.end_s, served.finish_s)
    for replica in np.unique(served.replica[began]):
        at = began & (served.replica == replica)
        starts, ends = np.sort(served.start_s[at]), np.sort(finish_s[at])
        under_way = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
        most = max(most, int(under_way.max()))
    return most


def _hopeless(setup: Setup, replicas: int, max_sequences: int | None, times: float) -> Sized | None:
    """Try the beginning of a disaggregated fleet's traffic; return it if it alone has more late requests than allowed.

    A simulation of two sides cannot stop early. The beginning has no traffic before or after it, so it is never later
    than the whole; with a prefix cache it starts cold, which proves nothing.
    """
    load = setup.load
    if not (setup.prefill_replicas and setup.slos and load.is_stationary) or load.trace.prefix is not None:
        return None
    few = load.busiest(round(len(load.trace) * rules.BEGINNING))
    part = attempt(replace(setup, load=few), replicas, max_sequences, times)
    if part.breaks is None or part.simulation is None:
        return None
    latencies = request_latencies(part.simulation)
    unserved = np.isnan(latencies[Latency.e2e])
    for slo in setup.slos:
        if slo.statistic != "mean":
            late = np.count_nonzero(unserved | (latencies[slo.latency] > slo.seconds))
            if late > late_allowed(slo, len(load.trace)):
                return part
    return None


def _late_when_busiest(
    setup: Setup, replicas: int, served_by: int, max_sequences: int | None, trace: Trace
) -> Sized | None:
    """Try the busiest stretch of traffic whose rate changes; return it if it alone has more late requests than allowed.

    Requests before it could only add to what its own wait for. That needs requests that come when they come, clients
    that wait for their answers (one who hangs up is not late), and no cache that earlier ones fill.
    """
    slos = [slo for slo in setup.slos if slo.statistic != "mean"]
    if math.isfinite(setup.handling.timeout_s):
        return None
    if setup.load.is_stationary or not slos or setup.prefill_replicas or setup.tiers or setup.each_tenant:
        return None
    if trace.prefix is not None or trace.turns is not None or trace.service is not None:
        return None
    allowed = min(late_allowed(slo, len(trace)) for slo in slos)
    if allowed < rules.COUNTED_LATE:
        return None
    for part in rules.BUSIEST:
        stretch = busiest_of(trace, math.ceil(len(trace) * part), served_by)
        times = max(rules.clearly_late(allowed), rules.ENOUGH_LATE)
        watch = Watcher(is_settled=sure_to_miss(slos, stretch, requests=len(trace), times=times))
        made, _ = serve(setup, served_by, max_sequences, trace=stretch, watch=watch)
        worst = _late_of(made, slos, len(trace))
        most = max((found.share for found in worst.values()), default=0.0)
        in_turn = served_by == 1 or rules.routers(setup, replicas)[0] is Router.round_robin
        if most > (rules.IN_TURN_LATE if in_turn else rules.SURELY_LATE):
            slo = max(worst, key=lambda slo: worst[slo])
            at_least = seconds_apart(worst[slo].times * slo.seconds, slo.seconds)
            breaks = f"{slo} is {at_least} or more; the SLO is {seconds(slo.seconds)}"
            breaks += f" (the busiest {len(stretch):,} of {len(trace):,} requests)"
            in_order = sorted(worst.items(), key=lambda item: item[1])
            late = {slo.latency: found for slo, found in in_order if found.share > 1}
            summed = outcome(made, setup.slos, with_load=False)
            return _sized(setup, replicas, max_sequences, made, summed, breaks, late)
        if most < rules.HARDLY_LATE:
            break
    return None


def _late_of(made: Simulation, slos: Sequence[Slo], requests: int) -> dict[Slo, Lateness]:
    """Return late requests of a part over those that an SLO allows of all, and the statistic if no others were late."""
    latencies, found = request_latencies(made), dict[Slo, Lateness]()
    for slo in slos:
        took_s, allowed = latencies[slo.latency], late_allowed(slo, requests)
        known = np.sort(took_s[~np.isnan(took_s)])
        if allowed < len(known):
            at_least_s = float(known[-math.ceil(allowed)])
            share = float(np.count_nonzero(known > slo.seconds) / allowed)
            found[slo] = Lateness(share, at_least_s / slo.seconds, share >= rules.clearly_late(allowed))
    return found


_simulated_before: dict[object, Sized] = {}
"""What simulations came to, by all that decides it. Not an ``lru_cache``, which would keep the traces themselves."""
_MOST_REMEMBERED = 4096  # a few kilobytes each


def forget_simulations() -> None:
    """Simulate anew whatever is asked next."""
    _simulated_before.clear()


def _known_attempt(setup: Setup, replicas: int, max_sequences: int | None, times: float) -> Sized:
    """Return what an attempt came to, without its simulation; the same one is made once in a process."""
    names = setup.load.trace.tenants if setup.each_tenant else ()  # a message names the tenant whose SLO breaks
    key = setup.as_fixed_fleet, names, setup.today, profile_key(), replicas, max_sequences, times
    if (sized := _simulated_before.get(key)) is None:
        sized = replace(attempt(setup, replicas, max_sequences, times, whole=False), simulation=None)
        if len(_simulated_before) >= _MOST_REMEMBERED:
            del _simulated_before[next(iter(_simulated_before))]
        _simulated_before[key] = sized
    return sized


# --- the settings of so many replicas -------------------------------------------------------------------------------


@dataclass
class Attempts:
    """Remember the simulations of one question: each number of replicas of a setup is simulated once."""

    made: dict[tuple[object, int], Sized] = field(default_factory=dict)
    """By setup and number of replicas; 0 stands for lone requests."""
    count: int = 0

    def on(self, setup: Setup, replicas: int) -> Sized:
        """Return the first router and batch limit with which this many replicas hold; else what breaks first."""
        key = setup.as_fixed_fleet, replicas
        if key not in self.made:
            self.made[key] = first_that_holds(self._settings(setup, replicas))
        return self.made[key]

    def holds_at_once(self, setup: Setup, replicas: int) -> bool:
        """Return whether this many replicas hold with the engine's own or the closed form's batch limit.

        Searching other limits may let them hold a little more: it takes many simulations.
        """
        few = 2 * len(rules.routers(setup, replicas))
        return first_that_holds(islice(self._settings(setup, replicas), few)).holds

    def once(self, setup: Setup, replicas: int, max_sequences: int | None) -> Sized:
        """Simulate this many replicas with one batch limit behind the setup's own router."""
        pace = rules.pace(setup)
        self.count += 1
        made = _known_attempt(setup, replicas, max_sequences, pace)
        if made.holds and pace != 1:
            # It holds more than the load; latencies and the bill are those of the load itself.
            self.count += 1
            made = _known_attempt(setup, replicas, max_sequences, 1.0)
        return made

    def lone(self, setup: Setup) -> Sized:
        """Serve requests one at a time with an unlimited prefix cache: no fleet does better."""
        key = setup.as_fixed_fleet, 0
        if key not in self.made:
            self.count += 1
            trace = setup.load.trace
            computed = setup.load.computed_tokens if setup.prefix_cache else trace.input_tokens
            prompts = np.ceil(computed).astype(trace.input_tokens.dtype)
            few = apart_in_time(replace(trace, input_tokens=prompts, prefix=None), rules.LONE_REQUESTS)
            alone = replace(setup, tiers=None, router=Router.round_robin)
            tried = judged_attempt(alone, 1, None, serve(alone, 1, trace=few)[0], len(few))
            self.made[key] = replace(tried, simulation=None, is_lone=True)
        return self.made[key]

    def tried(self, setup: Setup) -> dict[int, Sized]:
        """Return every number of replicas tried for a setup, with its result."""
        own = setup.as_fixed_fleet
        return {
            key[1]: sized for key, sized in self.made.items() if isinstance(key, tuple) and key[0] == own and key[1]
        }

    def _settings(self, setup: Setup, replicas: int) -> Iterator[Sized]:
        """Try the engine's and the closed form's batch limit behind each router, then search other limits.

        No router follows one that keeps shared prompts apart and does worse than one that gathers them.
        """
        searches, gathering = [], None
        for router in rules.routers(setup, replicas):
            search = self._limits(replace(setup, router=router), replicas)
            first = next(search)
            yield first
            if first.breaks == BEHIND and router not in rules.GATHERING:
                # Too much work for this many replicas, whatever the router.
                return
            if gathering and _scatters(first, gathering):
                break
            gathering = first if router in rules.GATHERING else gathering
            yield from islice(search, 1)
            searches.append(search)
        yield from chain.from_iterable(searches)

    def _limits(self, setup: Setup, replicas: int) -> Iterator[Sized]:
        """Try the engine's own batch limit, then lower ones if tokens, answers or jobs are late."""
        first = self.once(setup, replicas, None)
        yield first
        if setup.max_sequences is not None or not (first.tokens_late or first.whole_late):
            return
        within = partial(self.once, setup, replicas)
        most = setup.deployment.limits.max_sequences
        if first.whole_late:
            yield from _least_late(within, first, most)
        else:
            yield from _between(within, first, first_limit(setup.deployment, setup.load, setup.slos), most)


def _scatters(trial: Sized, gathering: Sized) -> bool:
    """Tell whether a router finds far fewer prompts in caches than one that gathers them, and has more of them late."""
    finds_less = cached_share(trial.outcome) < cached_share(gathering.outcome) - rules.SCATTERED
    return finds_less and bool((trial.late >= gathering.late).all())


def first_that_holds(trials: Iterable[Sized]) -> Sized:
    """Return the first attempt that holds; else the first one, marked as late as the least late."""
    failed: list[Sized] = []
    for trial in trials:
        if trial.holds:
            return trial
        failed.append(trial)
    return replace(failed[0], late=np.min([trial.late for trial in failed], axis=0))


def _between(within: Callable[[int], Sized], first: Sized, guess: int | None, most: int) -> Iterator[Sized]:
    """Bisect, in octaves, between batch limits at which first tokens are late and limits at which tokens are late.

    Fewer sequences make tokens faster and first tokens wait. If both are clearly late, no limit helps; nor does a
    limit above one that was never reached.
    """
    if guess is None:
        return
    trial, low, high = first, 0, most
    limit = guess if guess < most else round(math.sqrt(most))
    while low < limit < high and not trial.both_late:
        trial = within(limit)
        yield trial
        low, high = (low, limit) if trial.tokens_late > trial.wait_late else (limit, high)
        if low == limit and trial.outcome == first.outcome:
            return
        limit = max(low + 1, round(math.sqrt(max(low, 1) * high)))


def _least_late(within: Callable[[int], Sized], first: Sized, most: int) -> Iterator[Sized]:
    """Search the batch limit with the fewest late answers: too low a limit makes them wait, too high slows them down.

    It halves, in octaves, the wider gap beside the best limit until the neighbours are known or serve alike.
    """
    top = min(most, max(1, first.most_running))
    late = {top: _late(first)}
    limits = [1, round(math.sqrt(top))] if top > rules.LIMITS_TRIED else list(range(top - 1, 0, -1))
    while limits and len(late) <= rules.LIMITS_TRIED:
        for limit in limits:
            if limit not in late:
                trial = within(limit)
                yield trial
                late[limit] = _late(trial)
        best = min(late, key=lambda limit: (late[limit], limit))
        below = max((limit for limit in late if limit < best), default=best)
        above = min((limit for limit in late if limit > best), default=best)
        sides = ((below, best), (best, above))
        gaps = [(high / low, low, high) for low, high in sides if high - low > 1 and high > low * rules.LIMITS_ALIKE]
        limits = [min(high - 1, max(low + 1, round(math.sqrt(low * high)))) for _, low, high in sorted(gaps)[-1:]]


def _late(trial: Sized) -> float:
    """Return late requests over those allowed, for the worst SLO; infinite if the fleet falls behind."""
    worst = max(trial.tokens_late, trial.wait_late, trial.whole_late)
    return worst or (0.0 if trial.holds else math.inf)
