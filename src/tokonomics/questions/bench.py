"""Answer what a server's tokens cost under load: ``bench``, and ``import`` for benchmarks that were already run."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tokonomics.addresses import target
from tokonomics.catalog.api_hosts import find_api
from tokonomics.catalog.apis import ApiPrice, price_request
from tokonomics.catalog.checkpoints import OwnRecovery, QuantisedPart, save_recovery
from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.files import check_path
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import MOST_USERS, BenchSettings, run_bench
from tokonomics.measure.benchmark_run import BenchmarkRun, Stated, save_run
from tokonomics.measure.importers.lm_eval import HarnessRun, KeptQuality, kept_quality, read_scores
from tokonomics.measure.importers.recognise import read_runs
from tokonomics.measure.priced_run import (
    GivenMachine,
    MeasuredMachine,
    Price,
    PricedRun,
    as_model,
    machine_of,
    price_run,
    rental_of,
)
from tokonomics.measure.quotes import QuoteRanking, quote_beside, ranked_quotes
from tokonomics.measure.stated_setup import stated_weights
from tokonomics.money.cost import require_positive
from tokonomics.questions.deployment import targets_of
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import USERS, BenchRequest, ImportResultsRequest, Ran, Rented
from tokonomics.questions.result import Result
from tokonomics.questions.traffic import traffic_of
from tokonomics.traffic.generate import agent_in, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.trace import Trace
from tokonomics.types import today
from tokonomics.units import fine_percent, plural, usd


class PricedRunResult(Result, PricedRun):
    """A measured run with its cost and the errors of our predictions."""

    ROWS = "run.points"

    def headline(self) -> str:
        what = f"{self.run.model or 'a server'}, measured by {self.run.tool}"
        best = self.verdict.best
        if best is None:
            return f"{what}: {plural(len(self.points), 'load')}"
        point, price = self.run.points[best], self.points[best].usd_per_mtok
        if price is None:
            return f"{what}: {point.output_tokens_per_s:,.0f} output tokens/s at {point.load}"
        return f"{what}: {usd(price.blended)} per Mtok at {point.load}"


class RecoveryResult(Result, KeptQuality):
    """The share of the published model's scores that a quantised model keeps."""

    ROWS = "tasks"

    model: str
    name: str  # the model's name for people
    part: QuantisedPart
    precision: Precision
    published: Precision  # the precision it is compared with
    kept: bool  # whether it is saved in the user's catalogue, where plans find it

    def headline(self) -> str:
        what = self.precision.upper() if self.part == "weights" else f"{self.precision.upper()} KV cache"
        return f"{self.model} {what}: {fine_percent(self.recovery)} recovered over {plural(len(self.tasks), 'task')}"


class QuotesResult(Result, QuoteRanking):
    """Vendors' quotes, ranked by what their machines were measured to do."""

    ROWS = "quotes"

    def headline(self) -> str:
        best, what = self.quotes[0], plural(len(self.quotes), "quote")
        if best.usd_per_month is None:
            return f"{self.asked.model}: none of {what} meets the SLO"
        return (
            f"{self.asked.model}: {best.quote.vendor or best.quote.gpu} at {usd(best.usd_per_month)} a month, of {what}"
        )


def priced(run: BenchmarkRun, request: Rented) -> PricedRunResult:
    """Price a measured run and return how far predictions were off."""
    machine = machine_of(run.stated, said_of(request))
    price = price_from(machine, run.model, request)
    return PricedRunResult(**dict(price_run(run, machine, price, targets_of(request))))


def said_of(ran: Ran, model: str | None = None) -> GivenMachine:
    """Check what was typed, which must be known; what a file states may be anything."""
    if model is not None:
        find_model(model)
    if ran.gpu is not None:
        find_gpu(ran.gpu)
    if ran.engine is not None:
        find_engine(ran.engine)
    if ran.weights is not None:
        parse_precision(ran.weights, WEIGHT_PRECISIONS, "weights")
    if ran.kv is not None:
        parse_precision(ran.kv, KV_PRECISIONS, "kv")
    return GivenMachine(ran.gpu, ran.gpus, ran.tp, ran.pp, ran.ep, ran.dp, ran.engine, ran.weights, ran.kv, model)


