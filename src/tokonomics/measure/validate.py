"""Compare predictions with measurements: errors, coverage, ranking; no row is dropped without a reason.

The error of a row is log(predicted ÷ measured): 0.1 is about 10 %, and too high counts like too low. A group is
summarised by the median and the 90th percentile of its size, its median sign (bias), and the share of rows whose
measured value is inside the predicted interval.

A measured run is repeated in the simulator: the same number of users or the same arrivals, and the same number of
requests of those lengths. A run is finite and its users move in step, so its figures are not those of a steady state:
all users of a closed loop send their first request at once, and few run at the end. Times are what clients saw.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.entries import user_tables
from tokonomics.catalog.gpus import find_gpu
from tokonomics.errors import TokonomicsError, shorten
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts, Statistic, Unread
from tokonomics.measure.stated_setup import LLAMA_CPP, Recipe, model_named, plain_engine, recipe_of, steps_of
from tokonomics.physics.intervals import Interval, Kind, interval
from tokonomics.physics.memory import require_fit
from tokonomics.physics.steptime import StepModel
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE, Served
from tokonomics.serving.steady import ReplicaCurve, Steady, prompt_chunks, static_batch_s
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.types import Noun

TAUGHT = "calibrate"  # the split of published rows on which engines' overheads and the intervals were fitted
WORST = 5  # rows that are named


class ScoredPrediction(Noun):
    """One measurement with our prediction of it."""

    measurement: Measurement
    interval: Interval

    @property
    def error(self) -> float:
        return math.log(self.interval.mid / self.measurement.value)

    @property
    def inside(self) -> bool:
        return self.interval.low <= self.measurement.value <= self.interval.high


class ErrorSummary(Noun):
    n: int
    median_abs_log_error: float
    p90_abs_log_error: float
    bias: float
    inside_interval: float
    mean_abs_percentage_error: float  # of what was measured, as others publish it: half of it is 50 %, twice 100 %


class WorstRow(Noun):
    """A measurement that is among the farthest from its prediction, by its key in the file."""

    key: str
    what: str
    figure: str
    measured: float
    predicted: float
    ratio: float  # predicted ÷ measured


class RankingScore(Noun):
    """How well the order of GPUs (and their numbers) was predicted within one source, model and load."""

    groups: int
    pairs: int
    spearman: float | None  # mean over groups of at least three; None if there is none


class Validation(Noun):
    rows: int
    predicted: int
    not_predicted: dict[str, int]  # rows without a prediction, by reason
    splits: dict[str, int]  # rows with a prediction, by split; the model was fitted on ``calibrate`` only
    overall: ErrorSummary | None
    groups: dict[str, dict[str, ErrorSummary]]  # by metric, GPU, engine, kind of model, source
    ranking: RankingScore
    worst: tuple[WorstRow, ...] = ()  # the farthest off first


def validate(rows: Sequence[Measurement | Unread]) -> tuple[Validation, list[ScoredPrediction]]:
    """Predict every row that can be predicted and summarise the errors."""
    for section in ("models", "gpus"):
        user_tables(section)  # raise here if the user's catalogue is broken, not once per row
    predictions: list[ScoredPrediction] = []
    reasons: Counter[str] = Counter()
    for row in rows:
        outcome = predict(row) if isinstance(row, Measurement) else row.reason
        if isinstance(outcome, str):
            reasons[outcome] += 1
        else:
            predictions.append(outcome)
    validation = Validation(
        rows=len(rows),
        predicted=len(predictions),
        not_predicted=dict(reasons.most_common()),
        splits=dict(Counter(row.measurement.split for row in predictions if row.measurement.split)),
        overall=summary(predictions) if predictions else None,
        groups={name: _grouped(predictions, key) for name, key in _GROUPS.items()},
        ranking=_ranking(predictions),
        worst=tuple(map(_worst_row, sorted(predictions, key=lambda row: -abs(row.error))[:WORST])),
    )
    return validation, predictions


def _worst_row(scored: ScoredPrediction) -> WorstRow:
    row, predicted = scored.measurement, scored.interval.mid
    load = f"{row.input_tokens:,} in / {row.output_tokens:,} out"
    many = f" × {row.batch:,}" if row.batch else f" at {row.rate:g}/s" if row.rate else ""
    what = f"{row.model} on {row.gpus} × {row.gpu}, {row.engine or 'bare'}, {load}{many}"
    return WorstRow(key=row.key, what=what, figure=row.figure, measured=row.value, predicted=predicted,
                    ratio=predicted / row.value)  # fmt: skip


def predict(row: Measurement) -> ScoredPrediction | str:
    """Return the prediction for a row, or why there is none."""
    try:
        steps = steps_of(row)
        mid = value_of(row, steps)
    except TokonomicsError as error:
        return shorten(error.what, 200)
    return ScoredPrediction(measurement=row, interval=interval(mid, kind_of(row), steps.deployment, steps.engine))


def kind_of(row: Measurement) -> Kind:
    """Return the class of errors that a row belongs to."""
    return "prefill" if row.mode is Mode.prefill_step else KINDS[row.metric]


def summary(predictions: Sequence[ScoredPrediction]) -> ErrorSummary:
    errors = [prediction.error for prediction in predictions]
    sizes = sorted(abs(error) for error in errors)
    return ErrorSummary(
        n=len(errors),
        median_abs_log_error=statistics.median(sizes),
        p90_abs_log_error=sizes[math.ceil(0.9 * len(sizes)) - 1],
        bias=statistics.median(errors),
        inside_interval=sum(prediction.inside for prediction in predictions) / len(predictions),
        mean_abs_percentage_error=statistics.fmean(abs(math.expm1(error)) for error in errors),
    )


KINDS: dict[Metric, Kind] = {
    Metric.tpot_s: "tpot", Metric.ttft_s: "ttft", Metric.output_tok_s: "throughput", Metric.total_tok_s: "throughput",
    Metric.step_s: "step",
}  # fmt: skip

_RATES = (Metric.output_tok_s, Metric.total_tok_s)
_ONE_TOKEN = "an answer of one token has no time per token after the first"

IN_FLIGHT = 3
"""Chunks of one prompt in llama.cpp's stages at once: of the four copies of what goes from stage to stage
(``GGML_SCHED_MAX_COPIES``; since March 2024, its PR 6017) one is being filled. Three fit prompts of rows marked
``calibrate`` on several GPUs better than four (9 % off instead of 11 %)."""


def value_of(row: Measurement, steps: StepModel) -> float:
    """Return the measured figure as the step model predicts it; simulate the run if it has users or arrivals."""
    input_tokens = max(1, round(row.input_tokens * row.length_share))
    output_tokens = max(1, round(row.output_tokens * row.length_share))
    if row.mode in (Mode.decode_step, Mode.prefill_step) and row.metric is not Metric.step_s:
        raise TokonomicsError(f"a step is measured in seconds, not by {row.metric}")
    if row.engine and "disagg" in row.engine.lower():
        return _decoding(row, steps, input_tokens, output_tokens)
    chunked = row.engine is not None and plain_engine(row.engine) in LLAMA_CPP
    if chunked and row.output_tokens <= 1 and row.mode is Mode.low_latency and row.metric is not Metric.tpot_s:
        require_fit(steps.deployment, input_tokens)
        alone_s = chunked_prompt_s(steps, input_tokens)
        return alone_s if row.metric is Metric.ttft_s else (input_tokens + 1) / alone_s
    if row.slo is not None:
        return _at_highest_rate(row, steps, row.slo, input_tokens, output_tokens)
    if is_simulated(row):
        return _simulated(row, steps, input_tokens, output_tokens)
    if row.statistic is Statistic.p99:
        raise TokonomicsError(f"the {row.statistic} of a run whose users or arrivals are not known")
    if row.mode is Mode.decode_step:
        return float(steps.decode(row.batch or 1, row.input_tokens))
    if row.mode is Mode.prefill_step:
        return float(steps.prefill((row.batch or 1) * row.input_tokens, prompts=row.batch or 1))
    if row.mode is Mode.fixed_batch:
        return _static(row, steps, row.batch or 1, input_tokens, output_tokens)
    steady = steady_of(row, replica_curve(steps, input_tokens, output_tokens, most_sequences(row)))
    rates = {Metric.output_tok_s: steady.output_tokens_per_s, Metric.total_tok_s: steady.total_tokens_per_s}
    return {Metric.tpot_s: steady.tpot_s, Metric.ttft_s: steady.ttft_s, **rates}[row.metric]


def chunked_prompt_s(steps: StepModel, tokens: int) -> float:
    """Return the time of a lone prompt whose chunks follow each other through the stages, ``IN_FLIGHT`` at once."""
    chunks, stages = prompt_chunks(steps.deployment, tokens), steps.deployment.pp
    free_s, out_s, past = [0.0] * stages, [0.0] * IN_FLIGHT, 0
    for chunk in chunks:
        at_s, each_s = out_s[-IN_FLIGHT], float(steps.prefill(chunk, past)) / stages
        for stage in range(stages):
            at_s = free_s[stage] = max(at_s, free_s[stage]) + each_s
        out_s.append(at_s)
        past += chunk
    return out_s[-1]


def _decoding(row: Measurement, steps: StepModel, input_tokens: int, output_tokens: int) -> float:
    """Return the step time of replicas that only decode what others prefilled, with half of each answer written.

    First tokens are refused. Simulated as users in a loop who queue for groups of the prefill side, and then wait for
    the KV to be sent and one decode step, they come too early: on 39 rows marked ``calibrate`` or ``dev``, 1.8 times
    (TensorRT-LLM, B200), 5 times (SGLang, B200) and 19 times (TensorRT-LLM, H100: 6 users waited 12 s for prompts of
    900 tokens). What else the routers and the first rounds of these runs waited for is not published.
    """
    if row.metric is Metric.ttft_s:
        raise TokonomicsError("disaggregated serving: first tokens take 2 to 19 times as long as we can explain")
    if row.metric is not Metric.tpot_s or row.batch is None:
        raise TokonomicsError("disaggregated serving: only the time per token at a concurrency is predicted")
    require_fit(steps.deployment, input_tokens + output_tokens, row.batch)
    return float(steps.decode(row.batch, input_tokens + output_tokens / 2))


def is_simulated(row: Measurement) -> bool:
    """Decide whether a row is an engine's run with known users, rate or arrivals; else the queue never empties."""
    if row.engine is None or row.mode in (Mode.decode_step, Mode.prefill_step, Mode.fixed_batch):
        return False
    closed = row.batch is not None and row.mode is not Mode.max_throughput
    return closed or row.rate is not None or bool(row.run.arrival_s) or _is_queue(row)


