"""What a killed page leaves behind goes with the next start, and what a killed compiler leaves is never run."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.explore import EXPLORE
from tests.kill.test_killed_writers import COMPILATIONS, ROOT, SEED, UPLOADS

from tokonomics.web.uploads import PREFIX, Uploads, sweep

FORKS = """
import os, select, signal, sys
{prepare}
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        {work}
        os._exit(0)
    select.select([], [], [], float(line))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@contextmanager
def forks(prepare: str, work: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that copies itself for each line it reads, and kills the copy after the seconds that the line says."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with subprocess.Popen(
        [sys.executable, "-c", FORKS.format(prepare=prepare, work=work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)},
    ) as process:
        yield process


def kill_one(process: subprocess.Popen[str], after_s: float) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{after_s}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "gone\n"


KEEP = """
import asyncio
from tokonomics.web.uploads import Uploads
async def parts():
    for _ in range(50):
        yield b"x,y" * 10_000
async def keep():
    kept = Uploads()
    while True:
        await kept.keep("log.csv", parts(), None)
"""


@pytest.mark.slow
@pytest.mark.law
def test_what_a_killed_page_had_taken_in_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} uploads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        alive = Uploads()
    left = 0
    try:
        with forks(KEEP, "asyncio.run(keep())", tmp_path) as process:
            for _ in range(UPLOADS):
                kill_one(process, chance.uniform(0.0, 0.05))
                left += len(list(tmp_path.glob(f"{PREFIX}*"))) - 1
                sweep(tmp_path, young_s=0.0)
                assert list(tmp_path.glob(f"{PREFIX}*")) == [alive.root], f"seed {SEED}"
    finally:
        alive.close()
    assert left, "no server was killed while it held a folder"


COMPILE = """
from tests.kill.line_of_code import doubled, warm
warm()
"""
LOAD = COMPILE + "print(doubled(21))"


@pytest.mark.slow
@pytest.mark.law
def test_code_of_a_killed_compiler_is_whole_or_not_used(tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} compiled")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)}
    with forks(COMPILE, "assert doubled(21) == 42", tmp_path) as process:
        for round in range(COMPILATIONS if EXPLORE else 5):
            kill_one(process, chance.uniform(0.0, 0.3))
            if round % 5 == 4:
                done = subprocess.run(
                    [sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, check=False
                )
                assert (done.stdout, done.returncode) == ("42\n", 0), f"seed {SEED}: {done.stderr}"
            for kept in tmp_path.rglob("*.code") if round % 5 != 3 else ():
                kept.unlink()
