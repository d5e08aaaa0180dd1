"""Draw a search for engine flags: its trials in their order, and every ranked set with what is expected of it."""

import json
from collections.abc import Sequence

import altair as alt

from tokonomics.questions.tune_answer import RankedSet
from tokonomics.report.charts import style

_TRIAL_WIDTH, _HEIGHT = 110, 240
_LINE = 22  # characters of a set's name below its trial
_PREDICTED, _MEASURED, _BEST = "simulated", "measured", "best so far"
_COLOURS = {_PREDICTED: style.DARK_SAND, _MEASURED: style.BLUE, _BEST: style.GREEN}
_TRIED = {"measured": style.BLUE, "expected": "transparent"}


def search_chart(trials: Sequence[RankedSet], title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw the trials in their order: what was simulated, what was measured, and the best so far as a step line."""
    dots: list[style.Row] = []
    steps: list[style.Row] = []
    failures: list[style.Row] = []
    best = 0.0
    for number, trial in enumerate(trials, 1):
        where: style.Row = {"trial": number, "set": trial.name}
        if trial.predicted_rate is not None:
            dots.append({**where, "kind": _PREDICTED, "rate": trial.predicted_rate / trial.gpus})
        if trial.measured_rate is not None:
            rate = trial.measured_rate / trial.gpus
            dots.append({**where, "kind": _MEASURED, "rate": rate, "label": f"{rate:.3g}/s"})
            best = max(best, rate)
        if trial.failed:
            failures.append({**where, "rate": 0.0, "label": "failed"})
        if best:
            steps.append({"trial": number, "rate": best})
    if steps:
        steps.append({"trial": len(trials) + 0.5, "rate": best, "label": _BEST})
    top = max((dot["rate"] for dot in dots), default=1.0) * 1.15
    y = style.upwards("rate", _axis(trials), style.linear(0, top), tickCount=5)
    x = style.across(
        "trial", None, style.linear(0.5, len(trials) + 0.5), values=list(range(1, len(trials) + 1)), grid=False,
        labelExpr=f"{json.dumps([_lines(number, trial.name) for number, trial in enumerate(trials, 1)])}"
        "[datum.value - 1]",
    )  # fmt: skip
    shown = [kind for kind in _COLOURS if any(dot["kind"] == kind for dot in dots)]
    colour = style.colours("kind", {kind: _COLOURS[kind] for kind in shown})
    marks = [
        style.plot(steps).mark_line(interpolate="step-after", color=_COLOURS[_BEST]).encode(x=x, y=y),
        style.plot(dots).mark_point(filled=True, size=70, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=style.tips("set", "kind", rate=".3~g")
        ),
        style.labels((dot for dot in dots if "label" in dot), dx=0, dy=-13, align="center").encode(x=x, y=y),
        style.labels(steps[-1:], dy=10, dx=0, align="right", color=style.DARK_GREEN).encode(x=x, y=y),
        style.plot(failures).mark_point(shape="cross", size=70, filled=True, color=style.RED).encode(x=x, y=y),
        style.labels(failures, dy=-9, color=style.RED).encode(x=x, y=y),
    ]  # fmt: skip
    drawn = style.panel(*marks, width=max(420, _TRIAL_WIDTH * len(trials)), height=_HEIGHT)
    return style.whole(drawn, title, subtitle)


def _axis(sets: Sequence[RankedSet]) -> str:
    return "requests/s per GPU at the targets" if any(each.gpus > 1 for each in sets) else "requests/s at the targets"


def _lines(number: int, name: str) -> list[str]:
    """Return a trial's number and its set, one value a line."""
    parts = name.split(", ")
    return [f"trial {number}", *(part if len(part) <= _LINE else f"{part[: _LINE - 1]}…" for part in parts)]


def ranked_chart(ranked: Sequence[RankedSet], title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw each set as a bar, filled if it was measured, hollow if only expected, with its 80 % interval."""
    rows: list[style.Row] = []
    ends: list[style.Row] = []
    for place, each in enumerate(ranked, 1):
        rate = each.measured_rate if each.measured_rate is not None else each.expected_rate
        if rate is None:
            continue
        rate /= each.gpus
        name = f"{place}. {each.name}"
        kind = "measured" if each.measured_rate is not None else "expected"
        low = rate if each.low_rate is None else each.low_rate / each.gpus
        high = rate if each.high_rate is None else each.high_rate / each.gpus
        rows.append({"set": name, "rate": rate, "kind": kind, "low": low, "high": high})
        ends.append({"set": name, "high": max(high, rate), "label": f"{rate:.3g}/s {kind}"})
    order = [row["set"] for row in rows]
    most = max((end["high"] for end in ends), default=1.0)
    y = style.names("set", order, 420)
    x = style.across("rate", _axis(ranked), style.linear(0, most * 1.3), tickCount=5)
    outlined: style.Settings = {"stroke": style.BLUE, "strokeWidth": 1.2}
    tooltip = style.tips("set", "kind", rate=".3~g", low=".3~g", high=".3~g")
    blocks = style.bars(rows, **outlined).encode(
        x=x, y=y, color=style.colours("kind", _TRIED, named=False), tooltip=tooltip
    )
    reach = style.plot(rows).mark_rule(color=style.INK).encode(x="low:Q", x2="high:Q", y=y)
    marks = blocks, reach, style.labels(ends).encode(x="high:Q", y=y)
    return style.whole(style.panel(*marks, width=520, height=alt.Step(26)), title, subtitle)
