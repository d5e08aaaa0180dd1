"""The search for flags on llama.cpp's own server: real trials, killed in the midst and gone on with to their end."""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.measure.tiny_llama import write_model
from tests.there import there

from tokonomics.operate.record import Record, read_record
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.run import TuneRequest, VerifyRequest
from tokonomics.questions.tune import tune
from tokonomics.questions.verify import verify

ROOT = Path(__file__).parents[2]
LONG_ENOUGH_S = 120.0
PROGRAM = (
    "import json, sys; from tokonomics.questions.requests.run import TuneRequest;"
    "from tokonomics.questions.tune import tune; tune(TuneRequest.checked(json.loads(sys.argv[1])))"
)


class Heard(Listener):
    def __init__(self) -> None:
        self.loads: list[str] = []
        self.notes: list[str] = []

    def doing(self, what: str) -> None:
        if ": load " in what:
            self.loads.append(what)

    def note(self, line: str) -> None:
        self.notes.append(line)


def loads(record: Record) -> int:
    return sum(len(trial.loads) for trial in record.trials)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_ENOUGH_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def naming(folder: Path) -> list[str]:
    """Commands that run and name a folder."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in said:
            found.append(said)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_real_trials_are_killed_gone_on_with_and_find_a_batch_that_is_not_tiny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of 120 tokens takes 15 steps in batches of 8, and one of 512: each step reads all weights anew.

    Both have a micro-batch of 8 or 128 beside; a batch of 8 is tried with that of 8 alone, for llama.cpp would take it.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("no_proxy", "*")
    words = [sys.executable, "-m", "tests.operate.llama_server", "--layers", "4", "--width", "256", "--verbosity", "0"]
    model = tmp_path / "model.gguf"
    write_model(model, 4, 256)
    start = shlex.join([*words, "--model", str(model)]) + " --port {port} {flags}"
    out = tmp_path / "tune.json"
    asked: dict[str, Any] = {
        "start": start, "engine": "llama.cpp", "out": str(out), "trials": 2, "slo": "ttft_p50=250ms",
        "try": ["threads=2", "parallel=4", "batch-size=512/8", "ubatch-size=8/128"], "rate": "10",
        "input": "const:120", "output": "const:4", "requests": 10, "timeout": 60, "patience": "60s",
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(asked)], cwd=ROOT)
    until(lambda: process.poll() is not None or (out.exists() and loads(read_record(out)) >= 2))
    assert process.poll() is None, "it is in the midst"
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not naming(tmp_path))
    before, heard = read_record(out), Heard()
    result = tune(TuneRequest.checked(asked), heard)
    after = read_record(out)
    assert heard.notes == [f"going on from 1 trial in {out}"]
    assert after.trials[0].loads[: loads(before)] == before.trials[0].loads
    assert len(heard.loads) == loads(after) - loads(before)
    for trial in after.trials:
        counted = [load.rate for load in trial.loads if load.again is None]
        assert len(set(counted)) == len(counted)
        assert trial.engine["build_info"]
    assert after.trials[0].flags.values == {}
    tried = {(trial.flags.values.get("batch-size"), trial.flags.values.get("ubatch-size")) for trial in after.trials}
    assert (None, None) in tried
    assert 1 < len(after.trials) <= 4
    assert tried <= {(None, None), (8, 8), (512, 8), (512, 128)}
    best = there(result.best)
    assert best.values.get("batch-size") != 8
    tiny = [trial.rate for trial in after.trials if trial.flags.values.get("batch-size") == 8]
    assert all(rate < there(best.measured_rate) for rate in tiny)
    checked = verify(VerifyRequest.checked({"verify": str(out)}))
    assert (checked.wrong, checked.loads) == ((), loads(after))
    assert there(after.stopped)
    assert naming(tmp_path) == []
