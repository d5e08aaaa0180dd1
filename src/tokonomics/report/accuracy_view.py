"""How far predictions lie from measurements: recorded errors, the points that are drawn, a reader's own with them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokonomics.measure.accuracy_points import BAND, AccuracyPoint, DrawnErrors, UnseenErrors
from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE, percent_text
from tokonomics.units import percent, plural

_ERRORS = (">rows", ">median error", ">nine of ten within", ">bias", ">inside our interval")
_WORDS = {"output_tok_s": "output tokens/s", "tpot_s": "TPOT", "ttft_s": "TTFT", "gpu": "GPU"}
_MAIN = "left out of everything, throughput and TPOT"
"""Public measurements of whole engines that nothing was fitted on: the nearest to what a reader will run."""
_UNSEEN = ("left out of everything", "of those", "six other models")
"""What names the recorded rows that no speed was fitted on: they come before the others."""


def accuracy(
    recorded: Mapping[str, Any],
    real: Sequence[UnseenErrors],
    drawn: DrawnErrors,
    kind: str,
    joined: Sequence[AccuracyPoint] = (),
    own: Mapping[str, Any] | None = None,
) -> blocks.View:
    """Errors by source of the measurements and by kind, and what was not predicted; no row is left out silently.

    Those of the ``real`` engine come first, then those that no fit saw.
    Points of one kind of figure are ``drawn``, with those of the reader's ``own`` answer that ``joined`` them.
    """
    rows: Mapping[str, Any] = recorded["rows"]
    main = next((row for name, row in rows.items() if _MAIN in name), next(iter(rows.values())))
    groups = plural(recorded["spearman_groups"], "group")
    yield blocks.line(
        "Median error of published results that no fit saw: ",
        blocks.Span(_share(main["median_abs_log_error"]), "best"),
        f", throughput and TPOT: {plural(main['n'], 'measurement')}. "
        f"Nine of ten are within {_share(main['p90_abs_log_error'])}; the bias is {_signed(main['bias'])}. "
        f"Of a real vLLM on an H200, two models that no fit saw: median errors of at most {_exact(real[0])}. "
        f"Rank correlation of deployments: {recorded['spearman']:.2g} over {groups}. "
        "Some kinds are far worse, such as time to first token and a drained burst.",
        kind="headline",
    )
    yield blocks.facts(_own(own, joined, drawn.yours, kind) if own is not None else None, *_drawn(drawn, kind))
    if own is None:
        yield blocks.hint("Compare it with your own: drop the results of a load test anywhere on this page.")
    yield blocks.table(
        ["measurements", *_ERRORS, "target"],
        [
            *(
                (row.what, f"{row.n:,}", f"at most {_exact(row)}", *[NO_VALUE] * 3, "reported: of either model")
                for row in real
            ),
            *((source, *_errors(rows[source]), rows[source]["target"]) for source in sorted(rows, key=_is_seen)),
        ],
        "Predictions against measurements",
    )
    yield blocks.table(
        ["!group", "by", *_ERRORS],
        [
            (_WORDS.get(group, group), _WORDS.get(kind, kind), *_errors(row))
            for kind, found in recorded["by"].items()
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


def _is_seen(source: str) -> bool:
    return not any(name in source for name in _UNSEEN)


def _exact(row: UnseenErrors) -> str:
    return f"{row.at_most * 100:.1f} %"


def _errors(row: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (_share(row["median_abs_log_error"]), _share(row["p90_abs_log_error"]), _signed(row["bias"]))
    return f"{row['n']:,}", *errors, percent_text(row.get("inside_interval"))


def _share(log: float | None) -> str:
    """Errors are kept as logarithms of predicted over measured; people read them as a share."""
    return NO_VALUE if log is None else percent(math.expm1(log))


def _signed(log: float | None) -> str:
    return NO_VALUE if log is None else f"{math.expm1(log) * 100:+,.1f} %"


_SPEEDS = {"timed": "kernels timed on that GPU", "scaled": "scaled from other timings", "assumed": "neither"}


def heading(points: Sequence[AccuracyPoint], kind: str, joined: Sequence[AccuracyPoint]) -> tuple[str, str]:
    """Title and subtitle of the chart."""
    served = sum(point.served for point in points)
    parts = [plural(len(points) - served, "published figure")] if served < len(points) or not served else []
    parts += [f"{served:,} of a real vLLM on an H200 (large, outlined)"] if served else []
    parts += [f"{len(joined):,} of yours"] if joined else []
    return (
        f"{kind}, predicted against measured",
        f"{' and '.join(parts)}; on the line is right, the band is ±{percent(BAND)}",
    )


def _drawn(drawn: DrawnErrors, kind: str) -> Iterable[blocks.Fact]:
    """Of the points in the chart: how many, how far off, and that by how their speed is known."""
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
    """The reader's results: how far off their predictions are, or why there are none."""
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
