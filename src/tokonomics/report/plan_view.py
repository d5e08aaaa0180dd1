"""Show a plan: the pick first, how firm it is, then the other hardware, and why the rest was left out."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.errors import option
from tokonomics.planner.firmness import CostRange
from tokonomics.planner.plan_answer import Candidate, Plan, Rejection
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION
from tokonomics.planner.vary import Case, Headroom, Sensitivity
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import PlanCases, PlanModels, PlanResult, layout_text
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer, Charts
from tokonomics.report.plan_pick_view import (
    asked_text,
    at_checkpoint_line,
    bill_facts,
    last_resort_line,
    not_tried,
    nothing,
    pick_blocks,
    published_checkpoint,
    quality_facts,
    safe_lines,
    set_aside_lines,
)
from tokonomics.report.plan_table_view import (
    cases_view,
    flip_lines,
    hour_lines,
    models_view,
    ranking,
    ratio_blocks,
    sold_view,
    split_legend,
    together_view,
    why_blocks,
    why_line,
)
from tokonomics.report.shared_view import (
    api_fact,
    api_lines,
    class_sections,
    energy_facts,
    energy_notes,
    fleet_sale_facts,
    log_pace_note,
    upkeep_facts,
)
from tokonomics.report.wording import (
    ENCODER_SPEED,
    FEWER_BITS,
    OLD_PRICE,
    PROFILED,
    TOWER_SPEED,
    percent_text,
    quoted_on,
    thinking_facts,
    usd_text,
)  # fmt: skip
from tokonomics.sizing.layouts import Reason
from tokonomics.units import count, percent, plural, requests_a_second, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study
    from tokonomics.questions.can_run import CanRunResult

_SHOWN = 10  # rows of the table of candidates by default
_ADVISED = 0.2  # headroom to ask for, where a pick has less and is inside its interval; our choice


def plan(result: "PlanResult | PlanModels | PlanCases | CanRunResult", request: PlanRequest) -> Answer:
    """Show the plan of one model, of several, or under several demands; for the user's own machine, its layouts."""
    if not isinstance(result, PlanResult | PlanModels | PlanCases):
        from tokonomics.report.can_run_view import can_run

        return can_run(result, request)
    studies = (result.study,) if isinstance(result, PlanResult) else result.studies
    title = f"What serving {', '.join(dict.fromkeys(study.question.model.name for study in studies))} costs"
    if isinstance(result, PlanCases):
        found, name = result.regret, studies[0].question.model.name
        drawn = {"Bills and regrets": lambda: charts.plan.regret_chart(found, name)} if found else {}
        return Answer(result, title, lambda: cases_view(result), drawn)
    if isinstance(result, PlanModels):
        picks = result.models
        names = [f"{place}. {row.model} on {row.gpu}" for place, row in enumerate(picks, 1)]
        asked = asked_text(studies[0].plan, "The same requests", swing=result.swing)
        heading = "What each model costs on its cheapest hardware"
        drawn = {"Bills": lambda: charts.plan.bill_chart(picks, names, heading, asked)} if picks else {}
        return Answer(result, title, lambda: [*models_view(result), *sold_view(result)], drawn)
    if result.together:
        several, served = result.together, ", ".join(asked.name for asked in result.together.asked)
        return Answer(result, f"What serving {served} costs", lambda: together_view(several), {})
    files = [] if request.deploy_to else [blocks.File(file.name, file.text) for file in result.deploy]
    return Answer(result, title, lambda: [*_one(result, request), *files], _charts(result, request))


