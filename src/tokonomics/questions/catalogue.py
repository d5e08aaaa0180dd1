"""What exists and what it costs: models, GPUs, offers, token prices of hosted models."""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Market, SomeGpus
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Kind, Number, Placement, Request, Switch, Text, Whole, declared
from tokonomics.questions.tables import prices_in

if TYPE_CHECKING:
    from tokonomics.questions.result import Listing

_TOP = "Rows to show."


class ModelsRequest(Request):
    """
    Examples:
      tokonomics models
      tokonomics models qwen3 --moe
      tokonomics models path/to/config.json --json
    """

    match: Text | None = declared(None, "Only names that contain this.", place=Placement.FIRST, kind=Kind.MODEL)
    family: Text | None = declared(None, "Only this family, such as llama.")
    moe: Switch | None = declared(None, "Only mixtures of experts, or only dense.", off="--dense")


def models(request: ModelsRequest, listener: Listener = SILENT) -> "Listing":
    """Models that we know."""
    from tokonomics.catalog.load_models import find_models
    from tokonomics.questions.result import Listing

    found = find_models(request.match, request.family, request.moe)
    return Listing(rows=tuple(found), documents=tuple(model.summary() for model in found))


class GpusRequest(Request):
    """
    Examples:
      tokonomics gpus
      tokonomics gpus --min-memory 80 --architecture hopper
      tokonomics gpus "NVIDIA H100 80GB HBM3" --json
    """

    match: Text | None = declared(None, "Only names that contain this.", place=Placement.FIRST)
    min_memory: Number | None = declared(None, "At least this many GB of memory.")
    architecture: Text | None = declared(None, "Only this one, such as hopper.")


def gpus(request: GpusRequest, listener: Listener = SILENT) -> "Listing":
    """GPUs that we know."""
    from tokonomics.catalog.gpus import find_gpus
    from tokonomics.money.cost import require_positive
    from tokonomics.questions.result import Listing

    if request.min_memory:
        require_positive("min_memory", request.min_memory)
    found = find_gpus(request.match, request.min_memory, request.architecture)
    return Listing(rows=tuple(found), documents=tuple(gpu.model_dump(mode="json") for gpu in found))


class OffersRequest(SomeGpus, Market):
    """
    Examples:
      tokonomics offers --gpu H100
      tokonomics offers --gpu L4,T4 --provider aws,gcp --terms spot
      tokonomics offers --offers my.csv --discount aws=0.2 --json
      tokonomics offers chat.toml
    """

    terms: Text = declared("on_demand", "on_demand, spot or reserved: which price to sort by.")
    max_price: Number | None = declared(None, "The most dollars per GPU-hour.", example=4.0)
    top: Whole = declared(25, _TOP, low=1)


def offers(request: OffersRequest, listener: Listener = SILENT) -> "Listing":
    """GPU prices by the hour, cheapest first."""
    from tokonomics.catalog.offers import select_offers
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive
    from tokonomics.planner.parsing import discounts_from, listed, parse_terms
    from tokonomics.questions.result import Listing

    if request.max_price is not None:
        require_positive("max_price", request.max_price)
    found = select_offers(
        prices_in(request.offers),
        provider=listed(request.provider, "provider"),
        region=listed(request.region, "region"),
        gpu=listed(request.gpu, "gpu"),
        terms=parse_terms(request.terms),
        max_usd_per_gpu_hour=request.max_price,
        discounts=discounts_from(request.discount),
    )
    documents = [offer.model_dump(mode="json") | {"stale": offer.is_stale(today())} for offer in found]
    return Listing(rows=tuple(found), documents=tuple(documents))


class ApisRequest(Request):
    """
    Examples:
      tokonomics apis gpt-4o --host openai
      tokonomics apis llama-3.3-70b
      tokonomics apis gemini --input 300000 --output 1000
    """

    match: Text | None = declared(None, "Only models that contain this, or host:model.", place=Placement.FIRST)
    host: Text | None = declared(None, "Only this host, such as openai.")
    input: Whole = declared(1000, "Prompt tokens of a request, to price one.", low=0, high=10**8)
    output: Whole = declared(300, "Answer tokens of a request, to price one.", low=0, high=10**8)
    litellm: Text | None = declared(None, "Also read this litellm-format price file (JSON).", kind=Kind.FILE)
    top: Whole = declared(25, _TOP, low=1)


def apis(request: ApisRequest, listener: Listener = SILENT) -> "Listing":
    """Token prices of hosted models."""
    from pathlib import Path

    from tokonomics.catalog.apis import list_apis, price_request
    from tokonomics.catalog.litellm_file import read_litellm
    from tokonomics.questions.result import Listing

    extra = read_litellm(Path(request.litellm)) if request.litellm else ()
    found = list_apis(host=request.host, match=request.match, extra=extra)
    priced = [(api, price_request(api, request.input, 0, request.output)) for api in found]
    documents = [api.model_dump(mode="json") | {"request_usd": usd} for api, usd in priced]
    return Listing(rows=tuple(priced), documents=tuple(documents))
