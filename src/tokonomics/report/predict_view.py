"""Step times and batch curves for a person."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.physics.intervals import Interval
from tokonomics.planner.predict import BatchCurve, Prediction
from tokonomics.report.tables import bar, legend, pairs, table
from tokonomics.types import Badge
from tokonomics.units import percent, seconds, usd

SPEEDS = {Badge.measured: "timed", Badge.modelled: "scaled", Badge.assumed: "assumed"}
_ORIGINS = {
    Badge.measured: "kernels timed on this GPU in this precision",
    Badge.modelled: "kernels of a relative GPU, scaled by the datasheet: wider interval",
    Badge.assumed: "this GPU family or this precision was not timed: an extrapolation by the datasheet, wider interval",
}


def predict_view(made: Prediction) -> RenderableType:
    """The step, its interval, and where the time goes."""
    named = [
        ("weights", made.parts.weights_s, "blue"),
        ("KV", made.parts.kv_s, "green"),
        ("compute", made.parts.compute_s, "magenta"),
        ("communication", made.parts.communication_s, "yellow"),
        ("overhead", made.parts.overhead_s, "bright_black"),
    ]
    parts = [part for part in named if part[1] > 0]
    headline = Text.assemble(
        (seconds(made.decode_step_s.mid), "bold green"),
        f" per decode step of {made.batch:,} × {made.context:,} tokens: {made.deployment}, {made.engine}",
    )
    rows: list[tuple[str, str | Text, str]] = [
        ("decode step", seconds(made.decode_step_s.mid), _range(made.decode_step_s, seconds)),
        ("output tokens", f"{made.tokens_per_s.mid:,.0f}/s", _range(made.tokens_per_s, lambda each: f"{each:,.0f}/s")),
        (
            "prompt step",
            seconds(made.prefill_s.mid),
            f"{_range(made.prefill_s, seconds)}; {made.context:,} tokens, alone",
        ),
        ("first token", seconds(made.ttft_s.mid), f"{_range(made.ttft_s, seconds)}; TTFT of that prompt, server idle"),
        ("KV limit", f"{made.max_sequences:,}", "sequences of this context in memory"),
        ("speed from", SPEEDS[made.speed], _ORIGINS[made.speed]),
    ]
    note = Text("Ranges hold four of five measurements of this kind (tokonomics validate).", style="dim")
    shares = legend(parts, [seconds(size) for _, size, _ in parts])
    return Group(headline, "", bar(parts), shares, "", pairs(rows), "", note)


def _range(interval: Interval, text: Callable[[float], str]) -> str:
    return f"{text(interval.low)} to {text(interval.high)}"


def curve_view(curve: BatchCurve) -> RenderableType:
    """What batching buys: throughput rises, each sequence slows down, until the KV cache is full."""
    priced = curve.usd_per_hour is not None
    columns = [">batch", ">TPOT", ">tok/s", ">of linear"] + ([">$/Mtok out"] if priced else [])
    rows = [
        [f"{point.batch:,}", seconds(point.tpot_s), f"{point.tokens_per_s:,.0f}", percent(point.share_of_linear)]
        + ([usd(point.usd_per_mtok)] if point.usd_per_mtok is not None else [])
        for point in curve.points
    ]
    limit = f"KV limit: {curve.max_sequences:,} sequences of {curve.context:,} tokens."
    if curve.engine_sequences < curve.max_sequences:
        limit += f" The engine runs {curve.engine_sequences:,} at once unless told otherwise."
    notes = [limit]
    if curve.usd_per_hour:
        notes.append(
            f"Price: {usd(curve.usd_per_hour)} an hour ({curve.price_from}), at full utilisation, output only."
        )
    notes.append("of linear: throughput ÷ (batch × that of one sequence). Weights are shared by the batch, KV is not.")
    head = Text(f"{curve.deployment}, context {curve.context:,}", style="bold")
    return Group(head, "", table(columns, rows), "", Text("\n".join(notes), style="dim"))
