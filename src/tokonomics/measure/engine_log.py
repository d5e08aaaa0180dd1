"""Read an engine's logs: request by request and step by step for ``replay``, or steps alone for ``calibrate``.

The first kind is JSON: the engine's limits, the names of the ``columns``, and ``runs`` by name, each with a row per
request (when it arrived, its lengths, its first and last token) and a row per step (when, how long, what was in it).
The log does not say how many prompts shared a step, but they are computed first come first served, so the token counts
tell.

A log of steps alone is JSON, plain or gzip: ``model``, ``columns`` (the names) and ``steps`` (a row each, in order),
with ``gpu``, ``engine`` ("vllm 0.26.0") and ``quant`` if known, as ``benchmarks/measure_vllm.py`` writes it. Results of
vLLM's load generator under ``loads`` teach what a request takes outside the steps. Times are seconds of one clock:

    begun             the host began to compose the step
    done              the host had its results
    decode            answers in it, of one token each
    prompts           prompts in it, with ``prefill_tokens`` tokens together
    context           tokens of its sequences in the cache, those of this step's prompts included

Two kinds of step are used: steps with the same answers as the step before, timed from its end to this one's; and steps
of whole prompts alone, without cached tokens, on a GPU that has finished all earlier work, timed from composing to the
results.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tokonomics.errors import BadInput, from_validation, shorten
from tokonomics.measure.benchmark_run import Stated
from tokonomics.measure.measurements import Measurement, Metric, Mode, json_object, parse_json, read_text
from tokonomics.measure.priced_run import MeasuredMachine
from tokonomics.types import today
from tokonomics.units import plural

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

REQUEST_COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s")
STEP_COLUMNS = (
    "start_s", "duration_s", "decode_sequences", "prefill_tokens", "decode_kv_tokens", "prefill_attention_pairs",
)  # fmt: skip
_MOST_SEQUENCES, _MOST_TOKENS = 100_000, 10_000_000  # beyond any engine's limits: a typing mistake
_MOST_OF_A_STEP = 2.0**52  # floats hold whole numbers exactly up to here, and sums of steps fit 64 bits
_LEAST_S = 1e-9  # less than a cycle of any GPU: a clock that did not tick


@dataclass(frozen=True)
class EngineRun:
    """One run: requests in order of arrival, steps in order of time."""

    arrival_s: Array
    input_tokens: Whole
    output_tokens: Whole
    first_token_s: Array  # NaN if the request was not answered, like ``last_token_s``
    last_token_s: Array
    start_s: Array
    duration_s: Array
    decodes: Whole  # sequences that got one token each
    prompt_tokens: Whole
    kv_tokens: Array  # that all decoding sequences attend to
    pairs: Array  # pairs of a prompt token and one it attends to

    @property
    def steps(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True)
class EngineLog:
    gpu: str
    model: str
    max_sequences: int
    max_batched_tokens: int
    buckets: tuple[int, ...]  # batch sizes that decode steps are padded to, ascending; empty: no padding
    runs: Mapping[str, EngineRun]

    def padded(self, batch: Whole) -> Whole:
        """Return the batch that a decode step is padded to."""
        if not self.buckets:
            return batch
        sizes = np.array(self.buckets)
        places = np.searchsorted(sizes, batch)
        return np.where(places < len(sizes), sizes[np.minimum(places, len(sizes) - 1)], batch)


def is_engine_log(path: Path) -> bool:
    """Decide whether a file is an engine's log; not if it cannot be read, or is a pipe (which is read only once)."""
    with suppress(BadInput, OSError, ValueError):
        return path.is_file() and "runs" in (json_object(path) or ())
    return False


def read_engine_log(path: Path) -> EngineLog:
    where = shorten(str(path), 200)
    found = parse_json(read_text(path), where)
    if not isinstance(found, dict) or not isinstance(found.get("runs"), dict) or not found["runs"]:
        raise BadInput("the log of an engine needs 'runs', by name", where=where, fix="The format: docs/validate.md.")
    columns = found["columns"] if isinstance(found.get("columns"), dict) else {}
    runs = {}
    for name, run in found["runs"].items():
        place = f"{where}: run {shorten(name)}"
        if not isinstance(run, dict):
            raise BadInput("needs 'requests' and 'steps'", where=place)
        requests, steps = (
            _table(run.get(kind, []), columns.get(kind), needed, kind, place)
            for kind, needed in (("requests", REQUEST_COLUMNS), ("steps", STEP_COLUMNS))
        )
        runs[name] = _run(requests, steps, place)
    buckets = found.get("graph_buckets", [])
    if not isinstance(buckets, list) or not all(type(batch) is int and batch >= 1 for batch in buckets):
        raise BadInput("'graph_buckets' must be a list of batches of at least 1", where=where)
    return EngineLog(
        gpu=shorten(str(found.get("gpu", "unnamed GPU"))),
        model=shorten(str(found.get("model", "unnamed model"))),
        max_sequences=_limit(found, "max_seqs", _MOST_SEQUENCES, where),
        max_batched_tokens=_limit(found, "max_batched_tokens", _MOST_TOKENS, where),
        buckets=tuple(sorted(set(buckets))),
        runs=runs,
    )


