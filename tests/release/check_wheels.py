"""Is there a wheel of every locked package for every Python and machine that is targeted? ``make check-wheels``.

uv resolves the lock as that machine would, wheels only, hashes checked, without installing; it needs the network.
"""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
LOCKS = ("run.lock", "dev.lock")


def main(uv: str) -> int:
    """1 where a wheel is missing; each is said."""
    missing = 0
    for lock, machine, python in itertools.product(LOCKS, MACHINES, PYTHONS):
        with tempfile.TemporaryDirectory() as target:
            done = subprocess.run(
                [uv, "pip", "install", "--dry-run", "--target", target, "--python-platform", machine,
                 "--python-version", python, "--only-binary", ":all:", "--no-deps", "--require-hashes",
                 "--requirement", ROOT / "requirements" / lock],
                capture_output=True, encoding="utf-8", check=False,
            )  # fmt: skip
        missing += done.returncode != 0
        said = "every wheel is there" if done.returncode == 0 else done.stderr.strip()
        print(f"{lock:9} Python {python} {machine:24} {said}", flush=True)  # noqa: T201
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
