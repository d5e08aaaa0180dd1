"""Sum up a simulation by conversation or job: how many finished, how long one took, and what was cached.

A job is all requests of one session. It lasts from sending its first request to hearing its last answer. The server
works on it while at least one request is sent and unanswered, queueing and retries included; the rest is the pauses of
tools and people.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.serving.counted import CountedTime
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, UNSERVED
from tokonomics.traffic.sessions import TurnsAlike, turn_groups
from tokonomics.traffic.trace import Counts, Floats, Turns
from tokonomics.traffic.workload import Spread, spread
from tokonomics.types import Noun


class TurnOutcome(Noun):
    """All requests that are the n-th turn of their session: one more than the longest chain they wait for."""

    turn: PositiveInt
    answered: NonNegativeInt
    input_tokens: NonNegativeInt  # of the answered ones
    cached_share: NonNegativeFloat  # of those tokens: found in the prefix cache or fetched from a slower memory


class SessionOutcome(Noun):
    """Conversations or jobs in figures."""

    closed: bool  # whether requests were sent after the answers they wait for; False: at the trace's times
    jobs: NonNegativeInt
    finished: NonNegativeInt  # sessions with every request answered
    failed: NonNegativeInt
    jobs_per_s: NonNegativeFloat  # finished jobs over the time in which as many are offered
    at_once: NonNegativeFloat  # jobs under way at a time, on average: those that finish a second × the mean time of one
    job_s: Spread  # of finished jobs that begin while the load is offered: from the first request to the last answer
    server_share: float | None
    """Share of those jobs' time in which the server works on a request; None if no job finished."""
    requests_per_job: NonNegativeFloat  # mean, sent or not
    turns_per_job: NonNegativeFloat  # mean length of the longest chain of requests, each waiting for the one before
    retries: NonNegativeInt  # attempts beyond the first, of all requests together
    unsent: NonNegativeInt  # requests never sent, because one that they wait for was not answered
    starts_s: NonNegativeFloat  # from the first session's start to the last one's
    by_turn: tuple[TurnOutcome, ...]  # first turn first; turns without an answered request are left out

    @property
    def turns_alike(self) -> tuple[TurnsAlike, ...]:
        """Return ``by_turn`` with later turns grouped, as a table shows them."""
        rows = []
        for first, last, chosen in turn_groups(np.asarray([row.turn for row in self.by_turn], np.int32)):
            alike = [self.by_turn[place] for place in chosen]
            answered, tokens = sum(row.answered for row in alike), sum(row.input_tokens for row in alike)
            cached = sum(row.cached_share * row.input_tokens for row in alike) / max(tokens, 1)
            mean = tokens / max(answered, 1)
            rows.append(TurnsAlike(first=first, last=last, requests=answered, mean_input=mean, cached_share=cached))
        return tuple(rows)


def session_outcome(simulation: Simulation, of: CountedTime) -> SessionOutcome | None:
    """Sum up the sessions; None if the trace has none."""
    turns, served = simulation.trace.turns, simulation.served
    if turns is None:
        return None
    jobs, finished = turns.sessions, _finished(simulation, turns)
    done = int(np.count_nonzero(finished))
    judged = finished & _counts(simulation, turns)
    whole_s, server_s = _job_times(turns, simulation.trace.arrival_s, served.finish_s, judged)
    depth = turns.depth
    longest = np.zeros(jobs, np.int64)
    np.maximum.at(longest, turns.session, depth)
    total = float(whole_s.sum())
    jobs_per_s, job_s = done / of.rated_s if of.rated_s > 0 else 0.0, spread(whole_s)
    return SessionOutcome(
        closed=simulation.closed,
        jobs=jobs,
        finished=done,
        failed=jobs - done,
        jobs_per_s=jobs_per_s,
        at_once=jobs_per_s * (job_s.mean or 0.0),
        job_s=job_s,
        server_share=min(1.0, float(server_s.sum()) / total) if total > 0 else None,
        requests_per_job=len(turns.session) / max(1, jobs),
        turns_per_job=float(longest.mean()) if jobs else 0.0,
        retries=int(np.maximum(served.attempts.astype(np.int64) - 1, 0).sum()),
        unsent=unsent(simulation),
        starts_s=float(np.ptp(simulation.trace.arrival_s[turns.roots])),
        by_turn=_by_turn(simulation, depth),
    )