def _charts(result: PlanResult, request: PlanRequest) -> Charts:
    """Return the frontier of price and latency, the bill by hardware, and, on request, what moves the bill."""
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
    """Show one model at one demand: the pick, why it won and the other candidates; the rest is folded."""
    study: Study = result.study
    whole, model = study.plan, study.question.model
    if whole.best is None:
        yield from nothing(whole, model.name, result.blame, images=model.images, swing=result.swing)
        if whole.set_aside:
            yield blocks.section(blocks.line("With a catch there is:"), *set_aside_lines(whole))
        yield blocks.section(*api_lines(result.api))
    else:
        yield blocks.line(asked_text(whole, model.name, model.images, result.swing), kind="asked")
        fleet = "Cheapest fleet" if result.api and result.api.cheaper else "Cheapest"
        label = f"{fleet}, percentiles not checked" if whole.slos and not whole.best.simulated else fleet
        label = ", ".join([label, *whole.only_with])
        safe = safe_lines(whole.best, result.bill_range.slow, result.safe) if result.bill_range else ()
        grows = result.headroom is not None and result.headroom.share >= _ADVISED
        advice = "" if grows else option("headroom", f"{_ADVISED:.0%}")
        firm = list(_firm(result, model))
        picked = pick_blocks(whole.best, label, whole, firm, safe=list(safe), rooms=result.slo_rooms, advice=advice)
        above = last_resort_line(whole), *picked[:-2], *api_lines(result.api)
        yield blocks.section(*above, *picked[-2:], not_tried(whole))
        if result.why:
            yield why_line(result.why)
        yield from hour_lines(result)
        yield from class_sections(result.classes, whole.best.replicas, folded=not request.explain)
        faithful = result.at_checkpoint if result.at_checkpoint != whole.best else None
        yield blocks.section(at_checkpoint_line(faithful) if faithful else None, *set_aside_lines(whole))
        leaders = whole.leaders(len(whole.ranked))
        shown = leaders[: request.top or _SHOWN]
        yield blocks.section(
            ranking(leaders, len(shown)), _marks(whole, shown, request.explain), *_dropped(result, request)
        )
        if result.measured:
            from tokonomics.report.bench_view import measured_sections  # Slow to load, so only when used.

            yield from measured_sections(result.measured)
        yield from _explained(result, request, shown)
    if whole.rejected:
        yield blocks.section(_why(whole), title="" if request.why else "Why not the others", folded=not request.why)


def _firm(result: PlanResult, model: ModelSpec) -> Iterable[blocks.Fact]:
    """Show further facts of the pick: how firm it is, its other properties, and the cheapest API."""
    if result.headroom:
        yield _room(result.headroom, "" if result.swing is None else " in the mean")
    elif result.best:
        few = f"the sessions only ramp up and end: too short a log to tell; {option('rate')} repeats them"
        yield blocks.fact("room to grow", "not known", few)
    if result.bill_range and (interval := _interval(result.bill_range)):
        yield interval
    yield from (*quality_facts(result, model), *thinking_facts(result.thinking), *_reads(model, result))
    yield from (*(fleet_sale_facts(result.sale) if result.sale else ()), *upkeep_facts(result.upkeep))
    if beside := api_fact(result.api):
        yield beside


def _explained(result: PlanResult, request: PlanRequest, shown: Sequence[Candidate]) -> blocks.View:
    """Show the background of the answer, folded; a terminal prints it with ``explain``."""
    study: Study = result.study
    whole, model, best, faithful = study.plan, study.question.model, result.best, result.at_checkpoint
    if best is None:
        return

    def more(title: str, *parts: blocks.Block | None) -> blocks.Section:
        return blocks.section(*parts, title=title, folded=True, printed=request.explain)

    checkpoint = [published_checkpoint(model)] if best.weights is model.served else []
    yield more("The bill in detail", blocks.facts(*bill_facts(best, whole), *checkpoint, *energy_facts(result.energy)))
    if faithful and faithful != best:
        own = pick_blocks(faithful, "Cheapest", whole, [published_checkpoint(model)])
        yield more("At the published precision", *own)
    if result.flips:
        yield more("What would change the choice", *flip_lines(whole, result.rival, result.flips))
    if result.why:
        yield more("The pick beside the nearest other ways", *why_blocks(result.why))
    if result.sensitivity:
        now = f"{usd(result.sensitivity.usd_per_month)}, {percent(result.sensitivity.used)} of what it holds"
        yield more(f"What moves the bill of the pick ({now})", _sensitivity(result.sensitivity))
    if result.ratios:
        yield more("Prefill and decode", *ratio_blocks(study, result.ratios))
    pace = log_pace_note(result.log_pace) if result.log_pace else None
    drawn = blocks.note(*energy_notes(result.energy)) if result.energy else None
    yield more("How to read this", _notes(whole, shown, request), pace, drawn)
    yield blocks.section(ranking(whole.ranked, None, full=True), title="Every offer", folded=True)


