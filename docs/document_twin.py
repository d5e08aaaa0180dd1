"""Make docs/examples/twin-morning.db anew: a meter's ledger with four hours of a simulated server and its twin.

    python docs/document_twin.py

The server is a simulation of Llama 3.1 8B on an H200 that differs from its model by factors that the twin is not told
(tests/operate/served_vllm.py): kernels 1.12 times as slow, launches 1.3. Its prompts get longer, its cache stops
hitting, and in the last hour something slows its kernels to 1.7. Run it when the ledger's tables or the twin change.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEDGER = Path(__file__).parent / "examples" / "twin-morning.db"
FACTORS = {"decode": 1.12, "prefill": 1.08, "launch": 1.3, "request": 1.2}
SLOWED = FACTORS | {"decode": 1.7, "prefill": 1.65}
EVERY_S, NINE = 300.0, 9 * 3600.0


def main(path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.measure.metered import HandClock, PageSource
    from tests.operate.served_vllm import ServedVllm, Stretch, modelled

    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.live_meter import Meter, MeterSettings
    from tokonomics.measure.meter.windows import WINDOW_S
    from tokonomics.questions.twin import LiveTwin

    clock, setup = HandClock(), modelled()
    clock.offset += NINE
    process = ServedVllm(
        clock,
        setup,
        [
            Stretch(9 * WINDOW_S, 5, factors=FACTORS),
            Stretch(5 * WINDOW_S, 5, 2600, factors=FACTORS),
            Stretch(5 * WINDOW_S, 5, 2600, shared=0.02, factors=FACTORS),
            Stretch(5 * WINDOW_S, 5, 2600, shared=0.02, factors=SLOWED),
        ],
    )

    async def ticks() -> None:
        with Ledger(path) as book:
            source = PageSource(process, "http://gpu1:8000")
            meter = Meter([source], book, clock, MeterSettings(usd_per_hour=3.0, every_s=EVERY_S))
            twin = LiveTwin(book, setup, WINDOW_S)
            while clock.passed <= process.seconds + EVERY_S:
                twin.beside(await meter.tick())
                clock.passed += EVERY_S

    path.unlink(missing_ok=True)
    asyncio.run(ticks())
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA page_size = 1024")
        db.execute("VACUUM")
    Path(f"{path}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else LEDGER)
