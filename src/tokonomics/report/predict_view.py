"""Show what fits a GPU's memory, how long a step takes, and what batching gains."""

from collections.abc import Callable, Iterator
from functools import partial

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import option
from tokonomics.physics.calibration import Coverage
from tokonomics.physics.intervals import Interval
from tokonomics.physics.memory import Fit
from tokonomics.planner.predict import BatchCurve, FasterLayout, Prediction
from tokonomics.questions.predict import CurveResult, FitResult, PredictResult
from tokonomics.questions.request import Request
from tokonomics.questions.requests.buy import CurveRequest
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import ENCODER_SPEED, TOWER_SPEED, datasheet_text, marked_old
from tokonomics.types import Speed
from tokonomics.units import gigabytes, percent, plural, seconds, usd

_ORIGINS = {
    Speed.timed: "kernels timed on this GPU in this precision",
    Speed.scaled: "kernels timed on this or a related GPU, scaled by layout and datasheets",
    Speed.assumed: "this GPU family or this precision was not timed: an extrapolation by the datasheet, wider interval",
}
_PROFILED = {
    Coverage.measured: "calibrated on this layout",
    Coverage.carried_over: "corrected as the nearest layout that was measured, where that is slower",
    Coverage.not_covered: "another GPU, engine or model: as without the profile",
}
_IMAGES_TOO = f"kernel timings by the datasheets; a vision tower {TOWER_SPEED}"
_LAUNCHES = (
    "Bound by the host: it launches the prompt's kernels more slowly than the GPU runs them; a prompt somewhat shorter "
    "or longer takes as long."
)
_STEP_COLOURS: dict[str, blocks.Colour] = {
    "weights": "blue", "KV": "green", "compute": "magenta", "communication": "yellow", "overhead": "grey",
}  # fmt: skip


def fit(result: FitResult, request: Request) -> Answer:
    """Show how a GPU's memory is used."""
    return Answer(result, f"Does {result.model} fit {result.gpu}?", partial(_fit, result.memory))


def predict(result: PredictResult, request: Request) -> Answer:
    """Show the step, its interval, and where the time goes."""
    return Answer(result, f"A step of {result.deployment}", partial(_prediction, result))


def curve(result: CurveResult, request: CurveRequest) -> Answer:
    """Show the gain from batching: throughput rises, each sequence slows down, until the KV cache is full."""
    drawn = {"What batching buys": lambda: charts.traffic.curve_chart(result)}
    return Answer(result, f"Batching on {result.deployment}", partial(_curve, result, result.slo_tpot_s), drawn)


def _fit(fit: Fit) -> blocks.View:
    deployment = fit.deployment
    engine, limits, encoder = deployment.engine, deployment.limits, deployment.model.is_encoder
    held = fit.weight_bytes_per_gpu + fit.workspace_bytes + fit.kv_budget_bytes
    smallest = plural(fit.min_gpus, "GPU") if fit.min_gpus else "none"
    split = f"{fit.min_layout}; " if fit.min_gpus and fit.min_gpus > 1 else ""
    if fit.fits:
        holds = f": {deployment} holds {plural(fit.max_sequences, 'sequence')} of {fit.context:,} tokens"
        yield blocks.headline("fits", holds)
    else:
        need = f"needs {smallest} ({fit.min_layout})" if fit.min_gpus else "no number of these GPUs is enough"
        yield blocks.headline("does not fit", f": {deployment}; {need}", "worst")
    short = f"{gigabytes(fit.shortfall_bytes)} more than {engine.key} may use of one GPU"
    yield blocks.section(
        blocks.bar(
            [
                ("weights", fit.weight_bytes_per_gpu, "blue"),
                ("workspace", fit.workspace_bytes, "magenta"),
                ("activations" if encoder else "KV cache", fit.kv_budget_bytes, "green"),
                ("not used", fit.memory_bytes - held, "grey"),
            ],
            gigabytes,
        ),
        blocks.line(short, kind="bad") if fit.shortfall_bytes else None,
    )
    weights = f"{deployment.weights}; {gigabytes(fit.weight_bytes_per_gpu)} on each GPU"
    loras = f"{plural(deployment.lora_adapters, 'adapter')}, " if deployment.lora_adapters else ""
    logits = "" if encoder else " or logits"
    workspace = (
        f"each GPU: {loras}activations of {deployment.group_limits.max_batched_tokens:,} tokens{logits}, runtime"
    )
    budget = f"each GPU: {gigabytes(fit.usable_bytes)} to share out; {engine.memory_text(deployment.gpu)}"
    batch = f"in memory; {engine.key} runs {limits.max_sequences:,} at once unless told otherwise"
    yield blocks.facts(
        ("weights", gigabytes(fit.weight_bytes), weights),
        ("workspace", gigabytes(fit.workspace_bytes), workspace),
        ("left" if encoder else "KV budget", gigabytes(fit.kv_budget_bytes), budget),
        *(_activations(fit) if encoder else _kept(fit)),
        blocks.fact("largest batch", f"{fit.max_sequences:,}", batch, number=fit.max_sequences, less="worse"),
        ("smallest that fits", smallest, f"{split}{deployment.gpu.name}"),
        _share(deployment.gpu),
    )
    for line in _replaced(fit):
        yield blocks.note(line)
    if source := datasheet_text(deployment.gpu, Speed.timed if deployment.gpu.vendor == "nvidia" else Speed.assumed):
        yield blocks.note(source)


