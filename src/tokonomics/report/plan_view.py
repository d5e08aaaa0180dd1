"""A plan for a person: the pick first, then the others, then why not the rest."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.offers import UNSPECIFIED
from tokonomics.planner.plan import Candidate, Plan
from tokonomics.report.cost_view import prices_text
from tokonomics.report.tables import table
from tokonomics.units import count, percent, seconds, usd


def plan_view(plan: Plan, *, rows: int, model_name: str) -> RenderableType:
    """The pick, and the cheapest offer of each other kind of hardware."""
    if plan.best is None:
        return Text.assemble(
            ("Nothing fits these wishes.", "bold red"), f" {len(plan.rejected):,} candidates rejected."
        )
    workload = plan.workload
    promise = f", TPOT ≤ {seconds(plan.slo.tpot_s)}" if plan.slo.tpot_s else ""
    asked = Text(
        f"{model_name} at {workload.rate:g} requests/s of {workload.input_tokens:,} in / {workload.output_tokens:,} out"
        f"{promise}: {count(workload.tokens_per_month)} tokens a month",
        style="dim",
    )
    shown = plan.leaders(rows)
    body: list[RenderableType] = [asked, "", _pick(plan.best, "Cheapest")]
    faithful = plan.best_at_checkpoint()
    if faithful and faithful != plan.best:
        body.append(_pick(faithful, "Cheapest at the checkpoint's own precision"))
    body += [_ranking(shown), "", _notes(plan, shown)]
    return Group(*body)


def why_view(plan: Plan) -> RenderableType:
    """Rejected candidates, those with the same reason together."""
    counts = Counter((each.gpu, each.tp, each.weights, _generic(each.reason)) for each in plan.rejected)
    return table(
        ["GPU", ">TP", "weights", "rejected because", ">candidates"],
        [
            (gpu, str(tp or ""), str(weights or ""), reason, f"{number:,}")
            for (gpu, tp, weights, reason), number in sorted(counts.items(), key=lambda item: _order(item[0]))
        ],
        title=f"{len(plan.rejected):,} candidates rejected",
    )


def _pick(row: Candidate, label: str) -> Text:
    return Text.assemble(
        (f"{label}: ", ""),
        (f"{usd(row.usd_per_month)} a month", "bold green"),
        f", {row.replicas} × ({row.gpus_per_replica}×{row.gpu}, {row.weights})",
        f" at {row.provider} {row.instance}{'' if row.region == UNSPECIFIED else f', {row.region}'}\n",
        (f"  {prices_text(row.usd_per_mtok)} per Mtok; TPOT {seconds(row.tpot_s)}", ""),
        (f"; price of {row.price_date}{' (old)' if row.price_stale else ''}\n", ""),
    )  # fmt: skip


def _ranking(rows: list[Candidate]) -> RenderableType:
    return table(
        ["", "replicas × GPUs", "weights", "offer", ">$/month", ">$/Mtok", ">busy share", ">util.", ">TPOT"],
        [
            (
                str(place),
                f"{row.replicas} × {row.gpus_per_replica} {row.gpu}",
                f"{row.weights}{'*' if row.below_checkpoint else ''}",
                f"{row.provider} {row.instance}{'†' if row.price_stale else ''}",
                usd(row.usd_per_month),
                usd(row.usd_per_mtok.blended),
                usd(row.usd_per_mtok_usage),
                percent(row.utilization),
                seconds(row.tpot_s),
            )
            for place, row in enumerate(rows, 1)
        ],
    )


def _notes(plan: Plan, shown: list[Candidate]) -> Text:
    dates = sorted(row.price_date for row in shown)
    lines = [
        "$/Mtok: the whole bill over all tokens, in and out (reservation); busy share: without idle capacity (usage).",
        "Speeds are modelled (datasheet roofline); replicas are planned to at most "
        f"{percent(plan.limits.max_utilization)} of capacity.",
        f"Prices quoted from {dates[0]} to {dates[-1]}; {len(plan.rejected):,} candidates rejected: see --why.",
    ]
    if any(row.below_checkpoint for row in shown):
        lines.append(
            "* fewer bits than the checkpoint was published in: check quality on your own task (--min-weights)."
        )
    if any(row.price_stale for row in shown):
        lines.append("† price older than 90 days: run `tokonomics prices refresh`.")
    return Text("\n".join(lines), style="dim")


def _generic(reason: str) -> str:
    """Reasons that differ only in the offer's own figures count as one."""
    if "a GPU-hour, above" in reason:
        return "dearer than the price limit"
    return reason


def _order(key: tuple[str, int | None, object, str]) -> tuple[str, str, int, str]:
    gpu, tp, weights, reason = key
    return gpu, str(weights or ""), tp or 0, reason
