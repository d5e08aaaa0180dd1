"""A plan: the pick first, how firm it is, then the other hardware, and why the rest was left out."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokonomics.catalog.images import PromptImages
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.errors import option
from tokonomics.planner.firmness import Regret
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.plan_answer import Candidate, Plan, Rejection
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION
from tokonomics.planner.vary import BillRange, Case, Headroom, Sensitivity
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import CanRunResult, PlanCases, PlanModels, PlanResult, layout_text, replicas_text
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer, Charts
from tokonomics.report.can_run_view import can_run
from tokonomics.report.class_view import class_sections
from tokonomics.report.plan_pick_view import pick_blocks, set_aside_lines
from tokonomics.report.plan_why_view import (
    flip_lines,
    ratio_blocks,
    split_legend,
    splits_text,
    why_blocks,
    why_line,
)
from tokonomics.report.quality_view import not_tried, published_checkpoint, quality_facts
from tokonomics.report.sale_view import SALE_COLUMNS, fleet_sale_facts, sale_cells
from tokonomics.report.session_view import log_pace_note
from tokonomics.report.together_view import together_view
from tokonomics.report.upkeep_view import energy_facts, energy_notes, upkeep_facts
from tokonomics.report.wording import (
    ENCODER_SPEED,
    FEWER_BITS,
    NO_VALUE,
    OLD_PRICE,
    PROFILED,
    TOWER_SPEED,
    and_slos,
    known_text,
    percent_text,
    quoted_on,
    thinking_facts,
    time_text,
    usd_text,
    workload_text,
)  # fmt: skip
from tokonomics.sizing.refusal import Reason
from tokonomics.units import count, percent, plural, requests_a_second, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study


def plan(result: "PlanResult | PlanModels | PlanCases | CanRunResult", request: PlanRequest) -> Answer:
    """The plan of one model, of several, or under several demands; of one's own machine, its layouts."""
    if isinstance(result, CanRunResult):
        return can_run(result, request)
    studies = (result.study,) if isinstance(result, PlanResult) else result.studies
    title = f"What serving {', '.join(dict.fromkeys(study.question.model.name for study in studies))} costs"
    if isinstance(result, PlanCases):
        found, name = result.regret, studies[0].question.model.name
        drawn = {"Bills and regrets": lambda: charts.plan.regret_chart(found, name)} if found else {}
        return Answer(result, title, lambda: _cases(result), drawn)
    if isinstance(result, PlanModels):
        picks = result.models
        names = [f"{place}. {row.model} on {row.gpu}" for place, row in enumerate(picks, 1)]
        asked = asked_text(studies[0].plan, "The same requests")
        heading = "What each model costs on its cheapest hardware"
        drawn = {"Bills": lambda: charts.plan.bill_chart(picks, names, heading, asked)} if picks else {}
        return Answer(result, title, lambda: [*_models(studies, picks), *_sold(result)], drawn)
    if result.together:
        several, served = result.together, ", ".join(asked.name for asked in result.together.asked)
        return Answer(result, f"What serving {served} costs", lambda: together_view(several), {})
    files = [] if request.deploy_to else [blocks.File(file.name, file.text) for file in result.deploy]
    return Answer(result, title, lambda: [*_one(result, request), *files], _charts(result, request))


def _charts(result: PlanResult, request: PlanRequest) -> Charts:
    """The frontier of price and latency, the bill by hardware, and, where asked for, what moves the bill."""
    study: Study = result.study
    name = study.question.model.name
    if result.best is None or result.frontier is None:
        return {}
    frontier, more = result.frontier, {"bills": result.bill_range, "apis": result.apis, "measured": result.measured}
    drawn: dict[str, Callable[[], Any]] = {
        "Frontier": lambda: charts.frontier.frontier_chart(frontier, study.plan, name, **more),
        "Bills": lambda: charts.plan.plan_chart(study.plan, name),
    }
    if result.sensitivity:
        drawn["What moves the bill"] = lambda: charts.plan.sensitivity_chart(result.sensitivity, name)
    if result.ratios and study.apart:
        split = f"{name}: the GPUs of {layout_text(study.apart.row)}"
        drawn["Prefill to decode"] = lambda: charts.plan.ratio_chart(result.ratios, split)
    return drawn


