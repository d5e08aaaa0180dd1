"""Show several models for one traffic: the cost, latency and quality of each way, and when it pays."""

from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter

from tokonomics.errors import option
from tokonomics.planner.route_models import RouteBreakEven, RouteWay
from tokonomics.questions.request import Request
from tokonomics.questions.route import RouteResult
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, aged_since, and_slos, time_text, workload_text
from tokonomics.units import percent, usd

_AS_MUCH = 0.0005
"""Share of a bill by which two may differ and still count as equal: they show the same digits."""


def route(result: RouteResult, request: Request) -> Answer:
    """Show the headline, the ways, the frontier, and the break-evens."""
    drawn = {"Cost and quality by threshold": lambda: charts.bills.route_chart(result)} if result.frontier else {}
    return Answer(result, "Several models for one traffic", partial(_sections, result), drawn)


def _sections(result: RouteResult) -> blocks.View:
    yield blocks.line(f"{workload_text(result.workload)}{and_slos(result.slos)}", kind="asked")
    yield blocks.section(*_headline(result))
    yield _ways(result)
    yield from _thresholds(result)
    yield _labels(result)
    yield blocks.section(*map(_pays, result.break_even), title="From which share on it pays")
    yield _notes(result)
    parts = blocks.listed(
        [(way.name, part) for way in result.ways for part in way.parts],
        ("way", lambda row: row[0]),
        ("!model", lambda row: row[1].model),
        (">requests", lambda row: percent(row[1].share)),
        ("fleet", lambda row: row[1].fleet),
        (">$/month", lambda row: usd(row[1].usd_per_month)),
    )
    yield blocks.section(parts, title="What each model gets", folded=True)


def _headline(result: RouteResult) -> Iterable[blocks.Block]:
    if result.best is None and result.min_quality is not None:
        within = " within the SLO" if result.slos else ""
        yield blocks.headline(f"No way reaches a quality of {result.min_quality:g}{within}.", mood="worst")
        return
    single, mixed = _cheapest(result, True), _cheapest(result, False)
    best = result.best or min(
        (way for way in (single, mixed) if way), key=attrgetter("usd_per_month"), default=result.baseline
    )
    what = f" with quality ≥ {result.min_quality:g}" if result.best else ""
    against = "" if best.kind == "single" else _against(best, result.baseline)
    old = aged_since(*(part.price_date for part in best.parts if part.price_date))
    yield blocks.line(
        f"Cheapest{what}: ", blocks.Span(f"{usd(best.usd_per_month)} a month", "best"), f", {best.name}{against}{old}",
        kind="headline",
    )  # fmt: skip
    if best.kind == "single":
        yield blocks.line(_together(mixed, best, result.baseline))
    yield blocks.facts(
        blocks.fact("per Mtok", usd(best.usd_per_mtok), "the whole bill over the tokens asked for",
                    number=best.usd_per_mtok),
        blocks.fact("quality", f"{best.quality:.3g}", "your own scores, in the mean over requests",
                    number=best.quality, less="worse") if best.quality is not None else None,
        blocks.fact("TTFT p99", _first_token(best), number=best.ttft_s.p99),
    )  # fmt: skip
    if not result.scored:
        yield blocks.hint(
            f"No quality is known: only cost and latency are compared. Give your own scores by {option('quality')}."
        )


def _cheapest(result: RouteResult, single: bool) -> RouteWay | None:
    """Find the cheapest way of one model, or of several, that meets the SLOs and the floor of quality."""
    floor = result.min_quality
    good = (way for way in result.ways if floor is None or (way.quality is not None and way.quality >= floor - 1e-12))
    found = (way for way in good if (way.kind == "single") == single and way.meets)
    return min(found, key=attrgetter("usd_per_month"), default=None)


def _together(mixed: RouteWay | None, single: RouteWay, baseline: RouteWay) -> str:
    """Say what several models cost if one alone is cheapest."""
    if mixed is None:
        return "No mix of models does as well."
    also = _against(mixed, baseline) if baseline.name != single.name else ""
    return f"Several models together: {usd(mixed.usd_per_month)} a month, {mixed.name}{_against(mixed, single)}{also}."


def _against(way: RouteWay, other: RouteWay) -> str:
    saved = 1 - way.usd_per_month / other.usd_per_month
    more_or_less = f"{percent(abs(saved))} {'less' if saved > 0 else 'more'} than"
    change = "as much as" if abs(saved) < _AS_MUCH else more_or_less
    return f"; {change} {other.name} ({usd(other.usd_per_month)})"