def prompts_of_steps(run: EngineRun, where: str) -> Whole:
    """Count the prompts that each step worked on.

    Prompts are computed in order of arrival, each token once, so those of a step are adjacent in the row of all prompt
    tokens.
    """
    ends, step_ends = np.cumsum(run.input_tokens), np.cumsum(run.prompt_tokens)
    if not run.steps or step_ends[-1] != ends[-1]:
        computed = int(step_ends[-1]) if run.steps else 0
        fix = "Step times are fitted on runs logged from the first arrival to the last answer, without preemption."
        said = f"the steps compute {computed:,} prompt tokens, the requests have {int(ends[-1]):,}"
        raise BadInput(said, where=where, fix=fix)
    first = np.searchsorted(ends, step_ends - run.prompt_tokens, side="right")
    last = np.searchsorted(ends, step_ends - 1, side="right")
    return np.where(run.prompt_tokens > 0, last - first + 1, 0)


def _run(requests: Array, steps: Array, where: str) -> EngineRun:
    def check(fine: object, problem: str) -> None:
        if not fine:
            raise BadInput(problem, where=where)

    check(len(requests), "there is no request")
    requests = requests[np.argsort(requests[:, 0], kind="stable")]
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    arrival, inputs, outputs, first, last = requests.T
    lengths = requests[:, 1:3]
    check(np.isfinite(requests[:, :3]).all(), "a request without arrival_s, input_tokens or output_tokens")
    check((lengths >= 1).all(), "a request of no token: input_tokens and output_tokens count from 1")
    check((lengths <= _MOST_TOKENS).all(), f"a request of more than {_MOST_TOKENS:,} tokens")
    answered = np.isfinite(first) & np.isfinite(last)
    check(answered.any(), "no request was answered")
    check(last[answered].max() > arrival[answered].min(), "every request answered the instant it arrived")
    check(not ((first < arrival) | (last < first)).any(), "a request answered before it arrived")
    check(np.isfinite(steps).all(), "a step with a value missing")
    check((np.abs(steps) <= _MOST_OF_A_STEP).all(), "a step of a size or at a time that no engine has")
    check((np.abs(arrival) <= _MOST_OF_A_STEP).all(), "a request at a time that no clock shows")
    check((steps[:, 1] >= _LEAST_S).all(), "a step of no duration")
    check((steps[:, 2:] >= 0).all(), "a step of a negative size")
    start, duration, decodes, prompt_tokens, kv_tokens, pairs = steps.T
    counted = (inputs, outputs, decodes, prompt_tokens)
    inputs, outputs, decodes, prompt_tokens = (counts.astype(np.int64) for counts in counted)
    return EngineRun(arrival, inputs, outputs, first, last, start, duration, decodes, prompt_tokens, kv_tokens, pairs)


def _table(rows: object, columns: object, needed: Sequence[str], what: str, where: str) -> Array:
    """Return the needed columns of every row; null becomes NaN."""
    missing = [name for name in needed if not isinstance(columns, list) or name not in columns]
    if missing or not isinstance(columns, list):
        fix = f"The rows of {what} need {', '.join(needed)}."
        raise BadInput(f"columns of {what} lack {', '.join(missing)}", where=where, fix=fix)
    if not isinstance(rows, list) or len(rows) > MOST_STEPS:
        raise BadInput(f"'{what}' is not a list of at most {MOST_STEPS:,} rows", where=where)
    places = [columns.index(name) for name in needed]
    numbers = np.empty((len(rows), len(places)))
    for at, row in enumerate(rows):
        try:
            numbers[at] = [_number(row[place]) for place in places]
        except (TypeError, IndexError, KeyError, OverflowError):
            raise BadInput(f"{what}[{at}] is not a row of {len(places)} numbers", where=where) from None
    return numbers