def _is_queue(row: Measurement) -> bool:
    """Decide whether a known number of requests wait when the run begins, and it ends with the last of them."""
    known = row.rate is not None or bool(row.run.arrival_s)
    return row.mode is Mode.max_throughput and row.run.requests is not None and not known


def _simulated(row: Measurement, steps: StepModel, input_tokens: int, output_tokens: int) -> float:
    facts, users = row.run, row.batch if row.rate is None else None
    recipe = recipe_of(steps.deployment) if row.tuned else Recipe()
    if facts.max_batched_tokens is None:
        facts = facts.model_copy(update={"max_batched_tokens": recipe.step_tokens(row)})
    if _is_queue(row):
        most = row.batch or steps.deployment.limits.max_sequences
        facts, users = facts.model_copy(update={"max_sequences": facts.max_sequences or most}), row.run.requests
    load = RunLoad(
        users=users,
        rate=row.rate,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        spread=row.run.spread if row.run.spread is not None else min(0.99, 1 / row.length_share - 1),
        facts=facts,
    )
    figures = simulated(steps, load)
    figure = figures.get((row.metric, Statistic.mean if row.metric in _RATES else row.statistic))
    if figure is None:
        raise TokonomicsError(_ONE_TOKEN)
    if row.metric is Metric.ttft_s:
        chunk = facts.max_batched_tokens or steps.deployment.limits.max_batched_tokens
        waits = recipe.wait_steps(row.batch or 1, output_tokens, steps.deployment.dp)
        figure += waits * figures.get((Metric.tpot_s, Statistic.mean), 0.0)
        if gathered := recipe.gathered_steps(row, chunk):
            figure += gathered * float(steps.decode(row.batch or 1, input_tokens + output_tokens / 2))
    return figure


