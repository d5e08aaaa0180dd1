"""Debian's Prometheus on loopback, scraping five times a second what a test tells it to.

Targets come from a file that may be rewritten while it runs. Tests wait by asking it until it has seen what they wrote.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_missing = not (shutil.which("prometheus") and shutil.which("promtool"))


def needs_promtool(test: F) -> F:
    """Skips where it is not installed; CI installs it."""
    reason = "prometheus and promtool are not installed (Debian: apt-get install prometheus)"
    marked: F = pytest.mark.skipif(_missing, reason=reason)(test)
    return marked


def needs_prometheus(test: F) -> F:
    """Likewise; and slow, since Prometheus looks at its list of targets only every five seconds."""
    marked: F = pytest.mark.slow(needs_promtool(test))
    return marked


CONFIG = """\
global:
  scrape_interval: 200ms
  scrape_timeout: 200ms
scrape_configs:
  - job_name: engines
    file_sd_configs: [{files: [%(targets)s]}]
"""


class RealPrometheus:
    """Its address, and the targets it scrapes."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self._targets = folder / "targets.json"

    def scrape(self, targets: Mapping[str, Mapping[str, str]]) -> None:
        """Addresses such as 127.0.0.1:8000, with the labels that each gets."""
        rows = [{"targets": [address], "labels": labels} for address, labels in targets.items()]
        fresh = self.folder / "fresh.json"
        fresh.write_text(json.dumps(rows))
        fresh.replace(self._targets)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query; raises what Prometheus refuses."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]  # type: ignore[no-any-return]

    def wait_for(self, expression: str, count: int = 1) -> list[dict[str, Any]]:
        """Ask until that many series come back."""
        return until(lambda: self.query(expression), lambda found: len(found) == count, f"{count} of {expression}")

    def wait_for_any(self, expression: str) -> list[dict[str, Any]]:
        """Ask until a series comes back: between a scrape that took too long and the next there is none."""
        return until(lambda: self.query(expression), bool, f"any of {expression}")

    @contextmanager
    def running(self) -> Iterator["RealPrometheus"]:
        self.scrape({})
        config = self.folder / "prometheus.yml"
        config.write_text(CONFIG % {"targets": self._targets})
        log = (self.folder / "log").open("w")
        flags = [f"--config.file={config}", f"--storage.tsdb.path={self.folder / 'data'}", "--log.level=warn"]
        server = subprocess.Popen(
            ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
        )
        try:
            until(self._ready, bool, f"prometheus to start: {(self.folder / 'log').read_text()[-500:]}")
            yield self
        finally:
            server.terminate()
            server.wait(30)
            log.close()

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


def until(ask: Callable[[], T], good: Callable[[T], bool], what: str, patience_s: float = 30.0) -> T:
    """Ask again and again; how long it takes is no part of what is claimed."""
    end = time.monotonic() + patience_s
    while not good(found := ask()):
        assert time.monotonic() < end, f"waited in vain for {what}; last: {found}"
        time.sleep(0.02)
    return found


def vllm_page(counts: Mapping[str, float], model: str = "llama", engines: Sequence[int] = (0,)) -> str:
    """What vLLM shows, for the names that the meter reads; counts are split evenly over data-parallel engines."""
    lines = [f"process_start_time_seconds {counts.get('started', 1.7e9)}"]
    for engine in engines:
        labels = f'engine="{engine}",model_name="{model}"'
        share = len(engines)
        lines += [
            f"vllm:prompt_tokens_total{{{labels}}} {counts['input'] / share}",
            f"vllm:prompt_tokens_cached_total{{{labels}}} {counts.get('cached', 0) / share}",
            f"vllm:generation_tokens_total{{{labels}}} {counts['output'] / share}",
            f"vllm:iteration_tokens_total_count{{{labels}}} {counts['output'] / share}",
            f"vllm:num_requests_running{{{labels}}} {counts.get('running', 0)}",
            f"vllm:num_requests_waiting{{{labels}}} 0",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
        ]
    return "\n".join(lines) + "\n"


def sglang_page(counts: Mapping[str, float], model: str = "qwen") -> str:
    labels = f'model_name="{model}",engine_type="unified"'
    return (
        f"sglang:prompt_tokens_total{{{labels}}} {counts['input']}\n"
        f"sglang:generation_tokens_total{{{labels}}} {counts['output']}\n"
        f'sglang:cached_tokens_total{{{labels},cache_source="device"}} {counts.get("cached", 0)}\n'
        f'sglang:num_running_reqs{{{labels},tp_rank="0",dp_rank="0"}} {counts.get("running", 0)}\n'
    )
