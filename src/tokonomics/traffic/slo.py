"""Latency SLOs, such as "99 % of first tokens within half a second": ``ttft_p99=0.5,tpot_p99=0.05``."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tokonomics.errors import BadInput, shorten
from tokonomics.types import Noun

PERCENTILES = (50, 90, 95, 99)
STATISTICS = (*(f"p{percentile}" for percentile in PERCENTILES), "mean")

_LONGEST_S = 120.0
"""Nobody SLOs two minutes to a first token: milliseconds without their unit."""

Seconds = Annotated[float, Field(gt=0, le=1e6)]


class Latency(StrEnum):
    """What a user waits for."""

    ttft = "ttft"
    """The first token, from the request's arrival."""
    tpot = "tpot"
    """Each token after the first, in the mean over one answer."""
    e2e = "e2e"
    """The last token, from the request's arrival."""


class Slo(Noun):
    """One line of a service level objective."""

    latency: Latency
    statistic: str
    """A percentile over requests (p50, p90, p95, p99) or their mean."""
    seconds: Seconds

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic}"


def parse_slos(text: str, field: str = "slo") -> tuple[Slo, ...]:
    """``ttft_p99=0.5,tpot_p99=50ms`` → SLOs; a name without a statistic means p99."""
    made = []
    for part in text.split(","):
        name, _, value = (each.strip().lower() for each in part.partition("="))
        latency, _, statistic = name.partition("_")
        statistic = statistic or "p99"
        if latency not in set(Latency) or statistic not in STATISTICS:
            raise BadInput(
                f"'{shorten(part.strip())}' is not an SLO",
                field=field,
                fix="Write such as ttft_p99=0.5,tpot_p90=50ms: ttft, tpot or e2e; p50, p90, p95, p99 or mean.",
            )
        bound = _seconds(value, part, field)
        if latency != Latency.e2e and bound > _LONGEST_S:
            raise BadInput(
                f"'{shorten(part.strip())}' is {bound:g} seconds",
                field=field,
                fix=f"Did you mean {bound:g}ms?",
            )
        made.append(Slo(latency=Latency(latency), statistic=statistic, seconds=bound))
    names = [str(each) for each in made]
    if len(set(names)) < len(names):
        raise BadInput("names the same latency twice", field=field)
    return tuple(made)


def _seconds(text: str, part: str, field: str) -> float:
    scale = 1.0
    if text.endswith("ms"):
        text, scale = text[:-2], 1e-3
    elif text.endswith("s"):
        text = text[:-1]
    try:
        value = float(text) * scale if text.isascii() else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e6:
        raise BadInput(f"'{shorten(part.strip())}' has no time above 0", field=field, fix="Write such as 0.5 or 500ms.")
    return value
