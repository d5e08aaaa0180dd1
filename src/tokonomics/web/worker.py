"""What a worker of the page does: answers a verb, looks at an upload, makes a report, all within limits."""

import gc
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import TokonomicsError
from tokonomics.workers import Pool, WorkerProcess

WARM_UPS: dict[str, dict[str, Any]] = {
    "curve": {"model": "llama-3.1-8b", "gpu": "H100"},
    "plan": {"model": ["llama-3.1-8b"], "rate": "1", "input": "1000", "output": "300", "quick": True},
    "simulate": {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:1", "requests": 100,
                 "input": "100", "output": "100"},
}  # fmt: skip
"""What is done once while nobody asks, so that the first visitor does not wait for imports and compiled code."""
_SECRETS = ("TOKONOMICS_TOKEN",)
"""Of the environment: workers need none of them."""


def page_pool(
    workers: int,
    waiting: int,
    folder: Path,
    memory_bytes: int,
    *,
    niceness: int = 0,
    warm_ups: Sequence[str] = (),
    turn: "threading.Lock | None" = None,
    begin: str = "tokonomics.web.worker:begin",
) -> Pool:
    """So many workers in an empty folder; nice ones give way to others. All get the environment of now."""
    environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    start = partial(WorkerProcess, begin, (str(folder), niceness), memory_bytes, environment)
    pool = Pool(start, waiting, [_warm_up(verb) for verb in warm_ups], turn or threading.Lock())
    pool.grow(workers)
    return pool


def begin(folder: str, niceness: int) -> Callable[..., dict[str, Any]]:
    """The function that answers, with all it needs imported."""
    os.chdir(folder)  # a relative path leads nowhere
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    from altair.utils import schemapi

    from tokonomics.catalog.load_models import CONFIGS_IN
    from tokonomics.traffic.sources import MOST_ROWS
    from tokonomics.web import looking

    schemapi.DEBUG_MODE = False  # checking each part of a chart takes longer than drawing it; the tests check them
    answered(_warm_up("curve"), lambda line: None)
    # A model is read from a file among the uploads alone: a benchmark's results may state a path of this machine. And
    # of every log, only so many rows: a small file can unfold into billions.
    CONFIGS_IN.set(Path(folder).parent)
    MOST_ROWS.set(looking.MOST_ROWS)
    return answered


def answered(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """The answer to a request, by the ``work`` it asks for; a refusal names inputs as the page does."""
    from tokonomics.web import answering, looking

    work = {"answer": answering.answer, "look": looking.look, "report": looking.report}[request["work"]]
    try:
        return work(request, tell)
    except TokonomicsError as problem:
        raise TokonomicsError(**answering.error_of(problem)) from None


def _warm_up(verb: str) -> dict[str, Any]:
    return {"work": "answer", "verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "charts": True}
