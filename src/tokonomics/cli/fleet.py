"""``tokonomics fleet``: which machines to buy, on which terms, hour by hour."""

from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, working
from tokonomics.cli.groups import Market, Shown, Traffic, flat
from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Terms
    from tokonomics.catalog.spot import Interruptions
    from tokonomics.planner.fleet_traffic import FleetTraffic

DemandText = Annotated[
    str | None,
    typer.Option("--demand", help="Requests a second over time: 12x20,12x2 (hours × rate) or weekly:5,peak=2."),
]
SizeClasses = Annotated[
    str | None,
    typer.Option(help="Split requests by prompt and answer tokens: 4000 or 1000,8000. Large ones may go elsewhere."),
]


@flat
def fleet(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    demand: DemandText = None,
    rate: flags.Rate = None,
    trace: flags.TraceName = None,
    columns: flags.Columns = None,
    input: flags.InputText = None,
    output: flags.OutputText = None,
    slo: flags.SloText = None,
    size_classes: SizeClasses = None,
    hours: Annotated[
        int | None, typer.Option(help="The horizon, at most 744; it repeats.", show_default="168, or the log's own")
    ] = None,
    gpu: flags.GpuNames = None,
    market: Market,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Mix providers and regions; else all is bought in one region.")
    ] = False,
    terms: Annotated[
        list[str] | None,
        typer.Option("--terms", help="Only these terms: on_demand, spot, reserved or all.", show_default="all"),
    ] = None,
    no_spot: Annotated[bool, typer.Option("--no-spot", help="Buy nothing on spot.")] = False,
    no_reserved: Annotated[bool, typer.Option("--no-reserved", help="Commit to nothing for years.")] = False,
    max_spot_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Firm machines can carry the rest of any hour's demand: 0.5, at least half of it.",
            show_default="the spot verdict's",
        ),
    ] = None,
    max_zone_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The most of the demand that one spot zone may take with it.",
            show_default="1; 0 where it is not bought again",
        ),
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Do not buy on demand what a spot market takes back.")
    ] = False,
    interruptions: Annotated[
        str | None,
        typer.Option(
            help="Chance that a spot machine is taken within a month: 0.2; or scarce.", show_default="AWS's own"
        ),
    ] = None,
    min_replicas: Annotated[int, typer.Option(min=0, max=10_000, help="Firm replicas in every hour.")] = 0,
    availability: Annotated[
        float | None, typer.Option(help="Share of time in which what is running carries the demand: 0.9999.")
    ] = None,
    startup: Annotated[
        str | None, typer.Option(help="From ordering a machine to its first answer: 300, 5m.", show_default="estimated")
    ] = None,
    weights: flags.Weights = None,
    kv: flags.Kv = "bf16",
    engine: flags.EngineName = "vllm",
    gap: Annotated[
        float, typer.Option(min=0, max=0.99, help="Stop when nothing can be cheaper by more than this.")
    ] = 0.005,
    time_limit: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds for the solver.")] = 30.0,
    no_replay: Annotated[bool, typer.Option("--no-replay", help="Do not try the fleet in the simulator.")] = False,
    seed: flags.Seed = 0,
    shown: Shown,
) -> None:
    """The cheapest fleet for a demand that changes over time: reserved, on demand and spot, hour by hour.

    \b
    Examples:
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=50ms
      tokonomics fleet llama-3.1-8b --demand weekly:9,peak=2 --input 900 --output 99 --slo ttft_p99=1 --chart fleet.png
      tokonomics fleet llama-3.1-70b --trace log.jsonl --slo ttft_p99=2,tpot_p99=60ms --size-classes 4000 --no-spot
      tokonomics fleet llama-3.1-8b --trace azure-conv --slo tpot_p99=50ms --provider aws --availability 0.999999
      tokonomics fleet chat.toml --demand weekly:9,peak=2
    """
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.load_models import find_model
    from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision
    from tokonomics.cli.serving_flags import model_from, say_if_compiling
    from tokonomics.cli.traffic_flags import read_time
    from tokonomics.clock import today
    from tokonomics.money.fleet import Wishes
    from tokonomics.money.fleet_availability import require_target
    from tokonomics.planner.fleet import plan_fleet
    from tokonomics.planner.fleet_offers import fleet_machines, zones_needed
    from tokonomics.planner.parsing import discounts_from, listed, offers_for
    from tokonomics.report.fleet_charts import fleet_chart
    from tokonomics.report.fleet_view import fleet_view
    from tokonomics.traffic.promises import parse_promises

    shown.check()
    promises = parse_promises(slo) if slo is not None else ()
    spec = find_model(model_from(model_name, model))
    held = parse_precision(weights, WEIGHT_PRECISIONS, "weights") if weights is not None else spec.served
    cache = parse_precision(kv, KV_PRECISIONS, "kv")
    bought_on = _terms(terms, no_spot, no_reserved)
    risk = _interruptions(interruptions)
    ready_s = read_time(startup, "startup")
    target = None if availability is None else require_target(availability)
    serves = find_engine(engine)
    arrives = Traffic(rate=rate, columns=columns, input=input, output=output, seed=seed)
    traffic = _traffic(demand, trace, arrives, size_classes, hours, context=spec.max_context)
    names, discounts = listed(gpu, "gpu"), discounts_from(market.discount)
    chosen = offers_for(market.offers, market.provider, market.region, names, discounts)
    say_if_compiling()
    with working() as say:
        machines = fleet_machines(
            spec,
            serves,
            chosen,
            traffic,
            promises,
            weights=held,
            kv=cache,
            terms=bought_on,
            today=today(),
            startup_s=ready_s,
            interruptions=risk,
            aws_zones=market.offers is None,
            most_zones=zones_needed(1.0 if max_zone_share is None else max_zone_share),
            anywhere=anywhere,
            say=say,
        )
        wishes = Wishes(min_replicas=min_replicas, fallback=not no_fallback)
        result = plan_fleet(
            spec.name,
            f"{serves.name}, {held} weights, {cache} KV",
            machines,
            traffic,
            promises,
            wishes,
            anywhere=anywhere,
            max_spot_share=max_spot_share,
            max_zone_share=max_zone_share,
            target=target,
            gap=gap,
            time_limit_s=time_limit,
            with_replay=not no_replay,
            seed=seed,
            say=say,
        )
    charts = {"What runs hour by hour": lambda: fleet_chart(result)}
    title = f"The fleet for {spec.name}"
    shown.give(Answer(result, lambda: fleet_view(result), title, charts))


