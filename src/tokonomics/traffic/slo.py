"""Latency SLOs, such as "99 % of first tokens within half a second": ``ttft_p99=0.5,tpot_p99=0.05``."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.grammar import span_s
from tokonomics.types import Noun

PERCENTILES = (50, 90, 95, 99)
STATISTICS = (*(f"p{percentile}" for percentile in PERCENTILES), "mean")

_LONGEST_S = 120.0  # nobody waits two minutes for a first token: milliseconds without their unit

Seconds = Annotated[float, Field(gt=0, le=1e6)]


class Latency(StrEnum):
    """What a user waits for."""

    ttft = "ttft"
    """The first token, from the request's arrival."""
    tpot = "tpot"
    """Each token after the first, in the mean over one answer."""
    e2e = "e2e"
    """The last token, from the request's arrival."""
    job = "job"
    """The last answer of a session, from when its first request is sent: tools and pauses are in it."""


class Slo(Noun):
    """One line of a service level objective."""

    latency: Latency
    statistic: str
    """A percentile over requests (p50, p90, p95, p99) or their mean."""
    seconds: Seconds

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic}"

    @property
    def label(self) -> str:
        """``TTFT p99``."""
        name = self.latency.upper() if self.latency in (Latency.ttft, Latency.tpot) else self.latency.value
        return f"{name} {self.statistic}"


def parse_slos(text: str) -> tuple[Slo, ...]:
    """``ttft_p99=0.5,tpot_p99=50ms`` → SLOs; a name without a statistic means p99."""
    slos: dict[str, Slo] = {}
    for part in text.split(","):
        name, _, value = (piece.strip().lower() for piece in part.partition("="))
        latency, _, statistic = name.partition("_")
        statistic = statistic or "p99"
        if latency not in set(Latency) or statistic not in STATISTICS:
            fix = "Write such as ttft_p99=0.5,tpot_p90=50ms: ttft, tpot, e2e or job; p50, p90, p95, p99 or mean."
            raise BadInput(f"'{shorten(part.strip())}' is not an SLO", field="slo", fix=fix)
        # 50m is 50ms misspelt, but of jobs, which take minutes.
        seconds = span_s(value) if latency == Latency.job or not value.endswith(("m", "min", "h", "d")) else None
        if seconds is None or not 0 < seconds <= 1e6:
            said = f"'{shorten(part.strip())}' has no time above 0"
            raise BadInput(said, field="slo", fix="Write such as 0.5 or 500ms.")
        if latency not in (Latency.e2e, Latency.job) and seconds > _LONGEST_S:
            said = f"'{shorten(part.strip())}' is {seconds:g} seconds"
            raise BadInput(said, field="slo", fix=f"Did you mean {seconds:g}ms?")
        slo = Slo(latency=Latency(latency), statistic=statistic, seconds=seconds)
        if slos.setdefault(str(slo), slo) is not slo:
            raise BadInput("names the same SLO twice", field="slo")
    return tuple(slos.values())
