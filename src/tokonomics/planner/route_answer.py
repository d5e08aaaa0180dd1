"""What comes of sending requests to several models: ways, their parts, and the shares from which they pay."""

from datetime import date
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tokonomics.serving.outcome import SloOutcome
from tokonomics.serving.spread import Spread
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun

RouteKind = Literal["single", "routed", "labels", "cascade", "spill"]


class RoutePart(Noun):
    """What one model gets of a way, and what that costs."""

    model: str
    share: NonNegativeFloat
    """Of the requests that it answers; in a cascade the first model answers all that its context holds."""
    requests: NonNegativeInt
    """Of the traffic that is simulated."""
    tokens: NonNegativeInt
    """Of their prompts and answers."""
    usd_per_month: NonNegativeFloat
    replicas: NonNegativeInt | None
    """None: an API."""
    fleet: str
    machines: str
    """In short: ``2×H200``, or ``API``."""
    price_date: date | None = None
    """When the price of its machines was quoted; None: an API."""


class RouteWay(Noun):
    """One way to serve the traffic: what it costs, how long requests wait, how good the answers are."""

    kind: RouteKind
    name: str
    parts: tuple[RoutePart, ...]
    threshold: float | None = None
    """Of the score, from which the first model's answer is enough."""
    first_share: float
    """Of the requests, answered for good by the first model listed."""
    usd_per_month: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat
    quality: float | None
    simulated_share: float
    """Of the requests whose waits are simulated to their end: not those of an API."""
    ttft_s: Spread
    """Of those; of what a cascade asks an API again, the wait for the first model alone."""
    e2e_s: Spread
    slo: tuple[SloOutcome, ...]
    """By the same waits; none where all go to an API."""

    @property
    def meets(self) -> bool:
        return all(judged.met for judged in self.slo)


class RouteBreakEven(Noun):
    """From which share on two models together cost less than the second alone."""

    kind: Literal["routed", "cascade"]
    first: str
    second: str
    baseline_usd_per_month: float
    share: float | None
    """Of the requests that the first model must answer for good, as a threshold of the log really sends them; None: it
    never pays."""
    not_at_share: float | None = None
    """The share below it at which it does not pay yet, also one that a threshold reaches: it breaks even between them;
    0: with nothing on the first model."""
    threshold: float | None = None
    """Of the score, at that share; None where requests are drawn at random."""
    is_smallest: bool = False
    """No threshold sends fewer requests to the first model."""


class RouteReport(Noun):
    """Every way that was looked at."""

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    models: tuple[str, ...]
    """In the order asked, the API last."""
    too_long_requests: NonNegativeInt = 0
    """Of the traffic, left out of every bill: no model's context holds them."""
    too_long_tokens: NonNegativeInt = 0
    routed_by: Literal["score", "share"]
    labels: tuple[str, ...]
    scored: bool
    min_quality: float | None
    ways: tuple[RouteWay, ...]
    """All on one model first; then the best of each other kind."""
    frontier: tuple[RouteWay, ...]
    """Thresholds, and ways to send labels, by what they cost."""
    break_even: tuple[RouteBreakEven, ...]
    best: RouteWay | None
    """The cheapest that meets the SLOs and the floor of quality; None without scores or a floor, or where none does."""

    @property
    def baseline(self) -> RouteWay:
        """What routing is compared with: of single models the cheapest that reaches the floor; without scores, the
        cheapest but the first, unless only an API stands behind that."""
        singles = [way for way in self.ways if way.kind == "single"]
        good = [way for way in singles if way.quality is not None and way.quality >= (self.min_quality or 0.0)]
        if self.min_quality is not None and good:
            singles = good
        elif any(way.parts[0].replicas is not None for way in singles if way.parts[0].model != self.models[0]):
            singles = [way for way in singles if way.parts[0].model != self.models[0]]
        return min(singles, key=lambda way: way.usd_per_month)
