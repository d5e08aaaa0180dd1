"""How every verb prints: a view for people, or the same result as JSON with ``--json``."""

import json
import os
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

_LEAST_WIDTH = 118
"""A narrower terminal wraps long lines itself: a table that fits it would have to cut names and numbers."""


def console(stderr: bool = False) -> Any:
    """A rich console that keeps tables whole in a pipe; colours follow NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    from tokonomics.report.text import COLUMNS

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        return Console(stderr=stderr, highlight=False, width=COLUMNS)
    if made.width < _LEAST_WIDTH:
        return Console(stderr=stderr, highlight=False, width=_LEAST_WIDTH)
    return made


def show(view: object) -> None:
    """Print a rich renderable."""
    console().print(view, crop=False)


def show_json(result: object) -> None:
    """Print a noun, or plain data, as one JSON document."""
    from pydantic import BaseModel

    plain = result.model_dump(mode="json") if isinstance(result, BaseModel) else result
    typer.echo(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