def _at_highest_rate(
    row: Measurement, steps: StepModel, slo: tuple[float, float], input_tokens: int, output_tokens: int
) -> float:
    """Return the throughput of a run that was tuned to the highest rate under its limits: the highest one we predict.

    Its latencies are refused: tuning fills them up to the limits, at a rate that the submitter chose.
    """
    if row.metric not in _RATES:
        raise TokonomicsError("latencies of a run that was tuned to the highest rate under its own limits")
    spread = row.run.spread or 0.0
    load = RunLoad(rate=1.0, input_tokens=input_tokens, output_tokens=output_tokens, spread=spread)
    rate = highest_rate(steps, load, slo)
    return rate * (output_tokens if row.metric is Metric.output_tok_s else input_tokens + output_tokens)


def steady_of(row: Measurement, curve: ReplicaCurve) -> Steady:
    """Return a replica's state under the load of a row; load beyond its capacity is not served."""
    if row.rate is not None:
        capacity = curve.capacity()
        return curve.at_rate(min(row.rate, capacity.rate), capacity)
    return curve.saturated() if row.batch is None else curve.at_concurrency(row.batch)


@lru_cache(maxsize=8)
def replica_curve(
    steps: StepModel, input_tokens: int, output_tokens: int, most: int | None, cached_tokens: float = 0.0
) -> ReplicaCurve:
    """Return the steady states of one replica; cached briefly, because all figures of a run use one curve.

    ``cached_tokens`` of each prompt are added to its input: answers attend to them, and requests share their memory.
    """
    require_fit(steps.deployment, input_tokens + output_tokens)
    held = input_tokens + output_tokens / 2
    return ReplicaCurve(
        steps.deployment, input_tokens, output_tokens, steps=steps, most_sequences=most,
        context_tokens=held + cached_tokens, held_tokens=held,
    )  # fmt: skip


