"""Describe the replicas of a simulation: how many, their router, autoscaling and outages, and the KV link between them.

A link's rate is that of one GPU in one direction. ``nvlink`` and ``pcie`` are the GPU's own, from the catalogue; the
others are one network port per GPU, as in machines of eight.
"""

import math
from bisect import bisect_right
from enum import StrEnum

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tokonomics.catalog.gpus import Gpu
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.physics.deployment import Deployment
from tokonomics.types import Noun
from tokonomics.units import BYTES_PER_GB

PORTS = {"ib800": 100e9, "ib400": 50e9, "ib200": 25e9, "roce400": 50e9, "ethernet100": 12.5e9}
"""Bytes a second of one port, in one direction."""
LINK_BYTES_PER_S = PORTS["ib400"]  # of one GPU to another machine, by default
_MOST_REPLICAS = 10_000
"""Routers look at every replica for every request, and a request stores its replica's number in 16 bits."""

_MOST_RETRIES = 20
FIRST_BACKOFF_S = 0.5
"""The clients of OpenAI and Anthropic wait this long before the first retry, then twice as long each time
(``INITIAL_RETRY_DELAY`` in openai-python's and anthropic-sdk-python's ``_constants.py``, 2026-11)."""


class Router(StrEnum):
    """The rule by which a request is sent to a replica."""

    round_robin = "round-robin"
    least_outstanding = "least-outstanding"
    power_of_two = "power-of-two"
    prefix_aware = "prefix-aware"
    session_affine = "session-affine"

    @property
    def code(self) -> int:
        """Return the router's number in the compiled loop (``routing``)."""
        return list(Router).index(self)


class Autoscale(Noun):
    """An autoscaling rule: one replica per ``target`` outstanding requests, and at least what a schedule says."""

    min_replicas: NonNegativeInt = 1
    max_replicas: PositiveInt = Field(le=_MOST_REPLICAS)
    target: PositiveFloat | None  # outstanding requests, running and waiting, per replica; None: schedule only
    cold_start_s: NonNegativeFloat = Field(le=86_400)
    """From the decision to the first request: a machine, an image, weights."""
    interval_s: float = Field(default=15.0, ge=0.1, le=86_400)
    """How often it looks; the defaults are those of Kubernetes' HorizontalPodAutoscaler."""
    hold_s: NonNegativeFloat = Field(default=300.0, le=7 * 86_400)  # a replica leaves after fewer did for this long
    schedule: tuple[tuple[NonNegativeFloat, NonNegativeInt], ...] = ()
    """From each moment on, at least this many replicas, in order of time; those of time 0 are there at the start."""

    @model_validator(mode="after")
    def _serves_in_the_end(self) -> "Autoscale":
        if self.target is None and not self.least(math.inf):
            raise ValueError("a schedule by itself ends with one replica at least")
        return self

    def least(self, at_s: float) -> int:
        """Return the replicas wanted at a moment, whatever is outstanding."""
        place = bisect_right(self.schedule, at_s, key=lambda entry: entry[0])
        planned = self.schedule[place - 1][1] if place else 0
        return min(max(planned, self.min_replicas), self.max_replicas)


class Outage(Noun):
    """A replica that fails or that a spot market takes back."""

    replica: NonNegativeInt
    at_s: NonNegativeFloat
    down_s: PositiveFloat | None = None  # how long it is away; None: for good
    notice_s: NonNegativeFloat = 0.0  # it gets no new requests for this long before
    reclaimed: bool = False  # whether a spot market took the machine back: it is not paid while away

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
    """Prefill replicas, which send the KV on; 0: every replica does both."""
    prefill: Deployment | None = None  # their deployment; None: the same as for decode
    prefill_max_sequences: PositiveInt | None = None  # on one of them at a time; None: the engine's own limit
    prefill_max_batched_tokens: PositiveInt | None = None  # tokens of a step there; None: as on decode replicas
    link_bytes_per_s: PositiveFloat = LINK_BYTES_PER_S  # of each GPU of a prefill or decode replica
    users: int | None = None
    """A closed loop on one replica: each user sends the next request when their last was answered."""
    closed: bool = True
    """True: a request that waits for an answer is sent after it. False: requests are sent at the trace's times."""
    retries: NonNegativeInt = Field(default=0, le=_MOST_RETRIES)  # how often a client retries a request that timed out
    backoff_s: NonNegativeFloat = Field(default=FIRST_BACKOFF_S, le=86_400)
    """From the first time-out to the next attempt; then twice as long each time."""


SOURCES = {
    "ib800": "NVIDIA DGX B300 datasheet, 2025: eight ConnectX-8 of 800 Gbit/s, one for each GPU",
    "ib400": "NVIDIA DGX H100 datasheet, 2023: eight ConnectX-7 of 400 Gbit/s, one for each GPU",
    "ib200": "NVIDIA DGX A100 datasheet, 2020: eight ConnectX-6 of 200 Gbit/s, one for each GPU",
    "roce400": "Gangidi et al., RDMA over Ethernet for distributed AI training at Meta scale, SIGCOMM 2024",
    "ethernet100": "IEEE 802.3ba: 100 Gbit/s",
}
"""The source of each rate."""
OWN = ("nvlink", "pcie")  # links inside a machine, as fast as the GPU's
LINK_NAMES = (*OWN, *PORTS)
_SLOWEST_GB, _FASTEST_GB = 1e-3, 1e6


def link_speed(text: str, *gpus: Gpu) -> float:
    """Return the bytes a second of a link between such GPUs, given by name or in GB/s."""
    name = text.strip().lower()
    if name in PORTS:
        return PORTS[name]
    if name in OWN:
        speeds = [gpu.pcie_bytes_per_s if name == "pcie" else gpu.fast_link_bytes_per_s for gpu in gpus]
        if missing := [gpu.key for gpu, speed in zip(gpus, speeds, strict=True) if speed is None]:
            fix = f"Use {option('link', 'pcie')}, or a network such as {option('link', 'ib400')}."
            raise BadInput(f"{missing[0]} has no NVLink or link like it", field="link", fix=fix)
        return min(speed for speed in speeds if speed is not None)
    try:
        gigabytes = float(name)
    except ValueError:
        guess = did_you_mean(name, LINK_NAMES, 1) or ""
        fix = f"Give GB/s, or one of {', '.join(LINK_NAMES)}. {guess}".rstrip()
        raise BadInput(f"'{shorten(text)}' is no link", field="link", fix=fix) from None
    if not _SLOWEST_GB <= gigabytes <= _FASTEST_GB:
        raise BadInput(f"must be from 0.001 to a million GB/s, got {gigabytes:g}", field="link")
    return gigabytes * BYTES_PER_GB


def network_of(gpu: Gpu) -> str:
    """Name the network link of a GPU: a port's name, or its GB/s."""
    return _port(gpu.network_bytes_per_s) or f"{gpu.network_bytes_per_s / BYTES_PER_GB:g}"


def network_text(gpu: Gpu) -> str:
    """Describe the network that machines with such GPUs are assumed to have, with its source."""
    name = _port(gpu.network_bytes_per_s)
    source = SOURCES[name] if name else "as the GPU's entry in the catalogue says"
    return f"{gpu.network_bytes_per_s * 8 / 1e9:g} Gbit/s a GPU, assumed: {source}"


def _port(bytes_per_s: float) -> str | None:
    return next((name for name, rate in PORTS.items() if rate == bytes_per_s), None)
