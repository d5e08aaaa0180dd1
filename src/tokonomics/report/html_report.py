"""A report in one file: what was asked and found, with charts that answer to the mouse; opens offline, anywhere.

The file holds its own style, its data and the chart library (from the installed vl-convert package); it asks for
nothing over the network.
"""

import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics import __version__
from tokonomics.clock import today
from tokonomics.errors import option, shorten
from tokonomics.files import check_path, write_text
from tokonomics.report.text import as_text

if TYPE_CHECKING:
    import altair as alt

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b6876;--paper:#fff;--card:#f6f7f9;--line:#dfe3e8}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--soft:#9aa7b5;--paper:#12171d;--card:#1a212a;--line:#2b3541}}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:78rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2.5rem 0 .5rem}
p,footer{color:var(--soft)}pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;
overflow-x:auto;font:13px/1.45 ui-monospace,monospace}code{font:13px ui-monospace,monospace}
figure{margin:1rem 0;padding:1rem;background:#fff;border:1px solid var(--line);border-radius:8px;overflow-x:auto}
summary{cursor:pointer}
"""
_DRAW = (
    "for (const figure of document.querySelectorAll('figure')) {"
    "const spec = JSON.parse(document.getElementById(figure.dataset.spec).textContent);"
    "vegaEmbed(figure, spec, {actions: {export: true, source: false, compiled: false, editor: false}});}"
)


def report_page(title: str, view: object, charts: "Mapping[str, alt.TopLevelMixin]", result: Any, command: str) -> str:
    """The whole file as text."""
    figures, specs = [], []
    for place, (name, chart) in enumerate(charts.items()):
        figures.append(f'<h2>{html.escape(name)}</h2><figure data-spec="spec{place}"></figure>')
        specs.append(f'<script type="application/json" id="spec{place}">{_inside_script(chart.to_dict())}</script>')
    drawing = ""
    if charts:
        drawing = f"<script>{_library()}</script><script>{_DRAW}</script>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p>Made on {today()} by tokonomics {__version__}:</p>"
        f"<pre><code>{html.escape(command)}</code></pre>"
        f"<pre>{html.escape(as_text(view))}</pre>"
        f"{''.join(figures)}"
        "<h2>Everything behind it</h2><details><summary>The result with its inputs and price dates, as JSON</summary>"
        f"<pre>{html.escape(json.dumps(result, indent=1, ensure_ascii=False))}</pre></details>"
        "<footer><p>Prices carry the date they were quoted on; speeds are modelled unless they say measured.</p>"
        "</footer>"
        f"{''.join(specs)}{drawing}</body></html>\n"
    )


@cache
def _library() -> str:
    """The chart library as one script; made once, for it takes seconds."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def check_html_path(path: Path) -> None:
    """Refuse a name that a report cannot be saved to, before any work is done."""
    check_path(path, "html", (".html", ".htm"))


def save_report(
    path: Path, title: str, view: object, charts: "Mapping[str, alt.TopLevelMixin]", result: Any, command: str
) -> None:
    """Write the report; whole or not at all."""
    write_text(path, report_page(title, view, charts, result, command), option("html", shorten(path.name)))


def _inside_script(value: Any) -> str:
    """JSON that no ``</script>`` inside it can end."""
    return json.dumps(value).replace("<", "\\u003c")
