"""Fingerprints of a real vLLM 0.26 on an H200: equal builds raise no alarm, and each change is named with its size."""

import gzip
import json
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from tokonomics.operate.fingerprint import Fingerprint, ProbeKind
from tokonomics.operate.guard import BuildChange, compare

RECORD = Path(__file__).parents[2] / "benchmarks" / "data" / "vllm_h200_guard.json.gz"
BASES = [f"base-{number}" for number in range(1, 6)]


@cache
def marks() -> dict[str, Fingerprint]:
    record = json.loads(gzip.decompress(RECORD.read_bytes()))
    return {name: Fingerprint.model_validate(mark) for name, mark in record["marks"].items()}


def changed(build: str, base: str = "base-1") -> BuildChange:
    return compare(marks()[base], marks()[f"{build}-1"])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("build", "causes"), [("eager", ["graphs"]), ("graphs-64", ["graphs"]), ("no-prefix-cache", ["cache"])]
)
def test_beside_a_fingerprint_of_any_other_time_the_same_cause_is_named_and_no_other(
    base: str, build: str, causes: list[str]
) -> None:
    change = changed(build, base)
    assert change.verdict == "slower"
    assert [found.term for found in change.terms] == causes


@pytest.mark.parametrize(("old", "new"), [*permutations(BASES, 2)])
def test_equal_builds_raise_no_alarm(old: str, new: str) -> None:
    change = compare(marks()[old], marks()[new])
    assert (change.verdict, change.lost, change.deciding) == ("same", (), ())


def test_eager_mode_is_named_with_the_time_of_its_steps() -> None:
    change = changed("eager")
    decoding = [each.median_s for each in marks()["eager-1"].probes if each.probe.kind is ProbeKind.decode]
    assert change.verdict == "slower"
    found = change.terms[0]
    assert (found.term, found.above_tokens) == ("graphs", 0)
    assert found.size == pytest.approx(float(np.median(decoding)), rel=0.05)


def test_graphs_captured_to_64_tokens_are_named_though_no_probe_alone_tells() -> None:
    change = changed("graphs-64")
    assert change.verdict == "slower"
    assert {each.side(change.tolerance) for each in change.probes} == {None}
    assert [(found.term, found.above_tokens) for found in change.terms] == [("graphs", 64)]
    assert all("to 512 tokens" in row.what for row in change.deciding)


def test_a_prefix_cache_that_is_off_is_named() -> None:
    change = changed("no-prefix-cache")
    assert change.verdict == "slower"
    assert [found.term for found in change.terms] == ["cache"]
    assert "prefix caching" in [row.name for row in change.lost] or change.terms[0].low > 0.4


def test_another_precision_of_the_cache_is_told_and_no_alarm() -> None:
    change = changed("kv-fp8")
    assert ("KV precision", "auto", "fp8") in [(row.name, row.before, row.after) for row in change.told]
    assert not change.is_worse
