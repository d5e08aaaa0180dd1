"""What a meter takes: 100 servers on loopback, each with vLLM's real page of 609 lines, read every 15 seconds.

    python benchmarks/bench_meter.py [--servers 100] [--every 15] [--beats 4]

The servers run in a process of their own, and their counters move, so that every beat has work to book. The meter runs
as the command does, ledger and all; CPU time and memory are those of its process. Writes benchmarks/results/meter.json.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path

PAGE = Path(__file__).parent.parent / "tests" / "measure" / "pages" / "vllm-0.32.prom"
RESULT = Path(__file__).parent / "results" / "meter.json"
CORE_SHARE, MEMORY_MB = 0.10, 200.0
"""The budget: less than a tenth of a core and 200 MB for 100 servers every 15 seconds."""


def serve(servers: int, ready: Connection) -> None:
    """So many ports, each with the page; tokens grow by a thousand at each reading."""
    from aiohttp import web

    page = PAGE.read_text()
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        grown = page.replace(
            'vllm:generation_tokens_total{engine="0",model_name="tiny"} 32.0',
            f'vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {asked * 1000}.0',
        )
        return web.Response(text=grown)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        for _ in range(servers):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.send([address[1] for address in runner.addresses])
        await asyncio.Event().wait()

    asyncio.run(run())


def meter(ports: list[int], every_s: float, beats: int, done: Connection) -> None:
    """As ``tokonomics meter`` runs; the first beat, which finds the pages, is not counted."""
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.live_meter import MeterSettings
    from tokonomics.measure.meter.session import meter_servers
    from tokonomics.measure.meter.state import MeterState
    from tokonomics.report.meter_view import line

    marks: list[tuple[float, float]] = []
    last: list[MeterState] = []

    def show(state: MeterState) -> None:
        line(state)
        marks.append((time.process_time(), time.perf_counter()))
        last[:] = [state]

    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "meter.db") as book:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        meter_servers(MeterSettings(2.49, urls, every_s=every_s, beats=beats), book, show)
        ledger_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    (cpu_0, wall_0), (cpu_1, wall_1) = marks[0], marks[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if platform.system() == "Linux" else 1024**2)
    done.send(
        {
            "cpu_s": cpu_1 - cpu_0,
            "wall_s": wall_1 - wall_0,
            "peak_mb": peak * 1024**2 / 1e6,
            "ledger_bytes": ledger_bytes,
            "up": sum(group.up for group in last[0].groups),
            "output_tokens": last[0].total.output,
        }
    )


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--servers", type=int, default=100)
    ask.add_argument("--every", type=float, default=15.0)
    ask.add_argument("--beats", type=int, default=4)
    asked = ask.parse_args()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    servers = spawn.Process(target=serve, args=(asked.servers, there), daemon=True)
    servers.start()
    ports = here.recv()
    mine, its = spawn.Pipe()
    metering = spawn.Process(target=meter, args=(ports, asked.every, asked.beats, its))
    metering.start()
    found = mine.recv()
    metering.join()
    servers.terminate()
    share = found["cpu_s"] / found["wall_s"]
    each_ms = found["cpu_s"] / asked.beats / asked.servers * 1e3
    budget = asked.servers == 100 and asked.every == 15
    print(f"{asked.servers} servers every {asked.every:g} s, {asked.beats} beats, {found['up']} up")
    print(f"{'':24}{'measured':>12}{'budget':>12}")
    print(f"{'share of one core':24}{share:>11.1%}{f'{CORE_SHARE:.0%}' if budget else '':>12}")
    print(f"{'peak memory':24}{found['peak_mb']:>9.0f} MB{f'{MEMORY_MB:.0f} MB' if budget else '':>12}")
    print(f"{'CPU a reading':24}{each_ms:>9.1f} ms")
    print(f"{'ledger':24}{found['ledger_bytes'] / 1e3:>9.0f} KB")
    result = {
        "command": "python benchmarks/bench_meter.py",
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "servers": asked.servers,
        "every_s": asked.every,
        "beats": asked.beats,
        "core_share": share,
        **found,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    if budget and (share > CORE_SHARE or found["peak_mb"] > MEMORY_MB):
        raise SystemExit("over budget")


if __name__ == "__main__":
    main()