def _finished(simulation: Simulation, turns: Turns) -> NDArray[np.bool_]:
    """Return, by session, whether all of its requests were answered."""
    answered = np.bincount(turns.session[simulation.served.status == DONE], minlength=turns.sessions)
    return np.asarray((answered == np.bincount(turns.session, minlength=turns.sessions)) & (answered > 0))


def _counts(simulation: Simulation, turns: Turns) -> NDArray[np.bool_]:
    """Return, by session, whether it begins while the full load is offered."""
    counts = np.zeros(turns.sessions, np.bool_)
    counts[turns.session] = simulation.job_counts
    return counts


def failed_jobs(simulation: Simulation) -> int:
    """Count the unfinished sessions among those that begin while the full load is offered."""
    turns = simulation.trace.turns
    if turns is None:
        return 0
    return int(np.count_nonzero(_counts(simulation, turns) & ~_finished(simulation, turns)))


def unsent(simulation: Simulation) -> int:
    """Return unanswered requests that wait for another unanswered request."""
    turns, status = simulation.trace.turns, simulation.served.status
    if turns is None or not simulation.closed:
        return 0
    waiting = np.repeat(np.arange(len(status)), np.diff(turns.starts))
    doomed = np.zeros(len(status), bool)
    doomed[waiting[status[turns.waits_for] != DONE]] = True
    return int(np.count_nonzero(doomed & (status == UNSERVED)))


def job_latencies(simulation: Simulation) -> Floats:
    """Return each finished job's seconds at its last answered request; nan at all other requests."""
    turns, served = simulation.trace.turns, simulation.served
    found = np.full(len(simulation.trace), np.nan)
    if turns is None:
        return found
    mine = np.flatnonzero(_finished(simulation, turns)[turns.session])
    mine = mine[np.lexsort((served.finish_s[mine], turns.session[mine]))]
    session, first_sent = turns.session[mine], np.full(turns.sessions, np.inf)
    np.minimum.at(first_sent, session, simulation.trace.arrival_s[mine])
    last = mine[np.diff(session, append=-1) != 0]
    found[last] = served.finish_s[last] - first_sent[turns.session[last]]
    return found


def whole_job_latencies(simulation: Simulation, job_s: Floats) -> Floats:
    """Return, by request, the seconds of its job: infinite if the job did not finish, nan without jobs."""
    turns = simulation.trace.turns
    if turns is None:
        return job_s
    last, took_s = ~np.isnan(job_s), np.full(turns.sessions, np.inf)
    took_s[turns.session[last]] = job_s[last]
    return took_s[turns.session]


def _job_times(turns: Turns, sent_s: Floats, heard_s: Floats, finished: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return, by finished job, its duration and how much of that the server worked on it."""
    mine = np.flatnonzero(finished[turns.session])
    mine = mine[np.lexsort((sent_s[mine], turns.session[mine]))]
    session, sent, heard = turns.session[mine], sent_s[mine], heard_s[mine]
    first = np.flatnonzero(np.diff(session, prepend=-1))
    if not len(first):
        return np.zeros(0), np.zeros(0)
    sizes = np.diff(np.append(first, len(mine)))
    begin = np.repeat(sent[first], sizes)
    # Put jobs one after the other on one axis without overlap, so that one running maximum serves them all.
    lane = np.repeat(np.arange(len(first)) * (float((heard - begin).max()) + 1.0), sizes)
    reached = np.maximum.accumulate(heard - begin + lane)
    pauses = np.maximum(sent[1:] - begin[1:] + lane[1:] - reached[:-1], 0.0)
    pauses[first[1:] - 1] = 0.0
    paused = np.add.reduceat(np.concatenate([[0.0], pauses]), first)
    whole = np.maximum.reduceat(heard, first) - sent[first]
    return whole, np.maximum(whole - paused, 0.0)


def _by_turn(simulation: Simulation, depth: Counts) -> tuple[TurnOutcome, ...]:
    served = simulation.served
    done = served.status == DONE
    counts, inputs, cached = (
        np.bincount(depth[done], weights=weights)
        for weights in (None, simulation.trace.input_tokens[done], served.cached_tokens[done])
    )
    return tuple(
        TurnOutcome(
            turn=int(turn),
            answered=int(counts[turn]),
            input_tokens=int(inputs[turn]),
            cached_share=float(cached[turn] / inputs[turn]),
        )
        for turn in np.flatnonzero(counts)
    )