def _reads(model: ModelSpec, plan: PlanResult) -> Iterable[blocks.Fact]:
    """Say what images, or an encoder, mean for prompts and speed."""
    if model.images:
        said = f"in every prompt, counted above ({model.images.text}); the vision tower {TOWER_SPEED}"
        yield blocks.fact("images", f"{model.images.tokens:,} tokens", said)
    if model.is_encoder:
        workload, best = plan.workload, plan.best
        full = f"; full batches of all replicas read {count(workload.rate / best.load_share)}/s" if best else ""
        tokens = f"{count(workload.rate * workload.input_tokens)} tokens/s{full}"
        yield blocks.fact("reads", requests_a_second(count(workload.rate)), tokens)
        yield blocks.fact("encoder", "no output", f"TTFT is the whole wait; {ENCODER_SPEED}")


def _room(headroom: Headroom, mean: str) -> blocks.Fact:
    """Show how much the traffic may grow; ``mean`` says so where the rate changes."""
    if headroom.at_most is None:
        return blocks.fact("room to grow", "any", "nothing breaks however much the traffic grows")
    more = f"+{percent(headroom.share)}" if headroom.share < 2 else f"{count(float(f'{headroom.share + 1:.2g}'))} ×"
    if headroom.share < 0.005:
        more = "none"
    breaks = headroom.breaks.partition("; the SLO is")[0]  # the SLO is shown above
    rate = requests_a_second(count(headroom.rate))
    said = f"holds up to {rate}{mean}, then {breaks}"
    if not headroom.simulated:
        more, said = f"≤ {more}", f"not simulated: in the mean up to {rate}, then {breaks}; bursts leave less"
    return blocks.fact("room to grow", more, said, number=headroom.share, less="worse")


def _interval(bills: CostRange) -> blocks.Fact | None:
    """Show the bill over the 80 % interval of the speed, and why it moves; None if it does not."""
    fast, mid, slow = bills.fast, bills.mid, bills.slow
    name = "80 % interval"
    slower = f"if {percent(1 - slow.speed)} slower"
    if slow.usd_per_month is None or fast.usd_per_month is None:
        low = usd(fast.usd_per_month or mid.usd_per_month or 0.0)
        return blocks.fact(name, f"from {low}", f"{slower}, no number of replicas meets the SLO")
    dollars = [fast.usd_per_month, slow.usd_per_month, mid.usd_per_month or fast.usd_per_month]
    if min(dollars) == max(dollars):
        return None  # the line on what is safe says so
    why = f"speed {_off(slow.speed)} to {_off(fast.speed)}"
    for at, speed in ((fast, f"if {percent(fast.speed - 1)} faster"), (slow, slower)):
        if at.replicas != mid.replicas:
            why = f"{speed}, it takes {plural(at.replicas or 0, 'replica')} instead of {mid.replicas}"
    return blocks.fact(name, f"{usd(min(dollars))} to {usd(max(dollars))}", f"a month: {why}")


def _off(speed: float) -> str:
    return f"{'−' if speed < 1 else '+'}{percent(abs(speed - 1))}"


