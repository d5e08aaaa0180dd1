"""Read fields of a foreign JSON or YAML document with their position, so that an error names the file and the field."""

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

_LARGEST = 1e19  # beyond any total of a benchmark, and any time in nanoseconds: a mistake in the file
_ROUNDED = 0.05  # share by which percentiles of a few requests, computed differently, may cross
_NO_NUMBER = ("inf", "infinity", "nan", "n/a", "trace", "")  # no limit, nothing measured, or SGLang's replayed arrivals


@dataclass(frozen=True)
class Format:
    """What one tool writes: how to recognise its documents, and how to read those of a file as one run."""

    name: str
    is_one: Callable[[dict[str, Any]], bool]
    read: Callable[[list[Any], str], BenchmarkRun]
    many: bool = True  # whether several documents in a file are several loads of one run

    def matches(self, document: Any) -> bool:
        return isinstance(document, dict) and self.is_one(document)


class ResultFields:
    """An object of a file, and its position there."""

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
        """Return the object inside, empty if there is none."""
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
        """Return the number, or None if the field is missing, null, or infinite ("inf" means no limit)."""
        value = self.values.get(name)
        if value is None or str(value).strip().lower() in _NO_NUMBER:
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
        return [ResultFields({place: value}, self.where).number(place) for place, value in self.listed(name)]

    def counts(self, name: str) -> list[int]:
        return [ResultFields({place: value}, self.where).count(place) for place, value in self.listed(name)]

    def objects(self, name: str) -> list["ResultFields"]:
        return [ResultFields(value, self.where, place) for place, value in self.listed(name)]

    def listed(self, name: str) -> Iterator[tuple[str, Any]]:
        """Return the entries of a list, each with its position in the file."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "is not a list")
        return ((f"{self._full(name)}[{at}]", entry) for at, entry in enumerate(value or ()))

    def _full(self, name: str) -> str:
        return f"{self.path}.{name}".strip(".")


KINDS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")  # the latencies of a load
UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def unit_s(metric: ResultFields, field: str, usual: str) -> float:
    """Return the seconds of the unit that a metric states under that name."""
    stated = metric.text(field) or usual
    unit = stated.lower().split("/")[0]
    if unit not in UNITS_S:
        raise BadInput(f"'{metric.path}' is in '{shorten(stated)}'; a unit of time was expected", where=metric.where)
    return UNITS_S[unit]


def spread(fields: ResultFields, unit_s: float, pattern: str = "{}", mean: str = "mean") -> Latencies | None:
    """Return one latency whose statistics have names such as ``{}_ttft_ms``; None if there is none of them."""
    found: dict[str, float] = {}
    for statistic in STATISTICS:
        value = fields.maybe_number(pattern.format(mean if statistic == "mean" else statistic))
        if value is None and statistic == "p50":
            value = fields.maybe_number(pattern.format("median"))
        if value is not None:
            found[statistic] = value * unit_s
    for lower, higher in pairwise(statistic for statistic in found if statistic != "mean"):
        if found[higher] < (1 - _ROUNDED) * found[lower]:
            raise fields.wrong(pattern.format(higher), f"is below the {lower} of the same times")
        found[higher] = max(found[higher], found[lower])
    return Latencies(**found) if found else None


def flat_latencies(fields: ResultFields, unit_s: float, *patterns: str) -> dict[str, Latencies | None]:
    """Return TTFT, TPOT, ITL and whole answers of a flat object, one pattern each."""
    return {kind: spread(fields, unit_s, pattern) for kind, pattern in zip(KINDS, patterns, strict=True)}


def stated_latencies(
    metrics: ResultFields, names: tuple[str, ...], mean: str, unit: str, usual: str
) -> dict[str, Latencies | None]:
    """Return TTFT, TPOT, ITL and whole answers, an object each with its unit; one without figures may have any unit."""
    found: dict[str, Latencies | None] = {}
    for kind, name in zip(KINDS, names, strict=True):
        metric = metrics.maybe(name)
        has_figure = any(metric.maybe_number(statistic) is not None for statistic in (mean, "median", *STATISTICS))
        found[kind] = spread(metric, unit_s(metric, unit, usual), mean=mean) if has_figure else None
    return found


def load_of(rate: float | None, limit: float | None, requests: int) -> dict[str, Any]:
    """Return the fields of a load: a rate, or users, who are never more than the requests."""
    if rate is not None:
        return {"rate": rate}
    if not limit or round(limit) <= requests:
        return {"concurrency": round(limit) if limit else None}
    note = f"{round(limit):,} users were allowed, but the run has {plural(requests, 'request')}"
    return {"concurrency": requests, "notes": (note,)}


def moment(value: Any) -> datetime | None:
    """Read a date in any of the tools' spellings, or in unix seconds; None if it is neither."""
    if hasattr(value, "isoformat"):  # as YAML reads it
        return value  # type: ignore[no-any-return]
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC) if value else None
        for read in (datetime.fromisoformat, lambda text: datetime.strptime(text, "%Y%m%d-%H%M%S")):
            with suppress(ValueError):
                return read(value or "")
    return None
