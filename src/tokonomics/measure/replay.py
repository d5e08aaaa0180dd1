"""Compare the simulator with a real engine: the same arrivals and lengths, with step times fitted on other runs.

Both sides are read in the same way: TTFT = first token − arrival, TPOT = (last − first token) ÷ (output tokens − 1),
end to end = last token − arrival, output tokens a second = all output tokens ÷ (last answer − first arrival). A run is
never predicted from its own steps, under whatever name and in whichever log they are.

A few constants of its GPU and its host describe how long the engine's steps take. A step without prompts is a CUDA
graph: a base, a time for each row of the padded batch and one for each token of KV cache read. A step with prompts is
launched kernel by kernel, so it takes the longer of two: the host (a step, and more for each prompt) and the GPU (a
pass, tokens, pairs of prompt tokens, and the running sequences, whose attention costs the same as without prompts).
Both are least squares of the relative error with far outliers damped, in numpy.

The mean is fitted, not the median, because times of requests are sums of steps, including slow ones. Attention of the
running sequences is taken from the steps without prompts. The others cannot show it in a closed loop, where the batch
grows while the steps stay full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.measure.engine_log import Array, EngineLog, EngineRun, prompts_of_steps
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.loop import run as serve
from tokonomics.serving.state import Requests, Rules
from tokonomics.serving.step_table import StepTable, context_points, prompt_axes
from tokonomics.types import Noun

ROW_KNOTS = (32, 128)
"""Rows at which the price of one more changes: below, kernels are launch-bound; above 128, matrices stop being free
(bare steps of Llama-3.1-8B without attention on an H200: 4.8 ms at 32, 5.3 ms at 128, 7.7 ms at 256 rows)."""
_FAR_DECODE, _FAR_PROMPT = 0.03, 0.3
"""Relative errors from which a step counts less. Graphs repeat within 2 %; the host's slow periods (up to twice the
usual time) are part of what requests wait for."""
_BUSY_GAP_S = 1e-3  # the scheduler's pause between steps is below 0.2 ms in the logs seen; longer is waiting for work
_FEW = 20  # with fewer host-bound steps the host's time is a guess
_ROUNDS = 200
_SLIGHT = 1e-3  # weight of an assumption, relative to one for each step
_NO_PAIRS_S = 1e-15  # time of attention that the fit finds to be zero: the table keeps logarithms


@dataclass(frozen=True)
class Steps:
    """Steps of several runs, concatenated; ``seconds`` is until the next can start."""

    seconds: Array
    decodes: Array
    rows: Array  # the padded batch
    kv_tokens: Array
    prompt_tokens: Array
    prompts: Array
    pairs: Array

    def where(self, chosen: NDArray[np.bool_]) -> "Steps":
        return Steps(*(var[chosen] for var in vars(self).values()))


class StepFit(Noun):
    """The fitted constants, in seconds."""

    decode_step_s: float
    row_s: tuple[float, ...]  # for one more row, up to each of ``ROW_KNOTS`` and beyond
    kv_token_s: float
    host_step_s: float
    host_prompt_s: float
    pass_s: float
    token_s: float
    pair_s: float
    decoding_s: float  # once, if sequences decode together with the prompts
    sequence_s: float  # for each of those, without its KV cache
    decode_steps: int
    prompt_steps: int
    host_bound_steps: int
    decode_error: float  # median size of the relative error, like ``prompt_error``
    prompt_error: float
    host_is_guessed: bool  # too few steps waited for the host to know its time

    def decode_s(self, rows: Array, kv_tokens: Array) -> Array:
        """Return the time of steps without prompts, by the padded batch."""
        return cast(Array, self.decode_step_s + _row_parts(rows) @ np.array(self.row_s) + self.kv_token_s * kv_tokens)

    def attention_s(self, decodes: Array, kv_tokens: Array) -> Array:
        """Return what the running sequences add to a step with prompts."""
        added = self.decoding_s + self.sequence_s * decodes + self.kv_token_s * kv_tokens
        return np.where(decodes > 0, added, 0.0)

    def prompt_step_s(self, steps: Steps) -> Array:
        host = self.host_step_s + self.host_prompt_s * steps.prompts
        gpu = self.pass_s + self.token_s * (steps.decodes + steps.prompt_tokens) + self.pair_s * steps.pairs
        return np.maximum(host, gpu + self.attention_s(steps.decodes, steps.kv_tokens))


def steps_of(log: EngineLog, names: Sequence[str], where: str) -> Steps:
    """Return the steps of some runs; the scheduler's pause after a step belongs to it."""
    parts = []
    for name in names:
        run = log.runs[name]
        prompts = prompts_of_steps(run, f"{where}: run {name}")
        pause = np.append(run.start_s[1:] - run.start_s[:-1] - run.duration_s[:-1], 0.0)
        pause[(pause < 0) | (pause > _BUSY_GAP_S)] = 0.0
        rows = np.where(run.prompt_tokens > 0, run.decodes, log.padded(run.decodes))
        parts.append((run.duration_s + pause, run.decodes, rows, run.kv_tokens, run.prompt_tokens, prompts, run.pairs))
    return Steps(*(np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True)))


