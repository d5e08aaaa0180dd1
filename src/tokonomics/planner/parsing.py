"""Turn text from a flag or a file into nouns: lists, precisions, limits, offers, drafts.

The acceptance of a draft comes from the user or was published for that pair. If neither is known the question is
refused, since a draft that fails costs more than none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial

from pydantic import ValidationError

from tokonomics.catalog.checkpoints import (
    QuantisedPart,
    allowed_by_recovery,
    eagle_head,
    longer_draft,
    mtp_module,
    nearest_draft,
)
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offer_choice import parse_discounts, select_offers
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.places import Seller
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.physics.deployment import DRAFT_TOKENS, DraftMethod, Speculation, acceptance_for
from tokonomics.planner.plan_answer import Limits
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.layouts import weight_choices
from tokonomics.sizing.spare import NO_SPARE, Spare
from tokonomics.units import scaled

_MOST_GPUS = 10**9
_MOST_SPARE = 1000


def listed(values: Sequence[str] | None, field: str) -> list[str] | None:
    """Split ``["a,b", "c"]`` into ``["a", "b", "c"]``; None stays None, and an empty list is an error."""
    if values is None:
        return None
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise BadInput("is empty", field=field, fix="Name one or more, with commas between; or leave the flag out.")
    return names


def gpu_filter(gpu: Sequence[str] | None, gpus: str | None) -> tuple[list[str] | None, int | None]:
    """Return the GPU names to keep and the most GPUs to pay for; ``gpus`` may give either."""
    names = listed(gpu, "gpu")
    if gpus is None:
        return names, None
    if re.fullmatch(r"[+-]?[0-9]+", gpus.strip()):
        most = int(gpus) if len(gpus) < 20 else _MOST_GPUS + 1
        if not 1 <= most <= _MOST_GPUS:
            raise BadInput(f"must be between 1 and {_MOST_GPUS:,}, got {shorten(gpus.strip(), 20)}", field="gpus")
        return names, most
    return [*(names or []), *(listed([gpus], "gpus") or [])], None


def parse_terms(text: str) -> Terms:
    name = text.strip().lower().replace("-", "_")
    return Terms(_known(name, text, Terms, "is not a way to buy", "terms", ", all"))


def _known(name: str, written: str, known: type[StrEnum], problem: str, field: str, more: str = "") -> str:
    """Return the name if it is known, or raise an error that suggests the nearest."""
    if name in set(known):
        return name
    fix = f"Valid: {', '.join(known)}{more}. {did_you_mean(name, known, 1) or ''}".rstrip()
    raise BadInput(f"'{shorten(written)}' {problem}", field=field, fix=fix)


def terms_from(values: Sequence[str] | None) -> tuple[Terms, ...]:
    """Read several ways to buy; on demand by default."""
    names = listed(values, "terms")
    if names is None:
        return (Terms.on_demand,)
    if [name.lower() for name in names] == ["all"]:
        return tuple(Terms)
    return tuple(dict.fromkeys(parse_terms(name) for name in names))


Words = Sequence[str] | None


def filters_from(asked: Mapping[str, Words], known: Sequence[Offer]) -> dict[str, Words]:
    """Return the filters on offers that were asked for, as ``select_offers`` takes them."""
    readers: dict[str, Callable[[Words], Words]] = {
        "region": lambda values: regions_from(values, known),
        "sellers": sellers_from,
    }
    return {name: readers.get(name, partial(listed, field=name))(values) for name, values in asked.items()}


def offers_for(known: Sequence[Offer], asked: Mapping[str, Words], discounts: Mapping[str, float]) -> tuple[Offer, ...]:
    """Return the offers left after the user's filters, on any terms; if none is left, name the filter to loosen."""
    filters, gpu = filters_from(asked, known), asked.get("gpu")

    def left(without: str | None = None) -> tuple[Offer, ...]:
        kept = {field: names for field, names in filters.items() if field != without}
        return select_offers(known, terms=None, discounts=discounts, **kept)  # type: ignore[arg-type]

    found = left()
    if found:
        return found
    own_list = f"a price list of your own with {option('offers', 'my.csv')}"
    if gpu and not select_offers(known, gpu=gpu, terms=None):
        raise BadInput(f"no public price of {shorten(', '.join(gpu))} is known", fix=_without_price(gpu, own_list))
    wanted = ", ".join(name for names in filters.values() for name in names or ())
    loosened = []
    for field, names in filters.items():
        if names and (more := len(left(field))):
            loosened.append(f"without {option(field)} there {'is 1' if more == 1 else f'are {more:,}'}")
    hint = f"{'; '.join(loosened).capitalize()}. " if loosened else ""
    raise BadInput(f"no offer is left for {shorten(wanted)}", fix=f"{hint}Or give {own_list}.")


