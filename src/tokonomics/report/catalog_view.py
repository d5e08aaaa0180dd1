"""Tables of what exists: models, GPUs, offers, APIs."""

from collections.abc import Sequence
from datetime import date

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.apis import ApiPrice
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import STALE_AFTER_DAYS, Offer, Terms, oldest_days
from tokonomics.catalog.precision import Precision
from tokonomics.catalog.refresh import ProviderRefresh, Refresh
from tokonomics.report.tables import table
from tokonomics.units import count, gigabytes, plural, usd

_STALE = f"† older than {STALE_AFTER_DAYS} days"


def models_view(models: Sequence[ModelSpec]) -> RenderableType:
    rows = [
        (
            model.key,
            count(model.parameters),
            count(model.active_parameters) if model.is_moe else "",
            str(model.layers),
            model.checkpoint.value,
            gigabytes(model.weight_bytes(model.checkpoint)),
            gigabytes(model.kv_bytes_per_token(Precision.bf16)),
            f"{model.max_context:,}",
            model.family,
        )
        for model in models
    ]
    columns = [
        "!model",
        ">parameters",
        ">active",
        ">layers",
        "published in",
        ">weights",
        ">KV/token",
        ">context",
        "family",
    ]
    return Group(
        table(columns, rows),
        "",
        _dim(f"{plural(len(models), 'model')}. KV per token in bf16, every layer inside its window."),
    )


def gpus_view(gpus: Sequence[Gpu]) -> RenderableType:
    rows = [
        (
            gpu.key,
            f"{gpu.memory_gb:g}",
            f"{gpu.bandwidth_bytes_per_s / 1e12:.2f}",
            _tflops(gpu.peak_flops(Precision.bf16)),
            _tflops(gpu.flops.get("fp8")),
            _tflops(gpu.flops.get("fp4")),
            f"{gpu.link_bytes_per_s / 1e9:.0f}{'' if gpu.fast_link_bytes_per_s else ' (PCIe)'}",
            str(gpu.gpus_per_node),
            f"{gpu.watts:g}" if gpu.watts else "?",
            gpu.architecture,
        )
        for gpu in gpus
    ]
    columns = ["!GPU", ">GB", ">TB/s", ">16-bit", ">FP8", ">FP4", ">link GB/s", ">per node", ">W", "architecture"]
    note = "Datasheet figures: dense TFLOP/s, link bandwidth in one direction. Sources: --json."
    return Group(table(columns, rows), "", _dim(f"{plural(len(gpus), 'GPU')}. {note}"))


def offers_view(offers: Sequence[Offer], terms: Terms, today: date, top: int) -> RenderableType:
    if not offers:
        return Text("No offer matches. Loosen --gpu, --provider, --region, --terms or --max-price.")
    rows = [
        (
            offer.gpu,
            str(offer.gpus),
            offer.provider,
            offer.instance,
            offer.region,
            _money(offer.usd_per_gpu_hour(terms)),
            _money(offer.usd_per_hour),
            _money(offer.spot_usd_per_hour),
            _money(offer.price(Terms.reserved)),
            f"{offer.date}{'†' if offer.is_stale(today) else ''}",
        )
        for offer in offers[:top]
    ]
    columns = [
        "!GPU",
        ">GPUs",
        "provider",
        "instance",
        "region",
        ">$/GPU-h",
        ">on demand",
        ">spot",
        ">reserved",
        "!quoted",
    ]
    more = (
        f"{len(offers):,} offers, {len(rows)} shown (--top)."
        if len(offers) > len(rows)
        else f"{plural(len(offers), 'offer')}."
    )
    stale = f" {_STALE}: `tokonomics prices refresh`." if any(offer.is_stale(today) for offer in offers[:top]) else ""
    note = f"{more} $/GPU-h is {terms.replace('_', ' ')}; the other prices are dollars an hour for the whole instance."
    oldest = oldest_days(offers, today)
    too_old = sum(offer.age_days(today) > oldest for offer in offers[:top])
    are = "is" if too_old == 1 else "are"
    listed = f" {too_old} of those shown {are} over a year old: no verb reckons with that unless told (plan --max-age)."
    passed_over = " Verbs that serve a model pass over hosts with too little memory for its weights."
    return Group(table(columns, rows), "", _dim(note + stale + (listed if too_old else "") + passed_over))


def apis_view(
    priced: Sequence[tuple[ApiPrice, float]], input_tokens: int, output_tokens: int, today: date, top: int
) -> RenderableType:
    if not priced:
        return Text("No hosted model matches. Try a shorter name, or no --host.")
    rows = [
        (
            api.host,
            api.model,
            _money(api.rates(input_tokens).input_usd_per_mtok),
            _money(api.rates(input_tokens).cached_input_usd_per_mtok),
            _money(api.rates(input_tokens).output_usd_per_mtok),
            _pair(api.rates(input_tokens).batch_input_usd_per_mtok, api.rates(input_tokens).batch_output_usd_per_mtok),
            usd(request),
            _quoted(api, today),
        )
        for api, request in priced[:top]
    ]
    columns = ["!host", "!model", ">input", ">cached", ">output", ">batch in / out", ">request", "!list of"]
    shown = f", {len(rows)} shown (--top)" if len(priced) > len(rows) else ""
    note = (
        f"{len(priced):,} prices{shown}, dollars per Mtok at this request size; a request is {input_tokens:,} in, "
        f"{output_tokens:,} out, nothing cached. ? is not in the list (genai-prices) whose date is shown. {_STALE}."
    )
    return Group(table(columns, rows), "", _dim(note))


def refresh_view(result: Refresh) -> RenderableType:
    rows = [(row.provider, f"{row.rows:,}", str(row.date or "?"), _outcome(row)) for row in result.providers]
    where = f"Written to {result.path}." if result.path else "Nothing was written: every provider failed."
    return Group(table(["!provider", ">offers", "!date", "outcome"], rows), "", _dim(where))


def _outcome(each: ProviderRefresh) -> Text:
    if each.error:
        return Text(f"kept the old prices: {each.error}", style="yellow")
    skipped = f", {plural(each.skipped, 'row')} without a known GPU or price" if each.skipped else ""
    return Text(f"refreshed{skipped}{f'; {each.note}' if each.note else ''}", style="green")


def _money(amount: float | None) -> str:
    return "?" if amount is None else usd(amount)


def _pair(first: float | None, second: float | None) -> str:
    return "?" if first is None or second is None else f"{usd(first)} / {usd(second)}"


def _tflops(flops: float | None) -> str:
    return f"{flops / 1e12:,.0f}" if flops else "–"


def _quoted(api: ApiPrice, today: date) -> str:
    if api.date is None:
        return "?"
    return f"{api.date}{'†' if (today - api.date).days > STALE_AFTER_DAYS else ''}"


def _dim(text: str) -> Text:
    return Text(text, style="dim")
