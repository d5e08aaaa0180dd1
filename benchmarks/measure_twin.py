"""A real vLLM on one GPU, without a network: its metrics pages through minutes of traffic that changes.

    PYTHONPATH=src python benchmarks/measure_twin.py OUT JOB.json LIMIT_S      # after ``measure_guard.py OUT start``

``JOB.json`` is made by ``python -m benchmarks.bench_twin ask``: which of the running builds is loaded, one after the
other, and the stretches that each serves: its rows are ``[at_s, [[seed, tokens], …], answer tokens]``, equal seeds
being equal tokens. A stretch may run a neighbour beside it: matrix products on the same GPU, in another process, two
fifths of the time. Every two seconds the page is read; the lines that a meter reads are kept, only where they changed,
with the times of every request.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import asyncio
import contextlib
import gzip
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from measure_flags import arrive, body, ramp
from measure_guard import PORTS
from measure_levers import segment

EVERY_S = 2.0
NEIGHBOUR = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    time.sleep(0.005)
"""


class Pages:
    """The pages of a server as they were read: each line where it differs from the one before."""

    def __init__(self, port, wanted, begun):
        self.port, self.wanted, self.begun = port, tuple(wanted), begun
        self.last: dict[str, str] = {}
        self.read: list[list] = []

    def look(self):
        with contextlib.suppress(Exception):
            page = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5).read().decode()
            now = dict(line.rpartition(" ")[::2] for line in page.splitlines() if line.startswith(self.wanted))
            changed = {name: value for name, value in now.items() if self.last.get(name) != value}
            self.last = now
            self.read.append([round(time.perf_counter() - self.begun, 2), changed])

    async def keep_looking(self):
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(None, self.look)
            await asyncio.sleep(EVERY_S)


def spelled(stretch, words):
    """Return each request of a stretch as (arrival, prompt tokens, answer tokens, body)."""
    made = []
    for at, segments, out in stretch["rows"]:
        prompt = [token for seed, count in segments for token in segment(seed, count, words)]
        made.append((at, len(prompt), out, body(prompt, out)))
    return made


async def play(port, stretches, pages, begun, last_s):
    """Serve the stretches one after the other; return the rows of each."""
    looking = asyncio.ensure_future(pages.keep_looking())
    served = []
    for stretch in stretches:
        began = time.perf_counter()
        if began - begun > last_s:
            break
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) if stretch.get("neighbour") else None
        rows: list[dict] = [{} for _ in stretch["rows"]]
        asked = [
            asyncio.ensure_future(arrive(port, request, row, began, 1.0))
            for request, row in zip(stretch["bodies"], rows, strict=True)
        ]
        await asyncio.sleep(max(0.0, stretch["seconds"] - (time.perf_counter() - began)))
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
        served.append({
            "name": stretch["name"], "began_s": round(began - begun, 2), "requests": rows, "asked": asked,
        })  # fmt: skip
        done = sum("last" in row for row in rows)
        print(f"{began - begun:7.1f} {stretch['name']}: {done} of {len(rows)}", flush=True)
    for stretch in served:
        if stretch["asked"]:
            await asyncio.wait(stretch.pop("asked"), timeout=10.0)
    looking.cancel()
    pages.look()
    for stretch in served:
        stretch["requests"] = [
            [row.get("in"), row.get("out"), *(None if row.get(at) is None else round(row[at], 4)
                                              for at in ("at", "first", "last"))]
            for row in stretch["requests"]
        ]  # fmt: skip
    return served


def main() -> None:
    out, job, limit_s = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text()), float(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    for server in job["servers"]:
        server["words"] = min(server["config"]["vocab_size"], 100_000)
        for stretch in server["stretches"]:
            stretch["bodies"] = spelled(stretch, server["words"])

    async def warm():
        bodies = [(0.0, 1200, 200, b"")] * 8
        await asyncio.gather(*(ramp(PORTS[server["name"]], bodies, server["words"], 64, 1, 20.0)
                               for server in job["servers"]))  # fmt: skip

    asyncio.run(warm())
    print("warm after", round(time.perf_counter() - started), "s", flush=True)
    begun, runs = time.perf_counter(), []
    for server in job["servers"]:
        pages = Pages(PORTS[server["name"]], job["wanted"], begun)
        last_s = limit_s - 40 - (begun - started)
        served = asyncio.run(play(PORTS[server["name"]], server["stretches"], pages, begun, last_s))
        runs.append({"name": server["name"], "flags": server["flags"], "pages": pages.read, "stretches": served})
        with gzip.open(out / "twin.json.gz", "wt") as file:
            json.dump({"engine": "vllm 0.26.0", "gpu": "H200", "model": job["model"], "runs": runs}, file)


if __name__ == "__main__":
    main()
