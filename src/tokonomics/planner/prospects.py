"""Which deployments fit, and on which machines that may be bought: what a plan chooses from, all speeds yet unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.precision import Precision
from tokonomics.physics.calibration import profile_key
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import known_speed
from tokonomics.physics.speculation import Speculation
from tokonomics.planner.candidates import FLOOR, Reason, Refusal, fitting, weight_choices
from tokonomics.planner.drafting import with_drafts
from tokonomics.planner.hosts import Hosts, Stock, hosts_of, usable
from tokonomics.planner.load import Load
from tokonomics.planner.plan_answer import Limits, Rejection
from tokonomics.planner.spare import Spare
from tokonomics.types import Same, Speed, copied

if TYPE_CHECKING:
    from tokonomics.planner.plan import Question


def prospects(question: "Question", load: Load) -> tuple[tuple[Hosts, ...], list[Rejection]]:
    """Every deployment that fits, with the machines it can stand on; and what is refused before any speed is known."""
    offers, engines = Same(question.offers), tuple(question.engines)
    sought = _Sought(offers, engines, load.longest, profile_key(), **copied(question, *_SOUGHT))
    kept, rejected = _prospects(sought)
    return kept, list(rejected)


@dataclass(frozen=True)
class _Sought:
    """All of a question that decides which deployments fit where: nothing of how many requests there are."""

    offers: Same[Sequence[Offer]]
    engines: tuple[Engine, ...]
    longest: int
    profile: str | None
    model: ModelSpec
    weights: tuple[Precision, ...] | None
    kv: tuple[Precision, ...]
    drafts: tuple[Speculation, ...]
    lossy: frozenset[tuple[Precision, Precision]]
    terms: tuple[Terms, ...]
    limits: Limits
    tiers: str | None
    assumed_speeds: bool
    today: date


_SOUGHT = ("model", "weights", "kv", "drafts", "lossy", "terms", "limits", "tiers", "assumed_speeds", "today")


@lru_cache(maxsize=128)
def _prospects(question: _Sought) -> tuple[tuple[Hosts, ...], tuple[Rejection, ...]]:
    """The same for a load whose longest request is known; kept, as one plan asks several times, and a slider again."""
    model, limits = question.model, question.limits
    stocks, refused = _stocks(
        question.offers, question.terms, limits.max_usd_per_gpu_hour, limits.max_age_days, question.today
    )
    rejected, kept = list(refused), list[Hosts]()
    choices = question.weights or weight_choices(model, FLOOR)
    for gpu_key, on_this_gpu in stocks.items():
        gpu, most_gpus = find_gpu(gpu_key), max(shape.gpus for shape in on_this_gpu.shapes)
        for engine in question.engines:
            fitted = fitting(model, gpu, engine, choices, question.kv, most_gpus, question.longest)
            for deployment, refusal in with_drafts(fitted, question.drafts, question.longest):
                if (deployment.weights, deployment.kv) in question.lossy:
                    continue
                if refusal:
                    rejected.append(reject(deployment, refusal))
                    continue
                if not speed_allowed(question, deployment):
                    why = f"speed assumed: no kernels of {deployment.weights} timed on such a GPU"
                    rejected.append(reject(deployment, Refusal(Reason.assumed_speed, why)))
                    continue
                hosts, without = _standing(deployment, Same(on_this_gpu), limits.max_gpus, limits.spare)
                rejected += without
                hosts = hosts.with_memories(question.tiers) if question.tiers else hosts
                if hosts.machines:
                    kept.append(hosts)
    return tuple(kept), tuple(rejected)


@lru_cache(maxsize=8192)
def _standing(
    deployment: Deployment, machines: Same[Stock], max_gpus: int | None, spare: Spare
) -> tuple[Hosts, tuple[Rejection, ...]]:
    """The machines that it can stand on, and those that it cannot; kept, as it does not depend on the requests."""
    hosts, without = hosts_of(deployment, machines.value, max_gpus, spare)
    return hosts, tuple(reject(deployment, refusal, count) for count, refusal in without)


@lru_cache(maxsize=64)
def _stocks(
    offers: Same[Sequence[Offer]],
    terms: tuple[Terms, ...],
    max_usd_per_gpu_hour: float | None,
    max_age_days: int | None,
    today: date,
) -> tuple[Mapping[str, Stock], tuple[Rejection, ...]]:
    """The machines that may be bought, by GPU; and the offers that may not."""
    machines, refused = usable(offers.value, terms, max_usd_per_gpu_hour, max_age_days, today)
    by_gpu = attrgetter("offer.gpu")
    stocks = {gpu: Stock(group) for gpu, group in groupby(sorted(machines, key=by_gpu), key=by_gpu)}
    rejected = (
        Rejection(**copied(offer, "gpu", "provider", "region", "instance"), **refusal._asdict())
        for offer, refusal in refused
    )
    return stocks, tuple(rejected)


def speed_allowed(question: "Question | _Sought", deployment: Deployment) -> bool:
    """Whether its speed is known well enough to be picked."""
    # Of fewer bits than published and FP8 every speed is assumed: who asks for them takes that too.
    asked_for = deployment.weights.is_below(FLOOR) and deployment.weights.is_below(question.model.served)
    return question.assumed_speeds or asked_for or known_speed(deployment) is not Speed.assumed


@lru_cache(maxsize=8192)
def layout(deployment: Deployment) -> str:
    """Such as ``TP=2 fp8, KV fp8``; kept, as every candidate is refused by it at each rate that is asked about."""
    degrees = {"TP": deployment.tp, "PP": deployment.pp, "EP": deployment.ep, "DP": deployment.dp}
    split = " ".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1 or name == "TP")
    kv = f", KV {deployment.kv}" if deployment.kv.is_below(Precision.bf16) else ""
    drafts = f", drafts {deployment.speculation.name}" if deployment.speculation else ""
    return f"{split} {deployment.weights}{kv}{drafts}"


def reject(deployment: Deployment, refusal: Refusal, offers: int = 1) -> Rejection:
    """A deployment that is refused, with the reason."""
    return Rejection(gpu=deployment.gpu.key, layout=layout(deployment), offers=offers, **refusal._asdict())
