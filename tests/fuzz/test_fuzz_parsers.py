"""No bytes at all make a parser fail: each gives a sane value or refuses in one message, in little time and memory.

In the suite 50 spoilt files for each parser (5 for the one that fits curves), always the same; ``make explore`` tries
more, new ones in every run, as does ``FUZZ_CASES=20000 python -m pytest tests/fuzz`` with that many. Coverage-guided
fuzzing of the same parsers: benchmarks/fuzz_atheris.py. Inputs that ever broke one lie in ``corpus`` and are read again
in every run.
"""

import gzip
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.explore import EXPLORE, times
from tests.fuzz.guard import judged
from tests.fuzz.mutations import spoilt
from tests.fuzz.parsers import PARSERS, Parser

CORPUS = Path(__file__).parent / "corpus"
CASES = int(os.environ.get("FUZZ_CASES", times(15)))
IS_LONG = "FUZZ_CASES" in os.environ

Judge = Callable[[Parser, bytes], str]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def outcome(parser: Parser, data: bytes) -> str:
        path = tmp_path / parser.file
        path.write_bytes(data)
        return judged(parser.read, path, names_file=parser.names_file)

    return outcome


@pytest.mark.parametrize("name", PARSERS)
def test_valid_files_are_read(name: str, judge: Judge) -> None:
    parser = PARSERS[name]
    assert [judge(parser, seed) for seed in parser.seeds()] == ["value"] * len(parser.seeds())


@pytest.mark.slow
@pytest.mark.law
@pytest.mark.parametrize("name", PARSERS)
def test_a_spoilt_file_is_read_or_refused(name: str, judge: Judge, request: pytest.FixtureRequest) -> None:
    parser = PARSERS[name]
    seeds, seen = parser.seeds(), Counter[str]()

    @given(place=st.integers(0, len(seeds) - 1), chance=st.randoms())
    @settings(
        max_examples=max(1, CASES // 10) if parser.slow else CASES,
        deadline=None,
        derandomize=not (IS_LONG or EXPLORE),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(place: int, chance: Random) -> None:
        seen[judge(parser, spoilt(seeds[place], chance))] += 1

    holds()
    assert seen["refused"], "no edit was refused: the edits do not reach this parser"
    if IS_LONG:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n{name}: {seen.total():,} cases, {dict(seen)}\n")


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*/*")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_broke_a_parser_before_does_not_now(file: Path, judge: Judge) -> None:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".packed" else file.read_bytes()
    assert judge(PARSERS[file.parent.name], data) in ("value", "refused")


def test_every_folder_of_the_corpus_is_of_a_parser_and_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= PARSERS.keys()
    assert sum(file.stat().st_size for file in CORPUS.glob("*/*")) < 200_000
