"""Replay a simulation moment by moment: requests waiting, running and done, the cost so far, and SLO misses.

Everything but the memory follows from each request's own times: it waits from its arrival to the first step that works
on it, runs from there to its end, and is then finished or failed. So at every moment, requests that have arrived are
waiting, running, finished or failed. One that lost its place and waits again still counts as running. The share of the
KV memory is the loop's own count of blocks, averaged since the previous moment. Replicas are summed.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.serving.counted import paid_share
from tokonomics.serving.outcome import STATUS, moments, request_latencies
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED, SHED, UNSERVED
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.tenants import by_class
from tokonomics.traffic.trace import Floats
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

MOST_MOMENTS = 400  # two pixels each on the widest figure of the page: our choice
MOST_MARKS = 24  # most separate times of misses, so that each can be pointed at (our choice)
_NAMED = 2  # requests named at each of them (our choice)


class MissCause(StrEnum):
    """What a request that missed its SLO mostly waited for."""

    queue = "queue"  # a place in the batch
    prefill = "prefill"  # its prompt; in a disaggregated fleet, also the KV transfer
    preemption = "preemption"  # it lost its memory, and was computed again
    decode = "decode"  # its answer, token by token
    outage = "outage"  # its replica failed
    session = "session"  # its whole job took too long
    limits = "limits"  # it was turned away by the limits of its class
    refused = "refused"  # it is longer than the model's context or than the memory
    unserved = "unserved"  # it never had a replica, or was never sent


class MissedRequest(Noun):
    """A request that was not answered within every SLO, and where its time went."""

    request: PositiveInt  # number in sending order: its row in the file that ``save`` writes
    at_s: NonNegativeFloat  # when its TTFT or end-to-end target passed, or its end
    status: str
    latency: Latency | None  # the one furthest beyond its target; None if it was not answered
    delivered_s: NonNegativeFloat | None
    objective_s: NonNegativeFloat | None
    cause: MissCause
    queue_s: NonNegativeFloat
    prefill_s: NonNegativeFloat
    decode_s: NonNegativeFloat
    ahead: NonNegativeInt  # requests that waited for the same replica when it was sent
    beside: NonNegativeInt  # requests that ran on the same replica when its first token came
    preemptions: NonNegativeInt
    restarts: NonNegativeInt
    input_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    replica: int
    tenant: str | None
    service: str | None  # its class of service
    session: int | None


class MissMark(Noun):
    """A part of the run in which requests missed the SLO."""

    moment: NonNegativeInt  # the playback's first moment at which the worst of them had missed it
    from_s: NonNegativeFloat
    to_s: NonNegativeFloat
    missed: PositiveInt
    worst: tuple[MissedRequest, ...]


class CauseCount(Noun):
    """How many requests missed the SLO for one reason."""

    cause: MissCause
    requests: PositiveInt


class Playback(Noun):
    """A run over time: columns with one value for each moment, all replicas together."""

    at_s: tuple[NonNegativeFloat, ...]  # equally spaced, except the last, which is the end
    arrived: tuple[NonNegativeInt, ...]
    waiting: tuple[NonNegativeInt, ...]
    running: tuple[NonNegativeInt, ...]
    finished: tuple[NonNegativeInt, ...]
    failed: tuple[NonNegativeInt, ...]  # refused, given up, turned away or never served so far
    missed: tuple[NonNegativeInt, ...]  # not answered within every SLO so far; without SLOs, those that failed
    kv_share: tuple[NonNegativeFloat, ...]
    """Share of the KV blocks, averaged since the previous moment, as the simulator counts them."""
    tokens: tuple[NonNegativeInt, ...]  # prompts and answers of the finished requests so far
    usd: tuple[NonNegativeFloat, ...] | None
    """Paid so far, from the start to the end of the run; None if no price is known."""
    replicas: tuple[NonNegativeInt, ...] | None  # that serve, if their number changes
    marks: tuple[MissMark, ...]
    causes: tuple[CauseCount, ...]


def playback(
    simulation: Simulation,
    slos: Sequence[Slo] = (),
    usd_per_replica_hour: float | None = None,
    most: int = MOST_MOMENTS,
) -> Playback:
    """Return the run in about ``most`` moments; ``slos`` apply if there are no classes."""
    trace, served, end_s = simulation.trace, simulation.served, simulation.end_s
    bins = [moment for moment in moments(simulation, most) if moment.at_s < end_s]
    at_s: Floats = np.array([0.0, *(moment.at_s for moment in bins[1:]), end_s] if bins else [0.0])
    done, ended_s = served.status == DONE, _ended_s(simulation)
    began_s = np.clip(np.fmin(served.start_s, ended_s), trace.arrival_s, ended_s)
    arrived, begun, ended = (_so_far(times, at_s) for times in (trace.arrival_s, began_s, ended_s))
    finished = _so_far(ended_s[done], at_s)
    lengths = trace.input_tokens.astype(np.int64) + trace.output_tokens
    in_order = lengths[done][np.argsort(ended_s[done], kind="stable")]
    tokens = np.concatenate([[0], np.cumsum(in_order)])
    misses = Misses(simulation, slos, ended_s)
    changes = simulation.fleet.autoscale or simulation.fleet.outages
    paid_hours = paid_share(simulation, at_s) * float(simulation.paid_s.sum()) / SECONDS_PER_HOUR
    return Playback(
        at_s=tuple(at_s.tolist()),
        arrived=tuple(arrived.tolist()),
        waiting=tuple((arrived - begun).tolist()),
        running=tuple((begun - ended).tolist()),
        finished=tuple(finished.tolist()),
        failed=tuple((ended - finished).tolist()),
        missed=tuple(_so_far(misses.at_s[misses.places], at_s).tolist()),
        kv_share=(0.0, *(float(f"{moment.kv_share:.4g}") for moment in bins)),
        tokens=tuple(tokens[finished].tolist()),
        usd=None if usd_per_replica_hour is None else tuple((usd_per_replica_hour * paid_hours).tolist()),
        replicas=tuple(_serving(simulation, at_s).tolist()) if changes else None,
        marks=misses.marks(at_s),
        causes=misses.causes(),
    )


def _so_far(times: Floats, at_s: Floats) -> NDArray[np.int64]:
    """Count the events that have happened by each moment."""
    return np.searchsorted(np.sort(times), at_s, side="right").astype(np.int64)


def _ended_s(simulation: Simulation) -> Floats:
    """Return when each request was answered or failed; one without a replica fails at the end, or once it is clear."""
    served = simulation.served
    ended_s = np.where(np.isnan(served.finish_s), simulation.end_s, served.finish_s)
    return np.where(served.attempts == 0, simulation.trace.arrival_s, ended_s)


def _serving(simulation: Simulation, at_s: Floats) -> NDArray[np.int64]:
    """Return the replicas that accept requests at each moment."""
    times = simulation.history[:, 0]
    return np.asarray(simulation.history[np.searchsorted(times, at_s, side="right") - 1, 2].astype(np.int64))


class Misses:
    """The requests that were not answered within every SLO: when each missed it, which SLO, and by how much."""

    def __init__(self, simulation: Simulation, slos: Sequence[Slo], ended_s: Floats) -> None:
        trace, served = simulation.trace, simulation.served
        self.simulation, self.ended_s = simulation, ended_s
        self.latencies = request_latencies(simulation)
        self.done = served.status == DONE
        self.at_s = np.where(self.done, np.inf, ended_s)
        self.times = np.where(self.done, 0.0, np.inf)  # multiples of the target; infinite for an unanswered request
        self.objective_s = np.full(len(trace), np.nan)
        self.latency = np.full(len(trace), -1)  # index in ``Latency``
        owed = [(np.arange(len(trace)), tuple(slos))]
        if trace.service is not None:
            owed = [(at, trace.classes[place].slos) for place, at in by_class(trace).items()]
        for places, own in owed:
            for slo in own:
                self._judge(places, slo)
        self.places = np.flatnonzero(self.times > 0)

    def _judge(self, places: NDArray[np.intp], slo: Slo) -> None:
        """Record which of these requests were answered later than this SLO allows."""
        took_s = self.latencies[slo.latency][places]
        late = places[self.done[places] & (took_s > slo.seconds)]
        over_s = self.ended_s[late]
        if slo.latency in (Latency.ttft, Latency.e2e):
            over_s = self.simulation.trace.arrival_s[late] + slo.seconds
        self.at_s[late] = np.minimum(self.at_s[late], over_s)
        times = self.latencies[slo.latency][late] / slo.seconds
        worse = late[times > self.times[late]]
        self.times[late] = np.maximum(self.times[late], times)
        self.objective_s[worse] = slo.seconds
        self.latency[worse] = list(Latency).index(slo.latency)

    def causes(self) -> tuple[CauseCount, ...]:
        """Return what the late requests waited for, the most common first."""
        numbers = np.bincount(self._causes(self.places), minlength=len(MissCause))
        found = [
            CauseCount(cause=list(MissCause)[code], requests=int(numbers[code])) for code in np.flatnonzero(numbers)
        ]
        return tuple(sorted(found, key=lambda row: -row.requests))

    def marks(self, at_s: Floats) -> tuple[MissMark, ...]:
        """Return the parts of the run with a miss, each with the requests furthest beyond their target."""
        part = np.minimum(self.at_s[self.places] / max(at_s[-1], 1e-12) * MOST_MARKS, MOST_MARKS - 1).astype(np.int64)
        found = []
        for number in np.unique(part):
            mine = self.places[part == number]
            waited_s = self.ended_s[mine] - self.simulation.trace.arrival_s[mine]
            worst = mine[np.lexsort((-waited_s, -self.times[mine]))[:_NAMED]]
            found.append(
                MissMark(
                    moment=int(min(np.searchsorted(at_s, self.at_s[worst[0]]), len(at_s) - 1)),
                    from_s=float(self.at_s[mine].min()),
                    to_s=float(self.at_s[mine].max()),
                    missed=len(mine),
                    worst=tuple(self._named(int(place)) for place in worst),
                )
            )
        return tuple(found)

    def _parts_s(self, places: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Return the seconds in the queue, until the first token, and until the end."""
        served, trace = self.simulation.served, self.simulation.trace
        ended_s, arrival_s = self.ended_s[places], trace.arrival_s[places]
        began_s = np.clip(np.fmin(served.start_s[places], ended_s), arrival_s, ended_s)
        first_s = np.clip(np.fmin(served.first_token_s[places], ended_s), began_s, ended_s)
        return began_s - arrival_s, first_s - began_s, ended_s - first_s

    def _causes(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return what each of these mostly waited for, as indices in ``MissCause``."""
        served = self.simulation.served
        status, latency = served.status[places], self.latency[places]
        queue_s, prefill_s, decode_s = self._parts_s(places)
        to_first = np.where(queue_s >= prefill_s, _code(MissCause.queue), _code(MissCause.prefill))
        answer = np.where(served.preemptions[places] > 0, _code(MissCause.preemption), _code(MissCause.decode))
        longest = np.where(np.maximum(queue_s, prefill_s) >= decode_s, to_first, answer)
        known = {
            MissCause.refused: status == REFUSED,
            MissCause.limits: status == SHED,
            MissCause.unserved: status == UNSERVED,
            MissCause.outage: served.restarts[places] > 0,
            MissCause.session: latency == list(Latency).index(Latency.job),
        }
        by_latency = [latency == list(Latency).index(Latency.ttft), latency == list(Latency).index(Latency.tpot)]
        codes = [_code(cause) for cause in known]
        found = np.select([*known.values(), *by_latency], [*codes, to_first, answer], longest)
        return np.asarray(found, np.intp)

    def _named(self, place: int) -> MissedRequest:
        trace, served = self.simulation.trace, self.simulation.served
        one = np.array([place])
        queue_s, prefill_s, decode_s = (float(part[0]) for part in self._parts_s(one))
        arrival_s = float(trace.arrival_s[place])
        first_s = arrival_s + queue_s + prefill_s
        before = slice(0, int(np.searchsorted(trace.arrival_s, first_s, side="right")))
        same = served.replica[before] == served.replica[place]
        began_s, ended_s = served.start_s[before], self.ended_s[before]
        # A request that never began waited to the end.
        left_s = np.where(np.isnan(began_s), ended_s, began_s)
        other = np.arange(before.stop)
        late = None if self.latency[place] < 0 else list(Latency)[self.latency[place]]
        return MissedRequest(
            request=place + 1,
            at_s=float(self.at_s[place]),
            status=STATUS[served.status[place]],
            latency=late,
            delivered_s=float(self.latencies[late][place]) if late else None,
            objective_s=float(self.objective_s[place]) if late else None,
            cause=list(MissCause)[int(self._causes(one)[0])],
            queue_s=queue_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            ahead=int(np.count_nonzero(same & (other < place) & (left_s > arrival_s))),
            beside=int(np.count_nonzero(same & (other != place) & (began_s < first_s) & (ended_s >= first_s))),
            preemptions=int(served.preemptions[place]),
            restarts=int(served.restarts[place]),
            input_tokens=int(trace.input_tokens[place]),
            cached_tokens=int(served.cached_tokens[place]),
            output_tokens=int(trace.output_tokens[place]),
            replica=int(served.replica[place]),
            tenant=None if trace.tenant is None else trace.tenants[trace.tenant[place]],
            service=None if trace.service is None else trace.classes[trace.service[place]].name,
            session=None if trace.turns is None else int(trace.turns.session[place]),
        )


def _code(cause: MissCause) -> int:
    return list(MissCause).index(cause)
