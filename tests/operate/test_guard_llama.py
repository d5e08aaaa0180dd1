"""Fingerprints of llama.cpp's own server: what was changed is found and named, what was not is no alarm.

Machines that run tests are busy. Builds are measured in turns where they can be, and a change is large enough to be
seen through noise, or the noise itself has to say that it could not: the interval then reaches it.
"""

import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.measure.tiny_llama import write_model
from tests.operate.llama_server import arguments, engine

from tokonomics.addresses import target
from tokonomics.operate.fingerprint import Fingerprint, Probe, ProbedServer, ProbeKind, fingerprints
from tokonomics.operate.guard import BuildChange, compare

PROBES = (
    *(Probe(kind=ProbeKind.prompt, prompt_tokens=tokens) for tokens in (16, 64, 192)),
    Probe(kind=ProbeKind.again, prompt_tokens=512),
    *(Probe(kind=ProbeKind.decode, prompt_tokens=16, users=users) for users in (1, 4)),
)
LAYERS, WIDTH = 3, 160
KERNELS = {"kernels", "decode", "prefill"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="llama.cpp is built for Linux here")]


@contextmanager
def served(folder: Path, *flags: str, layers: int = LAYERS) -> Iterator[str]:
    """The address of a server with four slots that ends with the block."""
    model = folder / f"{layers}.gguf"
    if not model.exists():
        write_model(model, layers, WIDTH)
    words = ["--port", "0", "--threads", "1", "--parallel", "4", "--verbosity", "-1", *flags]
    server = engine(arguments(words), model)
    try:
        yield server.listening_address
    finally:
        del server


def measured(*addresses: str, probes: tuple[Probe, ...] = PROBES) -> list[Fingerprint]:
    servers = [ProbedServer(target(address), "tiny") for address in addresses]
    return fingerprints(servers, 0.06, timeout_s=60, seed=1, probes=probes)


def two(
    folder: Path, old: tuple[str, ...], new: tuple[str, ...], layers: int = LAYERS, **more: Any
) -> tuple[Fingerprint, Fingerprint]:
    """Two servers, measured in turns; the new one may have more layers."""
    with ExitStack() as stack:
        one = stack.enter_context(served(folder, *old))
        other = stack.enter_context(served(folder, *new, layers=layers))
        before, after = measured(one, other, **more)
    return before, after


def reaches(change: BuildChange, ratio: float) -> bool:
    """Whether the noise admits that a typical probe changed so much."""
    low, high = (statistics.median(math.log(getattr(row, end)) for row in change.probes) for end in ("low", "high"))
    return low <= math.log(ratio) <= high


def test_four_times_the_work_is_found_and_is_the_kernels_doing(tmp_path: Path) -> None:
    change = compare(*two(tmp_path, (), (), layers=4 * LAYERS))
    assert change.verdict == "slower" or reaches(change, 4)
    assert {found.term for found in change.terms[:1]} <= KERNELS
    assert change.told == ()


def test_half_the_threads_is_found_where_there_are_cores_for_them(tmp_path: Path) -> None:
    """Where all cores are taken, two threads are no faster than one: the least times tell whether they were."""
    probes = PROBES[1:3]
    marks = two(tmp_path, ("--threads", "2"), ("--threads", "1"), probes=probes)
    least = [{each.probe: min(each.seconds) for each in mark.probes} for mark in marks]
    slower = min(least[1][probe] / least[0][probe] for probe in least[0].keys() & least[1].keys())
    change = compare(*marks)
    assert change.told == ()
    if slower > 1.3:
        assert change.verdict == "slower" or reaches(change, slower)
    if change.verdict == "slower":
        assert {found.term for found in change.terms[:1]} <= KERNELS


def test_twice_the_context_is_named_and_no_alarm(tmp_path: Path) -> None:
    change = compare(*two(tmp_path, ("--ctx-size", "4096"), ("--ctx-size", "8192")))
    contexts = [(row.before, row.after) for row in change.told if row.name == "context of a request"]
    assert len(contexts) == 1
    before, after = (int(text.replace(",", "")) for text in contexts[0])
    assert after == 2 * before
    assert change.lost == ()
    assert change.verdict == "same" or reaches(change, 1)


def test_neighbours_that_burn_the_cores_are_found_or_the_noise_says_that_they_could_not(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        (before,) = measured(address)
        neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(NEIGHBOURS)]
        try:
            (after,) = measured(address)
        finally:
            for neighbour in neighbours:
                neighbour.kill()
                neighbour.wait()
    change = compare(before, after)
    assert change.verdict == "slower" or reaches(change, 2)


NEIGHBOURS = 4
