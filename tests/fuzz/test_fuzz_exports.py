"""Thousands of spoilt logs of each tool give rows, or are counted as none: no edit makes a reader fail.

A log is spoilt, unfolded in memory, and the rows of many are checked at once, since a file of its own for each (as in
``test_fuzz_parsers``, which has the same logs) would take minutes. ``EXPLORE`` tries more.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.explore import EXPLORE, times
from tests.fuzz.mutations import RAW, TOKENS, VALUES
from tests.traffic import exported_logs
from tests.traffic.exported_logs import LOGS, REQUESTS

from tokonomics.errors import BadInput
from tokonomics.traffic.attribution import Attribution, Unfolding
from tokonomics.traffic.cleaning import clean, reason
from tokonomics.traffic.engine_lines import engine_layout, engine_of, engine_rows
from tokonomics.traffic.exports import EXPORTS, Export, export_of, opened
from tokonomics.traffic.formats import LogLayout
from tokonomics.traffic.sources import objects_frame

SPOILT = times(3_000)
TOGETHER = 1_000  # rows
SHORT = tuple(request for request in REQUESTS if request.prompt < 1000)
ODD = (*VALUES[len(RAW) :], float("nan"), float("inf"), 10**400, "9" * 5000)
AGENTS = exported_logs.agent_session()
SEEDS = {
    "Langfuse export": LOGS["langfuse-lines"]().splitlines()[0],
    "LiteLLM spend log": LOGS["litellm-lines"]().splitlines()[0],
    "OpenTelemetry GenAI spans": LOGS["otlp-lines"]().splitlines()[0],
    "OpenAI usage export": exported_logs.openai_usage(),
    "Weka agent traces": json.dumps(AGENTS | {"requests": AGENTS["requests"][3:]}),
}


class Checked:
    """Rows that are cleaned many at once, and how many were kept and set aside."""

    def __init__(self, layout: LogLayout) -> None:
        self.layout, self.rows = layout, list[tuple[int, Any]]()
        self.kept = self.set_aside = 0

    def add(self, rows: list[Any]) -> None:
        self.rows += enumerate(rows)
        if len(self.rows) >= TOGETHER:
            self.finish()

    def finish(self) -> None:
        good, bad = clean(objects_frame(self.rows, self.layout), self.layout)
        assert all(reason(row, self.layout) for row in bad.head(100).iter_rows(named=True))
        self.kept, self.set_aside, self.rows = self.kept + len(good), self.set_aside + len(bad), []


def places_of(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document."""
    for key in item if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ():
        yield (*path, key)
        yield from places_of(item[key], (*path, key))


def spoiler(seed: str) -> Callable[[Random], Any]:
    """The document with one or two values exchanged, taken away or renamed."""
    places = list(places_of(json.loads(seed)))

    def spoilt(chance: Random) -> Any:
        item = json.loads(seed)
        for _ in range(chance.choice((1, 1, 2))):
            *way, last = chance.choice(places)
            holder = item
            with suppress(KeyError, IndexError, TypeError, OverflowError):
                for key in way:
                    holder = holder[key]
                value = holder[last]
                edit = chance.randrange(4)
                if edit == 0:
                    del holder[last]
                elif edit == 1 and isinstance(holder, dict):
                    holder[f"{last}_"] = holder.pop(last)
                else:
                    numbers = (-value, value * 10**9, str(value), value + 0.5) if type(value) is int else ()
                    holder[last] = chance.choice((*ODD, *numbers))
        return item

    return spoilt


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_thousands_of_spoilt_objects_of_a_tool(export: Export) -> None:
    chance, spoilt = Random(None if EXPLORE else 21), spoiler(SEEDS[export.name])
    attribution = Attribution(("team", "user"))
    checked, unknown = Checked(export.layout(attribution)), 0
    for _ in range(SPOILT):
        item = spoilt(chance)
        known = export_of(opened(item))
        unknown += known is not export
        checked.add(_unfolded(known or export, item, Unfolding(attribution)))
    checked.finish()
    # The edits reach all of it: some leave a request as it was, some make it none, some hide what the log is.
    assert min(checked.kept, checked.set_aside, unknown) > SPOILT // 100


def _unfolded(export: Export, item: Any, unfolding: Unfolding) -> list[Any]:
    rows: list[Any] = []
    with suppress(BadInput):
        for inner in opened(item):
            for row in unfolding.requests(export.unfold(inner, unfolding)) if isinstance(inner, dict) else ():
                rows.append(row)
                if len(rows) > 20:  # of totals there are as many as somebody wrote
                    return rows
    return rows


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        ("vLLM", "\n".join(exported_logs.vllm_log(SHORT).splitlines()[:6])),
        ("SGLang", "\n".join(exported_logs.sglang_log().splitlines()[:5])),
        ("SGLang", "\n".join(exported_logs.sglang_json().splitlines()[:3])),
    ],
    ids=["vllm", "sglang-text", "sglang-json"],
)
def test_thousands_of_spoilt_logs_of_an_engine(engine: str, seed: str) -> None:
    chance = Random(None if EXPLORE else 21)
    unfolding = Unfolding()
    checked, unknown = Checked(engine_layout(engine, None)), 0
    for _ in range(SPOILT):
        text = seed
        for _ in range(chance.choice((1, 1, 2))):
            start = chance.randrange(len(text) + 1)
            text = text[:start] + chance.choice(TOKENS) + text[start + chance.choice((0, 1, 1, 5, 30, 200)) :]
        lines = text.splitlines()
        unknown += engine_of(lines) is None
        checked.add([row for _, row in engine_rows(enumerate(lines), unfolding)])
    checked.finish()
    assert checked.kept > SPOILT // 10
    assert unfolding.left_out.total() + unknown > SPOILT // 100
