"""tokonomics: what every million LLM tokens costs, before you buy, while you run, and what to change.

    import tokonomics as tk

    tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, slo="ttft_p99=0.5")

A name is loaded when it is first used, so that importing this package costs nothing and reaches nowhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokonomics.api.catalogue import gpus, models, offers
    from tokonomics.api.planning import breakeven, fleet, levers, plan
    from tokonomics.api.serving import capacity, read_trace, simulate, trace
    from tokonomics.api.steps import curve, fit, predict
    from tokonomics.errors import TokonomicsError

__version__ = "0.1.0"

__all__ = [
    "TokonomicsError", "breakeven", "capacity", "curve", "fit", "fleet", "gpus", "levers", "models", "offers", "plan",
    "predict", "read_trace", "simulate", "trace",
]  # fmt: skip

_HOMES = {
    "tokonomics.api.planning": ("plan", "fleet", "levers", "breakeven"),
    "tokonomics.api.serving": ("simulate", "capacity", "trace", "read_trace"),
    "tokonomics.api.steps": ("fit", "predict", "curve"),
    "tokonomics.api.catalogue": ("models", "gpus", "offers"),
    "tokonomics.errors": ("TokonomicsError",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(import_module(home), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'tokonomics' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
