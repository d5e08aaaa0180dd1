"""Show how far predictions are from measurements: validated, calibrated, and as recorded for the accuracy page."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import option
from tokonomics.measure.accuracy_points import BAND, AccuracyPoint, DrawnErrors, UnseenErrors
from tokonomics.measure.calibrate import GroupResult
from tokonomics.measure.replay import Figure, Replay, ReplayComparison
from tokonomics.measure.validate import TAUGHT, ErrorSummary, Validation
from tokonomics.physics.calibration import Correction, Fitted, HeldOut, Kernels, Profile
from tokonomics.questions.calibrate import CalibrateResult, ProbeResult, ReplayResult, ValidateResult
from tokonomics.questions.request import Request
from tokonomics.questions.requests.run import ValidateRequest
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, percent_text, signed_text
from tokonomics.units import fine_percent, percent, plural, seconds

LABELS = {
    Figure.output_tok_s: "output tokens/s",
    Figure.ttft_p50_s: "TTFT p50",
    Figure.ttft_p90_s: "TTFT p90",
    Figure.ttft_p99_s: "TTFT p99",
    Figure.tpot_p50_s: "TPOT p50",
    Figure.tpot_p90_s: "TPOT p90",
    Figure.tpot_p99_s: "TPOT p99",
    Figure.e2e_p50_s: "end to end p50",
}


def validate(result: "ValidateResult | ReplayResult", request: ValidateRequest) -> Answer:
    """Show predictions against a file of measurements, or against the log of an engine."""
    name = Path(request.files).name
    if isinstance(result, ReplayResult):
        return Answer(result, f"Replay of {name}", partial(_replay, result))
    found = result.predictions
    drawn = {"Predicted over measured": lambda: charts.measured.validation_chart(found)} if found else {}
    return Answer(result, f"Predictions against {name}", partial(_validation, result), drawn)


def _validation(result: Validation) -> blocks.View:
    missing = f"not predicted ({result.rows - result.predicted:,} of {result.rows:,})"
    if result.overall is None:
        yield blocks.headline("No row could be predicted.", mood="worst")
    else:
        _, median, p90, *_ = figures(result.overall)
        within = f" over {plural(result.overall.n, 'measurement')}; nine of ten are within {p90}"
        yield blocks.headline(f"{median} median error", within)
        rows = [("all", "", *figures(result.overall))]
        for kind, groups in result.groups.items():
            rows += [(kind, name, *figures(group)) for name, group in groups.items()]
        yield blocks.table(["by", "!group", ">n", ">median", ">p90", ">bias", ">inside"], rows)
        order, among = result.ranking.spearman, plural(result.ranking.groups, "group")
        ranking = "" if order is None else f"GPU ranking: Spearman {order:.2f} over {among} alike but for the GPUs."
        yield blocks.note(
            "median, p90: size of the error, up or down (10 %: a factor of 1.1). bias: above 0 we predict too much.",
            "inside: measurements within the predicted 80 % interval.",
            f"{_taught(result)} Figures on held-out rows: docs/accuracy.md.",
            ranking,
        )
    yield blocks.listed(
        result.worst,
        ("!worst rows", lambda row: row.key),
        ("of", lambda row: row.what),
        ("!figure", lambda row: row.figure),
        (">measured", lambda row: _value(row.figure, row.measured)),
        (">predicted", lambda row: _value(row.figure, row.predicted)),
        (">error", lambda row: signed_text(row.ratio - 1)),
    )
    if result.not_predicted:
        yield _reasons(result.not_predicted, missing)


def _value(figure: str, value: float) -> str:
    """Return a time, or tokens a second, as its figure is."""
    return f"{value:,.0f}/s" if "tok_s" in figure else seconds(value)


def figures(group: ErrorSummary) -> tuple[str, str, str, str, str]:
    """Return n, median and p90 error, bias, coverage; an error of x is a factor of 1 + x, up or down."""
    return (
        f"{group.n:,}",
        percent(math.expm1(group.median_abs_log_error)),
        percent(math.expm1(group.p90_abs_log_error)),
        signed_text(math.expm1(group.bias)),
        percent(group.inside_interval),
    )


def _taught(result: Validation) -> str:
    """Say whether the model was fitted on these rows, if their table tells."""
    if not result.splits:
        return "The file has no splits: it does not say whether any of its rows taught the model."
    if not (taught := result.splits.get(TAUGHT, 0)):
        return "None of these rows taught the model."
    others = " or ".join(option("split", name) for name in sorted(result.splits) if name != TAUGHT)
    fewer = f" ({others} scores the others alone)" if others else ""
    return f"{taught:,} of these rows taught the model{fewer}: new ones are predicted less well."


def _reasons(reasons: Mapping[str, int], heading: str) -> blocks.Table:
    return blocks.table([">rows", heading], [(f"{number:,}", reason) for reason, number in reasons.items()])


def _replay(result: Replay) -> blocks.View:
    """Show measured and predicted figures by run, and the source of the step times."""
    compared = [(run, [(figure, pair) for figure, pair in run.figures.items() if pair]) for run in result.runs]
    sizes = [abs(pair.error) for _, pairs in compared for _, pair in pairs]
    what = f"{result.model} on {result.gpu}, {plural(len(result.runs), 'run')} replayed"
    if sizes:
        median = f"{percent(statistics.median(sizes))} median error"
        yield blocks.headline(median, f" over {plural(len(sizes), 'figure')}: {what}")
    rows = [
        ("" if place else run.run, LABELS[figure], *replayed(figure, pair))
        for run, pairs in compared
        for place, (figure, pair) in enumerate(pairs)
    ]
    yield blocks.table(["!run", "!figure", ">measured", ">predicted", ">error"], rows)
    guessed = any(run.fit.host_is_guessed for run in result.runs)
    yield blocks.section(
        blocks.note(
            *dict.fromkeys(
                f"Step times fitted on {', '.join(run.fitted_on)}: {plural(run.fit.decode_steps, 'step')} without "
                f"prompts (median error {percent(run.fit.decode_error)}), {run.fit.prompt_steps:,} with "
                f"({percent(run.fit.prompt_error)})."
                for run in result.runs
            )
        ),
        blocks.hint("Few of those steps waited for the host: its time is a guess.") if guessed else None,
    )


def replayed(figure: Figure, pair: ReplayComparison) -> tuple[str, str, str]:
    """Return measured, predicted and error."""
    values = pair.measured, pair.predicted
    first, second = (f"{value:,.0f}" if figure is Figure.output_tok_s else seconds(value) for value in values)
    return first, second, signed_text(pair.error)


# --- what a probe or a calibration found -----------------------------------------------------------------------------


_FIGURES = {
    "tpot": "time per token", "ttft": "time to first token", "throughput": "throughput", "step": "decode step",
    "prefill": "prompt",
}  # fmt: skip


def calibrate(result: CalibrateResult, request: Request) -> Answer:
    """Show what was learned about each server, its error on held-out loads, and what was left out."""
    return Answer(result, "A calibration", partial(_calibration, result))


def probe(result: ProbeResult, request: Request) -> Answer:
    """Show the fitted curves, their error on held-out shapes, and whole steps predicted from them."""
    profile, saved_to = result.profile, result.saved_to
    sections = lambda: [*_probe(profile), _saved(saved_to) if saved_to else None]  # noqa: E731
    return Answer(result, f"A probe of {profile.gpus[0]}", sections)


def _calibration(result: CalibrateResult) -> blocks.View:
    profile = result.profile
    yield _learned(result)
    if profile.kernels:
        yield from _probe(profile)
    yield from (blocks.section(*_group(group)) for group in result.groups)
    yield blocks.section(*map(blocks.hint, result.notes))
    if result.not_predicted:
        yield _reasons(result.not_predicted, "!not predicted")
    if profile.corrections or profile.kernels:
        yield _saved(result.saved_to)


def _learned(result: CalibrateResult) -> blocks.Line:
    """Say how far predictions are off now, if that was measured."""
    judged = [group for group in result.groups if group.correction and group.held_out]
    if judged:
        group, figure = judged[0], judged[0].held_out[0]
        off = f"{_named(figure.figure).capitalize()} off by {_error(figure.after)}"
        return blocks.headline(off, f" on held-out loads, {_error(figure.before)} before: {group.what}")
    if result.profile.corrections or result.profile.kernels:
        learned = plural(len(result.profile.corrections), "correction")
        return blocks.headline(learned, " learned; no load was left to judge them")
    return blocks.headline("Nothing to keep", ": predictions stay as they are, and no profile is saved", "alert")


def _probe(profile: Profile) -> blocks.View:
    kernels, machine = profile.kernels, profile.machine
    if kernels is None:
        yield blocks.headline("No kernels were timed", mood="alert")
        return
    device = ""
    if machine:
        versions = [f"torch {machine.torch}" * bool(machine.torch), f"driver {machine.driver}" * bool(machine.driver)]
        device = f" ({machine.device}, {', '.join(filter(None, versions))})"
    curves = list(_curves(kernels))
    rows = [
        (name, f"{fit.rows:,}", f"{fit.held_out:,}", _error(fit.median_error), _error(fit.p90_error), what)
        for name, fit, what in curves
    ]
    columns = ["!kernel", ">timed", ">held out", ">median off", ">p90", "takes the place of ours in"]
    yield blocks.section(
        blocks.headline(f"{kernels.gpu}: {plural(len(curves), 'kernel')} timed", f" on {profile.made}{device}"),
        blocks.table(columns, rows),
        blocks.note(f"copies reach {percent(kernels.memory)} of the datasheet's bandwidth"),
    )
    if profile.check:
        whole = blocks.line("Whole steps that were timed beside them, not fitted:")
        yield blocks.section(whole, _held_out(profile.check))


def _curves(kernels: Kernels) -> Iterable[tuple[str, Fitted, str]]:
    if kernels.gemm:
        yield "matrix products, bf16", kernels.gemm, "every step in bf16"
    for kind, curves in (("decode", kernels.decode), ("prompt", kernels.prefill)):
        yield from ((f"{kind} attention, {name}", fit, "steps without an engine") for name, fit in curves.items())
    untimed = "GPUs whose all-reduce we have not timed"
    yield from ((f"all-reduce over {gpus}", fit, untimed) for gpus, fit in kernels.all_reduce.items())


def _group(group: GroupResult) -> Iterable[blocks.Block]:
    loads = plural(group.loads, "load")
    yield blocks.line(blocks.Span(group.what, "strong"), f"  {loads}: {group.taught} taught, {group.judged} judged")
    yield from (blocks.line(blocks.Span(f"doubtful: {doubt}", "alert")) for doubt in group.doubts)
    yield from (blocks.line(blocks.Span(f"left out: {load}", "alert")) for load in group.dropped)
    if group.refused:
        yield blocks.line(f"not calibrated: {group.refused}", kind="worst")
    if group.held_out:
        yield _held_out(group.held_out)
    if group.correction:
        yield blocks.line(f"learned on {group.taught} of {loads}: {_numbers(group.correction)}")
        yield blocks.note(
            f"holds for {_seen(group.correction)}; beyond that it extrapolates.",
            "Other layouts of the model are corrected as this one where that makes them slower.",
        )


def _held_out(figures: Sequence[HeldOut]) -> blocks.Table:
    rows = []
    for figure in figures:
        bias = " → ".join(signed_text(math.expm1(size)) for size in (figure.bias_before, figure.bias_after))
        rows.append((_named(figure.figure), f"{figure.n:,}", _error(figure.before), _error(figure.after), bias))
    return blocks.table(["!held out", ">n", ">off before", ">after", ">bias"], rows)


def _named(figure: str) -> str:
    """Return ``ttft p99`` as text for people."""
    kind, _, statistic = figure.partition(" ")
    return f"{_FIGURES.get(kind, kind)} {statistic}".strip()


def _numbers(found: Correction) -> str:
    factors = {
        "decode": found.decode, "prompts": found.prefill, "launches": found.launch, "requests": found.request,
    }  # fmt: skip
    parts = [f"{name} × {factor:.3g}" for name, factor in factors.items() if factor != 1]
    if found.experts < 1:
        parts.append(f"traffic visits {percent(found.experts)} of the experts")
    if found.step_s is not None:
        parts.append(f"host {_or_none(found.step_s)} a step + {_or_none(found.sequence_s or 0.0)} a sequence")
    return ", ".join(parts)


def _or_none(time_s: float) -> str:
    """Write a time; one that is negligible beside any step reads 0 ms."""
    return seconds(time_s) if time_s > 1e-8 else "0 ms"


def _seen(found: Correction) -> str:
    names = {"batch": "at once", "rate": "requests/s", "input_tokens": "tokens in", "output_tokens": "tokens out"}
    parts = []
    for name, unit in names.items():
        known = found.seen.get(name)
        if known and (name, known.high) != ("output_tokens", 1):  # steps have no answers
            many = f"{known.low:,.4g}" if known.low == known.high else f"{known.low:,.4g} to {known.high:,.4g}"
            parts.append(f"{many} {unit}")
    return ", ".join(parts)


def _error(size: float | None) -> str:
    """Write an error; x is a factor of 1 + x, up or down."""
    if size is None:
        return ""
    return percent(math.expm1(size)) if size < math.log(3) else f"{math.exp(size):.1f} ×"


def _saved(saved_to: str | None) -> blocks.Line:
    if saved_to:
        return blocks.hint(f"Profile saved to {saved_to}: use it with {option('profile', saved_to)}.")
    return blocks.hint(f"Nothing saved: give {option('out', 'FILE.json')} to keep the profile.")


# --- recorded errors, the points that are drawn, a reader's own with them --------------------------------------------


_ERRORS = (">rows", ">median error", ">nine of ten within", ">bias", ">inside our interval")
_WORDS = {"output_tok_s": "output tokens/s", "tpot_s": "TPOT", "ttft_s": "TTFT", "gpu": "GPU"}
_MAIN = "left out of everything, throughput and TPOT"
"""Public measurements of whole engines that nothing was fitted on: the nearest to what a reader will run."""
_UNSEEN = ("left out of everything", "of those", "six other models")
"""Names of the recorded rows that no speed was fitted on: they come first."""


def accuracy(
    recorded: Mapping[str, Any],
    real: Sequence[UnseenErrors],
    drawn: DrawnErrors,
    kind: str,
    joined: Sequence[AccuracyPoint] = (),
    own: Mapping[str, Any] | None = None,
) -> blocks.View:
    """Show errors by source of the measurements and by kind, and what was not predicted; every row is counted.

    Those of the ``real`` engine come first, then those that no fit saw. Points of one kind of figure are ``drawn``,
    with those of the reader's ``own`` answer that ``joined`` them.
    """
    rows: Mapping[str, Any] = recorded["rows"]
    main = next((row for name, row in rows.items() if _MAIN in name), next(iter(rows.values())))
    groups = plural(recorded["spearman_groups"], "group")
    yield blocks.line(
        "Median error of published results that no fit saw: ",
        blocks.Span(_share(main["median_abs_log_error"]), "best"),
        f", throughput and TPOT: {plural(main['n'], 'measurement')}. "
        f"Nine of ten are within {_share(main['p90_abs_log_error'])}; the bias is {_signed_log(main['bias'])}. "
        f"Of a real vLLM on an H200, two models that no fit saw: median errors of at most {_exact(real[0])}. "
        f"Rank correlation of deployments: {recorded['spearman']:.2g} over {groups}. "
        "Some kinds are far worse, such as time to first token and a drained burst.",
        kind="headline",
    )
    yield blocks.facts(_own(own, joined, drawn.yours, kind) if own is not None else None, *_drawn(drawn, kind))
    if own is None:
        yield blocks.hint("Compare it with your own: drop the results of a load test anywhere on this page.")
    seen = lambda source: not any(name in source for name in _UNSEEN)  # noqa: E731
    unknown = [NO_VALUE] * 3
    served = [(row.what, f"{row.n:,}", f"at most {_exact(row)}", *unknown, "reported: of either model") for row in real]
    kept = [(name, *_recorded_errors(rows[name]), rows[name]["target"]) for name in sorted(rows, key=seen)]
    yield blocks.table(["measurements", *_ERRORS, "target"], [*served, *kept], "Predictions against measurements")
    yield blocks.table(
        ["!group", "by", *_ERRORS],
        [
            (_WORDS.get(group, group), _WORDS.get(by, by), *_recorded_errors(row))
            for by, found in recorded["by"].items()
            for group, row in found.items()
        ],
        "Those of InferenceMAX and TensorRT-LLM, throughput and TPOT, by metric, GPU, engine, model and source",
        shown=24,
    )
    left = recorded["not_predicted"]
    yield blocks.section(
        *(blocks.line(f"{reason}: {plural(number, 'row')}") for reason, number in left.items()), title="Not predicted"
    )
    yield blocks.note(f"Made {recorded['date']} on {recorded['machine']} with `{recorded['command']}`.")


def _exact(row: UnseenErrors) -> str:
    return fine_percent(row.at_most)


def _recorded_errors(row: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (_share(row["median_abs_log_error"]), _share(row["p90_abs_log_error"]), _signed_log(row["bias"]))
    return f"{row['n']:,}", *errors, percent_text(row.get("inside_interval"))


def _share(log: float | None) -> str:
    """Turn an error, kept as the logarithm of predicted over measured, into a share for people."""
    return NO_VALUE if log is None else percent(math.expm1(log))


def _signed_log(log: float | None) -> str:
    return NO_VALUE if log is None else signed_text(math.expm1(log))


_SPEEDS = {"timed": "kernels timed on that GPU", "scaled": "scaled from other timings", "assumed": "neither"}


def heading(points: Sequence[AccuracyPoint], kind: str, joined: Sequence[AccuracyPoint]) -> tuple[str, str]:
    """Return the title and subtitle of the chart."""
    served = sum(point.served for point in points)
    parts = [plural(len(points) - served, "published figure")] if served < len(points) or not served else []
    parts += [f"{served:,} of a real vLLM on an H200 (large, outlined)"] if served else []
    parts += [f"{len(joined):,} of yours"] if joined else []
    return (
        f"{kind}, predicted against measured",
        f"{' and '.join(parts)}; on the line is right, the band is ±{percent(BAND)}",
    )


def _drawn(drawn: DrawnErrors, kind: str) -> Iterable[blocks.Fact]:
    """Say how many points the chart has and how far off they are, by how their speed is known."""
    if not drawn.points:
        yield blocks.fact("in the chart", "none", f"no {kind} is of that choice")
        return
    note = f"{kind} figures, {drawn.left_out:,} of them left out of every fit"
    yield blocks.fact("in the chart", f"{drawn.points:,}", note)
    error = percent_text(drawn.median)
    yield blocks.fact("median error in the chart", error, f"{percent(drawn.inside)} are inside the band")
    for speed, (number, median) in drawn.by_speed.items():
        yield blocks.fact(speed, percent_text(median), f"median error of {number:,}: {_SPEEDS[speed]}")


def _own(own: Mapping[str, Any], joined: Sequence[AccuracyPoint], error: float | None, kind: str) -> blocks.Fact:
    """Show how far off the predictions of the reader's results are, or why there are none."""
    result = own["result"]
    model = result["run"]["model"] or "an unnamed model"
    if error is not None:
        note = f"median error of {plural(len(joined), 'figure')}, {kind} of {model}"
        return blocks.fact("your results", blocks.Span(percent(error), "strong"), note)
    reasons = {point["not_predicted"] for point in result["points"] if point["not_predicted"]}
    missing = "the file names no GPU: choose the one it ran on" if result["machine"] is None else f"they have no {kind}"
    why = "; ".join(sorted(reasons)) or missing
    return blocks.fact(
        "your results", blocks.Span("no point", "alert"), f"{why}; Benchmark takes what a file leaves out"
    )