def fit_steps(log: EngineLog, names: Sequence[str], where: str) -> StepFit:
    steps = steps_of(log, names, where)
    alone, mixed = steps.where(steps.prompt_tokens == 0), steps.where(steps.prompt_tokens > 0)
    if len(alone.seconds) < len(ROW_KNOTS) + 3 or len(mixed.seconds) < 6:
        counts = f"{len(alone.seconds)} steps without prompts and {len(mixed.seconds)} with"
        fix = f"Name more runs with {option('fit_on')}, or a log that has them with {option('steps_from')}."
        raise BadInput(f"{counts}: too few to fit step times on", where=where, fix=fix)
    decode_step_s, row_s, kv_token_s = _fit_decode(alone)
    sequence_s = row_s[1]
    known = np.where(mixed.decodes > 0, sequence_s * mixed.decodes + kv_token_s * mixed.kv_tokens, 0.0)
    host, gpu = _fit_longer(mixed, known)
    fit = StepFit(
        decode_step_s=decode_step_s, row_s=row_s, kv_token_s=kv_token_s, host_step_s=host[0], host_prompt_s=host[1],
        pass_s=gpu[0], token_s=gpu[1], pair_s=gpu[2], decoding_s=gpu[3], sequence_s=sequence_s,
        decode_steps=len(alone.seconds), prompt_steps=len(mixed.seconds), host_bound_steps=0, decode_error=0.0,
        prompt_error=0.0, host_is_guessed=True,
    )  # fmt: skip
    host_s = fit.host_step_s + fit.host_prompt_s * mixed.prompts
    prompt_s, decode_s = fit.prompt_step_s(mixed), fit.decode_s(alone.rows, alone.kv_tokens)
    host_bound = int((host_s >= prompt_s).sum())
    errors = {
        "decode_error": float(np.median(np.abs(decode_s / alone.seconds - 1))),
        "prompt_error": float(np.median(np.abs(prompt_s / mixed.seconds - 1))),
    }
    bound = {"host_bound_steps": host_bound, "host_is_guessed": host_bound < _FEW}
    return fit.model_copy(update=errors | bound)


def fitted_table(fit: StepFit, log: EngineLog, most_context: int) -> StepTable:
    """Return the constants in the form that the simulator reads."""
    contexts = context_points(most_context)
    batches = np.arange(log.max_sequences + 1)
    kv_tokens = batches[:, None] * contexts
    padded = log.padded(np.maximum(batches, 1)).astype(np.float64)
    decode_s = fit.decode_s(padded, np.zeros(len(batches)))[:, None] + fit.kv_token_s * kv_tokens
    prompts, chunks, past = prompt_axes(log.max_sequences, log.max_batched_tokens, most_context)
    pairs = prompts[:, None, None] * chunks[:, None] * (past + 0.5 * (chunks[:, None] + 1))
    return StepTable(
        tokens_s=fit.pass_s + fit.token_s * np.arange(log.max_batched_tokens + log.max_sequences + 2, dtype=np.float64),
        shared_s=np.zeros(log.max_batched_tokens + log.max_sequences + 2),
        head_s=np.zeros(2 * log.max_sequences + 2), decode_s=np.where(batches[:, None] > 0, decode_s, 0.0),
        attention_s=fit.attention_s(np.broadcast_to(batches[:, None], kv_tokens.shape).astype(np.float64), kv_tokens),
        beside_s=np.zeros(len(batches)),
        cool_s=np.zeros(log.max_batched_tokens + log.max_sequences + 2),
        prompt_log_s=np.log(np.maximum(fit.pair_s * pairs, _NO_PAIRS_S)),
        launch_s=np.full(log.max_batched_tokens + log.max_sequences + 2, fit.host_step_s),
        launch_prompt_s=fit.host_prompt_s, host_step_s=0.0, host_sequence_s=0.0, ahead=False, request_s=0.0,
        token_s=0.0, reach_s=0.0, answer_s=0.0, stages=1, groups=1, aligned=False,
    )  # fmt: skip


