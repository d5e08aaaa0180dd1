"""Fields of a foreign JSON or YAML document, read with their place: what is wrong names the file and the field."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies
from tokonomics.traffic.slo import STATISTICS
from tokonomics.units import plural

_LARGEST = 1e19  # beyond any total of a benchmark, and any time in nanoseconds: a slip in the file
_ROUNDED = 0.05  # by which percentiles of a few requests, found in different ways, may cross


@dataclass(frozen=True)
class Format:
    """What one tool writes: how its documents are told by their keys, and the run that those of a file are."""

    name: str
    is_one: Callable[[dict[str, Any]], bool]
    read: Callable[[list[Any], str], BenchmarkRun]
    many: bool = True  # several documents in a file are several loads of one run

    def matches(self, document: Any) -> bool:
        return isinstance(document, dict) and self.is_one(document)


class ResultFields:
    """An object of a file, and where it is."""

    def __init__(self, values: Any, where: str, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise BadInput(f"'{path or 'the file'}' is not an object with fields", where=where)
        self.values: Mapping[str, Any] = values
        self.where = where
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def wrong(self, name: str, why: str) -> BadInput:
        return BadInput(f"field '{self._full(name)}' {why}", where=self.where)

    def inside(self, *names: str) -> "ResultFields":
        found = self
        for name in names:
            if name not in found:
                raise found.wrong(name, "is missing")
            found = ResultFields(found.values[name], self.where, found._full(name))
        return found

    def maybe(self, *names: str) -> "ResultFields":
        """The same; without fields where it is not there."""
        found = self
        for name in names:
            value = found.values.get(name)
            found = ResultFields(value if isinstance(value, Mapping) else {}, self.where, found._full(name))
        return found

    def number(self, name: str) -> float:
        found = self.maybe_number(name)
        if found is None:
            said = f"is '{shorten(str(self.values[name]))}', not a finite number" if name in self else "is missing"
            raise self.wrong(name, said)
        return found

    def maybe_number(self, name: str) -> float | None:
        """None where the field is missing, null, or infinite (\"inf\" says: no limit)."""
        value = self.values.get(name)
        if value is None or str(value).strip().lower() in ("inf", "infinity", "nan", "n/a", ""):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.wrong(name, "is not a number")
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise self.wrong(name, f"is not a number: '{shorten(str(value))}'") from None
        if not math.isfinite(number):
            return None
        if not 0 <= number <= _LARGEST:
            raise self.wrong(name, f"is {number:g}")
        return number

    def positive(self, name: str) -> float:
        found = self.number(name)
        if not found > 0:
            raise self.wrong(name, f"must be above 0, got {found:g}")
        return found

    def count(self, name: str) -> int:
        self.number(name)
        return self.maybe_count(name) or 0

    def maybe_count(self, name: str) -> int | None:
        found = self.maybe_number(name)
        if found is not None and found != round(found):
            raise self.wrong(name, f"is not a whole number: {found:g}")
        return None if found is None else round(found)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return shorten(value.strip(), 200) if isinstance(value, str) and value.strip() else None

    def numbers(self, name: str) -> list[float]:
        return [self._entry(name, at, value).number("") for at, value in self.listed(name)]

    def counts(self, name: str) -> list[int]:
        return [self._entry(name, at, value).count("") for at, value in self.listed(name)]

    def listed(self, name: str) -> Iterator[tuple[int, Any]]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "is not a list")
        return enumerate(value or ())

    def _entry(self, name: str, at: int, value: Any) -> "ResultFields":
        """One entry of a list, under the name that a message calls it by."""
        entry = ResultFields({"": value}, self.where, f"{self._full(name)}[{at}]")
        if value is None:
            raise entry.wrong("", "is null")
        return entry

    def _full(self, name: str) -> str:
        return f"{self.path}.{name}".strip(".") or "value"


KINDS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
"""The latencies of a load."""
UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def unit_s(metric: ResultFields, field: str, usual: str) -> float:
    """Seconds of the unit that a metric states under that name."""
    stated = metric.text(field) or usual
    unit = stated.lower().split("/")[0]
    if unit not in UNITS_S:
        raise BadInput(f"'{metric.path}' is in '{shorten(stated)}'; a unit of time was expected", where=metric.where)
    return UNITS_S[unit]


def spread(mean: float | None, percentiles: ResultFields, unit_s: float) -> Latencies | None:
    """A mean and the percentiles beside it, p50 and so on; None where there is nothing."""
    found = {name: mean if name == "mean" else percentiles.maybe_number(name) for name in STATISTICS}
    times = {name: value * unit_s for name, value in found.items() if value is not None}
    return Latencies(**times) if times else None


def stated_latencies(
    metrics: ResultFields, names: tuple[str, ...], mean: str, unit: str, usual: str
) -> dict[str, Latencies | None]:
    """TTFT, TPOT, ITL and whole answers under these names, each with its unit, which may lack where no figure is."""
    found: dict[str, Latencies | None] = {}
    for kind, name in zip(KINDS, names, strict=True):
        metric = metrics.maybe(name)
        told = any(metric.maybe_number(statistic) is not None for statistic in (mean, *STATISTICS))
        found[kind] = spread(metric.maybe_number(mean), metric, unit_s(metric, unit, usual)) if told else None
    return found


def named_latencies(fields: ResultFields, pattern: str, unit_s: float, e2e: str) -> dict[str, Latencies | None]:
    """The four latencies of a load under names such as ``{}_{}_ms``: the statistic (median for p50), then the kind."""
    kinds = zip(KINDS, ("ttft", "tpot", "itl", e2e), strict=True)
    return {name: _named_spread(fields, pattern, kind, unit_s) for name, kind in kinds}


def _named_spread(fields: ResultFields, pattern: str, kind: str, unit_s: float) -> Latencies | None:
    found: dict[str, float] = {}
    for statistic in STATISTICS:
        value = fields.maybe_number(pattern.format(statistic, kind))
        if value is None and statistic == "p50":
            value = fields.maybe_number(pattern.format("median", kind))
        if value is not None:
            found[statistic] = value * unit_s
    for lower, higher in pairwise(statistic for statistic in found if statistic != "mean"):
        if found[higher] < (1 - _ROUNDED) * found[lower]:
            raise fields.wrong(pattern.format(higher, kind), f"is below the {lower} of the same times")
        found[higher] = max(found[higher], found[lower])
    return Latencies(**found) if found else None


def users_of(limit: int | None, requests: int) -> dict[str, Any]:
    """A load of users at once; no more of them are ever at work than there are requests."""
    if limit is None or limit <= requests:
        return {"concurrency": limit}
    were = "was" if requests == 1 else "were"
    note = f"{limit:,} users were allowed, but there {were} {plural(requests, 'request')}"
    return {"concurrency": requests, "notes": (note,)}


def moment(text: str | None) -> datetime | None:
    """A date in any of the spellings the tools use; None where it is none."""
    for read in (datetime.fromisoformat, lambda text: datetime.strptime(text, "%Y%m%d-%H%M%S")):
        with suppress(ValueError):
            return read(text or "")
    return None


def unix_moment(seconds: float | None) -> datetime | None:
    """The same of unix seconds; None where no calendar has the day."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None
