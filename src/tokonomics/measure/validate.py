"""Predictions against measurements: errors, coverage, ranking; no row is dropped without a reason.

The error of a row is log(predicted ÷ measured): 0.1 is about 10 %, and too high counts like too low. A group is
summed up by the median and the 90th percentile of its size, its median sign (bias), and the share of rows whose
measured value lies inside the predicted interval.
"""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tokonomics.catalog.engines import Engine, find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import MoeMlp
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import KV_PRECISIONS, Precision
from tokonomics.catalog.user_file import user_tables
from tokonomics.errors import TokonomicsError, UnknownName, shorten
from tokonomics.measure.measurements import Measurement, Metric, Mode, Statistic, Unread
from tokonomics.measure.recipes import Recipe, recipe
from tokonomics.measure.simulated_run import LEAST_SEQUENCES, RunLoad, simulated
from tokonomics.physics.calibration import profile_key
from tokonomics.physics.deployment import Deployment, valid_tp
from tokonomics.physics.intervals import Interval, Kind, interval
from tokonomics.physics.memory import max_sequences, require_fit
from tokonomics.physics.overhead import REQUESTS, overhead
from tokonomics.physics.speculation import DRAFT_TOKENS, acceptance_for
from tokonomics.physics.steptime import StepModel
from tokonomics.planner.parsing import draft_named
from tokonomics.serving.steady import ReplicaCurve, Steady, prompt_chunks, static_batch_s
from tokonomics.types import Noun

TAUGHT = "calibrate"  # split of the published rows on which engines' overheads and the intervals were fitted


class ScoredPrediction(Noun):
    """One measurement with what we would have said."""

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


class RankingScore(Noun):
    """How well the order of GPUs (and numbers of them) came out within one source, model and load."""

    groups: int
    pairs: int
    spearman: float | None  # mean over groups of at least three; None when there is none


class Validation(Noun):
    rows: int
    predicted: int
    not_predicted: dict[str, int]  # rows without a prediction, by reason
    splits: dict[str, int]  # rows with a prediction, by split; ``calibrate`` taught the model, others did not
    overall: ErrorSummary | None
    groups: dict[str, dict[str, ErrorSummary]]  # by metric, GPU, engine, kind of model, source
    ranking: RankingScore


def validate(rows: Sequence[Measurement | Unread]) -> tuple[Validation, list[ScoredPrediction]]:
    """Predict every row that can be predicted and sum up the errors."""
    for section in ("models", "gpus"):
        user_tables(section)  # a broken catalogue is the user's to mend, not a reason of each row
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
    )
    return validation, predictions


def predict(row: Measurement) -> ScoredPrediction | str:
    """The prediction for a row, or why there is none."""
    try:
        steps = steps_of(row)
        mid = value_of(row, steps)
    except TokonomicsError as error:
        return shorten(error.what, 200)
    return ScoredPrediction(measurement=row, interval=interval(mid, kind_of(row), steps.deployment, steps.engine))


def kind_of(row: Measurement) -> Kind:
    """Which class of errors a row belongs to."""
    return "prefill" if row.mode is Mode.prefill_step else KINDS[row.metric]


def steps_of(row: Measurement) -> StepModel:
    # An engine's own program times rows of low latency: there is no front end.
    era = (row.year, row.engine_version, row.tuned, row.mode is not Mode.low_latency)
    served = (row.model, row.gpu, row.tp, row.pp, row.ep, row.dp, row.weights, row.kv, row.engine)
    return _step_model(served, era, profile_key(), row.draft, row.accepted_length)


def summary(predictions: Sequence[ScoredPrediction]) -> ErrorSummary:
    errors = [prediction.error for prediction in predictions]
    sizes = sorted(abs(error) for error in errors)
    return ErrorSummary(
        n=len(errors),
        median_abs_log_error=statistics.median(sizes),
        p90_abs_log_error=sizes[math.ceil(0.9 * len(sizes)) - 1],
        bias=statistics.median(errors),
        inside_interval=sum(prediction.inside for prediction in predictions) / len(predictions),
    )


KINDS: dict[Metric, Kind] = {
    Metric.tpot_s: "tpot", Metric.ttft_s: "ttft", Metric.output_tok_s: "throughput", Metric.total_tok_s: "throughput",
    Metric.step_s: "step",
}  # fmt: skip

