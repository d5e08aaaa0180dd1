"""Find which deployments fit on which machines that may be bought, before any speed is known."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tokonomics.catalog.engines import Engine, default_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.physics.calibration import profile_key
from tokonomics.physics.deployment import Deployment, Speculation
from tokonomics.physics.intervals import known_speed
from tokonomics.physics.matrix_kernels import is_timed
from tokonomics.planner.plan_answer import Limits, Rejection
from tokonomics.sizing.hosts import Hosts, Stock, hosts_of, usable
from tokonomics.sizing.layouts import FLOOR, NotServed, Reason, fitting, weight_choices, why_not
from tokonomics.sizing.load import Load
from tokonomics.sizing.spare import Spare
from tokonomics.types import Same, Speed, copied

if TYPE_CHECKING:
    from tokonomics.planner.plan import Question


def prospects(question: "Question", load: Load, below: float = math.inf) -> tuple[Hosts, ...]:
    """Return every deployment that fits, with its machines; leave out some that cost more than ``below`` an hour."""
    return _prospects(_sought(question, load, below)).kept


def rejections(question: "Question", load: Load) -> list[Rejection]:
    """Return what is refused before any speed is known."""
    return list(_rejections(_sought(question, load)))


def _sought(question: "Question", load: Load, below: float = math.inf) -> "_Sought":
    # Round up to a power of two, so that a slightly different bill finds the cached answer.
    limit = 2.0 ** math.ceil(math.log2(below)) if 0 < below < math.inf else below
    offers, engines = Same(question.offers), tuple(question.engines)
    return _Sought(offers, engines, load.longest, profile_key(), limit, **copied(question, *_SOUGHT))


@dataclass(frozen=True)
class _Sought:
    """The part of a question that decides which deployments fit where; the number of requests is not in it."""

    offers: Same[Sequence[Offer]]
    engines: tuple[Engine, ...]
    longest: int
    profile: str | None
    below: float  # dollars an hour: leave out what costs more on every machine
    model: ModelSpec
    weights: tuple[Precision, ...] | None
    kv: tuple[Precision, ...]
    drafts: tuple[Speculation, ...]
    lossy: frozenset[tuple[Precision, Precision]]
    terms: tuple[Terms, ...]
    limits: Limits
    tiers: str | None
    assumed_speeds: bool
    assumed_networks: bool
    consumer_cards: bool
    today: date


_ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Engines that run modules, heads and small models as drafts (vLLM 0.32.0 ``--speculative-config``, SGLang 0.5.23
``--speculative-algorithm``, TensorRT-LLM 1.2.1 ``speculative_config``)."""


def with_drafts(
    fitted: Iterable[tuple[Deployment, NotServed | None]], drafts: Sequence[Speculation], context: int
) -> Iterator[tuple[Deployment, NotServed | None]]:
    """Yield each deployment without and with each draft, and why it cannot serve.

    Drafts run only without pipeline stages: vLLM's draft is on the last stage, and its documentation long excluded
    them.
    """
    for deployment, refusal in fitted:
        yield deployment, refusal
        if refusal is None and deployment.pp == 1 and deployment.engine.key in _ENGINES:
            for draft in drafts:
                drafting = deployment.model_copy(update={"speculation": draft})
                yield drafting, why_not(drafting, context)


_SOUGHT = (
    "model", "weights", "kv", "drafts", "lossy", "terms", "limits", "tiers",
    "assumed_speeds", "assumed_networks", "consumer_cards", "today",
)  # fmt: skip


class _Found(NamedTuple):
    """What fits, and what does not: refused offers, and refused deployments with their offers."""

    kept: tuple[Hosts, ...]
    unsold: Sequence[tuple[Offer, NotServed]]
    refused: tuple[tuple[Deployment, NotServed, int], ...]


@lru_cache(maxsize=128)
def _prospects(question: _Sought) -> _Found:
    """Do the same for a load whose longest request is known; cached, as a plan and a slider ask it again."""
    model, limits = question.model, question.limits
    stocks, unsold = _stocks(
        question.offers, question.terms, limits.max_usd_per_gpu_hour, limits.max_age_days, question.today
    )
    refused, kept = list[tuple[Deployment, NotServed, int]](), list[Hosts]()
    choices = question.weights or weight_choices(model)
    for gpu_key, on_this_gpu in stocks.items():
        if on_this_gpu.usd_per_hour > question.below:
            continue
        gpu, most_gpus = find_gpu(gpu_key), max(shape.gpus for shape in on_this_gpu.shapes)
        for engine in question.engines or (default_engine(gpu.architecture),):
            fitted = fitting(model, gpu, engine, engine.loads(choices), question.kv, most_gpus, question.longest)
            for deployment, refusal in with_drafts(fitted, question.drafts, question.longest):
                if (deployment.weights, deployment.kv) in question.lossy:
                    continue
                if deployment.gpus * on_this_gpu.usd_per_gpu_hour > question.below:
                    continue
                if refusal := refusal or why_doubtful(deployment, question.assumed_speeds, question.consumer_cards):
                    refused.append((deployment, refusal, 1))
                    continue
                any_age = limits.max_age_days is not None
                hosts, without = _standing(
                    deployment, Same(on_this_gpu), any_age, limits.max_gpus, limits.spare, question.assumed_networks
                )
                refused += ((deployment, refusal, count) for count, refusal in without)
                hosts = hosts.with_memories(question.tiers) if question.tiers else hosts
                if hosts.machines:
                    kept.append(hosts)
    return _Found(tuple(kept), unsold, tuple(refused))


