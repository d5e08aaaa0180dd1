"""Step times and batch curves for a person."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.nouns import Badge
from tokonomics.physics.intervals import Interval
from tokonomics.planner.predict import BatchCurve, Prediction
from tokonomics.report.tables import bar, legend, pairs, table
from tokonomics.units import percent, seconds, usd

SPEEDS = {Badge.measured: "timed", Badge.modelled: "scaled", Badge.assumed: "assumed"}
_ORIGINS = {
    Badge.measured: "kernels timed on this GPU",
    Badge.modelled: "kernels of a relative GPU, scaled by the datasheet: wider interval",
    Badge.assumed: "kernels of another family, scaled by the datasheet: an extrapolation, wider interval",
}


def predict_view(made: Prediction) -> RenderableType:
    """The step, its interval, and where the time goes."""
    parts = [
        ("weights", made.parts.weights_s, "blue"),
        ("KV", made.parts.kv_s, "green"),
        ("compute", made.parts.compute_s, "magenta"),
        ("communication", made.parts.communication_s, "yellow"),
        ("overhead", made.parts.overhead_s, "bright_black"),
    ]
    on = f"{made.gpus}×{made.gpu}"
    headline = Text.assemble(
        (seconds(made.decode_step_s.mid), "bold green"),
        f" per decode step of {made.batch:,} × {made.context:,} tokens: ",
        f"{made.model} {made.weights} on {on}, {made.engine}",
    )
    rows: list[tuple[str, str | Text, str]] = [
        ("decode step", seconds(made.decode_step_s.mid), _range(made.decode_step_s, seconds)),
        ("output tokens", f"{made.tokens_per_s.mid:,.0f}/s", _range(made.tokens_per_s, lambda each: f"{each:,.0f}/s")),
        ("prompt", seconds(made.prefill_s.mid), f"{made.context:,} tokens; {_range(made.prefill_s, seconds)}"),
        ("KV limit", f"{made.max_sequences:,}", "sequences of this context in memory"),
        ("speed", "modelled", _ORIGINS[made.speed]),
    ]
    return Group(headline, "", bar(parts), legend(parts, [seconds(size) for _, size, _ in parts]), "", pairs(rows))


def _range(interval: Interval, text: Callable[[float], str]) -> str:
    return f"{text(interval.low)} to {text(interval.high)} in four of five measurements"


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
    price = (
        f" Price: {usd(curve.usd_per_hour)}/h at full utilisation, output tokens only." if curve.usd_per_hour else ""
    )
    note = "of linear: throughput ÷ batch × that of one sequence; what weights, shared by the batch, no longer save."
    head = Text(f"{curve.deployment}, context {curve.context:,}", style="bold")
    return Group(head, "", table(columns, rows), "", Text(f"{limit}{price}\n{note}", style="dim"))
