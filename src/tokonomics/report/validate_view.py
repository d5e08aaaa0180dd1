"""How well predictions did, as tables."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.validate import TAUGHT, ErrorSummary, Validation
from tokonomics.report.tables import table
from tokonomics.units import percent, plural


def validate_view(result: Validation) -> RenderableType:
    """Errors by group, what could not be predicted, and the ranking of GPUs."""
    if result.overall is None:
        return Group(Text("No row could be predicted.", style="bold red"), _reasons(result))
    rows: list[tuple[str, ...]] = [("all", "", *figures(result.overall))]
    for kind, groups in result.groups.items():
        rows += [(kind, name, *figures(group)) for name, group in groups.items()]
    columns = ["by", "!group", ">n", ">median", ">p90", ">bias", ">inside"]
    body: list[RenderableType] = [table(columns, rows), "", _note(result)]
    if result.ranking.spearman is not None:
        among = plural(result.ranking.groups, "group")
        body.append(Text(f"GPU ranking: Spearman {result.ranking.spearman:.2f} over {among} alike but for the GPUs."))
    if result.not_predicted:
        body += ["", _reasons(result)]
    return Group(*body)


def figures(group: ErrorSummary) -> tuple[str, str, str, str, str]:
    """n, median and p90 error, bias, coverage; an error of x is a factor of 1 + x, up or down."""
    return (
        f"{group.n:,}",
        percent(math.expm1(group.median_abs_log_error)),
        percent(math.expm1(group.p90_abs_log_error)),
        f"{math.expm1(group.bias) * 100:+.1f} %",
        percent(group.inside_interval),
    )


def _note(result: Validation) -> Text:
    return Text(
        "median, p90: size of the error, up or down (10 %: a factor of 1.1). bias: above 0 we predict too much.\n"
        "inside: measurements within the predicted 80 % interval.\n"
        f"{_taught(result)} Figures on held-out rows: docs/accuracy.md.",
        style="dim",
    )


def _taught(result: Validation) -> str:
    """Whether the model was fitted on these rows, as far as their table says."""
    taught = result.splits.get(TAUGHT, 0)
    others = sorted(name for name in result.splits if name != TAUGHT)
    if taught and others:
        alone = " or ".join(f"--split {name}" for name in others)
        return (
            f"Mixed: {plural(taught, 'row')} of split {TAUGHT} taught the model, the others did not "
            f"({alone} scores them alone)."
        )
    if taught:
        return f"These rows (split {TAUGHT}) taught the model: new ones are predicted less well."
    if others:
        return f"These rows (split {', '.join(others)}) did not teach the model."
    return "The file has no splits: it does not say whether any of its rows taught the model."


def _reasons(result: Validation) -> RenderableType:
    missing = result.rows - result.predicted
    return table(
        [">rows", f"not predicted ({missing:,} of {result.rows:,})"],
        [(f"{number:,}", reason) for reason, number in result.not_predicted.items()],
    )
