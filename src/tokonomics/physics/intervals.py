"""Estimate how far a prediction may be off: an 80 % interval learned from the errors on published measurements.

Errors are grouped by what decides them: what is predicted, dense or mixture of experts, and whether the GPU's kernels
and the engine's own time were timed, come from a similar one, or from another family. A class is wide enough for a
source, a GPU or an era of an engine that was left out of it, and no class is narrower than one that is known better.
An era of an engine with enough measurements is a class of its own (a situation), as wide as a model or GPU left out
of it needs. It speaks of the architectures of the GPUs that taught it; another in the same era has its class's width.
All bare steps were measured on one timed GPU. For a GPU that nobody timed, the error seen when timed GPUs are predicted
from another family's curves is added (assumed), or half of that, in logarithms, towards the difference of twins
(scaled). Of a family of which the rows have nothing (a TPU, a Mac), the datasheet is all that is known: there every
figure is as uncertain as the class that was ever predicted worst, the throughput of dense models on families known by
their datasheets (early software on Gaudi 2 and MI250 reached a third). ``benchmarks/fit_intervals.py`` learns the
intervals on rows marked ``calibrate``. A profile has its own, from held-out points.
"""

import math
from collections.abc import Set
from functools import cache, lru_cache
from typing import Any, Literal

from pydantic import PositiveFloat

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.layers import CompressedAttention, GroupedAttention, Mixer, Precision, RecurrentMixer
from tokonomics.catalog.models import ModelSpec
from tokonomics.physics.attention_kernels import Op
from tokonomics.physics.attention_kernels import curve_origin as attention_origin
from tokonomics.physics.calibration import Coverage, Kernels, active, profiled, using
from tokonomics.physics.curves import efficiency, shipped
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.layer_kernels import layer_origin
from tokonomics.physics.matrix_kernels import curve_origin as matrix_origin
from tokonomics.physics.overhead import Overhead, overhead
from tokonomics.types import Badge, Noun, Speed

Kind = Literal["step", "prefill", "tpot", "ttft", "throughput"]

KNOWN = {Badge.measured: Speed.timed, Badge.modelled: Speed.scaled, Badge.assumed: Speed.assumed}
LEAST_KNOWN = "throughput-dense-assumed"
EIGHTY_PERCENT = 1.2816  # standard deviations to either side of the mean that hold 80 % of a normal distribution


class Interval(Noun):
    """A predicted figure, with the range that holds four of five measurements."""

    low: PositiveFloat
    mid: PositiveFloat
    high: PositiveFloat

    def not_faster_than(self, least_s: float) -> "Interval":
        """Return the interval of a time without the part that the datasheet's limit forbids."""
        return self.model_copy(update={"low": max(self.low, min(least_s, self.mid))})


@cache
def _learned() -> dict[str, Any]:
    """Return the ends of log(measured ÷ predicted) by class, and what another GPU's curves add to bare steps."""
    learned: dict[str, Any] = shipped("intervals.toml")
    return learned


def error_class(kind: Kind, deployment: Deployment, badge: Badge) -> str:
    """Return the group of measurements whose errors apply to a prediction of this kind."""
    if kind in ("step", "prefill"):
        return kind
    return f"{kind}-{'moe' if deployment.model.is_moe else 'dense'}-{KNOWN[badge]}"


def situation(kind: Kind, deployment: Deployment, badge: Badge, era: Overhead) -> str:
    """Return the part of an error class that is of one era of an engine."""
    engine = "-".join((deployment.engine.key, era.since_version, *era.architectures))
    return f"{error_class(kind, deployment, badge)} on {engine}"


def interval(mid: float, kind: Kind, deployment: Deployment, engine: Overhead | None = None) -> Interval:
    """Return the 80 % interval around a prediction; with a profile, that of its held-out points.

    ``engine`` is the era of the engine if it is not today's.
    """
    checked = _deviation(kind, deployment)
    if checked is not None:
        below = above = EIGHTY_PERCENT * checked
    else:
        learned, badge = _learned(), weakest_badge(deployment, engine)
        own = error_class(kind, deployment, badge)
        era = situation(kind, deployment, badge, engine or overhead(deployment.engine))
        spread, more = learned["classes"].get(era) or learned["classes"][own], 0.0
        if not _speaks_of(deployment.gpu, tuple(spread.get("gpus", ()))):
            spread = learned["classes"][own]
        if own == kind:  # bare steps, all measured on one timed GPU
            more = {Badge.modelled: learned["scaled"], Badge.assumed: learned["assumed"]}.get(badge, 0.0)
        below = math.hypot(min(spread["low"], 0.0), EIGHTY_PERCENT * more)
        above = math.hypot(max(spread["high"], 0.0), EIGHTY_PERCENT * more)
        if not efficiency(deployment.gpu).taught:
            least_known = [found for name, found in learned["classes"].items() if name.startswith(LEAST_KNOWN)]
            slower, faster = -min(one["low"] for one in least_known), max(one["high"] for one in least_known)
            worst = (slower, faster) if kind == "throughput" else (faster, slower)
            below, above = max(below, worst[0]), max(above, worst[1])
    return Interval(low=mid * math.exp(-below), mid=mid, high=mid * math.exp(above))


