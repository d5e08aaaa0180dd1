"""A real vLLM on one GPU, without a network: the highest rate at which each set of flags still meets the SLOs.

    python benchmarks/measure_flags.py OUT JOBS.json GROUP LIMIT_S      # on a machine with a GPU and vLLM

``JOBS.json`` is ``{GROUP: {"servers": […], "cells": […], "warm": […]}, "traces": {NAME: {"rows": […], "slo": {…}}}}``.
A cell is a server under limits of sequences and of tokens a step, and a trace at a first rate. A trace's row is ``[at,
[[seed, tokens], …], answer]``: equal seeds are equal tokens, and ``at`` is in seconds at one request a second. All
servers of the group start together and one is loaded at a time. Limits change inside the running server: vLLM's
scheduler is made to read them from a file whenever nothing runs, and larger CUDA graphs than a server started with
these limits would have are not used. Each load is the whole trace at one rate; q is the worst, over the SLOs, of the
measured percentile ÷ its limit, so that q ≤ 1 meets them. A cell's next rate follows from its loads: one each, then,
the best cells first, steps until a met and a missed rate bracket the SLO, then bisection of the widest bracket. Every
load is a line of ``OUT/GROUP.jsonl``, with the times of each request.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import asyncio
import contextlib
import gc
import json
import math
import os
import pathlib
import random
import re
import signal
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from measure_levers import FIRST_PORT, ROOT, counters, segment, start, wait

PATCHES = {
    "vllm/v1/core/sched/scheduler.py": (
        "        self.current_step += 1\n",
        """        import os as _os
        _file = _os.environ.get("TOKONOMICS_LIMITS", "")
        if _file and not self.running and _os.path.exists(_file):
            _at = _os.stat(_file).st_mtime_ns
            if _at != getattr(self, "_limits_at", None):
                import json as _json
                self._limits_at = _at
                with open(_file) as _text:
                    _limits = _json.load(_text)
                _most = self.scheduler_config
                _drafts = self.vllm_config.speculative_config
                _slots = _drafts.max_num_new_slots_for_drafting if _drafts else 0
                _sequences = min(_limits["sequences"], _most.max_num_seqs)
                _tokens = min(_limits["tokens"], _most.max_num_batched_tokens)
                self.max_num_running_reqs = _sequences
                self.max_num_scheduled_tokens = _tokens - _slots * _sequences
                _graph = min(_limits.get("graphs", min(2 * _sequences * (1 + self.num_spec_tokens), 512)), _tokens)
                _sizes = self.vllm_config.compilation_config.cudagraph_capture_sizes or []
                _graph = max([_size for _size in _sizes if _size <= _graph], default=0)
                _os.environ["TOKONOMICS_GRAPHS"] = str(_graph)
                with open(_file + ".applied", "w") as _text:
                    _json.dump([_sequences, self.max_num_scheduled_tokens, _graph], _text)
""",
    ),
    "vllm/v1/worker/gpu/cudagraph_utils.py": (
        "        key = (num_tokens, effective_loras)\n",
        """        import os as _os
        if num_tokens > int(_os.environ.get("TOKONOMICS_GRAPHS", num_tokens)):
            return BatchExecutionDescriptor(
                cg_mode=CUDAGraphMode.NONE,
                num_tokens=num_tokens,
                num_reqs=num_reqs,
                num_active_loras=effective_loras,
            )
""",
    ),
    "vllm/v1/cudagraph_dispatcher.py": (
        "            or num_tokens > max_size\n",
        '            or num_tokens > int(__import__("os").environ.get("TOKONOMICS_GRAPHS", num_tokens))\n',
    ),
    "vllm/v1/attention/backends/flash_attn.py": (
        "            and num_actual_tokens <= self.max_cudagraph_size\n",
        "            and num_actual_tokens\n"
        '            <= int(__import__("os").environ.get("TOKONOMICS_GRAPHS", num_actual_tokens))\n',
    ),
}
"""Lines of vLLM 0.26.0 that occur once and what is put before each: the scheduler reads the limits (less the slots that
drafts need, as ``VllmConfig._set_max_num_scheduled_tokens``) and finds the largest graph that such a server would have
(``VllmConfig._set_cudagraph_sizes``: twice the sequences, 512 at most); both runners and FlashAttention keep to it."""
STEP, LEAP, FINE, NEAR = math.log(1.05), math.log(1.25), math.log(1.02), math.log(1.12)
"""The shortest and the longest step in log rate before there is a bracket, the bracket that needs no more loads, and
how far behind the best of its trace a cell may be to be loaded more often."""
MOST_LOADS = 12
"""The loads after which a cell without a bracket is given up."""
LATE = 0.25
"""The share of requests that are late for their first token after which a load is broken off."""
PATIENCE = 2.0
"""How many times what the SLOs allow the longest request a load may go on after the last arrival."""
BEFORE_END_S = 3.0
"""No load starts, and none is still being played, this long before the end of the time."""
RAMP_TOKENS = 32768
"""The most prompt tokens of a warm-up's burst: four full steps of 8,192, so that steps of every size occur."""
TOKEN, USAGE = re.compile(rb'"choices": ?\[\{'), re.compile(rb'"completion_tokens": ?(\d+)')


