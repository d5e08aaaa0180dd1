"""What to rent, what to buy for a demand that changes, what to change first, host or call: the planner's questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokonomics.api.ask import Discount, Slo, Words, ask, documented, refuse
from tokonomics.api.frames import Prices, Requests
from tokonomics.api.result import Result
from tokonomics.cli.argument_names import in_python
from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.planner.breakeven import BreakEvenReport
from tokonomics.planner.fleet import FleetReport
from tokonomics.planner.flips import Flips
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.levers.ranking import Ranking
from tokonomics.planner.margins import BillRange, Headroom
from tokonomics.planner.plan import Candidate, Plan
from tokonomics.planner.sensitivity import Sensitivity
from tokonomics.planner.utilization import Utilization
from tokonomics.report.plan_view import layout_text
from tokonomics.traffic.promises import Promise
from tokonomics.traffic.workload import Workload
from tokonomics.units import count, percent, plural, usd


class PlanResult(Result, Plan):
    """Every candidate that could be the pick, cheapest first, how firm the pick is, and every refusal."""

    ROWS = "ranked"
    SHOWN = ("replicas", "gpus_per_replica", "gpu", "weights", "kv", "provider", "instance", "usd_per_month",
             "usd_per_mtok_blended", "utilization", "ttft_p99_s", "tpot_p99_s", "speed", "below_checkpoint",
             "price_date", "price_stale")  # fmt: skip

    headroom: Headroom | None = None
    """How much the traffic may grow on the same replicas."""
    bill_range: BillRange | None = None
    """Over the 80 % interval of the speed."""
    flips: Flips | None = None
    """What would make another choice cheaper; along the traffic too with ``explain``."""
    sensitivity: Sensitivity | None = None
    """What moves the bill, with ``explain``."""
    blame: tuple[Blame, ...] = ()
    """Where nothing fits: what stands in the way."""

    def headline(self) -> str:
        best = self.best
        if best is None:
            return f"{self.model}: nothing fits; " + "; ".join(
                f"{in_python(each.constraint)}: {each.why}" for each in self.blame
            )
        return (
            f"{self.model}: {usd(best.usd_per_month)} a month, {usd(best.usd_per_mtok.blended)} per Mtok, "
            f"{layout_text(best)} at {best.provider} {best.instance}; {len(self.ranked):,} ranked"
        )

    def _first_rows(self, count: int) -> list[Candidate]:
        """One of each kind, as on the terminal."""
        return self.leaders(count)


class FleetResult(Result, FleetReport):
    """The cheapest fleet over time, what it is compared with, and how it fared in the simulator."""

    ROWS = "plan.purchases"
    SHOWN = ("offer", "terms", "place", "usd_per_hour", "requests_per_s", "usd_per_month")

    def headline(self) -> str:
        plan = self.plan
        return (
            f"{self.model}: {usd(plan.usd_per_month)} a month, 99 of 100 months below {usd(plan.p99_usd_per_month)}; "
            f"{plural(len(plan.purchases), 'purchase')} over {plan.hours} hours"
        )


class LeversResult(Result, Ranking):
    """Every lever, the largest saving first, and all that help together."""

    ROWS = "levers"
    SHOWN = ("name", "saved_usd_per_month", "saved_share", "bill_usd_per_month", "effort", "reason")

    utilization: Utilization | None
    """The bill against batch limit, load and burstiness, where asked for."""
    workload: Workload
    promises: tuple[Promise, ...]

    def headline(self) -> str:
        now, together = usd(self.now.usd_per_month), usd(self.together.usd_per_month)
        if not self.taken:
            return f"{self.now.deployment}: {now} a month, and no lever lowers it"
        first = self.levers[0]
        return (
            f"{self.now.deployment}: {now} a month now, {together} with all that help "
            f"({percent(self.saved_share)} less); {first.name} alone: {percent(first.saved_share)} less"
        )


class BreakevenResult(Result, BreakEvenReport):
    """A model of one's own against APIs, at every volume."""

    ROWS = "found"
    SHOWN = ("api", "api_usd_per_mtok", "full_usd_per_mtok", "first_tokens_per_month", "stays_tokens_per_month",
             "never")  # fmt: skip

    def headline(self) -> str:
        said = [
            f"cheaper than {each.api} from {count(from_here)} tokens a month on" if from_here
            else f"never cheaper than {each.api}" for each in self.found for from_here in [each.stays_tokens_per_month]
        ]  # fmt: skip
        return f"{self.model}, hosted: {'; '.join(said)}"


@documented
def plan(
    model: str | Path, *, rate: float | str | None = None, tokens_per_month: float | str | None = None,
    input: int | str | None = None, output: int | str | None = None, arrivals: str | None = None,
    trace: Requests | None = None, columns: str | None = None, start: float | str | None = None,
    end: float | str | None = None, seed: int = 0, slo: Slo | None = None, offline: bool = False,
    gpu: Words | None = None, gpus: int | str | None = None, max_price: float | None = None,
    provider: Words | None = None, region: Words | None = None, terms: Words | None = None,
    discount: Discount | None = None, offers: Prices | None = None, max_age: int | None = None,
    weights: Words | None = None, min_weights: str | None = None, kv: Words | None = None,
    engine: Words | None = None, router: str | None = None, max_utilization: float | None = None,
    spare: int | None = None, quick: bool = False, explain: bool = False, profile: str | Path | None = None,
) -> PlanResult:  # fmt: skip
    """The cheapest ways to serve a model: every offer × layout × precision, sized by simulation to keep the promise.

    ``model`` may be a scenario file (``.toml``). One model at one demand: to compare several, plan each.

    >>> tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, slo={"ttft_p99": 0.5}, gpu=["L4", "H100"])
    """
    given = locals()
    _one_question(model, rate=rate, input=input, output=output)
    return ask(plan, PlanResult, given)