def _traffic(
    demand: str | None,
    trace: str | None,
    arrives: Traffic,
    size_classes: str | None,
    hours: int | None,
    *,
    context: int,
) -> "FleetTraffic":
    """A demand curve with lengths, or a log."""
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.money.demand import parse_demand
    from tokonomics.planner.fleet_traffic import traffic_from_curve, traffic_from_trace
    from tokonomics.planner.scenario import read_rate
    from tokonomics.traffic.lengths import parse_lengths

    limits = _size_classes(size_classes)
    input_text, output_text = arrives.input, arrives.output
    if demand is None and trace is None and arrives.rate is not None:
        demand = f"1x{read_rate(arrives.rate):g}"
    elif demand is not None and arrives.rate is not None:
        raise BadInput("says the same as --demand", where="--rate", fix="Give one of the two.")
    if (demand is None) == (trace is None):
        what = "no demand is given" if demand is None else "a demand and a log are given"
        raise BadInput(
            what,
            where="--demand",
            fix="Write --demand 12x20,12x2 --input 1000 --output 300, --rate 20 …, or --trace log.jsonl.",
        )
    if trace is not None:
        for flag, given in (("--input", input_text), ("--output", output_text)):
            if given is not None:
                raise BadInput("is for a demand curve; a log brings its own lengths", where=flag)
        log = Traffic(rate=arrives.rate, columns=arrives.columns, seed=arrives.seed)
        return traffic_from_trace(traffic_from(trace, log), limits, hours, context)
    curve = parse_demand(demand or "", hours)
    if curve.peak <= 0:
        raise BadInput("there is no hour with a request", where="--demand")
    if arrives.columns is not None:
        raise BadInput("is for a log", where="--columns")
    if input_text is None:
        raise BadInput("is missing: how long are the prompts?", where="--input", fix="Such as --input 512.")
    inputs = parse_lengths(input_text, "input")
    if output_text is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", where="--output", fix="Such as --output 256.")
    outputs = inputs if output_text is None else parse_lengths(output_text, "output")
    return traffic_from_curve(curve, inputs, outputs, limits, arrives.seed, context)


def _size_classes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part[:12]) <= 10**8 for part in parts) or len(set(parts)) < len(parts):
        raise BadInput(
            f"'{shorten(text)}' are not sizes in tokens",
            where="--size-classes",
            fix="Write such as 4000, or 1000,8000: requests of up to so many tokens each.",
        )
    return tuple(sorted(int(part) for part in parts))


def _terms(names: list[str] | None, no_spot: bool, no_reserved: bool) -> tuple["Terms", ...]:
    from tokonomics.catalog.offers import Terms
    from tokonomics.planner.parsing import terms_from

    left_out = {Terms.spot: no_spot, Terms.reserved: no_reserved}
    chosen = tuple(each for each in terms_from(names or ["on_demand", "reserved", "spot"]) if not left_out.get(each))
    if not chosen:
        raise BadInput("leaves nothing to buy", where="--terms", fix="Write such as on_demand,reserved,spot.")
    return chosen


def _interruptions(text: str | None) -> "Interruptions | None":
    from tokonomics.catalog.spot import SCARCE, Interruptions, hourly_rate

    if text is None:
        return None
    if text.strip().lower() == "scarce":
        return SCARCE
    try:
        chance = float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance < 1:
        raise BadInput(
            f"'{shorten(text)}' is not a chance",
            where="--interruptions",
            fix="Write such as 0.2: taken back within a month with a chance of 20 %; or scarce.",
        )
    return Interruptions(per_hour=hourly_rate(chance))
