"""tokonomics: what every million LLM tokens costs, before you buy, while you run, and what to change.

    import tokonomics as tk

    tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, slo="ttft_p99=0.5")

A name is loaded when it is first used, so that importing this package costs nothing and reaches nowhere. The types of
all arguments are in ``__init__.pyi``, which ``docs/library_stub.py`` writes from the requests.
"""

import sys
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

__all__ = [
    "TokonomicsError", "breakeven", "can_run", "capacity", "curve", "fit", "fleet", "gpus", "levers", "models",
    "offers", "plan", "predict", "read_trace", "simulate", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tokonomics' has no attribute '{name}'")
    from tokonomics import errors, library

    found = errors.TokonomicsError if name == "TokonomicsError" else library.function(name)
    globals()[name] = found
    return found


class _Library(ModuleType):
    """Keep ``tk.fleet`` and ``tk.levers`` functions even after the packages of the same names are imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
