"""Build the points of a sweep: parse what is swept, combine or draw values, and give each point its inputs and id.

``gpu=H100,H200`` is a list, ``rate=1..50`` a range, ``rate=1..50:log`` a range by ratio. Values are separated by
commas, or by semicolons if a value itself contains commas (``slo=ttft_p99=1,tpot_p99=0.1;…``). Several keys may follow
each other in one text, ``gpu=H100,H200,tp=1,2``: a part that begins with the name of a key and ``=`` begins that key.
Ambiguous text is refused.

A point's id is the hash of everything that determines its answer: the verb, its inputs, the content of the files they
name, and the ground (program, data, prices, profile, packages, day). The same point has the same id in every sweep, and
a point of a changed scenario has another: this makes a sweep safe to resume. Every machine of a cluster must have the
same ground before it answers anything. Random point number n depends only on the seed and n, so that a longer search
contains the shorter one.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

import tokonomics
from tokonomics.errors import BadInput, UnknownName, did_you_mean, shorten
from tokonomics.questions.request import TYPE_WORDS
from tokonomics.questions.scenario import (
    SWEPT_UNASKED,
    ScenarioFile,
    parameter_for,
    read_scenario_file,
    replaced_by,
    swept_keys,
)
from tokonomics.questions.verbs import scenario_verbs
from tokonomics.types import today

_KEY = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s*=(.*)", re.DOTALL)
_RANGE = re.compile(r"\s*([0-9.eE+-]+?)\s*\.\.\s*([0-9.eE+-]+?)\s*(?::\s*([a-z]+))?\s*")
_HOW = "Such as --over gpu=H100,H200 --over rate=5,10,20; with --random N also ranges: --over rate=1..50:log."
MOST_VALUES = 10_000  # of one key


@dataclass(frozen=True)
class Listed:
    values: tuple[str, ...]

    def drawn(self, chance: random.Random) -> str:
        return chance.choice(self.values)


@dataclass(frozen=True)
class Ranged:
    """Values between two ends; whole ends give whole numbers."""

    low: float
    high: float
    by_ratio: bool
    whole: bool

    def drawn(self, chance: random.Random) -> str:
        if self.by_ratio:
            value = math.exp(chance.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = chance.uniform(self.low, self.high)
        value = min(max(value, self.low), self.high)
        return str(round(value)) if self.whole else f"{value:.6g}"


Tried = Listed | Ranged


def read_over(texts: Sequence[str], keys: Collection[str]) -> dict[str, Tried]:
    """Return the values of each key, in the order typed; ``keys`` are the known keys."""
    found: dict[str, Tried] = {}
    for text in texts:
        for key, values in _split(text, keys):
            if key in found:
                raise BadInput(f"'{key}' is given twice", where="--over", fix="Write all its values in one list.")
            found[key] = _tried(key, values)
    if not found:
        raise BadInput("nothing to sweep over is named", where="--over", fix=_HOW)
    return found


def _split(text: str, keys: Collection[str]) -> list[tuple[str, str]]:
    """Split ``a=1,2,b=3`` into a with ``1,2`` and b with ``3``."""
    begun = _KEY.fullmatch(text)
    if begun is None:
        raise BadInput(f"'{shorten(text)}' names no key and its values", where="--over", fix=_HOW)
    if (key := _plain(begun[1])) not in keys:
        hint = did_you_mean(key, keys) or f"Known: {', '.join(sorted(keys))}."
        raise BadInput(f"unknown key '{shorten(begun[1])}'", where="--over", fix=hint)
    if ";" in text:
        return [(key, begun[2])]
    first, *rest = begun[2].split(",")
    parts = [(key, first)]
    for part in rest:
        more = _KEY.fullmatch(part)
        if more is None:
            parts[-1] = parts[-1][0], f"{parts[-1][1]},{part}"
        elif _plain(more[1]) in keys:
            parts.append((_plain(more[1]), more[2]))
        else:
            raise BadInput(
                f"'{shorten(part.strip())}' is neither a value nor a key",
                where=f"--over {shorten(begun[1])}",
                fix="Values that hold commas are written with semicolons between them, and one at the end of a "
                "single one: --over 'slo=ttft_p99=1,tpot_p99=50ms;ttft_p99=2,tpot_p99=80ms'",
            )
    return parts


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _tried(key: str, text: str) -> Tried:
    if ranged := _RANGE.fullmatch(text):
        return _range(key, text, ranged)
    marks = ";" if ";" in text else ","
    values = [value.strip() for value in text.split(marks)]
    if marks == ";" and not values[-1]:
        values.pop()
    if not values or not all(values):
        raise BadInput("has an empty value", where=f"--over {key}", fix=_HOW)
    if any(_RANGE.fullmatch(value) for value in values):
        raise BadInput("is a range and a list at once", where=f"--over {key}", fix="Give one or the other.")
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise BadInput(f"has '{shorten(twice)}' twice", where=f"--over {key}")
    if len(values) > MOST_VALUES:
        raise BadInput(f"has {len(values):,} values; at most {MOST_VALUES:,}", where=f"--over {key}")
    return Listed(tuple(values))


def _range(key: str, text: str, ranged: re.Match[str]) -> Ranged:
    where, how = f"--over {key}", "Write such as 1..50, or 1..50:log for even ratios."
    try:
        low, high = float(ranged[1]), float(ranged[2])
    except ValueError:
        raise BadInput(f"'{shorten(text)}' is no range", where=where, fix=how) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadInput(f"'{shorten(text)}' does not rise", where=where, fix=how)
    if ranged[3] not in (None, "log"):
        raise BadInput(f"'{shorten(ranged[3])}' is not a way to draw", where=where, fix=how)
    if ranged[3] and low <= 0:
        raise BadInput("even ratios need ends above 0", where=where, fix=how)
    whole = all(re.fullmatch(r"[+-]?\d+", end) is not None for end in (ranged[1], ranged[2]))
    return Ranged(low, high, by_ratio=ranged[3] == "log", whole=whole)


MOST_POINTS = 100_000  # of one sweep: at a tenth of a second each, an hour and a half on two cores
_DRAWS = 50  # redraws of a point that was drawn before: short lists run out of new ones


@dataclass(frozen=True)
class SweepPoint:
    """One question: the swept values, and all inputs of the verb with them."""

    place: int
    id: str
    over: Mapping[str, str]  # by key, as typed
    values: Mapping[str, Any]


Combine = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""Turns the swept texts into all inputs of the verb; refuses what cannot be read."""


