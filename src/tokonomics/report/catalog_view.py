"""Show tables of what exists (models, GPUs, offers, APIs) and of what is installed."""

import math
from collections.abc import Sequence
from functools import partial

from tokonomics.catalog.apis import ApiPrice
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import MAX_AGE_DAYS, STALE_AFTER_DAYS, Offer, Terms
from tokonomics.catalog.price_index import PriceCoverage
from tokonomics.catalog.refresh import ProviderRefresh, Refresh
from tokonomics.errors import option
from tokonomics.questions.doctor import DoctorResult
from tokonomics.questions.request import Request
from tokonomics.questions.requests.run import ApisRequest, OffersRequest
from tokonomics.questions.result import Listing
from tokonomics.questions.results import RefreshResult
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, aged, aged_since, covered_text, machine_text, provider_text
from tokonomics.types import today
from tokonomics.units import count, gigabytes, plural, usd

_STALE = f"† older than {STALE_AFTER_DAYS} days"


def models(result: Listing, request: Request) -> Answer:
    """Show what the catalogue knows about each model."""
    return Answer(result, "Models", lambda: _models(result.rows))


def gpus(result: Listing, request: Request) -> Answer:
    """Show the datasheet figures of each GPU."""
    return Answer(result, "GPUs", lambda: _gpus(result.rows))


def offers(result: Listing, request: OffersRequest) -> Answer:
    """Show instances and their prices, cheapest first."""
    return Answer(result, "GPU prices", lambda: _offers(result, request))


def apis(result: Listing, request: ApisRequest) -> Answer:
    """Show token prices of hosted models, and the cost of a request."""
    return Answer(result, "Token prices", lambda: _apis(result.rows, request))


def prices_refresh(result: RefreshResult, request: Request) -> Answer:
    """Show what a refresh fetched from each provider."""
    return Answer(result, "GPU prices", lambda: _refreshed(result.noun))


def _refreshed(result: Refresh) -> blocks.View:
    fetched = plural(sum(row.rows for row in result.providers if not row.error), "offer")
    if result.path:
        yield blocks.headline(f"{fetched} fetched", f", written to {result.path}")
    else:
        yield blocks.headline("Nothing was written", ": every provider failed", "worst")
    rows = [(row.provider, f"{row.rows:,}", str(row.date or "?"), _outcome(row)) for row in result.providers]
    yield blocks.table(["!provider", ">offers", "!date", "outcome"], rows)


def _outcome(row: ProviderRefresh) -> blocks.Span:
    if row.error:
        return blocks.Span(f"kept the old prices: {row.error}", "warn")
    skipped = f", {plural(row.skipped, 'row')} without a known GPU or price" if row.skipped else ""
    return blocks.Span(f"refreshed{skipped}{f'; {row.note}' if row.note else ''}", "good")


def _models(found: Sequence[ModelSpec]) -> blocks.View:
    yield blocks.headline(plural(len(found), "model"))
    writers = not all(model.is_encoder for model in found)
    yield blocks.listed(
        found,
        ("!model", lambda model: model.key),
        (">params", lambda model: count(model.parameters)),
        (">active", lambda model: count(model.active_parameters) if model.is_moe else ""),
        ("!format", lambda model: model.checkpoint.value),
        (">weights", lambda model: gigabytes(model.weight_bytes(model.checkpoint))),
        (">KV/token", lambda model: _kept(model)[0]) if writers else None,
        (">KV const.", lambda model: _kept(model)[1]) if writers else None,
        (">context", lambda model: f"{model.max_context:,}"),
        ("!released", lambda model: str(model.released or "")),
        ("!family", lambda model: model.family),
    )
    yield blocks.note(
        "format: of the published weights.",
        "KV in bf16: what every token adds to a sequence; const.: what it holds at any length "
        "(windows once full, recurrent states); both of the whole model."
        if writers
        else "Encoders keep no KV cache.",
        f"{NO_VALUE}: an encoder keeps no KV cache." if writers and any(model.is_encoder for model in found) else "",
    )


def _kept(model: ModelSpec) -> tuple[str, str]:
    """Return the KV that a token adds, and the KV that a sequence of any length has."""
    if model.is_encoder:
        return NO_VALUE, NO_VALUE
    constant = model.kv_constant_bytes(Precision.bf16)
    return gigabytes(model.kv_bytes_per_token(Precision.bf16)), gigabytes(constant) if constant else ""