def _replaced(fit: Fit) -> Iterator[str]:
    """Say what of the checkpoint's formats the engine does not use on this GPU."""
    deployment = fit.deployment
    model, engine, gpu = deployment.model, deployment.engine, deployment.gpu
    if engine.converts.get(model.served) is deployment.weights:
        yield f"{engine.key} reads {model.served} checkpoints as {deployment.weights}"
    hardware = engine.hardware_of(gpu.architecture)
    if hardware and model.kv_served not in hardware.kv:
        kept = f"{engine.key} keeps no KV cache in {model.kv_served} on {gpu.key}"
        yield f"{kept}, which the checkpoint is published for: counted in {deployment.kv}"


def _share(gpu: Gpu) -> blocks.Fact | None:
    """Say how much of a memory that CPU and GPU share the GPU may take; nothing if the GPU has its own."""
    if not gpu.unified_memory:
        return None
    share = percent(gpu.usable_bytes / gpu.memory_bytes)
    return blocks.fact("memory", gigabytes(gpu.usable_bytes), f"{share} of what it shares with the CPU")


def _kept(fit: Fit) -> Iterator[blocks.Fact]:
    """Show what a sequence takes: for every token, at any length, and both on one GPU."""
    deployment = fit.deployment
    model = deployment.model
    own = ", the checkpoint's own" if deployment.kv is model.kv_checkpoint else ""
    yield blocks.fact("KV per token", f"{fit.kv_bytes_per_token:,} B", f"the whole model in {deployment.kv}{own}")
    if fit.kv_constant_bytes:
        held = f"the whole model, of a sequence of any length: {_constant(model)}"
        yield blocks.fact("KV constant", gigabytes(fit.kv_constant_bytes), held)
    copied = deployment.tp > 1 and any(cache.heads < deployment.tp for _, cache in model.caches)
    each = f"each GPU{', which holds copies' if copied else ''}: {fit.context:,} tokens"
    in_blocks = f"{each} in blocks of {deployment.engine.kv_block_tokens}"
    yield blocks.fact("KV per sequence", gigabytes(fit.kv_bytes_per_sequence), in_blocks)


def _constant(model: ModelSpec) -> str:
    """Name what does not grow with a sequence: ``windows of 128 tokens once full``, ``recurrent states``."""
    windows = " and ".join(f"{window:,}" for window in model.windows)
    kinds = [f"windows of {windows} tokens once full"] if windows else []
    return ", ".join([*kinds, "recurrent states"] if model.state_bytes else kinds)


def _activations(fit: Fit) -> Iterator[blocks.Fact]:
    """Say how much of an encoder's memory a sequence takes."""
    yield blocks.fact("KV cache", "none", "an encoder reads a prompt once and keeps nothing")
    each = f"each GPU: activations of {fit.context:,} tokens"
    yield blocks.fact("a sequence", gigabytes(fit.kv_bytes_per_sequence), each)


