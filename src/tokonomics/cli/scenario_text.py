"""The scenario file that ``tokonomics init`` writes: a small case that works, and every other key, commented out.

Keys that several verbs share stand at the top, by what they are about; those of one verb under its table. The help of
each key is its flag's. A value that is commented out is the default, or an example where there is none.
"""

import json
import textwrap
from collections.abc import Sequence

from tokonomics.cli.parameters import Parameter, verb_parameters
from tokonomics.cli.scenario_file import sharers_of, shares

SCHEMA_FILE = "scenario.schema.json"
_WIDTH = 110

GROUPS: dict[str, tuple[str, ...]] = {
    "The model": ("model", "weights", "min_weights", "kv", "context", "lora_rank", "lora_adapters"),
    "The traffic: made up from a rate and lengths, or a request log": (
        "rate", "tokens_per_month", "input", "output", "arrivals", "requests", "duration", "system_prompts",
        "sessions", "tenants", "trace", "columns", "strict", "from", "to", "sample", "speed", "servegen_model",
        "servegen_scale", "seed",
    ),
    "The promise": ("slo", "offline"),
    "The hardware": (
        "gpu", "tp", "pp", "ep", "replicas", "spare", "max_utilization", "router", "no_prefix_cache", "tiers",
        "max_sequences", "max_batched_tokens", "priority", "timeout",
    ),
    "The prices": (
        "usd_per_hour", "provider", "region", "terms", "discount", "offers", "max_price",
        "max_age",
    ),
    "The engine and what is known of your machine": ("engine", "profile"),
    "What may be changed": ("draft", "draft_share", "draft_tokens", "acceptance", "without"),
    "The answer": ("quick", "top"),
}  # fmt: skip
"""Keys of more than one verb."""

WORKING: dict[str, object] = {
    "model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "slo": "ttft_p99=0.5,tpot_p99=50ms",
    "gpu": "H100",
}  # fmt: skip
"""A chat service that plan, simulate, levers and the others answer at once."""
_SEARCHED = ["L40S", "A100-80GB", "H100", "H200"]
_SEARCHERS = ("plan", "fleet", "breakeven", "compare")

EXAMPLES: dict[str, object] = {
    "weights": "fp8", "kv": "bf16", "engine": "vllm", "min_weights": "fp8", "lora_adapters": 10,
    "tokens_per_month": "2B",
    "arrivals": "gamma:5,cv=3", "requests": 20_000, "duration": "1h", "system_prompts": "20,tokens=1000,skew=1",
    "sessions": "5,think=30,limit=32000", "tenants": "10,skew=1", "trace": "azure-conv",
    "columns": "arrival=time,input=prompt,output=answer", "from": "10m", "to": "2h", "sample": 0.5, "speed": 2,
    "servegen_model": "m-small", "servegen_scale": 2, "seed": 0, "replicas": 2, "spare": 1, "max_utilization": 0.8,
    "router": "least-outstanding", "tiers": "dram=200,ssd=2000", "max_sequences": 256, "max_batched_tokens": 8192,
    "timeout": "30", "gpus": 8, "usd_per_hour": 2.5, "tokens_per_second": 2400, "machine_tokens_per_second": 20_000,
    "machine_usd_per_hour": 3.0, "replica_tokens_per_second": 2400, "provider": ["aws", "gcp"],
    "region": ["us-east-1"], "terms": ["on_demand"], "discount": ["aws=0.2"], "offers": "mine.csv", "max_price": 4.0,
    "max_age": 365, "profile": "h100.json", "draft": "llama-3.2-1b", "draft_share": 0.1, "draft_tokens": 3,
    "acceptance": 0.65, "without": ["spot"], "top": 10, "deploy": ["vllm"], "deploy_to": "out", "demand": "12x20,12x2",
    "size_classes": "4000", "hours": 168, "max_spot_share": 0.5, "max_zone_share": 0.5, "interruptions": "0.2",
    "availability": 0.9999, "startup": "5m", "autoscale": "max=8,target=32,cold=120", "outage": ["replica=0,at=600"],
    "link": 50.0, "ttl": "1h", "prompts": "prompts.jsonl", "prompt_column": "prompt", "semantic": "hashed",
    "embedding_model": "NAME", "pairs": "pairs.csv", "order": "batch,weights,kv", "api": ["openai:gpt-4o"],
    "cached_share": 0.3, "engineers": 0.5, "engineer_usd_per_month": "15k", "overhead": ["network=5%"],
    "purchase_usd": "250k", "years": 4, "usd_per_kwh": 0.12, "host_watts": 4600, "pue": 1.3, "gpu_load": 0.9,
    "residual": "10%", "cost_of_capital": "8%", "hosting_usd_per_month": "600", "maintenance": "5%",
    "staff_usd_per_year": "60k", "memory_gb": 2000, "quality": ["llama-3.1-8b=0.66"], "load": ["8x0.99,16x0"],
    "target": 0.2, "utilization": 0.5, "save": "requests.parquet", "chart": "chart.svg", "html": "report.html",
}  # fmt: skip
"""Where a flag has no default."""
_OTHERWISE: dict[tuple[str, str], object] = {("own-hardware", "save"): "mine.csv"}
"""The same key with another meaning."""


