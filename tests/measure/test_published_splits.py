"""Which published rows judge: a hash of their group's names decides, and a mark in the table before it."""

import hashlib

import pytest
from benchmarks.reduce_published import TAUGHT, split

MODEL, GPU, ENGINE = TAUGHT
ROW = {"source_name": "", "model": f"{MODEL}-120B", "gpu": f"{GPU}-SXM", "engine": ENGINE}


def of_source(source: str, remainder: bool) -> dict[str, str]:
    """A row whose group's hash, divided by three, leaves a remainder or none."""
    rows = ({**ROW, "source_name": f"{source} {i}"} for i in range(99))
    return next(row for row in rows if (_hashed(row) % 3 != 0) == remainder)


def _hashed(row: dict[str, str]) -> int:
    names = "|".join(row[name] for name in ("source_name", "model", "gpu", "engine"))
    return int(hashlib.sha256(names.encode()).hexdigest(), 16)


def test_rows_that_taught_are_fitted_on_only_where_the_table_has_been_looked_at() -> None:
    assert split({**ROW, "split": "dev"}) == "calibrate"
    assert split({**ROW, "split": "judge"}) == "judge"
    assert split({**ROW, "model": "Llama-3.1-8B", "split": "dev"}) == "dev"


@pytest.mark.parametrize(("remainder", "expected"), [(False, "judge"), (True, "calibrate")])
def test_a_new_table_of_the_same_model_and_engine_is_split_by_its_hash(remainder: bool, expected: str) -> None:
    assert split(of_source("a later table", remainder)) == expected
