"""How well predictions did, as tables."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.validate import Summary, Validation
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
    body: list[RenderableType] = [table(columns, rows), "", _note()]
    if result.ranking.spearman is not None:
        among = plural(result.ranking.groups, "group")
        body.append(Text(f"GPU ranking: Spearman {result.ranking.spearman:.2f} over {among} alike but for the GPUs."))
    if result.not_predicted:
        body += ["", _reasons(result)]
    return Group(*body)


def figures(group: Summary) -> tuple[str, str, str, str, str]:
    """n, median and p90 error, bias, coverage; an error of x is a factor of 1 + x, up or down."""
    return (
        f"{group.n:,}",
        percent(math.expm1(group.median_abs_log_error)),
        percent(math.expm1(group.p90_abs_log_error)),
        f"{math.expm1(group.bias) * 100:+.1f} %",
        percent(group.inside_interval),
    )


def _note() -> Text:
    return Text(
        "median, p90: size of the error, up or down (10 %: a factor of 1.1). bias: above 0 we predict too much.\n"
        "inside: measurements within the predicted 80 % interval.",
        style="dim",
    )


def _reasons(result: Validation) -> RenderableType:
    missing = result.rows - result.predicted
    return table(
        [">rows", f"not predicted ({missing:,} of {result.rows:,})"],
        [(f"{number:,}", reason) for reason, number in result.not_predicted.items()],
    )
