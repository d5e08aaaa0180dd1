"""A description as Markdown: for a pull request, a wiki or a chat."""

from collections.abc import Iterable
from typing import assert_never

from tokonomics.errors import Spell, flag, spelled
from tokonomics.report.blocks import Bar, Block, Facts, File, Line, Mood, Section, Span, Table

_STRONG: set[Mood] = {"strong", "best", "worst", "alert"}


def markdown(sections: Iterable[Section], spell: Spell = flag) -> str:
    """Paragraphs and tables; what is folded is left out."""
    parts = []
    for section in sections:
        if section.folded:
            continue
        parts += [f"**{spelled(section.title, spell)}**"] if section.title else []
        parts += [_block(block, spell) for block in section.blocks]
    return "\n\n".join(parts)


def _block(block: Block, spell: Spell) -> str:
    match block:
        case Line():
            return _text(block.spans, spell).replace("\n", "  \n")
        case Facts():
            rows = [[spelled(row.name, spell), _text(row.value, spell), spelled(row.note, spell)] for row in block.rows]
            return _table(["", "", ""], [False, True, False], rows)
        case Table():
            heads = [spelled(column.name, spell) for column in block.columns]
            cells = [[_text(cell, spell) for cell in row] for row in block.rows[: block.shown]]
            drawn = _table(heads, [column.number for column in block.columns], cells)
            return f"**{spelled(block.title, spell)}**\n\n{drawn}" if block.title else drawn
        case Bar():
            return ", ".join(f"{part.name} {part.label}" for part in block.parts)
        case File():
            return f"`{block.name}`\n\n```\n{block.text}\n```"
        case _:
            assert_never(block)


def _text(spans: Iterable[Span], spell: Spell) -> str:
    return "".join(
        f"**{spelled(span.text, spell)}**" if span.mood in _STRONG and span.text.strip() else spelled(span.text, spell)
        for span in spans
    )


def _table(heads: list[str], numbers: list[bool], rows: list[list[str]]) -> str:
    lines = [heads, ["--:" if number else ":--" for number in numbers], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
