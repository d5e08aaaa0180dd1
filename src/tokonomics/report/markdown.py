"""Render a description as Markdown: for a pull request, a wiki or a chat."""

import re
from collections.abc import Iterable
from typing import assert_never

from tokonomics.errors import Spell, flag, spelled
from tokonomics.report.blocks import Bar, Block, Facts, File, Line, Mood, Section, Span, Table

_STRONG: set[Mood] = {"strong", "best", "worst", "alert"}
_MARKUP = re.compile(r"[\\*_<\[\]]")


def markdown(sections: Iterable[Section], spell: Spell = flag) -> str:
    """Return paragraphs and tables; leave out folded sections, unless they are printed."""
    parts = []
    for section in sections:
        if section.folded and not section.printed:
            continue
        parts += [f"**{_plain(section.title, spell)}**"] if section.title else []
        parts += [_block(block, spell) for block in section.blocks]
    return "\n\n".join(parts)


def _block(block: Block, spell: Spell) -> str:
    match block:
        case Line():
            return "  \n".join(_begun(row) for row in _text(block.spans, spell).split("\n"))
        case Facts():
            rows = [[_plain(row.name, spell), _text(row.value, spell), _plain(row.note, spell)] for row in block.rows]
            return _table(["", "", ""], [False, True, False], rows)
        case Table():
            heads = [_plain(column.name, spell) for column in block.columns]
            cells = [[_text(cell, spell) for cell in row] for row in block.rows[: block.shown]]
            drawn = _table(heads, [column.number for column in block.columns], cells)
            return f"**{_plain(block.title, spell)}**\n\n{drawn}" if block.title else drawn
        case Bar():
            return ", ".join(f"{_plain(part.name, spell)} {_plain(part.label, spell)}" for part in block.parts)
        case File():
            return f"`{block.name}`\n\n```\n{block.text}\n```"
        case _:
            assert_never(block)


def _text(spans: Iterable[Span], spell: Spell) -> str:
    """Put strong spans between stars, which must touch the text, so spaces stay outside."""
    parts = []
    for span in spans:
        text = _plain(span.text, spell)
        strong = f"**{text.strip()}**" if span.mood in _STRONG and text.strip() else text.strip()
        parts.append(text.replace(text.strip(), strong, 1) if text.strip() else text)
    return "".join(parts)


def _plain(text: str, spell: Spell) -> str:
    """Escape stars, underscores and tags, so that a name contains no markup. Commands keep their backticks."""
    return "".join(
        piece if place % 2 else _MARKUP.sub(r"\\\g<0>", piece)
        for place, piece in enumerate(re.split(r"(`[^`\n]*`)", spelled(text, spell)))
    )


def _begun(line: str) -> str:
    """Escape the first character if it would start a list, quote or heading."""
    return re.sub(r"^(\s*)([-+#>])", r"\1\\\2", line)


def _table(heads: list[str], numbers: list[bool], rows: list[list[str]]) -> str:
    lines = [heads, ["--:" if number else ":--" for number in numbers], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
