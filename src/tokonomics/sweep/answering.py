"""One point answered, inside a worker: the question is asked with the point's inputs, and its answer is kept."""

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import TokonomicsError, flag
from tokonomics.memory_budget import NoRoom
from tokonomics.questions.listener import SILENT
from tokonomics.questions.verbs import find_verb
from tokonomics.sweep.outcome import OUT_OF_MEMORY, PointOutcome, Status, figures_of, untimed
from tokonomics.workers import Spent, as_json

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Of the environment of a worker: there is one for each core, and sums come out the same however many there are."""
_SIMULATES = frozenset({"plan", "simulate", "capacity", "compare", "fleet", "breakeven", "levers", "stack", "diff",
                        "route"})  # fmt: skip
_SMALL = {"model": "llama-3.1-8b", "gpu": "H100", "rate": "1", "requests": 1, "input": "9", "output": "9"}


def answered(verb: str, values: Mapping[str, Any]) -> PointOutcome:
    """What became of the point; nothing that goes wrong gets out."""
    began = time.perf_counter()

    def ended(status: Status, error: str | None = None) -> PointOutcome:
        return PointOutcome(status, error, seconds=time.perf_counter() - began)

    asked = find_verb(verb)
    try:
        found = asked.answer(asked.request.of(values), SILENT)
        plain = untimed(found.plain())
        text = as_json(plain).decode()
    except NoRoom as problem:  # unlike other refusals, not the same every time
        return ended(Status.FAILED, f"{problem.message(flag)}\n--memory gives a worker more.")
    except TokonomicsError as problem:
        return ended(Status.REFUSED, problem.message(flag))
    except MemoryError:
        return ended(Status.FAILED, OUT_OF_MEMORY)
    except Exception as problem:
        at = traceback.extract_tb(problem.__traceback__)[-1]
        return ended(Status.FAILED, f"{type(problem).__name__}: {problem} ({Path(at.filename).name}:{at.lineno})")
    status = Status.OK if found.is_found else Status.NOTHING
    error = None if status is Status.OK else "nothing does what was asked"
    return PointOutcome(status, error, figures_of(verb, plain), text, time.perf_counter() - began)


def warm_up(verb: str) -> None:
    """What every first point would wait for: imports, and the simulator's compiled code."""
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    if verb in _SIMULATES:
        asked = find_verb("simulate")
        with suppress(TokonomicsError):  # a point says it better
            asked.answer(asked.request.of(_SMALL), SILENT)


def begin(verb: str) -> Callable[..., dict[str, Any]]:
    """The function that answers a point, with all it needs imported and compiled."""
    warm_up(verb)
    return partial(answer, verb)


def answer(verb: str, values: dict[str, Any], tell: object = None) -> dict[str, Any]:
    """What became of a point, for the way back; a worker whose memory ran out is spent."""
    plain = answered(verb, values).plain()
    if plain["error"] == OUT_OF_MEMORY:
        raise Spent(plain)
    return plain
