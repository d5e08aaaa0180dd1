"""What is answered without a verb: the list of verbs, the version, and what Tab offers.

It is known beforehand: ``words.json``, which ``docs/completion_words.py`` writes from the verbs. Typer and Rich, which
would build and draw it, take several times as long to load as all of this. What depends on colours that were asked for,
narrow terminals or other shells is left to them.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokonomics import __version__
from tokonomics.cli import completion

_LEFT_TO_TYPER = (
    "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
    "TERMINAL_WIDTH", "JUPYTER_COLUMNS", "TYPER_USE_RICH",
)  # fmt: skip
"""What says how help is drawn."""
_LEAST_WIDTH = 80
"""In narrower terminals Rich cuts the names of options."""
_WIDTH = 80
"""Where there is no terminal, as Rich has it."""
BOLD, CYAN, YELLOW, GREEN, DIM = "1", "1;36", "1;33", "1;32", "2"


def answered(words: Sequence[str]) -> bool:
    """Whether that was all: the answer is printed."""
    if sys.stdout is None:  # closed before the start
        return False
    try:
        if completion.VARIABLE in os.environ:
            return completion.answered()
        if list(words) == ["--version"]:
            _print(f"tokonomics {__version__}\n")
            return True
        if list(words) in ([], ["-h"], ["--help"]) and _draws():
            _print(overview(_columns(), coloured=sys.stdout.isatty() and not plain()))
            if not words:
                sys.exit(2)  # as Typer does where a verb is missing
            return True
    except OSError:  # told by whoever tries next
        return False
    return False


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def plain() -> bool:
    """Whether nothing but text is wanted: no colours, which leaves out bold as well, or a terminal without them."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def _draws() -> bool:
    """Whether the list looks here as everywhere."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    told = any(name in os.environ for name in _LEFT_TO_TYPER)
    return encoding.startswith("utf") and os.name == "posix" and not told and _columns() >= _LEAST_WIDTH


def _columns() -> int:
    """Of the terminal, as Rich finds it."""
    if (said := os.environ.get("COLUMNS", "")).isdigit():
        return int(said)
    for stream in (0, 1, 2):
        try:
            return os.get_terminal_size(stream).columns or _WIDTH
        except OSError:
            continue
    return _WIDTH


def overview(width: int, *, coloured: bool = False) -> str:
    """The verbs by group with a sentence each, as ``tokonomics --help`` has them."""
    known = completion.words()

    def styled(text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if coloured and text.strip() else text

    usage = styled("Usage: ", YELLOW) + styled("tokonomics [OPTIONS] COMMAND [ARGS]...", BOLD)
    blank = " " * width
    lines = [blank, f" {usage}{' ' * (width - 46)}", blank, *_paragraph(known["summary"], width), blank]
    lines += _panel("Options", _options(known["options"], width, styled), width, styled)
    longest = max(map(len, known["commands"]))
    for group in known["groups"]:
        verbs = {name: verb["summary"] for name, verb in known["commands"].items() if verb["group"] == group}
        rows: list[str] = []
        for name, summary in verbs.items():
            first = [f" {styled(name, CYAN)}{' ' * (longest - len(name))}", " " * (longest + 1)]
            for place, line in enumerate(_wrapped(summary, width - longest - 6)):
                rows.append(f"{first[place > 0]}  {line:{width - longest - 6}} ")
        lines += _panel(group, rows, width, styled)
    lines += [blank, *_paragraph(known["epilog"], width), blank, ""]
    return "\n".join(lines) + "\n"


def _options(options: Iterable[dict[str, Any]], width: int, styled: Any) -> Iterator[str]:
    """A row for each: its long name, its short one, what it takes and what it does."""
    listed = [(option["flags"], option["help"]) for option in options]
    longest = max(len(flags[0]) for flags, _ in listed)
    before = longest + 17
    for (long, *short), help in listed:
        brief = short[0] if short else ""
        kind = f"{styled('<bool>', YELLOW)}"
        first = f" {styled(long, CYAN)}{' ' * (longest - len(long))}  {styled(brief, GREEN)}{' ' * (2 - len(brief))}"
        first += f"      {kind}"
        for place, line in enumerate(_wrapped(help, width - before - 5)):
            yield f"{' ' * before if place else first}  {line:{width - before - 5}} "


def _panel(title: str, rows: Iterable[str], width: int, styled: Any) -> list[str]:
    top = styled(f"╭─ {title} {'─' * (width - len(title) - 5)}╮", DIM)
    return [top, *(f"{styled('│', DIM)}{row}{styled('│', DIM)}" for row in rows), styled(f"╰{'─' * (width - 2)}╯", DIM)]


def _paragraph(text: str, width: int) -> list[str]:
    return [f" {line:{width - 2}} " for line in _wrapped(text, width - 2)]


def _wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most that width; spaces within a line stay."""
    lines: list[str] = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if len(longer) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
