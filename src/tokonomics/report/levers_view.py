"""Show levers: what to change first, what all of them save, and the way there from a naive start."""

from collections.abc import Iterable, Sequence
from functools import partial

from tokonomics.errors import option
from tokonomics.levers.boundaries import Axis, Boundary
from tokonomics.levers.lever_list import API
from tokonomics.levers.ranking import CHUNK, Effects, Pulled, QualityKept, Ranking, Utilization
from tokonomics.levers.stack import Drafted, Step
from tokonomics.questions.levers import LeversResult, StackResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.proposals_view import proposals
from tokonomics.report.shared_view import api_fact, api_lines, folded_reasons, levers_question, quality_sources
from tokonomics.report.wording import (
    NO_VALUE,
    aged_since,
    bought_text,
    percent_text,
    quoted_text,
    speed_word,
    time_text,
)
from tokonomics.sizing.bill import Bill, DraftUse
from tokonomics.sizing.setup import Setup
from tokonomics.units import count, fine_percent, gigabytes, percent, plural, seconds, usd

_SHOWN = 5e-4  # a smaller share would show 0.0 %
_LITTLE = 0.05  # of a replica: the search for what replicas hold is no finer
_FIGURES = [">$/month", ">$/Mtok", ">replicas", ">load", ">TTFT p99", ">TPOT p99"]


def levers(result: LeversResult, request: Request) -> Answer:
    """Show the ranked list, and what the levers save together."""
    setup, utilization = result.setup, result.utilization
    drawn = {"What each lever saves": lambda: charts.levers.levers_chart(result, setup)}
    title = f"What to change first for {setup.deployment.model.name}"
    more = list(_utilization(utilization)) if utilization else []
    if metered := result.metered:
        changes = {"What each change saves": lambda: charts.levers.proposals_chart(metered, setup)}
        shown = changes if metered.proposals else {}
        return Answer(result, f"{title}, as metered", lambda: [*proposals(result, metered), *more], shown)
    return Answer(result, title, lambda: [*_ranking(result, setup), *more], drawn)


def stack(result: StackResult, request: Request) -> Answer:
    """Show the waterfall as a table."""
    drawn = {"From naive to best": lambda: charts.levers.stack_chart(result, result.setup)}
    title = f"All optimisations of {result.setup.deployment.model.name}, in order"
    return Answer(result, title, partial(_waterfall, result, result.setup), drawn)


def _ranking(ranking: LeversResult, setup: Setup) -> blocks.View:
    yield levers_question(setup)
    yield blocks.section(*_together(ranking), _with_overheads(ranking))
    if ranking.api:
        yield blocks.section(*api_lines(ranking.api))
    shown = [lever for lever in ranking.levers if lever.bill or lever.api]
    rows = [
        ("as it is", "", "", *_figures(ranking.now)),
        *(
            (*_name(lever, lever.bill), _kept(lever.kept), *_figures(lever.bill)) if lever.bill else _called(lever)
            for lever in shown
        ),
    ]
    best = next((place for place, lever in enumerate(shown, 1) if lever.name in ranking.taken), None)
    yield blocks.table(["lever", ">saves", ">quality", *_FIGURES], rows, best=best)
    if shown:
        efforts = [(lever.name, lever.effort, lever.risk) for lever in shown]
        yield blocks.table(["!lever", "effort", "risk"], efforts)
    bounded = [(lever, boundary) for lever in ranking.levers for boundary in lever.boundaries]
    if bounded:
        yield _where_it_pays(bounded)
    without = [
        (lever.name, f"{'taken on top of the others; alone: ' * (lever.name in ranking.taken)}{lever.reason.marked}")
        for lever in ranking.levers
        if lever.reason
    ]
    yield folded_reasons(without)
    changed = [(lever.name, lever.effects) for lever in ranking.levers if lever.effects]
    if changed:
        yield _effects(changed)
    yield _footnotes(ranking, shown)


def _where_it_pays(bounded: Sequence[tuple[Pulled, Boundary]]) -> blocks.Table:
    """Show each boundary of each lever beside the user's own value."""
    names = [lever.name for lever, _ in bounded]
    rows = [
        (
            "" if place and names[place - 1] == lever.name else lever.name,
            _pays(boundary),
            NO_VALUE if boundary.yours is None else _yours(boundary.axis, boundary.yours),
        )
        for place, (lever, boundary) in enumerate(bounded)
    ]
    return blocks.table(["!lever", "where it pays", ">yours"], rows)