def _number(value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _limit(found: Mapping[str, Any], field: str, most: int, where: str) -> int:
    value = found.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(f"'{field}' must be a whole number from 1 to {most:,}", where=where)
    return value


COLUMNS = ("begun", "done", "decode", "prompts", "prefill_tokens", "context")
FEWEST = 10  # decode steps of a batch size needed for their median
FEWEST_PROMPTS = 3  # the same for prompts of a size, which are alone less often
MOST_OF_A_STEP = 2.0**40  # tokens, far beyond any cache
MOST_STEPS = 2_000_000  # days of steps; more is a typing mistake

_FIX = "Log steps while a few loads run: 1 user, then 4, 16, 64."

Key = TypeVar("Key", int, tuple[int, int])


def is_step_log(document: object) -> bool:
    return isinstance(document, dict) and isinstance(document.get("steps"), list)


def stated_by(document: Mapping[str, Any], where: str) -> Stated:
    named = {name: document.get(name) for name in ("gpu", "engine", "quant")}
    said = {name: value if isinstance(value, str) and value else None for name, value in named.items()}
    engine = said["engine"].split()[0] if said["engine"] else None
    try:
        return Stated(gpu=said["gpu"], engine=engine, weights=said["quant"], tp=document.get("tp"))
    except ValidationError as error:
        raise from_validation(error, where) from None


def steps_logged(document: Mapping[str, Any], model: str, machine: MeasuredMachine, where: str) -> list[Measurement]:
    """Return the figures of a log, each from steps that are alike."""
    begun, done, decode, prompts, tokens, context = _columns(document, where)
    answers: dict[int, list[tuple[float, float]]] = defaultdict(list)
    first: dict[tuple[int, int], list[float]] = defaultdict(list)
    for at in range(1, len(begun)):
        if prompts[at] == 0:
            same = prompts[at - 1] == 0 and decode[at - 1] == decode[at]
            if same and decode[at] > 0 and context[at] == context[at - 1] + decode[at]:
                answers[int(decode[at])].append((done[at] - done[at - 1], context[at] / decode[at]))
        else:
            alone = decode[at] == 0 and begun[at] >= done[at - 1] and 0 < tokens[at] == context[at]
            if alone and tokens[at] % prompts[at] == 0:
                first[int(prompts[at]), int(tokens[at] // prompts[at])].append(done[at] - begun[at])

    def row(mode: Mode, batch: int, length: float, times: Iterable[float]) -> Measurement:
        return Measurement(
            key=f"{mode} of {batch}", model=model, **machine.model_dump(exclude={"tuned"}), year=today().year,
            input_tokens=max(1, round(length)), output_tokens=1, batch=batch, mode=mode, metric=Metric.step_s,
            value=statistics.median(times), source="a log of steps",
        )  # fmt: skip

    often = {batch: steps for batch, steps in answers.items() if len(steps) >= FEWEST}
    rows = []
    for batch in _apart(often, lambda batch: batch):
        times, held = zip(*often[batch], strict=True)
        rows.append(row(Mode.decode_step, batch, statistics.median(held), times))
    equal = {size: times for size, times in first.items() if len(times) >= FEWEST_PROMPTS}
    rows += [row(Mode.prefill_step, *size, equal[size]) for size in _apart(equal, math.prod)]
    if not rows:
        wanted = f"{FEWEST} of the same answers as the step before, nor {FEWEST_PROMPTS} of equal prompts alone"
        said = f"{plural(len(begun), 'step')}, but not {wanted} on an idle GPU"
        raise BadInput(said, where=where, fix=_FIX)
    return rows


def _apart(found: Mapping[Key, Sequence[object]], size: Callable[[Key], int]) -> list[Key]:
    """Return two sizes per octave, each the most frequent: neighbours say the same, and would outweigh the rest."""
    places: dict[int, Key] = {}
    for key in sorted(found, key=size):
        place = round(2 * math.log2(size(key)))
        if place not in places or len(found[key]) > len(found[places[place]]):
            places[place] = key
    return list(places.values())


def _columns(document: Mapping[str, Any], where: str) -> Array:
    """Return the checked columns of a log of steps: times rise, and nothing is negative."""
    columns = _table(document["steps"], document.get("columns"), COLUMNS, "steps", where).T
    if not columns.size:
        raise BadInput("no steps in it", where=where, fix=_FIX)
    begun, done, *counts = columns
    odd = [(count < 0) | (count > MOST_OF_A_STEP) | (count != np.floor(count)) for count in counts]
    fix = "A log is of one engine, from one start, in order, with times in seconds: give several one by one."
    for problem, wrong in (
        ("a value is missing", np.isnan(columns).any(axis=0)),
        (f"one of {', '.join(COLUMNS[2:])} is no count", np.any(odd, axis=0)),
        ("done is not after begun", done <= begun),
        ("begins or ends before the step ahead of it", np.diff(begun, prepend=begun[0]) < 0),
        ("begins or ends before the step ahead of it", np.diff(done, prepend=-math.inf) <= 0),
    ):
        if wrong.any():
            raise BadInput(problem, where=f"{where}: steps[{int(np.argmax(wrong))}]", fix=fix)
    return columns
