"""Turning what was typed into nouns: lists with commas, numbers or names, ranges of precision."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms, load_offers, parse_discounts, select_offers
from tokonomics.catalog.precision import WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.nouns import Noun
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
    discount: Sequence[str] | None,
) -> tuple[Offer, ...]:
    """The offers left after the user's filters, on any terms."""
    return select_offers(
        load_offers(path),
        provider=listed(provider, "--provider"),
        region=listed(region, "--region"),
        gpu=gpu,
        terms=None,
        discounts=parse_discounts(part for value in discount or () for part in value.split(",")),
    )


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


def limits_from(max_utilization: float, max_price: float | None, max_gpus: int | None, old_offers: bool) -> Limits:
    return _checked(
        Limits,
        max_utilization=max_utilization,
        max_usd_per_gpu_hour=max_price,
        max_gpus=max_gpus,
        old_offers=old_offers,
    )


_FLAGS = {
    "rate": "--rate",
    "input_tokens": "--input",
    "output_tokens": "--output",
    "tpot_s": "--tpot",
    "max_utilization": "--max-utilization",
    "max_usd_per_gpu_hour": "--max-price",
}


Checked = TypeVar("Checked", bound=Noun)


def _checked(noun: type[Checked], **values: object) -> Checked:
    try:
        return noun.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0])
        given = shorten(repr(problem["input"]))
        raise BadInput(f"{problem['msg'].lower()}, got {given}", where=_FLAGS.get(field, field)) from None
