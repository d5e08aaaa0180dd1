"""Views as plain text: what the terminal would show, for a report, a page or a notebook; and text that is code.

The lines of a file are printed as they are: a terminal that is narrower wraps them itself, and copies them whole.
"""

import io

from rich.console import Console, RenderableType
from rich.text import Text

COLUMNS = 140
"""Where there is no terminal: tables in files and pipes keep their shape."""


def as_text(view: object) -> str:
    """What a terminal of 140 columns shows, without its colours."""
    out = io.StringIO()
    Console(file=out, width=COLUMNS, highlight=False, no_color=True).print(view, crop=False)
    return out.getvalue().rstrip()


def file_view(name: str, text: str) -> RenderableType:
    """A file below its name: no line is broken, and brackets are no markup."""
    return Text(f"\n# {name}\n{text}", no_wrap=True, overflow="ignore")
