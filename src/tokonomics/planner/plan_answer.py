"""What a plan answers: every way to serve a load with its bill, why others are set aside or refused, and the pick."""

from datetime import date
from enum import StrEnum

from pydantic import Field

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.places import Seller
from tokonomics.catalog.precision import Precision
from tokonomics.money.cost import CostTree, TokenPrices
from tokonomics.physics.calibration import Coverage
from tokonomics.physics.speculation import DraftMethod
from tokonomics.planner.search import Kind
from tokonomics.serving.fleet import Router
from tokonomics.serving.spread import Spread
from tokonomics.sizing.refusal import Reason
from tokonomics.sizing.spare import NO_SPARE, Spare
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun, Speed

KV_CHOICES = (Precision.bf16, Precision.fp8)


class Catch(StrEnum):
    """Why a cheaper way is set aside: it is shown below the pick, and taken only where it is asked for."""

    marketplace = "on a marketplace"
    fewer_bits = "at fewer bits"
    assumed_speed = "at an assumed speed"
    old_price = "at an old price"
    drafting = "with drafting"
    offload = "with KV in the hosts' memory"
    disaggregated = "disaggregated prefill/decode"


class CandidateDraft(Noun):
    """How a candidate drafts."""

    method: DraftMethod
    name: str
    """Such as ``mtp:3``."""
    tokens: int
    """Drafted in a round."""
    acceptance: float
    """Of a drafted token."""
    tokens_per_round: float
    checkpoint: str | None
    """Where the draft is found, where it is not in the model's own."""
    source: str | None
    """Who published the acceptance; None: it was given."""


class PrefillSide(Noun):
    """The replicas of a disaggregated candidate that compute prompts only, on the same GPU at the same precisions."""

    replicas: int
    """Spare ones included."""
    gpus_per_replica: int
    tp: int
    pp: int
    ep: int
    dp: int
    max_batched_tokens: int
    """Of a step."""
    link: str
    """What each GPU sends KV over."""
    link_bytes_per_s: float
    kv_transfer_s: float
    """Of a prompt of mean length."""
    together_breaks: str | None
    """What breaks where as many GPUs, in the layout that answers, do both; None: nothing."""


class CandidateJob(Noun):
    """What a session of the traffic costs and takes on a candidate."""

    requests: float
    """In the mean."""
    per_s: float
    """Sessions that start in a second."""
    usd: float
    """Its share of the whole bill."""
    job_s: Spread | None
    """From the first request to the last answer; None where nothing was simulated."""
    server_share: float | None
    """Of that time, with the server; the rest are pauses."""
    cached_share: float | None
    """Of the prompt tokens."""


