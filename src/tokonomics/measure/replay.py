"""The simulator against a real engine: the same arrivals and lengths, step times fitted on other runs, same figures.

Both sides are read alike: TTFT = first token − arrival, TPOT = (last − first token) ÷ (output tokens − 1), end to end =
last token − arrival, output tokens a second = all output tokens ÷ (last answer − first arrival). A run is never
predicted from its own steps, under whatever name and in whichever log they are.
"""

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import numpy as np

from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.measure.engine_log import Array, EngineLog, EngineRun
from tokonomics.measure.fit_steps import StepFit, fit_steps, fitted_table
from tokonomics.serving.fleet import FleetSettings
from tokonomics.serving.loop import run as serve
from tokonomics.serving.state import Requests, Rules
from tokonomics.types import Noun

FIT_ON = ("closed-*", "poisson-16")
"""Runs whose steps are fitted where nobody says otherwise and a log has both: batches up to the engine's limit, and
prompts of many lengths at a load that leaves the host in the way."""
_BLOCK_TOKENS = 16


class Figure(StrEnum):
    """What a run is judged by; times in seconds."""

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
    error: float  # relative: above 0 we predict too much


class ReplayedRun(Noun):
    """A run, what it was predicted from, and how that went."""

    run: str
    requests: int
    fitted_on: tuple[str, ...]
    fit: StepFit
    figures: dict[Figure, ReplayComparison | None]  # None where no request has it: answers of one token have no TPOT


class Replay(Noun):
    gpu: str
    model: str
    runs: tuple[ReplayedRun, ...]


def replay(
    log: EngineLog, where: str, fit_on: Sequence[str] | None = None, source: EngineLog | None = None, of: str = ""
) -> Replay:
    """Predict the runs of a log.

    ``fit_on`` names the runs whose steps are fitted (``*`` for any letters) and ``source`` another log to take them
    from, ``of`` by name. Without either, ``FIT_ON`` if the log has both; else each run is predicted from all others.
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
    """When each request of a run gets its first and its last token."""
    count = len(run.arrival_s)
    longest = int((run.input_tokens + run.output_tokens).max())
    blocks = log.max_sequences * (longest // _BLOCK_TOKENS + 1)  # the log does not say; the engine never ran out
    served, _ = serve(
        Requests(
            arrival_s=run.arrival_s - run.arrival_s[0],
            input_tokens=run.input_tokens.astype(np.int32),
            output_tokens=run.output_tokens.astype(np.int32),
            urgency=np.zeros(count, np.int32),
            deadline_s=np.full(count, np.inf),
            unit_ids=np.empty(0, np.int32),
            unit_starts=np.zeros(count + 1, np.int64),
            unit_tokens=_BLOCK_TOKENS,
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
    """The figures of a run whose requests got their first and last tokens at those times.

    Requests that the engine did not answer are left out, on both sides.
    """
    done = np.isfinite(run.first_token_s) & np.isfinite(run.last_token_s)
    arrival, first, last, output = run.arrival_s[done], first_s[done], last_s[done], run.output_tokens[done]
    several = output > 1
    tpot = (last - first)[several] / (output[several] - 1)
    figures: dict[Figure, float | None] = {
        Figure.output_tok_s: float(output.sum() / (last.max() - arrival.min())),
        Figure.e2e_p50_s: _quantile(last - arrival, 50),
    }
    for name, waits in (("ttft", first - arrival), ("tpot", tpot)):
        figures |= {Figure(f"{name}_p{rank}_s"): _quantile(waits, rank) for rank in (50, 90, 99)}
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
    """The runs to fit on; None: each run from the others."""
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
    """Whether two logs hold the same run: equal steps, or requests answered at equal times (steps can be left out)."""
    if one.steps and np.array_equal(one.start_s, other.start_s) and np.array_equal(one.duration_s, other.duration_s):
        return True
    times = ("arrival_s", "first_token_s", "last_token_s")
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in times)


def _quantile(values: Array, rank: int) -> float | None:
    return float(np.quantile(values, rank / 100)) if len(values) else None