_RATES = (Metric.output_tok_s, Metric.total_tok_s)
_ONE_TOKEN = "an answer of one token has no time per token after the first"
TUNED_GRAPH_TOKENS = 2048
"""``max-cudagraph-capture-size`` of InferenceMAX's recipes for vLLM (as of vLLM's own for GPT-OSS on Hopper)."""
ENGINES = {
    "autoawq": "llama.cpp", "deepspeed": "vllm", "exllama": "llama.cpp", "lmdeploy": "vllm", "mlc": "vllm",
    "ollama": "llama.cpp", "optimum-habana": "vllm", "text-generation-inference": "tgi", "triton": "tensorrt-llm",
    "trt": "tensorrt-llm",
}  # fmt: skip
"""Under which of our engines others are predicted, by how their names begin.

Those under vLLM batch continuously as it does. AutoAWQ and ExLlama are loops over one batch as llama.cpp is, with
weights of four bits and several GPUs split by layers.
"""

LLAMA_CPP = ("llama.cpp", "ollama")
"""What runs its kernels and its scheduler; what else it stands for shares neither."""
IN_FLIGHT = 4
"""Chunks of one prompt in llama.cpp's stages at once (``GGML_SCHED_MAX_COPIES``; since March 2024, its PR 6017)."""

HOSTLESS = "optimum-habana"
"""Runs a static batch from a plain loop, whole steps as graphs of the accelerator: no scheduler between them."""

_PRECISIONS = (
    (r"mxfp4", Precision.mxfp4),
    (r"nvfp4|fp4", Precision.nvfp4),
    (r"awq|gptq|int4|w4a|q4|4[- ]?bit", Precision.int4),
    (r"w8a8|int8|q8", Precision.int8),
    (r"fp8|e4m3|e5m2|f8", Precision.fp8),
    (r"fp32|float32|f32", Precision.fp32),
    (r"16|half", Precision.bf16),
)
"""How sources write down precisions, most special first."""

_SUFFIX = re.compile(
    r"[-_.](instruct|chat|it|hf|base|fp8|fp16|bf16|awq|gptq|int4|int8|w8a8|w4a16|nvfp4|mxfp4|gguf|dynamic|v\d(\.\d)?)$"
)
"""What sources append to a model's name without changing its shape."""


@lru_cache(maxsize=4096)
def _step_model(
    stated: tuple[Any, ...],
    era: tuple[int, str | None, bool, bool],
    profile: str | None,
    draft: str | None,
    accepted_length: float | None,
) -> StepModel:
    deployment = stated_deployment(*stated)
    if era[2] and stated[-2] is None and (kv := _recipe(deployment).kv):
        stated = (*stated[:-2], kv, stated[-1])
        deployment = stated_deployment(*stated)
    if draft:
        deployment = _drafting(deployment, draft, accepted_length)
    if stated[-1] is None:  # no engine: bare steps
        return StepModel(deployment, None)
    year, version, tuned, served = era
    own = overhead(deployment.engine, year, version, deployment.gpu.architecture)
    changes: dict[str, object] = {} if served else dict.fromkeys(REQUESTS, 0.0)
    if _plain(stated[-1]) not in LLAMA_CPP:
        changes |= {"unpacks": False, "score_passes": 0.0}
    if HOSTLESS in stated[-1].lower():
        changes |= {"step_s": 0.0, "sequence_s": 0.0}
    if tuned:
        changes |= {"overlapped": True, "graph_tokens": TUNED_GRAPH_TOKENS if own.graph_tokens else 0}
    return StepModel(deployment, own.model_copy(update=changes), aligned=tuned and _recipe(deployment).aligns > 0)


def _drafting(deployment: Deployment, draft: str, accepted_length: float | None) -> Deployment:
    """What drafted as a row states it, such as ``mtp:3``: as much accepted as it states, or as is published."""
    name, _, stated = draft.partition(":")
    tokens = int(stated) if stated else None
    acceptance = None if accepted_length is None else acceptance_for(accepted_length, tokens or DRAFT_TOKENS)
    if accepted_length is not None and acceptance is None:
        raise TokonomicsError(f"no round of {tokens or DRAFT_TOKENS} drafted tokens yields {accepted_length:g}")
    made = draft_named(name, deployment.model, tokens, acceptance)
    return deployment.model_copy(update={"speculation": made})


def _recipe(deployment: Deployment) -> Recipe:
    """Of a row of InferenceMAX."""
    served = (deployment.engine.key, deployment.model.key, deployment.gpu.architecture)
    return recipe(*served, deployment.weights, deployment.tp)


