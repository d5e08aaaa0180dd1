"""A run as ``tokonomics bench --save`` writes it, and read back the same."""

from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path, write_text
from tokonomics.measure.benchmark_run import SCHEMA_VERSION, BenchmarkRun

NAME = "tokonomics bench"


def matches(document: Any) -> bool:
    """Whether it is a saved run, or the result of ``bench --json`` or ``import --json``, which hold one."""
    inner = document.get("run", document) if isinstance(document, dict) else None
    return isinstance(inner, dict) and {"schema_version", "tool", "points"} <= inner.keys()


def read(documents: list[Any], where: str) -> BenchmarkRun:
    inner = documents[0].get("run", documents[0])
    if inner["schema_version"] != SCHEMA_VERSION:
        said = f"saved with schema version {str(inner['schema_version'])[:20]}; this program reads {SCHEMA_VERSION}"
        raise BadInput(said, where=where, fix="Read it with the version of tokonomics that wrote it.")
    return BenchmarkRun.model_validate(inner)


def save_run(run: BenchmarkRun, path: Path) -> None:
    """Write the whole file or nothing."""
    check_path(path, "save", (".json",))
    write_text(path, run.model_dump_json() + "\n", option("save", shorten(path.name)))
