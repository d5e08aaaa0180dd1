"""Show a benchmark: the result and cost of each load, which SLOs it met, and how far the prediction was off."""

from collections.abc import Iterable
from functools import partial

from tokonomics.errors import option
from tokonomics.measure.benchmark_run import Latencies
from tokonomics.measure.importers.vllm import NAME as VLLM
from tokonomics.measure.measurements import Metric, Statistic
from tokonomics.measure.priced_run import PricedRun
from tokonomics.measure.quotes import RankedQuote
from tokonomics.questions.bench import PricedRunResult, QuotesResult, RecoveryResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, marked_old, percent_text, signed_text, span_text, time_text, usd_text
from tokonomics.units import (
    HOURS_PER_MONTH,
    SECONDS_PER_HOUR,
    fine_percent,
    percent,
    plural,
    requests_a_second,
    seconds,
    usd,
)

_NAMELESS = ("unknown model", "the file names no model")
_NAMES = {Metric.tpot_s: "TPOT", Metric.ttft_s: "TTFT", Metric.output_tok_s: "output tok/s"}


def bench(result: PricedRunResult, request: Request) -> Answer:
    title = f"{result.run.model or 'A server'}, measured by {result.run.tool}"
    drawn = {"Load against price and latency": lambda: charts.measured.bench_chart(result)}
    return Answer(result, title, partial(_sections, result), drawn)


def import_results(result: PricedRunResult | RecoveryResult | QuotesResult, request: Request) -> Answer:
    """Show a measured run, vendors' quotes, or the scores that a quantised model keeps."""
    if isinstance(result, QuotesResult):
        return Answer(result, f"Quotes for {result.asked.model}", partial(_quotes, result))
    if isinstance(result, RecoveryResult):
        return Answer(result, f"What {result.model} keeps at {result.precision}", partial(_recovered, result))
    return bench(result, request)


def _sections(result: PricedRun) -> blocks.View:
    yield _headline(result)
    yield _best(result)
    yield _loads(result)
    yield from _jobs(result)
    if result.verdict.slos:
        yield _slos(result)
    if any(point.scored for point in result.points):
        yield _predictions(result)
        names = {metric.figure(statistic): _name(metric, statistic) for metric in _NAMES for statistic in Statistic}
        sizes = result.median_abs_error.items()
        note = "off in the median over the loads"
        yield blocks.facts(*((f"predicted {names[figure]}", percent(size), note, size) for figure, size in sizes))
    yield blocks.section(*map(blocks.hint, _hints(result)))
    yield blocks.note(*_notes(result))


