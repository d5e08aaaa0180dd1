"""What is swept, as it is typed: ``gpu=H100,H200`` is a list, ``rate=1..50`` a range, ``rate=1..50:log`` one by ratio.

Values lie between commas, or between semicolons where a value holds commas itself (``slo=ttft_p99=1,tpot_p99=0.1;…``).
Several keys may follow each other in one text, ``gpu=H100,H200,tp=1,2``: a part that begins with the name of a key and
``=`` begins that key. Whatever could be read in two ways is refused.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokonomics.errors import BadInput, nearest, shorten

_KEY = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s*=(.*)", re.DOTALL)
_RANGE = re.compile(r"\s*([0-9.eE+-]+?)\s*\.\.\s*([0-9.eE+-]+?)\s*(?::\s*([a-z]+))?\s*")
_HOW = "Such as --over gpu=H100,H200 --over rate=5,10,20; with --random N also ranges: --over rate=1..50:log."
MOST_VALUES = 10_000
"""Of one key."""


@dataclass(frozen=True)
class Listed:
    """Values to try, one by one."""

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


def read_over(texts: Sequence[str], keys: Mapping[str, str]) -> dict[str, Tried]:
    """What each key takes, in the order typed; ``keys`` are the known spellings and what each stands for."""
    found: dict[str, Tried] = {}
    for text in texts:
        for key, values in _split(text, keys):
            if key in found:
                raise BadInput(f"'{key}' is given twice", where="--over", fix="Write all its values in one list.")
            found[key] = _tried(key, values)
    if not found:
        raise BadInput("nothing to sweep over is named", where="--over", fix=_HOW)
    return found


def _split(text: str, keys: Mapping[str, str]) -> list[tuple[str, str]]:
    """``a=1,2,b=3`` → a and ``1,2``, b and ``3``."""
    begun = _KEY.fullmatch(text)
    if begun is None:
        raise BadInput(f"'{shorten(text)}' names no key and its values", where="--over", fix=_HOW)
    parts = [(_known(begun[1], keys), begun[2])]
    if ";" in text:
        return parts
    first, *rest = begun[2].split(",")
    parts = [(parts[0][0], first)]
    for part in rest:
        more = _KEY.fullmatch(part)
        if more is None:
            parts[-1] = parts[-1][0], f"{parts[-1][1]},{part}"
        elif _plain(more[1]) in keys:
            parts.append((keys[_plain(more[1])], more[2]))
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


def _known(name: str, keys: Mapping[str, str]) -> str:
    if _plain(name) in keys:
        return keys[_plain(name)]
    guesses = nearest(_plain(name), keys)
    hint = f"Did you mean {' or '.join(guesses)}?" if guesses else f"Known: {', '.join(sorted(set(keys.values())))}."
    raise BadInput(f"unknown key '{shorten(name)}'", where="--over", fix=hint)


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
    whole = all(re.fullmatch(r"[+-]?\d+", each) is not None for each in (ranged[1], ranged[2]))
    return Ranged(low, high, by_ratio=ranged[3] == "log", whole=whole)
