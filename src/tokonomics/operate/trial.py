"""Measure on a running engine the highest rate at which the user's requests meet their targets.

A trial replays the same requests faster or slower, a few loads long, from the rate that is expected of the flag set.
It is as long as its percentiles need: ten requests beyond the one that is promised, so that a tail is not one request.
A few requests first are thrown away: connections, compiled kernels, the first prompt. A load during which the engine
says that it compiled, and the first of a server if it misses, may be slow for that alone: it is played again, and only
the second counts. Each load asks with words of its own, so that no cache knows them from the load before.
"""

import json
import math
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np

from tokonomics.addresses import BenchTarget
from tokonomics.errors import BadInput
from tokonomics.measure.bench.loads import Budget, Progress
from tokonomics.measure.bench.run import BenchSettings, LoadInterrupted, run_bench
from tokonomics.operate.record import FlagTrial, ReplayedRequests, TrialLoad, requests_of
from tokonomics.operate.replay_rate import at_rate, highest_held
from tokonomics.operate.server import RunningServer
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace

BEYOND = 10
"""Requests beyond a promised percentile: their number then varies by a third by chance, and the rate, on which a
tail depends steeply, by little. Our choice; 1,000 requests for a p99."""
LEAST_REQUESTS = 100
MOST_LOADS, CLOSE_ENOUGH = 5, 1.05
"""Loads of a trial without those played again, and the gap between a rate that holds and one that does not at which it
ends; the rate is then read off the line between the two."""
_WARM_UP = 0.05  # share of the requests, thrown away
_FEWEST_WARM = 8
_COMPILED = re.compile(r"JIT compilation|[Cc]ompiling a graph|Triton.*autotun|autotun", re.ASCII)
"""What engines say when a kernel is compiled while they serve: vLLM 0.26's "JIT compilation during inference"."""
_ANSWER_S, _MOST_BYTES = 2.0, 4_000_000

Keep = Callable[[FlagTrial], None]
Made = TypeVar("Made")


def requests_for(slos: tuple[Slo, ...]) -> int:
    """Return how many requests a load needs for every percentile that is promised."""
    ranks = [float(slo.statistic[1:]) / 100 for slo in slos if slo.statistic != "mean"]
    return max([LEAST_REQUESTS, *(math.ceil(round(BEYOND / (1 - rank), 6)) for rank in ranks)])


@dataclass(frozen=True)
class Played:
    """What every trial of a search plays."""

    target: BenchTarget
    model: str | None  # by the server's name for it; None: its only one
    trace: Trace
    requests: int  # of a load, at least
    slos: tuple[Slo, ...]
    timeout_s: float
    seed: int
    show: Callable[[Progress], None] | None = None
    doing: Callable[[str], None] = lambda line: None


def measured(
    trial: FlagTrial, played: Played, guess: float, keep: Keep, server: RunningServer | None = None
) -> FlagTrial:
    """Measure what a running server holds, from where the trial was left; keep it after every load."""
    known = {_key(load.rate): load for load in trial.loads if load.again is None}
    held: list[FlagTrial] = [trial]
    _check_fits(played.trace, trial.engine)
    before, is_warm = len(trial.loads), False

    def play(rate: float) -> float:
        nonlocal is_warm
        found = known.get(_key(rate))
        if found is None:
            if not is_warm:
                played.doing("warming up")
                _alive(server, partial(_warm_up, played))
                is_warm = True
            found = _counted_load(held, played, rate, keep, server, before)
        return math.inf if found.late is None else found.late

    highest_held(play, guess, close_enough=CLOSE_ENOUGH, most_loads=MOST_LOADS)
    held[0] = held[0].model_copy(update={"finished": True})
    keep(held[0])
    return held[0]


def _check_fits(trace: Trace, engine: Mapping[str, Any]) -> None:
    """Refuse requests that are longer than the server says it takes."""
    most, longest = engine.get("model_max_model_len"), int((trace.input_tokens + trace.output_tokens).max())
    if isinstance(most, int) and longest > most:
        what = f"the longest request has {longest:,} tokens, and the server takes at most {most:,} tokens"
        raise BadInput(what, where=trace.source, fix="Is the trace that of another model? Or start it with more.")


def _alive(server: RunningServer | None, ask: Callable[[], Made]) -> Made:
    """Ask a server; if it ended meanwhile, that is what is wrong, not what the client saw of it."""
    try:
        return ask()
    except LoadInterrupted:
        raise
    except BadInput as problem:
        if server is None or server.alive:
            raise
        raise BadInput(server.ended_as() or "the server ended") from problem


def _key(rate: float) -> str:
    return f"{rate:.9g}"


def _warm_up(played: Played) -> None:
    count = min(len(played.trace), max(_FEWEST_WARM, math.ceil(_WARM_UP * played.requests)))
    _play(played, played.trace.take(np.arange(count)), 0)


def _counted_load(
    held: list[FlagTrial], played: Played, rate: float, keep: Keep, server: RunningServer | None, before: int
) -> TrialLoad:
    """Play a load, a second time if the first was slow for another reason than its rate; keep both.

    ``before`` this process there were so many loads, on a server that has ended since.
    """
    again: str | None = None
    while True:
        if server is not None:
            server.mark()
        number = len(held[0].loads)
        played.doing(f"load {number + 1} at {rate:.3g} requests/s")
        load = _alive(server, partial(_load, played, rate, number + 1))
        if server is not None and not server.alive:
            raise BadInput(server.ended_as() or "the server ended")
        if again is None:
            again = _why_again(load, first=number == before, server=server)
            load = load.model_copy(update={"again": again})
        held[0] = held[0].model_copy(update={"loads": (*held[0].loads, load)})
        keep(held[0])
        if load.again is None:
            return load


