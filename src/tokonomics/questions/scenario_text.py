"""The scenario file that ``tokonomics init`` writes: a small case that works, and every other key, commented out.

Keys that several verbs share stand at the top, by what they are about; those of one verb under its table. The help of
each key is its flag's. A value that is commented out is the default, or an example where there is none.
"""

import json
import textwrap
from collections.abc import Sequence

from tokonomics.questions.request import Parameter
from tokonomics.questions.scenario import WORKING, sharers_of, shares, shown
from tokonomics.questions.verbs import find_verb

SCHEMA_FILE = "scenario.schema.json"
_WIDTH = 110

GROUPS: dict[str, tuple[str, ...]] = {
    "The model": ("model", "weights", "min_weights", "kv", "context", "lora_rank", "lora_adapters"),
    "The traffic: made up from a rate and lengths, or a request log": (
        "rate", "tokens_per_month", "input", "output", "arrivals", "requests", "duration", "system_prompts",
        "sessions", "tenants", "trace", "columns", "strict", "from", "to", "sample", "speed", "servegen_model",
        "servegen_scale", "seed",
    ),
    "The latency targets": ("slo", "offline"),
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

_SEARCHED = ["L40S", "A100-80GB", "H100", "H200"]
_SEARCHERS = ("plan", "fleet", "breakeven", "compare")


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
        for each in find_verb(verb).keys.values()
        if (each.key not in shared or not shares(verb, each.key)) and each.key != "json"
    }
    lines = ["", f"# ── tokonomics {verb} alone {'─' * (_WIDTH - len(verb) - 24)}", "", _on(f"[{verb}]", searches)]
    if searches:
        lines += ["# This verb compares GPUs: these instead of the one above.", f"gpu = {_toml(_SEARCHED)}"]
    for key, each in own.items():
        lines += [*_comment(each.help, each), _line(key, shown(each), False)]
    return lines if own or searches else []


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
