"""The samples of a metrics page that the meter needs, out of the hundreds it has.

A page in the Prometheus text format is searched for the wanted names with one regular expression, and only those
lines go to ``prometheus_client``'s parser. Types are left out on purpose: with them the parser renames samples
(``llamacpp:n_tokens_max`` becomes ``…_max_total``), so names here are the ones on the page.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tokonomics.errors import shorten
from tokonomics.measure.meter.readings import Missed


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def finder(names: Iterable[str]) -> re.Pattern[str]:
    """Finds the lines of these samples."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"^(?:{'|'.join(map(re.escape, longest_first))})[{{ \t].*$", re.MULTILINE)


def samples_of(page: str, wanted: re.Pattern[str]) -> list[Sample]:
    """The wanted samples, in the page's order; numbers that are none are left out."""
    from prometheus_client.parser import text_string_to_metric_families

    if page and not page.endswith("\n"):
        # The format ends with a line feed: without one the last number may be cut, and would read as a restart.
        raise Missed("the page is cut off")
    lines = [match.group() for match in wanted.finditer(page)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise Missed(f"the page is not in the Prometheus text format: {shorten(str(error), 100)}") from None
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if math.isfinite(sample.value)
    ]


def prefixes_of(page: str, most: int = 8) -> list[str]:
    """What families of names a page has, to say what was found."""
    found: dict[str, None] = {}
    for match in re.finditer(r"^([a-zA-Z]+)[_:a-zA-Z0-9]*[{ ]", page, re.MULTILINE):
        found.setdefault(match.group(1))
        if len(found) == most:
            break
    return list(found)
