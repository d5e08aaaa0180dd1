"""Jobs of agents as published figures describe them: calls, what tools add to the prompt, answers, and tool times.

``data/agents.json`` holds the mean and some quantiles of each, with its sources (``benchmarks/reduce_agents.py``).
Between two quantiles the logarithm is interpolated, and all draws are scaled so that their mean is the published one.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.lengths import Lengths
from tokonomics.traffic.samples import FOLDER
from tokonomics.traffic.trace import Floats

DEFAULT = "coding"
_FINE = 10_000  # points at which a table's own mean is taken


@dataclass(frozen=True)
class Quantiles:
    """A distribution by its mean and some of its quantiles, from rank 0 to rank 1; all above 0."""

    mean: float
    ranks: tuple[float, ...]
    values: tuple[float, ...]

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """So many draws, one from each of as many equal parts, in random order."""
        parts = (rng.permutation(number) + rng.random(number)) / max(number, 1)
        return self._at(parts) * (self.mean / float(self._at((np.arange(_FINE) + 0.5) / _FINE).mean()))

    def _at(self, ranks: Floats) -> Floats:
        return np.asarray(np.exp(np.interp(ranks, self.ranks, np.log(self.values))), np.float64)


@dataclass(frozen=True)
class Agent:
    """What one job of an agent is like."""

    name: str
    what: str
    source: str
    head_tokens: int
    """Of the system prompt and the tools, which all jobs share."""
    calls: Quantiles
    first: Quantiles
    """Tokens of the first prompt after the shared head."""
    added: Quantiles
    """Tokens that each later prompt adds to those before it and their answers."""
    answer: Quantiles
    pause_s: Quantiles
    """From an answer to the next call: what tools take."""

    @property
    def inputs(self) -> Lengths:
        return Lengths(f"agent:{self.name}", lambda rng, number: np.maximum(self.added.draw(rng, number), 1))

    @property
    def outputs(self) -> Lengths:
        return Lengths(
            f"answers of agent:{self.name}", lambda rng, number: np.maximum(self.answer.draw(rng, number), 1)
        )


@cache
def _agents() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / "agents.json").read_text(encoding="utf-8"))
    return told


def agent_named(name: str) -> Agent:
    """One of the described agents."""
    if name not in _agents():
        known = ", ".join(f"agent:{key}" for key in _agents())
        raise BadInput(f"no agent '{shorten(name, 30)}' is described", field="sessions", fix=f"There are: {known}.")
    told = dict(_agents()[name])
    for field in ("calls", "first", "added", "answer", "pause_s"):
        ranks, values = zip(*told[field]["quantiles"], strict=True)
        told[field] = Quantiles(told[field]["mean"], ranks, values)
    return Agent(name=name, **told)
