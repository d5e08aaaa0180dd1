"""Run twins of many servers on a clock moved by hand: processor, memory and the ledger's size by hour.

    python -m benchmarks.soak_twin [servers] [hours] [seconds between readings]

All servers show the page of one simulated vLLM (tests/operate/served_vllm.py), read every 15 seconds if nothing else is
said, as a meter reads them; after three hours its traffic begins again. Runs longer than a day go to a file of their
own. Each has a twin of its own. What is measured is the work of the meter and its twins, not that of a network.
"""

import asyncio
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tests.measure.metered import HandClock, HandSource, read_page
from tests.operate.served_vllm import ServedVllm, Stretch, modelled

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Reading
from tokonomics.measure.meter.windows import WINDOW_S
from tokonomics.operate.scoreboard import scoreboard
from tokonomics.operate.twin import said_of
from tokonomics.questions.twin import LiveTwin

RESULTS = Path(__file__).with_name("results") / "soak-twin.json"
PERIOD_S = 3 * 3600.0
FACTORS = {"decode": 1.1, "prefill": 1.1}


def main(servers: float = 200, hours: float = 3.0, every_s: float = 15.0) -> None:
    clock, setup = HandClock(), modelled()
    process = ServedVllm(clock, setup, [Stretch(PERIOD_S, 5, factors=FACTORS)], again=True)
    said: dict[str, object] = {
        "command": f"python -m benchmarks.soak_twin {servers:g} {hours:g} {every_s:g}",
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0], "servers": int(servers), "hours": hours, "by_hour": [],
    }  # fmt: skip
    page = [""]

    def source(name: str) -> HandSource:
        def give() -> Sequence[Reading]:
            return read_page(page[0], name, clock.wall())

        return HandSource(name, give)

    async def ticks(path: Path) -> None:
        with Ledger(path) as book:
            sources = [source(f"http://gpu{number}:8000") for number in range(int(servers))]
            meter = Meter(sources, book, clock, MeterSettings(usd_per_hour=3.0, every_s=every_s))
            twin = LiveTwin(book, setup, WINDOW_S)
            began, read_s, twin_s = 0.0, 0.0, 0.0
            while clock.passed < hours * 3600:
                page[0] = process.page()
                before = time.process_time()
                state = await meter.tick()
                middle = time.process_time()
                twin.beside(state)
                after = time.process_time()
                read_s, twin_s = read_s + middle - before, twin_s + after - middle
                clock.passed += every_s
                if clock.passed - began >= 3600:
                    row = {
                        "hour": round(clock.passed / 3600), "meter": round(read_s / 3600, 4),
                        "twins": round(twin_s / 3600, 4), "ledger_mb": round(path.stat().st_size / 1e6, 1),
                        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
                    }  # fmt: skip
                    print(row, flush=True)
                    said["by_hour"].append(row)  # type: ignore[attr-defined]
                    began, read_s, twin_s = clock.passed, 0.0, 0.0
            boards = scoreboard(said_of(book, 0.0, 1e12))
            said["windows"] = sum(board.windows for board in boards)
            said["error"] = {name: boards[0].error_of(name, "given") for name in ("tpot_s", "ttft_s", "ttft_p99_s")}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ticks(Path(folder) / "meter.db"))
    print(said["windows"], said["error"])
    (RESULTS if hours <= 24 else RESULTS.with_name("soak-twin-long.json")).write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
