"""A real vLLM on one GPU, without a network: its metrics pages through twenty minutes of traffic that changes.

    python benchmarks/measure_twin.py OUT JOB.json      # on a machine with a GPU and vLLM

``JOB.json`` is made by ``python -m benchmarks.bench_twin ask``: the servers to start, one after the other, and the
stretches that each serves: its rows are ``[at_s, [[seed, tokens], …], answer tokens]``, equal seeds being equal tokens.
A stretch may run a neighbour beside it: matrix products on the same GPU, in another process. Every few seconds the
page is read; the lines that a meter reads are kept, only where they changed, with the times of every request.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import asyncio
import contextlib
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from measure_flags import arrive, body, ramp
from measure_levers import FIRST_PORT, ROOT, segment, start, wait

EVERY_S = 2.0
NEIGHBOUR = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
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


async def play(port, stretches, words, pages, begun, last_s):
    """Serve the stretches one after the other; return the rows of each."""
    looking = asyncio.ensure_future(pages.keep_looking())
    served = []
    for stretch in stretches:
        began = time.perf_counter()
        if began - begun > last_s:
            break
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) if stretch.get("neighbour") else None
        rows: list[dict] = [{} for _ in stretch["rows"]]
        asked = []
        for row, (at, segments, out) in zip(rows, stretch["rows"], strict=True):
            prompt = [token for seed, count in segments for token in segment(seed, count, words)]
            request = at, len(prompt), out, body(prompt, out)
            asked.append(asyncio.ensure_future(arrive(port, request, row, began, 1.0)))
        await asyncio.sleep(max(0.0, stretch["seconds"] - (time.perf_counter() - began)))
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
        served.append({
            "name": stretch["name"], "began_s": round(began - begun, 2), "requests": rows, "asked": asked,
        })  # fmt: skip
        print(
            f"{began - begun:7.1f} {stretch['name']}: {sum('last' in row for row in rows)} of {len(rows)}", flush=True
        )
    for stretch in served:
        await asyncio.wait(stretch.pop("asked"), timeout=20.0)
    looking.cancel()
    for stretch in served:
        stretch["requests"] = [
            [row.get("in"), row.get("out"), *(None if row.get(at) is None else round(row[at], 4)
                                              for at in ("at", "first", "last"))]
            for row in stretch["requests"]
        ]  # fmt: skip
    return served


def main() -> None:
    out, job = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text())
    begun, runs = time.perf_counter(), []
    for place, server in enumerate(job["servers"]):
        port = FIRST_PORT + place
        process = start(server, port)
        try:
            wait({server["name"]: (process, port)}, job["patience_s"])
            words = min(server["config"]["vocab_size"], 100_000)
            warm = [(0.0, 1200, 200, b"")] * 8
            asyncio.run(ramp(port, warm, words, 64, 1, 45.0))
            pages = Pages(port, job["wanted"], begun)
            served = asyncio.run(play(port, server["stretches"], words, pages, begun, job["limit_s"]))
            runs.append({"name": server["name"], "flags": server["flags"], "pages": pages.read, "stretches": served})
        finally:
            with contextlib.suppress(Exception):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            tail = (ROOT / f"{server['name']}.log").read_text(errors="replace")[-2000:]
            print(server["name"], "ended after", round(time.perf_counter() - begun), "s", tail[-300:], flush=True)
        with gzip.open(out / "twin.json.gz", "wt") as file:
            json.dump({"engine": "vllm 0.26.0", "gpu": "H200", "model": job["model"], "runs": runs}, file)


if __name__ == "__main__":
    main()