def _fit_decode(steps: Steps) -> tuple[float, tuple[float, ...], float]:
    """Fit base, rows and KV tokens of steps without prompts.

    Batches count by the root of their number, so that the most frequent one does not decide. Rows and their KV cache
    grow together in most logs: the sum of the two prices is reliable, each one alone is less so.
    """
    _, place, count = np.unique(steps.rows, return_inverse=True, return_counts=True)
    parts = np.column_stack([np.ones(len(steps.rows)), _row_parts(steps.rows), steps.kv_tokens])
    # A range of batches that is not in the log is priced like the one before it.
    alike = np.diff(np.eye(parts.shape[1]), axis=0)[1:-1]
    found = _least_squares(parts, steps.seconds, 1 / np.sqrt(count[place]), _FAR_DECODE, alike)
    base_s, *row_s, kv_token_s = found.tolist()
    return base_s, tuple(row_s), kv_token_s


def _fit_longer(steps: Steps, known: Array) -> tuple[list[float], list[float]]:
    """Fit host and GPU of steps with prompts, of which the longer counts.

    Each step tells about the one that bound it, by the constants so far. From a first guess (short steps wait for the
    host) both are fitted again, moving half way each time so that steps at the border do not flip for ever.
    """
    tokens = steps.decodes + steps.prompt_tokens
    one = np.ones(len(tokens))
    of_host = np.column_stack([one, steps.prompts])
    of_gpu = np.column_stack([one, tokens, steps.pairs, steps.decodes > 0])
    # If the steps cannot separate constants, prompts cost the host nothing and tokens explain the GPU.
    small_host, small_gpu = np.diag(of_host.max(axis=0))[1:], np.diag(of_gpu.max(axis=0))[[0, 2, 3]]
    by_host = tokens < 0.4 * tokens.max()
    host, gpu = np.zeros(of_host.shape[1]), np.zeros(of_gpu.shape[1])
    for turn in range(_ROUNDS):
        share = 1.0 if turn == 0 else 0.5
        if by_host.any():
            found = _least_squares(of_host[by_host], steps.seconds[by_host], small=small_host)
            host = host + share * (found - host)
        if not by_host.all():
            rest = ~by_host
            found = _least_squares(of_gpu[rest], steps.seconds[rest], small=small_gpu, known=known[rest])
            gpu = gpu + share * (found - gpu)
        before, by_host = by_host, of_host @ host >= of_gpu @ gpu + known
        if turn > 20 and (before == by_host).all():
            break
    return host.tolist(), gpu.tolist()


def _least_squares(
    parts: Array,
    seconds: Array,
    weight: Array | None = None,
    far: float = _FAR_PROMPT,
    small: Array | None = None,
    known: Array | None = None,
) -> Array:
    """Return constants ≥ 0 with the least squares of the error relative to the prediction; far errors count less.

    The error is not relative to the measurement, which would favour constants that are too small. ``small`` are sums of
    constants that should be about zero unless the steps say otherwise.
    """
    base = np.zeros(len(seconds)) if known is None else known
    start = np.ones(len(seconds)) if weight is None else weight
    size = np.abs(parts).max(axis=0)
    size[size == 0] = 1.0
    scaled = parts / size
    predicted, kept = seconds, np.ones(len(seconds))
    found = np.zeros(parts.shape[1])
    for _ in range(15):
        root = np.sqrt(start * kept) / predicted
        rows, goal = scaled * root[:, None], (seconds - base) * root
        if small is not None:
            rows = np.vstack([rows, _SLIGHT * small / size / np.median(seconds)])
            goal = np.append(goal, np.zeros(len(small)))
        found = _nonnegative(rows, goal)
        predicted = np.maximum(scaled @ found + base, 0.1 * seconds)
        error = np.abs(seconds / predicted - 1)
        kept = far / np.maximum(error, far)
    return cast(Array, found / size)