def _prediction(made: PredictResult) -> blocks.View:
    if made.decode_step_s is None or made.parts is None:
        yield from _encoded(made)
        return
    step = seconds(made.decode_step_s.mid)
    what = f"{made.batch:,} × {made.context:,} tokens: {made.deployment}, {made.engine}"
    yield blocks.headline(step, f" per decode step of {what}")
    sizes = made.parts.weights_s, made.parts.kv_s, made.parts.compute_s, made.parts.communication_s
    parts = zip(_STEP_COLOURS, (*sizes, made.parts.overhead_s), _STEP_COLOURS.values(), strict=True)
    yield blocks.bar(parts, seconds)
    bound = "; bound by the host" if made.prompt_bound == "host" else ""
    tokens = _range(made.tokens_per_s, lambda rate: f"{rate:,.0f}/s")
    read = made.context + (made.images.tokens if made.images else 0)
    prompt = f"{_range(made.prefill_s, seconds)}; {read:,} tokens, alone{bound}"
    first = f"{_range(made.ttft_s, seconds)}; TTFT of that prompt, server idle"
    ttft, rate = made.ttft_s.mid, made.tokens_per_s.mid
    yield blocks.facts(
        ("decode step", step, _range(made.decode_step_s, seconds), made.decode_step_s.mid),
        blocks.fact("output tokens", f"{rate:,.0f}/s", tokens, number=rate, less="worse"),
        ("prompt step", seconds(made.prefill_s.mid), prompt, made.prefill_s.mid),
        ("first token", seconds(ttft), first, ttft),
        ("first answer token", seconds(answer.mid), f"{_range(answer, seconds)}; behind the thinking", answer.mid)
        if (answer := made.first_answer_s)
        else None,
        ("images", f"{images.tokens:,} tokens", f"in every prompt ({images.text})")
        if (images := made.images)
        else None,
        ("KV limit", f"{made.max_sequences:,}", "sequences of this context in memory"),
        blocks.fact("network", *made.network.split(", ", 1)) if made.network else None,
        ("speed from", made.speed.value, _IMAGES_TOO if made.images else _ORIGINS[made.speed]),
        _profile(made),
    )
    yield _faster(made.faster, f"with as many sequences in all, {made.batch:,}")
    yield blocks.note(
        "Ranges hold four of five measurements of this kind (`tokonomics calibrate --score`).",
        _LAUNCHES if made.prompt_bound == "host" else "",
        datasheet_text(find_gpu(made.gpu), made.speed),
    )


def _encoded(made: Prediction) -> blocks.View:
    """Show an encoder: a step of prompts, and nothing after it."""
    rates, tokens = made.requests_per_s, made.tokens_per_s
    bound = "; bound by the host" if made.prompt_bound == "host" else ""
    what = f"{made.batch:,} × {made.context:,} tokens at once: {made.deployment}, {made.engine}"
    yield blocks.headline(f"{tokens.mid:,.0f} tokens/s", f" with {what}")
    rate = None
    if rates:
        rate = blocks.fact("requests", f"{rates.mid:,.1f}/s", _range(rates, _rate), number=rates.mid, less="worse")
    speed = blocks.fact("tokens", f"{tokens.mid:,.0f}/s", _range(tokens, _rate), number=tokens.mid, less="worse")
    alone = f"{_range(made.prefill_s, seconds)}; {made.context:,} tokens{bound}"
    answer = f"{_range(made.ttft_s, seconds)}; of that prompt, server idle"
    yield blocks.facts(
        rate,
        speed,
        ("prompt alone", seconds(made.prefill_s.mid), alone, made.prefill_s.mid),
        ("client waits", seconds(made.ttft_s.mid), answer, made.ttft_s.mid),
        ("memory limit", f"{made.max_sequences:,}", "sequences of this length computed at once; no KV cache is kept"),
        ("speed from", made.speed.value, ENCODER_SPEED),
        _profile(made),
    )
    yield blocks.note(
        "An encoder writes no tokens: there is no time per token. Ranges are those of prompts of models that write; no",
        "encoder was measured.",
        _LAUNCHES if made.prompt_bound == "host" else "",
    )


