"""A model with its traffic in one text: ``qwen3-8b,rate=0.1,input=800,output=200,ttft_p99=2``.

A table of a scenario file with the same keys is read as such a text.
"""

import re

from tokonomics.errors import BadInput, did_you_mean, option, shorten

_KEYS = ("model", "rate", "input", "output")
_SLO = re.compile(r"(ttft|tpot|e2e)(_\w+)?=")
_SUCH_AS = "qwen3-8b,rate=0.1,input=800,output=200"


def model_in(text: str) -> dict[str, str]:
    """``qwen3-8b,rate=0.1,ttft_p99=2`` → its model, its traffic and its SLOs; a comma within a value stays there."""
    said: dict[str, str] = {}
    last = ""
    for place, part in enumerate(piece.strip() for piece in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if _SLO.match(part):
            last = "slo"
            said[last] = f"{said[last]},{part}" if last in said else part
        elif equals and name in _KEYS:
            if name in said:
                raise BadInput(f"'{shorten(name)}' is given twice", field="beside")
            last = name
            said[name] = value
        elif place == 0 and not equals:
            last = "model"
            said[last] = part
        elif last in ("input", "output") and part:
            said[last] += f",{part}"
        else:
            near = did_you_mean(name, [*_KEYS, "ttft_p99", "tpot_p99", "e2e_p99"], 1)
            fix = f"Write such as {option('beside', _SUCH_AS)}. {near or ''}".rstrip()
            raise BadInput(f"'{shorten(part)}' is no part of a model's traffic", field="beside", fix=fix)
    for name in ("model", "rate"):
        if not said.get(name):
            what = "names no model" if name == "model" else "has no rate"
            raise BadInput(f"'{shorten(text)}' {what}", field="beside", fix=f"Such as {option('beside', _SUCH_AS)}.")
    return said
