"""Writes a run as JSON that ``import`` reads back the same: whole or not at all."""

from pathlib import Path

from tokonomics.errors import option, shorten
from tokonomics.files import check_path, write_text
from tokonomics.measure.benchmark_run import BenchmarkRun


def check_save_path(path: Path, field: str = "save") -> None:
    """Refuse a name or folder that cannot be written, before a server is loaded for nothing."""
    check_path(path, field, (".json",))


def save_run(run: BenchmarkRun, path: Path) -> None:
    check_save_path(path)
    write_text(path, run.model_dump_json(exclude_defaults=False) + "\n", option("save", shorten(path.name)))