def _without_price(gpus: Sequence[str], own_list: str) -> str:
    """Say how to plan with GPUs that nobody rents out; computers whose CPU shares the memory are bought."""
    bought = [gpu.key for gpu in map(find_gpu, gpus) if gpu.unified_memory]
    if not bought:
        return f"Give {own_list}."
    machine = (
        f"{option('gpu', bought[0])} {option('purchase_usd', 4000)} {option('years', 3)} {option('usd_per_kwh', 0.3)}"
    )
    answer = f"tokonomics can-run {machine} says what runs and what a token costs"
    return f"Such computers are bought: {answer}. Or give {own_list}."


def regions_from(values: Sequence[str] | None, known: Sequence[Offer]) -> list[str] | None:
    """Split places at commas; a region whose own name contains commas stays one."""
    names = {offer.region.casefold() for offer in known}
    parts = [[value] if value.strip().casefold() in names else listed([value], "region") for value in values or ()]
    return [name for part in parts for name in part or ()] if values is not None else None


def sellers_from(values: Sequence[str] | None) -> tuple[Seller, ...] | None:
    """Read the kinds of seller; None means any."""
    names = listed(values, "sellers")
    if names is None or [name.lower() for name in names] == ["all"]:
        return None
    singular = {name: name.lower().removesuffix("s") for name in names}
    known = [_known(kind, name, Seller, "is no kind of seller", "sellers", ", all") for name, kind in singular.items()]
    return tuple(map(Seller, known))


def spare_from(text: str | None) -> Spare:
    """Read ``1`` (one machine may fail) or ``zone`` (one zone may fail)."""
    if text is None:
        return NO_SPARE
    if text.strip().lower() == "zone":
        return Spare(zone=True)
    if not re.fullmatch(r"\d{1,4}", text.strip()) or int(text) > _MOST_SPARE:
        what = f"must be a number of machines from 0 to {_MOST_SPARE:,}, or zone; got {shorten(text)}"
        raise BadInput(what, field="spare", fix="Write 1 for one machine that may fail, zone for one zone.")
    return Spare(machines=int(text))


def discounts_from(texts: Sequence[str] | None) -> dict[str, float]:
    """Read ``["aws=0.2,gcp=0.1"]`` as discounts by provider."""
    return parse_discounts(part for text in texts or () for part in text.split(","))


def weights_for(model: ModelSpec, weights: Sequence[str] | None, min_weights: str | None) -> tuple[Precision, ...]:
    """Return the precisions to try: the named ones, or the common ones not below the floor, FP8 by default."""
    named = listed(weights, "weights")
    if not named and min_weights is None:
        return weight_choices(model)
    choices = weight_choices(model, floor=None)
    if named:
        choices = tuple(parse_precision(name, WEIGHT_PRECISIONS, "weights") for name in named)
    if min_weights is None:
        return choices
    floor = parse_precision(min_weights, WEIGHT_PRECISIONS, "min_weights")
    kept = [choice for choice in choices if not choice.is_below(floor)]
    if not kept:
        raise BadInput(
            f"none of {', '.join(choices)} is at or above {floor}",
            field="min_weights",
            fix=f"{model.name} is published in {model.checkpoint}.",
        )
    return tuple(kept)


def share_of_quality(text: str | None) -> float | None:
    """Read ``98%``, ``98`` and ``0.98`` as 0.98."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})\s*(%?)", text.strip())
    share = float(found[1]) if found else 0.0
    share = share / 100 if found and (found[2] or share > 1) else share
    if not 0 < share <= 1:
        raise BadInput(f"'{shorten(text)}' is not a share of quality", field="min_recovery", fix="Write such as 98%.")
    return share


def reaching(
    model: ModelSpec, precisions: tuple[Precision, ...], floor: float | None, part: QuantisedPart = "weights"
) -> tuple[tuple[Precision, ...], dict[str, str]]:
    """Return the precisions that keep the requested share of quality, and why the others are not tried."""
    if floor is None:
        return precisions, {}
    kept, left_out = allowed_by_recovery(model, precisions, floor, part)
    reasons = {f"{'KV ' if part == 'kv' else ''}{precision}": reason for precision, reason in left_out.items()}
    if not kept:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        more = option("kv", "bf16,fp8") if part == "kv" else option("min_weights", model.served)
        fix = f"Ask for less, or allow more bits: {more}; or measure it: `tokonomics import`."
        raise BadInput(f"leaves nothing to try: {said}", field="min_recovery", fix=fix)
    return kept, reasons


def kv_for(model: ModelSpec, values: Sequence[str] | None) -> tuple[Precision, ...]:
    """Return the KV cache precisions to try; by default the checkpoint's own, as in engines, and 16 bits."""
    if named := listed(values, "kv"):
        return tuple(parse_precision(name, KV_PRECISIONS, "kv") for name in named)
    return tuple(dict.fromkeys((model.kv_served, Precision.bf16)))


def router_from(text: str) -> Router:
    return Router(_known(text, text, Router, "is no router", "router"))