def _one_question(model: str | Path, **demand: object) -> None:
    """Refuse what has several answers, before any work is done."""
    from tokonomics.cli.scenario_file import read_scenario
    from tokonomics.planner.scenario import Scenario

    try:
        named = str(model)
        wanted = read_scenario(Path(named)) if named.lower().endswith(".toml") else Scenario(model=(named,))
        scenario = wanted.over(demand)
        several = len(scenario.model) > 1 or "," in scenario.model[0] if scenario.model else False
        if several or len(scenario.cases()) > 1:
            what = "several models" if several else "a range of demand"
            where = "model" if several else ", ".join(name for name, value in demand.items() if value)
            raise BadInput(f"{what}: that is a plan each", where=where, fix="Call plan() for each of them.")
    except TokonomicsError as error:
        refuse(error)


@documented
def fleet(
    model: str | Path, *, demand: str | None = None, rate: float | str | None = None,
    trace: Requests | None = None, columns: str | None = None, input: int | str | None = None,
    output: int | str | None = None, slo: Slo | None = None, size_classes: int | str | Sequence[int] | None = None,
    hours: int | None = None, gpu: Words | None = None, provider: Words | None = None, region: Words | None = None,
    anywhere: bool = False, discount: Discount | None = None, offers: Prices | None = None,
    terms: Words | None = None, no_spot: bool = False, no_reserved: bool = False,
    max_spot_share: float | None = None, max_zone_share: float | None = None, no_fallback: bool = False,
    interruptions: float | str | None = None, min_replicas: int = 0, availability: float | None = None,
    startup: float | str | None = None, weights: str | None = None, kv: str = "bf16", engine: str = "vllm",
    gap: float = 0.005, time_limit: float = 30.0, no_replay: bool = False, seed: int = 0,
    profile: str | Path | None = None,
) -> FleetResult:  # fmt: skip
    """The cheapest fleet for a demand that changes over time: reserved, on demand and spot, hour by hour.

    >>> tk.fleet("llama-3.1-8b", demand="12x20,12x2", input=1000, output=300, slo="ttft_p99=1", provider="aws",
    ...          gpu="L40S", no_replay=True).to_frame().select("offer", "terms", "usd_per_hour")
    """
    return ask(fleet, FleetResult, locals())


@documented
def levers(
    model: str | Path, *, gpu: str, tp: int = 1, pp: int = 1, ep: int = 1, weights: str | None = None,
    kv: str = "bf16", engine: str = "vllm", max_sequences: int | None = None, no_prefix_cache: bool = False,
    rate: float | str | None = None, tokens_per_month: float | str | None = None, input: int | str | None = None,
    output: int | str | None = None, arrivals: str | None = None, trace: Requests | None = None,
    columns: str | None = None, start: float | str | None = None, end: float | str | None = None, seed: int = 0,
    slo: Slo | None = None, offline: bool = False, provider: Words | None = None, region: Words | None = None,
    discount: Discount | None = None, offers: Prices | None = None, usd_per_hour: float | None = None,
    spare: int | None = None, draft: str | None = None, draft_share: float | None = None,
    draft_tokens: int | None = None, acceptance: float | None = None, tiers: str | None = None,
    min_weights: str | None = None, without: Words | None = None, utilization: bool = False,
    profile: str | Path | None = None,
) -> LeversResult:  # fmt: skip
    """What to change first: every lever on your traffic, its saving simulated, alone and together.

    >>> tk.levers("llama-3.1-8b", gpu="L4", usd_per_hour=0.8, rate=30, input=500, output=200, slo={"ttft_p99": 1},
    ...           without=["hardware", "speculation", "disaggregation"])
    """
    return ask(levers, LeversResult, locals())


@documented
def breakeven(
    model: str | Path | None = None, *, api: Words, input: int | str | None = None,
    output: int | str | None = None, arrivals: str | None = None, trace: Requests | None = None,
    columns: str | None = None, start: float | str | None = None, end: float | str | None = None,
    rate: float | str | None = None, tokens_per_month: float | str | None = None,
    cached_share: float | None = None, batch_api: bool = False, engineers: float | None = None,
    engineer_usd_per_month: float | str | None = None,
    overhead: str | Sequence[str] | Mapping[str, float | str] | None = None, slo: Slo | None = None,
    offline: bool = False, gpu: Words | None = None, provider: Words | None = None, region: Words | None = None,
    terms: Words | None = None, discount: Discount | None = None, offers: Prices | None = None,
    max_price: float | None = None, max_age: int | None = None, weights: Words | None = None,
    min_weights: str | None = None, kv: Words | None = None, engine: Words | None = None,
    max_utilization: float | None = None, spare: int | None = None, replica_tokens_per_second: float | None = None,
    usd_per_hour: float | None = None, replica_gpus: int = 1, quick: bool = False, seed: int = 0,
    profile: str | Path | None = None,
) -> BreakevenResult:  # fmt: skip
    """From which volume on hosting a model oneself is cheaper than an API: whole machines against a price per token.

    >>> tk.breakeven("llama-3.3-70b", api="openai:gpt-4o", input=1000, output=300, quick=True)
    """
    return ask(breakeven, BreakevenResult, locals())
