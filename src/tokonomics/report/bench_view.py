"""A benchmark as tables: what each load gave and cost, and how far the prediction was off; and the line shown live."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.bench.loads import Progress
from tokonomics.measure.benchmark_run import Latencies, LoadPoint
from tokonomics.measure.importers.vllm import NAME as VLLM
from tokonomics.measure.measurements import Metric, Statistic, figure_name
from tokonomics.measure.priced_run import PricedRun, Scored
from tokonomics.report.tables import table
from tokonomics.units import percent, plural, seconds, usd

_NAMELESS = ("unknown model", "the file names no model")
_REMEDY = " Name it with --model, see `tokonomics models`."
_NAMES = {Metric.tpot_s: "TPOT", Metric.ttft_s: "TTFT", Metric.output_tok_s: "output tok/s"}


def bench_view(result: PricedRun) -> RenderableType:
    """The headline, a row a load, SLOs, predictions, and where the figures come from."""
    parts: list[RenderableType] = [_headline(result), "", _loads(result)]
    if result.verdict.slos:
        parts += ["", _slos(result)]
    if any(point.scored for point in result.points):
        parts += ["", _predictions(result), "", _errors(result)]
    return Group(*parts, "", Text("\n".join(_notes(result)), style="dim"))


def _headline(result: PricedRun) -> Text:
    run, groups = result.run, result.verdict.groups
    what = (
        f"{run.model or 'an unnamed model'}, measured by {run.tool}{f' {run.tool_version}' if run.tool_version else ''}"
    )
    if all(group.best is None for group in groups):
        why = "meets the SLOs" if result.verdict.slos else "is without failed requests"
        return Text.assemble((f"No measured load {why}: ", "bold red"), what)
    best = result.verdict.best
    if best is None:
        lengths = f"Loads of {len(groups)} different lengths, which do not compare"
        return Text.assemble((lengths, "bold green"), f" (best is named within equal lengths): {what}")
    point, priced = run.points[best], result.points[best].usd_per_mtok
    if priced is None:
        return Text.assemble(
            (f"{point.output_tokens_per_s:,.0f} output tokens/s", "bold green"), f" at {point.load}: {what}"
        )
    return Text.assemble((f"{usd(priced.blended)} per million tokens", "bold green"), f" at {point.load}: {what}")


def _loads(result: PricedRun) -> RenderableType:
    priced = result.price is not None
    split = any(point.usd_per_mtok and point.usd_per_mtok.output for point in result.points)
    lengths = len(result.verdict.groups) > 1
    columns = [
        "!load",
        *([">in tok", ">out tok"] if lengths else []),
        ">req/s",
        ">out tok/s",
        ">TTFT p50",
        ">p99",
        ">TPOT p50",
        ">p99",
        ">e2e p99",
        ">failed",
    ]
    columns += ([">$/Mtok in", ">out"] if split else []) + ([">blended" if split else ">$/Mtok", ">out only"] * priced)
    rows = []
    for place in _order(result):
        point, cost = result.run.points[place], result.points[place]
        row = [
            _marked(point.load, place, result),
            *([f"{point.mean_input_tokens:,.0f}", f"{point.mean_output_tokens:,.0f}"] if lengths else []),
            f"{point.requests_per_s:,.3g}" if point.requests_per_s < 100 else f"{point.requests_per_s:,.0f}",
            f"{point.output_tokens_per_s:,.0f}",
            *(_time(point.ttft_s, each) for each in ("p50", "p99")),
            *(_time(point.tpot_s, each) for each in ("p50", "p99")),
            _time(point.e2e_s, "p99"),
            _failed(point),
        ]
        if cost.usd_per_mtok is not None:
            each = cost.usd_per_mtok
            row += [_usd(each.input), _usd(each.output)] if split else []
            row += [usd(each.blended), usd(each.output_only)]
        rows.append(row)
    return table(columns, rows)


def _marked(load: str, place: int, result: PricedRun) -> str:
    group = next(group for group in result.verdict.groups if place in group.points)
    marks = [name for name, at in (("knee", group.knee), ("best", group.best)) if at == place]
    return f"{load} ({', '.join(marks)})" if marks and len(group.points) > 1 else load


def _order(result: PricedRun) -> list[int]:
    """Places of the loads, those of equal lengths together."""
    return [place for group in result.verdict.groups for place in group.points]


def _label(result: PricedRun, place: int) -> str:
    """The load, with its lengths where they differ."""
    point = result.run.points[place]
    lengths = f", {point.mean_input_tokens:,.0f} in / {point.mean_output_tokens:,.0f} out"
    return point.load + (lengths if len(result.verdict.groups) > 1 else "")


def _time(spread: Latencies | None, name: str) -> str:
    value = getattr(spread, name) if spread else None
    return "–" if value is None else seconds(value)


def _usd(value: float | None) -> str:
    return "–" if value is None else usd(value)


def _failed(point: LoadPoint) -> str:
    return "–" if point.failed is None else f"{point.failed:,}"


def _slos(result: PricedRun) -> RenderableType:
    rows: list[list[str | Text]] = []
    for place in _order(result):
        cells = [
            Text.assemble(
                ("kept    ", "green") if slo.kept else ("BROKEN  ", "bold red"),
                f"{'not measured' if slo.measured_s is None else seconds(slo.measured_s)}",
            )
            for slo in result.verdict.slos[place]
        ]
        rows.append([_label(result, place), *cells])
    targets = [f"{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in result.verdict.slos[0]]
    return table(["!load", *targets], rows)


def _predictions(result: PricedRun) -> RenderableType:
    columns = ["!load", "!figure", ">measured", ">predicted", ">range", ">off"]
    rows: list[list[str | Text]] = []
    for place in _order(result):
        for at, scored in enumerate(result.points[place].scored):
            rows.append(
                [
                    _label(result, place) if not at else "",
                    _name(scored.metric, scored.statistic),
                    _figure(scored.metric, scored.measured),
                    _figure(scored.metric, scored.predicted.mid),
                    " to ".join(_figure(scored.metric, each) for each in (scored.predicted.low, scored.predicted.high)),
                    _off(scored),
                ]
            )
    return table(columns, rows)


def _name(metric: Metric, statistic: Statistic) -> str:
    return _NAMES[metric] if metric is Metric.output_tok_s else f"{_NAMES[metric]} {statistic}"


def _figure(metric: Metric, value: float) -> str:
    return f"{value:,.0f}" if metric is Metric.output_tok_s else seconds(value)


def _off(scored: Scored) -> Text:
    return Text(f"{scored.off * 100:+.1f} %", style="" if scored.inside else "yellow")


def _errors(result: PricedRun) -> Text:
    names = {figure_name(metric, statistic): _name(metric, statistic) for metric in _NAMES for statistic in Statistic}
    shown = ", ".join(f"{names[figure]} {percent(size)}" for figure, size in result.median_abs_error.items())
    return Text(f"Predictions were off by (median over the loads): {shown}.", style="bold")


def _notes(result: PricedRun) -> list[str]:
    run = result.run
    notes = []
    if result.price:
        notes.append(
            f"Price: {usd(result.price.usd_per_hour)} an hour for all GPUs ({result.price.price_from}), on reservation."
        )
        notes.append(
            "$/Mtok: the bill over all tokens of answered requests, in and out; out only: over the answers alone."
        )
        if any(point.usd_per_mtok and point.usd_per_mtok.output for point in result.points):
            notes.append("in and out split the bill by the modelled share of GPU time that prompts take.")
    else:
        notes.append("No price: give --usd-per-hour, or --gpu for the cheapest offer.")
    if machine := result.machine:
        split = f"TP {machine.tp}" + (f", PP {machine.pp}" if machine.pp > 1 else "")
        what = f"{machine.gpus}×{machine.gpu} ({split}, {plural(machine.replicas, 'replica')}), {machine.engine}"
        if any(point.scored for point in result.points):
            notes.append(f"Predicted for {what}, by simulating the same run; ranges hold four of five measurements.")
            notes += _assumed(result)
        else:
            notes.append(f"Taken to have run on {what}.")
    else:
        notes.append("No prediction: name the GPU with --gpu H100 --gpus 2.")
    notes += [
        f"Not predicted: {reason}.{_REMEDY if reason.startswith(_NAMELESS) else ''}"
        for reason in sorted({point.not_predicted for point in result.points if point.not_predicted})
    ]
    if widths := [point.precision for point in run.points if point.precision is not None]:
        notes.append(f"Mean latencies are known to ±{percent(max(widths))} or better (95 %).")
    if early := sorted({point.stopped for point in run.points if point.stopped and "interval" not in point.stopped}):
        notes.append(f"Stopped before the interval was tight at some loads: {', '.join(early)}.")
    outside = sum(point.outside.requests for point in run.points)
    if outside:
        notes.append(f"{plural(outside, 'request')} of warm-up and draining are not in the figures.")
    if again := sum(point.retries or 0 for point in run.points):
        notes.append(f"{plural(again, 'request')} had to be sent again; the wait counts.")
    errors = {name for point in run.points for name in point.errors}
    notes += [f"Failed with: {name}" for name in sorted(errors)[:5]]
    notes += sorted({note for point in run.points for note in point.notes} | set(run.notes))
    return notes


def _assumed(result: PricedRun) -> list[str]:
    """What predictions had to take for granted, and how to say it."""
    notes = []
    if result.assumed_weights is not None:
        notes.append(
            f"Weights: {result.assumed_weights} assumed, the checkpoint's own: neither you, the file nor the model's "
            "name says. If they were quantised, say how: --weights fp8."
        )
    drawn = [
        point
        for point, priced in zip(result.run.points, result.points, strict=True)
        if priced.scored and not priced.recorded and (point.rate or point.concurrency)
    ]
    if drawn:
        arrivals = "arrivals were drawn at random, " if any(point.rate for point in drawn) else ""
        spread = any(point.length_spread for point in drawn)
        lengths = "lengths were drawn around their means" if spread else "every length is the mean"
        exact = " vllm bench serve --save-detailed gives exact ones." if result.run.tool == VLLM else ""
        notes.append(f"There is no list of requests: {arrivals}{lengths}.{exact}")
    return notes


def progress_view(progress: Progress) -> Text:
    """One line that is drawn again while a load runs."""
    price = f"  {usd(progress.usd_per_mtok)}/Mtok" if progress.usd_per_mtok is not None else ""
    failed = f"  {progress.failed:,} failed" if progress.failed else ""
    tight = f"  ±{percent(progress.precision)}" if progress.precision is not None else ""
    return Text.assemble(
        (f"{progress.load:<16}", "bold"),
        f"{progress.phase:<9}{seconds(progress.elapsed_s):>8}  {progress.completed:>7,} answered{failed}  ",
        (f"{progress.output_tokens_per_s:>9,.0f} tok/s{price}", "green"),
        (tight, "dim"),
    )
