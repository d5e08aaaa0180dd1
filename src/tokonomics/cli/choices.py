"""Turning what was typed into nouns: lists with commas, numbers or names, ranges of precision."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms, load_offers, parse_discounts, select_offers
from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.planner.candidates import weight_choices
from tokonomics.planner.plan import Limits
from tokonomics.traffic.workload import Slo, Workload

_MOST_GPUS = 10**9


def listed(values: Sequence[str] | None, flag: str) -> list[str] | None:
    """``["a,b", "c"]`` → ``["a", "b", "c"]``; None stays None, an empty list is a slip."""
    if values is None:
        return None
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise BadInput("is empty", where=flag, fix="Name one or more, with commas between; or leave the flag out.")
    return names


def deployment_from(
    model: str,
    gpu: str,
    engine: str,
    tp: int,
    pp: int,
    ep: int,
    weights: str | None,
    kv: str,
    lora_rank: int = 0,
    lora_adapters: int = 0,
) -> Deployment:
    """A checked deployment from what was typed."""
    return deploy(
        find_model(model),
        find_gpu(gpu),
        find_engine(engine),
        tp=tp,
        pp=pp,
        ep=ep,
        weights=parse_precision(weights, WEIGHT_PRECISIONS, "--weights") if weights is not None else None,
        kv=parse_precision(kv, KV_PRECISIONS, "--kv"),
        lora_rank=lora_rank,
        lora_adapters=lora_adapters,
    )


def gpu_filter(gpu: Sequence[str] | None, gpus: str | None) -> tuple[list[str] | None, int | None]:
    """GPU names to keep and the most GPUs to pay for; ``--gpus`` may give either."""
    names = listed(gpu, "--gpu")
    if gpus is None:
        return names, None
    if re.fullmatch(r"[+-]?[0-9]+", gpus.strip()):
        most = int(gpus) if len(gpus) < 20 else _MOST_GPUS + 1
        if not 1 <= most <= _MOST_GPUS:
            raise BadInput(f"must be between 1 and {_MOST_GPUS:,}, got {shorten(gpus.strip(), 20)}", where="--gpus")
        return names, most
    return [*(names or []), *(listed([gpus], "--gpus") or [])], None


def parse_terms(text: str) -> Terms:
    name = text.strip().lower().replace("-", "_")
    if name not in set(Terms):
        guess = nearest(name, [term.value for term in Terms], 1)
        hint = f" Did you mean {guess[0]}?" if guess else ""
        raise BadInput(
            f"'{shorten(text)}' is not a way to buy", where="--terms", fix=f"Valid: {', '.join(Terms)}.{hint}"
        )
    return Terms(name)


def offers_for(
    path: Path | None,
    provider: Sequence[str] | None,
    region: Sequence[str] | None,
    gpu: Sequence[str] | None,
    discounts: Mapping[str, float],
) -> tuple[Offer, ...]:
    """The offers left after the user's filters, on any terms; none left is a wish that cannot be met."""
    found = select_offers(
        load_offers(path),
        provider=listed(provider, "--provider"),
        region=listed(region, "--region"),
        gpu=gpu,
        terms=None,
        discounts=discounts,
    )
    if not found:
        wanted = ", ".join([*(gpu or []), *(provider or []), *(region or [])])
        raise BadInput(
            f"no offer is left for {shorten(wanted)}",
            fix="Loosen --gpu, --provider or --region, or give a price list with --offers my.csv.",
        )
    return found


def discounts_from(texts: Sequence[str] | None) -> dict[str, float]:
    """``["aws=0.2,gcp=0.1"]`` → discounts by provider."""
    return parse_discounts(part for text in texts or () for part in text.split(","))


def parse_seconds(text: str | None, flag: str) -> float | None:
    """``50ms``, ``0.05s`` or plain seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(ms|s)?", text.strip())
    if not found:
        raise BadInput(f"'{shorten(text)}' is not a time", where=flag, fix="Write such as 50ms or 0.05 (seconds).")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)


def weights_for(model: ModelSpec, weights: Sequence[str] | None, min_weights: str | None) -> list[Precision]:
    """The precisions to try: those named, or the common ones, none below the floor."""
    named = listed(weights, "--weights")
    choices = (
        [parse_precision(name, WEIGHT_PRECISIONS, "--weights") for name in named] if named else weight_choices(model)
    )
    if min_weights is None:
        return list(choices)
    floor = parse_precision(min_weights, WEIGHT_PRECISIONS, "--min-weights")
    kept = [each for each in choices if not each.is_below(floor)]
    if not kept:
        raise BadInput(
            f"none of {', '.join(choices)} is at or above {floor}",
            where="--min-weights",
            fix=f"{model.name} is published in {model.checkpoint}.",
        )
    return kept


def workload_from(rate: float, input_tokens: int, output_tokens: int) -> Workload:
    return _checked(Workload, rate=rate, input_tokens=input_tokens, output_tokens=output_tokens)


def slo_from(tpot_s: float | None) -> Slo:
    return _checked(Slo, tpot_s=tpot_s)


def limits_from(
    max_utilization: float | None, max_price: float | None, max_gpus: int | None, max_age_days: int | None
) -> Limits:
    """The user's limits; what was not given keeps its default."""
    given = {
        "max_utilization": max_utilization,
        "max_usd_per_gpu_hour": max_price,
        "max_gpus": max_gpus,
        "max_age_days": max_age_days,
    }
    return _checked(Limits, **{name: value for name, value in given.items() if value is not None})


_FLAGS = {
    "rate": ("--rate", "above 0 requests a second, and at most a billion"),
    "input_tokens": ("--input", "from 1 to 100,000,000 tokens"),
    "output_tokens": ("--output", "from 1 to 100,000,000 tokens"),
    "tpot_s": ("--tpot", "from a microsecond to 10 seconds"),
    "max_utilization": ("--max-utilization", "from 0.01 to 1"),
    "max_usd_per_gpu_hour": ("--max-price", "above 0 dollars"),
    "max_gpus": ("--gpus", "at least 1"),
    "max_age_days": ("--max-age", "at least 0 days"),
}

Checked = TypeVar("Checked", bound=Noun)


def _checked(noun: type[Checked], **values: object) -> Checked:
    try:
        return noun.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0])
        flag, range_text = _FLAGS[field]
        raise BadInput(f"must be {range_text}, got {shorten(str(problem['input']))}", where=flag) from None
