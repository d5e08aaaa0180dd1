"""Define what the questions return: the nouns of the layers below, put together as ``--json`` prints them."""

import datetime as dt
from typing import Any

from pydantic import Field

from tokonomics.catalog.checkpoints import Checkpoint, Recovery
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.catalog.places import Seller
from tokonomics.deploy.job import DeployFile
from tokonomics.errors import by_name, flag, spelled
from tokonomics.measure.benchmark_run import ApiLatency
from tokonomics.measure.priced_run import PricedRun
from tokonomics.money.attribution import FleetSale
from tokonomics.money.breakeven import Upkeep
from tokonomics.money.own_hardware import Energy
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import ApiBeside
from tokonomics.planner.by_hour import ReplicasByHour
from tokonomics.planner.class_report import ClassReport
from tokonomics.planner.compare import Comparison
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import CostRange, Flips, Regret, SafeFleet, SloRoom
from tokonomics.planner.frontier import Frontier
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.plan_answer import Candidate, Plan, PrefillSide
from tokonomics.planner.shared_ways import Crossing, SharedPlan
from tokonomics.planner.vary import Headroom, Sensitivity
from tokonomics.planner.why import WhyPick
from tokonomics.questions.result import Result, beside
from tokonomics.serving.class_outcome import FirstAnswer
from tokonomics.traffic.arrivals import DemandSwing
from tokonomics.traffic.sessions import LogPace
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Marked, Noun
from tokonomics.units import usd


class OneNoun(Result):
    """A result that is one noun of a layer below."""

    noun: Any

    def plain(self) -> Any:
        return self.noun.model_dump(mode="json")


class RefreshResult(OneNoun):
    """The outcome of a refresh of the prices."""

    @property
    def is_found(self) -> bool:
        """Tell whether any provider could be read."""
        return self.noun.path is not None


def split_text(row: Candidate | PrefillSide) -> str:
    """Return ``TP=4`` or ``TP=8 EP=8``; ``–`` on one GPU."""
    degrees = (("TP", row.tp), ("PP", row.pp), ("EP", row.ep), ("DP", row.dp))
    return " ".join(f"{name}={degree}" for name, degree in degrees if degree > 1) or "–"


def replicas_text(row: Candidate) -> str:
    """Return ``2 × 4 H100-SXM``; ``1 × 2 + 2 × 4 H100-SXM`` if one replica does prefill and two decode."""
    prompts = f"{row.prefill.replicas:,} × {row.prefill.gpus_per_replica} + " if row.prefill else ""
    return f"{prompts}{row.replicas:,} × {row.gpus_per_replica} {row.gpu}"


def layout_text(row: Candidate) -> str:
    """Return ``2 × (4×H100-SXM, TP=4, fp8, KV fp8)``; prefill replicas come first, if there are any."""
    split = f", {split_text(row)}" if row.gpus_per_replica > 1 else ""
    kv = f", KV {row.kv}" if row.kv.is_below(Precision.bf16) else ""
    drafts = f", drafts {row.draft.name}" if row.draft else ""
    answers = f"{row.replicas:,} × ({row.gpus_per_replica}×{row.gpu}{split}, {row.weights}{kv}{drafts})"
    if row.prefill is None:
        return answers
    split = f", {split_text(row.prefill)}" if row.prefill.gpus_per_replica > 1 else ""
    return f"{row.prefill.replicas:,} × ({row.prefill.gpus_per_replica}×{row.gpu}{split}) prefill + {answers} decode"


class AskedModel(Noun):
    """One of several models that are planned together."""

    model: str
    name: str
    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    swing: DemandSwing | None = None  # how its traffic changes over a day or week; None: it is even


class PlanTogether(SharedPlan):
    """Several models on one GPU or on their own, and the traffic at which the choice changes."""

    asked: tuple[AskedModel, ...]
    crossing: Crossing | None
    apis: dict[str, ApiBeside] = Field(default_factory=dict)  # by model: its cheapest API, beside its part of the bill

    def headline(self) -> str:
        """Describe the cheapest way in one line."""
        if self.best is None:
            return "no way meets every SLO"
        return f"{usd(self.best.usd_per_month)} a month, {self.best.way.value} ({self.best.gpu})"


class PickHost(Noun):
    """Machines that can run the pick, and its monthly cost on them."""

    provider: str
    instance: str
    regions: tuple[str, ...]  # all of the provider's regions at this price
    seller: Seller | None
    terms: Terms
    commitment_years: int | None
    instances: int
    instance_usd_per_hour: float
    usd_per_month: float
    price_date: dt.date
    price_stale: bool