def price_from(machine: MeasuredMachine | None, model: str | None, rented: Rented) -> Price | None:
    """Return an API's price, the given one per GPU, or the machine's cheapest offer; None if there is none."""
    if rented.api is not None:
        for name in ("usd_per_hour", "gpu", "gpus"):
            if getattr(rented, name) is not None:
                raise BadInput(f"an API is paid by the token: {option('api')}", field=name, fix="Leave one out.")
        return _api_price(rented.api)
    if rented.usd_per_hour is not None:
        count = machine.gpus if machine else rented.gpus or 1
        return Price(usd_per_hour=require_positive("usd_per_hour", rented.usd_per_hour) * count, price_from="as given")
    return rental_of(machine, model) if machine else None


def _api_price(text: str) -> Price:
    """Read ``host:model`` from the API catalogue, or ``0.59/0.79`` as dollars per Mtok of input and output."""
    with suppress(ValueError):
        dollars = [require_range("api", float(part), 0, 1e6) for part in text.split("/", 1)]
        rates = {"input_usd_per_mtok": dollars[0], "output_usd_per_mtok": dollars[-1]}
        given = ApiPrice(host="as given", model="as given", date=None, source="as given", **rates)
        return Price(api=given, price_from="as given")
    found = find_api(text)
    return Price(api=found, price_from=f"{found.source}, {found.quoted}" if found.quoted else found.source)


def paths_of(files: tuple[str, ...]) -> list[Path]:
    """Return the files by name; there must be at least one."""
    if not files:
        raise BadInput("no file is given", field="files")
    return [Path(name) for name in files]


def require_range(field: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise BadInput(f"must be from {low:g} to {high:,.6g}, got {value:g}", field=field)
    return value


def bench(request: BenchRequest, listener: Listener = SILENT) -> PricedRunResult:
    """Load a server and price the result."""
    save = Path(request.save) if request.save else None
    if save:
        check_path(save, "save", (".json",))
    run = run_bench(_asked(request, listener), listener.watching())
    if request.api is not None and ":" in request.api:
        run = run.model_copy(update={"api": find_api(request.api).key})
    if save:
        save_run(run, save)
        listener.note(f"result saved to {save}")
    return priced(run, request)


def _asked(request: BenchRequest, listener: Listener) -> BenchSettings:
    """Check everything before the server is contacted."""
    machine = machine_of(Stated(), said_of(request))
    # Prompts sent before may be in the server's cache: by default none is sent twice.
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    users, rates, log = _loads(request, seed, listener)
    require_range("seconds", request.seconds, 0.1, 86_400)
    require_range("timeout", request.timeout, 0.1, 86_400)
    require_range("precision", request.precision, 1e-3, 1)
    price = price_from(machine, request.model, request)
    if request.max_usd is not None:
        require_range("max_usd", request.max_usd, 1e-6, 1e9)
        if price is None:
            fix = f"Give {option('usd_per_hour')}, {option('gpu')} or {option('api')}."
            raise BadInput("needs a price", field="max_usd", fix=fix)
    return BenchSettings(
        target(request.url),
        model=request.model,
        users=users,
        rates=rates,
        trace=log,
        sweep=request.sweep,
        sessions=None if request.sessions is None else parse_sessions(request.sessions),
        input=_lengths(request, "input"),
        output=_lengths(request, "output"),
        budget=Budget(request.precision, request.requests or 100_000, request.seconds, request.max_usd),
        slos=targets_of(request),
        usd_per_hour=price.usd_per_hour if price else None,
        usd_of=_charge(price.api) if price and price.api else None,
        retries=request.retries,
        timeout_s=request.timeout,
        seed=seed,
    )


def _charge(api: ApiPrice) -> Callable[[int, int], float]:
    """Return a function that prices a prompt and an answer."""
    return lambda prompt, answer: price_request(api, prompt, 0.0, answer)


def _lengths(request: BenchRequest, field: str) -> str | None:
    """Return the lengths as written, after a check; None if an agent brings its own and none are given."""
    text: str = getattr(request, field)
    if agent_in(request.sessions) and field not in request.given():
        return None
    mean = parse_lengths(text, field).mean
    if mean is not None:
        require_range(field, mean, 1, 1e6)
    return text


def _loads(request: BenchRequest, seed: int, listener: Listener) -> tuple[list[int], list[float], Trace | None]:
    """Return the requested kind of load: users, rates or a log; none of them for a sweep."""
    kinds = ("concurrency", "rate", "trace", "sweep")
    given = [option(name) for name in kinds if getattr(request, name) not in (None, False)]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} are different kinds of load", fix="Give one of them.")
    if request.sessions is not None and request.trace is not None:
        raise BadInput("is for made-up requests, not for a log", field="sessions")
    if request.speed is not None and request.trace is None:
        raise BadInput("is for a trace", field="speed")
    if request.trace is not None:
        values = {"trace": request.trace, "speed": request.speed, "requests": request.requests, "seed": seed}
        return [], [], traffic_of(Traffic.checked(values), listener)
    if request.rate is not None:
        return [], _numbers(request.rate, "rate", 1e-3, 1e5), None
    if request.sweep:
        return [], [], None
    users = _numbers(USERS if request.concurrency is None else request.concurrency, "concurrency", 1, MOST_USERS)
    if any(number != round(number) for number in users):
        raise BadInput("users are whole numbers", field="concurrency")
    return [round(number) for number in users], [], None


