"""Ask vendors for a quote that can be compared, and rank what they return.

A **packet** says what is asked (model, precision, traffic, SLO), holds the requests to send (times and lengths, no
text), a script that sends them, and a file to fill in: GPUs, price, term, place. Its ``[asked]`` part is sealed with a
hash, the requests' own in it, so that results of the same requests are compared and of no others.

A returned result counts at the largest measured load that meets the SLO with at most 1 % of requests failed. If that is
less than was asked, with the headroom of the plan, as many such machines are counted as carry all of it, and a note
says so: the script of the packet therefore tests at the planned rate and at the rate with headroom. Dollars a month are
those machines at the quoted price, all month.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.places import said_to_be_in
from tokonomics.deploy.job import DeployFile
from tokonomics.errors import BadInput, from_validation, shorten
from tokonomics.measure.benchmark_run import MOST_ERRORS, BenchmarkRun, LoadPoint, MeasuredSlo, MostGpus, slos_at
from tokonomics.measure.importers.recognise import read_runs
from tokonomics.measure.measurements import read_text
from tokonomics.measure.priced_run import Price, price_run
from tokonomics.planner.plan_answer import Candidate
from tokonomics.sizing.load import Load
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import Trace
from tokonomics.types import Marked, Noun
from tokonomics.units import (
    HOURS_PER_MONTH,
    SECONDS_PER_MONTH,
    TOKENS_PER_MTOK,
    count,
    fine_percent,
    percent,
    requests_a_second,
    seconds,
    seconds_apart,
)

LONGEST_S = 900.0  # of the requests to send: a quarter of an hour, so that a vendor can run it between two meetings
MOST_SENT = 5_000  # a p99 of them has fifty requests beyond it
_SAME_LENGTHS = 0.1  # results whose mean lengths are further off than this share were of other requests. Our choice
_KEEPS_UP = 0.9  # share of the due requests that are answered in time, as `tokonomics bench` has it
_ROUNDING = 0.01  # of a machine: a test at the rate asked for has a little more or less of it
QUOTE = "quote.toml"
_TO_FILL_IN = ("gpu", "gpus", "usd_per_gpu_hour")  # without them nothing can be ranked


class AskedTraffic(Noun):
    """What a vendor is asked to serve."""

    model: str = Field(max_length=200)
    repository: str = Field(max_length=200)  # of the model as published
    weights: str = Field(max_length=20)  # the fewest bits: more are welcome
    kv: str = Field(max_length=20)
    slo: str = Field(max_length=400)
    region: tuple[str, ...] = ()  # where machines may stand, as asked of the plan; empty: anywhere
    requests_per_s: PositiveFloat  # of the requests to send
    planned_requests_per_s: PositiveFloat  # more if a part of a large fleet's traffic is sent
    headroom: NonNegativeFloat = 0.0  # share by which the traffic may grow on the machines, as on those of the plan
    tokens_per_month: PositiveFloat
    input_tokens: PositiveFloat  # mean of the requests to send
    output_tokens: NonNegativeFloat
    requests: PositiveInt
    requests_sha256: str = Field(max_length=64)

    @property
    def sized_requests_per_s(self) -> float:
        """Return the rate that the machines have to carry: as planned, with the headroom."""
        return self.planned_requests_per_s * (1 + self.headroom)

    @property
    def seal(self) -> str:
        """Return the hash of everything asked, its requests included."""
        return sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


class VendorQuote(Noun):
    """What the vendor fills in."""

    vendor: str = Field(default="", max_length=80)
    gpu: str = Field(min_length=1, max_length=80)
    gpus: MostGpus  # that served the test, all replicas
    usd_per_gpu_hour: PositiveFloat = Field(le=1e6)
    term: str = Field(default="", max_length=80)
    region: str = Field(default="", max_length=80)
    engine: str = Field(default="", max_length=80)
    flags: str = Field(default="", max_length=2000)


class RankedQuote(Noun):
    """A vendor's quote with what its machines were measured to do."""

    quote: VendorQuote
    files: tuple[Marked, ...]
    met: bool
    same_traffic: bool  # mean lengths as asked for
    in_region: bool  # certain to be where it was asked for
    load: str  # the load that counts: the largest that meets the SLO, else the smallest measured
    requests_per_s: PositiveFloat
    slo: tuple[MeasuredSlo, ...]
    machines: PositiveInt | None  # as many as the quoted ones that carry what was asked; None if the SLO is missed
    usd_per_month: PositiveFloat | None
    usd_per_mtok: PositiveFloat | None  # at that load
    planned_usd_per_mtok: PositiveFloat | None  # the month's bill over the planned tokens
    notes: tuple[Marked, ...] = ()


