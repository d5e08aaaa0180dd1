"""The flags that say what runs a model: shared by the verbs that predict a step and those that simulate traffic."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from tokonomics.physics.deployment import Deployment
    from tokonomics.planner.load import Load
    from tokonomics.serving.fleet import Autoscale, FleetSettings, Outage

ModelArgument = Annotated[str | None, typer.Argument(help="Model name, or path to a config.json.", metavar="MODEL")]
Model = Annotated[str | None, typer.Option("--model", help="The same, by name.")]
GpuName = Annotated[str, typer.Option("--gpu", help="GPU to run it on.")]
Tp = Annotated[int, typer.Option(help="Tensor parallelism: GPUs that share each layer.")]
Pp = Annotated[int, typer.Option(help="Pipeline stages: groups of GPUs that share the layers.")]
Ep = Annotated[int, typer.Option(help="Expert parallelism: groups of GPUs that share the experts.")]
Weights = Annotated[str | None, typer.Option(help="Precision of the weights.", show_default="the checkpoint's own")]
Kv = Annotated[str, typer.Option(help="Precision of the KV cache: bf16 or fp8.")]
EngineName = Annotated[str, typer.Option(help="Serving engine: its rules, limits and own time.")]
Replicas = Annotated[int, typer.Option(min=1, max=10_000, help="Replicas behind the router.")]
RouterName = Annotated[
    str, typer.Option("--router", help="round-robin, least-outstanding, power-of-two or prefix-aware.")
]
AutoscaleText = Annotated[
    str | None,
    typer.Option("--autoscale", help="Replicas that come and go: max=8,target=32,cold=120,min=1."),
]
OutageTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--outage", help="A replica that fails: replica=0,at=600,for=300; or a spot one: …,notice=120,spot=1."
    ),
]
PrefillReplicas = Annotated[
    int, typer.Option(min=0, max=10_000, help="Replicas that compute prompts only and send the KV on (disaggregation).")
]
Link = Annotated[
    float | None, typer.Option(help="GB/s from a prefill GPU to a decode GPU.", show_default="50: 400 Gbit/s each")
]
TimeoutText = Annotated[str | None, typer.Option("--timeout", help="Clients hang up after: 30, 500ms, 2m.")]
ByPriority = Annotated[bool, typer.Option("--priority", help="Serve by the trace's priorities instead of in order.")]
NoPrefixCache = Annotated[bool, typer.Option("--no-prefix-cache", help="Compute every prompt in full.")]
MaxSequences = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="Sequences at once.", show_default="the engine's own")
]
MaxBatchedTokens = Annotated[
    int | None, typer.Option(min=1, max=1 << 20, help="Tokens of one step.", show_default="the engine's own")
]
SloText = Annotated[
    str | None,
    typer.Option("--slo", help="Promises: ttft_p99=0.5,tpot_p99=50ms,e2e_p90=20 (p50 … p99, mean)."),
]
UsdPerHour = Annotated[
    float | None, typer.Option(help="Price of one GPU-hour.", show_default="the cheapest offer, if there is one")
]


def model_from(by_place: str | None, by_name: str | None) -> str:
    """The model, given in either way."""
    if (by_place is None) == (by_name is None):
        what = "no model is given" if by_name is None else "two models are given"
        raise BadInput(what, where="--model", fix="Name one, such as --model llama-3.1-8b.")
    return by_place or by_name or ""


def say_left_out(load: "Load", context: int) -> None:
    """What of a log is not in the figures."""
    if load.bad_rows:
        typer.echo(f"{load.bad_rows:,} rows of the log could not be used: see `tokonomics trace`", err=True)
    if load.too_long:
        many = load.too_long + len(load.trace)
        typer.echo(
            f"{load.too_long:,} of {many:,} requests are longer than the model's {context:,} tokens of context: "
            "left out",
            err=True,
        )


def say_if_compiling() -> None:
    """The first simulation on a machine compiles its loop: say why it takes a while."""
    from tokonomics.serving.compiled import must_compile

    if must_compile():
        typer.echo("compiling the simulator, once on this machine: about a quarter of a minute …", err=True)


def fleet_from(
    replicas: int,
    router: str,
    autoscale: str | None,
    outages: Sequence[str] | None,
    prefill_replicas: int,
    link: float | None,
) -> "FleetSettings":
    """A checked fleet from what was typed."""
    from tokonomics.planner.wishes import router_from
    from tokonomics.serving.fleet import LINK_BYTES_PER_S, FleetSettings

    if link is not None and not prefill_replicas:
        raise BadInput("is for disaggregated fleets", where="--link", fix="Give --prefill-replicas as well.")
    if link is not None and not 1e-3 <= link <= 1e6:
        raise BadInput(f"must be from 0.001 to a million GB/s, got {link:g}", where="--link")
    return FleetSettings(
        replicas=replicas,
        router=router_from(router),
        autoscale=_autoscale(autoscale) if autoscale is not None else None,
        outages=tuple(_outage(text) for text in outages or ()),
        prefill_replicas=prefill_replicas,
        link_bytes_per_s=link * 1e9 if link else LINK_BYTES_PER_S,
    )


def _autoscale(text: str) -> "Autoscale":
    from tokonomics.serving.fleet import Autoscale

    names = {"min": "min_replicas", "max": "max_replicas", "target": "target", "cold": "cold_start_s"}
    names |= {"interval": "interval_s", "hold": "hold_s"}
    fix = "Write such as max=8,target=32,cold=120: at most 8 replicas, one for 32 requests, 120 s to start."
    made = _named(text, names, "--autoscale", fix)
    with suppress(ValidationError):
        scale = Autoscale.model_validate(made)
        if scale.min_replicas <= scale.max_replicas <= 10_000:
            return scale
    raise BadInput(f"'{shorten(text)}' is no autoscaling", where="--autoscale", fix=fix)


def _outage(text: str) -> "Outage":
    from tokonomics.serving.fleet import Outage

    names = {"replica": "replica", "at": "at_s", "for": "down_s", "notice": "notice_s", "spot": "reclaimed"}
    fix = "Write such as replica=0,at=600,for=300,notice=120,spot=1: seconds; without 'for' it never comes back."
    made = _named(text, names, "--outage", fix)
    with suppress(ValidationError):
        return Outage.model_validate(made)
    raise BadInput(f"'{shorten(text)}' is no outage", where="--outage", fix=fix)


def _named(text: str, names: dict[str, str], where: str, fix: str) -> dict[str, float]:
    made: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names or not math.isfinite(number) or names[name] in made:
            raise BadInput(f"'{shorten(part.strip())}' is not understood", where=where, fix=fix)
        made[names[name]] = int(number) if number == int(number) else number
    return made


def timeout_from(text: str | None) -> float:
    """Seconds after which clients hang up; never, unless given."""
    from tokonomics.cli.traffic_flags import read_time

    given = read_time(text, "--timeout")
    if given is None:
        return math.inf
    if not given > 0:
        raise BadInput(f"must be above 0, got {shorten(text or '')}", where="--timeout")
    return given


def price_of(deployment: "Deployment", fleet: "FleetSettings", usd_per_hour: float | None) -> tuple[float, str] | None:
    """Dollars an hour for one replica, and where the price comes from; None where no offer is known.

    Replicas share whole machines when their number is fixed; those that come and go take their own.
    """
    from tokonomics.catalog.offers import NoOffer, cheapest_offer, load_offers, machines_usd_per_hour
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive
    from tokonomics.planner.machines import offers_with_room

    if usd_per_hour is not None:
        return require_positive("--usd-per-hour", usd_per_hour) * deployment.gpus, "as given"
    apart = fleet.autoscale is not None or any(outage.reclaimed for outage in fleet.outages)
    together = 1 if apart else fleet.replicas + fleet.prefill_replicas
    with suppress(NoOffer):
        roomy = offers_with_room(deployment, load_offers())
        offer = cheapest_offer(deployment.gpu.key, deployment.gpus * together, offers=roomy, together=deployment.tp)
        price = machines_usd_per_hour(offer, deployment.gpus * together) / together
        return price, offer.quoted(today())
    return None
