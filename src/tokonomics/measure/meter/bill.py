"""Compute what was paid for tokens over any past period, by model, server, day, hour or label.

Rows of the ledger are cut at the edges of the window and of the days or hours asked for: time and dollars in proportion
to length, tokens where they were counted. So the parts always add up to the whole. Days and hours are UTC, as in cloud
bills.

**A Mtok of input, of cached input and of output**: together they make up the bill. Prompts are charged for prefill's
share of the GPU's busy time and answers for the rest, and idle time follows the same shares, as in ``plan`` and
``import`` (``money.cost.split_by_gpu_time``). A meter does not see these shares, so they are modelled at the metered
batch and lengths, which needs a GPU and a model we know. Of prefill's time, cached tokens take what attending to them
adds, as in ``money.attribution``. Answers attend to the whole prompt, including its cached tokens. If no GPU is known,
every token costs the same, as in the meter's own $/Mtok. If tokens are sold, every line has its revenue.

**Electricity**: a meter that was given the GPUs (``gpu_metrics``) keeps their joules in the ledger; their mean watts
represent the whole period, even if they were not read for all of it. Otherwise the named GPU draws by its curve
(``physics.curves``) at the metered batch while its server was busy, with the modelled share of prompts, and its idle
watts otherwise. The host is known only with the GPU; the site is not, so its PUE is the industry's mean.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import NonNegativeFloat, ValidationError

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.places import Grid
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.files import whole
from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.measure.meter.ledger import Drawn
from tokonomics.measure.meter.price_factors import compare
from tokonomics.measure.meter.spans import PaidTime, cut, cut_every, tally
from tokonomics.measure.meter.state import MeterTally, Planned, Statement, StatementLine, usd_per_mtok_of
from tokonomics.measure.priced_run import MeasuredMachine, PromptTime, prompt_time
from tokonomics.money.attribution import Sale, SellPrice, SellTerms
from tokonomics.money.own_hardware import HOST_SHARE, MEAN_PUE, Energy, energy, fleet_watts
from tokonomics.physics.curves import PowerCurve, power_of
from tokonomics.traffic.grammar import span_s
from tokonomics.types import Noun, copied
from tokonomics.units import DAY_S, SECONDS_PER_HOUR

_PERIODS = {"day": DAY_S, "hour": SECONDS_PER_HOUR}
_FIELDS = ("model", "target", "engine")
_ALIASES = {"server": "target"}
LEDGER_KEYS = (*_PERIODS, *_FIELDS, *_ALIASES)  # all other keys are labels
_LONGEST_S = 1e10  # three hundred years


def bill(
    spans: Iterable[PaidTime],
    since: float,
    until: float,
    by: Sequence[str],
    planned: Planned | None = None,
    may_lack: Sequence[str] = (),
) -> Statement:
    """Return what was paid between two instants, by keys; labels in ``may_lack`` may be missing."""
    period_s = min((_PERIODS[key] for key in by if key in _PERIODS), default=None)
    batch = planned.batch if planned else None
    groups: dict[tuple[str, ...], MeterTally] = defaultdict(MeterTally)
    labels: set[str] = set()
    first, last = until, since
    for span in spans:
        _, rest = cut(span, since)
        inside = cut(rest, until)[0] if rest is not None else None
        if inside is None:
            continue
        first, last = min(first, inside.start), max(last, inside.end)
        labels |= span.labels.keys()
        for piece in cut_every(inside, period_s) if period_s else [inside]:
            group = tuple(_value(piece, _ALIASES.get(name, name)) for name in by)
            groups[group] = groups[group] + tally(piece, batch)
    for key in by:
        if key not in (*LEDGER_KEYS, *labels, *may_lack):
            there = f"There are: {', '.join((*_FIELDS, *_PERIODS, *sorted(labels)))}."
            how = f"for a tag of a request log add {option('trace', 'spend.jsonl')}"
            fix = f"{there} Give servers labels with: tokonomics meter … --label team=search; {how}"
            raise BadInput(f"nothing in this stretch has a '{shorten(key)}'", field="by", fix=fix)
    total = sum(groups.values(), MeterTally())
    return Statement(
        since=min(first, last), until=last, by=tuple(by),
        lines=tuple(StatementLine(group=group, sums=sums) for group, sums in sorted(groups.items())),
        total=total, planned=planned, against_plan=compare(total, planned) if planned else None,
    )  # fmt: skip


def _value(span: PaidTime, key: str) -> str:
    if key in _PERIODS:
        at = datetime.fromtimestamp(span.start, UTC)
        return f"{at:%Y-%m-%d}" if key == "day" else f"{at:%Y-%m-%d %H:00}"
    return str(getattr(span, key)) if key in _FIELDS else span.labels.get(key, "")


def instant(text: str, now: float, field: str) -> float:
    """Read ``7d`` or ``90m`` before now, ``2026-11-08`` or ``2026-11-08T12:30`` (UTC) as unix seconds."""
    if text.strip()[-1:].isalpha() and span_s(text) is not None:
        return now - duration(text, field)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        said = f"'{shorten(text)}' is neither a time nor how long ago"
        raise BadInput(said, field=field, fix="Such as 7d, 90m or 2026-11-08.") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def duration(text: str, field: str) -> float:
    """Read ``15``, ``15s``, ``10m`` or ``7d`` as seconds."""
    seconds = span_s(text)
    if seconds is None or seconds > _LONGEST_S:
        raise BadInput(f"'{shorten(text)}' is not a duration", field=field, fix="Such as 15s, 10m, 2h or 7d.")
    return seconds


def bill_csv(billed: Statement, path: Path) -> None:
    """Write the lines as a table for a spreadsheet, atomically."""
    with whole(path, option("csv", shorten(path.name))) as unfinished, unfinished.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*billed.by, *MeterTally().model_dump()])
        rows.writerows([*line.group, *line.sums.model_dump().values()] for line in billed.lines)


ALIKE = "every token alike"


class TokenCost(Noun):
    """Dollars per Mtok of one model; each times its tokens, they sum to the bill."""

    model: str
    engine: str
    input: NonNegativeFloat  # for computed prompt tokens
    cached: NonNegativeFloat
    output: NonNegativeFloat
    blended: NonNegativeFloat
    split: str  # how dollars were divided among the kinds
    why_alike: str | None = None  # why there is one price for all, if a GPU was named


class MeteredGpu(Noun):
    """The GPUs behind each address."""

    gpu: str
    gpus: int = 1


def token_costs(billed: Statement, on: MeteredGpu | None = None) -> tuple[TokenCost, ...]:
    """Return the costs of each model in a bill by model and engine; on two engines, split as on the costlier one."""
    sums: dict[str, MeterTally] = defaultdict(MeterTally)
    dollars: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in billed.lines:
        model, engine = line.group[-2:]
        sums[model] = sums[model] + line.sums
        dollars[model][engine] += line.sums.usd
    costs = [
        token_cost(model, max(dollars[model], key=lambda engine: (dollars[model][engine], engine)), tally, on)
        for model, tally in sums.items()
    ]
    return tuple(cost for cost in costs if cost is not None)


def token_cost(model: str, engine: str, sums: MeterTally, on: MeteredGpu | None = None) -> TokenCost | None:
    """Return a model's cost of a Mtok of each kind; None while there is no token to charge."""
    blended = sums.usd_per_mtok
    if blended is None:
        return None
    said = {"model": model, "engine": engine, "blended": blended}
    time = prompt_time_of(model, engine, sums, on) if on else None
    if on is None or not isinstance(time, PromptTime):
        return TokenCost(**said, input=blended, cached=blended, output=blended, split=ALIKE, why_alike=time)
    prompts = sums.usd * time.share
    cached = prompts * time.cached_share
    return TokenCost(
        **said,
        input=usd_per_mtok_of(prompts - cached, sums.input_computed) or 0.0,
        cached=usd_per_mtok_of(cached, sums.input_cached) or 0.0,
        output=usd_per_mtok_of(sums.usd - prompts, sums.output) or 0.0,
        split=f"GPU time, modelled for {on.gpus}×{on.gpu}",
    )


