"""A plan for a person: the pick first, then the others, then why not the rest."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.planner.candidates import Reason
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.plan import Candidate, Plan, Rejection
from tokonomics.planner.screen import describe
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION
from tokonomics.questions.results import layout_text as layout_text
from tokonomics.report.cost_view import prices_text
from tokonomics.report.predict_view import SPEEDS
from tokonomics.report.tables import OLD_PRICE, quoted_on, table
from tokonomics.serving.outcome import Spread
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Badge
from tokonomics.units import count, percent, plural, seconds, usd


def plan_view(
    plan: Plan,
    firm: Text | None = None,
    *,
    rows: int,
    model_name: str,
    discounts: Mapping[str, float] | None = None,
    without_offers: Sequence[str] = (),
) -> RenderableType:
    """The pick of a plan that has one, and the cheapest offer of each other kind of hardware."""
    asked = Text(asked_text(plan, model_name), style="dim")
    assert plan.best is not None
    shown = plan.leaders(rows)
    pick = pick_text(plan.best, "Cheapest")
    body: list[RenderableType] = [asked, "", pick if firm is None else Text.assemble(pick, firm)]
    faithful = plan.best_at_checkpoint()
    if faithful and faithful != plan.best:
        body.append(pick_text(faithful, "Cheapest at the checkpoint's own precision"))
    body += [_ranking(shown), "", _notes(plan, shown, discounts or {})]
    if without_offers:
        body.append(Text(f"No offer lists {', '.join(without_offers)}: give one with --offers my.csv.", style="yellow"))
    return Group(*body)


def asked_text(plan: Plan, model_name: str) -> str:
    """The question in one line."""
    targets = slos_text(plan.slos)
    return (
        f"{model_name} at {workload_text(plan.workload)}{f'; SLO: {targets}' if targets else ''}; "
        f"{count(plan.workload.tokens_per_month)} tokens a month"
    )


def workload_text(workload: Workload) -> str:
    """``5 requests/s of 1,000 in / 300 out``."""
    inputs, outputs = _tokens(workload.input_tokens), _tokens(workload.output_tokens)
    return f"{workload.rate:.4g} requests/s of {inputs} in / {outputs} out"


def _tokens(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def slos_text(slos: Sequence[Slo]) -> str:
    """``TTFT p99 ≤ 500 ms, TPOT p99 ≤ 50 ms``."""
    return ", ".join(f"{describe(slo)} ≤ {seconds(slo.seconds)}" for slo in slos)


def why_view(plan: Plan) -> RenderableType:
    """What was rejected, by GPU and kind of reason, with one case in words."""
    groups: dict[tuple[str, Reason], list[Rejection]] = {}
    for each in plan.rejected:
        groups.setdefault((each.gpu, each.kind), []).append(each)
    ranked = Counter(row.gpu for row in plan.ranked)
    rejected = sum(each.offers for each in plan.rejected)
    return table(
        ["!GPU", ">ranked", ">rejected", "because", "such as"],
        [
            (gpu, f"{ranked[gpu]:,}", f"{sum(member.offers for member in members):,}", kind.value, _case(members))
            for (gpu, kind), members in sorted(groups.items())
        ],
        title=f"{len(plan.ranked):,} candidates ranked, {rejected:,} rejected",
    )


def _case(members: Sequence[Rejection]) -> str:
    """The commonest reason of a group, with the layout or offer it befell."""
    reason, _ = Counter(member.reason for member in members).most_common(1)[0]
    each = next(member for member in members if member.reason == reason)
    layout = f"{each.layout}: " if each.layout else ""
    return f"{layout}{reason.removeprefix('does not fit: ')}"


def blame_view(plan: Plan, model_name: str, blames: Sequence[Blame], see: str = "See --why.") -> RenderableType:
    """Nothing fits: which wish stands in the way, the nearest that would do, and how many each reason took."""
    lines: list[Text | str] = [
        Text(asked_text(plan, model_name), style="dim"),
        "",
        Text("Nothing fits these wishes.", style="bold red"),
    ]
    lines += [Text.assemble((f"  {blame.constraint}: ", "bold"), f"{blame.why}; {blame.nearest}.") for blame in blames]
    kinds: Counter[Reason] = Counter()
    for rejection in plan.rejected:
        kinds[rejection.kind] += rejection.offers
    counts = "; ".join(f"{kind.value}: {number:,}" for kind, number in kinds.most_common())
    lines.append(Text(f"{kinds.total():,} candidates rejected: {counts}. {see}", style="dim"))
    return Group(*lines)


def pick_text(row: Candidate, label: str) -> Text:
    """One candidate in a few lines: what to rent, what it costs, how it serves."""
    where = f"{row.provider} {row.instance}{'' if row.region == UNSPECIFIED else f', {row.region}'}"
    return Text.assemble(
        f"{label}: ",
        (f"{usd(row.usd_per_month)} a month", "bold green"),
        f", {layout_text(row)} at {where}\n",
        f"  {prices_text(row.usd_per_mtok)} per Mtok, whole bill; {usd(row.usd_per_mtok_usage)} on usage\n",
        f"  {_latency_text(row)}; {percent(row.utilization)} of full batches{_router_text(row)}\n",
        f"  {_unused(row)}{_SPEED_NOTES[row.speed]}{_terms(row)}, "
        f"price of {row.price_date}{' (old)' if row.price_stale else ''}\n",
    )


def _latency_text(row: Candidate) -> str:
    if not row.simulated:
        return (
            f"in the mean, TTFT {seconds(row.ttft_s.mean or 0)}, TPOT {seconds(row.tpot_s.mean or 0)} (not simulated)"
        )
    parts = (("TTFT", row.ttft_s), ("TPOT", row.tpot_s), ("end to end", row.e2e_s))
    return "p50 / p99: " + ", ".join(f"{name} {_pair(spread)}" for name, spread in parts)


def _router_text(row: Candidate) -> str:
    """With several replicas, how requests find them."""
    return f", {row.router} router" if row.simulated and row.replicas > 1 else ""


def _pair(spread: Spread) -> str:
    if spread.p50 is None or spread.p99 is None:
        return "–"
    return f"{seconds(spread.p50)} / {seconds(spread.p99)}"


def _unused(row: Candidate) -> str:
    idle = row.gpus_paid - row.replicas * row.gpus_per_replica
    return f"{plural(idle, 'GPU')} of the {row.gpus_paid} paid for unused; " if idle else ""


_SPEED_NOTES = {
    Badge.measured: "",
    Badge.quoted: "",
    Badge.modelled: "speed scaled from a relative's kernels; ",
    Badge.assumed: "speed assumed, no kernels timed on such a GPU: measure before you buy; ",
}
_TERMS = {
    Terms.on_demand: "on demand",
    Terms.spot: "spot: may be taken back at any time (see `tokonomics fleet`)",
    Terms.reserved: "reserved",
}


def _terms(row: Candidate) -> str:
    years = f" for {plural(row.commitment_years, 'year')}, paid upfront" if row.commitment_years else ""
    return f"{_TERMS[row.terms]}{years}"


def _ranking(rows: list[Candidate]) -> RenderableType:
    simulated = any(row.simulated for row in rows)
    late = "p99" if simulated else "mean"
    return table(
        [
            "",
            "!replicas × GPUs",
            "weights",
            "offer",
            ">$/month",
            ">$/Mtok",
            ">util.",
            f">TTFT {late}",
            f">TPOT {late}",
            "speed",
        ],
        [
            (
                str(place),
                f"{row.replicas} × {row.gpus_per_replica} {row.gpu}",
                f"{row.weights}{'*' if row.below_checkpoint else ''}",
                f"{row.provider} {row.instance}{'†' if row.price_stale else ''}",
                usd(row.usd_per_month),
                usd(row.usd_per_mtok.blended),
                percent(row.utilization),
                _one(row.ttft_s, late),
                _one(row.tpot_s, late),
                SPEEDS[row.speed],
            )
            for place, row in enumerate(rows, 1)
        ],
    )


def _one(spread: Spread, statistic: str) -> str:
    value = getattr(spread, statistic)
    return "–" if value is None else seconds(value)


def _notes(plan: Plan, shown: list[Candidate], discounts: Mapping[str, float]) -> Text:
    ranked, rejected = plural(len(plan.ranked), "candidate"), f"{sum(each.offers for each in plan.rejected):,}"
    lines = [
        "$/Mtok: the whole bill over all tokens, in and out. util.: load over what full batches of mean requests hold;",
        "bursts and SLOs leave less to use than that: the room to grow is simulated.",
        "Speeds are modelled: from kernels timed on that GPU, scaled from a relative's by the datasheet, or assumed.",
        _how_sized(plan),
        f"{quoted_on(row.price_date for row in shown)}; {ranked} ranked, {rejected} rejected (--why).",
    ]
    if discounts:
        lines.append(
            "After your discounts: " + ", ".join(f"{who} {percent(share)}" for who, share in discounts.items()) + "."
        )
    if any(row.below_checkpoint for row in shown):
        lines.append(
            "* weights or KV cache at fewer bits than published: check quality on your own task (--min-weights, --kv)."
        )
    if any(row.price_stale for row in shown):
        lines.append(OLD_PRICE)
    return Text("\n".join(lines), style="dim")


def _how_sized(plan: Plan) -> str:
    if not plan.simulations:
        share = percent(plan.limits.max_utilization or CLOSED_FORM_UTILIZATION)
        return f"Replicas are planned to at most {share} of the closed form's capacity; leave out --quick to simulate."
    spare = f", and {plan.limits.spare} more that may fail (latencies are with them down)" if plan.limits.spare else ""
    targets = "meet every SLO" if plan.slos else "keep up (no SLO is set: --slo)"
    return (
        f"Replicas are the fewest that {targets}{spare}: {plan.simulations:,} simulations; "
        "whatever was left out is dearer than the runner-up; the rows after it are examples, not a full ranking."
    )