class PlanResult(Result, Plan):
    """Every candidate that could be the pick, cheapest first, how firm the pick is, and every refusal."""

    ROWS = "ranked"

    headroom: Headroom | None = None  # how much the traffic may grow on the same replicas
    bill_range: CostRange | None = None  # over the 80 % interval of the speed
    safe: SafeFleet | None = None
    """The cheapest fleet that holds at the slow end of its interval; None: no candidate does."""
    slo_rooms: tuple[SloRoom, ...] = ()  # how far below each target the pick is
    flips: Flips | None = None  # what would make another choice cheaper; with ``explain`` also changes of the traffic
    sensitivity: Sensitivity | None = None  # what moves the bill, with ``explain``
    why: WhyPick | None = None  # why the pick won, beside the nearest alternative of each kind
    ratios: tuple[RatioPoint, ...] = ()
    """What the GPUs of the cheapest disaggregated candidate hold at each split, with ``explain``."""
    frontier: Frontier | None = None
    """Price against latency: fleets that no other beats, each with whether it meets the SLOs, and why not."""
    apis: tuple[ApiCost, ...] = ()
    """What each host that sells the model as an API charges for these requests, cheapest first."""
    swing: DemandSwing | None = None  # how the traffic changes over a day or week; None: it is even
    by_hour: ReplicasByHour | None = None  # what each hour needs of the pick; None: all need the same, or not known
    fleet_command: str | None = None  # the command that buys by the hour, on all terms, if hours differ
    api: ApiBeside | None = None  # the cheapest of them that counts, beside the pick; None: nobody sells the model
    latencies: dict[str, ApiLatency] = Field(default_factory=dict)
    """How fast the measured APIs answer, by name."""
    hosts: tuple[PickHost, ...] = ()  # every machine that can run the pick, cheapest first
    rival: Candidate | None = None  # the cheapest on another kind of GPU
    at_checkpoint: Candidate | None = None  # the cheapest that serves the model as it was published
    left_out: dict[str, Marked] = Field(default_factory=dict)
    """Requested providers, regions and GPUs that offer nothing to buy, and why."""
    discounts: dict[str, float] = Field(default_factory=dict)  # shares taken off the prices of providers
    log_pace: LogPace | None = None  # why a log of sessions is planned at more requests a second than its mean
    blame: tuple[Blame, ...] = ()  # if no offer meets the constraints: what prevents it
    deploy: tuple[DeployFile, ...] = ()  # the files that start the pick
    recovery: Recovery | None = None
    """The share of the model's quality that the pick's weights keep; None: no score, or as published."""
    kv_recovery: Recovery | None = None  # the same for its KV cache
    checkpoint: Checkpoint | None = None  # one with the pick's weights; None: none is known
    how_to_make: str | None = None  # the tool that makes such a checkpoint, if none is known
    thinking: FirstAnswer | None = None
    """When the answers of a reasoning model begin on the pick, and what their tokens cost."""
    notes: tuple[str, ...] = ()  # what was noted of how a config.json was read, such as fields that are not known
    sale: FleetSale | None = None  # what the pick earns, if a price or a margin is given
    energy: Energy | None = None  # what the pick draws and emits; None: its GPU's power is unknown
    upkeep: Upkeep | None = None  # the pick's month with people and overheads, if any are given
    classes: ClassReport | None = None  # what each class of service gets and pays on the pick, if there are any
    together: PlanTogether | None = None
    """If other models are named too: all of them on one GPU or on their own. The rest is about the first alone."""
    measured: tuple[PricedRun, ...] = ()
    """The user's load tests, if any are given: each load's price and latencies, beside the prediction."""
    study: Any = beside()

    @property
    def is_found(self) -> bool:
        return (self.together or self).best is not None

    def headline(self) -> str:
        if self.together:
            return f"{', '.join(asked.model for asked in self.together.asked)}: {self.together.headline()}"
        best, api = self.best, self.api
        sold = f"{usd(api.usd_per_month)} a month at the API {api.api.name}" if api and api.cheaper else ""
        if best is None:
            # Name inputs as in Python, also in a result read from a document, which has flags.
            said = [f"{reason.constraint.marked}: {reason.why.marked}" for reason in self.blame]
            reasons = [by_name(spelled(text, flag)) for text in said]
            return "; ".join([f"{self.model}: no offer meets these constraints", *([sold] if sold else []), *reasons])
        assumed = f", as nothing else serves it, {' and '.join(self.only_with)}" if self.only_with else ""
        return (
            f"{self.model}: {usd(best.usd_per_month)} a month, {usd(best.usd_per_mtok.blended)} per Mtok, "
            f"{layout_text(best)} at {best.provider} {best.instance}{assumed}; {len(self.ranked):,} ranked"
            f"{f'; less as an API: {sold}' if sold else ''}"
        )


class PlanModels(Result):
    """Several models on the same traffic: the pick of each, cheapest first."""

    ROWS = "models"

    models: tuple[Candidate, ...]
    sales: tuple[FleetSale, ...] = ()  # what each of them earns, if a price or a margin is given
    apis: dict[str, ApiBeside] = Field(default_factory=dict)  # by model: its cheapest API, beside its pick
    swing: DemandSwing | None = None  # how the traffic changes over a day or week; None: it is even
    studies: Any = beside()

    @property
    def is_found(self) -> bool:
        return all(study.plan.best for study in self.studies)


class CompareResult(Result, Comparison):
    """Several models on several GPUs, side by side, and what APIs charge for the same requests."""

    apis: dict[str, tuple[ApiCost, ...]] = Field(default_factory=dict)
    """By model: its cheapest hosts, and the measured ones."""
    api_beside: dict[str, ApiBeside] = Field(default_factory=dict)
    """By model: its cheapest API, beside its cheapest GPU."""
    best: Candidate | None = None
    """The pick of the cheapest pair per token; at a recent price, if that costs little more."""
    latencies: dict[str, ApiLatency] = Field(default_factory=dict)
    """How fast the measured APIs answer, by name."""

    @property
    def is_found(self) -> bool:
        return bool(self.gpus)


class PlanCases(Result):
    """Low, middle and high demand: the bill of each, and the choice with the least regret."""

    cases: dict[str, float] | None = None  # the cheapest bill of each case, USD a month
    regret: Regret | None
    apis: dict[str, ApiBeside] = Field(default_factory=dict)  # by case: the cheapest API, beside its cheapest fleet
    swings: tuple[DemandSwing | None, ...] = ()  # of each case: how its traffic changes over a day or week
    blame: tuple[Blame, ...] = ()
    studies: Any = beside()

    @property
    def is_found(self) -> bool:
        return all(study.plan.best for study in self.studies)