def _quotes(result: QuotesResult) -> blocks.View:
    """Show the quotes, the best first, and what is less comparable about them."""
    asked, best = result.asked, result.quotes[0]
    if best.usd_per_month is None:
        yield blocks.headline("No quote meets the SLO", f": {plural(len(result.quotes), 'quote')}", "worst")
    else:
        less = "" if best.same_traffic else ", tested with other lengths than asked"
        less += "" if best.in_region else ", not in the region asked for"
        who = f", {best.quote.vendor or 'unnamed'}: {best.quote.gpus}× {best.quote.gpu}{less}"
        yield blocks.headline(f"{usd(best.usd_per_month)} a month", who)
    objectives = ", ".join(f"{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in best.slo) or "no SLO"
    headroom = f" and {percent(asked.headroom)} headroom" if asked.headroom else ""
    planned = requests_a_second(f"{asked.planned_requests_per_s:g}") + headroom
    yield blocks.line(f"{asked.model}, {planned}, {objectives}; packet {result.seal}", kind="asked")

    def delivered(place: int, row: RankedQuote) -> blocks.Span:
        slo = row.slo[place]
        text = "not measured" if slo.measured_s is None else seconds(slo.measured_s)
        return blocks.Span(text, "good" if slo.met else "worst")

    yield blocks.listed(
        result.quotes,
        ("!vendor", lambda row: row.quote.vendor or NO_VALUE),
        ("GPUs", lambda row: f"{row.quote.gpus}× {row.quote.gpu}"),
        (">$/GPU-h", lambda row: usd(row.quote.usd_per_gpu_hour)),
        ("term", lambda row: row.quote.term or NO_VALUE),
        ("place", lambda row: blocks.Span(row.quote.region or NO_VALUE, "" if row.in_region else "warn")),
        *([("as asked", _as_asked)] if any(not row.same_traffic or not row.in_region for row in result.quotes) else []),
        (">load", lambda row: row.load),
        (">req/s", lambda row: f"{row.requests_per_s:.3g}"),
        *((f">{slo.slo}", partial(delivered, place)) for place, slo in enumerate(best.slo)),
        (">times", lambda row: NO_VALUE if row.machines is None else f"{row.machines:,}"),
        (">$/month", lambda row: usd_text(row.usd_per_month)),
        (">$/Mtok there", lambda row: usd_text(row.usd_per_mtok)),
        (">as planned", lambda row: usd_text(row.planned_usd_per_mtok)),
        best=0 if best.met and best.same_traffic and best.in_region else None,
    )
    for row in result.quotes:
        if row.notes:
            reasons = "; ".join(note.marked for note in row.notes)
            yield blocks.hint(f"{row.quote.vendor or 'Unnamed'}: {reasons}.")
    yield blocks.note(
        "load: the largest measured that meets the SLO, or else the smallest. times: the quoted machines are needed so "
        f"often for the planned traffic{headroom}. Prices as quoted, {HOURS_PER_MONTH} hours a month."
    )


def _as_asked(row: RankedQuote) -> blocks.Span:
    missing = ([] if row.same_traffic else ["other lengths"]) + ([] if row.in_region else ["other region"])
    return blocks.Span(", ".join(missing) or "yes", "warn" if missing else "")


def measured_sections(runs: Iterable[PricedRun]) -> blocks.View:
    """Show each run beside a plan: its loads, their prices, and the prediction of each."""
    for run in runs:
        machine = f" on {run.machine.gpus}×{run.machine.gpu}" if run.machine else ""
        predicted = _predictions(run) if any(point.scored for point in run.points) else None
        price = f"Price: {usd(run.price.usd_per_hour or 0)} an hour ({run.price.price_from})." if run.price else ""
        untold = sorted({f"Not predicted: {point.not_predicted}." for point in run.points if point.not_predicted})
        small = blocks.note(price, *untold) if price or untold else None
        yield blocks.section(_loads(run), predicted, small, title=f"Measured by {run.run.tool}{machine}")


def _headline(result: PricedRun) -> blocks.Line:
    run, groups, best = result.run, result.verdict.groups, result.verdict.best
    version = f" {run.tool_version}" if run.tool_version else ""
    what = f": {run.model or 'an unnamed model'}, measured by {run.tool}{version}"
    if all(group.best is None for group in groups):
        why = "meets the SLOs" if result.verdict.slos else "is without failed requests"
        return blocks.headline(f"No measured load {why}", what, "worst")
    if best is None:
        lengths = f"Loads of {len(groups)} different lengths, which do not compare"
        return blocks.headline(lengths, f" (best is named within equal lengths){what}")
    point, priced = run.points[best], result.points[best].usd_per_mtok
    speed = f"{point.output_tokens_per_s:,.0f} output tokens/s"
    old = marked_old(result.price.price_from) if result.price else ""
    return blocks.headline(
        f"{usd(priced.blended)} per million tokens" if priced else speed, f" at {point.load}{what}{old}"
    )


def _best(result: PricedRun) -> blocks.Facts | None:
    """Show the figures of the load to run at."""
    best = result.verdict.best
    if best is None:
        return None
    point, priced = result.run.points[best], result.points[best].usd_per_mtok
    rate = point.output_tokens_per_s
    rows = [blocks.fact("output", f"{rate:,.0f} tok/s", f"at {point.load}", number=rate, less="worse")]
    if priced:
        note = f"the whole bill; {usd(priced.output_only)} over output tokens alone"
        rows.insert(0, blocks.fact("per Mtok", usd(priced.blended), note, number=priced.blended))
    for name, spread in (("TTFT", point.ttft_s), ("TPOT", point.tpot_s)):
        statistic = next((tail for tail in ("p99", "p50") if spread and getattr(spread, tail) is not None), None)
        if statistic:
            value = getattr(spread, statistic)
            rows.append(blocks.fact(f"{name} {statistic}", seconds(value), number=value))
    return blocks.facts(*rows)


def _loads(result: PricedRun) -> blocks.Table:
    priced, lengths = result.price is not None, len(result.verdict.groups) > 1
    split = any(point.usd_per_mtok and point.usd_per_mtok.output for point in result.points)
    columns = ["!load", *([">in tok", ">out tok"] if lengths else []), ">req/s", ">out tok/s", ">TTFT p50", ">p99"]
    columns += [">TPOT p50", ">p99", ">e2e p99", ">failed", *([">$/Mtok in", ">out"] if split else [])]
    columns += [">blended" if split else ">$/Mtok", ">out only"] if priced else []
    order = _order(result)
    rows = []
    for place in order:
        point, prices = result.run.points[place], result.points[place].usd_per_mtok
        row = [_marked(point.load, place, result)]
        row += [f"{point.mean_input_tokens:,.0f}", f"{point.mean_output_tokens:,.0f}"] if lengths else []
        row += [
            f"{point.requests_per_s:,.3g}" if point.requests_per_s < 100 else f"{point.requests_per_s:,.0f}",
            f"{point.output_tokens_per_s:,.0f}",
            *(_time(spread, name) for spread in (point.ttft_s, point.tpot_s) for name in ("p50", "p99")),
            _time(point.e2e_s, "p99"),
            NO_VALUE if point.failed is None else f"{point.failed:,}",
        ]
        if prices is not None:
            row += [usd_text(prices.input), usd_text(prices.output)] if split else []
            row += [usd(prices.blended), usd(prices.output_only)]
        rows.append(row)
    best = result.verdict.best
    return blocks.table(columns, rows, best=None if best is None else order.index(best))


def _jobs(result: PricedRun) -> blocks.View:
    """Show sessions: how long a job took at each load, its cost, and the cached share of each turn."""
    points = [result.run.points[place] for place in _order(result)]
    held = [(point, point.jobs) for point in points if point.jobs is not None]
    if not held:
        return
    per_hour = result.price.usd_per_hour if result.price else None
    per_second = per_hour / SECONDS_PER_HOUR if per_hour is not None else None
    rows = []
    for point, jobs in held:
        cost = usd(per_second / point.requests_per_s * jobs.requests_per_job) if per_second else NO_VALUE
        times = (_time(jobs.job_s, name) for name in ("p50", "p99"))
        rows.append([point.load, f"{jobs.finished:,}", f"{jobs.requests_per_job:.3g}", *times, cost])
    yield blocks.table(["!load", ">jobs finished", ">requests a job", ">job p50", ">p99", ">$ a job"], rows)
    yield blocks.listed(
        [("" if place else point.load, turns) for point, jobs in held for place, turns in enumerate(jobs.by_turn)],
        ("!load", lambda row: row[0]),
        ("turn", lambda row: span_text(row[1].first, row[1].last)),
        (">requests", lambda row: f"{row[1].requests:,}"),
        (">mean prompt", lambda row: f"{row[1].mean_input_tokens:,.0f}"),
        (">cached", lambda row: percent_text(row[1].cached_share)),
        (">TTFT p50", lambda row: _time(row[1].ttft_s, "p50")),
    )


def _marked(load: str, place: int, result: PricedRun) -> str:
    group = next(group for group in result.verdict.groups if place in group.points)
    marks = [name for name, at in (("knee", group.knee), ("best", group.best)) if at == place]
    return f"{load} ({', '.join(marks)})" if marks and len(group.points) > 1 else load


def _order(result: PricedRun) -> list[int]:
    """Return the indices of the loads, with equal lengths together."""
    return [place for group in result.verdict.groups for place in group.points]


def _label(result: PricedRun, place: int) -> str:
    """Name the load, with its lengths if they differ."""
    point = result.run.points[place]
    lengths = f", {point.mean_input_tokens:,.0f} in / {point.mean_output_tokens:,.0f} out"
    return point.load + (lengths if len(result.verdict.groups) > 1 else "")


def _time(spread: Latencies | None, name: str) -> str:
    return time_text(getattr(spread, name) if spread else None)


def _slos(result: PricedRun) -> blocks.Table:
    rows = []
    for place in _order(result):
        cells = [
            (
                blocks.Span("met     ", "good") if slo.met else blocks.Span("MISSED  ", "worst"),
                "not measured" if slo.measured_s is None else seconds(slo.measured_s),
            )
            for slo in result.verdict.slos[place]
        ]
        rows.append([_label(result, place), *cells])
    return blocks.table(["!load", *(f"{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in result.verdict.slos[0])], rows)


def _predictions(result: PricedRun) -> blocks.Table:
    rows = []
    for place in _order(result):
        for at, scored in enumerate(result.points[place].scored):
            load, name = "" if at else _label(result, place), _name(scored.metric, scored.statistic)
            figures = scored.measured, scored.predicted.mid, scored.predicted.low, scored.predicted.high
            text = (lambda value: f"{value:,.0f}") if scored.metric is Metric.output_tok_s else seconds
            measured, mid, low, high = map(text, figures)
            off = blocks.Span(signed_text(scored.off), "" if scored.inside else "warn")
            rows.append((load, name, measured, mid, f"{low} to {high}", off))
    return blocks.table(["!load", "!figure", ">measured", ">predicted", ">range", ">off"], rows)


def _name(metric: Metric, statistic: Statistic) -> str:
    return _NAMES[metric] if metric is Metric.output_tok_s else f"{_NAMES[metric]} {statistic}"


def _hints(result: PricedRun) -> Iterable[str]:
    if result.price is None:
        yield f"No price: give {option('usd_per_hour')}, or {option('gpu')} for the cheapest offer."
    if result.machine is None and (result.price is None or result.price.api is None):
        yield f"No prediction: name the GPU with {option('gpu', 'H100')} {option('gpus', 2)}."
    for reason in sorted({point.not_predicted for point in result.points if point.not_predicted}):
        remedy = f" Name it with {option('model')}, see `tokonomics models`." if reason.startswith(_NAMELESS) else ""
        yield f"Not predicted: {reason}.{remedy}"
    if result.assumed_weights is not None and any(point.scored for point in result.points):
        yield (
            f"Weights: {result.assumed_weights} assumed, the checkpoint's own: neither you, the file nor the model's "
            f"name says. If they were quantised, say how: {option('weights', 'fp8')}."
        )
    knee, points = result.verdict.knee, result.run.points
    if knee is not None and any(point.output_tokens_per_s and point.size > points[knee].size for point in points):
        yield f"Beyond {points[knee].load} (knee) latency grows and throughput hardly does."
    elif len(points) < 3:
        yield "Measure three loads or more to see where latency starts to grow faster than throughput."


def _notes(result: PricedRun) -> Iterable[str]:
    run, price, machine = result.run, result.price, result.machine
    if not result.verdict.slos and any(group.best is not None for group in result.verdict.groups):
        least = "lowest price per token" if price else "highest throughput"
        yield f"best: the {least} of those with few failures, whatever its latency: no SLO is set ({option('slo')})."
    if price and price.api:
        rates = price.api.input_usd_per_mtok, price.api.output_usd_per_mtok
        yield f"Price: {usd(rates[0])} per Mtok of input, {usd(rates[1])} of output ({price.price_from}), none cached."
    elif price:
        yield f"Price: {usd(price.usd_per_hour or 0)} an hour for all GPUs ({price.price_from}), on reservation."
        yield "$/Mtok: the bill over all tokens of answered requests, in and out; out only: over the answers alone."
        if any(point.usd_per_mtok and point.usd_per_mtok.output for point in result.points):
            yield "in and out split the bill by the modelled share of GPU time that prompts take."
    if machine:
        split = f"TP {machine.tp}" + (f", PP {machine.pp}" if machine.pp > 1 else "")
        what = f"{machine.gpus}×{machine.gpu} ({split}, {plural(machine.replicas, 'replica')}), {machine.engine}"
        if any(point.scored for point in result.points):
            yield f"Predicted for {what}, by simulating the same run; ranges hold four of five measurements."
            yield _drawn(result)
        else:
            yield f"Taken to have run on {what}."
    if widths := [point.precision for point in run.points if point.precision is not None]:
        yield f"Mean latencies are known to ±{percent(max(widths))} or better (95 %)."
    if outside := sum(point.outside.requests for point in run.points):
        yield f"{plural(outside, 'request')} of warm-up and draining are not in the figures."
    if again := sum(point.retries or 0 for point in run.points):
        yield f"{plural(again, 'request')} had to be sent again; the wait counts."
    yield from (f"Failed with: {name}" for name in sorted({name for point in run.points for name in point.errors})[:5])
    yield from sorted({note for point in run.points for note in point.notes} | {note.marked for note in run.notes})


def _drawn(result: PricedRun) -> str:
    """Say what predictions drew at random if the run has no list of requests."""
    drawn = [
        point
        for point, priced in zip(result.run.points, result.points, strict=True)
        if priced.scored and not priced.recorded and (point.rate or point.concurrency)
    ]
    if not drawn:
        return ""
    arrivals = "arrivals were drawn at random, " if any(point.rate for point in drawn) else ""
    spread = any(point.length_spread for point in drawn)
    lengths = "lengths were drawn around their means" if spread else "every length is the mean"
    exact = " vllm bench serve --save-detailed gives exact ones." if result.run.tool == VLLM else ""
    return f"There is no list of requests: {arrivals}{lengths}.{exact}"


# --- what a quantised model keeps of the published one's scores, task by task ----------------------------------------


def _recovered(result: RecoveryResult) -> blocks.View:
    part = "weights" if result.part == "weights" else "KV cache"
    what = f" of {result.published.upper()} with {result.precision.upper()} {part}: {result.name}, "
    yield blocks.headline(fine_percent(result.recovery), f"{what}the mean over {plural(len(result.tasks), 'task')}")
    yield blocks.listed(
        result.tasks,
        ("!task", lambda task: task.task),
        ("!metric", lambda task: task.metric),
        (">baseline", lambda task: f"{task.baseline:.4f}"),
        (">quantised", lambda task: f"{task.quantised:.4f}"),
        (">recovery", lambda task: fine_percent(task.recovery)),
    )
    yield blocks.note(*(f"{name} left out: {why}." for name, why in result.left_out.items()))
    if not result.kept:
        floor = option("min_recovery", "98%")
        yield blocks.hint(f"With {option('keep')} it counts before published scores in every plan with {floor}.")