@lru_cache(maxsize=4096)
def _speaks_of(gpu: Gpu, taught_by: tuple[str, ...]) -> bool:
    """Decide whether errors on some GPUs tell those on another: several GPUs must have taught, one of its architecture.

    Kernels and formats come with an architecture; errors of no particular GPUs speak of all.
    """
    if not taught_by or gpu.key in taught_by:
        return True
    return len(taught_by) > 1 and gpu.architecture in {find_gpu(key).architecture for key in taught_by}


def speed_badge(deployment: Deployment) -> Badge:
    """Return how a deployment's speed is known: by the weakest origin of its kernels; measured if calibrated."""
    bases = {basis for basis, _ in _origins(deployment)}
    if "assumed" in bases:
        return Badge.assumed
    return Badge.measured if bases == {"measured"} else Badge.modelled


def known_speed(deployment: Deployment) -> Speed:
    """Return how its speed is known, in the word that answers use."""
    return KNOWN[speed_badge(deployment)]


def weakest_badge(deployment: Deployment, engine: Overhead | None = None) -> Badge:
    """Return how the speed is known: by the kernels or the engine's own time, whichever is known less."""
    own = (engine or overhead(deployment.engine)).badge
    order = list(KNOWN)
    return order[max(order.index(own), order.index(speed_badge(deployment)))]


def speed_from(deployment: Deployment) -> tuple[str, ...]:
    """Return the other GPUs whose kernel timings a deployment's speed is scaled from."""
    others = {gpu for basis, gpu in _origins(deployment) if basis != "measured" and gpu != deployment.gpu.key}
    return tuple(sorted(others))


def _origins(deployment: Deployment) -> Set[tuple[str, str]]:
    """Return, for each kind of kernel, how its speed is known and the GPU it was timed on."""
    profile, gpu = active(), deployment.gpu
    here = ("measured", gpu.key)
    if profiled(deployment) is Coverage.measured:
        return {here}
    own = profile.kernels_of(gpu) if profile else None
    kind = deployment.model, gpu, deployment.engine.key, deployment.weights, deployment.dp > 1
    return _shipped_origins(*kind) if own is None else _kernel_origins(own, *kind)


@lru_cache(maxsize=4096)
def _shipped_origins(
    model: ModelSpec, gpu: Gpu, backend: str, weights: Precision, shared_experts: bool
) -> Set[tuple[str, str]]:
    return _kernel_origins(None, model, gpu, backend, weights, shared_experts)


def _kernel_origins(
    own: Kernels | None, model: ModelSpec, gpu: Gpu, backend: str, weights: Precision, shared_experts: bool
) -> Set[tuple[str, str]]:
    found = {
        ("measured", gpu.key)
        if own and own.gemm_curve(precision)
        else matrix_origin(gpu, "gemm", precision, backend)[:2]
        for precision in model.precisions(weights)
    }
    if model.is_moe:
        found.add(matrix_origin(gpu, "experts", weights, backend)[:2])
    for group in model.groups:
        if group.mixer:
            found |= _mixer_origins(group.mixer, gpu, backend)
    if shared_experts:
        # Sending tokens to shared experts was timed by others, on an H800.
        found.add(("scaled", gpu.key))
    if model.is_encoder or model.images:
        # Only causal attention was timed, and no vision tower: both are scaled.
        found.add(("scaled", gpu.key))
    return found


def _mixer_origins(mixer: Mixer, gpu: Gpu, backend: str) -> set[tuple[str, str]]:
    """Return the same for one layer's attention with its indexer, or for its recurrence.

    Nobody timed Mamba's scan, grouped heads on chosen rows, or compressed rows (only latents of another width).
    """
    basis, timed = layer_origin(gpu)
    if isinstance(mixer, RecurrentMixer):
        return {("assumed" if mixer.recurrence == "mamba" else basis, timed)}
    if isinstance(mixer, GroupedAttention):
        kernel: Op = "prefill" if mixer.bidirectional else "decode"
        found: set[tuple[str, str]] = {attention_origin(gpu, kernel, backend)}
        return found | {("assumed", timed)} if mixer.topk else found
    found = {attention_origin(gpu, "mla_decode", backend)}
    if isinstance(mixer, CompressedAttention):
        return found | {("scaled" if basis == "measured" else basis, timed)}
    return found | {(basis, timed)} if mixer.topk else found


def _deviation(kind: Kind, deployment: Deployment) -> float | None:
    """Return the error of this kind that the profile in use measured; None if it has none."""
    profile = active()
    if profile is None:
        return None
    correction = profile.correction_of(deployment, None if kind == "step" else overhead(deployment.engine))
    kernels = profile.kernels_of(deployment.gpu)
    # Only of this kind: a first token is its prompt and a wait, so a good TTFT does not prove a good prefill.
    found = (correction.spreads if correction else {}).get(kind) or (kernels.spreads if kernels else {}).get(kind)
    return found.deviation if found else None


def kind_of_prompts(deployment: Deployment) -> Kind:
    """Return the kind of errors of an engine's prompt step, which is most of a first token.

    The rows of kind ``prefill`` are bare steps on one GPU, so they speak of an engine only in a profile of its own.
    """
    return "ttft" if _deviation("prefill", deployment) is None else "prefill"


def prior_deviation(kind: Kind, deployment: Deployment) -> float:
    """Return the standard deviation that the interval without a profile corresponds to."""
    with using(None):
        around = interval(1.0, kind, deployment)
    return math.log(around.high / around.low) / (2 * EIGHTY_PERCENT)
