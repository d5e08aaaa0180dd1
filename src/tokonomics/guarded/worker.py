"""What a worker does: answers a verb, looks at an upload of the page, makes a report, all within limits.

Behind a fence it reads no file but what is uploaded; without one it reads what it is told, as the command line does.
"""

import gc
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import TokonomicsError
from tokonomics.memory_budget import SHARE
from tokonomics.units import GIB
from tokonomics.workers import Pool, WorkerProcess

WARM_UPS: dict[str, dict[str, Any]] = {
    "curve": {"model": "llama-3.1-8b", "gpu": "H100"},
    "plan": {"model": ["llama-3.1-8b"], "rate": "5", "input": "1000", "output": "300", "quick": True,
             "slo": "ttft_p99=1000ms,tpot_p99=50ms"},
    "simulate": {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:1", "requests": 100,
                 "input": "100", "output": "100"},
}  # fmt: skip
"""What is done once while nobody asks, so that the first visitor does not wait for imports and compiled code. The plan
is the one that the page opens with."""
LONG_S = 900.0
"""Seconds that an answer may take, where nobody was told that it is quick."""
LONG_WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))
WAITING = 16
"""Requests that wait for a worker."""
MOST_BODY = 200_000
"""Bytes of a request that is no upload."""
_SECRETS = ("TOKONOMICS_TOKEN",)
"""Of the environment: workers need none of them."""
_OF_THE_HUB = ("HF_TOKEN", "HF_TOKEN_PATH")
"""What a worker behind a fence, which asks no hub, does not need either."""


def guarded_pool(
    workers: int,
    waiting: int,
    folder: Path | None,
    memory_bytes: int,
    *,
    niceness: int = 0,
    warm_ups: Sequence[str] = (),
    turn: "threading.Lock | None" = None,
    begin: str = "tokonomics.guarded.worker:begin",
) -> Pool:
    """So many workers, fenced in by an empty folder if one is named; nice ones give way to others.

    All get the environment of now.
    """
    dropped = (*_SECRETS, *_OF_THE_HUB) if folder else _SECRETS
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    start = partial(WorkerProcess, begin, (folder and str(folder), niceness), memory_bytes, environment)
    first = [request for verb in warm_ups for request in _warm_ups(verb)]
    pool = Pool(start, waiting, first, turn or threading.Lock())
    pool.grow(workers)
    return pool


def memory_of_worker(workers: int, free_bytes: float) -> int:
    """All workers together leave a fifth of what is free to others, as long as each has a gigabyte to answer with."""
    return max(GIB, int(min(6 * GIB, SHARE * free_bytes / max(workers, 1))))


def begin(folder: str | None, niceness: int) -> Callable[..., dict[str, Any]]:
    """The function that answers, with all it needs imported."""
    if folder:
        os.chdir(folder)  # a relative path leads nowhere
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    from tokonomics.catalog.load_models import CONFIGS_IN
    from tokonomics.guarded import looking
    from tokonomics.traffic.sources import MOST_ROWS

    answered(_warm_ups("curve")[0], lambda line: None)
    if not folder:
        return answered
    # A model is read from a file among the uploads alone: a benchmark's results may state a path of this machine. And
    # of every log, only so many rows: a small file can unfold into billions.
    CONFIGS_IN.set(Path(folder).parent)
    MOST_ROWS.set(looking.MOST_ROWS)
    return answered


def answered(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """The answer to a request, by the ``work`` it asks for; a refusal names inputs as the page does."""
    from tokonomics.guarded import answering, looking

    works = {"answer": answering.answer, "look": looking.look, "table": looking.table, "report": looking.report}
    try:
        return works[request["work"]](request, tell)
    except TokonomicsError as problem:
        raise TokonomicsError(**answering.error_of(problem)) from None


def _warm_ups(verb: str) -> list[dict[str, Any]]:
    """The figures first, which a visitor waits for; then all else that is told of the same answer."""
    asked = {"work": "answer", "verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "key": f"warm {verb}"}
    return [asked | {"parts": ["sections"]}, asked | {"parts": ["charts", "text"]}]