def amount(text: str, field: str, such_as: str = "500M, 2B or 2000000000") -> float:
    """Read ``2000000``, ``2M`` or ``1.5B``."""
    found = scaled(text)
    if found is None or not found > 0:
        raise BadInput(f"'{shorten(text)}' is not an amount above 0", field=field, fix=f"Write such as {such_as}.")
    return found


def dollars(text: str | None, field: str) -> float | None:
    """Read ``250000``, ``250,000``, ``$250k`` or ``1.2M``."""
    if text is None:
        return None
    plain = text.strip().removeprefix("$").replace(",", "").replace("_", "")
    return 0.0 if plain == "0" else amount(plain, field, "15000, 250k or 1.2M")


_BOUNDS = (("gt", "above"), ("ge", "at least"), ("le", "at most"))
_ASKED_AS = {"max_usd_per_gpu_hour": "max_price", "max_gpus": "gpus", "max_age_days": "max_age"}


def limits_from(**given: object) -> Limits:
    """Return the user's limits, with defaults for the rest."""
    try:
        return Limits.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        bounds = Limits.model_fields[name].metadata
        words = [
            f"{word} {getattr(bound, sign):g}" for sign, word in _BOUNDS for bound in bounds if hasattr(bound, sign)
        ]
        got = shorten(str(problem["input"]))
        raise BadInput(f"must be {' and '.join(words)}, got {got}", field=_ASKED_AS.get(name, name)) from None


NO_DRAFT = "none"


METHODS = {"mtp": DraftMethod.mtp, "eagle": DraftMethod.eagle3, "eagle3": DraftMethod.eagle3,
           **dict.fromkeys(("ngram", "n-gram", "ngrams", "n-grams"), DraftMethod.ngram)}  # fmt: skip
"""Drafts that belong to a model or its text, as a user writes them; any other name is the name of a model."""


def draft_named(name: str, model: ModelSpec, tokens: int | None, acceptance: float | None) -> Speculation:
    """Return how the model drafts with the named method or model."""
    method = METHODS.get(name.strip().lower())
    if method is DraftMethod.ngram:
        if acceptance is None:
            raise _unknown("n-grams: how often your texts repeat themselves decides it")
        return Speculation(method=method, tokens=tokens or DRAFT_TOKENS, acceptance=acceptance, draft_share=0.0)
    if method:
        return _of_its_own(method, model, tokens, acceptance)
    draft = find_model(name)
    if draft.vocab != model.vocab:
        raise BadInput(f"{draft.name} has another vocabulary than {model.name}", field="draft")
    if acceptance is None:
        raise _unknown(f"{draft.name} drafting for {model.name}")
    return Speculation(tokens=tokens or DRAFT_TOKENS, acceptance=acceptance, draft=draft)


def published_draft(model: ModelSpec) -> Speculation | None:
    """Return the draft of a model whose acceptance is published; its own module before other people's heads."""
    for method in (DraftMethod.mtp, DraftMethod.eagle3):
        if nearest_draft(model, method, DRAFT_TOKENS) and _draft_model(method, model):
            return _of_its_own(method, model, None, None)
    return None


def _of_its_own(method: DraftMethod, model: ModelSpec, tokens: int | None, acceptance: float | None) -> Speculation:
    """Draft with a module of the checkpoint or a head for it, in rounds as long as requested or published.

    Tokens beyond a published round are assumed to add nothing to it.
    """
    draft = _draft_model(method, model)
    row = longer_draft(model, method, tokens) if tokens else nearest_draft(model, method, DRAFT_TOKENS)
    if draft is None:
        what = "has no module that drafts" if method is DraftMethod.mtp else "has no EAGLE-3 head that we know of"
        raise BadInput(f"{model.name} {what}", field="draft", fix=f"Name a small model: {option('draft', 'MODEL')}.")
    drafted, source = tokens or (row.tokens if row else DRAFT_TOKENS), None
    if acceptance is None and row is None:
        raise _unknown(f"the {method.upper()} module of {model.name}")
    if acceptance is None and row is not None:
        acceptance = acceptance_for(row.accepted_length, max(row.tokens, drafted))
        source = f"{row.accepted_length:g} with {row.tokens} drafted ({row.conditions}): {row.source}"
    return Speculation(
        tokens=drafted,
        acceptance=acceptance or 0.0,
        draft=draft,
        method=method,
        checkpoint=row.checkpoint if row else None,
        source=source,
    )


def _draft_model(method: DraftMethod, model: ModelSpec) -> ModelSpec | None:
    if method is DraftMethod.mtp:
        return mtp_module(model)
    row = nearest_draft(model, method, DRAFT_TOKENS)
    return eagle_head(model, row.intermediate) if row and row.intermediate else None


def _unknown(pair: str) -> BadInput:
    return BadInput(
        f"no acceptance is published of {pair}",
        field="acceptance",
        fix=f"Measure yours and give it: {option('acceptance', 0.7)} (vLLM and SGLang report it).",
    )