def _one(result: PlanResult, request: PlanRequest) -> blocks.View:
    """One model at one demand."""
    study: Study = result.study
    whole, name = study.plan, study.question.model.name
    if whole.best is None:
        yield from nothing(whole, name, result.blame, images=study.question.model.images)
        if whole.set_aside:
            yield blocks.section(blocks.line("With a catch there is:"), *set_aside_lines(whole))
    else:
        yield blocks.line(asked_text(whole, name, study.question.model.images), kind="asked")
        firm = _firm(result.headroom, result.bill_range) + quality_facts(result, study.question.model)
        firm += [*thinking_facts(result.thinking), *_reads(study.question.model, whole)]
        firm += fleet_sale_facts(result.sale) if result.sale else []
        firm += [*upkeep_facts(result.upkeep), *energy_facts(result.energy)]
        label = "Cheapest, percentiles not checked" if whole.slos and not whole.best.simulated else "Cheapest"
        yield blocks.section(*pick_blocks(whole.best, label, whole, firm), not_tried(whole))
        if result.why:
            yield why_line(result.why)
        yield from class_sections(result.classes, whole.best.replicas)
        faithful = result.at_checkpoint
        if faithful and faithful != whole.best:
            own = [published_checkpoint(study.question.model)]
            yield blocks.section(*pick_blocks(faithful, "Cheapest at the checkpoint's own precision", whole, own))
        if whole.set_aside:
            yield blocks.section(*set_aside_lines(whole))
        leaders = whole.leaders(len(whole.ranked))
        shown = leaders[: request.top or 10]
        yield ranking(leaders, len(shown))
        drawn = blocks.note(*energy_notes(result.energy)) if result.energy else None
        pace = log_pace_note(result.log_pace) if result.log_pace else None
        notes = _notes(whole, shown, request, result.discounts)
        yield blocks.section(notes, pace, drawn, *_dropped(result, request))
        if result.measured:
            from tokonomics.report.bench_view import measured_sections  # Slow to load: only where it is used.

            yield from measured_sections(result.measured)
        if result.flips:
            yield blocks.section(*flip_lines(whole, result.rival, result.flips))
        if result.why and request.explain:
            yield blocks.section(*why_blocks(result.why))
        if result.sensitivity:
            yield _sensitivity(result.sensitivity)
        if result.ratios:
            yield blocks.section(*ratio_blocks(study, result.ratios))
        yield blocks.section(ranking(whole.ranked, None), title="Every offer", folded=True)
    if whole.rejected:
        yield blocks.section(_why(whole), title="" if request.why else "Why not the others", folded=not request.why)


def asked_text(plan: Plan, model_name: str, images: PromptImages | None = None) -> str:
    """The question in one line."""
    seen = f", {images.tokens:,} of every prompt for images ({images.text})" if images else ""
    asked = f"{model_name} at {workload_text(plan.workload)}{seen}{and_slos(plan.slos)}"
    return f"{asked}; {count(plan.workload.tokens_per_month)} tokens a month"


def nothing(
    plan: Plan, model_name: str, blames: Sequence[Blame], see: str = "", images: PromptImages | None = None
) -> blocks.View:
    """Which constraint stands in the way, the nearest value that would do, and how many each reason took."""
    yield blocks.line(asked_text(plan, model_name, images), kind="asked")
    kinds: Counter[Reason] = Counter()
    for rejection in plan.rejected:
        kinds[rejection.kind] += rejection.offers
    counts = "; ".join(f"{kind.value}: {number:,}" for kind, number in kinds.most_common())
    yield blocks.section(
        blocks.line("No offer meets these constraints.", kind="worst"),
        *(
            blocks.line(
                blocks.Span(f"  {blame.constraint.marked}: ", "strong"),
                f"{blame.why.marked}; {blame.nearest.marked}.",
            )
            for blame in blames
        ),
        blocks.note(f"{plural(kinds.total(), 'candidate')} rejected: {counts}. See {see or option('why')}.")
        if kinds
        else None,
        not_tried(plan),
    )


def _reads(model: ModelSpec, plan: Plan) -> Iterable[blocks.Fact]:
    """What of the prompts and of the speed follows from the kind of model."""
    if model.images:
        said = f"in every prompt, counted above ({model.images.text}); the vision tower {TOWER_SPEED}"
        yield blocks.fact("images", f"{model.images.tokens:,} tokens", said)
    if model.is_encoder:
        workload, best = plan.workload, plan.best
        full = f"; full batches of all replicas read {count(workload.rate / best.load_share)}/s" if best else ""
        tokens = f"{count(workload.rate * workload.input_tokens)} tokens/s{full}"
        yield blocks.fact("reads", requests_a_second(count(workload.rate)), tokens)
        yield blocks.fact("encoder", "no output", f"TTFT is the whole wait; {ENCODER_SPEED}")


