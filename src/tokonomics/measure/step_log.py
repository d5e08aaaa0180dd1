"""Step times that an engine logged itself, as measurements for ``calibrate``.

The file is JSON, plain or gzip: ``model``, ``columns`` (the names) and ``steps`` (a row each, in order), with ``gpu``,
``engine`` ("vllm 0.26.0") and ``quant`` where known, as ``benchmarks/measure_vllm.py`` writes it; results of vLLM's
load generator under ``loads`` teach what a request takes beside the steps. Times are seconds of one clock:

    begun             the host began to compose the step
    done              the host had its results
    decode            answers in it, of one token each
    prompts           prompts in it, with ``prefill_tokens`` tokens together
    context           tokens of its sequences in the cache, those of this step's prompts included

Two kinds of step say one thing each: the same answers as in the step before, from its end to this one's; and whole
prompts alone, nothing of them cached, on a GPU that has done all before, from composing to the results.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tokonomics.clock import today
from tokonomics.errors import BadInput, from_validation
from tokonomics.measure.benchmark_run import Stated
from tokonomics.measure.measurements import Measurement, Metric, Mode
from tokonomics.measure.priced_run import MeasuredMachine
from tokonomics.units import plural

COLUMNS = ("begun", "done", "decode", "prompts", "prefill_tokens", "context")
FEWEST = 10  # steps of answers of a batch from which their median counts
FEWEST_PROMPTS = 3  # the same of prompts of a size, which are alone less often
MOST_OF_A_STEP = 2.0**40  # tokens, far beyond any cache
MOST_STEPS = 2_000_000  # days of steps; more is a typing mistake

_FIX = "Log steps while a few loads run: 1 user, then 4, 16, 64."

Floats = NDArray[np.float64]
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
    """The figures of a log, each of steps that are alike."""
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
    """Two sizes an octave, each the one seen most often: neighbours say the same, and would outweigh all else."""
    places: dict[int, Key] = {}
    for key in sorted(found, key=size):
        place = round(2 * math.log2(size(key)))
        if place not in places or len(found[key]) > len(found[places[place]]):
            places[place] = key
    return list(places.values())


def _columns(document: Mapping[str, Any], where: str) -> list[Floats]:
    names, steps = document.get("columns") or [], document["steps"]
    missing = [name for name in COLUMNS if not isinstance(names, list) or name not in names]
    if missing:
        fix = f"A log of steps names {', '.join(COLUMNS)}."
        raise BadInput(f"columns without {', '.join(missing)}", where=where, fix=fix)
    if len(steps) > MOST_STEPS:
        raise BadInput(f"{len(steps):,} steps; {MOST_STEPS:,} at the most are read", where=where)
    places = [names.index(name) for name in COLUMNS]
    numbers = [
        [_number(step, at, name, f"{where}: steps[{place}]") for at, name in zip(places, COLUMNS, strict=True)]
        for place, step in enumerate(steps)
    ]
    if not numbers:
        raise BadInput("no steps in it", where=where, fix=_FIX)
    columns = list(np.array(numbers, np.float64).T)
    _check(columns, where)
    return columns


def _check(columns: Sequence[Floats], where: str) -> None:
    """Times rise, and nothing is below zero."""
    begun, done, *counts = columns
    for name, count in zip(COLUMNS[2:], counts, strict=True):
        wrong = np.flatnonzero((count < 0) | (count > MOST_OF_A_STEP) | (count != np.floor(count)))
        if len(wrong):
            raise BadInput(f"{name} is {count[wrong[0]]:g}: no count", where=f"{where}: steps[{wrong[0]}]")
    wrong = np.flatnonzero(done <= begun)
    if len(wrong):
        raise BadInput("done is not after begun", where=f"{where}: steps[{wrong[0]}]", fix="Times are in seconds.")
    wrong = np.flatnonzero((np.diff(begun) < 0) | (np.diff(done) <= 0))
    if len(wrong):
        fix = "A log is of one engine, from one start, in order: give the files of several one by one."
        place = f"{where}: steps[{wrong[0] + 1}]"
        raise BadInput("begins or ends before the step ahead of it", where=place, fix=fix)


def _number(step: object, at: int, name: str, where: str) -> float:
    value = step[at] if isinstance(step, Sequence) and not isinstance(step, str) and at < len(step) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{name} is no number", where=where)
    return float(value)
