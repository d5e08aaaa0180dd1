"""Sum up a simulation: latencies, throughput, utilisation, whether SLOs were met, and a table of its requests.

Latencies count answered requests that were sent while the full load was offered; rates, busy shares and paid time
cover that stretch (``counted``); numbers of requests and tokens cover the whole run. "Busy" is the share of paid time
in which a replica computed; "useful" leaves out work repeated after a preemption or a failure, and answers that
clients hung up on.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tokonomics.errors import option, shorten
from tokonomics.files import whole
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.serving.counted import CountedTime, counted
from tokonomics.serving.session_outcome import (
    SessionOutcome,
    failed_jobs,
    job_latencies,
    session_outcome,
    whole_job_latencies,
)
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import ANSWERS, BUSY, DONE, KV, PROMPTS, REFUSED, SEQUENCES, SHED, TIMED_OUT, UNSERVED
from tokonomics.serving.steady import ReplicaCurve, context_spread, context_while_answering, prefill_only_rate
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import Spread, spread
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, percent

if TYPE_CHECKING:
    import polars as pl

_WHOLE_JOB = "whole job"  # among the latencies of a request: the time of its job
STATUS = ("refused", "done", "timed out", "unserved", "shed")


class SloOutcome(Noun):
    """An SLO and what was delivered."""

    slo: str = Field(alias="promise")
    objective_s: float = Field(alias="promised_s")
    delivered_s: float | None
    met: bool = Field(alias="kept")


class Shares(Noun):
    """Where the paid time of the replicas goes; the parts sum to 1."""

    prefill: NonNegativeFloat
    decode: NonNegativeFloat
    recomputed: NonNegativeFloat  # work done again after a preemption or a failure
    abandoned: NonNegativeFloat  # work for clients that hung up
    idle: NonNegativeFloat


class Moment(Noun):
    """One bin of the timeline; rates are per second, all replicas together."""

    at_s: NonNegativeFloat
    arrivals_per_s: NonNegativeFloat
    running: NonNegativeFloat  # mean number of sequences in the batches
    waiting: NonNegativeFloat  # mean number of requests that have arrived and not begun
    kv_share: NonNegativeFloat  # of the KV blocks of the present replicas
    busy_share: NonNegativeFloat
    input_tokens_per_s: NonNegativeFloat
    output_tokens_per_s: NonNegativeFloat
    ttft_p50_s: float | None
    ttft_p99_s: float | None  # of the requests that arrived in this bin


class Outcome(Noun):
    """A simulation in figures."""

    requests: NonNegativeInt
    completed: NonNegativeInt
    failed: NonNegativeInt
    refused: NonNegativeInt  # longer than the model's context or than the memory of a replica
    timed_out: NonNegativeInt
    unserved: NonNegativeInt  # requests without a replica at the end, or never sent (``sessions.unsent``)
    shed: NonNegativeInt = 0  # turned away by the limits of their class
    input_tokens: NonNegativeInt  # of completed requests, cached ones included
    output_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    duration_s: NonNegativeFloat  # from the first arrival to the last finish
    steady: bool
    """True: rates, busy shares and dollars cover the stretch of full load, without ramp-up and drain. False: they cover
    the whole run, which is too short or falls behind."""
    times_longer: float | None = None
    """How many times longer the run should be to have such a stretch; None if it has one or falls behind."""
    rated_s: NonNegativeFloat
    """The time that rates and paid hours refer to: the time it takes to offer this many requests, or ``duration_s``."""
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    queue_s: Spread  # from arrival to the first step that works on the request
    requests_per_s: NonNegativeFloat
    output_tokens_per_s: NonNegativeFloat
    total_tokens_per_s: NonNegativeFloat
    busy_share: NonNegativeFloat  # busy share of the paid time
    useful_share: NonNegativeFloat
    load_share: float | None
    """Finished requests over those that full batches would finish in the paid time, cached tokens left out: a replica
    with a batch of one is busy but not full. None if a mean request does not fit."""
    shares: Shares
    batch: NonNegativeFloat  # sequences in a step, mean over busy time
    kv_peak_share: NonNegativeFloat
    preemptions: NonNegativeInt
    restarts: NonNegativeInt
    replica_hours: NonNegativeFloat
    mean_replicas: NonNegativeFloat  # paid replicas, mean over time
    peak_replicas: NonNegativeInt
    slo: tuple[SloOutcome, ...]
    slo_met: bool | None = Field(alias="slo_kept")  # all SLOs; None without any
    slo_attainment: float | None
    """Share of all requests answered within every SLO, job targets included; None without SLOs."""
    goodput_per_s: float | None  # such requests a second
    sessions: SessionOutcome | None = None
    """Results by conversation or job, if the traffic says which requests wait for which answers."""

    def never_answered(self, slo: SloOutcome) -> str:
        """Say why an SLO has no latency to be judged by: too many requests, or jobs, have no answer."""
        if not self.completed:
            return "no request is answered"
        if slo.slo.startswith(Latency.job) and self.sessions:
            return f"{percent(self.sessions.failed / self.sessions.jobs)} of the jobs fail"
        return f"{percent((self.timed_out + self.unserved) / self.requests)} of the requests are never answered"


def outcome(simulation: Simulation, slos: Sequence[Slo] = (), with_load: bool = True) -> Outcome:
    """Sum up a simulation; ``with_load`` also computes ``load_share``, which needs the closed form."""
    trace, served, of = simulation.trace, simulation.served, counted(simulation)
    done, counts = served.status == DONE, simulation.counts
    latencies = request_latencies(simulation)
    # A job counts if it begins in the counted time.
    judges: dict[str, NDArray[np.bool_]] = {Latency.job: simulation.job_counts}
    spreads = {name: spread(latencies[name][done & judges.get(name, counts)]) for name in (*Latency, "queue")}
    unanswered = int(np.count_nonzero(counts & np.isin(served.status, (TIMED_OUT, UNSERVED, SHED))))
    sessions = session_outcome(simulation, of)
    lost = {Latency.job: failed_jobs(simulation)}
    judgements = [
        judged(
            slo,
            latencies[slo.latency][done & judges.get(slo.latency, counts)],
            lost.get(slo.latency, unanswered),
            spreads[slo.latency],
        )
        for slo in slos
    ]
    within = within_slos(served.status, latencies, slos)[counts]
    attained = float(within.mean()) if len(within) else 0.0
    inputs = int(trace.input_tokens[done].sum(dtype=np.int64))
    outputs = int(trace.output_tokens[done].sum(dtype=np.int64))
    shares = _shares(simulation, of)
    return Outcome(
        requests=len(trace),
        completed=int(done.sum()),
        failed=int(len(trace) - done.sum()),
        refused=int((served.status == REFUSED).sum()),
        timed_out=int((served.status == TIMED_OUT).sum()),
        unserved=int((served.status == UNSERVED).sum()),
        shed=int((served.status == SHED).sum()),
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=int(served.cached_tokens[done].sum(dtype=np.int64)),
        duration_s=max(simulation.end_s - float(trace.arrival_s[0]), 0.0),
        steady=of.steady,
        times_longer=of.times_longer,
        rated_s=of.rated_s,
        ttft_s=spreads["ttft"],
        tpot_s=spreads["tpot"],
        e2e_s=spreads["e2e"],
        queue_s=spreads["queue"],
        requests_per_s=_ratio(int(done.sum()), of.rated_s),
        output_tokens_per_s=_ratio(outputs, of.rated_s),
        total_tokens_per_s=_ratio(inputs + outputs, of.rated_s),
        busy_share=min(1.0, 1 - shares.idle),
        useful_share=shares.prefill + shares.decode,
        load_share=_load_share(simulation, of) if with_load else None,
        shares=shares,
        batch=_ratio(
            of.share(simulation, SEQUENCES) * float(simulation.timeline[:, SEQUENCES].sum()),
            of.share(simulation, BUSY) * float(simulation.replicas["busy_s"].sum()),
        ),
        kv_peak_share=max(side.kv_peak_share for side in sides(simulation, of)),
        preemptions=int(served.preemptions.sum(dtype=np.int64)),
        restarts=int(served.restarts.sum(dtype=np.int64)),
        replica_hours=of.paid_s / SECONDS_PER_HOUR,
        mean_replicas=of.mean_replicas,
        peak_replicas=int(simulation.history[:, 1].max()),
        slo=tuple(judgements),
        slo_met=all(slo.met for slo in judgements) if slos else None,
        slo_attainment=attained if slos else None,
        goodput_per_s=_ratio(attained * len(trace), of.rated_s) if slos else None,
        sessions=sessions,
    )


class SideOutcome(Noun):
    """One kind of replica: all of them, or those of one side of a disaggregated fleet."""

    does: str  # ``prefill``, ``decode``, or ``both``
    deployment: str
    replicas: NonNegativeInt
    busy_share: NonNegativeFloat  # busy share of the paid time
    kv_peak_share: NonNegativeFloat
    replica_hours: NonNegativeFloat


def sides(simulation: Simulation, of: CountedTime | None = None) -> tuple[SideOutcome, ...]:
    """Return what each kind of replica did, prefill replicas first."""
    of = of or counted(simulation)
    busy = of.share(simulation, BUSY)
    paid = _ratio(of.mean_replicas * (of.to_s - of.from_s), float(simulation.paid_s.sum()))
    hours = _ratio(of.paid_s, float(simulation.paid_s.sum())) / SECONDS_PER_HOUR
    first, rows = simulation.fleet.prefill_replicas, simulation.replicas
    parts = [("decode" if first else "both", simulation.deployment, simulation.rules, slice(first, None))]
    if simulation.prefill_rules:
        parts.insert(0, ("prefill", simulation.prefill, simulation.prefill_rules, slice(first)))
    return tuple(
        SideOutcome(
            does=does,
            deployment=str(deployment),
            replicas=len(rows[which]),
            busy_share=min(
                1.0, _ratio(busy * float(rows["busy_s"][which].sum()), paid * float(simulation.paid_s[which].sum()))
            ),
            kv_peak_share=_ratio(float(rows["kv_peak"][which].max(initial=0)), rules.kv_blocks),
            replica_hours=hours * float(simulation.paid_s[which].sum()),
        )
        for does, deployment, rules, which in parts
    )


def _blocks_of_a_replica(simulation: Simulation) -> float:
    """Return the mean number of KV blocks of a replica."""
    first, rules = simulation.fleet.prefill_replicas, simulation.rules
    if not simulation.prefill_rules:
        return float(rules.kv_blocks)
    blocks = first * simulation.prefill_rules.kv_blocks + simulation.fleet.replicas * rules.kv_blocks
    return blocks / (first + simulation.fleet.replicas)


def request_latencies(simulation: Simulation) -> dict[str, Floats]:
    """Return each latency by request, in seconds; nan without a first or a second token."""
    trace, served = simulation.trace, simulation.served
    later = np.maximum(trace.output_tokens - 1, 1)
    whole = (trace.output_tokens > 1) & (served.status == DONE)
    tpot = np.where(whole, (served.finish_s - served.first_token_s) / later, np.nan)
    job_s = job_latencies(simulation)
    return {
        Latency.ttft: served.first_token_s - trace.arrival_s,
        Latency.tpot: tpot,
        Latency.e2e: served.finish_s - trace.arrival_s,
        Latency.job: job_s,
        _WHOLE_JOB: whole_job_latencies(simulation, job_s),
        "queue": served.start_s - trace.arrival_s,
    }


def within_slos(
    status: NDArray[np.int8], latencies: Mapping[str, NDArray[np.float64]], slos: Sequence[Slo]
) -> NDArray[np.bool_]:
    """Return which requests were answered within every SLO; an answer of one token cannot miss a TPOT target.

    A request is within a job target if its whole job is.
    """
    within: NDArray[np.bool_] = status == DONE
    for slo in slos:
        took_s = latencies[_WHOLE_JOB if slo.latency is Latency.job else slo.latency]
        within &= ~(took_s > slo.seconds)
    return within


def records(simulation: Simulation) -> "pl.DataFrame":
    """Return one row per request: its arrival, waits, latencies and outcome."""
    import polars as pl

    trace, served = simulation.trace, simulation.served
    latencies = request_latencies(simulation)
    columns: dict[str, object] = {
        "arrival_s": trace.arrival_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "status": pl.Series(np.array(STATUS)[served.status]).cast(pl.Categorical),
        "queue_s": latencies["queue"],
        "ttft_s": latencies["ttft"],
        "tpot_s": latencies["tpot"],
        "e2e_s": latencies["e2e"],
        "cached_tokens": served.cached_tokens,
        "preemptions": served.preemptions,
        "restarts": served.restarts,
        "replica": served.replica,
    }
    if trace.priority is not None:
        columns["priority"] = trace.priority
    if trace.tenant is not None:
        columns["tenant"] = pl.Series(np.array(trace.tenants)[trace.tenant]).cast(pl.Categorical)
    return pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))


def save_records(simulation: Simulation, path: Path) -> None:
    """Write the table of requests as parquet, whole or not at all."""
    with whole(path, option("save", shorten(str(path), 200))) as unfinished:
        records(simulation).write_parquet(unfinished)


def moments(simulation: Simulation, most: int = 120) -> tuple[Moment, ...]:
    """Return the simulation over time, in at most this many bins."""
    merged = math.ceil(len(simulation.timeline) / most)
    padded = np.zeros((math.ceil(len(simulation.timeline) / merged) * merged, simulation.timeline.shape[1]))
    padded[: len(simulation.timeline)] = simulation.timeline
    bins = padded.reshape(-1, merged, padded.shape[1]).sum(1)
    width = simulation.bin_s * merged
    edges: Floats = np.arange(len(bins) + 1, dtype=np.float64) * width
    trace, served = simulation.trace, simulation.served
    arrivals = np.histogram(trace.arrival_s, edges)[0]
    began = np.where(np.isnan(served.start_s), served.finish_s, served.start_s)
    ttft = request_latencies(simulation)["ttft"]
    place = np.clip((trace.arrival_s / width).astype(np.int64), 0, len(bins) - 1)
    replicas = np.maximum(_mean_of_steps(simulation.history, edges), 1e-12)
    blocks = replicas * _blocks_of_a_replica(simulation)
    by_bin = np.split(ttft[np.argsort(place, kind="stable")], np.cumsum(np.bincount(place, minlength=len(bins)))[:-1])
    spreads = [spread(values) for values in by_bin]
    # The last bin ends with the simulation.
    until = np.minimum(edges, max(simulation.end_s, 1e-9))
    lasted = np.where(np.diff(until) > 0, np.diff(until), width)
    waiting = _seconds_present(trace.arrival_s, np.where(np.isnan(began), until[-1], began), until) / lasted
    return tuple(
        Moment(
            at_s=float(edges[bin_]),
            arrivals_per_s=float(arrivals[bin_] / lasted[bin_]),
            running=float(bins[bin_, SEQUENCES] / lasted[bin_]),
            waiting=float(waiting[bin_]),
            kv_share=float(min(1.0, bins[bin_, KV] / lasted[bin_] / blocks[bin_])),
            busy_share=float(min(1.0, bins[bin_, BUSY] / lasted[bin_] / replicas[bin_])),
            input_tokens_per_s=float(bins[bin_, PROMPTS] / lasted[bin_]),
            output_tokens_per_s=float(bins[bin_, ANSWERS] / lasted[bin_]),
            ttft_p50_s=spreads[bin_].p50,
            ttft_p99_s=spreads[bin_].p99,
        )
        for bin_ in range(len(bins))
    )


def _mean_of_steps(steps: Floats, edges: Floats) -> Floats:
    """Return the mean in each bin of a step function: ``steps[:, 1]`` from the times ``steps[:, 0]`` on."""
    times, values = steps[:, 0], steps[:, 1]
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * values[:-1])])
    place = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, len(times) - 1)
    before = area[place] + (edges - times[place]) * values[place]
    return np.asarray(np.diff(before) / np.diff(edges))


def _seconds_present(enter_s: Floats, leave_s: Floats, edges: Floats) -> Floats:
    """Return the total time that all of them are present in each bin."""

    def time_before(times: Floats) -> Floats:
        """Sum, for each edge, how long before it every earlier event was."""
        ordered = np.sort(times)
        counts = np.searchsorted(ordered, edges)
        passed = [float(ordered[:count].sum()) for count in counts]
        return np.asarray(edges * counts - np.array(passed))

    return np.asarray(np.maximum(np.diff(time_before(enter_s) - time_before(leave_s)), 0.0))


def judged(slo: Slo, answered: Floats, unanswered: int, known_spread: Spread | None = None) -> SloOutcome:
    """Judge an SLO; a request that was accepted and never answered counts as infinitely late.

    Answers of one token have no TPOT and miss no SLO; if there are no answers at all, every SLO is missed.
    """
    delivered: float | None = getattr(known_spread or spread(answered), slo.statistic)
    if unanswered:
        known = answered[~np.isnan(answered)]
        percent = 100.0 if slo.statistic == "mean" else float(slo.statistic[1:])
        with_them = np.concatenate([known, np.full(unanswered, np.inf)])
        delivered = float(np.percentile(with_them, percent, method="higher"))
    if delivered is None or math.isinf(delivered):
        delivered, met = None, not unanswered and len(answered) > 0
    else:
        met = delivered <= slo.seconds
    return SloOutcome(slo=str(slo), objective_s=slo.seconds, delivered_s=delivered, met=met)


def _shares(simulation: Simulation, of: CountedTime) -> Shares:
    """Split the paid time; wasted work takes its share, by tokens, of the work of its kind.

    For a part of the run, prompts take the time that their tokens take of all, and answers the rest.
    """
    rows, paid = simulation.replicas, of.mean_replicas * (of.to_s - of.from_s)
    if paid <= 0:
        return Shares(prefill=0.0, decode=0.0, recomputed=0.0, abandoned=0.0, idle=1.0)
    total = {name: float(rows[name].sum()) for name in rows.dtype.names}
    part = of.share(simulation, BUSY)
    busy, lost_s = part * total["busy_s"], part * total["lost_s"]
    prompts = min(busy, of.share(simulation, PROMPTS) * total["prompt_busy_s"])
    answers = max(0.0, busy - prompts - lost_s)
    again = prompts * _ratio(total["prompt_again"], total["prompt_tokens"])
    left_prompts = prompts * min(1.0, _ratio(total["prompt_abandoned"], total["prompt_tokens"]))
    left_answers = answers * min(1.0, _ratio(total["answer_abandoned"], total["answer_tokens"]))
    lost = answers * _ratio(total["answer_lost"], total["answer_tokens"])
    return Shares(
        prefill=max(0.0, prompts - again - left_prompts) / paid,
        decode=max(0.0, answers - lost - left_answers) / paid,
        recomputed=(again + lost + lost_s) / paid,
        abandoned=(left_prompts + left_answers) / paid,
        idle=max(0.0, paid - busy) / paid,
    )


def full_batches(simulation: Simulation) -> ReplicaCurve | None:
    """Return the closed form for the mean answered request, as ``plan`` has it for the same traffic.

    None if nothing was answered or such a request does not fit. No latency target limits the batch here; ``plan``
    counts its load against the batch that the TPOT target allows.
    """
    trace, done = simulation.trace, simulation.served.status == DONE
    if not done.any():
        return None
    inputs, outputs = trace.input_tokens[done].astype(np.float64), trace.output_tokens[done].astype(np.float64)
    computed = np.maximum(inputs - simulation.served.cached_tokens[done], 1.0)
    context, held = (context_while_answering(prompts, outputs) for prompts in (inputs, computed))
    lengths = [max(1, round(float(tokens.mean()))) for tokens in (computed, outputs)]
    if max_sequences(simulation.deployment, max(sum(lengths), math.ceil(held))) < 1:
        return None
    most = simulation.rules.max_sequences
    return ReplicaCurve(
        simulation.deployment, *lengths, most_sequences=most, context_tokens=context, held_tokens=held,
        spread=context_spread(inputs, outputs),
    )  # fmt: skip


def _load_share(simulation: Simulation, of: CountedTime) -> float | None:
    done = int(np.count_nonzero(simulation.served.status == DONE))
    if not done:
        return 0.0 if of.paid_s > 0 else None
    full = full_batches(simulation)
    if full is None or of.paid_s <= 0:
        return None
    fleet = simulation.fleet
    if fleet.prefill_replicas:
        # The side that fills up first.
        prompts = fleet.prefill_replicas * prefill_only_rate(step_model(simulation.prefill), full.input_tokens)
        return done / (of.rated_s * min(prompts, fleet.replicas * full.decode_only_capacity().rate))
    return done / (of.paid_s * float(full.rates.max()))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