def _firm(headroom: Headroom | None, bills: BillRange | None) -> list[blocks.Fact]:
    """The room to grow, and the interval of the bill."""
    if not headroom or not bills:
        return []
    return [_room(headroom), _interval(bills)]


def _room(headroom: Headroom) -> blocks.Fact:
    if headroom.at_most is None:
        never = "nothing breaks however much the traffic grows"
        return blocks.fact("room to grow", "any", never if headroom.simulated else f"{never}; not simulated")
    more = f"+{percent(headroom.share)}" if headroom.share < 2 else f"{count(float(f'{headroom.share + 1:.2g}'))} ×"
    if headroom.share < 0.005:
        more = "none"
    said = f"holds up to {requests_a_second(count(headroom.rate))}, then {headroom.breaks}"
    if not headroom.simulated:
        more, said = f"≤ {more}", f"not simulated: {said.replace('holds', 'in the mean')}; bursts leave less"
    return blocks.fact("room to grow", more, said, number=headroom.share, less="worse")


def _interval(bills: BillRange) -> blocks.Fact:
    """The bill over the 80 % interval of the speed."""
    fast, slow = bills.fast, bills.slow
    name = "80 % interval"
    if slow.usd_per_month is None or fast.usd_per_month is None:
        low = usd(fast.usd_per_month or bills.mid.usd_per_month or 0.0)
        return blocks.fact(
            name, f"from {low}", f"{percent(1 - slow.speed)} slower, no number of replicas meets the SLO"
        )
    dollars = [fast.usd_per_month, slow.usd_per_month, bills.mid.usd_per_month or fast.usd_per_month]
    speeds = f"speed {_off(slow.speed)} to {_off(fast.speed)}"
    if min(dollars) == max(dollars):
        return blocks.fact(name, "same bill", f"{speeds}: whole replicas absorb it")
    return blocks.fact(name, f"{usd(min(dollars))} to {usd(max(dollars))}", f"a month; {speeds}")


def _off(speed: float) -> str:
    return f"{'−' if speed < 1 else '+'}{percent(abs(speed - 1))}"


def ranking(
    rows: Sequence[Candidate], shown: int | None, models: Sequence[str] = (), opens: Sequence[str] = ()
) -> blocks.Table:
    """Candidates, the pick first; with the name of the model of each where there are several.

    ``opens`` is, of each, what to ask for more of it.
    """
    late = "p99" if any(row.simulated for row in rows) else "mean"
    some_old = not all(row.price_stale for row in rows)
    named: list[tuple[str, ...]] = [(name,) for name in models] or [()] * len(rows)
    some_draft = any(row.draft for row in rows)
    writes = any(row.tpot_s.mean is not None for row in rows)  # an encoder does not, and keeps no KV
    columns = ["", *(["!model"] if models else []), "!replicas × GPUs", "split", "weights"]
    columns += [*(["KV"] if writes else []), *(["drafts"] if some_draft else []), "offer"]
    columns += [">$/month", ">$/Mtok", ">load"]
    return blocks.table(
        [*columns, f">TTFT {late}", *([f">TPOT {late}"] if writes else []), "speed"],
        [
            (
                str(place),
                *name,
                blocks.Span(replicas_text(row), opens=opened),
                splits_text(row),
                f"{row.weights}{'*' if row.below_checkpoint else ''}",
                *([row.kv.value] if writes else []),
                *([row.draft.name if row.draft else "–"] if some_draft else []),
                f"{row.provider} {row.instance}",
                f"{'†' if row.price_stale and some_old else ''}{usd(row.usd_per_month)}",
                usd(row.usd_per_mtok.blended),
                percent(row.load_share),
                time_text(getattr(row.ttft_s, late)),
                *([time_text(getattr(row.tpot_s, late))] if writes else []),
                known_text(row.speed, row.profiled),
            )
            for place, (name, opened, row) in enumerate(zip(named, opens or [""] * len(rows), rows, strict=True), 1)
        ],
        best=0,
        shown=shown,
    )