_AXES = {  # what happens where a lever pays, a value of the axis, all values of it, and the user's own value
    Axis.batch: ("a token takes less time", "a batch of {}", "batch{}", "{}"),
    Axis.context: ("a token takes less time", "a context of {} tokens", "context{}", "{} tokens"),
    Axis.acceptance: ("a draft saves time at this batch", "an acceptance of {}", "acceptance{}", "{}"),
    Axis.found: ("fewer replicas", "{} of the prompt tokens found in a cache", "share of tokens found{}", "{}"),
    Axis.position: ("fetching KV beats computing it", "token {} of a prompt", "position in a prompt{}", "{} tokens"),
    Axis.busiest: ("fewer replicas in the mean", "a busiest hour of {} the mean", "busiest hour{}", "{}"),
    Axis.hours: ("cheaper than on demand", "{} of the hours in use", "share of the hours{}", "{}"),
    Axis.waiting: ("fewer replicas", "{} of the requests that can wait", "share of requests{}", "{}"),
    Axis.rate: ("a lower bill", "{} requests/s", "load{} requests/s", "{}/s"),
}
_SHARES = (Axis.acceptance, Axis.found, Axis.hours, Axis.waiting)


def _on_axis(axis: Axis, value: float) -> str:
    if axis in _SHARES:
        return percent(value)
    if axis is Axis.busiest:
        return f"{value:.2f} ×"
    return count(value) if axis is Axis.rate else f"{value:,.0f}"


def _yours(axis: Axis, value: float) -> str:
    return _AXES[axis][3].format(_on_axis(axis, value))


def _pays(boundary: Boundary) -> str:
    """Return where a lever pays: ``a token takes less time up to a batch of 48``."""
    what, value, whole, _ = _AXES[boundary.axis]
    begins, ends, low, high = (
        "" if number is None else _on_axis(boundary.axis, number)
        for number in (boundary.pays_from, boundary.pays_to, boundary.looked_from, boundary.looked_to)
    )
    looked = whole.format(f" from {low} to {high}" if low else "")
    if not boundary.pays:
        said = f"{what} at no {looked}"
    elif begins and ends:
        said = f"{what} from {value.format(f'{begins} to {ends}')}"
    elif begins or ends:
        said = f"{what} {'from' if begins else 'up to'} {value.format(begins or ends)}"
    else:
        said = f"{what} at any {looked}"
    return f"{said}{_freed(boundary.frees or 0.0)}"


def _freed(replicas: float) -> str:
    """Return ``; frees 0.4 of a replica today``, if it is not next to none."""
    number = f"{abs(replicas):.2g}"
    number += " of a replica" if abs(replicas) < 1 else " replica" if number == "1" else " replicas"
    return "" if abs(replicas) < _LITTLE else f"; {'frees' if replicas > 0 else 'takes'} {number} today"


def _kept(kept: QualityKept | None) -> str:
    """Return ``98.3 %`` of the published model's quality, or ``none lost`` if the answers do not change."""
    if kept is None or kept.share is None:
        return "not scored"
    return fine_percent(kept.share) if kept.scores else "none lost"


def _change(share: str, before: Bill, after: Bill, how: str = "") -> blocks.Line:
    old = aged_since(before.price_date, after.price_date)
    bills = f"{usd(before.usd_per_month)} → {usd(after.usd_per_month)} a month"
    prices = f"{usd(before.usd_per_mtok.blended)} → {usd(after.usd_per_mtok.blended)} per Mtok"
    if before.job and after.job:
        prices += f", {usd(before.job.usd)} → {usd(after.job.usd)} per job"
    return blocks.line(blocks.Span(f"−{share}", "best"), f": {bills}, {prices}{how}{old}", kind="headline")


def _together(ranking: Ranking) -> Iterable[blocks.Block]:
    now, after, taken = ranking.now, ranking.together, ranking.taken
    if taken:
        yield _change(percent(ranking.saved_share), now, after, f", with {' + '.join(taken)}")
    else:
        why = " lowers the bill at this size: whole replicas and machines are what is paid for"
        said = f"{why}{aged_since(now.price_date)}."
        yield blocks.line(blocks.Span("No lever", "alert"), said, kind="headline")
    alone = percent(ranking.sum_of_shares) if ranking.sum_of_shares >= _SHOWN else "nothing"
    added = "is what each of them saves alone, added up: one takes from what the next could save, or makes room for it"
    yield blocks.facts(
        _bill_fact("now", now),
        _bill_fact("with them", after) if taken else None,
        ("their sum", alone, added) if taken and alone != percent(ranking.saved_share) else None,
    )
    with_bill = [lever for lever in ranking.levers if lever.bill]
    left = [lever for lever in with_bill if lever.saved_share >= _SHOWN and lever.name not in taken]
    if taken and left:
        named = ", ".join(f"{lever.name} ({percent(lever.saved_share)} alone)" for lever in left)
        yield blocks.line(f"Not among them, as it saves nothing more beside the others: {named}.")
    first = next((lever for lever in ranking.levers if lever.name in taken and lever.saved_usd_per_month > 0), None)
    if first:
        saves = f"alone it saves {usd(first.saved_usd_per_month)} a month ({first.effort})"
        yield blocks.hint(f"Start with {first.name}: {saves}.")


