"""What an uploaded file is, and an answer as a page to forward; both run inside a worker."""

from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.web.answering import Told

MOST_ROWS = 2_000_000
"""Rows of a log: a week of ten requests for each three seconds; a simulation of so many takes seconds."""


def look(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Which of the files we know this one is, by trying: a model's config.json, a benchmark's results, a log."""
    path = Path(request["path"])
    for kind, attempt in (("config", _config), ("benchmark", _benchmark), ("trace", _trace)):
        try:
            return {"kind": kind, **attempt(path)}
        except TooLarge:
            raise
        except TokonomicsError as problem:
            why = problem
    return {"kind": "unknown", "why": why.what, "fix": why.fix}


class TooLarge(BadInput):
    """More rows than the page takes."""


def _config(path: Path) -> dict[str, Any]:
    from tokonomics.catalog.config_json import read_config

    if path.suffix != ".json":
        raise BadInput("is no config.json")
    model = read_config(path)
    return {"model": model.name}


def _benchmark(path: Path) -> dict[str, Any]:
    from tokonomics.measure.importers.recognise import read_runs

    run = read_runs([path])
    return {"tool": run.tool, "model": run.model}


def _trace(path: Path) -> dict[str, Any]:
    from tokonomics.traffic.readers import open_trace

    if path.suffix == ".parquet":
        _check_rows(path)
    file = open_trace(path)
    return {"format": file.format}


def _check_rows(path: Path) -> None:
    """A small parquet file can unfold into billions of rows; its footer says how many."""
    import polars as pl

    try:
        rows = pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise BadInput("is no parquet file") from error
    if rows > MOST_ROWS:
        raise TooLarge(f"has {rows:,} rows; the page takes {MOST_ROWS:,}", fix="Use the command line for larger logs.")


class _Drawn:
    """A chart whose spec is already made."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec

    def to_dict(self) -> dict[str, Any]:
        return self._spec


def report(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """The one-file page of an answer that was already given."""
    from rich.text import Text

    from tokonomics.report.html_report import report_page

    made = request["answer"]
    charts: Any = {chart["name"]: _Drawn(chart["spec"]) for chart in made["charts"]}
    return {"html": report_page(made["title"], Text(made["text"]), charts, made["result"], made["command"])}
