"""A plan's candidates beside each other: the ranking, why the pick won, and what would make another win."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tokonomics.catalog.layers import Precision
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Flip, Flips
from tokonomics.planner.plan_answer import Candidate, Plan, PrefillSide
from tokonomics.planner.why import WhyPick
from tokonomics.questions.results import layout_text, split_text
from tokonomics.report import blocks, charts
from tokonomics.report.plan_pick_view import served_as
from tokonomics.report.wording import known_text, rented_text, time_text, usd_text
from tokonomics.units import count, percent, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study


def ranking(
    rows: Sequence[Candidate],
    shown: int | None,
    model: Callable[[Candidate], str] | None = None,
    opens: Callable[[Candidate], str] = lambda _: "",
    full: bool = False,
) -> blocks.Table:
    """Candidates, the pick first; with the name of the model of each where there are several.

    ``opens`` gives, for each, what to ask for more of it; ``full`` adds the columns that a terminal has no room for.
    """
    late = "p99" if any(row.simulated for row in rows) else "mean"
    some_old = not all(row.price_stale for row in rows)
    writes = any(row.tpot_s.mean is not None for row in rows)  # an encoder does not, and keeps no KV
    some_kv = writes and (full or any(row.kv.is_below(Precision.bf16) for row in rows[:shown]))
    return blocks.listed(
        rows,
        ("!model", model) if model else None,
        ("rent", lambda row: blocks.Span(rented_text(row), opens=opens(row))),
        ("!replicas", replicas_text),
        ("weights", lambda row: f"{row.weights}{'*' if row.below_checkpoint else ''}"),
        ("KV", lambda row: row.kv.value) if some_kv else None,
        ("drafts", lambda row: row.draft.name if row.draft else "–") if any(row.draft for row in rows) else None,
        (">$/month", lambda row: f"{'†' if row.price_stale and some_old else ''}{usd(row.usd_per_month)}"),
        (">$/Mtok", lambda row: usd(row.usd_per_mtok.blended)),
        (">load", lambda row: percent(row.load_share)) if full else None,
        (f">TTFT {late}", lambda row: time_text(getattr(row.ttft_s, late))),
        (f">TPOT {late}", lambda row: time_text(getattr(row.tpot_s, late))) if writes else None,
        ("speed", lambda row: known_text(row.speed, row.profiled)),
        ("instance", lambda row: f"{row.instance}, {row.region}") if full else None,
        best=0,
        shown=shown,
        numbered=True,
    )


_SPLITS = {
    "TP": "GPUs that share every layer",
    "PP": "stages of layers",
    "EP": "GPUs that share the experts",
    "DP": "groups of GPUs, each with its own sequences",
}


def why_line(why: WhyPick) -> blocks.Line:
    """The nearest other kind of way, in a clause; ``explain`` has the whole sentence."""
    return blocks.line(blocks.Span("Why this one: ", "strong"), f"{why.text.partition('; ')[0].removesuffix('.')}.")


def why_blocks(why: WhyPick) -> Iterable[blocks.Block]:
    """The nearest way of each other kind beside the pick: what a request takes of GPUs, by what it goes to."""
    rows = []
    for row in (why.pick, *why.others):
        way, layout = "the pick" if row is why.pick else row.kind.value, f"{row.replicas:,} × {row.layout} {row.gpu}"
        bill = f"{'≥ ' if row.at_least else ''}{usd(row.usd_per_month)}"
        used = usd(row.usd_per_gpu_hour), percent(row.in_use), f"{row.gpu_s.total:.3g}"
        parts = (f"{part:.2g}" for part in row.gpu_s.by_part.values())
        rows.append((way, layout, bill, *used, *parts, f"{row.batch:,}", row.limited_by))
    heads = ["way", "!layout", ">$/month", ">$/GPU-h", ">in use", ">GPU-s a request", ">prompts", ">weights", ">KV"]
    yield blocks.table([*heads, ">compute", ">comm.", ">overhead", ">batch", "limited by"], rows, best=0)
    yield blocks.note(
        why.text,
        "bill = requests a second × GPU-seconds a request (at full batches) × $/GPU-h ÷ share in use.",
        "≥: not sized by simulation, as it costs more even so." if any(row.at_least for row in why.others) else "",
    )


def split_legend(rows: Sequence[Candidate]) -> str:
    """What the letters in these rows mean."""
    shown = " ".join(replicas_text(row) for row in rows)
    said = [f"{name} = {meaning}" for name, meaning in _SPLITS.items() if f"{name}=" in shown]
    if any(row.prefill for row in rows):
        said.append("a + b = replicas that compute prompts and replicas that answer")
    return f"replicas: {'; '.join(said)}." if said else ""


def replicas_text(row: Candidate) -> str:
    """``2 × TP=4``, ``3`` of one GPU each; ``1 × TP=2 + 2 × TP=4`` where one computes prompts and two answer."""

    def text(side: Candidate | PrefillSide) -> str:
        return f"{side.replicas:,} × {split_text(side)}" if side.gpus_per_replica > 1 else f"{side.replicas:,}"

    return f"{text(row.prefill)} + {text(row)}" if row.prefill else text(row)


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
            f", {served_as(rival)} at {rented_text(rival)}: ",
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
    yield blocks.listed(
        points,
        ("!prefill : decode", lambda point: charts.plan.split_name(point)),
        (">requests/s", lambda point: f"{point.requests_per_s:,.3g}" if point.requests_per_s else "–"),
        (">$/Mtok", lambda point: usd_text(point.usd_per_mtok)),
        (">of the most", lambda point: percent(point.requests_per_s / most)),
        (">KV of a prompt", lambda point: time_text(point.kv_transfer_s)),
        ("", lambda point: blocks.Span(charts.plan.mark_of(point), "good" if point.is_planned else "strong")),
        title=f"The same GPUs split otherwise ({layout_text(study.apart.row)})",
    )
    link = study.apart.row.prefill.link if study.apart.row.prefill else ""
    yield blocks.note(
        "Requests a second that meet every SLO, by short simulations: a few percent are chance.",
        f"KV of a prompt: what one of mean length takes to the side that answers, over {link} for the cheapest split.",
    )