def _gpus(found: Sequence[Gpu]) -> blocks.View:
    yield blocks.headline(plural(len(found), "GPU"))
    yield blocks.listed(
        found,
        ("!GPU", lambda gpu: gpu.key),
        (">GB", lambda gpu: f"{gpu.memory_gb:g}"),
        (">TB/s", lambda gpu: f"{gpu.bandwidth_bytes_per_s / 1e12:.2f}"),
        (">16-bit", lambda gpu: _tflops(gpu.peak_flops(Precision.bf16))),
        (">FP8", lambda gpu: _tflops(gpu.flops.get("fp8"))),
        (">FP4", lambda gpu: _tflops(gpu.flops.get("fp4"))),
        (">link GB/s", lambda gpu: f"{gpu.link_bytes_per_s / 1e9:.0f}{'' if gpu.fast_link_bytes_per_s else ' (PCIe)'}"),
        (">per node", lambda gpu: str(gpu.gpus_per_node)),
        (">W", lambda gpu: f"{gpu.watts:g}" if gpu.watts else "?"),
        ("architecture", lambda gpu: gpu.architecture),
    )
    note = "Datasheet figures: dense TFLOP/s, link bandwidth in one direction."
    yield blocks.note(f"{note} Sources: {option('as_json')}.")


def _offers(result: Listing, request: OffersRequest) -> blocks.View:
    found: Sequence[Offer] = result.rows
    terms, top = result.terms, request.top
    unpriced = f"No public price of {', '.join(result.without_price)} is known." if result.without_price else ""
    if not found:
        names = ("gpu", "provider", "region", "exclude", "sellers", "terms", "max_price")
        loosen = f"Loosen {', '.join(map(option, names[:-1]))} or {option(names[-1])}."
        hint = f"Give yours: {option('offers', 'my.csv')}." if unpriced else loosen
        yield blocks.section(blocks.headline(unpriced or "No offer matches.", mood="alert"), blocks.hint(hint))
        yield blocks.note(_coverage_text(result.coverage or ()))
        return
    shown, day, on = found[:top], today(), terms.replace("_", " ")
    best: Offer | None = result.best
    first = best or shown[0]
    where = machine_text(first.provider, first.instance, first.gpu, first.gpus, first.region)
    more = plural(len(found), "offer") + (f", {len(shown)} shown ({option('top')})" if len(found) > len(shown) else "")
    price = f"{_money(first.usd_per_gpu_hour(terms))} a GPU-hour"
    counts = "" if first == shown[0] else " that counts"
    none = "" if best else ", none of which counts in other verbs"
    yield blocks.headline(price, f" {on} is the cheapest{counts} of {more}{none}: {where}{aged(first.age_days(day))}")
    yield blocks.listed(
        shown,
        ("!GPU", lambda offer: offer.gpu),
        (">GPUs", lambda offer: str(offer.gpus)),
        ("provider", lambda offer: provider_text(offer.provider)),
        ("seller", lambda offer: offer.seller or NO_VALUE),
        ("instance", lambda offer: offer.instance),
        ("region", lambda offer: f"{offer.region}{'' if offer.is_place_certain or not request.region else ' ?'}"),
        ("country", lambda offer: offer.country or NO_VALUE),
        (">$/GPU-h", lambda offer: _money(offer.usd_per_gpu_hour(terms))),
        (">on demand", lambda offer: _money(offer.usd_per_hour)),
        (">spot", lambda offer: _money(offer.spot_usd_per_hour)),
        (">reserved", lambda offer: _money(offer.price(Terms.reserved))),
        ("!quoted", lambda offer: f"{offer.date}{'†' if offer.is_stale(day) else ''}"),
    )
    too_old = sum(offer.age_days(day) > MAX_AGE_DAYS for offer in shown)
    are = f"{too_old} of those shown {'is' if too_old == 1 else 'are'} over a year old"
    yield blocks.note(
        f"$/GPU-h is {on}; the other prices are dollars an hour for the whole instance.",
        f"{_STALE}: `tokonomics offers --refresh`." if any(offer.is_stale(day) for offer in shown) else "",
        f"{are}: no verb uses them unless told ({option('max_age')} of plan)." if too_old else "",
        f"? behind a region: perhaps there; the seller lists every machine for every region, or does not say where. "
        f"Other verbs take it only if named ({option('provider')})."
        if request.region and not all(offer.is_place_certain for offer in shown)
        else "",
        "Other verbs pass over the cheaper ones: their price is out of date, their place not certain, or their host's "
        "memory too small."
        if counts
        else "",
        "Verbs that serve a model pass over hosts with too little memory for its weights.",
        unpriced,
        _coverage_text(result.coverage or ()),
    )