def _nonnegative(rows: Array, goal: Array) -> Array:
    """Solve least squares with no constant below zero: drop the most negative one until there is none."""
    free = np.ones(rows.shape[1], dtype=bool)
    while True:
        found = np.zeros(rows.shape[1])
        found[free] = np.linalg.lstsq(rows[:, free], goal, rcond=1e-10)[0]
        if (found >= 0).all():
            return found
        free[np.argmin(found)] = False


def _row_parts(rows: Array) -> Array:
    """Return rows below, between and above the knots."""
    edges = (0, *ROW_KNOTS, np.inf)
    return np.stack([np.clip(rows - low, 0, high - low) for low, high in pairwise(edges)], axis=-1)


FIT_ON = ("closed-*", "poisson-16")
"""Runs whose steps are fitted by default if a log has both: batches up to the engine's limit, and prompts of many
lengths at a load at which the host limits."""
_BLOCK_TOKENS = 16


class Figure(StrEnum):
    """What a run is compared by; times in seconds."""

    output_tok_s = "output_tok_s"
    ttft_p50_s = "ttft_p50_s"
    ttft_p90_s = "ttft_p90_s"
    ttft_p99_s = "ttft_p99_s"
    tpot_p50_s = "tpot_p50_s"
    tpot_p90_s = "tpot_p90_s"
    tpot_p99_s = "tpot_p99_s"
    e2e_p50_s = "e2e_p50_s"


class ReplayComparison(Noun):
    measured: float
    predicted: float
    error: float  # relative; positive: we predict too much


class ReplayedRun(Noun):
    """A run, the runs it was predicted from, and the result."""

    run: str
    requests: int
    fitted_on: tuple[str, ...]
    fit: StepFit
    figures: dict[Figure, ReplayComparison | None]  # None if no request has it: answers of one token have no TPOT


class Replay(Noun):
    gpu: str
    model: str
    runs: tuple[ReplayedRun, ...]


def replay(
    log: EngineLog, where: str, fit_on: Sequence[str] | None = None, source: EngineLog | None = None, of: str = ""
) -> Replay:
    """Predict the runs of a log.

    ``fit_on`` names the runs whose steps are fitted (``*`` for any letters) and ``source`` another log to take them
    from, with the name ``of``. Without either, ``FIT_ON`` is used if the log has both; else each run is predicted from
    all others.
    """
    steps, of = (source, of) if source else (log, where)
    chosen = _chosen(steps, fit_on, of, everything=source is not None)
    wanted = [name for name in log.runs if chosen is None or source is not None or name not in chosen]
    if not wanted:
        raise BadInput("there is no run left to predict", where=where, fix=f"Name fewer runs with {option('fit_on')}.")
    fitting = [name for name, run in log.runs.items() if run.steps] if chosen is None else chosen
    plans = {name: tuple(other for other in fitting if not _same(log.runs[name], steps.runs[other])) for name in wanted}
    for name, fitted in plans.items():
        if not fitted:
            others = f"{option('fit_on')}, or a log of other runs of the same engine with {option('steps_from')}"
            place = f"{where}: run {shorten(name)}"
            raise BadInput("there is no other run to fit step times on", where=place, fix=f"Name others with {others}.")
    fits = {fitted: fit_steps(steps, fitted, of) for fitted in plans.values()}
    runs = tuple(_replayed(log, name, fitted, fits[fitted]) for name, fitted in plans.items())
    return Replay(gpu=log.gpu, model=log.model, runs=runs)