def prompt_time_of(model: str, engine: str, sums: MeterTally, on: MeteredGpu) -> PromptTime | str:
    """Return the share of prompts on one busy server at the metered batch and lengths; or why it is not known."""
    if sums.answered <= 0 or sums.busy_s <= 0 or sums.output <= 0 or sums.input_total <= 0:
        return "no request was seen from end to end"
    if sums.input_computed <= 0:
        return "every prompt token came from the cache, so that no prompt's time can be modelled"
    try:
        point = LoadPoint(
            concurrency=max(1, round(sums.batch)) if sums.batch else None,
            rate=None if sums.batch else sums.answered / sums.busy_s,
            requests_per_s=sums.answered / sums.busy_s,
            input_tokens_per_s=sums.input_computed / sums.busy_s,
            output_tokens_per_s=sums.output / sums.busy_s,
            mean_input_tokens=sums.input_computed / sums.answered,
            mean_output_tokens=sums.output / sums.answered,
        )
        machine = MeasuredMachine(gpu=on.gpu, gpus=on.gpus, tp=on.gpus, engine=engine or "vllm")
        return prompt_time(model, machine, point, sums.input_cached / sums.answered)
    except ValidationError:
        return "its requests are longer, or more, than any we model"
    except TokonomicsError as error:
        return str(error)


class ModelPrice(Noun):
    """The price at which a model is sold, and how its cost was split if the price follows from it."""

    model: str
    usd_per_mtok: SellPrice
    split: str | None = None


