"""Predictions against measurements: errors, coverage, ranking; nothing dropped without a reason.

The error of a row is log(predicted ÷ measured): 0.1 is about 10 %, and too high counts like too low. A group is
summed up by the median and the 90th percentile of its size, its median sign (bias), and the share of rows whose
measured value lies inside the predicted interval.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.errors import TokonomicsError
from tokonomics.measure.measurements import Measurement, Metric, Mode, Unread
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.intervals import Interval, Kind, interval
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.serving.steady import ReplicaCurve, Steady, static_batch_s


class Prediction(Noun):
    """One measurement with what we would have said."""

    measurement: Measurement
    interval: Interval

    @property
    def error(self) -> float:
        return math.log(self.interval.mid / self.measurement.value)

    @property
    def inside(self) -> bool:
        return self.interval.low <= self.measurement.value <= self.interval.high


class Summary(Noun):
    """How well a group of rows was predicted."""

    n: int
    median_abs_log_error: float
    p90_abs_log_error: float
    bias: float
    inside_interval: float


class Ranking(Noun):
    """How well the order of GPUs (and numbers of them) came out within one source, model and load."""

    groups: int
    pairs: int
    spearman: float | None
    """Mean over groups of at least three; None when there is none."""


class Validation(Noun):
    """The score of a file."""

    rows: int
    predicted: int
    not_predicted: dict[str, int]
    """Rows without a prediction, by reason."""
    overall: Summary | None
    groups: dict[str, dict[str, Summary]]
    """By metric, GPU, engine, kind of model, source."""
    ranking: Ranking


def validate(rows: Sequence[Measurement | Unread]) -> tuple[Validation, list[Prediction]]:
    """Predict every row that can be predicted and sum up the errors."""
    predictions: list[Prediction] = []
    reasons: Counter[str] = Counter()
    for row in rows:
        outcome = predict(row) if isinstance(row, Measurement) else row.reason
        if isinstance(outcome, str):
            reasons[outcome] += 1
        else:
            predictions.append(outcome)
    return (
        Validation(
            rows=len(rows),
            predicted=len(predictions),
            not_predicted=dict(reasons.most_common()),
            overall=summary(predictions) if predictions else None,
            groups={name: _grouped(predictions, key) for name, key in _GROUPS.items()},
            ranking=_ranking(predictions),
        ),
        predictions,
    )


def predict(row: Measurement) -> Prediction | str:
    """What we would have said, or why we cannot."""
    try:
        steps = steps_of(row)
        mid = value_of(row, steps)
    except TokonomicsError as error:
        return error.what
    return Prediction(measurement=row, interval=_interval(row, mid, steps))


def _interval(row: Measurement, mid: float, steps: StepModel) -> Interval:
    return interval(mid, KINDS[row.metric], steps.deployment, bare=row.engine is None)


def steps_of(row: Measurement) -> StepModel:
    """The step model of what a row ran on."""
    era = (row.year, row.engine_version, row.tuned)
    return _step_model(row.model, row.gpu, row.tp, row.pp, row.ep, row.weights, row.kv, row.engine, era)


def summary(predictions: Sequence[Prediction]) -> Summary:
    """The four figures of a group."""
    errors = [each.error for each in predictions]
    sizes = sorted(abs(error) for error in errors)
    return Summary(
        n=len(errors),
        median_abs_log_error=statistics.median(sizes),
        p90_abs_log_error=sizes[math.ceil(0.9 * len(sizes)) - 1],
        bias=statistics.median(errors),
        inside_interval=sum(each.inside for each in predictions) / len(predictions),
    )


KINDS: dict[Metric, Kind] = {
    Metric.tpot_s: "tpot",
    Metric.ttft_s: "ttft",
    Metric.output_tok_s: "throughput",
    Metric.total_tok_s: "throughput",
    Metric.step_s: "step",
}
"""Which class of errors a metric belongs to."""

ENGINES = {
    "tensorrt-llm+triton": "tensorrt-llm",
    "deepspeed-mii": "vllm",
}
"""Under which of our engines others' names are predicted; DeepSpeed-MII has continuous batching like vLLM's."""


@lru_cache(maxsize=4096)
def _step_model(
    model: str,
    gpu: str,
    tp: int,
    pp: int,
    ep: int,
    weights: str,
    kv: str | None,
    engine: str | None,
    era: tuple[int, str | None, bool],
) -> StepModel:
    if engine is not None and "disagg" in engine:
        raise TokonomicsError("disaggregated serving: needs the simulator")
    if tp % ep:
        raise TokonomicsError("experts shared among replicas of the attention (data parallel): not modelled")
    spec = find_model(model)
    found = find_engine(ENGINES.get(engine, engine) if engine else "vllm")
    deployment = deploy(
        spec, find_gpu(gpu), found, tp=tp, pp=pp, ep=ep, weights=_weights(weights, spec), kv=_kv(kv, weights)
    )
    if engine is None:
        return StepModel(deployment, None)
    year, version, tuned = era
    own = overhead(found, year, version)
    return StepModel(deployment, own.model_copy(update={"overlapped": True}) if tuned else own)


def _weights(text: str, model: ModelSpec) -> Precision:
    """The precision a source states; GPT-OSS is MXFP4 whatever it states, and unstated is the checkpoint's own."""
    if model.checkpoint is Precision.mxfp4 or text in ("unstated", "auto", ""):
        return model.checkpoint
    return parse_precision(text.split("/")[0], WEIGHT_PRECISIONS, "precision_weights")