def stated_deployment(
    model: str, gpu: str, tp: int, pp: int, ep: int, dp: int, weights: str, kv: str | None, engine: str | None
) -> Deployment:
    """What a source says that it ran, in our terms; an error says why it cannot be."""
    if tp * dp % ep:
        raise TokonomicsError(f"experts over {ep} GPUs, attention over {tp}: neither divides the other")
    spec = model_named(model)
    if ep > min((group.mlp.experts for group in spec.groups if isinstance(group.mlp, MoeMlp)), default=ep):
        raise TokonomicsError(f"{spec.name} has fewer experts than {ep}")
    if tp not in valid_tp(spec):
        raise TokonomicsError(f"{spec.name} cannot be split {tp} ways")
    if pp > spec.layers:
        raise TokonomicsError(f"{spec.name} has {spec.layers} layers, fewer than {pp} stages")
    found = engine_named(engine) if engine else find_engine("vllm")
    # GPT-OSS is MXFP4 whatever a source states; unstated, the checkpoint's own precision holds.
    precision = spec.served if spec.checkpoint is Precision.mxfp4 else stated_weights(weights, model) or spec.served
    # What a source says ran is predicted, whether or not the engine's current release still runs it.
    split = {"tp": tp, "pp": pp, "ep": ep, "dp": dp}
    made = Deployment(model=spec, gpu=find_gpu(gpu), engine=found, **split, weights=precision, kv=_kv(kv))
    if max_sequences(made, 1):
        return made
    # It ran: with more of the memory than the engine takes by itself.
    everything = {"at_least_gib": 0, "except_gpus": (), "memory_fraction": 1.0, "reserve_bytes": 0}
    limits = made.group_limits.model_copy(update=everything)
    return made.model_copy(update={"engine": found.model_copy(update={"defaults": (limits,)})})


def model_named(name: str) -> ModelSpec:
    """The model of that name, less what sources append to it."""
    try:
        return find_model(name)
    except UnknownName:
        shorter = _SUFFIX.sub("", name.lower())
        if shorter == name.lower():
            raise
        return model_named(shorter)


def _plain(name: str) -> str:
    return re.split(r"[\s+(]", name.strip().lower())[0]


def engine_named(name: str) -> Engine:
    """The engine of that name, or the one that stands for it."""
    plain = _plain(name)
    return find_engine(next((ours for theirs, ours in ENGINES.items() if plain.startswith(theirs)), plain))


def assumed_weights(text: str, name: str) -> Precision | None:
    """The checkpoint's own precision, where neither the source nor the model's name states one."""
    model = model_named(name)
    return None if model.checkpoint is Precision.mxfp4 or stated_weights(text, name) else model.served


def stated_weights(text: str, name: str) -> Precision | None:
    """The precision that a source states, or its model's name (Llama-3.1-8B-Instruct-FP8); None where neither does."""
    if text.lower() not in ("unstated", "auto", ""):
        return _precision(text)
    named = (precision for pattern, precision in _PRECISIONS if re.search(rf"[-_.]({pattern})", name.lower()))
    return next(named, None)


def _kv(text: str | None) -> Precision:
    if text is None or text.lower() in ("", "auto", "unstated"):
        return Precision.bf16
    if (stated := _precision(text)) not in KV_PRECISIONS:
        raise TokonomicsError(f"no curve for a KV cache in {stated}")
    return stated


def _precision(text: str) -> Precision:
    for pattern, precision in _PRECISIONS:
        if re.search(pattern, text.lower()):
            return precision
    raise TokonomicsError(f"unknown precision '{shorten(text)}'")


def value_of(row: Measurement, steps: StepModel) -> float:
    """The measured figure as the step model predicts it: users and arrivals by simulating the run."""
    input_tokens = max(1, round(row.input_tokens * row.length_share))
    output_tokens = max(1, round(row.output_tokens * row.length_share))
    if row.mode in (Mode.decode_step, Mode.prefill_step) and row.metric is not Metric.step_s:
        raise TokonomicsError(f"a step is measured in seconds, not by {row.metric}")
    if row.engine and "disagg" in row.engine.lower():
        return _decoding(row, steps, input_tokens, output_tokens)
    chunked = row.engine is not None and _plain(row.engine) in LLAMA_CPP
    if chunked and row.output_tokens <= 1 and row.mode is Mode.low_latency and row.metric is not Metric.tpot_s:
        require_fit(steps.deployment, input_tokens)
        alone_s = chunked_prompt_s(steps, input_tokens)
        return alone_s if row.metric is Metric.ttft_s else (input_tokens + 1) / alone_s
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
    """A prompt alone, whose chunks follow each other through the stages: one enters when the fourth before it left."""
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
    """Of replicas that only decode, what others have prefilled: their steps, half of the answers being there."""
    if row.metric is not Metric.tpot_s or row.batch is None:
        raise TokonomicsError("disaggregated serving: only the time per token at a concurrency is predicted")
    require_fit(steps.deployment, input_tokens + output_tokens, row.batch)
    return float(steps.decode(row.batch, input_tokens + output_tokens / 2))


