"""Which machines to buy, on which terms, hour by hour?"""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.inputs import (
    LengthInputs,
    LogInputs,
    Market,
    Objectives,
    OneEngine,
    Paced,
    Precisions,
    Profiled,
    Seeded,
    SomeGpus,
    SomeModel,
    Traffic,
)
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.load import offers_of, targets_of
from tokonomics.questions.request import Number, Switch, Text, Texts, Whole, declared
from tokonomics.questions.serving import named, say_if_compiling
from tokonomics.questions.traffic import lengths_of, read_rate, read_time, traffic_of

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Terms
    from tokonomics.catalog.spot import Interruptions
    from tokonomics.planner.fleet_traffic import FleetTraffic
    from tokonomics.questions.results import FleetResult


class FleetRequest(
    SomeModel, Paced, LengthInputs, LogInputs, Objectives, SomeGpus, Market, Precisions, OneEngine, Seeded, Profiled
):
    """
    Examples:
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=50ms
      tokonomics fleet llama-3.1-8b --demand weekly:9,peak=2 --input 900 --output 99 --slo ttft_p99=1 --chart fleet.png
      tokonomics fleet llama-3.1-70b --trace log.jsonl --slo ttft_p99=2,tpot_p99=60ms --size-classes 4000 --no-spot
      tokonomics fleet llama-3.1-8b --trace azure-conv --slo tpot_p99=50ms --provider aws --availability 0.999999
      tokonomics fleet chat.toml --demand weekly:9,peak=2
    """

    FIRST = ("model", "demand")

    demand: Text | None = declared(
        None,
        "Requests a second over time: 12x20,12x2 (hours × rate) or weekly:5,peak=2.",
        example="12x20,12x2",
    )
    size_classes: Text | None = declared(
        None,
        "Split requests by prompt and answer tokens: 4000 or 1000,8000. Large ones may go elsewhere.",
        example="4000",
    )
    hours: Whole | None = declared(
        None, "The horizon, at most 744; it repeats.", without="168, or the log's own", example=168
    )
    anywhere: Switch = declared(False, "Mix providers and regions; else all is bought in one region.")
    terms: Texts | None = declared(
        None, "Only these terms: on_demand, spot, reserved or all.", without="all", example=["on_demand"]
    )
    no_spot: Switch = declared(False, "Buy nothing on spot.")
    no_reserved: Switch = declared(False, "Commit to nothing for years.")
    max_spot_share: Number | None = declared(
        None,
        "Firm machines can carry the rest of any hour's demand: 0.5, at least half of it.",
        low=0,
        high=1,
        without="the spot verdict's",
        example=0.5,
    )
    max_zone_share: Number | None = declared(
        None,
        "The most of the demand that one spot zone may take with it.",
        low=0,
        high=1,
        without="1; 0 where it is not bought again",
        example=0.5,
    )
    no_fallback: Switch = declared(False, "Do not buy on demand what a spot market takes back.")
    interruptions: Text | None = declared(
        None,
        "Chance that a spot machine is taken within a month: 0.2; or scarce.",
        without="AWS's own",
        example="0.2",
    )
    min_replicas: Whole = declared(0, "Firm replicas in every hour.", low=0, high=10_000)
    availability: Number | None = declared(
        None, "Share of time in which what is running carries the demand: 0.9999.", example=0.9999
    )
    startup: Text | None = declared(
        None, "From ordering a machine to its first answer: 300, 5m.", without="estimated", example="5m"
    )
    gap: Number = declared(0.005, "Stop when nothing can be cheaper by more than this.", low=0, high=0.99)
    time_limit: Number = declared(30.0, "Seconds for the solver.", low=0.1, high=3600)
    no_replay: Switch = declared(False, "Do not try the fleet in the simulator.")


