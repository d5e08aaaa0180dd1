"""Show candidates beside each other: the ranking of one model, why its pick won, and the picks of several models."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokonomics.catalog.gpus import gpu_text
from tokonomics.catalog.layers import Precision
from tokonomics.errors import option
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Flip, Flips, Regret
from tokonomics.planner.plan_answer import Candidate, Plan, PrefillSide
from tokonomics.planner.shared_ways import ModelHere, Way, WayRow
from tokonomics.planner.why import WhyPick
from tokonomics.questions.results import PlanCases, PlanModels, PlanResult, PlanTogether, layout_text, split_text
from tokonomics.report import blocks, charts
from tokonomics.report.plan_pick_view import asked_text, nothing, served_as
from tokonomics.report.shared_view import SALE_COLUMNS, api_lines, api_table, sale_cells
from tokonomics.report.wording import (
    FEWER_BITS,
    NO_VALUE,
    aged,
    aged_since,
    and_slos,
    duration_text,
    known_text,
    machine_text,
    percent_text,
    rented_text,
    time_text,
    usd_text,
    workload_text,
)  # fmt: skip
from tokonomics.units import count, percent, plural, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study


def ranking(
    rows: Sequence[Candidate],
    shown: int | None,
    model: Callable[[Candidate], str] | None = None,
    opens: Callable[[Candidate], str] = lambda _: "",
    full: bool = False,
) -> blocks.Table:
    """Show candidates, the pick first, with the model's name if there are several.

    ``opens`` returns, for each, the inputs that tell more about it; ``full`` adds the columns that do not fit a
    terminal.
    """
    late = "p99" if any(row.simulated for row in rows) else "mean"
    some_old = not all(row.price_stale for row in rows)
    writes = any(row.tpot_s.mean is not None for row in rows)  # an encoder does not, and has no KV
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
    """Show the nearest alternative in a clause; ``explain`` has the whole sentence."""
    return blocks.line(blocks.Span("Why this one: ", "strong"), f"{why.text.partition('; ')[0].removesuffix('.')}.")


def hour_lines(result: PlanResult) -> Iterable[blocks.Line]:
    """Show how many replicas the hours need, and what buying by the hour would save."""
    if (hours := result.by_hour) is None:
        return
    named = ", ".join(f"{text}: {count:,}" for text, count in _spans(hours.replicas))
    what = "Replicas by the hour" if len(hours.replicas) <= 24 else "Replicas by the hour, its first day"
    yield blocks.line(blocks.Span(f"{what}: ", "strong"), f"{named}.")
    if result.fleet_command and hours.saved_usd_per_month > 0:
        saved = f"{usd(hours.saved_usd_per_month)} a month ({percent(hours.saved_share)})"
        yield blocks.line(
            blocks.Span("Bought by the hour at this price: ", "strong"),
            f"{saved} less; with reserved and spot machines too: `{result.fleet_command}`.",
        )


def _spans(replicas: Sequence[int]) -> list[tuple[str, int]]:
    """Return the stretches of a day with equal numbers: ``07–17 h`` and how many."""
    starts = [hour for hour in range(min(24, len(replicas))) if not hour or replicas[hour] != replicas[hour - 1]]
    ends = [*starts[1:], min(24, len(replicas))]
    return [(f"{start:02}–{end:02} h", replicas[start]) for start, end in zip(starts, ends, strict=True)]


def why_blocks(why: WhyPick) -> Iterable[blocks.Block]:
    """Show the nearest alternative of each kind beside the pick: the GPU time of a request, by its parts."""
    ways, spent = [], []
    for row in (why.pick, *why.others):
        way, layout = "the pick" if row is why.pick else row.kind.value, f"{row.replicas:,} × {row.layout} {row.gpu}"
        bill = f"{'≥ ' if row.at_least else ''}{usd(row.usd_per_month)}"
        used = usd(row.usd_per_gpu_hour), percent(row.in_use), f"{row.batch:,}"
        ways.append((layout, bill, *used, row.limited_by, way))
        spent.append((layout, f"{row.gpu_s.total:.3g}", *(f"{part:.2g}" for part in row.gpu_s.by_part.values())))
    heads = ["!layout", ">$/month", ">$/GPU-h", ">in use", ">batch", "limited by", "way"]
    yield blocks.table(heads, ways, best=0)
    parts = [">prompts", ">weights", ">KV", ">compute", ">comm.", ">overhead"]
    yield blocks.table(["!layout", ">in all", *parts], spent, "GPU-seconds of a request, by part", best=0)
    yield blocks.note(
        why.text,
        "bill = requests a second × GPU-seconds a request (at full batches) × $/GPU-h ÷ share in use.",
        "≥: not sized by simulation, as it costs more even so." if any(row.at_least for row in why.others) else "",
    )


def split_legend(rows: Sequence[Candidate]) -> str:
    """Explain the letters in these rows."""
    shown = " ".join(replicas_text(row) for row in rows)
    said = [f"{name} = {meaning}" for name, meaning in _SPLITS.items() if f"{name}=" in shown]
    if any(row.prefill for row in rows):
        said.append("a + b = replicas that compute prompts and replicas that answer")
    return f"replicas: {'; '.join(said)}." if said else ""


def replicas_text(row: Candidate) -> str:
    """Return ``2 × TP=4``, ``3`` for one GPU each, or ``1 × TP=2 + 2 × TP=4`` for one prefill and two decode."""

    def text(side: Candidate | PrefillSide) -> str:
        return f"{side.replicas:,} × {split_text(side)}" if side.gpus_per_replica > 1 else f"{side.replicas:,}"

    return f"{text(row.prefill)} + {text(row)}" if row.prefill else text(row)


def flip_lines(plan: Plan, rival: Candidate | None, found: Flips) -> Iterable[blocks.Line]:
    """Show the runner-up, and what would make another GPU the cheapest."""
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
    if found.steady and plan.best:
        stays = f"{gpu_text(plan.best.gpu)} stays the cheapest GPU, in whatever layout, up to"
        yield blocks.note(f"  {stays}: {', '.join(found.steady)}")


def _flip(flip: Flip) -> str:
    way = "from" if flip.factor > 1 else "down to"
    rival, pick = (
        "no way" if bill is None else usd(bill)
        for bill in (flip.after.rival_usd_per_month, flip.after.pick_usd_per_month)
    )
    value = f"{count(flip.after.value)} {flip.what}"
    return f"{way} {value} ({flip.factor:.3g}×): {flip.gpu} {flip.rival}, {rival} against {pick}"


def ratio_blocks(study: "Study", points: Sequence[RatioPoint]) -> Iterable[blocks.Block]:
    """Show what the GPUs of the disaggregated candidate hold at each split."""
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


if TYPE_CHECKING:
    from tokonomics.planner.plan import Study

_NAMED = {Way.own: "each on its own GPU", Way.zero: "each on its own GPU, scaled to zero"}
_SHARED = {
    Way.shares: "all on one GPU by shares of its memory",
    Way.slices: "all on one GPU by MIG slices",
    Way.turns: "all on one GPU, one awake at a time",
}


def together_view(found: PlanTogether) -> blocks.View:
    """Show the ways to serve several models."""
    yield blocks.section(
        *(
            blocks.line(
                f"{asked.name} at {workload_text(asked.workload, asked.swing)}{and_slos(asked.slos)}", kind="asked"
            )
            for asked in found.asked
        )
    )
    same_bits = None
    if (usd_apart := found.own_at_these_bits_usd_per_month) is not None:
        same_bits = blocks.line(f"It serves fewer bits than own GPUs do; at the same bits those cost {usd(usd_apart)}.")
    yield blocks.section(_headline(found), same_bits, _crossing_line(found))
    yield _ways(found)
    if found.best:
        yield _models([found.best])
    yield api_table(
        {asked.name: found.apis[asked.model] for asked in found.asked if asked.model in found.apis}, "model"
    )
    yield blocks.note(*_notes(found))
    yield blocks.section(_models(found.rows), title="Each model in each way", folded=True)


def _headline(found: PlanTogether) -> blocks.Line:
    best = found.best
    if best is None:
        return blocks.line("No way meets every SLO.", kind="worst")
    own = next((row for row in found.rows if row.way is Way.own), None)
    place = f", {_rented(best)}" if best.way not in _NAMED else ""
    than = ""
    if own and best.way is not Way.own and own.meets:
        than = f": {percent(1 - best.usd_per_month / own.usd_per_month)} less than {usd(own.usd_per_month)} apart"
    way = {**_NAMED, **_SHARED}[best.way]
    return blocks.headline(f"{usd(best.usd_per_month)} a month", f", {way}{place}{than}{aged_since(best.price_date)}")


def _crossing_line(found: PlanTogether) -> blocks.Line | None:
    """Say up to which traffic one GPU for all is the cheaper choice."""
    crossed = found.crossing
    if crossed is None:
        return None

    def at(factor: float, bill: float | None) -> str:
        rates = " + ".join(f"{asked.workload.rate * factor:.3g}" for asked in found.asked)
        return f"{factor:.3g} times this traffic ({rates} requests/s{f', {usd(bill)} a month' if bill else ''})"

    # The crossing compares GPUs that are never switched off.
    stay = " of GPUs that stay on" if found.best is not None and found.best.way is Way.zero else ""
    if not crossed.below:
        return blocks.line(
            f"Own GPUs{stay} are the cheaper choice down to {crossed.above or 0.0:.2g} times the traffic."
        )
    one = f"One GPU for all is the cheaper choice{stay} up to {at(crossed.below, crossed.together_usd_per_month)}"
    if crossed.above is None:
        return blocks.line(f"{one}.")
    return blocks.line(f"{one}; own GPUs are from {at(crossed.above, crossed.own_usd_per_month)} on.")


def _rented(row: WayRow) -> str:
    """Return ``AWS g6.xlarge, L4``; if models have several kinds of machine, the first and how many more."""
    first, several, more = row.machine.partition(" and ")
    provider, _, instance = first.partition(" ")
    gpu = row.gpu.partition(" and ")[0]
    return f"{machine_text(provider, instance, gpu)}{several}{more}"


def _ways(found: PlanTogether) -> blocks.Table:
    rows: list[Sequence[blocks.Pieces]] = []
    for row in found.rows:
        met = blocks.Span("met", "good") if row.meets else blocks.Span(_missed(row), "bad")
        rows.append((row.way.value, _rented(row), f"{row.gpus_paid:.3g}", usd(row.usd_per_month), met))
    rows += [(way.value, *[NO_VALUE] * 3, why) for way, why in found.not_possible.items()]
    return blocks.table(["!way", "rent", ">GPUs paid", ">$/month", "SLOs"], rows, best=0 if found.best else None)


def _missed(row: WayRow) -> str:
    late = [f"{model.model}: {model.breaks}" for model in row.models if model.breaks]
    more = f"; {plural(len(late) - 1, 'other')} too" if len(late) > 1 else ""
    return f"missed: {late[0]}{more}"


def _models(ways: Sequence[WayRow]) -> blocks.Table:
    """Show what each model gets in each of the ways."""
    return blocks.listed(
        [("" if place else row.way.value, model) for row in ways for place, model in enumerate(row.models)],
        ("!way", lambda row: row[0]) if len(ways) > 1 else None,
        ("!model", lambda row: row[1].model),
        ("weights", lambda row: f"{row[1].weights.value}{'*' if row[1].below_checkpoint else ''}"),
        ("place", lambda row: row[1].place),
        (">memory", lambda row: percent_text(row[1].memory_share)),
        (">GPU time", lambda row: percent_text(row[1].gpu_share)),
        (">TTFT p99", lambda row: _late(time_text(row[1].ttft_p99_s), row[1], "ttft")),
        (">TPOT p99", lambda row: _late(time_text(row[1].tpot_p99_s), row[1], "tpot")),
        (">$/month", lambda row: usd(row[1].usd_per_month)),
        (">$/Mtok", lambda row: usd(row[1].usd_per_mtok)),
    )


def _late(text: str, model: ModelHere, latency: str) -> blocks.Span:
    return blocks.Span(text, "bad" if model.breaks and model.breaks.startswith(latency) else "")


def _notes(found: PlanTogether) -> Iterator[str]:
    ways = {row.way: row for row in found.rows}
    yield "memory: of the GPU's. GPU time: in which it works for the model. A shared bill is split by GPU time."
    if Way.shares in ways:
        yield "Memory shares: processes without MPS take turns; while k have work each runs at 1/k. Switching is free."
    if Way.slices in ways:
        yield "MIG slices: parts of multiprocessors, memory and bandwidth by NVIDIA's guide; the bill is split by them."
    if (row := ways.get(Way.turns)) and row.switches_per_hour is not None:
        switches = f"{row.switches_per_hour:.3g} switches an hour"
        yield f"Sleep and wake: weights wait in the host's memory (vLLM's level 1); {switches}."
    if (row := ways.get(Way.zero)) and row.hold_s is not None:
        yield f"Scaled to zero: paid by the second, until nothing has come for {duration_text(row.hold_s)}."
    yield "Times to load, sleep and wake are published figures (catalog/data/start_times.toml)."
    if any(model.below_checkpoint for row in found.rows for model in row.models):
        yield FEWER_BITS


# --- several models apart, or several demands ------------------------------------------------------------------------


def models_view(result: PlanModels) -> blocks.View:
    """Show the pick of each model, cheapest first."""
    studies, rows = result.studies, result.models
    names = {study.plan.model: study.question.model.name for study in studies}
    yield blocks.line(asked_text(studies[0].plan, ", ".join(names.values()), swing=result.swing))
    if not rows:
        yield blocks.line("No offer meets the constraints for any of them: plan one alone to see why.")
        yield api_table({names[model]: api for model, api in result.apis.items()}, "model")
        return
    first = rows[0]
    bill = blocks.Span(f"{usd(first.usd_per_month)} a month", "best")
    where = f"{names[first.model]} on {rented_text(first)}{aged(first.price_age_days)}"
    beside = result.apis.get(first.model)
    fleet = "Cheapest fleet: " if beside and beside.cheaper else "Cheapest: "
    yield blocks.line(fleet, bill, f", {usd(first.usd_per_mtok.blended)} per Mtok, {where}", kind="headline")
    yield from api_lines(beside)
    yield ranking(rows, None, lambda row: names[row.model])
    yield api_table({names[model]: api for model, api in result.apis.items()}, "model")
    without = [name for key, name in names.items() if key not in {row.model for row in rows}]
    yield blocks.note(
        "The same tokens for each model; tokenizers differ by some percent. Measure whether the cheaper one is good "
        "enough for you.",
        FEWER_BITS if any(row.below_checkpoint for row in rows) else "",
        "" if studies[0].plan.slos else f"No SLO is set ({option('slo')}): answers may wait for long.",
        f"No offer meets the constraints for {', '.join(without)}: plan it alone to see why." if without else "",
    )


def sold_view(result: PlanModels) -> blocks.View:
    """Show what each pick earns in a month."""
    if result.sales:
        rows = [
            (
                sale.model,
                *(usd_text(getattr(sale.usd_per_mtok, kind)) for kind in ("input", "cached", "output")),
                *sale_cells(sale.month),
                NO_VALUE if sale.break_even_requests_per_s is None else f"{sale.break_even_requests_per_s:.3g}",
                percent_text(sale.break_even_load),
            )
            for sale in result.sales
        ]
        heads = ["!model", ">$/Mtok in", ">cached", ">out", *SALE_COLUMNS, ">pays from requests/s", ">load"]
        yield blocks.section(blocks.table(heads, rows), title="Sold, a month")


def cases_view(result: PlanCases) -> blocks.View:
    """Show the choice with the least regret under several demands, and the cost of each choice in each of them."""
    name = result.studies[0].question.model.name
    found: Regret | None = result.regret
    if found is None:
        lost = next(study for study in result.studies if study.plan.best is None)
        yield from nothing(lost.plan, name, result.blame)
        yield api_table(result.apis, "case")
        return
    cases = list(result.cases or ())
    yield blocks.section(
        *(
            blocks.line(f"{name}, {case}: {workload_text(demand, swing)}, best {usd(best)} a month", kind="asked")
            for case, demand, best, swing in zip(
                cases, found.demands, found.best_usd_per_month, result.swings or [None] * len(cases), strict=True
            )
        )
    )
    least = found.least
    if least is None:
        yield blocks.line("No choice holds in every case.", kind="worst")
        return
    bills = " / ".join(usd(case.usd_per_month) for case in least.cases)
    yield blocks.line(
        "Least regret: ",
        blocks.Span(least.layout, "best"),
        f" at {machine_text(least.provider, least.instance, least.gpu)}: {bills} a month for {' / '.join(cases)}, "
        f"at most {percent(least.largest_regret)} above the best of any case",
        kind="headline",
    )
    rows = []
    for place, choice in enumerate(found.choices, 1):
        hardware = f"{choice.layout}{'*' if choice.below_checkpoint else ''}"
        dollars = (f"{usd(case.usd_per_month)} ({case.replicas}×)" for case in choice.cases)
        best_in = ", ".join(cases[at] for at in choice.best_in) or "–"
        offer = machine_text(choice.provider, choice.instance, choice.gpu)
        rows.append((str(place), offer, hardware, *dollars, percent(choice.largest_regret), best_in))
    heads = ["", "!rent", "layout", *(f">{case}" for case in cases), ">most regret", "best in"]
    yield blocks.table(heads, rows, best=0)
    yield api_table(result.apis, "case")
    yield blocks.note(
        "Replicas (×) follow the demand, the hardware does not. Regret: the bill over the best bill of that case."
    )