class StatementSale(Noun):
    """A bill with what was earned; its lines are those of the bill."""

    prices: tuple[ModelPrice, ...]
    lines: tuple[Sale, ...]
    total: Sale
    tokens_per_day: NonNegativeFloat
    # At the same mix, on the same servers; None if nothing is earned.
    break_even_tokens_per_day: NonNegativeFloat | None
    # Of the watched time, at the same batch: above 1 the servers do not earn what they cost.
    break_even_busy_share: NonNegativeFloat | None


def bill_sale(billed: Statement, by_model: Statement, terms: SellTerms, on: MeteredGpu | None = None) -> StatementSale:
    """Return a bill sold on these terms; ``by_model`` is the same bill by model and engine as well.

    With a margin, each model has the price that gives it over the whole period, so days and teams differ.
    """
    prices: dict[str, ModelPrice] = {}
    for cost in token_costs(by_model, on):
        sums = sum((line.sums for line in by_model.lines if line.group[-2] == cost.model), MeterTally())
        # With a margin cached tokens are sold as input, so input costs the mean of both.
        both = cost.input * sums.input_computed + cost.cached * sums.input_cached
        price = terms.price_over(both / sums.input_total if sums.input_total > 0 else cost.input, cost.output)
        split = cost.split if terms.price is None else None
        prices[cost.model] = ModelPrice(model=cost.model, usd_per_mtok=price, split=split)
    earned: dict[tuple[str, ...], float] = defaultdict(float)
    for line in by_model.lines:
        if sold := prices.get(line.group[-2]):
            tokens = line.sums.input_total, line.sums.output, line.sums.input_cached
            earned[line.group[:-2]] += sold.usd_per_mtok.revenue(*tokens)
    total = Sale(revenue_usd=sum(earned.values()), cost_usd=billed.total.usd)
    days = (billed.until - billed.since) / DAY_S
    per_day = billed.total.billed_tokens / days if days > 0 else 0.0
    share, idle = total.break_even_share, billed.total.idle_share
    return StatementSale(
        prices=tuple(prices.values()),
        lines=tuple(Sale(revenue_usd=earned[line.group], cost_usd=line.sums.usd) for line in billed.lines),
        total=total,
        tokens_per_day=per_day,
        break_even_tokens_per_day=None if share is None else per_day * share,
        break_even_busy_share=None if share is None or idle is None else (1 - idle) * share,
    )


class MeteredEnergy(Energy):
    """Electricity and emissions of a period; monthly figures are at its pace."""

    kwh: NonNegativeFloat  # over the period
    kg_co2e: NonNegativeFloat
    read_share: float  # the share of the period in which the GPUs were read; 0: modelled


def metered_energy(by_model: Statement, drawn: Drawn | None, on: MeteredGpu | None, grid: Grid) -> MeteredEnergy | None:
    """Return the energy of a bill by model and engine; None if the GPUs were neither read nor named."""
    lasted_s, total = by_model.until - by_model.since, by_model.total
    if lasted_s <= 0:
        return None
    gpu = find_gpu(on.gpu) if on else None
    curve = power_of(gpu) if gpu else None
    paid = total.seconds / lasted_s * on.gpus if on else 0.0
    host_watts = HOST_SHARE * gpu.watts * paid if gpu and gpu.watts else 0.0
    tokens_per_s = total.billed_tokens / lasted_s
    if drawn and drawn.seconds > 0:
        used = energy(drawn.joules / drawn.seconds, host_watts, MEAN_PUE, grid, tokens_per_s, None, "read off them")
    elif on and curve:
        watts = _modelled(by_model, curve, on, paid, lasted_s)
        used = energy(watts, host_watts, MEAN_PUE, grid, tokens_per_s, curve)
    else:
        return None
    kwh = used.watts * lasted_s / SECONDS_PER_HOUR / 1000
    read = min(1.0, drawn.seconds / lasted_s) if drawn else 0.0
    fields = copied(used, *Energy.model_fields)
    return MeteredEnergy(**fields, kwh=kwh, kg_co2e=kwh * grid.g_per_kwh / 1000, read_share=read)


def _modelled(by_model: Statement, curve: PowerCurve, on: MeteredGpu, paid: float, lasted_s: float) -> float:
    """Return the mean watts of all GPUs over the period."""
    above_idle = 0.0
    for line in by_model.lines:
        model, engine = line.group[-2:]
        busy = line.sums.busy_s / lasted_s * on.gpus
        time = prompt_time_of(model, engine, line.sums, on)
        # If the prompts' share is not known, count all of it as answers.
        prompts = busy * (time.share if isinstance(time, PromptTime) else 0.0)
        above_idle += fleet_watts(curve, busy, prompts, busy - prompts, line.sums.batch or 1.0) - busy * curve.idle_w
    return paid * curve.idle_w + above_idle
