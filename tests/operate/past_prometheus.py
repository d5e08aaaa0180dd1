"""A Prometheus on loopback with a made-up past: vLLM servers at known rates, scraped once a minute."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from aiohttp import web
from tests.measure.served import served

EVERY_S = 60.0
PROMPT, ANSWER, FOUND = 1000, 300, 250  # tokens of every request; found in the cache
BOUNDS = ("500", "1000", "2000", "+Inf")


def _counted(since_s: float, rate: float) -> dict[tuple[str, str], float]:
    """Return what a server has counted, by metric and bucket."""
    requests = float(int(since_s * rate))
    found = {
        ("vllm:prompt_tokens_total", ""): requests * PROMPT, ("vllm:prompt_tokens_cached_total", ""): requests * FOUND,
        ("vllm:generation_tokens_total", ""): requests * ANSWER, ("vllm:request_success_total", ""): requests,
        ("vllm:num_requests_running", ""): 2.0, ("vllm:num_requests_waiting", ""): 0.0,
        ("vllm:time_to_first_token_seconds_sum", ""): requests * 0.1,
        ("vllm:time_to_first_token_seconds_count", ""): requests,
        ("vllm:request_time_per_output_token_seconds_sum", ""): requests * 0.02,
        ("vllm:request_time_per_output_token_seconds_count", ""): requests,
    }  # fmt: skip
    for name, tokens in (("prompt", PROMPT), ("generation", ANSWER)):
        for bound in BOUNDS:
            found[f"vllm:request_{name}_tokens_bucket", bound] = requests * (tokens <= float(bound))
        found[f"vllm:request_{name}_tokens_sum", ""] = requests * tokens
        found[f"vllm:request_{name}_tokens_count", ""] = requests
    return found


@contextmanager
def past_prometheus(began: float, rates: dict[str, float], asked: list[str] | None = None) -> Iterator[str]:
    """Yield its address; ``rates`` are the requests a second of each pod since it ``began``."""

    def labels(pod: str, name: str, bound: str = "") -> dict[str, str]:
        known = {"__name__": name, "job": "engines", "namespace": "prod", "pod": pod, "instance": f"{pod}:8000"}
        return known | ({"model_name": "llama-3.1-8b"} if name != "up" else {}) | ({"le": bound} if bound else {})

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        query, at = str(form["query"]), float(str(form["time"]))
        if asked is not None:
            asked.append(query)
        span = re.search(r"\[(\d+)ms\]$", query)
        if span is None:
            result = [{"metric": labels(pod, "up"), "value": [at, "1"]} for pod in rates]
            return reply("vector", result)
        first = at - int(span[1]) / 1000
        times = [began + step * EVERY_S for step in range(int((at - began) // EVERY_S) + 1)]
        times = [time for time in times if time > first]
        series: dict[tuple[str, str, str], list[list[object]]] = {}
        for pod, rate in rates.items():
            for time in times:
                counted = (
                    {("up", ""): 1.0} if '"process_start' in query or "|up" in query else _counted(time - began, rate)
                )
                for (name, bound), value in counted.items():
                    series.setdefault((pod, name, bound), []).append([time, repr(value)])
        return reply("matrix", [{"metric": labels(*key), "values": values} for key, values in series.items()])

    def reply(kind: str, result: Sequence[Mapping[str, object]]) -> web.Response:
        return web.Response(text=json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}))

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", answer)
    with served(app) as address:
        yield address
