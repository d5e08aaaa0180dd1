"""A packed file of a megabyte that unfolds into 300 is refused before it takes a gigabyte of memory."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from tests.explore import some
from tests.fuzz.parsers import PARSERS

MOST_BYTES = 1_000_000_000
UNFOLDED_MB = 300
READ = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.fuzz.parsers import PARSERS
from tokonomics.errors import TokonomicsError
try:
    PARSERS[sys.argv[2]].read(Path(sys.argv[3]))
except TokonomicsError as error:
    sys.stdout.write(str(error) + chr(10))
status = Path("/proc/self/status")
seen = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line] if status.exists() else []
sys.stdout.write(seen[0] if seen else str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
"""
"""In a process of its own: the peak of memory is of the whole life of a process. Linux counts it from where the process
was forked (``ru_maxrss``), which is the size of the tests, or from where its program began (VmHWM); macOS in bytes."""


def bomb(path: Path, opening: bytes, unit: bytes) -> None:
    block = unit * (1_000_000 // len(unit))
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(opening)
        for _ in range(UNFOLDED_MB):
            packed.write(block)
    assert path.stat().st_size < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "opening", "unit"),
    some(
        [
            ("results", b"[", b"[],"),
            ("measurements", b"model,gpu\n", b"\0"),
            ("engine-log", b'{"runs": [', b"[],"),
            ("trace-json", b"[", b"[],"),
            ("trace-json", b"[\n", b"[],\n"),
            ("trace-csv", b"", b"\0"),
            ("prompts", b"", b"a"),
        ],
        keep=3,
    ),
)
def test_a_bomb_does_not_take_the_machine(tmp_path: Path, name: str, opening: bytes, unit: bytes) -> None:
    path = tmp_path / PARSERS[name].file
    bomb(path, opening, unit)
    if name == "prompts":
        path.write_bytes(b"gz\n" + path.read_bytes())
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", READ, root, name, str(path)], capture_output=True, text=True, check=True
    )
    message, _, peak_kib = done.stdout.rpartition("\n")
    assert int(peak_kib) * 1024 < MOST_BYTES
    assert "\n" not in message.split("\n  ")[0]
    assert message, "300 MB of nothing were taken for a file"
