"""Render a description as HTML: for a notebook, and as a one-file report that opens offline.

The file holds its own style, its data and the chart library (from the installed vl-convert package); it makes no
network requests.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from tokonomics import __version__
from tokonomics.errors import Spell, flag, option, shorten, spelled
from tokonomics.files import check_path, write_text
from tokonomics.report.blocks import Bar, Block, Facts, File, Line, Section, Span, Table
from tokonomics.types import today

if TYPE_CHECKING:
    from tokonomics.report.answer import Answer

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b6876;--paper:#fff;--card:#f6f7f9;--line:#dfe3e8;--good:#187a3c;
--bad:#b3261e;--warn:#8a5a00;--mark:#2b62c4}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--soft:#9aa7b5;--paper:#12171d;--card:#1a212a;--line:#2b3541;
--good:#63c98a;--bad:#ff8a80;--warn:#e0b050;--mark:#7fb0ff}}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:78rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2.5rem 0 .5rem}
footer,.made{color:var(--soft)}pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;
overflow-x:auto;font:13px/1.45 ui-monospace,monospace}code{font:13px ui-monospace,monospace}
figure{margin:1rem 0;padding:1rem;background:#fff;border:1px solid var(--line);border-radius:8px;overflow-x:auto}
summary{cursor:pointer}
"""
_ANSWER = """
.tk table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}.tk .scroll{overflow-x:auto}
.tk th,.tk td{padding:2px 12px 2px 0;text-align:left;vertical-align:top}.tk thead th{border-bottom:1px solid #8886}
.tk .number{text-align:right;white-space:nowrap}.tk .whole{white-space:nowrap}
.tk caption{text-align:left;font-weight:600}
.tk p{margin:.35rem 0;white-space:pre-line;color:inherit}.tk p.headline{font-size:1.15em}
.tk .asked,.tk .note,.tk .soft{opacity:.7}
.tk .heading,.tk .strong,.tk .best,.tk .worst,.tk .alert,.tk tr.best{font-weight:600}
.tk .good,.tk .best{color:var(--good,#187a3c)}.tk .bad,.tk .worst{color:var(--bad,#b3261e)}
.tk .hint,.tk .next,.tk .warn,.tk .alert{color:var(--warn,#8a5a00)}.tk .mark{color:var(--mark,#2b62c4)}
.tk .bar{display:flex;height:14px;max-width:40rem}.tk .swatch{display:inline-block;width:.8em;height:.8em}
"""
_DRAW = (
    "for (const figure of document.querySelectorAll('figure')) {"
    "const spec = JSON.parse(document.getElementById(figure.dataset.spec).textContent);"
    "vegaEmbed(figure, spec, {actions: {export: true, source: false, compiled: false, editor: false}});}"
)
_COLOURS = {"grey": "#9aa7b5", "blue": "#4c78a8", "green": "#54a24b", "yellow": "#eeca3b", "red": "#e45756",
            "magenta": "#b279a2", "cyan": "#72b7b2"}  # fmt: skip


def described(sections: Iterable[Section], spell: Spell) -> str:
    """Return the description as one element with its own style."""
    return f"<style>{_ANSWER}</style><div class='tk'>{''.join(_section(section, spell) for section in sections)}</div>"


def _section(section: Section, spell: Spell) -> str:
    title = escape(spelled(section.title, spell))
    body = "".join(_block(block, spell) for block in section.blocks)
    if section.folded:
        return f"<details><summary>{title}</summary>{body}</details>"
    return f"<section>{f'<h2>{title}</h2>' if title else ''}{body}</section>"


def _block(block: Block, spell: Spell) -> str:
    match block:
        case Line():
            return f"<p class='{block.kind}'>{_text(block.spans, spell)}</p>"
        case Facts():
            rows = (
                f"<tr><td class='soft'>{escape(spelled(fact.name, spell))}</td><td class='number strong'>"
                f"{_text(fact.value, spell)}</td><td class='soft'>{escape(spelled(fact.note, spell))}</td></tr>"
                for fact in block.rows
            )
            return f"<table>{''.join(rows)}</table>"
        case Table():
            return _table(block, spell)
        case Bar():
            return _bar(block)
        case File():
            return f"<p><code>{escape(block.name)}</code></p><pre>{escape(block.text)}</pre>"
        case _:
            assert_never(block)


def _text(spans: Iterable[Span], spell: Spell) -> str:
    def shown(span: Span) -> str:
        text = escape(spelled(span.text, spell))
        return f"<span class='{span.mood}'>{text}</span>" if span.mood else text

    return "".join(shown(span) for span in spans)


def _table(table: Table, spell: Spell) -> str:
    kinds = [
        " class='number'" if column.number else " class='whole'" if column.whole else "" for column in table.columns
    ]
    heads = (
        f"<th{kind}>{escape(spelled(column.name, spell))}</th>"
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    body = (
        ("<tr class='best'>" if place == table.best else "<tr>")
        + "".join(f"<td{kind}>{_text(cell, spell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for place, row in enumerate(table.rows[: table.shown])
    )
    caption = f"<caption>{escape(spelled(table.title, spell))}</caption>" if table.title else ""
    return (
        f"<div class='scroll'><table>{caption}<thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _bar(bar: Bar) -> str:
    blocks = "".join(
        f"<span style='flex:{part.size:.6g};background:{_COLOURS.get(part.colour, part.colour)}'></span>"
        for part in bar.parts
    )
    legend = "   ".join(
        f"<span class='swatch' style='background:{_COLOURS.get(part.colour, part.colour)}'></span> "
        f"{escape(part.name)} {escape(part.label)}"
        for part in bar.parts
    )
    return f"<div class='bar'>{blocks}</div><p class='soft'>{legend}</p>"


def report_page(title: str, sections: Iterable[Section], charts: Mapping[str, Any], result: Any, command: str) -> str:
    """Return the whole file as text; ``charts`` are Vega-Lite specs by name."""
    figures, specs = [], []
    for place, (name, spec) in enumerate(charts.items()):
        figures.append(f'<h2>{escape(name)}</h2><figure data-spec="spec{place}"></figure>')
        inside = json.dumps(spec).replace("<", "\\u003c")  # so that no ``</script>`` in it ends the element
        specs.append(f'<script type="application/json" id="spec{place}">{inside}</script>')
    drawing = f"<script>{_library()}</script><script>{_DRAW}</script>" if charts else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p class='made'>Made on {today()} by tokonomics {__version__}:</p>"
        f"<pre><code>{escape(command)}</code></pre>"
        f"{described(sections, flag)}{''.join(figures)}"
        "<h2>Everything behind it</h2><details><summary>The result with its inputs and price dates, as JSON</summary>"
        f"<pre>{escape(json.dumps(result, indent=1, ensure_ascii=False))}</pre></details>"
        "<footer><p>Prices carry the date they were quoted on; speeds are modelled unless they say measured.</p>"
        "</footer>"
        f"{''.join(specs)}{drawing}</body></html>\n"
    )


@cache
def _library() -> str:
    """Return the chart library as one script; built once, as it takes seconds."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def check_html_path(path: Path) -> None:
    """Refuse a name that a report cannot be saved to, before any work is done."""
    check_path(path, "html", (".html", ".htm"))


def save_report(path: Path, answer: "Answer", command: str) -> None:
    """Write the report; complete or not at all."""
    charts = {name: draw().to_dict() for name, draw in answer.charts.items()}
    page = report_page(answer.title, answer.sections(), charts, answer.plain(), command)
    write_text(path, page, option("html", shorten(path.name)))
