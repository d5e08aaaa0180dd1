"""What a serving engine adds to its kernels, by engine and era: the host's part of a step, and a request's outside any.

**A step.** The host schedules it, launches its kernels and looks at its results. A decode step is one CUDA graph: a
fixed time and one for each sequence. A step with prompts is launched layer by layer: in captured pieces up to
``graph_tokens`` tokens, kernel by kernel above, and a layer of experts has more kernels than a dense one, the more so
where activations are quantised before each product. Older engines do all that between two steps; newer ones
(``overlapped``) compose and launch the next step while the GPU computes this one. Then the host shows only where it is
the slower of the two, a request that arrives waits for one step more, and the results of a step are looked at only when
the next has been launched.

**A request.** Before its first step it is received and checked (``request_s``, one process's own work, for which
requests that come together queue) and tokenised (``token_s``); ``reach_s`` is the rest of the way in, and ``answer_s``
the way of a token out to the client.

Fitted by ``benchmarks/fit_engines.py``: steps and requests on logs of a real vLLM (``benchmarks/data``), eras without
such a log on published results; what stands in for what is not measured says so.
"""

import re
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tokonomics.catalog.engines import Engine
from tokonomics.physics.curves import shipped
from tokonomics.types import Badge, Noun

NEWEST = 2026
TOGETHER = 256
"""Requests that the front end takes together at the most: the largest burst that was measured (256 users at once)."""
LAUNCHES = ("piece_s", "layer_s", "expert_layer_s", "quantised_layer_s")
REQUESTS = ("request_s", "token_s", "reach_s", "answer_s")
"""Fields of ``Overhead`` that a slower or faster host scales together: of launches, and of requests."""


class Layers(Noun):
    """Time that no kernel curve accounts for."""

    layer_s: NonNegativeFloat  # each layer: launches, the tail of one kernel and the ramp of the next
    expert_launch: float = Field(default=1.0, ge=0, le=1)  # share of an expert layer's launches that is left in a graph
    source: str


class Overhead(Noun):
    """An engine's own time."""

    since_version: str
    since_year: int  # of rows that state no version
    until_version: str = ""  # of an era of some ``architectures`` alone, while others' software was ahead
    architectures: tuple[str, ...] = ()  # none: of all
    step_s: NonNegativeFloat  # the host's work on any step; on a decode step, with ``sequence_s``, all of it
    sequence_s: NonNegativeFloat
    overlapped: bool  # the host composes and launches the next step while the GPU computes this one
    fused: bool = False  # activations are quantised to FP8 by the kernel before a product, not by one of their own
    graph_tokens: NonNegativeInt = 0  # tokens up to which a step is launched in captured pieces; 0: never
    piece_s: NonNegativeFloat = 0.0  # launching the captured pieces of one layer, and the attention between them
    layer_s: NonNegativeFloat = 0.0  # launching a layer kernel by kernel
    expert_layer_s: NonNegativeFloat = 0.0  # the same of a layer with experts
    quantised_layer_s: NonNegativeFloat = 0.0  # and where their activations are quantised; 0: not told apart
    unpacks: bool = False  # prompts are multiplied with weights that were unpacked to FP16 in memory, and sums are FP16
    score_passes: NonNegativeFloat = 0.0
    """Of prompt attention that keeps the scores of all pairs in memory, in 32 bits: times that they cross it.
    0: kernels that keep them on the chip."""
    head_reads: float = Field(default=0.0, ge=0, le=1)
    """Of decode attention that reads keys and values once for each query head: the share of the bandwidth at which it
    does. 0: kernels as they were timed, which read them once for all heads that share them."""
    request_s: NonNegativeFloat = 0.0
    token_s: NonNegativeFloat = 0.0
    reach_s: NonNegativeFloat = 0.0
    answer_s: NonNegativeFloat = 0.0
    badge: Badge
    source: str

    def host_s(self, batch: ArrayLike) -> NDArray[np.float64]:
        """The host's work on a decode step."""
        return self.step_s + self.sequence_s * np.asarray(batch, np.float64)

    def launch_s(
        self, tokens: ArrayLike, layers: float, expert_layers: float, quantised: bool = False
    ) -> NDArray[np.float64]:
        """The host's work on a step that is not one graph: with prompts, or of more sequences than are captured."""
        pieces = (layers + expert_layers) * self.piece_s
        expert_s = (quantised and self.quantised_layer_s) or self.expert_layer_s
        one_by_one = layers * self.layer_s + expert_layers * expert_s
        captured = np.asarray(tokens, np.float64) <= self.graph_tokens
        base = self.step_s if self.overlapped else 0.0  # else it follows the step, whatever it held
        return np.asarray(base + np.where(captured, min(pieces, one_by_one), one_by_one))

    def request_seconds(self, input_tokens: float) -> float:
        """A lone request's time outside any step: until the engine has it, and from its first token to its client."""
        return self.request_s + self.token_s * input_tokens + self.reach_s + self.answer_s


class _Fitted(Noun):
    layers: Layers
    engines: dict[str, tuple[Overhead, ...]]  # of each, its eras in order


@cache
def _fitted() -> _Fitted:
    return _Fitted.model_validate(shipped("overhead.toml"))


def layers() -> Layers:
    """What lies between the kernels of a model."""
    return _fitted().layers


def overhead(
    engine: Engine, year: int = NEWEST, version: str | None = None, architecture: str | None = None
) -> Overhead:
    """The engine's own time: of the era its version belongs to, or else its year; of the first era if older.

    Of eras that begin with the same version the year decides.
    """
    given = version_numbers(version)
    eras = [
        era
        for era in _fitted().engines[engine.key]
        if not era.architectures or (architecture in era.architectures and given < version_numbers(era.until_version))
    ]
    begun = [era for era in eras if (version_numbers(era.since_version) <= given if given else era.since_year <= year)]
    if not begun:
        return eras[0]
    alike = [era for era in begun if era.since_version == begun[-1].since_version]
    return next((era for era in reversed(alike) if era.since_year <= year), alike[0])


def version_numbers(version: str | None) -> tuple[int, ...]:
    """``0.12.0`` → (0, 12); empty where there is no such number."""
    found = re.search(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else ()
