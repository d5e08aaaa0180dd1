"""How well predictions did: against measurements, and against the log of an engine."""

import math
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tokonomics.errors import option
from tokonomics.measure.replay import Figure, Replay, ReplayComparison, ReplayedRun
from tokonomics.measure.validate import TAUGHT, ErrorSummary, Validation
from tokonomics.questions.measured_results import ReplayResult, ValidateResult
from tokonomics.questions.requests.run import ValidateRequest
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import signed_text
from tokonomics.units import percent, plural, seconds

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
    """Predictions against a file of measurements, or against the log of an engine."""
    name = Path(request.file).name
    if isinstance(result, ReplayResult):
        return Answer(result, f"Replay of {name}", partial(_replay, result))
    found = result.predictions
    drawn = {"Predicted over measured": lambda: charts.validate.validation_chart(found)} if found else {}
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
    if result.not_predicted:
        yield _reasons(result.not_predicted, missing)


def figures(group: ErrorSummary) -> tuple[str, str, str, str, str]:
    """n, median and p90 error, bias, coverage; an error of x is a factor of 1 + x, up or down."""
    return (
        f"{group.n:,}",
        percent(math.expm1(group.median_abs_log_error)),
        percent(math.expm1(group.p90_abs_log_error)),
        signed_text(math.expm1(group.bias)),
        percent(group.inside_interval),
    )


def _taught(result: Validation) -> str:
    """Whether the model was fitted on these rows, as far as their table says."""
    taught = result.splits.get(TAUGHT, 0)
    others = sorted(name for name in result.splits if name != TAUGHT)
    if taught and others:
        alone = " or ".join(option("split", name) for name in others)
        rows = f"{plural(taught, 'row')} of split {TAUGHT} taught the model, the others did not"
        return f"Mixed: {rows} ({alone} scores them alone)."
    if taught:
        return f"These rows (split {TAUGHT}) taught the model: new ones are predicted less well."
    if others:
        return f"These rows (split {', '.join(others)}) did not teach the model."
    return "The file has no splits: it does not say whether any of its rows taught the model."


def _reasons(reasons: Mapping[str, int], heading: str) -> blocks.Table:
    return blocks.table([">rows", heading], [(f"{number:,}", reason) for reason, number in reasons.items()])


def _replay(result: Replay) -> blocks.View:
    """Measured and predicted, by run and figure, and what the step times come from."""
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
        blocks.note(*dict.fromkeys(map(_source, result.runs))),
        blocks.hint("Few of those steps waited for the host: its time is a guess.") if guessed else None,
    )


def replayed(figure: Figure, pair: ReplayComparison) -> tuple[str, str, str]:
    """Measured, predicted, error."""
    values = pair.measured, pair.predicted
    first, second = (f"{value:,.0f}" if figure is Figure.output_tok_s else seconds(value) for value in values)
    return first, second, signed_text(pair.error)


def _source(run: ReplayedRun) -> str:
    fit = run.fit
    return (
        f"Step times fitted on {', '.join(run.fitted_on)}: {plural(fit.decode_steps, 'step')} without prompts "
        f"(median error {percent(fit.decode_error)}), {fit.prompt_steps:,} with ({percent(fit.prompt_error)})."
    )