def _with_overheads(ranking: LeversResult) -> blocks.Facts | None:
    """Show the same saving on a bill with people and overheads."""
    now, after = ranking.upkeep_now, ranking.upkeep_together
    if now is None or after is None:
        return None
    saved = f"→ {usd(after.total_usd)}: {percent(1 - after.total_usd / now.total_usd)} less"
    per = f"{usd(now.usd_per_mtok or 0)} → {usd(after.usd_per_mtok or 0)} per Mtok"
    named = ", ".join(f"{line.name} {usd(line.usd)}" for line in now.lines.lines)
    return blocks.facts(("with overheads", f"{usd(now.total_usd)}/month", f"{saved}, {per}; {named}"))


def _bill_fact(name: str, bill: Bill) -> blocks.Fact:
    bought = f"{bought_text(bill)}{'†' if bill.price_stale else ''}; speed {speed_word(bill.speed, bill.speed_from)}"
    runs = f"{plural(bill.all_replicas, 'replica')} of {bill.deployment}; {bought}"
    if bill.job and bill.job.job_s and bill.job.job_s.p99 is not None:
        runs += f"; a job takes {time_text(bill.job.job_s.p50)}, p99 {time_text(bill.job.job_s.p99)}"
    return blocks.fact(name, f"{usd(bill.usd_per_month)}/month", runs, number=bill.usd_per_month)


def _quoted(bills: Sequence[Bill]) -> str:
    return quoted_text([bill.price_date for bill in bills], any(bill.price_stale for bill in bills))


def _called(lever: Pulled) -> list[blocks.Pieces]:
    """Return the row of calling an API: it has a bill, but no machines."""
    assert lever.api is not None
    share, api = lever.saved_share, lever.api
    mood: blocks.Mood = "best" if share > 0 else ""
    saves = percent(share) if share > 0 else f"costs {percent(-share)}"
    dollars = usd(api.usd_per_month), usd(api.api.usd_per_mtok)
    return [blocks.Span(f"{lever.name}: {api.api.name}", mood), saves, "not known", *dollars, *[NO_VALUE] * 4]


def _name(lever: Pulled, bill: Bill) -> tuple[blocks.Piece, str]:
    """Return the lever with its new GPUs and their seller, and its saving."""
    to = ""
    if lever.knob == "hardware":
        to = f": {bill.deployment.rpartition(' on ')[2]} ({bought_text(bill)})"
    elif lever.knob == "tiers":
        to = f": {_memories(bill)}"
    share = lever.saved_share
    saves = percent(share) if share > 0 else f"costs {percent(-share)}"
    mood: blocks.Mood = "best" if lever.saved_usd_per_month > 0 else ""
    return blocks.Span(f"{lever.name}{to}", mood), "0 %" if abs(share) < _SHOWN else saves


def _memories(bill: Bill) -> str:
    """Return the sizes of the memories beyond the GPU's, for a replica or for all of them."""
    sizes = (f"{memory.tier.name} {gigabytes(memory.tier.size_bytes)}" for memory in bill.memories)
    return " + ".join(sizes) + (" a replica, assumed free" if bill.memory_assumed else "")


def _figures(bill: Bill) -> list[str]:
    mean = f" ({bill.mean_replicas:.1f})" if bill.mean_replicas < bill.all_replicas else ""
    prefill = f" ({bill.prefill_replicas} prefill)" if bill.prefill_replicas else ""
    dollars = f"{usd(bill.usd_per_month)}{'†' if bill.price_stale else ''}"
    served = [percent_text(bill.load_share), time_text(bill.ttft_s.p99), time_text(bill.tpot_s.p99)]
    return [dollars, usd(bill.usd_per_mtok.blended), f"{bill.all_replicas}{mean}{prefill}", *served]


def _effects(changed: Sequence[tuple[str, Effects]]) -> blocks.Table:
    before = changed[0][1]

    def figure(row: tuple[str, Effects, str], name: str) -> float:
        _, effects, when = row
        return float(getattr(effects, f"{name}_{when}"))

    return blocks.listed(
        [("as it is", before, "before"), *((name, effects, "after") for name, effects in changed)],
        ("!", lambda row: row[0]),
        (">weights/GPU", lambda row: gigabytes(figure(row, "weight_bytes"))),
        (f">step of {before.batch:.0f}", lambda row: seconds(figure(row, "step_s"))),
        (f">{CHUNK:,} prompt tokens", lambda row: seconds(figure(row, "prompt_s"))),
        (">room for sequences", lambda row: f"{figure(row, 'sequences'):,.0f}"),
        title="What fewer bits do: to a step, a prompt, the batch",
    )