def _notes(plan: Plan, shown: Sequence[Candidate], request: PlanRequest, discounts: Mapping[str, float]) -> blocks.Line:
    ranked, rejected = plural(len(plan.ranked), "candidate"), f"{sum(row.offers for row in plan.rejected):,}"
    taken_off = ", ".join(f"{provider} {percent(share)}" for provider, share in discounts.items())
    less = "hold; bursts and SLOs leave less to use than that"
    tokens = "all tokens, in and out" if plan.workload.writes else "the tokens read"
    return blocks.note(
        f"$/Mtok: the whole bill over {tokens}. load: requests over what full batches of mean requests",
        f"{less}: the room to grow is simulated." if plan.simulations else f"{less}.",
        split_legend(shown),
        "speed: timed = kernels timed on that GPU; scaled = from such, or from a related GPU's; assumed = neither.",
        PROFILED if shown[0].profiled else "",
        _how_sized(plan, bool(plan.slos or request.classes)),
        f"{quoted_on(row.price_date for row in shown)}; {ranked} ranked, {rejected} rejected ({option('why')}).",
        f"After your discounts: {taken_off}." if discounts else "",
        _fewer_bits(plan) if any(row.below_checkpoint for row in shown) else "",
        _old(plan, shown),
    )


def _fewer_bits(plan: Plan) -> str:
    """What the mark on precisions means; an encoder has no KV cache."""
    if plan.workload.writes:
        return FEWER_BITS
    return f"* weights at fewer bits than published: check quality on your own task ({option('min_weights')})."


def _old(plan: Plan, shown: Sequence[Candidate]) -> str:
    """What is said of old prices, once; where the table marks some of its rows, what the mark means."""
    if shown and all(row.price_stale for row in plan.leaders(len(plan.ranked))):
        return f"Every price here is older than {STALE_AFTER_DAYS} days: run `tokonomics prices refresh`."
    return OLD_PRICE if any(row.price_stale for row in shown) else ""


def _how_sized(plan: Plan, has_slos: bool) -> str:
    if not plan.simulations:
        share = percent(plan.limits.max_utilization or CLOSED_FORM_UTILIZATION)
        how = f"not simulated ({option('quick')})"
        return f"Replicas are planned to at most {share} of the closed form's capacity, {how}."
    spare = f" with {plan.limits.spare} down" if plan.limits.spare else ""
    targets = "meet every SLO" if has_slos else f"keep up (no SLO is set: {option('slo')})"
    aside = "apart from what is set aside above, nothing" if plan.set_aside else "nothing else"
    return (
        f"Replicas are the fewest that {targets}{spare}: {plan.simulations:,} simulations; "
        f"{aside} that these limits allow is cheaper than the runner-up; "
        "the rows after it are examples, not a full ranking."
    )


def _dropped(result: PlanResult, request: PlanRequest) -> Iterable[blocks.Line]:
    """What was asked for and is not in the answer, with the reason: providers, regions, GPUs, a kind of layout."""
    if request.disaggregate and result.study.apart is None:
        yield blocks.hint(
            "Nothing disaggregated is ranked: it would cost twice the pick, or has no network between GPUs."
        )
    for name, why in result.left_out.items():
        yield blocks.hint(f"{name} is left out: {why.marked}.")


def _why(plan: Plan) -> blocks.Table:
    """What was rejected, by GPU and kind of reason, with one case in words."""
    groups: dict[tuple[str, Reason], list[Rejection]] = {}
    for rejection in plan.rejected:
        groups.setdefault((rejection.gpu, rejection.kind), []).append(rejection)
    ranked = Counter(row.gpu for row in plan.ranked)
    rejected = sum(row.offers for row in plan.rejected)
    return blocks.table(
        ["!GPU", ">ranked", ">rejected", "because", "such as"],
        [
            (gpu, f"{ranked[gpu]:,}", f"{sum(member.offers for member in members):,}", kind.value, _example(members))
            for (gpu, kind), members in sorted(groups.items())
        ],
        f"{len(plan.ranked):,} candidates ranked, {rejected:,} rejected",
    )


def _example(members: Sequence[Rejection]) -> str:
    """The commonest reason of a group, with the layout or offer it befell."""
    reason, _ = Counter(member.reason for member in members).most_common(1)[0]
    first = next(member for member in members if member.reason == reason)
    layout = f"{first.layout}: " if first.layout else ""
    return f"{layout}{reason.removeprefix('does not fit: ')}"