def grid(over: Mapping[str, Tried]) -> Iterator[dict[str, str]]:
    """Yield every combination; the last key changes fastest."""
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
    return (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


def drawn(over: Mapping[str, Tried], count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield ``count`` different random points, or fewer if there are no more."""
    if count > MOST_POINTS:
        raise BadInput(f"{count:,} points; at most {MOST_POINTS:,} in one sweep", where="--random")
    seen: set[tuple[str, ...]] = set()
    for place in range(count):
        # Python's own generator, seeded by text, gives the same on every machine and version since 3.2.
        chance = random.Random(f"tokonomics sweep {seed} {place}")
        for _ in range(_DRAWS):
            made = {key: tried.drawn(chance) for key, tried in over.items()}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made
                break


def points_of(over: Iterator[dict[str, str]], combine: Combine, ground: str) -> list[SweepPoint]:
    """Return the points with their ids; ``ground`` is the hash of what all answers depend on."""
    digest = lru_cache(maxsize=None)(file_digest)  # each file is read once
    points = []
    for place, texts in enumerate(over):
        values = dict(combine(texts))
        points.append(SweepPoint(place, point_id(ground, values, digests(values, digest)), texts, values))
    return points


def digests(values: Mapping[str, Any], digest: Callable[[str], str | None] | None = None) -> dict[str, str]:
    named = {text for value in values.values() for text in _texts(value)}
    return {text: found for text in sorted(named) if (found := (digest or file_digest)(text)) is not None}


def point_id(ground: str, values: Mapping[str, Any], files: Mapping[str, str]) -> str:
    said = json.dumps([ground, values, files], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def file_digest(path: str) -> str | None:
    """Hash a file's content, or all names, sizes and times in a folder; return None if there is neither."""
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
            found = path.stat() if path.exists() else path.lstat()  # a link may be broken
            yield path.relative_to(folder).as_posix(), found.st_size, found.st_mtime_ns


def _texts(value: Any) -> Iterator[str]:
    """Yield every text that may name a file; ``trace:log.csv`` names one too."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif value is not None and not isinstance(value, bool | int | float):
        text = str(value)
        yield text
        if ":" in text:
            yield text.split(":", 1)[1]


_PACKAGES = ("numpy", "scipy", "numba", "polars", "genai-prices")  # an answer depends on their arithmetic or data

Ground = dict[str, str]
DAY = "day"


def ground() -> Ground:
    """Return what answers of this process depend on now."""
    from tokonomics.catalog.entries import user_path
    from tokonomics.catalog.offers import SNAPSHOT, cache_file
    from tokonomics.physics.calibration import VARIABLE

    profile = os.environ.get(VARIABLE)
    return {
        "tokonomics": tokonomics.__version__,
        "program": _program(),
        "prices": file_digest(str(cache_file())) or file_digest(str(SNAPSHOT)) or "none",
        "catalogue": file_digest(str(user_path())) or "none",
        "profile": (file_digest(profile) or "missing") if profile else "none",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "processor": platform.machine(),
        **{name: _version(name) for name in _PACKAGES},
        DAY: today().isoformat(),
    }


def without_day(one: Ground) -> Ground:
    return {name: value for name, value in one.items() if name != DAY}


def ground_id(one: Ground, verb: str) -> str:
    return hashlib.sha256(json.dumps([verb, one], sort_keys=True).encode()).hexdigest()


def differences(here: Ground, there: Ground) -> list[str]:
    """Say what differs between two grounds; for digests, only that they differ."""
    return [
        f"{name} {there.get(name)} (here {value})" if len(value) < 20 else f"other {name}"
        for name, value in here.items()
        if there.get(name) != value
    ]


@lru_cache(maxsize=1)
def _program() -> str:
    """Hash the package's own files: the version number stays while its code changes."""
    made = hashlib.sha256()
    root = Path(tokonomics.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            made.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            made.update(path.read_bytes())
    return made.hexdigest()


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


_ROWS = 10
"""Candidates of a plan in its answer, as many as the terminal shows: all of them would be a megabyte per point."""


def check_verb(verb: str) -> None:
    """Refuse a verb that cannot answer a scenario."""
    known = scenario_verbs()
    if verb not in known:
        raise UnknownName("verb", verb, known, fix=f"Those that can be swept: {', '.join(known)}.")


def verb_for(texts: Sequence[str]) -> str:
    """Return the first of the usual verbs that has every swept key, or the very first if none has."""
    for verb in SWEPT_UNASKED:
        with contextlib.suppress(BadInput):
            read_over(texts, swept_keys(verb))
            return verb
    return SWEPT_UNASKED[0]


def base_values(path: Path, verb: str) -> tuple[dict[str, object], list[str], Path | None]:
    """Return the scenario's values for the verb, the keys it has no flag for, and the profile it names."""
    file = read_scenario_file(path.absolute())
    said = file.values_for(verb)
    profile = said.get("profile")
    base = {key: said[key] for key in said if key in swept_keys(verb)}
    if parameter_for(verb, "top") is not None:
        base.setdefault("top", _ROWS)
    return base, file.unused_by(verb), None if profile is None else Path(str(profile))


def combined(verb: str, base: Mapping[str, object], over: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of one point; swept traffic of another kind replaces the scenario's."""
    read = {key: _value(verb, key, text) for key, text in over.items()}
    # Read as in a scenario of this folder, so that a worker in any folder finds the file.
    swept = ScenarioFile(Path.cwd() / "over", {}, {verb: read}).values_for(verb)
    gone = replaced_by([key for key, value in swept.items() if value is not False])
    return {key: value for key, value in base.items() if key not in gone} | swept


def _value(verb: str, key: str, text: str) -> object:
    """Read a value. A word in place of a number is wrong at every point, so it is reported before any work."""
    parameter = parameter_for(verb, key)
    assert parameter is not None
    if parameter.type is str or parameter.takes_text:
        return [text] if parameter.is_list else text
    try:
        return TypeAdapter(parameter.type).validate_python(text)
    except ValidationError:
        raise BadInput(f"must be {TYPE_WORDS[parameter.type]}, got {shorten(text)}", where=f"--over {key}") from None
