"""The names that Tab offers for a value: models, GPUs, providers and so on; verbs and options are left to Typer.

What is listed is loaded when a shell asks for it. A parameter takes the same names in whatever verb it is.
"""

from collections.abc import Callable
from importlib import import_module

import typer

from tokonomics.errors import TokonomicsError

_MODELS, _GPUS = "catalog.load_models:model_rows {.key}", "catalog.gpus:find_gpus {.key}"
_WEIGHTS, _LENGTHS = "catalog.layers:WEIGHT_PRECISIONS {}", "traffic.formats:SAMPLES sample:{}"
_APIS, _OFFERS = "catalog.api_hosts:list_apis {.key}", "catalog.offers:load_offers"
_LISTS = {
    "api": _APIS, "apis match": _APIS, "architecture": "catalog.gpus:find_gpus {.architecture}", "draft": _MODELS,
    "engine": "catalog.engines:all_engines {.key}", "family": "catalog.load_models:find_models {.family}",
    "gpu": _GPUS, "gpus match": _GPUS, "host": "catalog.api_hosts:list_apis {.host}", "input": _LENGTHS,
    "kv": "catalog.layers:KV_PRECISIONS {}", "min_weights": _WEIGHTS, "model": _MODELS, "models match": _MODELS,
    "output": _LENGTHS, "provider": f"{_OFFERS} {{.provider}}", "region": f"{_OFFERS} {{.region}}",
    "terms": "catalog.offers:Terms {}", "trace": "traffic.formats:TRACES {}", "weights": _WEIGHTS,
}  # fmt: skip
"""By parameter, or by verb and parameter: where the list is, and how a name is written from one of its members."""


def names_of(parameter: str) -> Callable[..., list[str]]:
    """What Typer asks for the values of a parameter; after a comma, the next one of a list."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        listed = _LISTS.get(parameter) or _LISTS.get(f"{ctx.info_name} {parameter}")
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in _read(listed) if name not in before.split(",")] if listed else []

    return offered


def _read(listed: str) -> list[str]:
    """The names of a list, each once; none where the user's catalogue is broken, of which the verb complains."""
    where, _, written = listed.partition(" ")
    module, _, name = where.partition(":")
    members = getattr(import_module(f"tokonomics.{module}"), name)
    try:
        rows = members if hasattr(members, "__iter__") else members()
        return list(dict.fromkeys(written.format(row) for row in rows))
    except TokonomicsError:
        return []
