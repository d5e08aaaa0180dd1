"""Machine code on disk: found again by the next run, never taken for that of other sources, and not needed."""

import copy
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests.deployed import on
from tests.there import there

from tokonomics import machine_code
from tokonomics.machine_code import Compiled, Unit, read_code
from tokonomics.physics.steptime import step_model
from tokonomics.serving import compiled, loop
from tokonomics.serving.compiled import SIMULATOR
from tokonomics.serving.step_table import compile_steps, run_s
from tokonomics.traffic.prefix_reuse import REUSE

SIMULATE = ("simulate", "--model=llama-3.1-8b", "--gpu=H100", "--arrivals=poisson:5", "--requests=50")
LENGTHS = ("--input=100", "--output=9", "--json")
TWICE = """
from pathlib import Path
from tokonomics.machine_code import Unit

unit = Unit("twice", [Path(__file__)], lambda: {"twice": (1,)})

@unit.entry
def twice(number: int) -> int:
    return 2 * number

if not unit.shipped.exists():
    unit.shipped.write_bytes(unit.lowered().pack())
print(unit.must_compile, twice(21), unit.must_compile, unit.folder)
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the simulator's sources that a test may change, and a cache of its own."""
    copy = tmp_path / "serving"
    shutil.copytree(Path(compiled.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copy


def folder(sources: Path) -> Path | None:
    """Asked anew: the answer is remembered for the life of a process."""
    return Unit("compiled", [sources / source.name for source in SIMULATOR.sources], dict).folder


def test_a_folder_is_of_its_sources_and_compiler(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = there(folder(sources))
    assert made == folder(sources)
    assert made.is_dir()
    assert made.parent == tmp_path / "cache" / "tokonomics"
    seen = {made}
    files = [sources / source.name for source in SIMULATOR.sources]
    for file in files:
        file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
        seen.add(there(folder(sources)))
    monkeypatch.setattr("llvmlite.__version__", "0.0.1")
    seen.add(there(folder(sources)))
    assert len(seen) == 1 + len(files) + 1


def test_every_compiled_function_is_in_a_source_that_names_the_folder() -> None:
    modules = [import_module(f"tokonomics.serving.{file.stem}") for file in Path(loop.__file__).parent.glob("*.py")]
    found = [thing for module in modules for thing in vars(module).values() if isinstance(thing, Compiled)]
    assert len(found) > 50
    assert {Path(thing.function.__code__.co_filename) for thing in found} <= set(SIMULATOR.sources)


@pytest.mark.parametrize("unit", [SIMULATOR, REUSE])
def test_what_is_shipped_is_made_from_todays_sources(unit: Unit) -> None:
    shipped = read_code(unit.shipped)
    assert shipped is not None, "run `make code`"
    assert shipped.layouts.keys() == unit.entries.keys()
    assert list(unit.shipped.parent.glob(f"{unit.name}-*.llvm")) == [unit.shipped]


def test_what_a_newer_llvm_wrote_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM promises to read what older ones wrote, no more: a newer one's intrinsics may take other arguments."""
    shipped = there(read_code(REUSE.shipped))
    assert machine_code._compiled(shipped) is not None
    assert not REUSE.must_translate
    monkeypatch.setattr("llvmlite.binding.llvm_version_info", (shipped.llvm - 1, 9, 9))
    monkeypatch.setattr("llvmlite.binding.parse_bitcode", pytest.fail)
    assert machine_code._compiled(shipped) is None
    assert REUSE.must_translate, "the first run takes half a minute, and says so"


@pytest.mark.explore
@pytest.mark.parametrize("unit", [SIMULATOR, REUSE])
def test_what_is_shipped_is_what_these_sources_give(unit: Unit) -> None:
    assert unit.lowered() == read_code(unit.shipped)


def test_arrays_of_other_numbers_are_refused() -> None:
    table = compile_steps(step_model(on()), 4, 64, 64)
    assert run_s(table, 1, 10.0, 1) > 0
    others = [table.decode_s.astype(kind) for kind in (np.float32, np.int64)]
    others += [np.asfortranarray(table.decode_s), table.decode_s[0]]
    for other in others:
        with pytest.raises(TypeError, match="compiled for"):
            run_s(table._replace(decode_s=other), 1, 10.0, 1)  # type: ignore[arg-type]
    with pytest.raises(struct.error):
        run_s(table, 1.5, 10.0, 1)  # type: ignore[arg-type]


def test_a_copy_is_read_where_its_own_arrays_are() -> None:
    table = compile_steps(step_model(on()), 4, 64, 64)
    before = run_s(table, 1, 10.0, 1)
    for copied in (copy.copy(table), copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert run_s(copied, 1, 10.0, 1) == before
    twice = copy.deepcopy(table)
    twice.decode_s[:] *= 2
    assert run_s(twice, 1, 10.0, 1) == pytest.approx(2 * before)
    assert run_s(table, 1, 10.0, 1) == before


def test_the_cache_is_at_home_or_named_or_nowhere(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a-file"))
    assert folder(sources) is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert there(folder(sources)).parent == tmp_path / "me" / ".cache" / "tokonomics"

    def nobody() -> Path:
        """As a container's user without an entry in its passwd file."""
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert folder(sources) is None


@pytest.fixture
def twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Runs a script that compiles, with a cache of its own; what it says: must compile, the result, must compile."""
    script = tmp_path / "twice.py"
    script.write_text(TWICE, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def said() -> list[str]:
        done = subprocess.run([sys.executable, script], check=True, timeout=600, capture_output=True, encoding="utf-8")
        return done.stdout.split()[:3]

    return said


def test_code_that_cannot_be_kept_is_compiled(twice: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert twice() == ["True", "42", "True"]


def test_code_is_found_again_and_made_anew_where_it_is_damaged(twice: Callable[[], list[str]], tmp_path: Path) -> None:
    assert twice() == ["True", "42", "False"]
    (file,) = (tmp_path / "cache").rglob("*.code")
    whole = file.read_bytes()
    assert twice() == ["False", "42", "False"]
    for spoilt in (b"", whole[:-7], whole[:99] + bytes([whole[99] ^ 1]) + whole[100:]):
        file.write_bytes(spoilt)
        assert twice() == ["True", "42", "False"]
        assert file.read_bytes() == whole


def test_where_the_disk_is_full_nothing_is_kept_and_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", full)
    unit = Unit("compiled", SIMULATOR.sources, dict)
    unit.entries = SIMULATOR.entries
    assert unit.load("after_s").layouts[1:] == ["q", "q"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_threads_that_begin_together_load_the_code_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two engines are made, as Python 3.12 would, one goes away with the code that a thread goes on to call."""
    made: list[int] = []
    machine = machine_code._machine

    def slowly() -> object:
        made.append(1)
        time.sleep(0.02)
        return machine()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_code, "_machine", slowly)
    unit = Unit("reuse", REUSE.sources, dict)
    unit.entries = REUSE.entries
    unit.load("_replay")
    alone = len(made)
    together = Unit("reuse", REUSE.sources, dict)
    together.entries = REUSE.entries
    (together.folder or tmp_path).joinpath(machine_code._file_name()).unlink()
    made.clear()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(together.load, ["_replay"] * 4))
    assert len(made) == alone


def test_code_of_sources_that_nobody_runs_any_more_is_removed(sources: Path, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "tokonomics"
    old, recent, other = home / "compiled-old", home / "compiled-recent", home / "prices"
    for each in (old, recent, other):
        each.mkdir(parents=True)
    a_year_ago = time.time() - 365 * 86_400
    for each in (old, other):
        os.utime(each, (a_year_ago, a_year_ago))
    made = folder(sources)
    assert set(home.iterdir()) == {made, recent, other}


def test_code_that_is_run_stays_however_long_ago_it_was_made(sources: Path) -> None:
    running = there(folder(sources))
    a_year_ago = time.time() - 365 * 86_400
    os.utime(running, (a_year_ago, a_year_ago))
    assert folder(sources) == running
    changed = sources / SIMULATOR.sources[0].name
    changed.write_text(changed.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert folder(sources) != running
    assert running.is_dir()


def test_a_first_run_on_a_full_disk_answers_and_keeps_nothing(tmp_path: Path) -> None:
    """No file may grow beyond a few bytes: what a full disk does to whatever is written."""
    limited = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.argv = {["tokonomics", *SIMULATE, *LENGTHS]!r}
runpy.run_module("tokonomics", run_name="__main__")
"""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", limited], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("compiling the simulator")
    assert json.loads(done.stdout)["requests"] == 50
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
