"""Leave out of a lock what ``run.lock`` has: whatever installs it installs both. ``make lock`` runs this.

python requirements/apart.py requirements/dev.lock …
"""

import re
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.lock")


def blocks(lock: Path) -> list[str]:
    """Return each package of a lock, with its hashes."""
    return re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    there = set(blocks(RUN))
    for path in map(Path, sys.argv[1:]):
        path.write_text("".join(f"{block}\n" for block in blocks(path) if block not in there), encoding="utf-8")
