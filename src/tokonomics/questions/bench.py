"""What do the tokens of a server cost under load?"""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.inputs import Profiled, Traffic
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.measured import Rented, check_names, machine_from, price_from, priced, require_range
from tokonomics.questions.request import Kind, Number, Placement, Request, Switch, Table, Text, Whole, declared

if TYPE_CHECKING:
    from tokonomics.measure.bench.run import BenchSettings
    from tokonomics.questions.measured_results import PricedRunResult
    from tokonomics.traffic.trace import Trace

_USERS = "1,4,16,64"


class LoadTest(Request):
    """The server, the loads in turn, and when to stop."""

    url: Text = declared(
        ...,
        "Server: http://host:8000, …/v1, or a whole endpoint.",
        place=Placement.FIRST,
        example="http://localhost:8000",
    )
    model: Text | None = declared(None, "Model to ask for.", without="the server's only one")
    concurrency: Text | None = declared(None, "Users at once, each load in turn: 1,4,16,64.", example=_USERS)
    rate: Text | None = declared(None, "Requests a second, arriving at random: 1,2,4.", example="1,2,4")
    trace: Table | None = declared(
        None, "A request log or shipped sample, replayed as it came.", kind=Kind.TRACE, example="azure-conv"
    )
    sweep: Switch = declared(False, "Double the users to the knee, or until --slo is missed.")
    input: Whole = declared(512, "Prompt tokens, about.", low=1, high=10**6)
    output: Whole = declared(128, "Answer tokens.", low=1, high=10**6)
    requests: Whole | None = declared(None, "At most so many a load.", low=1, high=10**7, example=1000)
    seconds: Number = declared(60.0, "At most so long a load.")
    precision: Number = declared(0.05, "Stop when mean latencies are known this closely.")
    max_usd: Number | None = declared(None, "At most so many dollars in all.", example=5)
    retries: Whole = declared(1, "Of requests the server did not take.", low=0, high=10)
    timeout: Number = declared(600.0, "Seconds after which a request has failed.")
    speed: Number | None = declared(None, "Replay so many times as fast.", example=2)
    seed: Whole | None = declared(
        None, "Of prompts and arrivals; the same seed sends the same.", low=0, without="new", example=0
    )
    save: Text | None = declared(
        None,
        "Keep the result with every request (.json), for import.",
        kind=Kind.FILE,
        writes=True,
        example="run.json",
    )


class BenchRequest(LoadTest, Rented, Profiled):
    """
    Answers are streamed; latencies count from when a request was due. A key is taken from OPENAI_API_KEY only, never
    printed or kept. Without a kind of load: --concurrency 1,4,16,64. How it measures: docs/bench.md.

    Examples:
      tokonomics bench http://localhost:8000 --usd-per-hour 2.49
      tokonomics bench http://localhost:8000 --sweep --slo ttft_p99=0.5,tpot_p99=50ms --gpu H100 --gpus 2
      tokonomics bench http://localhost:8000 --rate 1,2,4 --input 1000 --output 300 --save run.json
      tokonomics bench http://localhost:8000 --trace azure-conv --speed 2 --seconds 120
    """


def bench(request: BenchRequest, listener: Listener = SILENT) -> "PricedRunResult":
    """Load a server, and price what it did."""
    from tokonomics.measure.bench.run import run_bench
    from tokonomics.measure.importers.own import check_save_path, save_run

    save = Path(request.save) if request.save else None
    if save:
        check_save_path(save, "save")
    check_names(request)
    run = run_bench(_asked(request, listener), listener.watching())
    if save:
        save_run(run, save)
        listener.note(f"result saved to {save}")
    return priced(run, request)


def _asked(request: BenchRequest, listener: Listener) -> "BenchSettings":
    """Everything checked before the server hears from us."""
    from tokonomics.measure.addresses import target
    from tokonomics.measure.bench.loads import Budget
    from tokonomics.measure.bench.run import BenchSettings
    from tokonomics.measure.benchmark_run import Stated
    from tokonomics.traffic.slo import parse_slos

    # Prompts that were sent before may lie in the server's cache: unless asked for, none is sent twice.
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    users, rates, log = _loads(request, seed, listener)
    require_range("seconds", request.seconds, 0.1, 86_400)
    require_range("timeout", request.timeout, 0.1, 86_400)
    require_range("precision", request.precision, 1e-3, 1)
    price = price_from(machine_from(Stated(), request), request.model, request.gpus, request.usd_per_hour)
    if request.max_usd is not None:
        require_range("max_usd", request.max_usd, 1e-6, 1e9)
        if price is None:
            fix = f"Give {option('usd_per_hour')}, or {option('gpu')}."
            raise BadInput("needs a price", field="max_usd", fix=fix)
    return BenchSettings(
        target(request.url),
        model=request.model,
        users=users,
        rates=rates,
        trace=log,
        sweep=request.sweep,
        input_tokens=request.input,
        output_tokens=request.output,
        budget=Budget(request.precision, request.requests or 100_000, request.seconds, request.max_usd),
        slos=parse_slos(request.slo) if request.slo is not None else (),
        usd_per_hour=price.usd_per_hour if price else None,
        retries=request.retries,
        timeout_s=request.timeout,
        seed=seed,
    )


def _loads(request: BenchRequest, seed: int, listener: Listener) -> "tuple[list[int], list[float], Trace | None]":
    """The one kind of load that was asked for: users, rates or a log; none of them for a sweep."""
    from tokonomics.measure.bench.run import MOST_USERS

    kinds: dict[str, Any] = {
        "concurrency": request.concurrency,
        "rate": request.rate,
        "trace": request.trace,
        "sweep": request.sweep or None,
    }
    given = [option(name) for name, value in kinds.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} are different kinds of load", fix="Give one of them.")
    if request.speed is not None and request.trace is None:
        raise BadInput("is for a trace", field="speed")
    if request.trace is not None:
        from tokonomics.questions.traffic import traffic_of

        values = {"trace": request.trace, "speed": request.speed, "requests": request.requests, "seed": seed}
        return [], [], traffic_of(Traffic.of(values), listener)
    if request.rate is not None:
        return [], _numbers(request.rate, "rate", 1e-3, 1e5), None
    if request.sweep:
        return [], [], None
    users = _numbers(_USERS if request.concurrency is None else request.concurrency, "concurrency", 1, MOST_USERS)
    if any(number != round(number) for number in users):
        raise BadInput("users are whole numbers", field="concurrency")
    return [round(number) for number in users], [], None


def _numbers(text: str, field: str, low: float, high: float) -> list[float]:
    made = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            raise BadInput(f"'{shorten(part.strip())}' is not a number", field=field, fix="Such as 1,4,16.") from None
        made.append(require_range(field, number, low, high))
    return made