_TOLD = 4  # providers whose coverage is told in full


def _coverage_text(known: Sequence[PriceCoverage]) -> str:
    """Return what is known of each provider; of many, only how recent their newest quotes are."""
    if not known:
        return ""
    if len(known) <= _TOLD:
        return f"Known, with the newest quote: {'; '.join(map(covered_text, known))}."
    day, youngest, groups = today(), -math.inf, list[str]()
    for oldest, name in (
        (STALE_AFTER_DAYS, f"{STALE_AFTER_DAYS} days"), (MAX_AGE_DAYS, "a year"), (math.inf, "older, in no answer")
    ):  # fmt: skip
        names = [
            f"{provider_text(one.provider)} {one.regions}"
            for one in known
            if youngest < (day - one.newest).days <= oldest
        ]
        groups += [f"{name}: {', '.join(names)}"] if names else []
        youngest = oldest
    return f"Regions known of each provider, by the age of its newest quote: {'; '.join(groups)}."


def _apis(found: Sequence[tuple[ApiPrice, float]], request: ApisRequest) -> blocks.View:
    if not found:
        said = f"Try a shorter name, or no {option('host')}."
        yield blocks.section(blocks.headline("No hosted model matches.", mood="alert"), blocks.hint(said))
        return
    shown, prompt = found[: request.top], request.input
    cheapest, price = found[0]
    asked = f"{prompt:,} in, {request.output:,} out"
    more = f"{len(found):,} prices" + (f", {len(shown)} shown ({option('top')})" if len(found) > len(shown) else "")
    where = f"{cheapest.host} {cheapest.model}"
    old = aged_since(cheapest.quoted) if cheapest.quoted else ""
    yield blocks.headline(
        f"{usd(price)} a request", f" of {prompt:,} in, {request.output:,} out is the cheapest of {more}: {where}{old}"
    )
    rows = []
    for api, request_usd in shown:
        rates = api.rates(prompt)
        prices = (rates.input_usd_per_mtok, rates.cached_input_usd_per_mtok, rates.output_usd_per_mtok)
        both = rates.batch_input_usd_per_mtok, rates.batch_output_usd_per_mtok
        batch = "?" if None in both else " / ".join(map(_money, both))
        old = "†" if api.quoted and (today() - api.quoted).days > STALE_AFTER_DAYS else ""
        where = ", ".join(api.areas) or "?"
        dated = f"{api.quoted or '?'}{old}"
        rows.append((api.host, api.model, *map(_money, prices), batch, usd(request_usd), dated, where))
    columns = ["!host", "!model", ">input", ">cached", ">output", ">batch in / out", ">request", "!price of", "in"]
    yield blocks.table(columns, rows)
    yield blocks.note(
        f"Dollars per Mtok at this request size; a request is {asked}, nothing cached.",
        "in: where its host says that it computes. ? is not known, or not in the list (genai-prices).",
        f"The day: when a price was checked, or else that of its list. {_STALE}.",
    )


def _money(amount: float | None) -> str:
    return "?" if amount is None else usd(amount)


def _tflops(flops: float | None) -> str:
    return f"{flops / 1e12:,.0f}" if flops else NO_VALUE


# --- what is installed, and what to do about what is not -------------------------------------------------------------


_MARKS = {"ok": blocks.Span("ok", "good"), "note": blocks.Span("note", "warn"), "broken": blocks.Span("BROKEN", "bad")}


def doctor(result: DoctorResult, request: Request) -> Answer:
    """Show what is installed, and what is broken."""
    return Answer(result, "Doctor", partial(_checks, result))


def _checks(result: DoctorResult) -> blocks.View:
    broken = [check.name for check in result.checks if check.state == "broken"]
    verdict = blocks.headline("All that is needed works", f"{_old_prices(result)}.")
    if not result.works:
        verdict = blocks.headline(f"{plural(len(broken), 'thing')} broken", f": {', '.join(broken)}", "worst")
    yield verdict
    rows = [(check.name, _MARKS[check.state], check.seen) for check in result.checks]
    yield blocks.table(["!what", "!state", "seen"], rows)
    yield blocks.section(*(blocks.hint(f"{check.name}: {check.fix}") for check in result.checks if check.fix))


def _old_prices(result: DoctorResult) -> str:
    """Warn, after the verdict, if no GPU price is recent."""
    days = next((check.facts["newest_days"] for check in result.checks if "newest_days" in check.facts), None)
    old = isinstance(days, int) and days > STALE_AFTER_DAYS
    return f", but even the newest GPU price is {days} days old" if old else ""
