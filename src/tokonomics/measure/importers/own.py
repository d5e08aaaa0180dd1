"""What ``tokonomics bench --save`` writes, read back as it was."""

from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import SCHEMA_VERSION, BenchmarkRun

NAME = "tokonomics bench"


def matches(document: Any) -> bool:
    """A saved run, or the result of ``bench --json`` and ``import --json``, which hold one."""
    inner = document.get("run", document) if isinstance(document, dict) else None
    return isinstance(inner, dict) and {"schema_version", "tool", "points"} <= inner.keys()


def read(documents: list[Any], where: str) -> BenchmarkRun:
    inner = documents[0].get("run", documents[0])
    if inner["schema_version"] != SCHEMA_VERSION:
        raise BadInput(
            f"saved with schema version {str(inner['schema_version'])[:20]}; this program reads {SCHEMA_VERSION}",
            where=where,
            fix="Read it with the version of tokonomics that wrote it.",
        )
    return BenchmarkRun.model_validate(inner)
