"""A plan for a person: the pick first, then the others, then why not the rest."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.offers import STALE_AFTER_DAYS, UNSPECIFIED, Terms
from tokonomics.planner.candidates import Reason
from tokonomics.planner.plan import Candidate, Plan, Rejection
from tokonomics.report.cost_view import prices_text
from tokonomics.report.predict_view import SPEEDS
from tokonomics.report.tables import table
from tokonomics.units import count, percent, plural, seconds, usd


def plan_view(
    plan: Plan,
    *,
    rows: int,
    model_name: str,
    discounts: Mapping[str, float] | None = None,
    without_offers: Sequence[str] = (),
) -> RenderableType:
    """The pick, and the cheapest offer of each other kind of hardware; or what stands in the way."""
    workload = plan.workload
    promise = f", TPOT ≤ {seconds(plan.slo.tpot_s)}" if plan.slo.tpot_s else ""
    asked = Text(
        f"{model_name} at {workload.rate:g} requests/s of {workload.input_tokens:,} in / {workload.output_tokens:,} out"
        f"{promise}: {count(workload.tokens_per_month)} tokens a month",
        style="dim",
    )
    if plan.best is None:
        return Group(asked, "", _blame(plan))
    shown = plan.leaders(rows)
    body: list[RenderableType] = [asked, "", _pick(plan.best, "Cheapest")]
    faithful = plan.best_at_checkpoint()
    if faithful and faithful != plan.best:
        body.append(_pick(faithful, "Cheapest at the checkpoint's own precision"))
    body += [_ranking(shown), "", _notes(plan, shown, discounts or {})]
    if without_offers:
        body.append(Text(f"No offer lists {', '.join(without_offers)}: give one with --offers my.csv.", style="yellow"))
    return Group(*body)


def why_view(plan: Plan) -> RenderableType:
    """What was rejected, by GPU and kind of reason, with one case in words."""
    groups: dict[tuple[str, Reason], list[Rejection]] = {}
    for each in plan.rejected:
        groups.setdefault((each.gpu, each.kind), []).append(each)
    ranked = Counter(row.gpu for row in plan.ranked)
    return table(
        ["!GPU", ">ranked", ">rejected", "because", "such as"],
        [
            (gpu, f"{ranked[gpu]:,}", f"{len(members):,}", kind.value, _case(members))
            for (gpu, kind), members in sorted(groups.items())
        ],
        title=f"{len(plan.ranked):,} candidates ranked, {len(plan.rejected):,} rejected",
    )


def _case(members: Sequence[Rejection]) -> str:
    """The commonest reason of a group, with the layout or offer it befell."""
    reason, _ = Counter(each.reason for each in members).most_common(1)[0]
    each = next(each for each in members if each.reason == reason)
    layout = f"TP={each.tp} {each.weights}: " if each.tp else ""
    return f"{layout}{reason.removeprefix('does not fit: ')}"


_TELLING = (Reason.too_long, Reason.too_slow, Reason.does_not_fit, Reason.not_supported, Reason.too_many_gpus)
"""Reasons that tell more about the wish than about an offer, most telling first."""


def _blame(plan: Plan) -> Text:
    """Nothing fits: the most telling reason, and how many candidates each reason took."""
    kinds = Counter(each.kind for each in plan.rejected)
    if not kinds:
        return Text("Nothing to choose from: no candidate was left to look at.", style="bold red")
    telling = next((kind for kind in _TELLING if kinds[kind]), kinds.most_common(1)[0][0])
    case = _case([each for each in plan.rejected if each.kind is telling])
    counts = "; ".join(f"{kind.value}: {number:,}" for kind, number in kinds.most_common())
    return Text.assemble(
        ("Nothing fits these wishes. ", "bold red"),
        f"{telling.value.capitalize()}: {case}.\n{len(plan.rejected):,} candidates rejected: {counts}. See --why.",
    )


def _pick(row: Candidate, label: str) -> Text:
    where = f"{row.provider} {row.instance}{'' if row.region == UNSPECIFIED else f', {row.region}'}"
    return Text.assemble(
        f"{label}: ",
        (f"{usd(row.usd_per_month)} a month", "bold green"),
        f", {row.replicas} × ({row.gpus_per_replica}×{row.gpu}, {row.weights}) at {where}\n",
        f"  {prices_text(row.usd_per_mtok)} per Mtok; TPOT {seconds(row.tpot_s)}, TTFT {seconds(row.ttft_s)}; ",
        f"{_unused(row)}{_TERMS[row.terms]}, price of {row.price_date}{' (old)' if row.price_stale else ''}\n",
    )


def _unused(row: Candidate) -> str:
    idle = row.gpus_paid - row.replicas * row.gpus_per_replica
    return f"{plural(idle, 'GPU')} of the {row.gpus_paid} paid for unused; " if idle else ""


_TERMS = {
    Terms.on_demand: "on demand",
    Terms.spot: "spot: may be taken back at any time",
    Terms.reserved: "reserved for years, paid upfront",
}


def _ranking(rows: list[Candidate]) -> RenderableType:
    return table(
        ["", "!replicas × GPUs", "weights", "offer", ">$/month", ">$/Mtok", ">util.", ">TPOT", ">TTFT", "speed"],
        [
            (
                str(place),
                f"{row.replicas} × {row.gpus_per_replica} {row.gpu}",
                f"{row.weights}{'*' if row.below_checkpoint else ''}",
                f"{row.provider} {row.instance}{'†' if row.price_stale else ''}",
                usd(row.usd_per_month),
                usd(row.usd_per_mtok.blended),
                percent(row.utilization),
                seconds(row.tpot_s),
                seconds(row.ttft_s),
                SPEEDS[row.speed],
            )
            for place, row in enumerate(rows, 1)
        ],
    )


def _notes(plan: Plan, shown: list[Candidate], discounts: Mapping[str, float]) -> Text:
    dates = sorted({row.price_date for row in shown})
    quoted = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    ranked, rejected = plural(len(plan.ranked), "candidate"), f"{len(plan.rejected):,}"
    lines = [
        "$/Mtok: the whole bill over all tokens, in and out. util.: share of the fleet's capacity under the promise.",
        "Speeds are modelled: from kernels timed on that GPU, scaled from a relative's by the datasheet, or assumed.",
        f"Replicas are planned to at most {percent(plan.limits.max_utilization)} of capacity (--max-utilization).",
        f"Prices quoted {quoted}; {ranked} ranked, {rejected} rejected (--why).",
    ]
    if discounts:
        lines.append(
            "After your discounts: " + ", ".join(f"{who} {percent(share)}" for who, share in discounts.items()) + "."
        )
    if any(row.below_checkpoint for row in shown):
        lines.append(
            "* fewer bits than the checkpoint was published in: check quality on your own task (--min-weights)."
        )
    if any(row.price_stale for row in shown):
        lines.append(f"† price older than {STALE_AFTER_DAYS} days: run `tokonomics prices refresh`.")
    return Text("\n".join(lines), style="dim")