def fleet(request: FleetRequest, listener: Listener = SILENT) -> "FleetResult":
    """The cheapest fleet over time, what it is compared with, and how it fares in the simulator."""
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.load_models import find_model
    from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision
    from tokonomics.clock import today
    from tokonomics.money.fleet import Wishes
    from tokonomics.money.fleet_availability import require_target
    from tokonomics.planner.fleet import FleetBounds, plan_fleet
    from tokonomics.planner.fleet_offers import FleetMarket, fleet_machines, zones_needed
    from tokonomics.questions.results import FleetResult

    targets = targets_of(request)
    model = find_model(named(request.model))
    weights = (
        parse_precision(request.weights, WEIGHT_PRECISIONS, "weights") if request.weights is not None else model.served
    )
    kv = parse_precision(request.kv, KV_PRECISIONS, "kv")
    terms, risk = _terms(request), _interruptions(request.interruptions)
    startup_s = read_time(request.startup, "startup")
    target = None if request.availability is None else require_target(request.availability)
    engine = find_engine(request.engine)
    traffic = _traffic(request, model.max_context, listener)
    offers = offers_of(request)
    market = FleetMarket(
        today=today(),
        terms=terms,
        startup_s=startup_s,
        interruptions=risk,
        aws_zones=request.offers is None,
        most_zones=zones_needed(1.0 if request.max_zone_share is None else request.max_zone_share),
        anywhere=request.anywhere,
    )
    say_if_compiling(listener)
    machines = fleet_machines(
        model,
        engine,
        offers,
        traffic,
        targets,
        market,
        weights=weights,
        kv=kv,
        say=listener.doing,
    )
    found = plan_fleet(
        model.name,
        f"{engine.name}, {weights} weights, {kv} KV",
        machines,
        traffic,
        targets,
        Wishes(min_replicas=request.min_replicas, fallback=not request.no_fallback),
        FleetBounds(request.max_spot_share, request.max_zone_share, target, request.anywhere),
        gap=request.gap,
        time_limit_s=request.time_limit,
        with_replay=not request.no_replay,
        seed=request.seed,
        say=listener.doing,
    )
    return FleetResult(**dict(found))


def _traffic(request: FleetRequest, context: int, listener: Listener) -> "FleetTraffic":
    """A demand curve with lengths, or a log."""
    from tokonomics.money.demand import parse_demand
    from tokonomics.planner.fleet_traffic import traffic_from_curve, traffic_from_trace

    limits = _size_classes(request.size_classes)
    demand, trace, rate = request.demand, request.trace, request.rate
    if demand is None and trace is None and rate is not None:
        demand = f"1x{read_rate(rate):g}"
    elif demand is not None and rate is not None:
        raise BadInput(f"says the same as {option('demand')}", field="rate", fix="Give one of the two.")
    if (demand is None) == (trace is None):
        what = "no demand is given" if demand is None else "a demand and a log are given"
        shape = f"{option('input', 1000)} {option('output', 300)}"
        raise BadInput(
            what,
            field="demand",
            fix=f"Write {option('demand', '12x20,12x2')} {shape}, {option('rate', 20)} …, or "
            f"{option('trace', 'log.jsonl')}.",
        )
    if trace is not None:
        for name in ("input", "output"):
            if getattr(request, name) is not None:
                raise BadInput("is for a demand curve; a log brings its own lengths", field=name)
        log = Traffic(trace=trace, rate=rate, columns=request.columns, seed=request.seed)
        return traffic_from_trace(traffic_of(log, listener), limits, request.hours, context)
    curve = parse_demand(demand or "", request.hours)
    if curve.peak <= 0:
        raise BadInput("there is no hour with a request", field="demand")
    if request.columns is not None:
        raise BadInput("is for a log", field="columns")
    inputs, outputs = lengths_of(Traffic(input=request.input, output=request.output), least=1)
    return traffic_from_curve(curve, inputs, outputs, limits, request.seed, context)


def _size_classes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part[:12]) <= 10**8 for part in parts) or len(set(parts)) < len(parts):
        raise BadInput(
            f"'{shorten(text)}' are not sizes in tokens",
            field="size_classes",
            fix="Write such as 4000, or 1000,8000: requests of up to so many tokens each.",
        )
    return tuple(sorted(int(part) for part in parts))


def _terms(request: FleetRequest) -> "tuple[Terms, ...]":
    from tokonomics.catalog.offers import Terms
    from tokonomics.planner.parsing import terms_from

    left_out = {Terms.spot: request.no_spot, Terms.reserved: request.no_reserved}
    allowed = terms_from(request.terms or ("on_demand", "reserved", "spot"))
    chosen = tuple(terms for terms in allowed if not left_out.get(terms))
    if not chosen:
        raise BadInput("leaves nothing to buy", field="terms", fix="Write such as on_demand,reserved,spot.")
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
            field="interruptions",
            fix="Write such as 0.2: taken back within a month with a chance of 20 %; or scarce.",
        )
    return Interruptions(per_hour=hourly_rate(chance))