def most_sequences(row: Measurement) -> int | None:
    """Return the engine's limit, which benchmarks raise to their load."""
    return max(row.batch, LEAST_SEQUENCES) if row.batch else None


def _static(row: Measurement, steps: StepModel, batch: int, input_tokens: int, output_tokens: int) -> float:
    seconds = static_batch_s(steps, batch, input_tokens, output_tokens)
    tokens = batch * (output_tokens + (input_tokens if row.metric is Metric.total_tok_s else 0))
    if row.metric in _RATES:
        return tokens / seconds
    first_s = static_batch_s(steps, batch, input_tokens, 1)
    if row.metric is Metric.ttft_s:
        return first_s
    if output_tokens < 2:
        raise TokonomicsError(_ONE_TOKEN)
    return (seconds - first_s) / (output_tokens - 1)


def beats_datasheet(row: Measurement) -> bool:
    """Decide whether a row is faster than its load can be served with every byte at full bandwidth or FLOP at peak.

    First tokens and throughput at a rate are never: a wait, or the arrivals, decide these.
    """
    if row.metric is Metric.ttft_s or row.slo is not None or (row.rate is not None and row.metric in _RATES):
        return False
    try:
        best = value_of(row, steps_of(row).floor)
    except TokonomicsError:
        return False
    return row.value > best if row.metric in _RATES else row.value < best


def impossible_rows(rows: Iterable[Measurement]) -> set[str]:
    """Return the keys of the rows of sweeps that cannot have run as they are labelled.

    A sweep is what one source measured of a model, GPU, engine, build and precision. If half of its speeds or more beat
    the datasheet, something that all of its rows share was another: its first tokens are no better known.
    """
    sweeps: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for row in rows:
        sweeps[row.source, row.model, row.gpu, row.engine, row.engine_version, row.weights].append(row)
    found: set[str] = set()
    for sweep in sweeps.values():
        speeds = [beats_datasheet(row) for row in sweep if row.metric is not Metric.ttft_s]
        if speeds and 2 * sum(speeds) >= len(speeds):
            found |= {row.key for row in sweep}
    return found