def is_simulated(row: Measurement) -> bool:
    """Runs of an engine whose users, rate or arrivals are known; others are a queue that never empties."""
    if row.engine is None or row.mode in (Mode.decode_step, Mode.prefill_step, Mode.fixed_batch):
        return False
    closed = row.batch is not None and row.mode is not Mode.max_throughput
    return closed or row.rate is not None or bool(row.run.arrival_s) or _is_queue(row)


def _is_queue(row: Measurement) -> bool:
    """Whether so many requests wait at once when the run begins, and it ends with the last of them."""
    known = row.rate is not None or bool(row.run.arrival_s)
    return row.mode is Mode.max_throughput and row.run.requests is not None and not known


def _simulated(row: Measurement, steps: StepModel, input_tokens: int, output_tokens: int) -> float:
    facts, users = row.run, row.batch if row.rate is None else None
    told = _recipe(steps.deployment) if row.tuned else Recipe()
    if facts.max_batched_tokens is None:
        facts = facts.model_copy(update={"max_batched_tokens": told.chunk})
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
        waits = told.wait_steps(row.batch or 1, output_tokens, steps.deployment.dp)
        figure += waits * figures.get((Metric.tpot_s, Statistic.mean), 0.0)
    return figure


def steady_of(row: Measurement, curve: ReplicaCurve) -> Steady:
    """A replica under the load of a row; what comes beyond its capacity is not served."""
    if row.rate is not None:
        capacity = curve.capacity()
        return curve.at_rate(min(row.rate, capacity.rate), capacity)
    return curve.saturated() if row.batch is None else curve.at_concurrency(row.batch)


@lru_cache(maxsize=8)
def replica_curve(
    steps: StepModel, input_tokens: int, output_tokens: int, most: int | None, cached_tokens: float = 0.0
) -> ReplicaCurve:
    """The steady states of one replica; kept for a moment, as the figures of a run are all of one curve.

    ``cached_tokens`` of each prompt come beside its input: answers attend to them, and requests share their memory.
    """
    require_fit(steps.deployment, input_tokens + output_tokens)
    held = input_tokens + output_tokens / 2
    return ReplicaCurve(
        steps.deployment, input_tokens, output_tokens, steps=steps, most_sequences=most,
        context_tokens=held + cached_tokens, held_tokens=held,
    )  # fmt: skip


def most_sequences(row: Measurement) -> int | None:
    """Benchmarks raise the engine's limit to the load they make."""
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


_GROUPS: dict[str, Callable[[Measurement], str]] = {
    "metric": lambda row: row.figure if row.engine else f"{row.mode}",
    "gpu": lambda row: find_gpu(row.gpu).key,
    "engine": lambda row: f"{row.engine or 'bare'} {row.year}",
    "model": lambda row: "MoE" if model_named(row.model).is_moe else "dense",
    "source": lambda row: row.source,
}


def _grouped(predictions: Iterable[ScoredPrediction], key: Callable[[Measurement], str]) -> dict[str, ErrorSummary]:
    members: dict[str, list[ScoredPrediction]] = defaultdict(list)
    for prediction in predictions:
        members[key(prediction.measurement)].append(prediction)
    return {name: summary(group) for name, group in sorted(members.items())}


def _ranking(predictions: Iterable[ScoredPrediction]) -> RankingScore:
    """Spearman's rank correlation of predicted and measured, within what differs only in its GPUs."""
    alike: dict[tuple[object, ...], list[ScoredPrediction]] = defaultdict(list)
    for prediction in predictions:
        row = prediction.measurement
        if row.metric is not Metric.ttft_s:  # in a closed loop the wait for the others' prompts, not the GPU's speed
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
    """Spearman's rank correlation; equal values share the mean of their ranks."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(low < value for low in values) + (values.count(value) + 1) / 2 for value in values]

    return statistics.correlation(ranks(one), ranks(other))


def deployment_of(row: Measurement) -> Deployment | None:
    """What a row ran on, where we know all of it."""
    with suppress(TokonomicsError):
        return steps_of(row).deployment
    return None
