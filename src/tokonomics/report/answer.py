"""The description of a result for people: a title, a view, charts; every door shows the same one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

    from tokonomics.questions.result import Result


@dataclass(frozen=True)
class Answer:
    """One result and its pictures; what is expensive to draw is drawn when it is looked at."""

    result: "Result"
    view: Callable[[], object]
    """For a terminal, to be printed by rich."""
    title: str
    charts: "Mapping[str, Callable[[], alt.TopLevelMixin]]" = field(default_factory=dict)
    """By name, in the order in which they are read."""

    def plain(self) -> Any:
        """The result as JSON has it."""
        return self.result.plain()

    @property
    def exit_code(self) -> int:
        """1 where nothing was found that does what was asked."""
        return 0 if self.result.is_found else 1

    def chart(self, name: str = "") -> "alt.TopLevelMixin":
        """One of the charts, or all of them below each other."""
        if name or len(self.charts) == 1:
            return self.charts[name or next(iter(self.charts))]()
        from tokonomics.report.charts import stacked

        return stacked([draw() for draw in self.charts.values()])

    def text(self) -> str:
        """What a terminal of 140 columns shows."""
        from tokonomics.report.text import as_text

        return as_text(self.view())


def below_each_other(views: Sequence[Any]) -> Any:
    """Several views as one."""
    from rich.console import Group

    return Group(*views)
