"""What of a simulation counts: the time over which its rates and its dollars are, and whether the fleet kept up.

Who is sent in the first part of a run finds empty replicas, and after its last part nothing more comes; so rates,
dollars and busy shares are those of the stretch in which the load was offered (``traffic.workload``). All that was
answered is rated by the time in which so many requests are offered: what a ramp-up lacks of sessions, their drain
brings. A run that is too short to have such a stretch, or whose fleet falls behind, counts from its start to its end:
its backlog is work that was owed.

A fleet keeps up when it finishes as many requests as arrive after the ramp-up, or the first fifth of the time (97 % of
them), and when no backlog grows: at the end no more than 1 % of all requests wait for a place, or 2 % where some wait
half of the time anyway.
"""

from dataclasses import dataclass

import numpy as np

from tokonomics.serving.fleet import Autoscale
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import NEARLY_ALL, LoadStretch, stretch_of, times_longer

_WARM_UP = 0.2
_WAITING_SHARE = 0.01
"""Of the requests: that may wait at the end beyond what waits half of the time. As rare as above a p99. What waits half
of the time counts up to the same share: a fleet where more do is full, growing or not."""
_FEW = 10  # requests that may wait in any case: in a short log 1 % is less than what comes in one burst
_AT_THE_END = 0.1
"""Of the time, in which a backlog must last: one burst at the last moment is none. And of the requests: where so many
have not begun when the last arrives, no log is long enough to call it a wait."""
_MOMENTS = 400  # at which the waiting are counted: forty in the last tenth


@dataclass(frozen=True)
class CountedTime:
    """The time that counts of a simulation."""

    from_s: float
    to_s: float
    rated_s: float  # in which so many requests are offered as the whole run has
    steady: bool  # it is the stretch in which the load was offered; False: the whole run
    times_longer: float | None
    """How many times longer the run should be to have such a stretch; None: it is long enough, or falls behind."""
    paid_s: float  # seconds of replicas that are paid for in the rated time
    mean_replicas: float

    def share(self, simulation: Simulation, column: int) -> float:
        """Of a column of the timeline, the share that lies in the time that counts."""
        sums = np.concatenate([[0.0], np.cumsum(simulation.timeline[:, column])])
        edges = np.minimum(np.arange(len(sums)) * simulation.bin_s, simulation.end_s)
        part = float(np.diff(np.interp((self.from_s, self.to_s), edges, sums))[0])
        return part / float(sums[-1]) if part > 0 else 0.0


def counted(simulation: Simulation) -> CountedTime:
    """The stretch of a simulation, or all of it."""
    trace, stretch, end_s = simulation.trace, simulation.stretch, simulation.end_s
    paid_s, done = float(simulation.paid_s.sum()), simulation.served.status == DONE
    # As the load must have been offered for long enough, so must answers have come.
    took_s = (simulation.served.finish_s - simulation.began_s)[done] if done.any() else np.zeros(1)
    longer, settles_s = 0.0, _settles_s(simulation.fleet.autoscale)
    if stretch is not None:
        settled = times_longer(np.array([settles_s]), stretch.span_s)
        longer = max(stretch.times_longer, times_longer(took_s, stretch.span_s), settled)
    # One that was settled ended before its load did.
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
    """How long the replicas that the first requests call for are too few, and then too many: they start cold, work off
    for about as long what waited meanwhile, and the last of them leave when fewer have done for a while."""
    return 2 * autoscale.cold_start_s + autoscale.hold_s if autoscale else 0.0


def paid_share(simulation: Simulation, at_s: Floats) -> Floats:
    """The share of the paid time of the whole run that lies before each moment.

    An autoscaled fleet is counted each time its autoscaler looks: a replica that has gone since is paid until then
    here, and all shares are scaled to the paid time, which has each one's own seconds.
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
    """More requests arrive than it finishes."""
    return _finishes_too_few(simulation) or _backlog_grows(simulation)


def _finishes_too_few(simulation: Simulation) -> bool:
    """Of what arrives after the ramp-up; a short log does not tell."""
    served, arrival_s = simulation.served, simulation.trace.arrival_s
    if len(arrival_s) < ENOUGH_REQUESTS:
        return False
    (warm, last), accepted = _warm(simulation), served.status != REFUSED
    offered = int(np.count_nonzero(accepted & (arrival_s > warm) & (arrival_s <= last)))
    finished = int(np.count_nonzero((served.finish_s > warm) & (served.finish_s <= last) & accepted))
    return finished < NEARLY_ALL * offered


def _backlog_grows(simulation: Simulation) -> bool:
    """More requests wait at the end, and all through the last tenth of the time, than do half of the time.

    What waits at the last arrival alone is no measure: on busy replicas some always do, and one more or less of them
    would decide about a replica. In a closed loop sessions pile up, each with a request that waits: they are counted.
    """
    trace, served = simulation.trace, simulation.served
    first, (warm, last) = float(trace.arrival_s[0]), _warm(simulation)
    if last <= first:
        return False  # all came at once: nobody came after them
    requests = trace.turns.sessions if simulation.closed and trace.turns is not None else len(trace)
    allowed = max(_FEW, _WAITING_SHARE * requests)
    at_last = int(np.count_nonzero((served.start_s > last) & (trace.arrival_s <= last)))
    if at_last <= allowed:
        return False
    if at_last > max(_FEW, _AT_THE_END * requests):
        return True
    # Who hangs up unserved waits until then.
    began_s = np.where(np.isnan(served.start_s), served.finish_s, served.start_s)
    known = ~np.isnan(began_s)
    moments = np.linspace(warm, last, _MOMENTS)
    came = np.searchsorted(trace.arrival_s[known], moments, side="right")
    waiting = came - np.searchsorted(np.sort(began_s[known]), moments, side="right")
    lately = float(waiting[moments >= last - _AT_THE_END * (last - first)].mean())
    return min(at_last, lately) > allowed + min(allowed, float(np.median(waiting)))


def _warm(simulation: Simulation) -> tuple[float, float]:
    """From when a fleet must keep up until when: after the ramp-up, or a fifth of the time where there is none."""
    stretch: LoadStretch = simulation.stretch or stretch_of(simulation.trace)
    warm_s = max(stretch.begin_s, stretch.first_s + _WARM_UP * stretch.span_s)
    return warm_s, stretch.end_s