class Candidate(Noun):
    """One way to serve the traffic, with what it costs."""

    model: str
    gpu: str
    gpus_per_replica: int
    tp: int
    pp: int
    ep: int
    dp: int
    weights: Precision
    kv: Precision
    tiers: str | None = None
    """Memories for KV behind the GPUs', of each replica, as asked for or as the hosts have left."""
    engine: str
    max_sequences: int
    """At a time on a replica: the engine's own limit, or a lower one that meets the SLO on time per token."""
    router: Router
    """How requests find their replica."""
    provider: str
    region: str
    instance: str
    terms: Terms
    commitment_years: int | None
    """Of reserved machines: the longest that is quoted."""
    instance_usd_per_hour: float
    regions: tuple[str, ...]
    """All of this provider's at this price, the first of them ``region``."""
    seller: Seller | None
    """None where that is not known, as in a price list of one's own."""
    price_date: date
    price_age_days: int
    price_stale: bool
    price_source: str
    replicas: int
    """Spare ones included; of a disaggregated one, those that answer."""
    prefill: PrefillSide | None = None
    """Of a disaggregated one: the replicas that compute prompts."""
    instances: int
    gpus_paid: int
    batch: float
    """Sequences running on a replica, in the mean."""
    simulated: bool
    ttft_s: Spread
    """Of simulated requests; only the mean where it is the closed form's."""
    tpot_s: Spread
    e2e_s: Spread
    load_share: float
    """Of what the replicas hold, for requests of mean length, under the SLO on time per token."""
    speed: Speed
    """Whether the kernels behind the speed were timed on this GPU, or are another's scaled by the datasheet."""
    speed_from: tuple[str, ...]
    """Those other GPUs."""
    profiled: Coverage | None = None
    """Whether the profile in use was measured on this layout; None without a profile."""
    capacity_requests_per_s: float
    """Of one replica, closed form."""
    limited_by: str
    """What keeps that from growing: ``KV memory``, ``TPOT SLO``, ``replica's speed``…"""
    usd_per_month: float
    usd_per_mtok: TokenPrices
    """Reservation basis: the whole bill."""
    usd_per_mtok_usage: float
    """Blended, usage basis: only the share of the paid capacity that the traffic takes."""
    cached_share: float = 0.0
    """Of the prompt tokens: found in the prefix cache."""
    job: CandidateJob | None = None
    """Of traffic in sessions."""
    draft: CandidateDraft | None = None
    """None: nothing drafts."""
    below_checkpoint: bool
    """Weights or KV cache are held at fewer bits than was published: check quality."""
    bill: CostTree

    @property
    def kind(self) -> Kind:
        """What a table shows one row of."""
        return self.gpu, self.gpus_per_replica, self.weights, self.prefill.gpus_per_replica if self.prefill else 0

    @property
    def lacks_redundancy(self) -> bool:
        """One machine, or one replica of a kind over several, and nothing beside it."""
        return self.instances == 1 or self.replicas == 1 or (self.prefill is not None and self.prefill.replicas == 1)

    @property
    def gpus_used(self) -> int:
        """GPUs that replicas run on."""
        prompts = self.prefill.replicas * self.prefill.gpus_per_replica if self.prefill else 0
        return prompts + self.replicas * self.gpus_per_replica


class SetAside(Noun):
    """A cheaper way with a catch."""

    catch: Catch
    candidate: Candidate


class Rejection(Noun):
    """A candidate that was not ranked, and why."""

    gpu: str
    layout: str | None = None
    """Such as ``TP=2 fp8``."""
    offers: int = 1
    """How many of the GPU's offers it stands for, where offers are to blame."""
    provider: str | None = None
    region: str | None = None
    instance: str | None = None
    kind: Reason
    reason: str


class Limits(Noun):
    """What the user will not go beyond."""

    max_utilization: float | None = Field(default=None, ge=0.01, le=1)
    """Of the closed form's capacity; None: what the SLOs allow, or 70 % without simulation."""
    max_usd_per_gpu_hour: float | None = Field(default=None, gt=0)
    max_gpus: int | None = Field(default=None, gt=0)
    max_age_days: int | None = Field(default=None, ge=0)
    """Of a price; None: a year."""
    spare: Spare = NO_SPARE
    """What may fail without an SLO missed."""


class Plan(Noun):
    """Every candidate that could be the pick, cheapest first, and every refusal."""

    model: str
    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    limits: Limits
    simulations: int
    """How many decided it; 0: the closed form alone."""
    best: Candidate | None
    ranked: tuple[Candidate, ...]
    set_aside: tuple[SetAside, ...] = ()
    """Cheaper than the pick, each with a catch."""
    rejected: tuple[Rejection, ...]
    not_tried: dict[str, str] = Field(default_factory=dict)
    """Precisions whose quality is too low or unknown (``min_recovery``), and why."""

    def leaders(self, count: int) -> list[Candidate]:
        """The cheapest of each GPU, number of GPUs and precision, so that ten rows show ten choices."""
        seen: dict[Kind, Candidate] = {}
        for row in self.ranked:
            seen.setdefault(row.kind, row)
        return list(seen.values())[:count]

    def best_at_checkpoint(self) -> Candidate | None:
        """The cheapest that serves the model as it was published."""
        return next((row for row in self.ranked if not row.below_checkpoint), None)

    def runner_up(self) -> Candidate | None:
        """The cheapest on another kind of GPU."""
        return next((row for row in self.ranked if self.best and row.gpu != self.best.gpu), None)
