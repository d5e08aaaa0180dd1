"""What of a reasoning model's output is thinking, which comes before the answer: ``0.7`` of it, or ``2000`` tokens.

It changes no total: thinking is output like any other. It tells when the answer begins, and what its tokens cost.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.trace import MOST_TOKENS
from tokonomics.types import Noun
from tokonomics.units import whole_number

USUAL_SHARE = 0.74
"""Of the output tokens of DeepSeek-R1 in production: 73 clients over a day, weighted by requests and tokens (ServeGen,
alibaba/ServeGen, Apache-2.0, arXiv:2505.09999); ``benchmarks/fit_thinking.py``, 2026-11-17. Clients have from a half
to nearly all."""
_FIX = "Write a share, such as 0.7, or tokens, such as 2000."


class Thinking(Noun):
    """How much of each output is thinking: a share of it, or so many tokens and at most all."""

    share: float | None = Field(default=None, ge=0, le=1)
    tokens: int | None = Field(default=None, ge=0)
    assumed: bool = False
    """Not said: the usual share of a model that reasons."""

    def of(self, output_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Thinking tokens of each output."""
        outputs = output_tokens.astype(np.float64)
        return outputs * self.share if self.share is not None else np.minimum(outputs, float(self.tokens or 0))


USUAL = Thinking(share=USUAL_SHARE, assumed=True)


def parse_thinking(text: str | None, reasons: bool) -> Thinking | None:
    """What was said, or the usual share of a model that reasons; None without any."""
    if text is None:
        return USUAL if reasons else None
    written = text.strip()
    percent = written.endswith("%")
    try:
        number = float(written.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = float(tokens) if (tokens := whole_number(written)) is not None else float("nan")
    if 0 <= number <= 1:
        return Thinking(share=number) if number else None
    if percent or not (1 < number <= MOST_TOKENS and number.is_integer()):
        raise BadInput(f"'{shorten(written)}' is neither a share nor a number of tokens", field="thinking", fix=_FIX)
    return Thinking(tokens=int(number))