class QuoteRanking(Noun):
    """Quotes by: tested with the traffic asked for, meeting the SLO, in the region asked for, dollars a month."""

    asked: AskedTraffic
    seal: str
    quotes: tuple[RankedQuote, ...]


def packet(
    model: ModelSpec, best: Candidate | None, load: Load, slos: Sequence[Slo], regions: Sequence[str] = ()
) -> list[DeployFile]:
    """Return the files of a packet for a plan's traffic, at the precision of its pick."""
    sent = _to_send(load)
    seen = len(sent) / max(float(sent.arrival_s[-1]), 1.0)
    rate = load.workload.rate * load.share if load.is_stationary else seen
    arrival_s = sent.arrival_s
    if load.is_stationary:
        # A few random arrivals are up to a tenth slower than planned, and would count as a test below the planned rate.
        arrival_s = arrival_s * (len(sent) / rate / float(arrival_s[-1]))
    rows = zip(arrival_s.tolist(), sent.input_tokens.tolist(), sent.output_tokens.tolist(), strict=True)
    requests = "arrival,input_tokens,output_tokens\n" + "".join(f"{at:.3f},{i},{o}\n" for at, i, o in rows)
    asked = AskedTraffic(
        model=model.key,
        repository=model.repository or "",
        weights=(best.weights if best else model.served).value,
        kv=best.kv.value if best else "bf16",
        slo=",".join(f"{slo}={slo.seconds:g}" for slo in slos),
        region=tuple(regions),
        requests_per_s=_rounded(rate),
        planned_requests_per_s=_rounded(rate / load.share),
        headroom=_rounded(load.headroom),
        tokens_per_month=_rounded(load.workload.tokens_per_second * SECONDS_PER_MONTH),
        input_tokens=_rounded(float(sent.input_tokens.mean())),
        output_tokens=_rounded(float(sent.output_tokens.mean())),
        requests=len(sent),
        requests_sha256=sha256(requests.encode()).hexdigest(),
    )
    files = {
        "README.md": _readme(asked, sent),
        "load.sh": _script(asked),
        QUOTE: _to_fill_in(asked),
        "requests.csv": requests,
    }
    return [DeployFile(name=name, text=text, fill_in=()) for name, text in files.items()]


