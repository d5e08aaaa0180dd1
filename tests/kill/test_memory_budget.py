"""What needs more memory than there is, is refused before it begins, with the numbers and a way out."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.command import Call, answer
from tests.kill.test_killed_writers import ROOT

from tokonomics import memory_budget
from tokonomics.errors import BadInput
from tokonomics.memory_budget import (
    SHARE,
    VARIABLE,
    NoRoom,
    available_bytes,
    can_limit_memory,
    check_room,
    given_bytes,
    limit_memory,
    stated_bytes,
)
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.trace import make_trace, save_trace

LLAMA = ("llama-3.1-8b", "--gpu=H100")
MADE_UP = ("--arrivals=poisson:10", "--requests=100000", "--input=100", "--output=10")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere addresses are not limited, or not told")


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


def test_a_stated_limit_is_what_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2G")
    check_room(2e9, "this", fix="Ask for less.")
    with pytest.raises(NoRoom) as refused:
        check_room(3e9, "this", where="--requests", fix="Ask for less.")
    assert refused.value.where == "--requests"


def test_without_a_stated_limit_a_share_of_what_is_free_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: 10e9)
    check_room(SHARE * 10e9, "this", fix="")
    with pytest.raises(BadInput, match="8 GB"):
        check_room(SHARE * 10e9 + 1, "this", fix="")


def test_what_is_free_is_no_more_than_what_is_installed() -> None:
    assert 0 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@ON_LINUX
def test_a_limit_on_addresses_counts() -> None:
    """As ``ulimit -v`` and the page's workers have it."""
    script = (
        "import resource; from tokonomics.memory_budget import available_bytes as free;"
        "resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000)); print(free())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 2e9


def grouped(root: Path, own: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose control groups are below ``root``; ``own`` is what it tells of this process."""
    for name, content in {**files, "own": own}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    monkeypatch.setattr(memory_budget, "_CONTROL_GROUPS", root)
    monkeypatch.setattr(memory_budget, "_OWN_GROUPS", root / "own")


NESTED = {
    "pod/container/memory.max": "max", "pod/container/memory.current": "5",
    "pod/memory.max": "4000", "pod/memory.current": "1500",
    "memory.max": "9000", "memory.current": "1600",
}  # fmt: skip
PAGES_OF_A_FILE = {
    "memory.max": "4000", "memory.current": "3900",
    "memory.stat": "anon 500\nfile 3000\nactive_file 200\ninactive_file 2800\nslab_reclaimable 300\n",
}  # fmt: skip
VERSION_1 = {
    "memory/pod/memory.limit_in_bytes": "4000", "memory/pod/memory.usage_in_bytes": "3500",
    "memory/pod/memory.stat": "cache 900\ninactive_file 1\ntotal_inactive_file 700\n",
    "memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "3600",
}  # fmt: skip
"""With other hierarchies beside, and the kernel's number for no limit at the root."""
OWN_GROUP_AS_ROOT = {"memory/memory.limit_in_bytes": "4000", "memory/memory.usage_in_bytes": "1000"}


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/pod/container\n", NESTED, 4000 - 1500),
        ("0::/\n", PAGES_OF_A_FILE, 4000 - (3900 - 2800 - 300)),
        ("12:cpu,cpuacct:/pod\n9:memory:/pod\n1:name=systemd:/a:b\n", VERSION_1, 4000 - (3500 - 700)),
        ("9:memory:/docker/0123\n", OWN_GROUP_AS_ROOT, 4000 - 1000),
    ],
)
def test_of_all_control_groups_the_tightest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], free: float
) -> None:
    grouped(tmp_path, own, files, monkeypatch)
    assert (available_bytes(), given_bytes()) == (free, 4000)


