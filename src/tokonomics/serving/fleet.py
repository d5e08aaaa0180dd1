"""The replicas a simulation runs on: how many, how requests find them, and what happens to them."""

import math
from bisect import bisect_right
from enum import StrEnum

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tokonomics.physics.deployment import Deployment
from tokonomics.serving.links import PORTS
from tokonomics.types import Noun

LINK_BYTES_PER_S = PORTS["ib400"]
"""Of one GPU to another machine, unless told."""
_MOST_REPLICAS = 10_000
"""Routers look at every one of them for every request, and a request keeps the number of its own in 16 bits."""

_MOST_RETRIES = 20
FIRST_BACKOFF_S = 0.5
"""What the clients of OpenAI and Anthropic wait before they try again, then twice as long (``INITIAL_RETRY_DELAY`` in
openai-python's and anthropic-sdk-python's ``_constants.py``, 2026-11)."""


class Router(StrEnum):
    """How a request finds its replica."""

    round_robin = "round-robin"
    least_outstanding = "least-outstanding"
    power_of_two = "power-of-two"
    prefix_aware = "prefix-aware"
    session_affine = "session-affine"

    @property
    def code(self) -> int:
        """Its number in the compiled loop (``routing``)."""
        return list(Router).index(self)


class Autoscale(Noun):
    """Replicas that come and go: one for so many outstanding requests, and as many as a schedule says at the least."""

    min_replicas: NonNegativeInt = 1
    max_replicas: PositiveInt = Field(le=_MOST_REPLICAS)
    target: PositiveFloat | None  # outstanding requests, running and waiting, for each replica; None: by schedule alone
    cold_start_s: NonNegativeFloat = Field(le=86_400)
    """From the decision to the first request: a machine, an image, weights."""
    interval_s: float = Field(default=15.0, ge=0.1, le=86_400)
    """How often it looks; the defaults are those of Kubernetes' HorizontalPodAutoscaler."""
    hold_s: NonNegativeFloat = Field(default=300.0, le=7 * 86_400)  # how long fewer must do before one is removed
    schedule: tuple[tuple[NonNegativeFloat, NonNegativeInt], ...] = ()
    """From each moment on, at least so many, in order of time; those of time 0 are there at the start."""

    @model_validator(mode="after")
    def _serves_in_the_end(self) -> "Autoscale":
        if self.target is None and not self.least(math.inf):
            raise ValueError("a schedule by itself ends with one replica at least")
        return self

    def least(self, at_s: float) -> int:
        """Replicas that are wanted at a moment whatever is outstanding."""
        place = bisect_right(self.schedule, at_s, key=lambda entry: entry[0])
        planned = self.schedule[place - 1][1] if place else 0
        return min(max(planned, self.min_replicas), self.max_replicas)


class Outage(Noun):
    """A replica that fails, or that a spot market takes back."""

    replica: NonNegativeInt
    at_s: NonNegativeFloat
    down_s: PositiveFloat | None = None  # how long it is away; None: for good
    notice_s: NonNegativeFloat = 0.0  # it gets no new requests from this long before
    reclaimed: bool = False  # a spot market took the machine back: it is not paid for while it is away

    @property
    def back_s(self) -> float:
        return math.inf if self.down_s is None else self.at_s + self.down_s


class FleetSettings(Noun):
    """Replicas behind a router."""

    replicas: PositiveInt = Field(default=1, le=_MOST_REPLICAS)
    router: Router = Router.least_outstanding
    autoscale: Autoscale | None = None
    outages: tuple[Outage, ...] = ()
    prefill_replicas: NonNegativeInt = Field(default=0, le=_MOST_REPLICAS)
    """Replicas that compute prompts only and send the KV on; 0: every replica does both."""
    prefill: Deployment | None = None
    """What they are; None: the same as those that answer."""
    prefill_max_sequences: PositiveInt | None = None
    """At a time on one of them; None: the engine's own limit."""
    prefill_max_batched_tokens: PositiveInt | None = None
    """Tokens of a step there; None: as many as on the others."""
    link_bytes_per_s: PositiveFloat = LINK_BYTES_PER_S  # of each GPU of a prefill replica, and of each of a decode one
    users: int | None = None
    """A closed loop on one replica: each user sends the next request when their last was answered."""
    closed: bool = True
    """Where the trace says who waits for whose answer, requests are sent then; False: at the trace's times."""
    retries: NonNegativeInt = Field(default=0, le=_MOST_RETRIES)
    """How often a client sends a request again that timed out."""
    backoff_s: NonNegativeFloat = Field(default=FIRST_BACKOFF_S, le=86_400)
    """From the first time-out to the next attempt; then twice as long each time."""
