"""Draw charts as Altair specifications, saved as PNG, SVG or one-file HTML without a browser.

Each module here draws the charts of a verb. Altair takes half a second to import, so a module is imported when its
chart is drawn: ``charts.plan.plan_chart`` in a view imports nothing before it is called.
"""

import re
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
_XMLNS = "http://www.w3.org/2000/svg"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_PLACES = {"d", "transform", "x", "y", "x2", "y2", "width", "height"}
_NEEDLESS = {"opacity=1", "stroke-width=1", "transform=translate(0,0)", "x2=0", "y2=0", "font-family=sans-serif"}
_INHERITED = ("fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-size", "text-anchor")


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
            unfinished.write_text(smaller_svg(unfinished.read_text(encoding="utf-8")), encoding="utf-8")


def smaller_svg(drawn: str) -> str:
    """Return the same picture in our fonts and fewer bytes, places to 0.01 px; what a screen reader says stays."""
    from xml.etree import ElementTree

    picture = ElementTree.fromstring(drawn.replace(f' xmlns="{_XMLNS}"', "", 1))  # names without it are plain
    for element in reversed(list(picture.iter())):  # each after its parts
        for name, value in list(element.items()):
            if name in ("class", "pointer-events") or f"{name}={value}" in _NEEDLESS:
                del element.attrib[name]
            elif name in _PLACES:
                element.set(name, _NUMBER.sub(lambda number: f"{round(float(number[0]), 2):.7g}", value))
        for part in list(element):
            hidden = part.tag == "text" and part.get("opacity") == "0"
            empty = part.tag in ("g", "text") and not (len(part) or part.text)
            if hidden or empty or part.get("d") in ("", "M0,0h0v0h0Z"):
                element.remove(part)
        for name in _INHERITED if element.tag == "g" and len(element) > 1 else ():  # said once, for all parts
            values = {part.get(name, "") for part in element}
            if len(values) == 1 and "" not in values:
                element.set(name, *values)
                for part in element:
                    del part.attrib[name]
    picture.attrib |= {"xmlns": _XMLNS, "font-family": _FONTS}
    return ElementTree.tostring(picture, encoding="unicode")
