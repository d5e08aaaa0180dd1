"""Of a plan: why its pick won, what would make another win, and how prefill and decode are best split."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Flip, Flips
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.planner.why import WhyPick
from tokonomics.questions.results import layout_text, split_text
from tokonomics.report import blocks, charts
from tokonomics.report.wording import time_text, usd_text
from tokonomics.units import count, percent, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study

_SPLITS = {
    "TP": "every layer split over so many GPUs",
    "PP": "layers in so many stages",
    "EP": "experts dealt out over so many GPUs",
    "DP": "so many groups of GPUs, each with its own sequences",
}


def why_line(why: WhyPick) -> blocks.Line:
    """The nearest other kind of way, in a sentence."""
    return blocks.line(blocks.Span("Why this one: ", "strong"), why.text)


def why_blocks(why: WhyPick) -> Iterable[blocks.Block]:
    """The nearest way of each other kind beside the pick: what a request takes of GPUs, by what it goes to."""
    rows = []
    for row in (why.pick, *why.others):
        parts = row.gpu_s
        rows.append(
            (
                "the pick" if row is why.pick else row.kind.value,
                f"{row.replicas:,} × {row.layout} {row.gpu}",
                f"{'≥ ' if row.at_least else ''}{usd(row.usd_per_month)}",
                usd(row.usd_per_gpu_hour),
                percent(row.in_use),
                f"{parts.total:.3g}",
                *(f"{part:.2g}" for part in parts.by_part.values()),
                f"{row.batch:,}",
                row.limited_by,
            )
        )
    heads = ["way", "!layout", ">$/month", ">$/GPU-h", ">in use", ">GPU-s a request", ">prompts", ">weights", ">KV"]
    title = "The nearest way of each other kind"
    yield blocks.table([*heads, ">compute", ">comm.", ">overhead", ">batch", "limited by"], rows, title, best=0)
    yield blocks.note(
        "bill = requests a second × GPU-seconds a request (at full batches) × $/GPU-h ÷ share in use.",
        "≥: not sized by simulation, as it costs more even so." if any(row.at_least for row in why.others) else "",
    )


def split_legend(rows: Sequence[Candidate]) -> str:
    """What the letters in these rows mean."""
    shown = " ".join(splits_text(row) for row in rows)
    said = [f"{name} = {meaning}" for name, meaning in _SPLITS.items() if f"{name}=" in shown]
    if any(row.prefill for row in rows):
        said.append("a + b = replicas that compute prompts and replicas that answer")
    return f"split: {'; '.join(said)}." if said else ""


def splits_text(row: Candidate) -> str:
    """How replicas are split; those for prompts before, where they are split otherwise."""
    answers = split_text(row)
    prompts = split_text(row.prefill) if row.prefill else answers
    return answers if prompts == answers else f"{prompts} + {answers}"


def flip_lines(plan: Plan, rival: Candidate | None, found: Flips) -> Iterable[blocks.Line]:
    """The runner-up, and what would make another GPU the cheapest."""
    if rival and found.other_gpu:
        more, less = percent(found.other_gpu.pick_may_rise), percent(found.other_gpu.rival_must_fall)
        how = (
            f"{more} more expensive; wins if its price falls by {less}, or the pick's GPU becomes {more} more expensive"
        )
        same = found.other_gpu.pick_may_rise < 0.005
        yield blocks.line(
            "Runner-up, the cheapest on another GPU: ",
            blocks.Span(f"{usd(rival.usd_per_month)} a month", "strong"),
            f", {layout_text(rival)} at {rival.provider} {rival.instance}: ",
            "the same bill" if same else f"{how} everywhere",
        )
    yield from (blocks.line(f"  {_flip(flip)}") for flip in found.traffic)
    if found.steady:
        yield blocks.note(f"  no flip up to: {', '.join(found.steady)}")


def _flip(flip: Flip) -> str:
    way = "from" if flip.factor > 1 else "down to"
    rival, pick = (
        "no way" if bill is None else usd(bill)
        for bill in (flip.after.rival_usd_per_month, flip.after.pick_usd_per_month)
    )
    value = f"{count(flip.after.value)} {flip.what}"
    return f"{way} {value} ({flip.factor:.3g}×): {flip.gpu} {flip.rival}, {rival} against {pick}"


def ratio_blocks(study: "Study", points: Sequence[RatioPoint]) -> Iterable[blocks.Block]:
    """What the GPUs of the disaggregated way hold by how they are split."""
    assert study.apart is not None
    most = max(point.requests_per_s for point in points) or 1.0
    yield blocks.table(
        ["!prefill : decode", ">requests/s", ">$/Mtok", ">of the most", ">KV of a prompt", ""],
        [
            (
                charts.plan.split_name(point),
                f"{point.requests_per_s:,.3g}" if point.requests_per_s else "–",
                usd_text(point.usd_per_mtok),
                percent(point.requests_per_s / most),
                time_text(point.kv_transfer_s),
                blocks.Span(charts.plan.mark_of(point), "good" if point.is_planned else "strong"),
            )
            for point in points
        ],
        f"The same GPUs split otherwise ({layout_text(study.apart.row)})",
    )
    link = study.apart.row.prefill.link if study.apart.row.prefill else ""
    yield blocks.note(
        "Requests a second that meet every SLO, by short simulations: a few percent are chance.",
        f"KV of a prompt: what one of mean length takes to the side that answers, over {link} for the cheapest split.",
    )