def scenario_text(verbs: Sequence[str]) -> str:
    """The file for these verbs."""
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# What is served, to whom, on what, at which prices. One file for every verb:  tokonomics VERB FILE, with",
        *(f"# {line}" for line in textwrap.wrap(", ".join(verbs) + ".", _WIDTH - 2, break_on_hyphens=False)),
        "# Every key is a flag; a flag that is typed wins. Keys at the top are for all verbs that have such a flag,",
        "# a table such as [plan] for one verb alone. Commented out: the default, or an example.",
    ]
    shared = set()
    for title, keys in GROUPS.items():
        found = [key for key in keys if sharers_of(key, verbs)]
        shared |= set(found)
        if found:
            lines += ["", f"# ── {title} {'─' * (_WIDTH - len(title) - 6)}", ""]
            lines += [line for key in found for line in _key(key, verbs)]
    if set(verbs) <= set(_SEARCHERS):
        lines = [f"gpu = {_toml(_SEARCHED)}" if line == _line("gpu", WORKING["gpu"], True) else line for line in lines]
    for verb in verbs:
        lines += _table(verb, shared, verb in _SEARCHERS and not set(verbs) <= set(_SEARCHERS))
    return "\n".join(lines) + "\n"


def _key(key: str, verbs: Sequence[str]) -> list[str]:
    takers = sharers_of(key, verbs)
    first = next(iter(takers.values()))
    return [*_comment(first.help, first), _line(key, shown(first), key in WORKING)]


def _table(verb: str, shared: set[str], searches: bool) -> list[str]:
    own = {
        each.key: each
        for each in verb_parameters(verb).values()
        if (each.key not in shared or not shares(verb, each.key)) and each.key != "json"
    }
    lines = ["", f"# ── tokonomics {verb} alone {'─' * (_WIDTH - len(verb) - 24)}", "", _on(f"[{verb}]", searches)]
    if searches:
        lines += ["# This verb compares GPUs: these instead of the one above.", f"gpu = {_toml(_SEARCHED)}"]
    for key, each in own.items():
        lines += [*_comment(each.help, each), _line(key, _OTHERWISE.get((verb, key), shown(each)), False)]
    return lines if own or searches else []


def shown(parameter: Parameter) -> object:
    """A value of a key: one that works, the default, or an example."""
    key = parameter.key
    if key in WORKING:
        return WORKING[key]
    if parameter.type is bool:
        return True
    found = EXAMPLES.get(key, parameter.default) if parameter.default in (None, 0) else parameter.default
    return found[0] if isinstance(found, list) and not parameter.is_list else found


def _comment(text: str, parameter: Parameter) -> list[str]:
    default = f" Without: {parameter.default_text}." if parameter.default_text else ""
    return [f"# {line}" for line in textwrap.wrap(text + default, _WIDTH - 2, break_on_hyphens=False)]


def _line(key: str, value: object, works: bool) -> str:
    return _on(f"{key} = {_toml(value)}", works)


def _on(text: str, works: bool) -> str:
    return text if works else f"#{text}"


def _toml(value: object) -> str:
    # Strings, numbers, booleans and lists of them are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
