"""The simulator against a real engine, as a table."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.replay import Figure, Replay, ReplayComparison, ReplayedRun
from tokonomics.report.tables import table
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


def replay_view(result: Replay) -> RenderableType:
    """Measured and predicted, by run and figure, and what the step times come from."""
    rows = [
        (run.run if place == 0 else "", LABELS[figure], *figures(figure, pair))
        for run in result.runs
        for place, (figure, pair) in enumerate(each for each in run.figures.items() if each[1])
        if pair
    ]
    body: list[RenderableType] = [table(["!run", "!figure", ">measured", ">predicted", ">error"], rows), ""]
    body += [Text(line, style="dim") for line in dict.fromkeys(_source(run) for run in result.runs)]
    if any(run.fit.host_is_guessed for run in result.runs):
        body.append(Text("Few of those steps waited for the host: its time is a guess.", style="yellow"))
    return Group(*body)


def figures(figure: Figure, pair: ReplayComparison) -> tuple[str, str, str]:
    """Measured, predicted, error."""
    shown = [
        f"{value:,.0f}" if figure is Figure.output_tok_s else seconds(value)
        for value in (pair.measured, pair.predicted)
    ]
    return shown[0], shown[1], f"{pair.error * 100:+.1f} %"


def _source(run: ReplayedRun) -> str:
    fit = run.fit
    return (
        f"Step times fitted on {', '.join(run.fitted_on)}: {plural(fit.decode_steps, 'step')} without prompts "
        f"(median error {percent(fit.decode_error)}), {fit.prompt_steps:,} with ({percent(fit.prompt_error)})."
    )
