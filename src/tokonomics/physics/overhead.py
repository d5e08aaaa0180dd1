"""Model what an engine adds to its kernels, by engine and era: the host's work on a step, and time outside any step.

**A step.** The host schedules it, launches its kernels and reads its results. A decode step is one CUDA graph: a fixed
time, plus one for each sequence. A step with prompts is launched layer by layer: in captured pieces up to
``graph_tokens`` tokens, kernel by kernel above. A layer of experts has more kernels than a dense one, and still more if
activations are quantised before each product. Older engines do all this between two steps; newer ones (``overlapped``)
compose and launch the next step while the GPU computes this one. Then the host's time shows only if it is the slower of
the two, a request that arrives waits for one step more, and the results of a step are read only after the next is
launched.

**A request.** Before its first step it is received and checked (``request_s``: one process does this, so requests that
arrive together queue for it) and tokenised (``token_s``); ``reach_s`` is the rest of the way in, and ``answer_s`` a
token's way out to the client.

``benchmarks/fit_engines.py`` fits steps and requests on logs of a real vLLM (``benchmarks/data``), and eras without
such a log on published results; a value that was not measured says what it is taken from.
"""

import re
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from tokonomics.catalog.engines import Engine
from tokonomics.physics.curves import shipped
from tokonomics.types import Badge, Noun

NEWEST = 2026
TOGETHER = 256
"""The most requests that the front end takes together: the largest burst that was measured (256 users at once)."""
FORK = "+rocm"
"""What a build of AMD's fork of vLLM has in its version. Its products were tuned (Nscale, "Nscale benchmarks: updated
AMD MI300X GPUs with GEMM tuning", vLLM 0.4.3: up to 7.2 times as fast), so that the eras of some ``architectures`` are
not its own: AMD's entries to MLPerf Inference v4.1 (0.4.3+rocm614) are four times as fast as these say."""
LAUNCHES = ("piece_s", "layer_s", "expert_layer_s", "quantised_layer_s", "latent_piece_s", "latent_layer_s")
REQUESTS = ("request_s", "token_s", "reach_s", "answer_s")
"""Fields of ``Overhead`` that a slower or faster host scales together: for launches, and for requests."""
SPLIT_BELOW = 512
"""Sequences times heads up to which vLLM's paged attention splits contexts longer than as many tokens (``use_v1`` in
its ``attention/ops/paged_attn.py`` of 2024)."""
ALWAYS_SPLIT = 8192
"""Tokens of context above which it splits all of them (the same place)."""


class Host(Noun):
    """The processor that launches kernels. Hosts differ by a factor of two, and one host from minute to minute."""

    launch_s: PositiveFloat  # PyTorch launches the smallest kernel (``add_``), one after another
    source: str


class Layers(Noun):
    """Time that no kernel curve accounts for."""

    layer_s: NonNegativeFloat  # each layer: launches, the tail of one kernel and the ramp of the next
    expert_launch: float = Field(default=1.0, ge=0, le=1)  # share of an expert layer's launches that remains in a graph
    source: str


_FINE, _FINE_TO = 8, 256  # captured sizes are multiples of the first up to the second, then of twice the first