def patch():
    for name, (line, before) in PATCHES.items():
        path = ROOT / name
        text = path.read_text()
        if before not in text:
            assert text.count(line) == 1, name
            path.write_text(text.replace(line, before + line))


def encode(trace: dict, words: int) -> list[tuple[float, int, int, bytes]]:
    """Return each row of a trace as (arrival at one request a second, prompt tokens, answer tokens, body)."""
    made = []
    for at, segments, out in trace["rows"]:
        prompt = [token for seed, count in segments for token in segment(seed, count, words)]
        made.append((at, len(prompt), out, body(prompt, out)))
    return made


def body(prompt: list[int], out: int) -> bytes:
    return json.dumps({
        "model": "m", "prompt": prompt, "max_tokens": out, "min_tokens": out, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip


class Reply(asyncio.Protocol):
    """One request on its own connection: notes when tokens come, without reading what they are."""

    def __init__(self, data, row, begun):
        self.data, self.row, self.begun = data, row, begun
        self.status, self.tail = b"", b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(self.data)
        )
        transport.write(self.data)

    def data_received(self, piece):
        if not self.status:
            self.status = piece[:400]
        self.tail = self.tail[-400:] + piece
        if TOKEN.search(piece):
            self.row["last"] = time.perf_counter() - self.begun
            self.row.setdefault("first", self.row["last"])
        if piece.endswith(b"0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(None)


async def ask(port, data, row, begun):
    """Send a request and note when it was sent and when its first and last tokens came."""
    row["at"] = time.perf_counter() - begun
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_connection(lambda: Reply(data, row, begun), "127.0.0.1", port)
    try:
        await reply.ended
    finally:
        transport.abort()
    if not reply.status.startswith(b"HTTP/1.1 200"):
        row["error"] = reply.status.decode(errors="replace") or "closed without an answer"
    elif said := USAGE.search(reply.tail):
        row["out"] = int(said[1])


async def arrive(port, request, row, begun, rate):
    at, row["in"], row["asked"], data = request
    row["planned"] = at / rate
    pause_s = row["planned"] - (time.perf_counter() - begun)
    if pause_s > 0:
        await asyncio.sleep(pause_s)
    await ask(port, data, row, begun)


def is_late(row, limit_s, now):
    return "at" in row and ("error" in row or row.get("first", now) - row["at"] > limit_s)


async def play(port, requests, rate, slo, last_s):
    """Play requests at a rate; return their rows and what broke the load off: "late", "unanswered", "clock" or None."""
    rows: list[dict] = [{} for _ in requests]
    allowed_s = slo["ttft"]["s"] + max(out for _, _, out, _ in requests) * slo["tpot"]["s"]
    ends_s = max(at for at, *_ in requests) / rate + PATIENCE * allowed_s
    broken = None
    begun = time.perf_counter()
    tasks = [
        asyncio.ensure_future(arrive(port, request, row, begun, rate))
        for request, row in zip(requests, rows, strict=True)
    ]
    waiting = set(tasks)
    while waiting and broken is None:
        _, waiting = await asyncio.wait(waiting, timeout=0.1)
        now = time.perf_counter() - begun
        if waiting and sum(is_late(row, slo["ttft"]["s"], now) for row in rows) > LATE * len(rows):
            broken = "late"
        elif waiting and now > last_s:
            broken = "clock"
        elif waiting and now > ends_s:
            broken = "unanswered"
    for task in waiting:
        task.cancel()
    failed = await asyncio.gather(*tasks, return_exceptions=True)
    for row, error in zip(rows, failed, strict=True):
        if isinstance(error, Exception):
            row["error"] = repr(error)[:200]
    return rows, broken


def figures(row: dict, now: float = math.inf) -> tuple[float, float | None]:
    """Return a request's TTFT and TPOT; what was not answered takes until ``now``, and one token has no TPOT."""
    if "at" not in row or "error" in row:
        return math.inf, math.inf
    answered = row.get("out") == row["asked"] and "last" in row
    ttft = row.get("first", now) - row["at"]
    if not answered:
        return ttft, (math.inf if now == math.inf else 0.0)
    return ttft, ((row["last"] - row["first"]) / (row["out"] - 1) if row["out"] > 1 else None)


def percentile(values: list[float], share: float) -> float:
    """Return the value that ``share`` % of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)] if ordered else 0.0


def score(rows: list[dict], slo: dict, now: float = math.inf) -> tuple[float, dict[str, float]]:
    """Return q and the percentiles of rows: the worst of percentile ÷ limit over the SLOs."""
    taken = [figures(row, now) for row in rows]
    found = {
        name: percentile([value for pair in taken if (value := pair[place]) is not None], slo[name]["percentile"])
        for place, name in enumerate(("ttft", "tpot"))
    }
    return max(found[name] / slo[name]["s"] for name in found), found


def bracket(loads: list[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return the highest rate that was met and the lowest missed rate above it; None where there is none."""
    met = max((rate for rate, q in loads if q <= 1), default=None)
    missed = min((rate for rate, q in loads if q > 1 and (met is None or rate > met)), default=None)
    return met, missed


def next_rate(first: float, loads: list[tuple[float, float]]) -> float:
    """Return the rate of a cell's next load, given the (rate, q) of those before."""
    if not loads:
        return first
    met, missed = bracket(loads)
    if met is not None and missed is not None:
        return math.sqrt(met * missed)
    up = missed is None
    rate, q = max(loads) if up else min(loads)
    if len(loads) == 1:
        return rate * math.exp(STEP if up else -STEP)
    others = [(r, s) for r, s in loads if r != rate and s < math.inf]
    step = LEAP if q == math.inf else STEP
    if others and q < math.inf:
        near, its = min(others, key=lambda load: abs(load[0] - rate))
        slope = math.log(q / its) / math.log(rate / near)
        if slope > 0:
            step = abs(math.log(q)) / slope
    step = min(max(step, STEP), LEAP)
    return rate * math.exp(step if up else -step)


def estimate(loads: list[tuple[float, float]]) -> float:
    """Return about the rate that a cell holds, from its loads so far."""
    met, missed = bracket(loads)
    if met is not None and missed is not None:
        return math.sqrt(met * missed)
    rate, q = min(loads, key=lambda load: abs(math.log(min(load[1], 9.0))))
    return float(rate / min(q, 1.5) ** 0.5)


def urgency(place: int, loads: list[tuple[float, float]], best: float) -> tuple[int, int, float, int] | None:
    """Return a key: the least is loaded next; None for a cell that needs no more loads.

    Every cell first; then those that may be the best of their trace, until their bracket is fine; the others last.
    """
    if not loads:
        return 0, 0, 0.0, place
    behind = math.log(best / estimate(loads))
    rank = 1 if behind < NEAR else 2 if behind < 3 * NEAR else 3
    met, missed = bracket(loads)
    if met is None or missed is None:
        return (rank, 0, len(loads), place) if len(loads) < MOST_LOADS else None
    gap = math.log(missed / met)
    return (rank, 1, -gap, place) if gap > FINE * rank**2 else None


def write_limits(path, limits):
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(limits))
    fresh.replace(path)


def empty(port, limit_s):
    """Drop the prefix cache once no request holds any of it; return the seconds it took, or None where it never did."""
    began, done = time.time(), 0
    request = urllib.request.Request(f"http://127.0.0.1:{port}/reset_prefix_cache", method="POST")
    while time.time() - began < limit_s:
        with contextlib.suppress(Exception), urllib.request.urlopen(request, timeout=10) as reply:
            done = done + 1 if json.loads(reply.read()).get("success") else 0
            if done == 2:  # what was cancelled while it waited would hold some by the second time
                return round(time.time() - began, 2)
        time.sleep(0.05)
    return None


async def ramp(port, requests, words, answer, times, limit_s):
    """Send bursts of 1, 2, 4 … 256 requests, of other tokens than the trace's, whose answers end one after another."""
    begun, sent = time.perf_counter(), 0
    draw = random.Random(7)
    for size in [2**power for power in range(9)] * times:
        bodies = [
            body(
                draw.choices(range(1000, words), k=min(requests[place % len(requests)][1], RAMP_TOKENS // size)),
                1 + place * answer // size,
            )
            for place in range(size)
        ]
        left_s = limit_s - (time.perf_counter() - begun)
        if left_s <= 0:
            break
        tasks = [asyncio.ensure_future(ask(port, data, {}, begun)) for data in bodies]
        done, late = await asyncio.wait(tasks, timeout=left_s)
        sent += len(done)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"answered": sent, "seconds": round(time.perf_counter() - begun, 1)}


class RunningServer:
    """A server that runs: its port, its files and what its log said since the last look."""

    def __init__(self, given, place):
        self.name, self.port = given["name"], FIRST_PORT + place
        self.words = min(given["config"]["vocab_size"], 100_000)
        self.limits = ROOT / f"{self.name}.limits.json"
        for path in (self.limits, pathlib.Path(f"{self.limits}.applied")):
            path.unlink(missing_ok=True)
        env = given.get("env", {}) | {"TOKONOMICS_LIMITS": str(self.limits)}
        self.process = start(given | {"env": env}, self.port)
        self.log, self.read = ROOT / f"{self.name}.log", 0

    def news(self):
        """Return what the log has more than at the last call."""
        with self.log.open("rb") as log:
            log.seek(self.read)
            text = log.read()
        self.read += len(text)
        return text.decode(errors="replace")

    def applied(self):
        with contextlib.suppress(Exception):
            return json.loads(pathlib.Path(f"{self.limits}.applied").read_text())
        return None


def measure(cell, server, requests, slo, rate, left_s):
    """Play one load of a cell; return its line."""
    write_limits(server.limits, {name: cell[name] for name in ("sequences", "tokens", "graphs") if name in cell})
    waited = empty(server.port, min(20.0, left_s))
    server.news()
    before, began, worked = counters(server.port), time.time(), time.process_time()
    gc.disable()
    rows, broken = asyncio.run(play(server.port, requests, rate, slo, left_s - (waited or 0.0)))
    gc.enable()
    took = time.time() - began
    after = counters(server.port)
    q, found = score(rows, slo)
    sent = [row for row in rows if "at" in row]
    line = {
        "name": cell["name"], "server": server.name, "trace": cell["trace"], "rate": round(rate, 5),
        "q": round(q, 5) if q < math.inf else None,
        **{f"{name}_s": round(value, 5) if value < math.inf else None for name, value in found.items()},
        "seconds": round(took, 2), "emptied_s": waited, "broken": broken, "applied": server.applied(),
        "client_cpu": round((time.process_time() - worked) / took, 3),
        "lag_ms": round(1e3 * max((row["at"] - row["planned"] for row in sent), default=0.0), 1),
        "counters": {name: after[name] - before.get(name, 0.0) for name in after},
        "compiled": server.news().count("JIT compilation"),
        "errors": [row["error"] for row in rows if "error" in row][:3],
        "rows": [
            [row["in"], row.get("out"), *(None if row.get(at) is None else round(row[at], 4)
                                          for at in ("at", "first", "last"))]
            for row in rows
        ],
    }  # fmt: skip
    about = score(sent, slo, took)[0]  # late requests by their age, those never sent left out
    if q == math.inf and about < math.inf:  # enough to choose the next rate
        line["about"] = round(max(about, 1.01), 5)
    return line


def main():
    out, jobs, group = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text()), sys.argv[3]
    began, limit_s = time.time(), float(sys.argv[4])

    def left_s():
        return limit_s - BEFORE_END_S - (time.time() - began)

    out.mkdir(parents=True, exist_ok=True)
    job, traces = jobs[group], jobs["traces"]
    patch()
    servers = {given["name"]: RunningServer(given, place) for place, given in enumerate(job["servers"])}
    try:
        with (out / f"{group}.jsonl").open("a") as sink:
            run(job, traces, servers, out, sink, left_s)
    finally:
        for server in servers.values():
            with contextlib.suppress(Exception):
                os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()
        print("done after", round(time.time() - began), "s", flush=True)


def run(job, traces, servers, out, sink, left_s):
    """Load the cells of a group until the time is over or every bracket is fine."""
    ending_s = left_s()

    def keep(line):
        sink.write(json.dumps(line) + "\n")
        sink.flush()

    cells = job["cells"]
    bodies = {
        (cell["trace"], servers[cell["server"]].words): encode(traces[cell["trace"]], servers[cell["server"]].words)
        for cell in cells
    }  # encoded while the servers start
    ready = wait({name: (server.process, server.port) for name, server in servers.items()}, min(330.0, left_s() - 30))
    print("ready", {name: round(took) for name, took in ready.items()}, flush=True)
    for name, server in servers.items():
        text = server.news()
        said = re.findall(
            r".*(?:KV cache size|graph captur|took|Asynchronous|attention backend|model runner).*", text, re.I
        )
        keep({"server": name, "ready_s": ready.get(name), "said": [line[-220:] for line in said[-30:]]})
        if name not in ready:
            (out / f"{name}.failed.txt").write_text(text[-6000:])
            print(name, "did not come up:", text[-1500:], flush=True)
    cells = [cell for cell in cells if cell["server"] in ready]

    async def warm():
        given = {item["server"]: item for item in job.get("warm", [])}
        first = {cell["server"]: cell["trace"] for cell in reversed(cells)}
        ramps = {
            name: ramp(
                servers[name].port,
                bodies[given.get(name, {}).get("trace", trace), servers[name].words],
                servers[name].words,
                given.get(name, {}).get("answer", 64),
                given.get(name, {}).get("times", 1),
                min(given.get(name, {}).get("limit_s", 40.0), left_s()),
            )
            for name, trace in first.items()
        }
        return dict(zip(ramps, await asyncio.gather(*ramps.values()), strict=True))

    warmed = asyncio.run(warm())
    for name, took in warmed.items():
        keep({"warmed": name, "compiled": servers[name].news().count("JIT compilation")} | took)
    print("warmed", warmed, flush=True)
    gc.collect()
    gc.freeze()

    loads: list[list[tuple[float, float]]] = [[] for _ in cells]
    repeated: set[int] = set()
    given_up: set[int] = set()
    while True:
        places = [place for place in range(len(cells)) if place not in given_up]
        best = {
            trace: max((estimate(loads[at]) for at, cell in enumerate(cells) if cell["trace"] == trace and loads[at]),
                       default=1.0)
            for trace in traces
        }  # fmt: skip
        asked = ((place, urgency(place, loads[place], best[cells[place]["trace"]])) for place in places)
        keys = [key for _, key in asked if key is not None]
        if not keys:
            break
        place = min(keys)[3]
        cell, server = cells[place], servers[cells[place]["server"]]
        requests, slo = bodies[cell["trace"], server.words], traces[cell["trace"]]["slo"]
        rate = next_rate(cell["rate"], loads[place])
        typical_s = slo["ttft"]["s"] + percentile([out for _, _, out, _ in requests], 90) * slo["tpot"]["s"]
        if left_s() < requests[-1][0] / rate + typical_s:
            given_up.add(place)  # a cell at a higher rate may still have the time
            continue
        began_s = ending_s - left_s()
        line = {"began_s": round(began_s, 1)} | measure(cell, server, requests, slo, rate, left_s())
        keep(line)
        print(
            f"{began_s:6.1f} {cell['name']} {line['applied']} {rate:.3f}/s q {line['q'] or line.get('about')}"
            f" {line['broken'] or ''} {line['seconds']:.1f} s cpu {line['client_cpu']} {line['errors'][:1] or ''}",
            flush=True,
        )
        if server.process.poll() is not None:
            print(server.name, "ended:", server.news()[-1500:], flush=True)
            given_up |= {place for place, cell in enumerate(cells) if cell["server"] == server.name}
        elif line["broken"] == "clock":
            given_up.add(place)
        elif line["compiled"] and place not in repeated:
            repeated.add(place)  # kernels were compiled meanwhile: the same load once more
        else:
            loads[place].append((rate, line["q"] or line.get("about", math.inf)))


if __name__ == "__main__":
    main()
