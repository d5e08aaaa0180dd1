"""What questions about traffic return: simulated, counted, cached, routed and shared among tenants."""

from typing import Any

from pydantic import Field

from tokonomics.levers.lora import LoraLever
from tokonomics.levers.prefix_cache import PrefixCacheLever
from tokonomics.levers.ranking import Ranking, Utilization
from tokonomics.levers.semantic_cache import SemanticHits, SemanticLever
from tokonomics.levers.stack import Waterfall
from tokonomics.levers.templates import TemplateLever, TextTemplate
from tokonomics.levers.tenancy import NoisyNeighbour, Pooling
from tokonomics.money.breakeven import Upkeep
from tokonomics.money.sale import Sale, SellPrice
from tokonomics.money.served import ServedCost
from tokonomics.planner.class_report import ClassReport
from tokonomics.planner.route_models import RouteReport
from tokonomics.questions.result import Result, beside
from tokonomics.serving.class_outcome import FirstAnswer
from tokonomics.serving.outcome import Moment, Outcome, SideOutcome
from tokonomics.serving.playback import Playback
from tokonomics.sizing.search import HighestRate, ReplicasNeeded
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.summary import TraceSummary
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun
from tokonomics.units import count, percent, plural, requests_a_second, seconds, usd


class LeversResult(Result, Ranking):
    """Every lever, the largest saving first, and all that help together."""

    ROWS = "levers"

    utilization: Utilization | None
    """The bill against batch limit, load and burstiness, where asked for."""
    upkeep_now: Upkeep | None = None
    """A month of today's setup with people and overheads, where any are given."""
    upkeep_together: Upkeep | None = None
    """The same with all levers that help."""
    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")

    setup: Any = beside()

    def headline(self) -> str:
        now, together = usd(self.now.usd_per_month), usd(self.together.usd_per_month)
        if not self.taken:
            return f"{self.now.deployment}: {now} a month, and no lever lowers it"
        first = next((lever for lever in self.levers if lever.name in self.taken and lever.saved_share > 0), None)
        alone = f"; {first.name} alone: {percent(first.saved_share)} less" if first else ""
        return (
            f"{self.now.deployment}: {now} a month now, {together} with all that help "
            f"({percent(self.saved_share)} less){alone}"
        )


class SimulateResult(Result, Outcome):
    """A simulation in figures, its bill, and how it went over time."""

    deployment: str
    usd_per_mtok: float | None
    """The whole bill over all tokens; None where no price is known."""
    cost: ServedCost | None
    usd_per_job: float | None = None
    """Paid while the sessions are offered, over the finished ones; None where there are none, or no price is known."""
    thinking: FirstAnswer | None = None
    """Of a reasoning model: when the answer begins, and what its tokens cost."""
    lengths: str = ""
    """How long prompts and answers are, in words."""
    too_long: int = 0
    """Of the refused ones: longer than the model's context."""
    sides: tuple[SideOutcome, ...] = ()
    """Of a disaggregated fleet: what computes prompts, then what answers."""
    classes: ClassReport | None = None
    """What each class of service gets and pays, where there are any."""
    timeline: tuple[Moment, ...]
    playback: Playback | None = None
    """The run moment by moment, and who missed the SLO, where asked for."""
    wall_s: float
    simulated_requests_per_s: float

    hopeless: Any = beside()
    """Why no hardware meets the SLOs (``NotServed``); None where some might."""
    simulation: Any = beside()
    log: Any = beside()

    def plain(self) -> Any:
        found = super().plain()
        return {"deployment": found.pop("deployment"), **found}

    def headline(self) -> str:
        price = "no price" if self.usd_per_mtok is None else f"{usd(self.usd_per_mtok)} per Mtok"
        times = [(name, spread.p99) for name, spread in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))]
        latency = "".join(f", {name} p99 {seconds(value)}" for name, value in times if value is not None)
        missed = ", ".join(target.slo for target in self.slo if not target.met)
        verdict = "" if self.slo_met is None else f"; {missed} missed" if missed else "; every SLO met"
        return f"{self.deployment}: {price}{latency}; {plural(self.requests, 'request')}{verdict}"


