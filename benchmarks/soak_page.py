"""Fifty visitors of the page for ten minutes: what it answers, and what it still holds when they have left.

    python benchmarks/soak_page.py [--sessions 50] [--seconds 600]

The page has one worker for quick answers and one for jobs. Half of the visits come, all leave, and the other half
comes (tests/web/visitors.py). Writes benchmarks/results/soak_page.json; exits with an error where something stayed.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "soak_page.json"
sys.path.insert(0, str(ROOT))


def main() -> None:
    from tests.web.visitors import soaked_page

    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--sessions", type=int, default=50)
    ask.add_argument("--seconds", type=float, default=600.0)
    asked = ask.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        found = soaked_page(Path(home), asked.sessions, asked.seconds)
    result = {
        "command": f"python benchmarks/soak_page.py --sessions {asked.sessions} --seconds {asked.seconds:g}",
        "date": str(date.today()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "load_average": load_before,
        **asdict(found),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if found.wrong:
        raise SystemExit("\n".join(found.wrong))


if __name__ == "__main__":
    main()
