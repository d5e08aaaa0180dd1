"""Hold the answer of a plan: every way to serve a load with its bill, those set aside or refused, and the pick."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.catalog.places import Seller
from tokonomics.catalog.price_index import Outdated
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.layouts import Reason
from tokonomics.sizing.spare import NO_SPARE, Spare
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun

KV_CHOICES = (Precision.bf16, Precision.fp8)


Kind = tuple[str, int, Precision, int]  # a table shows one row for each


class Catch(StrEnum):
    """Why a cheaper candidate is set aside: it is shown below the pick, and taken only on request."""

    marketplace = "on a marketplace"
    uncertain_place = "in a region that is not certain"
    fewer_bits = "at fewer bits"
    assumed_speed = "at an assumed speed"
    old_price = "at an old price"
    drafting = "with drafting"
    offload = "with KV in the hosts' memory"
    disaggregated = "disaggregated prefill/decode"
    assumed_network = "over an assumed network"
    consumer_cards = "on several consumer cards"


LAST_RESORT = (Catch.assumed_speed, Catch.assumed_network, Catch.consumer_cards)
"""Catches that are better than no offer, in the order in which they are let in if nothing else serves the load."""


class PrefillSide(Noun):
    """The prefill replicas of a disaggregated candidate, on the same GPU at the same precisions."""

    replicas: int  # spare ones included
    gpus_per_replica: int
    tp: int
    pp: int
    ep: int
    dp: int
    max_batched_tokens: int  # in a step
    link: str  # over which each GPU sends KV
    link_bytes_per_s: float
    kv_transfer_s: float  # for a prompt of mean length
    together_breaks: str | None  # what breaks if as many GPUs in the decode layout do both; None: nothing


class Candidate(Bill):
    """A bill on one kind of machine: one way to serve the traffic, and where it is bought."""

    load_share: float  # of the replicas' capacity for requests of mean length, under the SLO on time per token
    capacity_requests_per_s: float  # of one replica, by the closed form
    limited_by: str  # what limits that: ``KV memory``, ``TPOT SLO``, ``replica's speed``…
    prefill: PrefillSide | None  # prefill replicas, if disaggregated
    instances: int
    gpus_paid: int
    provider: str
    region: str
    regions: tuple[str, ...]  # all of this provider's regions at this price; ``region`` is the first
    instance: str
    instance_usd_per_hour: float
    terms: Terms
    commitment_years: int | None  # of reserved machines: the longest quoted
    seller: Seller | None  # None if not known, as in a user's price list
    price_age_days: int
    price_source: str
    network: Literal["stated", "assumed"] | None = None  # between the machines of a replica; None: it is on one

    @property
    def kind(self) -> Kind:
        """Return the kind of hardware; a table shows one row for each."""
        return self.gpu, self.gpus_per_replica, self.weights, self.prefill.gpus_per_replica if self.prefill else 0

    @property
    def lacks_redundancy(self) -> bool:
        """Tell whether it is one machine, or one replica of a kind over several, with nothing beside it."""
        return self.instances == 1 or self.replicas == 1 or (self.prefill is not None and self.prefill.replicas == 1)

    @property
    def gpus_used(self) -> int:
        """Return the GPUs that replicas run on."""
        prompts = self.prefill_replicas * self.prefill.gpus_per_replica if self.prefill else 0
        return prompts + self.replicas * self.gpus_per_replica


class SetAside(Noun):
    """A cheaper candidate with a catch."""

    catch: Catch
    candidate: Candidate
    outdated: Outdated | None = None  # at an old price: what was quoted since, and how the market moved
    usd_per_month_if_moved: float | None = None  # its bill, had its price moved with the market


class Rejection(Noun):
    """A candidate that was not ranked, and why."""

    gpu: str
    layout: str | None = None  # such as ``TP=2 fp8``
    offers: int = 1  # number of the GPU's offers it stands for, if offers are to blame
    provider: str | None = None
    region: str | None = None
    instance: str | None = None
    kind: Reason
    reason: str


class Limits(Noun):
    """The user's limits."""

    max_utilization: float | None = Field(default=None, ge=0.01, le=1)
    """Share of the closed form's capacity; None: what the SLOs allow, or 70 % without simulation."""
    max_usd_per_gpu_hour: float | None = Field(default=None, gt=0)
    max_gpus: int | None = Field(default=None, gt=0)
    max_age_days: int | None = Field(default=None, ge=0)  # of a price; None: a year
    spare: Spare = NO_SPARE  # what may fail while every SLO is met


class Plan(Noun):
    """Every candidate that could be the pick, cheapest first, and every refusal."""

    model: str
    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    limits: Limits
    headroom_asked: float = 0.0
    """Share by which the traffic may grow with every SLO met; bills and latencies are of the traffic itself."""
    simulations: int  # simulations that decided it; 0: only the closed form
    best: Candidate | None
    only_with: tuple[Catch, ...] = ()  # what is assumed of the pick: nothing without it serves the load
    ranked: tuple[Candidate, ...]
    set_aside: tuple[SetAside, ...] = ()  # cheaper than the pick, each with a catch
    rejected: tuple[Rejection, ...]
    not_tried: dict[str, str] = Field(default_factory=dict)
    """Precisions whose quality is too low or unknown (``min_recovery``), and why."""

    def leaders(self, count: int) -> list[Candidate]:
        """Return the cheapest of each GPU, number of GPUs and precision, so that ten rows show ten choices."""
        seen: dict[Kind, Candidate] = {}
        for row in self.ranked:
            seen.setdefault(row.kind, row)
        return list(seen.values())[:count]

    def best_at_checkpoint(self) -> Candidate | None:
        """Return the cheapest that serves the model as it was published."""
        return next((row for row in self.ranked if not row.below_checkpoint), None)

    def runner_up(self) -> Candidate | None:
        """Return the cheapest on another kind of GPU."""
        return next((row for row in self.ranked if self.best and row.gpu != self.best.gpu), None)
