"""The points of a sweep: every combination of the listed values, or so many drawn at random.

A point's id is the hash of everything its answer follows from: the verb, its inputs, the content of the files they
name, and the ground they stand on (program, prices, profile, day). The same point has the same id in every sweep, and
a point of a changed scenario has another: that is what makes a sweep safe to resume. Random point number n depends on
the seed and n alone, so that a longer search contains the shorter one.
"""

import hashlib
import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.sweep.spec import Listed, Ranged, Tried

MOST_POINTS = 100_000
"""Of one sweep: at a tenth of a second each, an hour and a half on two cores."""
_DRAWS = 50
"""Times a random point is drawn again that was drawn before: lists of few values run out."""


@dataclass(frozen=True)
class Point:
    """One question: what was swept, and all inputs of the verb with it."""

    place: int
    id: str
    over: Mapping[str, str]
    """By key, as typed."""
    values: Mapping[str, Any]


Combine = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""The swept texts → all inputs of the verb; refuses what cannot be read."""


def grid(over: Mapping[str, Tried]) -> Iterator[dict[str, str]]:
    """Every combination, the last key turning quickest."""
    ranges = [key for key, tried in over.items() if isinstance(tried, Ranged)]
    if ranges:
        raise BadInput(
            "a range is drawn from", where=f"--over {ranges[0]}", fix="Say --random N as well, or list the values."
        )
    lists = {key: tried.values for key, tried in over.items() if isinstance(tried, Listed)}
    count = math.prod(len(values) for values in lists.values())
    if count > MOST_POINTS:
        sizes = " × ".join(f"{len(values):,}" for values in lists.values())
        raise BadInput(
            f"{sizes} = {count:,} points; at most {MOST_POINTS:,} in one sweep",
            where="--over",
            fix="List fewer values, or draw: --random 1000",
        )
    return (dict(zip(lists, each, strict=True)) for each in itertools.product(*lists.values()))


def drawn(over: Mapping[str, Tried], count: int, seed: int) -> Iterator[dict[str, str]]:
    """So many different points at random; fewer where there are no more."""
    if count > MOST_POINTS:
        raise BadInput(f"{count:,} points; at most {MOST_POINTS:,} in one sweep", where="--random")
    seen: set[tuple[str, ...]] = set()
    for place in range(count):
        # Python's own generator, seeded by text: the same on every machine and version since 3.2.
        chance = random.Random(f"tokonomics sweep {seed} {place}")
        for _ in range(_DRAWS):
            made = {key: tried.drawn(chance) for key, tried in over.items()}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made
                break


def points_of(over: Iterator[dict[str, str]], combine: Combine, ground: str, digests: "Digests") -> list[Point]:
    """The points with their ids; ``ground`` is the hash of what all of them rest on."""
    made = []
    for place, each in enumerate(over):
        values = dict(combine(each))
        made.append(Point(place, point_id(ground, values, digests.of(values)), each, values))
    return made


def point_id(ground: str, values: Mapping[str, Any], files: Mapping[str, str]) -> str:
    said = json.dumps([ground, values, files], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


class Digests:
    """The content of the files that inputs name; each file is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def of(self, values: Mapping[str, Any]) -> dict[str, str]:
        texts = {text for value in values.values() for text in _texts(value)}
        return {text: found for text in sorted(texts) if (found := self._digest(text)) is not None}

    def _digest(self, text: str) -> str | None:
        if text not in self._known:
            self._known[text] = file_digest(text)
        return self._known[text]


def file_digest(path: str) -> str | None:
    """The hash of a file's content, or of all names, sizes and times in a folder; None where there is no such thing."""
    try:
        if os.path.isdir(path):  # noqa: PTH112 - likewise
            return hashlib.sha256(repr(sorted(_inside(Path(path)))).encode()).hexdigest()
        with open(path, "rb") as file:  # noqa: PTH123 - a text that is no path is no error here
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def _inside(folder: Path) -> Iterator[tuple[str, int, int]]:
    for root, _, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            found = path.stat() if path.exists() else path.lstat()  # a link may lead nowhere
            yield path.relative_to(folder).as_posix(), found.st_size, found.st_mtime_ns


def _texts(value: Any) -> Iterator[str]:
    """Every text that may name a file: ``trace:log.csv`` names one as well."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool | int | float):
        text = str(value)
        yield text
        if ":" in text:
            yield text.split(":", 1)[1]