class Overhead(Noun):
    """An engine's own time."""

    since_version: str
    since_year: int  # for rows that state no version
    until_version: str = ""  # end of an era on some ``architectures`` only, while others had newer software
    architectures: tuple[str, ...] = ()  # empty: all
    step_s: NonNegativeFloat  # the host's work on any step; a decode step adds only ``sequence_s``
    sequence_s: NonNegativeFloat
    overlapped: bool  # the host composes and launches the next step while the GPU computes this one
    fused: bool = False  # activations are quantised to FP8 by the kernel before a product, not by one of their own
    captures: bool = True  # a decode step is one CUDA graph; otherwise it is launched kernel by kernel
    graph_tokens: NonNegativeInt = 0  # tokens up to which a step is launched in captured pieces; 0: never
    piece_s: NonNegativeFloat = 0.0  # launching the captured pieces of one layer, and the attention between them
    layer_s: NonNegativeFloat = 0.0  # launching a layer kernel by kernel
    expert_layer_s: NonNegativeFloat = 0.0  # the same for a layer with experts
    quantised_layer_s: NonNegativeFloat = 0.0  # the same with quantised activations; 0: not known separately
    latent_piece_s: NonNegativeFloat = 0.0  # what latent attention adds to a layer in captured pieces
    latent_layer_s: NonNegativeFloat = 0.0  # what it adds to a layer launched kernel by kernel
    unpacks: bool = False  # prompts are multiplied with weights unpacked to FP16 in memory, with sums in FP16
    score_passes: NonNegativeFloat = 0.0
    """How often prompt attention moves the scores of all pairs, in 32 bits, through memory; 0: kept on the chip."""
    head_reads: float = Field(default=0.0, ge=0, le=2)
    """Share of the bandwidth at which decode attention reads keys and values once for each query head. 0: kernels as
    they were timed, which read them once for all heads that share them."""
    split_reads: float = Field(default=0.0, ge=0, le=2)
    """The same where a few sequences' contexts are split among more blocks (see ``SPLIT_BELOW``)."""
    product_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak FLOP/s that dense products reach at the most; 0: as their kernels were timed."""
    fp8_time_factor: PositiveFloat = 1.0  # time of dense products in FP8, as a multiple of what was timed
    uneven: NonNegativeFloat = 0.0
    uneven_heads: NonNegativeFloat = 0.0
    """Most that decode attention takes longer, as a share, if the contexts of a batch differ, and how many pairs of a
    sequence and a KV head halve it (``attention_kernels.uneven_share``)."""
    cool_s: NonNegativeFloat = 0.0
    """Most that the products of prompts gain beside few running sequences: the GPU was below its power limit."""
    beside_s: NonNegativeFloat = 0.0
    beside_sequences: PositiveFloat = 1.0
    """What each KV head of a layer takes longer for a running sequence in a step with long prompts; and how many
    sequences halve that, as by then they alone bring the GPU to its power limit."""
    draft_s: NonNegativeFloat = 0.0  # what a drafted token takes on the GPU beside the draft's pass
    search_s: NonNegativeFloat = 0.0
    """Looking n-grams up for a round: all that one user's round took beside its check, the host's work with it."""
    older_round_s: NonNegativeFloat = 0.0
    """The host's work on a round in the older of vLLM's two runners; 0: the engine has only one."""
    request_s: NonNegativeFloat = 0.0
    token_s: NonNegativeFloat = 0.0
    reach_s: NonNegativeFloat = 0.0
    answer_s: NonNegativeFloat = 0.0
    badge: Badge
    source: str

    def host_s(self, batch: ArrayLike) -> NDArray[np.float64]:
        """Return the host's work on a decode step."""
        return self.step_s + self.sequence_s * np.asarray(batch, np.float64)

    def launch_s(
        self, tokens: ArrayLike, layers: float, expert_layers: float, latent_layers: float = 0, quantised: bool = False
    ) -> NDArray[np.float64]:
        """Return the host's work on a step that is not one graph: with prompts, or more sequences than captured.

        ``latent_layers`` of these layers have latent attention.
        """
        pieces = (layers + expert_layers) * self.piece_s + latent_layers * self.latent_piece_s
        expert_s = (quantised and self.quantised_layer_s) or self.expert_layer_s
        one_by_one = layers * self.layer_s + expert_layers * expert_s + latent_layers * self.latent_layer_s
        captured = np.asarray(tokens, np.float64) <= self.graph_tokens
        base = self.step_s if self.overlapped else 0.0  # if not overlapped, it comes after any step
        return np.asarray(base + np.where(captured, min(pieces, one_by_one), one_by_one))

    def captured_tokens(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many tokens a pass of so many computes: those of the next captured size, beyond these its own.

        Sizes are those of vLLM 0.26 (``vllm/config/vllm.py``, ``_set_cudagraph_sizes``): 1, 2, 4, multiples of 8 to 256
        and of 16 beyond. Tokens are whole numbers.
        """
        sizes = _captured_sizes(self.graph_tokens)
        inside = np.minimum(tokens, self.graph_tokens).astype(np.intp)
        return np.where(tokens <= self.graph_tokens, sizes[inside], tokens)

    def on_host(self, launch_s: float) -> Self:
        """Return the same engine on a host that takes so long for one small launch; all its work on a step scales."""
        times = launch_s / host().launch_s
        scaled = {name: getattr(self, name) * times for name in ("step_s", "sequence_s", "older_round_s", *LAUNCHES)}
        return self.model_copy(update=scaled)

    def request_seconds(self, input_tokens: float) -> float:
        """Return a lone request's time outside any step: until the engine has it, and its first token's way out."""
        return self.request_s + self.token_s * input_tokens + self.reach_s + self.answer_s


CAPTURED_PER_SEQUENCE, CAPTURED = 2, 512
"""vLLM captures steps of as many tokens for each sequence that it may hold and for each of its drafts, up to so many
in all unless larger ones are named (0.26, the same function; 0.9 to 0.13 as well, ``SchedulerConfig``)."""


@cache
def _captured_sizes(most: int) -> NDArray[np.float64]:
    """Return the size of the smallest captured graph that holds each number of tokens, from none to the largest's."""
    fine, wide = _FINE * np.arange(1, 1 + _FINE_TO // _FINE), 2 * _FINE * np.arange(1, 1 + most // _FINE)
    sizes = np.unique([0, 1, 2, 4, *fine, *wide[wide > _FINE_TO], most])
    return np.asarray(np.minimum(sizes[np.searchsorted(sizes, np.arange(most + 1))], most), np.float64)


class _Fitted(Noun):
    host: Host
    layers: Layers
    engines: dict[str, tuple[Overhead, ...]]  # the eras of each, in order


@cache
def _fitted() -> _Fitted:
    return _Fitted.model_validate(shipped("overhead.toml"))


def host() -> Host:
    """Return the host on which the engines' times are stated."""
    return _fitted().host


def layers() -> Layers:
    """Return the time between the kernels of a model."""
    return _fitted().layers


def overhead(
    engine: Engine, year: int = NEWEST, version: str | None = None, architecture: str | None = None
) -> Overhead:
    """Return the engine's overhead in the era of its version, or else of its year; the first era if it is older.

    If eras begin with the same version, the year decides. A fork has no era of its own (``FORK``).
    """
    given, upstream = version_numbers(version), FORK not in (version or "")
    eras = [
        era
        for era in _fitted().engines[engine.key]
        if not era.architectures
        or (upstream and architecture in era.architectures and given < version_numbers(era.until_version))
    ]
    begun = [era for era in eras if (version_numbers(era.since_version) <= given if given else era.since_year <= year)]
    if not begun:
        return eras[0]
    alike = [era for era in begun if era.since_version == begun[-1].since_version]
    return next((era for era in reversed(alike) if era.since_year <= year), alike[0])


def version_numbers(version: str | None) -> tuple[int, ...]:
    """Read ``0.12.0`` as (0, 12); return an empty tuple if there is no such number."""
    found = re.search(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else ()
