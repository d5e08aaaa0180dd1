"""Charts as Altair specifications, saved as PNG, SVG or one-file HTML without a browser."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from tokonomics.errors import BadInput, shorten
from tokonomics.planner.plan import UNUSED, Candidate, Plan
from tokonomics.units import seconds, usd

if TYPE_CHECKING:
    import altair as alt

_FORMATS = (".svg", ".png", ".html", ".json")
_HOW_TO_SAVE: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
_PART_COLOURS = {"prefill": "#3b6fb6", "decode": "#5aa9a4", "idle": "#d9d3c7", UNUSED: "#b9b2a6"}


def plan_chart(plan: Plan, model_name: str, rows: int = 14) -> "alt.LayerChart":
    """The monthly bill on each kind of hardware at its cheapest offer, split into what it pays for."""
    import altair as alt

    leaders = plan.leaders(rows)
    names = [_label(place, row) for place, row in enumerate(leaders, 1)]
    parts = [
        {"what": name, "offer": f"{row.provider} {row.instance}", "part": line.name, "usd": line.usd, "order": order}
        for name, row in zip(names, leaders, strict=True)
        for order, line in enumerate(row.bill.lines)
    ]
    totals = [
        {"what": name, "usd": row.usd_per_month, "label": f"{usd(row.usd_per_mtok.blended)}/Mtok"}
        for name, row in zip(names, leaders, strict=True)
    ]
    y = alt.Y("what:N", title=None, sort=names, axis=alt.Axis(labelLimit=320, ticks=False, domain=False))
    bars = (
        alt.Chart(alt.InlineData(values=parts))
        .mark_bar(height={"band": 0.72})
        .encode(
            x=alt.X("sum(usd):Q", title="dollars a month", axis=alt.Axis(format="$,.0f", grid=True, tickCount=6)),
            y=y,
            color=alt.Color(
                "part:N",
                title="paid for",
                scale=alt.Scale(domain=list(_PART_COLOURS), range=list(_PART_COLOURS.values())),
                legend=alt.Legend(orient="top", direction="horizontal"),
            ),
            order="order:Q",
            tooltip=["what:N", "offer:N", "part:N", alt.Tooltip("usd:Q", format="$,.2f")],
        )
    )
    labels = (
        alt.Chart(alt.InlineData(values=totals))
        .mark_text(align="left", dx=6, fontSize=11)
        .encode(x="usd:Q", y=y, text="label:N")
    )
    workload = plan.workload
    promise = f", TPOT ≤ {seconds(plan.slo.tpot_s)}" if plan.slo.tpot_s else ""
    title = alt.TitleParams(
        f"What serving {model_name} costs on each GPU",
        subtitle=f"{workload.rate:g} requests/s, {workload.input_tokens:,} tokens in, {workload.output_tokens:,} out"
        f"{promise}; the cheapest offer of each kind",
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=10,
    )
    chart = alt.layer(bars, labels).properties(width=560, height=alt.Step(24), title=title).configure_view(stroke=None)
    return cast("alt.LayerChart", chart)


def _label(place: int, row: Candidate) -> str:
    flag = "*" if row.below_checkpoint else ""
    return f"{place}. {row.replicas} × {row.gpus_per_replica} {row.gpu} {row.weights}{flag}"


def check_chart_path(path: Path) -> None:
    """Refuse a file name or folder that a chart cannot be saved to, before any work is done."""
    if path.suffix.lower() not in _FORMATS:
        raise BadInput(
            f"cannot save a chart as '{shorten(path.suffix or path.name)}'",
            where="--chart",
            fix=f"Name the file with one of: {', '.join(_FORMATS)}.",
        )
    try:
        there, taken = path.parent.is_dir(), path.is_dir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be written: {reason}", where=f"--chart {shorten(path.name)}") from None
    if not there:
        raise BadInput(f"the folder {shorten(str(path.parent), 200)} does not exist", where="--chart")
    if taken:
        raise BadInput(f"{shorten(str(path), 200)} is a folder", where="--chart")


def save_chart(chart: "alt.LayerChart", path: Path) -> None:
    """Write the chart in the format its name ends with; whole or not at all."""
    check_chart_path(path)
    suffix = path.suffix.lower()
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".chart") as unfinished:
            file = Path(unfinished) / f"chart{suffix}"
            chart.save(file, **_HOW_TO_SAVE.get(suffix, {}))
            file.replace(path)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=f"--chart {shorten(path.name)}") from None