def simulate(log: EngineLog, run: EngineRun, fit: StepFit) -> tuple[Array, Array]:
    """Return when each request of a run gets its first and its last token."""
    count = len(run.arrival_s)
    longest = int((run.input_tokens + run.output_tokens).max())
    blocks = log.max_sequences * (longest // _BLOCK_TOKENS + 1)  # not in the log; the engine never ran out
    served, _ = serve(
        Requests(
            arrival_s=run.arrival_s - run.arrival_s[0],
            input_tokens=run.input_tokens.astype(np.int32),
            output_tokens=run.output_tokens.astype(np.int32),
            urgency=np.zeros(count, np.int32),
            deadline_s=np.full(count, np.inf),
            unit_ids=np.empty(0, np.int32),
            unit_starts=np.zeros(count + 1, np.int64),
            unit_ends=np.empty(0, np.int32),
            prefilled=False,
        ),
        fitted_table(fit, log, longest),
        Rules(
            max_sequences=log.max_sequences,
            max_batched_tokens=log.max_batched_tokens,
            mixes=True,
            chunks=True,
            reserves=False,
            block_tokens=_BLOCK_TOKENS,
            kv_blocks=blocks,
            fixed_blocks=0,
            caches=False,
            max_context=longest,
        ),
        FleetSettings(),
    )
    return served.first_token_s + run.arrival_s[0], served.finish_s + run.arrival_s[0]


def figures_of(run: EngineRun, first_s: Array, last_s: Array) -> dict[Figure, float | None]:
    """Return the figures of a run whose requests got their first and last tokens at those times.

    Requests that the engine did not answer are left out, on both sides.
    """
    done = np.isfinite(run.first_token_s) & np.isfinite(run.last_token_s)
    arrival, first, last, output = run.arrival_s[done], first_s[done], last_s[done], run.output_tokens[done]
    several = output > 1
    tpot = (last - first)[several] / (output[several] - 1)
    waits = {"ttft": first - arrival, "tpot": tpot, "e2e": last - arrival}
    figures: dict[Figure, float | None] = {Figure.output_tok_s: float(output.sum() / (last.max() - arrival.min()))}
    for figure in list(Figure)[1:]:
        name, rank, _ = figure.split("_")
        values = waits[name]
        figures[figure] = float(np.quantile(values, int(rank[1:]) / 100)) if len(values) else None
    return figures


def _replayed(log: EngineLog, name: str, fitted_on: tuple[str, ...], fit: StepFit) -> ReplayedRun:
    run = log.runs[name]
    measured = figures_of(run, run.first_token_s, run.last_token_s)
    predicted = figures_of(run, *simulate(log, run, fit))
    figures: dict[Figure, ReplayComparison | None] = {}
    for figure in Figure:
        was, said, figures[figure] = measured[figure], predicted[figure], None
        if was and said is not None:
            figures[figure] = ReplayComparison(measured=was, predicted=said, error=said / was - 1)
    return ReplayedRun(run=name, requests=len(run.arrival_s), fitted_on=fitted_on, fit=fit, figures=figures)


def _chosen(log: EngineLog, fit_on: Sequence[str] | None, where: str, *, everything: bool) -> tuple[str, ...] | None:
    """Return the runs to fit on; None: each run from the others."""
    if fit_on is None:
        matched = [[name for name in log.runs if fnmatchcase(name, pattern)] for pattern in FIT_ON]
        if all(matched):
            return tuple(name for name in log.runs if any(name in names for names in matched))
        return tuple(name for name, run in log.runs.items() if run.steps) if everything else None
    for pattern in fit_on:
        if not any(fnmatchcase(name, pattern) for name in log.runs):
            raise UnknownName("run", pattern, log.runs, fix=f"{where} has: {shorten(', '.join(log.runs), 300)}.")
    return tuple(name for name in log.runs if any(fnmatchcase(name, pattern) for pattern in fit_on))


def _same(one: EngineRun, other: EngineRun) -> bool:
    """Decide whether two logs hold the same run: equal steps, or equal times of requests (steps can be left out)."""
    if one.steps and np.array_equal(one.start_s, other.start_s) and np.array_equal(one.duration_s, other.duration_s):
        return True
    times = ("arrival_s", "first_token_s", "last_token_s")
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in times)