def _kv(text: str | None, weights: str) -> Precision:
    if text in (None, "", "auto"):
        return Precision.bf16
    return parse_precision(str(text).split("/")[0], KV_PRECISIONS, "precision_kv")


def value_of(row: Measurement, steps: StepModel) -> float:
    """The measured figure as the step model predicts it."""
    input_tokens = max(1, round(row.input_tokens * row.length_share))
    output_tokens = max(1, round(row.output_tokens * row.length_share))
    if row.mode is Mode.decode_step:
        return float(steps.decode(row.batch or 1, row.input_tokens))
    if row.mode is Mode.prefill_step:
        return float(steps.prefill((row.batch or 1) * row.input_tokens, prompts=row.batch or 1))
    if row.mode is Mode.fixed_batch:
        return _static(row, steps, row.batch or 1, input_tokens, output_tokens)
    curve = ReplicaCurve(steps.deployment, input_tokens, output_tokens, steps=steps, most_sequences=_most(row))
    if row.rate is not None:
        capacity = curve.capacity()
        return _of(row.metric, curve.at_rate(min(row.rate, capacity.rate), capacity))
    if row.batch is None:
        return _of(row.metric, curve.saturated())
    return _of(row.metric, curve.at_concurrency(row.batch))


def _most(row: Measurement) -> int | None:
    """Benchmarks raise the engine's limit to the load they make."""
    return max(row.batch, 256) if row.batch else None


def _static(row: Measurement, steps: StepModel, batch: int, input_tokens: int, output_tokens: int) -> float:
    seconds = static_batch_s(steps, batch, input_tokens, output_tokens)
    tokens = batch * (output_tokens + (input_tokens if row.metric is Metric.total_tok_s else 0))
    if row.metric in (Metric.output_tok_s, Metric.total_tok_s):
        return tokens / seconds
    if row.metric is Metric.ttft_s:
        return static_batch_s(steps, batch, input_tokens, 1)
    return seconds / output_tokens


def _of(metric: Metric, steady: Steady) -> float:
    return {
        Metric.tpot_s: steady.tpot_s,
        Metric.ttft_s: steady.ttft_s,
        Metric.output_tok_s: steady.output_tokens_per_s,
        Metric.total_tok_s: steady.total_tokens_per_s,
    }[metric]


_GROUPS: dict[str, Callable[[Prediction], str]] = {
    "metric": lambda each: f"{each.measurement.metric}" if each.measurement.engine else f"{each.measurement.mode}",
    "gpu": lambda each: find_gpu(each.measurement.gpu).key,
    "engine": lambda each: f"{each.measurement.engine or 'bare'} {each.measurement.year}",
    "model": lambda each: "MoE" if find_model(each.measurement.model).is_moe else "dense",
    "source": lambda each: each.measurement.source,
}


def _grouped(predictions: Iterable[Prediction], key: Callable[[Prediction], str]) -> dict[str, Summary]:
    members: dict[str, list[Prediction]] = defaultdict(list)
    for each in predictions:
        members[key(each)].append(each)
    return {name: summary(group) for name, group in sorted(members.items())}


def _ranking(predictions: Iterable[Prediction]) -> Ranking:
    """Spearman's rank correlation of predicted and measured, within what differs only in its GPUs."""
    alike: dict[tuple[object, ...], list[Prediction]] = defaultdict(list)
    for each in predictions:
        row = each.measurement
        if row.metric is not Metric.ttft_s:  # in a closed loop the wait for the others' prompts, not the GPU's speed
            what = (row.source, row.model, row.engine, row.engine_version, row.weights, row.metric, row.mode)
            alike[*what, row.input_tokens, row.output_tokens, row.batch, row.rate].append(each)
    correlations, members = [], 0
    for group in alike.values():
        kinds = {(each.measurement.gpu, each.measurement.gpus) for each in group}
        if len(kinds) >= 3:
            members += len(group)
            correlations.append(
                spearman([each.interval.mid for each in group], [each.measurement.value for each in group])
            )
    return Ranking(
        groups=len(correlations), pairs=members, spearman=statistics.fmean(correlations) if correlations else None
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks."""
    return statistics.correlation(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def deployment_of(row: Measurement) -> Deployment | None:
    """What a row ran on, where we know all of it."""
    try:
        return steps_of(row).deployment
    except TokonomicsError:
        return None