class CapacityResult(Result):
    """The highest rate of one replica, and the replicas that a log needs."""

    ROWS = "highest_rate.trials"

    deployment: str
    rate: float
    """Requests a second that one replica holds."""
    replicas: int | None
    """For the log at its own rate; None for made-up requests."""
    usd_per_mtok: float | None
    usd_per_job: float | None = None
    """Of sessions: what is paid while they are offered, over the finished ones."""
    lengths: str = ""
    """How long prompts and answers are, in words."""
    highest_rate: HighestRate
    replicas_needed: ReplicasNeeded | None
    cost: ServedCost | None
    classes: ClassReport | None = None
    """What each class of service gets and pays at that rate, where there are any."""

    placed: Any = beside()
    log: Any = beside()

    def headline(self) -> str:
        price = "" if self.usd_per_mtok is None else f", {usd(self.usd_per_mtok)} per Mtok"
        needed = "" if self.replicas is None else f"; this log needs {plural(self.replicas, 'replica')}"
        breaks = self.highest_rate.breaks
        holds = requests_a_second(f"{self.rate:.3g}")
        return f"{self.deployment}: {holds} a replica, then {breaks}{needed}{price}"


class TraceResult(Result, TraceSummary):
    """What traffic is like."""

    def headline(self) -> str:
        span = seconds(self.duration_s)
        return (
            f"{self.source}: {plural(self.requests, 'request')} over {span}, {self.rate:.3g} a second; "
            f"{count(self.input.mean)} tokens in and {count(self.output.mean)} out in the mean"
        )


class RouteResult(Result, RouteReport):
    """Ways to share traffic among models."""

    ROWS = "ways"

    def headline(self) -> str:
        way = self.best or self.ways[-1]
        return f"{way.name}: {usd(way.usd_per_month)} a month"


class StackResult(Result, Waterfall):
    """From one request at a time to the best deployment found, step by step."""

    ROWS = "steps"

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    setup: Any = beside()


class CacheResult(Result):
    """What each kind of caching saves."""

    prefix_cache: PrefixCacheLever | None
    templates: TemplateLever | None
    text_templates: tuple[TextTemplate, ...]
    semantic: SemanticHits | None
    semantic_bill: SemanticLever | None
    price_from: str | None


class TenantSale(Noun):
    tenant: str
    hour: Sale
    """Revenue from its tokens against its part of the shared fleet's bill."""


class TenantsSale(Noun):
    """What an hour of the shared fleet earns, tenant by tenant."""

    usd_per_mtok: SellPrice
    tenants: tuple[TenantSale, ...]
    hour: Sale
    break_even_tokens_per_day: float | None
    """Of all tenants together, at this mix."""
    break_even_load: float | None
    """Of what full batches would do; None where that is not known."""


class LabelRow(Noun):
    """What the requests with one value of a label pay of the shared fleet."""

    value: str
    requests: int
    tokens: int
    pays_usd_per_hour: float


class LabelCost(Noun):
    """The bill of the shared fleet by one label, the largest first."""

    label: str
    values: tuple[LabelRow, ...]


class TenantsResult(Result, Pooling):
    """One fleet for all tenants, or one for each."""

    by: tuple[LabelCost, ...] = ()
    """Where tenants are named by several labels: each label alone."""
    noisy_neighbour: NoisyNeighbour
    lora: LoraLever | None
    price_from: str
    sale: TenantsSale | None = None
    """What the shared fleet earns, where a price or a margin is given."""
    classes: ClassReport | None = None
    """What each class of service gets and pays on the shared fleet, where there are any."""
    targets: Any = beside()

    def plain(self) -> Any:
        return super().plain() | {"gain": self.gain, "saved_share": self.bill.saved_share}
