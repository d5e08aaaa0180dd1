"""What needs more memory than there is, is refused before it begins, with the numbers and a way out."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tests.kill.test_killed_writers import ROOT

from tokonomics import room
from tokonomics.errors import BadInput
from tokonomics.room import SHARE, VARIABLE, available_bytes, check_room, stated_bytes
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.save import save_trace
from tokonomics.traffic.trace import make_trace

LLAMA = ("llama-3.1-8b", "--gpu=H100")
MADE_UP = ("--arrivals=poisson:10", "--requests=100000", "--input=100", "--output=10")
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("8G", 8e9), ("1.5g", 1.5e9), ("500M", 5e8), ("16GiB", 16 * 2**30), ("2Ti", 2 * 2**40), (" 1000 ", 1e3)],
)
def test_amounts_of_memory_are_read(text: str, bytes: float) -> None:
    assert stated_bytes(text) == bytes


@pytest.mark.parametrize("text", ["", "lots", "-1G", "0", "8GG", "1e9", "8 G B", "nan"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=VARIABLE):
        stated_bytes(text)


def test_the_refusal_names_what_is_needed_what_there_is_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2G")
    check_room(2e9, "this", fix="Ask for less.")
    with pytest.raises(BadInput) as refused:
        check_room(3e9, "this", where="--requests", fix="Ask for less.")
    for part in ("--requests", "this would take about 3 GB", "allows 2 GB", "Ask for less.", f"{VARIABLE}=64G"):
        assert part in str(refused.value)


def test_without_a_stated_limit_a_share_of_what_is_free_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(room, "available_bytes", lambda: 10e9)
    check_room(SHARE * 10e9, "this", fix="")
    with pytest.raises(BadInput, match="8 GB"):
        check_room(SHARE * 10e9 + 1, "this", fix="")


def test_what_is_free_is_no_more_than_what_is_installed() -> None:
    assert 0 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_limit_on_addresses_counts() -> None:
    """As ``ulimit -v`` and the page's workers have it."""
    script = (
        "import resource; from tokonomics.room import available_bytes as free;"
        "resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000)); print(free())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 2e9


def test_of_nested_control_groups_the_tightest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "pod" / "container"
    inner.mkdir(parents=True)
    for folder, most, used in ((inner, "max", 5), (inner.parent, "4000", 1500)):
        (folder / "memory.max").write_text(most)
        (folder / "memory.current").write_text(str(used))
    monkeypatch.setattr(room, "_CONTROL_GROUPS", tmp_path)
    read = Path.read_text
    group = "0::/pod/container\n"
    with patch.object(Path, "read_text", lambda path: group if str(path) == "/proc/self/cgroup" else read(path)):
        assert room._free_in_control_group() == 2500


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", *LLAMA, *MADE_UP),
        ("simulate", *LLAMA, *MADE_UP, "--sessions=5"),
        ("simulate", *LLAMA, *MADE_UP, "--system-prompts=5,tokens=6400"),
        ("simulate", *LLAMA, "--trace=azure-conv"),
        ("simulate", *LLAMA, "--arrivals=burst:1000000", "--input=9", "--output=9"),
        ("capacity", *LLAMA, *MADE_UP, "--slo=ttft_p99=1s"),
        ("cache", *LLAMA, *MADE_UP, "--system-prompts=5,tokens=6400"),
        ("tenants", *LLAMA, *MADE_UP, "--tenants=5"),
        ("trace", *MADE_UP),
    ],
    ids=lambda command: " ".join((command[0], *command[-1:])),
)
def test_every_verb_that_makes_or_reads_requests_refuses_more_than_fit(
    tokonomics: Call, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv(VARIABLE, "1M")
    done = tokonomics(*command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "of memory; TOKONOMICS_MEMORY allows 1 MB" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_that_unpacks_to_more_than_fits_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 1_000_000
    path = tmp_path / "log.parquet"
    save_trace(make_trace(np.zeros(rows), np.ones(rows, np.int32), np.ones(rows, np.int32)), path)
    assert path.stat().st_size < rows, "rows that are alike take less than a byte each in the file"
    monkeypatch.setenv(VARIABLE, "50M")
    with pytest.raises(BadInput, match=r"more than [2-8]00,000 requests would take") as refused:
        open_trace(path).read()
    assert "log.parquet" in str(refused.value)


def test_estimates_are_not_below_what_a_trace_keeps() -> None:
    """A trace's own columns are the least that making or reading one can take."""
    from tokonomics.serving.simulator import _BYTES_PER_REQUEST
    from tokonomics.serving.state import REQUEST
    from tokonomics.traffic import arrivals, readers

    trace = make_trace([0.0], [1], [1])
    kept = trace.arrival_s.itemsize + trace.input_tokens.itemsize + trace.output_tokens.itemsize
    assert min(arrivals.BYTES_PER_REQUEST, readers._BYTES_PER_ROW) > kept
    assert kept + REQUEST.itemsize < _BYTES_PER_REQUEST


def test_running_out_of_memory_is_one_message(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tokonomics.cli.answer.show", run_out)
    done = tokonomics("fit", "llama-3.1-8b", "--gpu=H100")
    assert done.returncode == 1
    assert "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4_000_000_000, 4_000_000_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("simulate", *LLAMA, "--arrivals=poisson:10", "--requests=100000000", "--input=9", "--output=9"),
        ("trace", "--arrivals=poisson:200", "--duration=10d", "--input=9", "--output=9"),
        ("cache", *LLAMA, *MADE_UP, "--system-prompts=9,tokens=640000"),
    ],
    ids=lambda command: command[0],
)
def test_in_a_process_of_limited_memory_too_much_is_refused_not_killed(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokonomics", *command],
        preexec_fn=_limited,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "of memory; 80% of what is free" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_control_c_ends_a_simulation_inside_its_compiled_loop(tmp_path: Path) -> None:
    """Sent in the loop, and heard long before its end: what it says of its progress stops early."""
    script = (
        "import os, signal, sys, threading, tokonomics.serving.simulator as s\n"
        "from tokonomics.cli.main import main\n"
        "loop = s.run\n"
        "def run(requests, *given):\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    loop(requests, *given)\n"
        "    print('the loop went on to its end')\n"
        "s.run = run\n"
        "sys.argv = ['tokonomics', 'simulate', 'llama-3.1-8b', '--gpu=H100', '--arrivals=poisson:10',"
        " '--requests=10000000', '--input=100', '--output=500']\n"
        "main()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == ""
    assert done.stderr.endswith("interrupted\n")
    assert "Traceback" not in done.stderr
