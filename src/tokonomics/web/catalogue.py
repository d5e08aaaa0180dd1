"""What the page offers to choose from: the catalogue, the samples and scenarios to start with."""

from collections import Counter
from datetime import date
from functools import lru_cache
from typing import Any

from tokonomics import __version__
from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.engines import all_engines
from tokonomics.catalog.entries import stamp, user_path
from tokonomics.catalog.gpus import all_gpus
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offers import OLDER, cache_file, is_stale, load_offers
from tokonomics.traffic.formats import SAMPLES, TRACES
from tokonomics.types import copied, today
from tokonomics.units import plural
from tokonomics.workers import as_json

_B = 1e9

PRESETS: tuple[dict[str, Any], ...] = (
    {
        "key": "chat", "name": "Chat", "what": "People talk to it: short prompts, answers read as they come.",
        "inputs": {"model": "llama-3.1-8b", "rate": "5", "input": "lognormal:mean=1000,p99=6000",
                   "output": "lognormal:mean=250,p99=900", "slo": "ttft_p99=1,tpot_p99=50ms"},
    },
    {
        "key": "rag", "name": "Retrieval (RAG)", "what": "Long prompts full of found text, short answers.",
        "inputs": {"model": "llama-3.3-70b", "rate": "2", "input": "lognormal:mean=6000,p99=16000",
                   "output": "lognormal:mean=300,p99=1000", "slo": "ttft_p99=2,tpot_p99=60ms"},
    },
    {
        "key": "code", "name": "Code completion", "what": "Long prompts, a line or two of answer, at once.",
        "inputs": {"model": "qwen2.5-coder-7b", "rate": "10", "input": "sample:azure-code",
                   "output": "sample:azure-code", "slo": "e2e_p95=1.5"},
    },
    {
        "key": "batch", "name": "Batch work", "what": "Documents overnight: no SLO is set, price is all.",
        "inputs": {"model": "qwen3-30b-a3b", "tokens_per_month": "20B", "input": "2000", "output": "400",
                   "offline": True},
    },
    {
        "key": "agents", "name": "Agents", "what": "Many turns over a growing context, tool calls between them.",
        "inputs": {"model": "gpt-oss-120b", "rate": "3", "input": "uniform:2000-30000",
                   "output": "lognormal:mean=500,p99=2000", "slo": "ttft_p95=4,tpot_p95=50ms"},
    },
)  # fmt: skip
"""Round numbers of our own to start from, not measurements; sample: takes the lengths of a public log."""


AsOf = tuple[date, int, int]


def prices_as_of() -> AsOf:
    """Changes with the day, the user's own catalogue and the fetched prices; so does every answer."""
    return today(), stamp(user_path()), stamp(cache_file())


@lru_cache(maxsize=1)
def catalogue_json(as_of: AsOf) -> bytes:
    """The catalogue as JSON, put together anew when something behind it has changed."""
    return as_json(catalogue())


@lru_cache(maxsize=1)
def apis_json(as_of: AsOf) -> bytes:
    """The APIs and their prices, likewise: they are many, and one view alone asks for them."""
    names = ("key", "host", "model", "input_usd_per_mtok", "output_usd_per_mtok")
    return as_json([copied(api, *names) for api in list_apis()])


def catalogue() -> dict[str, Any]:
    """Everything the page's menus hold, but for the APIs."""
    offers = load_offers()
    sold = Counter(offer.gpu for offer in offers)
    quoted = max(offer.date for offer in offers)
    old = f": {OLDER}, run `tokonomics offers --refresh`" if is_stale(quoted, today()) else ""
    return {
        "models": [
            {
                **copied(model, "key", "name", "family", "is_moe"),
                "params_b": model.parameters / _B,
                "active_b": model.active_parameters / _B,
                "context": model.max_context,
                "precision": model.served.value,
            }
            for model in find_models()
        ],
        "gpus": [
            {
                **copied(gpu, "key", "name", "memory_gb", "architecture", "watts", "year"),
                "bandwidth_tb_per_s": gpu.bandwidth_bytes_per_s / 1e12,
                "offers": sold[gpu.key],
            }
            for gpu in all_gpus()
        ],
        "engines": [copied(engine, "key", "name", "version") for engine in all_engines()],
        "providers": sorted({offer.provider for offer in offers}),
        "regions": sorted({offer.region for offer in offers}),
        "samples": list(TRACES),
        "length_samples": list(SAMPLES),
        "precisions": {
            "weights": [precision.value for precision in WEIGHT_PRECISIONS],
            "kv": [precision.value for precision in KV_PRECISIONS],
        },
        "presets": list(PRESETS),
        "version": __version__,
        "today": today().isoformat(),
        "prices": f"the newest GPU price is of {quoted}, {plural((today() - quoted).days, 'day')} ago{old}",
    }
