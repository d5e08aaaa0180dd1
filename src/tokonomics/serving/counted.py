"""Decide which part of a simulation counts for rates and dollars, and whether the fleet kept up.

The first requests of a run find empty replicas and the last have nothing behind them, so rates, dollars and busy shares
cover the stretch in which the full load was offered (``traffic.workload``). All answered requests are rated over the
time it takes to offer that many: the drain of sessions makes up for their ramp-up. A run too short for such a stretch,
or whose fleet falls behind, counts from start to end, because its backlog is work that was owed.

A fleet keeps up if it finishes 97 % of the requests that arrive after the ramp-up (or after the first fifth of the
time), and if no backlog grows: at the end at most 1 % of all requests wait for a place, or 2 % if some wait half of
the time anyway.
"""

from dataclasses import dataclass

import numpy as np

from tokonomics.serving.fleet_settings import Autoscale
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import NEARLY_ALL, LoadStretch, stretch_of, times_longer

_WARM_UP = 0.2
_WAITING_SHARE = 0.01
"""Share of the requests that may wait at the end, beyond the number that waits half of the time (counted up to the
same share: beyond it a fleet is full, growing or not). As rare as above a p99."""
_FEW = 10  # requests that may wait in any case: in a short log 1 % is less than what comes in one burst
_AT_THE_END = 0.1
"""Share of the time that a backlog must last, so that one burst at the end is none; and share of the requests that, if
they have not begun when the last arrives, are a backlog however short the log."""
_MOMENTS = 400  # moments at which waiting requests are counted: forty in the last tenth


@dataclass(frozen=True)
class CountedTime:
    """The part of a simulation that counts."""

    from_s: float
    to_s: float
    rated_s: float  # time in which the load offers as many requests as the whole run has
    steady: bool  # whether it is the stretch of full load; False: the whole run
    times_longer: float | None  # how many times longer the run should be; None if it is long enough or falls behind
    paid_s: float  # replica-seconds paid in the rated time
    mean_replicas: float

    def share(self, simulation: Simulation, column: int) -> float:
        """Return the share of a timeline column that lies in the time that counts."""
        sums = np.concatenate([[0.0], np.cumsum(simulation.timeline[:, column])])
        edges = np.minimum(np.arange(len(sums)) * simulation.bin_s, simulation.end_s)
        part = float(np.diff(np.interp((self.from_s, self.to_s), edges, sums))[0])
        return part / float(sums[-1]) if part > 0 else 0.0


def counted(simulation: Simulation) -> CountedTime:
    """Return the stretch of a simulation that counts, or all of it."""
    trace, stretch, end_s = simulation.trace, simulation.stretch, simulation.end_s
    paid_s, done = float(simulation.paid_s.sum()), simulation.served.status == DONE
    # The load must have been offered for long enough, and answers must have come for as long.
    took_s = (simulation.served.finish_s - simulation.began_s)[done] if done.any() else np.zeros(1)
    longer, settles_s = 0.0, _settles_s(simulation.fleet.autoscale)
    if stretch is not None:
        settled = times_longer(np.array([settles_s]), stretch.span_s)
        longer = max(stretch.times_longer, times_longer(took_s, stretch.span_s), settled)
    # A simulation that was stopped early ended before its load did.
    if stretch is None or stretch.ramp_s is None or longer != 1 or end_s < stretch.end_s or falls_behind(simulation):
        return CountedTime(
            from_s=0.0,
            to_s=end_s,
            rated_s=max(end_s - float(trace.arrival_s[0]), 0.0),
            steady=False,
            times_longer=longer if longer > 1 else None,
            paid_s=paid_s,
            mean_replicas=paid_s / end_s if end_s > 0 else 0.0,
        )
    from_s, to_s, rated_s = max(stretch.begin_s, stretch.first_s + settles_s), stretch.end_s, len(trace) / trace.rate
    replicas = paid_s * float(np.diff(paid_share(simulation, np.array([from_s, to_s])))[0]) / (to_s - from_s)
    return CountedTime(from_s, to_s, rated_s, True, None, replicas * rated_s, replicas)