def _marks(plan: Plan, shown: Sequence[Candidate], explained: bool) -> blocks.Line:
    """Explain the marks of the table, and say what else there is and how to see more."""
    more = "" if explained else f" Energy, sources and what each word means: {option('explain')}."
    ranked, rejected = plural(len(plan.ranked), "candidate"), f"{sum(row.offers for row in plan.rejected):,}"
    return blocks.note(
        FEWER_BITS if any(row.below_checkpoint for row in shown) else "",
        _old(plan, shown),
        "" if plan.slos else f"No SLO is set ({option('slo')}): answers may wait for long.",
        f"{ranked} ranked, {rejected} rejected ({option('why')}).{more}",
    )


def _notes(plan: Plan, shown: Sequence[Candidate], request: PlanRequest) -> blocks.Line:
    return blocks.note(
        split_legend(shown),
        "speed: timed = kernels timed on that GPU; scaled = from kernels of a related GPU; assumed = neither.",
        PROFILED if shown[0].profiled else "",
        _how_sized(plan, bool(plan.slos or request.classes)),
        f"{quoted_on(row.price_date for row in shown)}.",
    )


def _old(plan: Plan, shown: Sequence[Candidate]) -> str:
    """Warn about old prices once; if the table marks some of its rows, explain the mark."""
    if shown and all(row.price_stale for row in plan.leaders(len(plan.ranked))):
        return f"Every price here is older than {STALE_AFTER_DAYS} days: run `tokonomics offers --refresh`."
    return OLD_PRICE if any(row.price_stale for row in shown) else ""


def _how_sized(plan: Plan, has_slos: bool) -> str:
    if not plan.simulations:
        share = percent(plan.limits.max_utilization or CLOSED_FORM_UTILIZATION)
        how = f"not simulated ({option('quick')})"
        return f"Replicas are planned to at most {share} of the closed form's capacity, {how}."
    spare = f" with {plan.limits.spare} down" if plan.limits.spare else ""
    spare += f" at {1 + plan.headroom_asked:.4g} times this traffic" if plan.headroom_asked else ""
    targets = "meet every SLO" if has_slos else f"keep up (no SLO is set: {option('slo')})"
    return (
        f"Replicas are the fewest that {targets}{spare}: {plan.simulations:,} simulations. Nothing else that these "
        "limits allow is cheaper than the runner-up; the rows after it are examples, not a full ranking."
    )


def _dropped(result: PlanResult, request: PlanRequest) -> Iterable[blocks.Line]:
    """List requested providers, regions, GPUs or layouts that are not in the answer, with the reason."""
    if request.disaggregate and result.study.apart is None:
        yield blocks.hint(
            "Nothing disaggregated is ranked: it would cost twice the pick, or has no network between GPUs."
        )
    if result.discounts:
        taken_off = ", ".join(f"{provider} {percent(share)}" for provider, share in result.discounts.items())
        yield blocks.note(f"After your discounts: {taken_off}.")
    for name, why in result.left_out.items():
        yield blocks.hint(f"{name} is left out: {why.marked}.")


def _why(plan: Plan) -> blocks.Table:
    """Show what was rejected, by GPU and kind of reason, with one example."""
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
    """Give the most common reason of a group, with a layout that it applies to."""
    reason, _ = Counter(member.reason for member in members).most_common(1)[0]
    first = next(member for member in members if member.reason == reason)
    layout = f"{first.layout}: " if first.layout else ""
    return f"{layout}{reason.removeprefix('does not fit: ')}"


def _sensitivity(found: Sensitivity) -> blocks.Table:

    def cells(case: Case) -> tuple[str, str, str]:
        return _off(case.factor), usd_text(case.usd_per_month), percent_text(case.used)

    return blocks.table(
        ["!assumption", ">change", ">$/month", ">used", ">change", ">$/month", ">used"],
        [(swing.assumption.replace("_", " "), *cells(swing.low), *cells(swing.high)) for swing in found.swings],
    )