_GROUPS: dict[str, Callable[[Measurement], str]] = {
    "metric": lambda row: row.figure if row.engine else f"{row.mode}",
    "gpu": lambda row: find_gpu(row.gpu).key,
    "engine": lambda row: f"{row.engine or 'bare'} {row.year}",
    "model": lambda row: "MoE" if model_named(row.model).is_moe else "dense",
    "source": lambda row: row.source,
}


def _grouped(predictions: Iterable[ScoredPrediction], key: Callable[[Measurement], str]) -> dict[str, ErrorSummary]:
    """Return the errors of each group of predictions."""
    members: dict[str, list[ScoredPrediction]] = defaultdict(list)
    for prediction in predictions:
        members[key(prediction.measurement)].append(prediction)
    return {name: summary(group) for name, group in sorted(members.items())}


def _ranking(predictions: Iterable[ScoredPrediction]) -> RankingScore:
    """Return Spearman's rank correlation of predicted and measured, within rows that differ only in their GPUs."""
    alike: dict[tuple[object, ...], list[ScoredPrediction]] = defaultdict(list)
    for prediction in predictions:
        row = prediction.measurement
        if row.metric is not Metric.ttft_s:  # in a closed loop the wait for others' prompts, not the GPU's speed
            what = (row.source, row.model, row.engine, row.engine_version, row.weights, row.figure, row.mode)
            alike[*what, row.input_tokens, row.output_tokens, row.batch, row.rate].append(prediction)
    correlations, members = [], 0
    for group in alike.values():
        kinds = {(find_gpu(scored.measurement.gpu).key, scored.measurement.tp) for scored in group}
        measured, predicted = [scored.measurement.value for scored in group], [scored.interval.mid for scored in group]
        if len(kinds) >= 3 and len(set(measured)) > 1 and len(set(predicted)) > 1:
            members += len(group)
            correlations.append(spearman(predicted, measured))
    mean = statistics.fmean(correlations) if correlations else None
    return RankingScore(groups=len(correlations), pairs=members, spearman=mean)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(low < value for low in values) + (values.count(value) + 1) / 2 for value in values]

    return statistics.correlation(ranks(one), ranks(other))


Floats = NDArray[np.float64]

PER_USER, FEWEST, MOST, AT_A_RATE = 10, 8, 5000, 500  # requests if a run states none; 10 per user as InferenceMAX
LEAST_SEQUENCES = 256  # benchmarks raise the engine's limit to their load, and do not lower it below this
_SEED = 0


class RunLoad(Noun):
    users: int | None = None
    rate: float | None = None  # neither: the recorded arrivals
    input_tokens: int  # mean if lengths vary; of each request if its own are not recorded
    output_tokens: int
    spread: float = 0.0  # lengths are uniform within this share around their mean
    facts: RunFacts = RunFacts()


Figures = dict[tuple[Metric, Statistic], float]


@lru_cache(maxsize=512)
def simulated(steps: StepModel, load: RunLoad) -> Figures:
    """Return every figure of the run, without those of times that no request has."""
    trace = _trace(load)
    served = _serve(steps, trace, load.users, load.facts)
    warm, opened_s = load.facts.warm_up, float(served.arrival_s.min())
    counted = np.arange(len(trace))
    if warm:
        # As in our own benchmark: from when every user has had an answer, in whole rounds of all users.
        opened_s = float(served.finish_s[:warm].max())
        later = np.sort(served.finish_s[served.finish_s > opened_s])
        if not len(later):
            raise TokonomicsError("all requests of the run end before its window opens")
        rounds = math.ceil((len(trace) - 2 * warm) / warm)
        closed_s = later[min(len(later), rounds * warm) - 1]
        counted = np.flatnonzero((served.finish_s > opened_s) & (served.finish_s <= closed_s))
    outputs = trace.output_tokens[counted].astype(np.float64)
    first_s, finish_s = served.first_token_s[counted], served.finish_s[counted]
    window_s = float(finish_s.max()) - opened_s
    longer = outputs > 1
    return {
        (Metric.output_tok_s, Statistic.mean): float(outputs.sum()) / window_s,
        (Metric.total_tok_s, Statistic.mean): float(outputs.sum() + trace.input_tokens[counted].sum()) / window_s,
        **_spread(Metric.ttft_s, first_s - served.arrival_s[counted]),
        **_spread(Metric.tpot_s, (finish_s - first_s)[longer] / (outputs[longer] - 1)),
    }