def _settles_s(autoscale: Autoscale | None) -> float:
    """Return how long an autoscaled fleet takes to settle: replicas start cold, work off the backlog for about as long,
    and the last surplus ones leave after the hold time."""
    return 2 * autoscale.cold_start_s + autoscale.hold_s if autoscale else 0.0


def paid_share(simulation: Simulation, at_s: Floats) -> Floats:
    """Return the share of the run's paid time that lies before each moment.

    An autoscaled fleet is counted whenever its autoscaler looks, so a replica that left in between is paid until then
    here; shares are scaled to the exact paid time.
    """
    fleet, end_s = simulation.fleet, simulation.end_s
    at_s = np.append(at_s, end_s)
    if fleet.autoscale:
        times, paid = simulation.history[:, 0], simulation.history[:, 1]
        area = np.concatenate([[0.0], np.cumsum(np.diff(times) * paid[:-1])])
        place = np.searchsorted(times, at_s, side="right") - 1
        paid_s = area[place] + (at_s - times[place]) * paid[place]
    else:
        paid_s = at_s * len(simulation.paid_s)
        for outage in fleet.outages:
            if outage.reclaimed:
                paid_s = paid_s - np.clip(at_s, outage.at_s, max(outage.at_s, min(outage.back_s, end_s))) + outage.at_s
    return np.asarray(paid_s[:-1] / paid_s[-1]) if paid_s[-1] > 0 else np.ones(len(at_s) - 1)


def falls_behind(simulation: Simulation) -> bool:
    """Return whether more requests arrive than the fleet finishes."""
    return _finishes_too_few(simulation) or _backlog_grows(simulation)


def _finishes_too_few(simulation: Simulation) -> bool:
    """Return whether too few of the requests after the ramp-up finish; a short log cannot say."""
    served, arrival_s = simulation.served, simulation.trace.arrival_s
    if len(arrival_s) < ENOUGH_REQUESTS:
        return False
    (warm, last), accepted = _warm(simulation), served.status != REFUSED
    offered = int(np.count_nonzero(accepted & (arrival_s > warm) & (arrival_s <= last)))
    finished = int(np.count_nonzero((served.finish_s > warm) & (served.finish_s <= last) & accepted))
    return finished < NEARLY_ALL * offered


def _backlog_grows(simulation: Simulation) -> bool:
    """Return whether more requests wait through the last tenth of the time than do half of the time.

    The requests waiting at the last arrival are no measure by themselves: on busy replicas some always wait. In a
    closed loop sessions pile up instead, each with one waiting request, so sessions are counted.
    """
    trace, served = simulation.trace, simulation.served
    first, (warm, last) = float(trace.arrival_s[0]), _warm(simulation)
    if last <= first:
        return False  # all came at once, and none after them
    requests = trace.turns.sessions if simulation.closed and trace.turns is not None else len(trace)
    allowed = max(_FEW, _WAITING_SHARE * requests)
    at_last = int(np.count_nonzero((served.start_s > last) & (trace.arrival_s <= last)))
    if at_last <= allowed:
        return False
    if at_last > max(_FEW, _AT_THE_END * requests):
        return True
    # A client that hangs up unserved waits until then.
    began_s = np.where(np.isnan(served.start_s), served.finish_s, served.start_s)
    known = ~np.isnan(began_s)
    moments = np.linspace(warm, last, _MOMENTS)
    came = np.searchsorted(trace.arrival_s[known], moments, side="right")
    waiting = came - np.searchsorted(np.sort(began_s[known]), moments, side="right")
    lately = float(waiting[moments >= last - _AT_THE_END * (last - first)].mean())
    return min(at_last, lately) > allowed + min(allowed, float(np.median(waiting)))


def _warm(simulation: Simulation) -> tuple[float, float]:
    """Return the period in which a fleet must keep up: after the ramp-up, or after a fifth of the time."""
    stretch: LoadStretch = simulation.stretch or stretch_of(simulation.trace)
    warm_s = max(stretch.begin_s, stretch.first_s + _WARM_UP * stretch.span_s)
    return warm_s, stretch.end_s