def _ways(result: RouteResult) -> blocks.Table:
    return blocks.listed(
        result.ways,
        ("way", lambda way: way.name),
        ("machines", lambda way: " + ".join(part.machines for part in way.parts)),
        (">on the first", lambda way: percent(way.first_share)),
        (">$/month", lambda way: usd(way.usd_per_month)),
        (">$/Mtok", lambda way: usd(way.usd_per_mtok)),
        (">quality", _quality) if result.scored else None,
        (">TTFT p99", _first_token),
        (">e2e p99", lambda way: _time(way.e2e_s.p99, way)),
        ("SLO", _judged) if result.slos else None,
        title="Ways to serve it",
        best=next((place for place, way in enumerate(result.ways) if way == result.best), None),
    )


def _quality(way: RouteWay) -> str:
    return NO_VALUE if way.quality is None else f"{way.quality:.3g}"


def _time(seconds: float | None, way: RouteWay) -> str:
    return time_text(seconds) + ("" if way.simulated_share >= 1 or seconds is None else "‡")


def _first_token(way: RouteWay) -> str:
    return _time(way.ttft_s.p99, way)


def _judged(way: RouteWay) -> str:
    """Say whether the SLO is met; ‡ marks a way with an API, whose own time is not known."""
    return NO_VALUE if not way.slo else "missed" if not way.meets else "met" if way.simulated_share >= 1 else "met‡"


def _thresholds(result: RouteResult) -> Iterable[blocks.Table]:
    """Show, for each model behind the first, the cost of every threshold, routed and as a cascade."""
    by_backup: dict[str, dict[float, dict[str, RouteWay]]] = {}
    for way in result.frontier:
        if way.threshold is not None and len(way.parts) > 1:
            by_backup.setdefault(way.parts[-1].model, {}).setdefault(way.threshold, {})[way.kind] = way
    scored, at = [">quality"] if result.scored else [], [">score"] if result.routed_by == "score" else []
    routed, cascade = [">routed $/month", ">$/Mtok", ">TTFT p99"], [">cascade $/month", ">$/Mtok", ">TTFT p99"]
    for backup, thresholds in by_backup.items():
        rows = []
        for threshold, kinds in thresholds.items():
            one = next(iter(kinds.values()))
            score = [f"≥ {threshold:.3g}"] if at else []
            quality = [_quality(one)] if result.scored else []
            rows.append(
                [*score, percent(one.first_share), *quality, *_priced(kinds, "routed"), *_priced(kinds, "cascade")]
            )
        title = f"{result.models[0]} before {backup}, by share" + (" and score" if at else "")
        yield blocks.table([*at, ">on the first", *scored, *routed, *cascade], rows, title)


def _priced(kinds: Mapping[str, RouteWay], kind: str) -> list[str]:
    way = kinds.get(kind)
    if way is None:
        return [NO_VALUE] * 3
    return [usd(way.usd_per_month), usd(way.usd_per_mtok), _first_token(way)]


def _labels(result: RouteResult) -> blocks.Table | None:
    sent = [way for way in result.frontier if way.kind == "labels"]
    if not sent:
        return None
    return blocks.listed(
        sent,
        ("each label to", lambda way: way.name),
        (">quality", _quality) if result.scored else None,
        (">$/month", lambda way: usd(way.usd_per_month)),
        (">$/Mtok", lambda way: usd(way.usd_per_mtok)),
        (">TTFT p99", _first_token),
        title="Labels: no other way to send them is both better and cheaper" if result.scored else "Labels",
    )


def _pays(found: RouteBreakEven) -> blocks.Line:
    against = f"all on {found.second} ({usd(found.baseline_usd_per_month)} a month)"
    kind, takes = ("Routing", "must take") if found.kind == "routed" else ("Cascade", "must answer well enough")
    if found.share is None:
        return blocks.line(f"{kind}: never cheaper than {against}.")
    if found.share >= 1:
        return blocks.line(f"{kind}: only all on {found.first} costs less than {against}.")
    at = f" (score ≥ {found.threshold:.3g})" if found.threshold is not None else ""
    below = f"; at {percent(found.not_at_share)} not yet" if found.not_at_share and not found.is_smallest else ""
    share = f"{percent(found.share)} of the requests{at}"
    return blocks.line(f"{kind}: {found.first} {takes} {share} to cost less than {against}{below}.")


def _notes(result: RouteResult) -> blocks.Line:
    called = any(part.replicas is None for way in result.ways for part in way.parts)
    split = f"Shares are of requests drawn at random: no score is named ({option('score')})."
    return blocks.note(
        split if result.routed_by == "share" else "The first model takes what scores at least the threshold.",
        "on the first: answered for good by the first model listed.",
        "Each own fleet: the fewest whole replicas that meet the SLO for its part, by simulation.",
        "A cascade pays for both answers of a request that is asked again, and waits for both.",
        "Every model is taken to read and write as many tokens as the log says.",
        "‡ without the time that the API takes, which is not known here: `tokonomics bench` measures it."
        if called
        else "",
    )