@pytest.mark.parametrize("own", ["", "9:cpu:/\n", "nonsense\n", "0::/../../..\n", "9:memory:/gone\n"])
def test_a_machine_that_tells_of_no_limit_has_none(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped(tmp_path, own, {}, monkeypatch)
    assert given_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_bytes() <= given_bytes()


@ON_LINUX
def test_a_process_limits_itself_beyond_what_it_has_taken() -> None:
    script = (
        "from tokonomics.memory_budget import available_bytes as free, can_limit_memory, limit_memory\n"
        "print(can_limit_memory(), limit_memory(300_000_000), free())\n"
        "try:\n    bytearray(400_000_000)\nexcept MemoryError:\n    print(len(bytearray(200_000_000)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    can, did, free, held = done.stdout.split()
    assert (can, did, held) == ("True", "True", "200000000")
    assert 0 < float(free) <= 300e6


def test_where_nothing_tells_what_a_process_has_taken_no_limit_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise FileNotFoundError

    monkeypatch.setattr(memory_budget, "_taken_addresses", gone)
    assert not can_limit_memory()
    assert not limit_memory(10**12)
    assert available_bytes() > 0


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


def test_a_log_that_unpacks_beyond_memory_is_not_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 1_000_000
    path = tmp_path / "log.parquet"
    save_trace(make_trace(np.zeros(rows), np.ones(rows, np.int32), np.ones(rows, np.int32)), path)
    assert path.stat().st_size < rows, "rows that are alike take less than a byte each in the file"
    monkeypatch.setenv(VARIABLE, "50M")
    with pytest.raises(BadInput, match=r"more than [2-8]00,000 requests would take") as refused:
        open_trace(path).read()
    assert "log.parquet" in str(refused.value)


def log(tmp_path: Path, rows: int, **more: "pl.Series") -> Path:
    path = tmp_path / "log.parquet"
    columns = {"arrival": np.arange(rows, dtype=float), "input": np.full(rows, 64), "output": np.ones(rows, int)}
    pl.DataFrame({**columns, **more}).write_parquet(path)
    return path


def test_too_many_tenants_are_refused(tmp_path: Path, tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pl.Series(range(300_000)).cast(pl.String)
    path = log(tmp_path, 300_000, customer=numbers)
    columns = "--columns=arrival=arrival,input=input,output=output"
    monkeypatch.setenv(VARIABLE, "50M")
    refused = tokonomics("trace", str(path), f"{columns},tenant=customer")
    assert refused.returncode == 2, refused.stdout
    assert "log.parquet: to count more than" in refused.stderr
    assert "tenants apart would take about" in refused.stderr
    assert tokonomics("trace", str(path), columns).returncode == 0, "the way out that is named is one"
    monkeypatch.setenv(VARIABLE, "500M")
    assert tokonomics("trace", str(path), f"{columns},tenant=customer").returncode == 0


def test_too_many_keys_of_shared_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pl.Series(range(300_000)).cast(pl.String)
    columns = "arrival=arrival,input=input,output=output,prefix=template"
    path = log(tmp_path, 300_000, template=numbers)
    monkeypatch.setattr("tokonomics.traffic.readers.MERGED_ROWS", 100_000)
    monkeypatch.setenv(VARIABLE, "20M")
    with pytest.raises(NoRoom, match=r"to compare more than .* keys of shared prompts") as refused:
        open_trace(path, columns=columns)
    assert "log.parquet" in str(refused.value)
    path = log(tmp_path, 300_000, template=pl.Series(["one", "other"] * 150_000))
    assert open_trace(path, columns=columns).block_tokens, "few keys fit, however often they occur"


def test_trace_replays_blocks_that_fit(tmp_path: Path, tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    path = log(tmp_path, 1_200_000, blocks=pl.Series([[1]]).extend_constant([1], 1_199_999))
    monkeypatch.setenv(VARIABLE, "100M")
    columns = "arrival=arrival,input=input,output=output,prefix=blocks,block=64"
    told = answer(tokonomics, "trace", str(path), f"--columns={columns}")
    assert told["requests"] == 1_200_000
    said = re.search(r"first ([\d,]+) requests", " ".join(told["notes"]))
    assert said
    held = int(said[1].replace(",", ""))
    assert 400_000 <= held <= 100e6 / 140


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

    monkeypatch.setattr("tokonomics.report.terminal.show", run_out)
    done = tokonomics("fit", "llama-3.1-8b", "--gpu=H100")
    assert done.returncode == 1
    assert "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4_000_000_000, 4_000_000_000))


@ON_LINUX
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
        "def run(requests, *given, **named):\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    loop(requests, *given, **named)\n"
        "    print('the loop went on to its end')\n"
        "s.run = run\n"
        "sys.argv = ['tokonomics', 'simulate', 'llama-3.1-8b', '--gpu=H100', '--arrivals=poisson:10',"
        " '--requests=2000000', '--input=100', '--output=500']\n"
        "main()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == ""
    assert done.stderr.endswith("interrupted\n")
    assert "Traceback" not in done.stderr