def _sensitivity(found: Sensitivity) -> blocks.Table:
    """Which assumption moves the bill most."""

    def cells(case: Case) -> tuple[str, str, str]:
        return _off(case.factor), usd_text(case.usd_per_month), percent_text(case.used)

    return blocks.table(
        ["!assumption", ">change", ">$/month", ">used", ">change", ">$/month", ">used"],
        [(swing.assumption.replace("_", " "), *cells(swing.low), *cells(swing.high)) for swing in found.swings],
        f"What moves the bill of the pick ({usd(found.usd_per_month)}, {percent(found.used)} of what it holds)",
    )


def _models(studies: Sequence["Study"], rows: Sequence[Candidate]) -> blocks.View:
    """The pick of each model, the cheapest first."""
    names = {study.plan.model: study.question.model.name for study in studies}
    yield blocks.line(asked_text(studies[0].plan, ", ".join(names.values())))
    if not rows:
        yield blocks.line("No offer meets the constraints for any of them: plan one alone to see why.")
        return
    cheapest = rows[0].usd_per_mtok.blended
    yield blocks.table(
        ["", "!model", "replicas × GPUs", "offer", ">$/month", ">$/Mtok", ">costs more", ">TTFT p99", ">TPOT p99"],
        [
            (
                str(place),
                names[row.model],
                f"{layout_text(row)}{'*' if row.below_checkpoint else ''}",
                f"{row.provider} {row.instance}",
                usd(row.usd_per_month),
                usd(row.usd_per_mtok.blended),
                "" if place == 1 else percent(row.usd_per_mtok.blended / cheapest - 1),
                time_text(row.ttft_s.p99),
                time_text(row.tpot_s.p99),
            )
            for place, row in enumerate(rows, 1)
        ],
        best=0,
    )
    without = [name for key, name in names.items() if key not in {row.model for row in rows}]
    said = [
        "The same requests for each model, counted in tokens; tokenizers differ by some percent. "
        "Whether a cheaper model is good enough is for you to measure.",
        "" if studies[0].plan.slos else f"No SLO is set ({option('slo')}): answers may wait for long.",
        f"No offer meets the constraints for {', '.join(without)}: plan it alone to see why." if without else "",
    ]
    yield blocks.note(" ".join(part for part in said if part))


def _sold(result: PlanModels) -> blocks.View:
    """What each pick earns in a month."""
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


def _cases(result: PlanCases) -> blocks.View:
    """The choice that is least wrong under several demands, and what each choice costs in each of them."""
    name = result.studies[0].question.model.name
    found: Regret | None = result.regret
    if found is None:
        lost = next(study for study in result.studies if study.plan.best is None)
        yield from nothing(lost.plan, name, result.blame)
        return
    cases = list(result.cases or ())
    yield blocks.section(
        *(
            blocks.line(f"{name}, {case}: {workload_text(demand)}, best {usd(best)} a month", kind="asked")
            for case, demand, best in zip(cases, found.demands, found.best_usd_per_month, strict=True)
        )
    )
    least = found.least
    if least is None:
        yield blocks.line("No choice holds in every case.", kind="worst")
        return
    bills = " / ".join(usd(case.usd_per_month) for case in least.cases)
    yield blocks.line(
        "Least regret: ",
        blocks.Span(f"{least.gpu} {least.layout}", "best"),
        f" at {least.provider} {least.instance}: {bills} a month for {' / '.join(cases)}, "
        f"at most {percent(least.largest_regret)} above the best of any case",
        kind="headline",
    )
    yield blocks.table(
        ["", "!hardware", "offer", *(f">{case}" for case in cases), ">most regret", "best in"],
        [
            (
                str(place),
                f"{choice.gpu} {choice.layout}{'*' if choice.below_checkpoint else ''}",
                f"{choice.provider} {choice.instance}",
                *(f"{usd(case.usd_per_month)} ({case.replicas}×)" for case in choice.cases),
                percent(choice.largest_regret),
                ", ".join(cases[at] for at in choice.best_in) or "–",
            )
            for place, choice in enumerate(found.choices, 1)
        ],
        best=0,
    )
    yield blocks.note(
        "Replicas (×) follow the demand, the hardware does not. Regret: the bill over the best bill of that case."
    )
