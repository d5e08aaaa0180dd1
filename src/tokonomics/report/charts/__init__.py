"""Draw charts as Altair specifications, saved as PNG, SVG or one-file HTML without a browser.

Each module here draws the charts of a verb. Altair takes half a second to import, so a module is imported when its
chart is drawn: ``charts.plan.plan_chart`` in a view imports nothing before it is called.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path, whole

if TYPE_CHECKING:
    from types import ModuleType

    import altair as alt

_FORMATS = (".svg", ".png", ".html", ".json")
_HOW_TO_SAVE: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
_FONTS = "Arial, Helvetica, Liberation Sans, DejaVu Sans Condensed, sans-serif"
"""vl-convert reserves room for text as wide as Arial's; with these fonts no label is cut at an edge. DejaVu Sans,
which browsers on Linux use for sans-serif, is about a tenth wider (Chromium's own measure of a label: 141 px against
127)."""


def __getattr__(name: str) -> "ModuleType":
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def check_chart_path(path: Path) -> None:
    """Refuse a file name or folder that a chart cannot be saved to, before any work is done."""
    if path.suffix.lower() not in _FORMATS:
        what = f"cannot save a chart as '{shorten(path.suffix or path.name)}'"
        raise BadInput(what, field="chart", fix=f"Name the file with one of: {', '.join(_FORMATS)}.")
    check_path(path, "chart", _FORMATS)


def save_chart(chart: "alt.TopLevelMixin", path: Path) -> None:
    """Write the chart in the format of its file name; complete or not at all."""
    check_chart_path(path)
    suffix = path.suffix.lower()
    with whole(path, option("chart", shorten(path.name))) as unfinished:
        chart.save(unfinished, **_HOW_TO_SAVE.get(suffix, {}))
        if suffix == ".svg":
            drawn = unfinished.read_text(encoding="utf-8")
            unfinished.write_text(
                drawn.replace('font-family="sans-serif"', f'font-family="{_FONTS}"'), encoding="utf-8"
            )
