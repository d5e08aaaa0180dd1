"""Machine code on disk: found again by the next run, never taken for that of other sources, and not needed."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import pytest

from tokonomics import machine_code
from tokonomics.serving import compiled

Call = Callable[..., subprocess.CompletedProcess[str]]

SIMULATE = ("simulate", "--model=llama-3.1-8b", "--gpu=H100", "--arrivals=poisson:5", "--requests=50")
LENGTHS = ("--input=100", "--output=9", "--json")
TWICE = """
from tokonomics.serving.compiled import code_folder, entry

@entry
def twice(number):
    return 2 * number

print(twice(21), code_folder())
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the simulator's sources that a test may change, and a cache of its own."""
    copy = tmp_path / "serving"
    shutil.copytree(Path(compiled.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "__file__", str(copy / "compiled.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copy


def folder() -> Path | None:
    """Asked anew: the answer is remembered for the life of a process."""
    return compiled.code_folder.__wrapped__()


def test_equal_sources_share_a_folder(sources: Path, tmp_path: Path) -> None:
    made = folder()
    assert made is not None
    assert made == folder()
    assert made.is_dir()
    assert made.parent == tmp_path / "cache" / "tokonomics"


def test_a_change_in_any_source_is_another_folder(sources: Path) -> None:
    seen = {folder()}
    files = sorted(sources.glob("*.py"))
    assert len(files) > 10
    for file in files:
        file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
        seen.add(folder())
    assert len(seen) == 1 + len(files)
    assert None not in seen


@pytest.mark.parametrize("library", ["numba", "llvmlite", "np"])
def test_another_compiler_is_another_folder(sources: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    before = folder()
    monkeypatch.setattr(getattr(machine_code, library), "__version__", "0.0.1")
    assert folder() != before


def test_without_a_named_cache_it_is_the_one_at_home(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    made = folder()
    assert made is not None
    assert made.parent == tmp_path / "me" / ".cache" / "tokonomics"


def test_where_there_is_no_home_there_is_no_cache_and_no_failure(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container's user without an entry in its passwd file."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert folder() is None


def test_where_nothing_can_be_written_there_is_no_folder(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "a-file"
    taken.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(taken))
    assert folder() is None


def test_code_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, encoding="utf-8", check=True, timeout=600)
    assert done.stdout.split()[:2] == ["42", "None"]


def test_the_next_process_finds_what_the_first_one_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, cache = tmp_path / "twice.py", tmp_path / "cache"
    script.write_text(TWICE, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def kept() -> dict[Path, int]:
        subprocess.run([sys.executable, script], check=True, timeout=600, capture_output=True)
        return {file: file.stat().st_mtime_ns for file in cache.rglob("*.nb*")}

    first = kept()
    assert {file.suffix for file in first} == {".nbi", ".nbc"}
    assert kept() == first


def test_code_that_is_damaged_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, cache = tmp_path / "twice.py", tmp_path / "cache"
    script.write_text(
        f"{TWICE}\nfrom tokonomics.serving.compiled import must_compile\nprint(must_compile())\n", "utf-8"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def said() -> list[str]:
        done = subprocess.run([sys.executable, script], check=True, timeout=600, capture_output=True, encoding="utf-8")
        return [done.stdout.split()[place] for place in (0, -1)]

    assert said() == ["42", "False"]
    for spoil in (
        lambda data: b"",
        lambda data: data[:-7],
        lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:],
    ):
        files = sorted(cache.rglob("*.nb*"))
        assert {file.suffix for file in files} == {".nbi", ".nbc"}
        for file in files:
            file.write_bytes(spoil(file.read_bytes()))
        assert said() == ["42", "False"]


def doubled(number: int) -> int:
    return 2 * number


def test_where_code_cannot_be_kept_it_runs_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine_code._CheckedFile, "_write", full)
    assert machine_code.kept(doubled, tmp_path)(21) == 42
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_damaged_folder_is_not_whole_and_is_cleared(tmp_path: Path) -> None:
    assert not machine_code.is_whole(tmp_path)
    assert machine_code.kept(doubled, tmp_path)(7) == 14
    assert machine_code.is_whole(tmp_path)
    index = next(tmp_path.glob("*.nbi"))
    index.write_bytes(index.read_bytes()[:-1])
    assert not machine_code.is_whole(tmp_path)
    assert not index.exists()


def test_numbas_own_setting_is_left_as_it_was() -> None:
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    importlib.import_module("tokonomics.serving.loop")
    assert before == numba.config.CACHE_DIR == os.environ.get("NUMBA_CACHE_DIR", "")  # type: ignore[attr-defined]


def test_code_of_sources_that_nobody_runs_any_more_is_removed(sources: Path, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "tokonomics"
    old, recent, other = home / "compiled-old", home / "compiled-recent", home / "prices"
    for each in (old, recent, other):
        each.mkdir(parents=True)
    a_year_ago = time.time() - 365 * 86_400
    for each in (old, other):
        os.utime(each, (a_year_ago, a_year_ago))
    made = folder()
    assert set(home.iterdir()) == {made, recent, other}


def test_code_that_is_run_stays_however_long_ago_it_was_made(sources: Path) -> None:
    running = folder()
    assert running is not None
    a_year_ago = time.time() - 365 * 86_400
    os.utime(running, (a_year_ago, a_year_ago))
    assert folder() == running
    changed = next(iter(sources.glob("*.py")))
    changed.write_text(changed.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert folder() != running
    assert running.is_dir()


@pytest.mark.slow
@pytest.mark.explore
def test_simulate_without_a_cache_says_that_it_compiles_and_answers_the_same(tokonomics_process: Call) -> None:
    with_cache, without = (
        tokonomics_process(*SIMULATE, *LENGTHS, env=env) for env in ({}, {"XDG_CACHE_HOME": "/proc/nowhere"})
    )
    assert without.returncode == 0
    assert without.stderr.startswith("compiling the simulator")
    assert with_cache.stderr == ""
    first, second = (json.loads(done.stdout) for done in (with_cache, without))
    clocks = ("wall_s", "simulated_requests_per_s")
    assert {key: first[key] for key in first if key not in clocks} == {
        key: second[key] for key in second if key not in clocks
    }