def _footnotes(ranking: Ranking, pulled: Sequence[Pulled]) -> blocks.Line:
    names = {lever.name for lever in pulled}
    bills = [ranking.now, ranking.together, *(lever.bill for lever in pulled if lever.bill)]
    return blocks.note(
        *quality_sources((lever.name, lever.kept) for lever in pulled),
        *(f"{lever.name}: {lever.quality}" for lever in pulled if lever.knob in ("weights", "kv", API)),
        "Every bill is of a simulated fleet: the fewest replicas that meet every SLO, on whole machines. load: "
        "requests served over what full batches would serve; a lever that saves nothing yet may make room.",
        *(_drafts(lever.bill.draft) for lever in pulled if lever.knob == "speculation" and lever.bill),
        "Requests that can wait: their own latencies count in that row, from when they are sent."
        if "requests that can wait" in names
        else "",
        "Spot: as much as the verdict allows, interruptions priced." if "spot" in names else "",
        _quoted(bills),
        "Similar prompts and templates: `tokonomics cache`. Shared fleets and LoRA: `tokonomics tenants`.",
    )


def _drafts(draft: DraftUse | None) -> str:
    """Say what drafts, and where its acceptance is from."""
    if draft is None:
        return ""
    given = f", as published: {draft.source}" if draft.source else "; it is yours, or else assumed"
    return (
        f"Speculative decoding: {draft.name}, of whose tokens {percent(draft.acceptance)} are accepted{given}. "
        "Measure it on your own texts."
    )


def _waterfall(made: StackResult, setup: Setup) -> blocks.View:
    naive, end, batched = made.naive, made.end, made.batched
    yield levers_question(setup)
    share = made.saved_share_of_batched
    yield blocks.section(
        _change(f"{made.saved_share * 100:.1f} %", naive, end),
        blocks.facts(
            _bill_fact("naive start", naive),
            _bill_fact("batching already", batched) if batched else None,
            _bill_fact("end", end),
            blocks.fact("from batching", f"−{share * 100:.1f} %", "is what a team that batches already saves")
            if share is not None
            else None,
            api_fact(made.api),
        ),
        blocks.hint("Check the quality of what changed on your own task.") if made.quality else None,
        *api_lines(made.api),
    )
    rows = [["one request at a time, 16 bit", "", "", "", *_figures(naive)]]
    rows += [_step(step, made.drafted) for step in made.steps]
    heads = ["step", ">saves $/month", ">of start", ">quality", *_FIGURES]
    yield blocks.table(heads, rows, best=len(rows) - 1)
    yield folded_reasons([(lever.name, lever.reason.marked) for lever in made.left_out])
    yield blocks.section(
        _drafted(made.drafted) if made.drafted else None,
        blocks.note(
            *quality_sources((step.name, step.kept) for step in made.steps),
            *made.quality,
            "Every step is a simulated fleet that meets the SLOs. The order changes what a step saves, not the end "
            f"({option('order')}). The start serves one request at a time on each replica.",
            _quoted([naive, end, *(step.bill for step in made.steps)]),
        ),
    )


def _drafted(drafted: Drafted) -> blocks.Line:
    given = f"assumed, not measured: give yours ({option('acceptance')})" if drafted.assumed else "as you gave it"
    given = f"as published: {drafted.source}" if drafted.source else given
    pays = "at no acceptance" if drafted.pays_from is None else f"from an acceptance of {percent(drafted.pays_from)} on"
    said = (
        f"Speculative decoding: the acceptance of {percent(drafted.acceptance)} is {given}. "
        f"At a batch of {drafted.batch:.0f} a draft saves time {pays}."
    )
    return blocks.hint(said) if drafted.assumed else blocks.note(said)


def _step(step: Step, drafted: Drafted | None) -> list[str]:
    memories = f": {_memories(step.bill)}" if "tiers" in step.knobs and step.bill.memories else ""
    assumed = " (assumed)" if drafted is not None and drafted.assumed and "speculation" in step.knobs else ""
    return [
        f"{step.name}{memories}{assumed}",
        usd(step.saved_usd_per_month) if abs(step.saved_usd_per_month) >= 0.005 else "–",
        f"{step.saved_share * 100 + 0.0:.1f} %" if abs(step.saved_share) >= _SHOWN else "0 %",
        _kept(step.kept),
        *_figures(step.bill),
    ]


def _utilization(made: Utilization) -> blocks.View:
    """Show cost against batch limit, load and burstiness."""
    for title, points in (
        ("The bill against how many requests a replica serves at a time", made.by_batch),
        ("The bill against the load, on the same deployment", made.by_load),
        ("The bill against burstiness, at equal mean rate", made.by_burst),
    ):
        rows = [
            [point.name, *(_figures(point.bill) if point.bill else [point.reason or "–", *[""] * 5])]
            for point in points
        ]
        yield blocks.table(["!", *_FIGURES], rows, title)