@lru_cache(maxsize=128)
def _rejections(question: _Sought) -> tuple[Rejection, ...]:
    """Return the refusals; cached, as the page asks again with another rate or SLO."""
    _, unsold, refused = _prospects(question)
    offers = (
        Rejection(**copied(offer, "gpu", "provider", "region", "instance"), kind=refusal.kind, reason=refusal.reason)
        for offer, refusal in unsold
    )
    return (*offers, *(reject(*one) for one in refused))


@lru_cache(maxsize=8192)
def _standing(
    deployment: Deployment,
    machines: Same[Stock],
    any_age: bool,
    max_gpus: int | None,
    spare: Spare,
    assumed_networks: bool,
) -> tuple[Hosts, list[tuple[int, NotServed]]]:
    """Return the machines that can run a deployment and those that cannot; cached, as requests do not matter."""
    return hosts_of(
        deployment,
        machines.value,
        any_age=any_age,
        max_gpus=max_gpus,
        spare=spare,
        assumed_networks=assumed_networks,
    )


@lru_cache(maxsize=64)
def _stocks(
    offers: Same[Sequence[Offer]],
    terms: tuple[Terms, ...],
    max_usd_per_gpu_hour: float | None,
    max_age_days: int | None,
    today: date,
) -> tuple[Mapping[str, Stock], Sequence[tuple[Offer, NotServed]]]:
    """Return the machines that may be bought, by GPU, and the offers that may not."""
    return usable(offers.value, terms, today, max_usd_per_gpu_hour, max_age_days)


_MOST_CARDS = 2
"""Consumer cards of a replica that need no naming. A choice: two stand in the two long slots of a board; more exchange
every layer's results through the host's memory, at a rate that depends on the board and is not measured here. NVIDIA's
driver gives RTX 4090s no peer access; a patched one does (tinygrad/open-gpu-kernel-modules @ 1f40371d).
"""


def takes_many_cards(deployment: Deployment) -> bool:
    """Tell whether a replica takes more consumer cards than are picked without naming them."""
    return deployment.gpu.consumer and deployment.gpus > _MOST_CARDS


def why_doubtful(deployment: Deployment, assumed_speeds: bool, consumer_cards: bool) -> NotServed | None:
    """Say why it is not picked unless asked for: its speed is assumed, or it takes several consumer cards.

    None if it may be picked, or if such speeds or cards are allowed.
    """
    if not consumer_cards and takes_many_cards(deployment):
        why = f"a replica takes {deployment.gpus} consumer cards, which reach each other through the host's memory"
        return NotServed(Reason.consumer_cards, why)
    if assumed_speeds or known_speed(deployment) is not Speed.assumed or _accepted(deployment):
        return None
    return NotServed(Reason.assumed_speed, f"speed assumed: no kernels of {deployment.weights} timed on such a GPU")


def _accepted(deployment: Deployment) -> bool:
    """Tell whether asking for these weights accepts an assumed speed: fewer bits that were timed on no GPU, as INT4."""
    model, weights = deployment.model, deployment.weights
    timed = all(is_timed("gemm", dense) for dense in model.precisions(weights))
    timed = timed and (not model.is_moe or is_timed("experts", weights))
    return not timed and weights.is_below(FLOOR) and weights.is_below(model.served)


@lru_cache(maxsize=8192)
def layout(deployment: Deployment) -> str:
    """Return text such as ``TP=2 fp8, KV fp8``; cached, as every candidate is refused by it at each rate."""
    degrees = {"TP": deployment.tp, "PP": deployment.pp, "EP": deployment.ep, "DP": deployment.dp}
    split = " ".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1 or name == "TP")
    kv = f", KV {deployment.kv}" if deployment.kv.is_below(Precision.bf16) else ""
    drafts = f", drafts {deployment.speculation.name}" if deployment.speculation else ""
    return f"{split} {deployment.weights}{kv}{drafts}"


def reject(deployment: Deployment, refusal: NotServed, offers: int = 1) -> Rejection:
    """Return a refused deployment with the reason."""
    return Rejection(
        gpu=deployment.gpu.key, layout=layout(deployment), offers=offers, kind=refusal.kind, reason=refusal.reason
    )