def _numbers(text: str, field: str, low: float, high: float) -> list[float]:
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            raise BadInput(f"'{shorten(part.strip())}' is not a number", field=field, fix="Such as 1,4,16.") from None
        numbers.append(require_range(field, number, low, high))
    return numbers


def import_results(
    request: ImportResultsRequest, listener: Listener = SILENT
) -> PricedRunResult | RecoveryResult | QuotesResult:
    """Price other load generators' results and compare them with our prediction; or measure what quantising cost.

    Results with a vendor's quote beside them are ranked.
    """
    said_of(request, request.model)  # refuse an unknown name before reading a file
    if request.baseline is not None:
        return recovered(request, request.baseline, listener)
    if request.keep:
        fix = f"Give those of the unquantised model as well: {option('baseline', 'bf16.json')}."
        raise BadInput("is for scores of lm-evaluation-harness", field="keep", fix=fix)
    paths = paths_of(request.files)
    if any(quote_beside(path) for path in paths):
        return QuotesResult(**dict(ranked_quotes(paths, targets_of(request))))
    run = read_runs(paths)
    return priced(run if request.model is None else as_model(run, request.model), request)


def recovered(request: ImportResultsRequest, baseline: str, listener: Listener) -> RecoveryResult:
    """Return the mean of quantised ÷ baseline over the tasks in both runs; save it to the user's catalogue if asked."""
    if len(request.files) != 1:
        raise BadInput("compares one file with the baseline", field="files")
    before, after = read_scores(Path(baseline)), read_scores(Path(request.files[0]))
    model = _model(request, before)
    part, precision = _precision(request, model, after)
    found = kept_quality(before, after)
    own = OwnRecovery(
        model=model.key,
        part=part,
        precision=precision,
        recovery=found.recovery,
        tasks=tuple(task.task for task in found.tasks),
        date=today(),
    )
    if request.keep:
        listener.note(f"kept in {save_recovery(own)}")
    return RecoveryResult(
        **dict(found),
        model=model.key,
        name=model.name,
        part=part,
        precision=precision,
        published=model.served if part == "weights" else model.kv_served,
        kept=request.keep,
    )


def _model(request: ImportResultsRequest, before: HarnessRun) -> ModelSpec:
    """Return the model as typed, or as the baseline's file names it."""
    named = request.model or before.model
    if named is None:
        raise BadInput("the files name no model", field="model", fix=f"Such as {option('model', 'llama-3.1-8b')}.")
    try:
        return find_model(named)
    except UnknownName:
        if request.model:
            raise
        what = f"'{shorten(named)}', as the baseline names it, is not known"
        raise BadInput(what, field="model", fix=f"Name it as `tokonomics models` does: {option('model')}.") from None


def _precision(request: ImportResultsRequest, model: ModelSpec, after: HarnessRun) -> tuple[QuantisedPart, Precision]:
    """Return what was quantised and to which precision: as typed, or from the checkpoint's name."""
    if request.weights is None and request.kv is not None:
        kv = parse_precision(request.kv, KV_PRECISIONS, "kv")
        if not kv.is_below(Precision.bf16):
            raise BadInput(f"{kv} is what it is compared with", field="kv", fix=f"Such as {option('kv', 'fp8')}.")
        return "kv", kv
    if request.weights is not None:
        weights: Precision | None = parse_precision(request.weights, WEIGHT_PRECISIONS, "weights")
    else:
        weights = stated_weights("unstated", after.model or "")
    if weights is None:
        fix = f"Such as {option('weights', 'int4')}."
        raise BadInput("to what precision was it quantised?", field="weights", fix=fix)
    if not weights.is_below(model.served):
        what = f"{weights} is no fewer bits than {model.name} is published in, {model.served}"
        raise BadInput(what, field="weights", fix=f"Such as {option('weights', 'int4')}.")
    return "weights", weights