def _to_send(load: Load) -> Trace:
    """Return the busiest quarter of an hour; of made-up requests at a constant rate the first."""
    trace, start_s = load.trace, 0.0
    if not load.is_stationary:
        ends = np.searchsorted(trace.arrival_s, trace.arrival_s + LONGEST_S)
        start_s = float(trace.arrival_s[np.argmax(ends - np.arange(len(trace)))])
    window = trace.window(start_s, start_s + LONGEST_S)
    return window.take(np.arange(min(len(window), MOST_SENT)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _to_fill_in(asked: AskedTraffic) -> str:
    told = "\n".join(f"{name} = {json.dumps(value)}" for name, value in asked.model_dump().items())
    return f"""# Fill in [quote], run load.sh, and return this file with its results (result-*.json) in one folder.
# [asked] is sealed: a changed one is refused.

[asked]
seal = "{asked.seal}"
{told}

[quote]
vendor = ""
gpu = ""               # such as H100 SXM
gpus = 0               # that served the test, all replicas
usd_per_gpu_hour = 0.0 # all of the machine's price, over its GPUs
term = ""              # on demand, 1 year, 3 years
region = ""
engine = ""            # with its version
flags = ""             # as it was started
"""


def _speeds(asked: AskedTraffic) -> list[str]:
    """Return how many times as fast the requests are to be sent: as planned, and with the headroom."""
    return ["1"] + ([f"{1 + asked.headroom:g}"] if asked.headroom else [])


def _result(speed: str) -> str:
    return f"result-{speed}x.json"


def _script(asked: AskedTraffic) -> str:
    slo = f' --slo "{asked.slo}"' if asked.slo else ""
    named = '${2:+--model "$2"}'
    model = f'--model "{asked.repository}" ${{2:+--served-model-name "$2"}}' if asked.repository else named
    faster = f", then {_speeds(asked)[-1]} times as fast (the room to grow)" if asked.headroom else ""
    part = " ".join(f"{0.25 * float(speed):g}" for speed in _speeds(asked))
    return f"""#!/bin/sh
# Usage: sh load.sh http://HOST:PORT [MODEL as the server calls it]
# Sends requests.csv as it came{faster}, and saves each run in a file of its own:
# {", ".join(map(_result, _speeds(asked)))}. The text is made up, anew in each run, and nothing ends a run before its
# last request. A quarter of the machines at a quarter of the rate:
#   SPEED="{part}" sh load.sh http://HOST:PORT
# Without tokonomics, by vLLM's own load generator: Poisson arrivals at the same rates, lengths uniform about the same
# means. Less like the real traffic:
#   LOADER=vllm sh load.sh http://HOST:PORT
set -eu
for speed in ${{SPEED:-{" ".join(_speeds(asked))}}}; do
  if [ "${{LOADER:-tokonomics}}" = vllm ]; then
    vllm bench serve --base-url "$1" {model} \\
      --dataset-name random --random-input-len {asked.input_tokens:.0f} \\
      --random-output-len {max(1, asked.output_tokens):.0f} --random-range-ratio 0.9 --ignore-eos \\
      --seed "$(date +%s)" --request-rate "$(awk "BEGIN {{ print {asked.requests_per_s:g} * $speed }}")" \\
      --num-prompts {asked.requests} --percentile-metrics ttft,tpot,e2el --metric-percentiles 50,90,95,99 \\
      --save-result --result-filename "{_result("${speed}")}"
  else
    tokonomics bench "$1" {named} --trace requests.csv --speed "$speed" \\
      --seconds 86400 --precision 0.001{slo} --save "{_result("${speed}")}"
  fi
done
"""


def _readme(asked: AskedTraffic, sent: Trace) -> str:
    ranks = (50, 90, 99)
    rows = "\n".join(
        f"| {name} | {tokens.mean():,.0f} | {' | '.join(f'{value:,.0f}' for value in np.percentile(tokens, ranks))} |"
        for name, tokens in (("prompt", sent.input_tokens), ("answer", sent.output_tokens))
    )
    share = asked.requests_per_s / asked.planned_requests_per_s
    part = f" That is {percent(share)} of the traffic; quote the machines for this part." if share < 0.995 else ""
    *_, fastest = speeds = _speeds(asked)
    sized = requests_a_second(f"{asked.requests_per_s * (1 + asked.headroom):g}")
    grow = f"machines are counted that carry {percent(asked.headroom)} more, {sized}; `load.sh` tests that too"
    room = f"\n- Room to grow: {grow}." if asked.headroom else ""
    runs = f", as planned and {fastest} times as fast" if asked.headroom else ""
    saved = " and ".join(f"`{_result(speed)}`" for speed in speeds)
    untested = " If the faster run is missing, more machines are counted than may be needed." if asked.headroom else ""
    part_of = " ".join(f"{0.25 * float(speed):g}" for speed in speeds)
    slo = ", ".join(f"{slo.label} ≤ {seconds(slo.seconds)}" for slo in parse_slos(asked.slo)) if asked.slo else "none"
    return f"""# Request for a quote

Serve **{asked.repository or asked.model}** with {asked.weights} weights or more bits, {asked.kv} KV cache or more bits.

- Traffic: {requests_a_second(f"{asked.requests_per_s:g}")}, {asked.requests:,} requests in `requests.csv` (arrival
  in seconds, tokens of prompt and answer; no text).{part} In all {count(asked.tokens_per_month)} tokens a month.
- SLO: {slo}, over all requests, with at most {percent(MOST_ERRORS)} failed.{room}
- Region: {" or ".join(asked.region) or "any"}.
- Prompts share nothing, so a prefix cache finds nothing in this test.

| tokens | mean | {" | ".join(f"p{rank}" for rank in ranks)} |
|---|--:|--:|--:|--:|
{rows}

1. Start the model on the machines that you quote.
2. `sh load.sh http://HOST:PORT` sends the requests{runs},
   and saves {saved}.{untested}
   Fewer machines may be tested at a lower rate, such as a quarter with `SPEED="{part_of}"`: as many of them are counted
   as carry all of it.
3. Fill in `[quote]` of `quote.toml` and return it with the results, in one folder.

`load.sh` calls the command `tokonomics`, free software (Apache-2.0) that is on no public package index. Whoever asks
for the quote can send its wheel along (`pip wheel --no-deps .` in the project's repository) for
`pip install tokonomics-*.whl`. Or do without: `LOADER=vllm sh load.sh http://HOST:PORT` sends similar requests with
`vllm bench serve`. Any other load generator that sends `requests.csv` at its times will do as well, if
`tokonomics import` reads its results: guidellm, aiperf, SGLang's bench_serving.

To rank quotes, give each vendor's folder a name: `tokonomics import returned/*/*.json`.

Seal: `{asked.seal}`
"""


def quote_beside(path: Path) -> Path | None:
    """Return the quote of a result: ``acme.toml`` beside ``acme.json``, or ``quote.toml`` in its folder."""
    beside = path.parent / f"{path.stem}.toml", path.parent / QUOTE
    with suppress(OSError, ValueError):  # a name that no file can have
        return next((found for found in beside if found.is_file()), None)
    return None


def ranked_quotes(paths: Sequence[Path], slos: Sequence[Slo] = ()) -> QuoteRanking:
    """Return the quotes whose results these are; ``slos`` count instead of those asked for."""
    results: dict[Path, list[Path]] = {}
    for path in paths:
        quote = quote_beside(path)
        if quote is None:
            fix = f"Put the vendor's filled-in {QUOTE} beside it, or name it like the result."
            raise BadInput("has no quote beside it, and others do", where=shorten(path.name), fix=fix)
        results.setdefault(quote, []).append(path)
    read = {quote: _read(quote) for quote in results}
    asked = {one for one, _ in read.values()}
    if len(asked) > 1:
        seals = ", ".join(sorted(one.seal for one in asked))
        raise BadInput(f"the quotes are for different traffic: {seals}", fix="Rank those of one packet.")
    (wanted,) = asked
    targets = tuple(slos) or (parse_slos(wanted.slo) if wanted.slo else ())
    rows = [
        _ranked(wanted, quote, read_runs(results[path]), targets, [one.name for one in results[path]])
        for path, (_, quote) in read.items()
    ]
    rows.sort(key=_rank)
    return QuoteRanking(asked=wanted, seal=wanted.seal, quotes=tuple(rows))


def _rank(row: RankedQuote) -> tuple[bool, bool, bool, float, str]:
    """Put what was tested with other lengths last: whether it meets the SLO with those asked for is unknown."""
    return not row.same_traffic, not row.met, not row.in_region, row.usd_per_month or math.inf, row.quote.vendor


def _read(path: Path) -> tuple[AskedTraffic, VendorQuote]:
    """Read a filled-in quote, and check its seal."""
    where = shorten(f"{path.parent.name}/{path.name}")
    try:
        tables = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"not TOML: {shorten(str(error), 120)}", where=where) from None
    told = _table(tables, "asked", where)
    seal = told.pop("seal", None)
    filled = _table(tables, "quote", where)
    if blank := [name for name in _TO_FILL_IN if not filled.get(name)]:
        raise BadInput(
            f"is not filled in: {', '.join(blank)}", where=where, fix=f"Fill them in under [quote] in {where}."
        )
    try:
        asked, quote = AskedTraffic.model_validate(told), VendorQuote.model_validate(filled)
    except ValidationError as error:
        raise from_validation(error, where) from None
    if seal != asked.seal:
        raise BadInput("[asked] was changed: its seal does not fit", where=where, fix="Fill in [quote] alone.")
    return asked, quote


def _table(tables: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    if not isinstance(found := tables.get(name), dict):
        raise BadInput(f"has no [{name}]", where=where, fix="Write it with `tokonomics plan … --quote`.")
    return dict(found)


def _ranked(
    asked: AskedTraffic, quote: VendorQuote, run: BenchmarkRun, slos: Sequence[Slo], files: Sequence[str]
) -> RankedQuote:
    usd_per_hour = quote.usd_per_gpu_hour * quote.gpus
    priced = price_run(run, None, Price(usd_per_hour=usd_per_hour, price_from="as quoted"), slos)
    measured = sorted(zip(run.points, priced.points, strict=True), key=lambda pair: _served(pair[0]))
    meeting = [pair for pair in measured if _meets(pair[0], slos)]
    point, cost = meeting[-1] if meeting else measured[0]
    machines = max(1, math.ceil(asked.sized_requests_per_s / _served(point) - _ROUNDING)) if meeting else None
    in_region = not asked.region or said_to_be_in(asked.region, quote.vendor, quote.region)
    month = machines * usd_per_hour * HOURS_PER_MONTH if machines else None
    return RankedQuote(
        quote=quote,
        files=tuple(shorten(name) for name in files),
        met=bool(meeting),
        same_traffic=not _other_lengths(asked, point),
        in_region=in_region,
        load=point.load,
        requests_per_s=_served(point),
        slo=slos_at(point, slos),
        machines=machines,
        usd_per_month=month,
        usd_per_mtok=cost.usd_per_mtok.blended if meeting and cost.usd_per_mtok else None,
        planned_usd_per_mtok=month / asked.tokens_per_month * TOKENS_PER_MTOK if month else None,
        notes=(
            *([] if meeting else _missed(point, slos)),
            *_counted(asked, machines or 1, _served(point), [_served(one) for one, _ in measured]),
            *([] if in_region else [_elsewhere(asked, quote)]),
            *_notes(asked, run, point),
        ),
    )


def _served(point: LoadPoint) -> float:
    """Return the requests a second of a load: as offered, if it kept up, else as answered."""
    kept_up = point.rate is not None and point.requests_per_s >= point.rate * _KEEPS_UP
    return point.rate if kept_up and point.rate is not None else point.requests_per_s


def _meets(point: LoadPoint, slos: Sequence[Slo]) -> bool:
    return point.error_share <= MOST_ERRORS and all(slo.met for slo in slos_at(point, slos))


def _missed(point: LoadPoint, slos: Sequence[Slo]) -> list[str]:
    """Say by what each target is missed, and whether too many requests failed."""
    late = [
        f"misses {slo.label}: {seconds_apart(at.measured_s, slo.seconds)}, SLO {seconds(slo.seconds)}"
        if at.measured_s is not None
        else f"does not tell {slo.label}, SLO {seconds(slo.seconds)}"
        for slo, at in zip(slos, slos_at(point, slos), strict=True)
        if not at.met
    ]
    failed = f"{fine_percent(point.error_share)} of requests failed, at most {percent(MOST_ERRORS)} may"
    return late + ([failed] if point.error_share > MOST_ERRORS else [])


def _counted(asked: AskedTraffic, machines: int, served: float, tested: Sequence[float]) -> list[str]:
    """Say why a quote counts several times, and whether a test at a higher rate may need fewer machines."""
    if machines == 1:
        return []
    headroom = f" ({asked.planned_requests_per_s:g} and {percent(asked.headroom)} headroom)" if asked.headroom else ""
    sized = f"sized for {requests_a_second(f'{asked.sized_requests_per_s:g}')}{headroom}"
    missed = [rate for rate in tested if rate > served]
    shown = f"{'meets the SLO' if missed else 'tested'} up to {served:.3g}: counts {machines:,} times"
    fewer = asked.sized_requests_per_s / (machines - 1)  # the rate that each of one machine less has to carry
    if missed and min(missed) <= fewer * (1 + _ROUNDING):
        return [f"{sized}, {shown}"]
    faster = math.ceil(100 * fewer / served - 1e-6) / 100
    return [f"{sized}, {shown}; a run at {faster:g} times the rate may need fewer machines"]


def _elsewhere(asked: AskedTraffic, quote: VendorQuote) -> str:
    wanted = " or ".join(asked.region)
    return f"in {quote.region}, asked {wanted}" if quote.region.strip() else f"its region is not told, asked {wanted}"


def _other_lengths(asked: AskedTraffic, point: LoadPoint) -> list[str]:
    """Say which mean lengths are not those asked for."""
    pairs = (
        ("prompts", point.mean_input_tokens, asked.input_tokens),
        ("answers", point.mean_output_tokens, asked.output_tokens),
    )
    return [
        f"{name} of {mean:,.0f} tokens, asked {wanted:,.0f}"
        for name, mean, wanted in pairs
        if abs(mean - wanted) > _SAME_LENGTHS * max(wanted, 1.0)
    ]


def _notes(asked: AskedTraffic, run: BenchmarkRun, point: LoadPoint) -> list[str]:
    """Say what makes a result less comparable."""
    notes = _other_lengths(asked, point)
    if point.rate is None:
        notes.append(f"loaded by {point.load}, not by requests that come when they are due: latencies are milder")
    if point.completed is not None and point.completed + (point.failed or 0) < asked.requests * 0.9:
        notes.append(f"{point.completed:,} requests answered, {asked.requests:,} asked")
    if run.stated.weights and run.stated.weights != asked.weights:
        notes.append(f"{run.stated.weights} weights, asked {asked.weights}")
    return notes