def _why_again(load: TrialLoad, first: bool, server: RunningServer | None) -> str | None:
    said = server.log_lines_since_mark() if server is not None else []
    if any(_COMPILED.search(line) for line in said):
        return "the engine compiled kernels meanwhile"
    late = math.inf if load.late is None else load.late
    return "the first load of a server, and it missed" if first and late > 1 else None


def replayed(played: Played, rate: float) -> TrialLoad:
    """Warm a server up and play one load on it."""
    _warm_up(played)
    return _load(played, rate, 1)


def _load(played: Played, rate: float, number: int) -> TrialLoad:
    requests = _play(played, at_rate(played.trace, rate, played.requests, played.slos), number)
    failed = sum(each is None for each in requests.e2e_s)
    load = TrialLoad(rate=rate, late=None, failed=failed, requests=requests)
    late = load.lateness(played.slos)
    return load.model_copy(update={"late": late if math.isfinite(late) else None})


def _play(played: Played, trace: Trace, number: int) -> ReplayedRequests:
    """Replay requests, with words that no load before it used."""
    asked = BenchSettings(
        played.target,
        model=played.model,
        trace=trace,
        input=f"const:{max(1, round(trace.input_tokens.mean()))}",  # of the requests before those of the trace
        output=f"const:{max(1, round(trace.output_tokens.mean()))}",
        budget=Budget(precision=1e-9, requests=len(trace), seconds=86_400.0),
        retries=0,
        timeout_s=played.timeout_s,
        seed=played.seed + number,
    )
    (point,) = run_bench(asked, played.show).points
    return requests_of(point)


# --- what the server and the machine say of themselves --------------------------------------------------------------


_TOLD_AT: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("/version", "version", "vllm", {}),
    (
        "/get_server_info",
        "version",
        "sglang",
        {"kv_tokens": "max_total_num_tokens", "kv_dtype": "kv_cache_dtype", "memory_share": "mem_fraction_static"},
    ),
    ("/props", "build_info", "llama.cpp", {"slots": "total_slots", "context": "default_generation_settings.n_ctx"}),
)
"""Where engines tell their build, under which name, and what else they tell there, by our name for it."""
_CACHE_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def server_facts(target: BenchTarget) -> dict[str, Any]:
    """Return what a server says of its build, start and memory: vLLM, SGLang and llama.cpp each say it elsewhere."""
    base = target.models_url.rsplit("/v1/", 1)[0]
    facts: dict[str, Any] = {}
    for path, name, engine, more in _TOLD_AT:
        document = _json(base + path)
        if isinstance(said := document.get(name), str):
            told = {ours: _within(document, theirs) for ours, theirs in more.items()}
            facts |= {name: said, "engine": engine} | {ours: value for ours, value in told.items() if value is not None}
    page = _text(f"{base}/metrics") or ""
    facts |= _told_of_cache(page)
    if found := re.search(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)$", page, re.MULTILINE):
        facts["process_start_time_seconds"] = float(found[1])
    listed = _json(target.models_url).get("data")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        facts |= {f"model_{name}": listed[0][name] for name in ("id", "root", "max_model_len") if listed[0].get(name)}
        if digest := _digest_of(str(listed[0].get("root", ""))):
            facts["model_digest"] = digest
    return facts


def _within(document: Any, place: str) -> Any:
    """Return the value at a place such as ``settings.n_ctx``; None if there is none."""
    for step in place.split("."):
        document = document.get(step) if isinstance(document, dict) else None
    return document


def _told_of_cache(page: str) -> dict[str, Any]:
    """Return what vLLM says of its KV cache in the labels of ``cache_config_info``."""
    found = re.search(r"^vllm:cache_config_info\{(.*)\} ", page, re.MULTILINE)
    told = dict(_CACHE_LABEL.findall(found[1])) if found else {}
    facts: dict[str, Any] = {}
    with suppress(KeyError, ValueError):
        facts["kv_tokens"] = int(told["num_gpu_blocks"]) * int(told["block_size"])
    with suppress(KeyError, ValueError):  # newer builds count it themselves, of hybrid models too (tests/measure/pages)
        facts["kv_tokens"] = int(told["kv_cache_size_tokens"])
    with suppress(KeyError, ValueError):
        facts["memory_share"] = float(told["gpu_memory_utilization"])
    named = {"kv_dtype": told.get("cache_dtype"), "prefix_caching": told.get("enable_prefix_caching")}
    return facts | {ours: value for ours, value in named.items() if value is not None}


def _digest_of(folder: str) -> str | None:
    """Return a digest of a model in a folder of this machine: its configuration, and the size of each of its files."""
    config = Path(folder) / "config.json"
    with suppress(OSError):
        sizes = sorted((each.name, each.stat().st_size) for each in Path(folder).iterdir() if each.is_file())
        return sha256(config.read_bytes() + repr(sizes).encode()).hexdigest()
    return None


def _json(url: str) -> dict[str, Any]:
    with suppress(ValueError, TypeError):
        found = json.loads(_text(url) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _text(url: str) -> str | None:
    opener = build_opener(ProxyHandler({}))
    with suppress(OSError, ValueError), opener.open(Request(url), timeout=_ANSWER_S) as answer:
        return str(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
    return None


def machine_facts() -> dict[str, Any]:
    """Return what is known of this machine: its system, and the driver and GPUs if NVML tells."""
    facts: dict[str, Any] = {"system": platform.system(), "machine": platform.machine()}
    with suppress(Exception):  # NVML is not everywhere, and fails in many ways
        import pynvml

        pynvml.nvmlInit()
        facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(place) for place in range(pynvml.nvmlDeviceGetCount())]
        facts["gpus"] = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    return facts