SERVED_S, RATE_TRIES = 600.0, 8
"""How long requests arrive at a rate (at least: mlcommons/inference_policies, ``inference_rules.adoc``, Server), and
how often the range of rates is halved: to 0.3 % of the capacity."""


def _for_a_while(load: RunLoad, rate: float) -> RunLoad:
    requests = min(MOST, max(AT_A_RATE, round(rate * SERVED_S)))
    return load.model_copy(update={"rate": rate, "facts": RunFacts(requests=requests)})


@lru_cache(maxsize=64)
def highest_rate(steps: StepModel, load: RunLoad, slo: tuple[float, float]) -> float:
    """Return the highest rate at which the p99 of the first token and of the time per token are within their limits."""
    curve = replica_curve(steps, load.input_tokens, load.output_tokens, None)
    low, high = 0.25 * curve.capacity().rate, curve.capacity().rate

    def meets(rate: float) -> bool:
        figures = simulated(steps, _for_a_while(load, rate))
        first_s, each_s = (figures.get((metric, Statistic.p99), 0.0) for metric in (Metric.ttft_s, Metric.tpot_s))
        return first_s <= slo[0] and each_s <= slo[1]

    if not meets(low):
        raise TokonomicsError(f"p99 limits of {slo[0]:g} s and {slo[1]:g} s are not met at a quarter of the capacity")
    for _ in range(RATE_TRIES):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def _spread(metric: Metric, values: Floats) -> Figures:
    if not len(values):
        return {}
    figures = (values.mean(), *np.percentile(values, (50, 99)))
    return {(metric, statistic): float(value) for statistic, value in zip(Statistic, figures, strict=True)}


def _trace(load: RunLoad) -> Trace:
    """Return the run's requests; in a closed loop, in the order in which they are sent."""
    facts, around, chance = load.facts, load.facts.warm_up, np.random.default_rng(_SEED)
    count = facts.requests or (min(MOST, max(FEWEST, PER_USER * load.users)) if load.users is not None else AT_A_RATE)

    def lengths(mean: int, recorded: tuple[int, ...]) -> NDArray[np.int64]:
        """Return recorded lengths, or else drawn ones; those of requests outside the window are never recorded."""
        least, most = max(1, round(mean * (1 - load.spread))), round(mean * (1 + load.spread))
        before = chance.integers(least, most + 1, around)
        inside = recorded or chance.integers(least, most + 1, count)
        return np.concatenate([before, inside, chance.integers(least, most + 1, around)])

    inputs = lengths(load.input_tokens, facts.input_tokens)
    outputs = lengths(load.output_tokens, facts.output_tokens)
    if load.users is not None:
        arrival = np.zeros(len(inputs))
    elif facts.arrival_s:
        arrival = np.array(facts.arrival_s)
    else:
        arrival = np.cumsum(chance.exponential(1 / (load.rate or 1.0), len(inputs)))
    return make_trace(arrival, inputs, outputs)


def _serve(steps: StepModel, trace: Trace, users: int | None, facts: RunFacts) -> Served:
    deployment = steps.deployment
    longest = int((trace.input_tokens.astype(np.int64) + trace.output_tokens).max())
    require_fit(deployment, longest)
    most = deployment.limits.max_sequences if users is None else max(users, LEAST_SEQUENCES)
    # Predict what a source says that it ran, whatever the model's longest context.
    reach = {"max_context": max(deployment.model.max_context, longest)}
    served = simulate(
        deployment.model_copy(update={"model": deployment.model.model_copy(update=reach)}),
        trace,
        FleetSettings(users=users),
        max_sequences=facts.max_sequences or most,
        max_batched_tokens=facts.max_batched_tokens,
        steps=steps,
    ).served
    if not (served.status == DONE).all():
        raise TokonomicsError(f"a request of {longest:,} tokens does not fit {deployment}")
    return served
