"""Whatever writes is killed (SIGKILL) at random moments: nothing is lost, nothing is half written.

``make explore`` kills 1,000 times in all, ``make test`` every second writer a tenth as often.

A process writes turn after turn and says when each is done; it is killed somewhere in the next one, and the file must
then hold the last turn that was said to be done, or the one that had begun, whole. The next process goes on from there.
This is about processes that end, not about machines that lose power: what the disk's own cache does is not tested.

To repeat a failure, set TOKONOMICS_KILL_SEED to the seed in its message; it repeats the choices, not the scheduler's.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.explore import EXPLORE, some
from tests.kill.writers import BY_NAME, WRITERS, Writer

KILLS = 1_000
SHARE, FEWEST = 10, 4
"""Of its kills, each writer's in ``make test``."""
SEED = int(os.environ.get("TOKONOMICS_KILL_SEED", random.SystemRandom().randrange(2**32)))
UNTIL_HIT = 300
"""Kills before a file written in place counts as not found out. No matter of luck: the first hit ends it, and of five
tries of each writer on two busy cores the longest took five kills, so that one in three hits or more."""
ROOT = Path(__file__).parents[2]


def test_the_kills_are_a_thousand() -> None:
    assert sum(writer.kills for writer in WRITERS) + UPLOADS + COMPILATIONS == KILLS


class Forker:
    """The process that copies itself and kills the copies."""

    def __init__(self, writer: str, *how: str) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill.forker", writer, *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )

    def kill(self, folder: Path, turn: int, passing: int, share: float) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        order = {"folder": str(folder), "turn": turn, "pass": passing, "share": share}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the forker ended: {self.end()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> str:
        _, said = self._process.communicate()
        return said


@contextmanager
def forking(writer: str, *how: str) -> Iterator[Forker]:
    forker = Forker(writer, *how)
    try:
        yield forker
    finally:
        forker.end()


def kill_again_and_again(writer: Writer, folder: Path, kills: int, *how: str) -> int:
    """How many were killed in the middle of a turn, which was then there or not; the content is checked every time."""
    chance = random.Random(f"{SEED} {writer.name}")
    turn, begun = 0, 0
    with forking(writer.name, *how) as forker:
        for round in range(kills):
            passing, share = chance.choice((0, 1, 1, 2)), chance.uniform(0.0, 1.2)
            answer = forker.kill(folder, turn + 1, passing, share)
            said = f"{writer.name}, seed {SEED}, kill {round}: {passing} turns and {answer['after_s']:.6f} s; {answer}"
            assert answer["signal"] == 9, f"{said}; ended by itself: {forker.end()}"
            try:
                found = writer.found(folder)
            except Exception as error:
                raise AssertionError(f"half written: {said}: {error}") from error
            assert found in (answer["turn"], answer["turn"] + 1), f"lost: {said}, found {found}"
            turn, begun = found, begun + (found > answer["turn"])
    return begun


@pytest.mark.slow
@pytest.mark.law
@pytest.mark.parametrize("writer", some([pytest.param(writer, id=writer.name) for writer in WRITERS], keep=8))
def test_a_killed_writer_loses_nothing_and_leaves_nothing_half_written(writer: Writer, tmp_path: Path) -> None:
    kill_again_and_again(writer, tmp_path, writer.kills if EXPLORE else max(FEWEST, writer.kills // SHARE))


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["run", "trace", "deployment", "sweep"], keep=2))
def test_a_file_written_in_place_would_be_found_out(name: str, tmp_path: Path) -> None:
    """The same kills, with the one safe way to write taken out: they do hit the middle of a file."""
    with pytest.raises(AssertionError, match="half written"):
        kill_again_and_again(BY_NAME[name], tmp_path, UNTIL_HIT, "plain")


UPLOADS = COMPILATIONS = 20