def _profile(made: Prediction) -> blocks.Fact | None:
    return blocks.fact("profile", made.profiled.value, _PROFILED[made.profiled]) if made.profiled else None


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _faster(layout: FasterLayout | None, when: str) -> blocks.Line | None:
    """Show another layout of the same GPUs, with the flags to type."""
    if layout is None:
        return None
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "ep", "dp")}
    flags = " ".join(option(name, degree) for name, degree in degrees.items() if degree > 1 or name == "tp")
    copies = f", {layout.replicas} replicas of batch {layout.batch:,}" if layout.replicas > 1 else ""
    speed = f"{layout.tokens_per_s:,.0f} output tokens/s {when} ({layout.times:.2g} × as many)"
    return blocks.hint(f"Another layout of the same GPUs writes more: {flags}{copies}: {speed}.")


def _range(interval: Interval, text: Callable[[float], str]) -> str:
    return f"{text(interval.low)} to {text(interval.high)}"


def _curve(curve: CurveResult, tpot_s: float | None) -> blocks.View:
    best, why = _largest(curve, tpot_s)
    alone, last = curve.points[0], curve.points[best]
    at = f" at batch {last.batch:,}, {why}: {curve.deployment}, context {curve.context:,}{marked_old(curve.price_from)}"
    rate, price = last.tokens_per_s, last.usd_per_mtok
    yield blocks.headline(f"{usd(price)} per million output tokens" if price else f"{rate:,.0f} output tokens/s", at)
    engine = f"; the engine runs {curve.engine_sequences:,} at once unless told otherwise"
    memory = f"sequences of {curve.context:,} tokens{engine if curve.engine_sequences < curve.max_sequences else ''}"
    slower = f"{last.tpot_s / alone.tpot_s:.2g} × that of one sequence"
    linear = "of what the batch would give if steps stayed as short"
    full = f"at {usd(curve.usd_per_hour)} an hour ({curve.price_from}), at full use" if curve.usd_per_hour else ""
    yield blocks.facts(
        blocks.fact("KV limit", f"{curve.max_sequences:,}", memory, number=curve.max_sequences, less="worse"),
        blocks.fact("output", f"{rate:,.0f} tok/s", "all sequences together", number=rate, less="worse"),
        ("TPOT", seconds(last.tpot_s), slower, last.tpot_s),
        ("per Mtok of output", usd(price), full, price) if price else None,
        ("of linear", percent(last.share_of_linear), linear),
    )
    columns = [">batch", ">TPOT", ">tok/s", ">of linear", *([">$/Mtok out"] if price else [])]
    rows = [
        [f"{point.batch:,}", seconds(point.tpot_s), f"{point.tokens_per_s:,.0f}", percent(point.share_of_linear)]
        + ([usd(point.usd_per_mtok)] if point.usd_per_mtok is not None else [])
        for point in curve.points
    ]
    yield blocks.table(columns, rows, best=best)
    yield _faster(curve.faster, "within the SLO" if tpot_s else "with its batches full")
    yield blocks.hint(_next(curve))
    yield blocks.note(
        "of linear: throughput ÷ (batch × that of one sequence). Weights are shared by the batch, KV is not."
    )


def _largest(curve: BatchCurve, tpot_s: float | None) -> tuple[int, str]:
    """Return the index of the largest batch that is fast enough, and why no larger one is chosen."""
    end = len(curve.points) - 1
    if tpot_s is None:
        return end, "where memory is full"
    limit = f"the SLO of {seconds(tpot_s)} per token"
    met = [place for place, point in enumerate(curve.points) if point.tpot_s <= tpot_s]
    if not met:
        return 0, f"which misses {limit}"
    return met[-1], f"the largest listed that meets {limit}" if met[-1] < end else "where memory is full"


def _next(curve: BatchCurve) -> str:
    alone, last = curve.points[0], curve.points[-1]
    if not alone.usd_per_mtok or not last.usd_per_mtok:
        return f"No price is known for this GPU: give {option('usd_per_hour')}."
    times = f"{alone.usd_per_mtok / last.usd_per_mtok:.2g}"
    return (
        f"Alone in the batch the same tokens cost {times} times as much: keep the batch full. "
        "`tokonomics simulate` shows the batch that your requests reach."
    )
