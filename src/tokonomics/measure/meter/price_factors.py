"""Why a price is not the planned or the usual one: factors that multiply to the ratio; and which days are unusual.

Dollars per token = dollars an hour ÷ (busy share × requests running while busy × computed tokens a second of each ×
billed tokens per computed one). Each of the five is compared with the plan's; what the plan does not say is one factor
with the rest. Busy and idle are shares of the watched time; that gaps and absences had more or fewer tokens an hour is
a factor of its own. The product is exact. A smaller batch makes each request faster, so these two weigh together when
the largest reason is named.

A day is unusual where its price, as a logarithm, lies further from the median of its kind (working days or weekends;
all days while there are few) than 3.5 modified standard deviations, which are 1.4826 × the median distance from the
median: one odd day does not widen the band that finds it (Iglewicz and Hoaglin, How to Detect and Handle Outliers,
1993, which recommend 3.5). Its price against the usual days' is a product of the same factors, and of the busy time
that failed requests took.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, ValidationError

from tokonomics.errors import BadInput, from_validation, option, shorten
from tokonomics.measure.meter.state import Factor, MeterTally, Planned, Statement, Verdict
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent, usd

_NO_NEWS = 1.05  # a factor or ratio this close to 1 is as planned: predictions are not closer


def compare(actual: MeterTally, planned: Planned) -> Verdict | None:
    """None while there is no price yet."""
    price = actual.usd_per_mtok
    if price is None or price <= 0:
        return None
    ratio = price / planned.usd_per_mtok
    factors = _factors(actual, planned, ratio)
    largest = largest_factor(factors)
    figures = {"usd_per_mtok": price, "planned_usd_per_mtok": planned.usd_per_mtok, "ratio": ratio}
    said = _said(ratio, largest, actual, planned)
    return Verdict(**figures, factors=tuple(factors), largest=largest, said=said)


def _factors(actual: MeterTally, planned: Planned, ratio: float) -> list[Factor]:
    factors: list[Factor] = []

    def add(name: str, times: float, said: str) -> None:
        factors.append(Factor(name=name, times=times, said=said))

    hourly, batch = actual.usd_per_hour, actual.batch
    if planned.usd_per_hour and hourly:
        said = f"a server costs {usd(hourly)} an hour, planned {usd(planned.usd_per_hour)}"
        add("price", hourly / planned.usd_per_hour, said)
    watched_s = actual.busy_s + actual.idle_s
    busy = actual.busy_s / watched_s if watched_s > 0 else 0.0
    if busy > 0:
        add("idle hours", 1 / busy, f"{percent(1 - busy)} of the watched time saw no work")
    seen = 1 - actual.unseen_tokens / actual.billed_tokens
    if busy > 0 and seen > 0 and actual.seconds > watched_s * (1 + 1e-9):
        share = watched_s / actual.seconds
        said = f"{percent(1 - share)} of the paid time was not watched; it had {percent(1 - seen)} of the tokens"
        add("not watched", seen / share, said)
    if planned.batch and batch and busy > 0:
        add("batch", planned.batch / batch, f"batch is {batch:.3g}, planned {planned.batch:.3g}")
    computed = actual.input_computed + actual.output
    if computed > 0 and actual.billed_tokens:
        # In the plan's mix, of which only the share of cached prompt tokens is known: the one of these prompts.
        tokens = actual.input_total * (1 - (planned.cache_share or 0.0)) + actual.output
        hits = percent(actual.cache_share or 0.0)
        hoped = "not in the plan" if planned.cache_share is None else f"planned {percent(planned.cache_share)}"
        times = actual.billed_tokens / tokens / (actual.billed_tokens / computed) if tokens > 0 else 1.0
        add("cache hits", times, f"{hits} of the prompts come from the cache, {hoped}")
    rest = ratio
    for factor in factors:
        rest /= factor.times
    known = {factor.name for factor in factors}
    missing = [name for name in ("price", "idle hours", "batch", "cache hits") if name not in known]
    if missing:
        add("the rest", rest, f"{', '.join((*missing, 'speed'))}: the plan does not say, or nothing was measured yet")
    else:
        add("speed", rest, f"each running request is {'slower' if rest > 1 else 'faster'} than planned")
    return factors


def largest_factor(factors: list[Factor]) -> Factor | None:
    """The one to name. A small batch makes each request fast, so that batch and speed weigh together."""
    *others, rest = factors
    batch = next((other for other in others if other.name == "batch"), None)
    weights = [(other.times, other) for other in others if other is not batch]
    both = [batch, rest] if batch else [rest]
    weights.append((math.prod(factor.times for factor in reversed(both)), max(both, key=lambda factor: factor.times)))
    weight, largest = max(weights, key=lambda pair: pair[0])
    return largest if weight > _NO_NEWS else None


def _said(ratio: float, largest: Factor | None, actual: MeterTally, planned: Planned) -> str:
    if 1 / _NO_NEWS <= ratio <= _NO_NEWS:
        return "you pay what was planned"
    if ratio < 1:
        return f"you pay {ratio:.2g}× the plan: less than was planned"
    load = ""
    if planned.tokens_per_s and actual.tokens_per_s and actual.tokens_per_s < planned.tokens_per_s / _NO_NEWS:
        load = f"; the load is {percent(actual.tokens_per_s / planned.tokens_per_s)} of the planned one"
    return f"you pay {ratio:.2g}× the plan" + (f": {largest.said}" if largest else "") + load


def read_plan(path: Path) -> Planned:
    """The pick of ``tokonomics plan … --json``, of one replica."""
    with picked(path) as (best, load):
        replicas = best["replicas"]
        tokens_per_s = load["rate"] * (load["input_tokens"] + load["output_tokens"]) / replicas
        usd_per_hour = best["usd_per_month"] / HOURS_PER_MONTH / replicas
        return Planned(
            usd_per_mtok=usd_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * TOKENS_PER_MTOK,
            batch=best["batch"],
            usd_per_hour=usd_per_hour,
            tokens_per_s=tokens_per_s,
            requests_per_s=load["rate"] / replicas,
        )


@contextmanager
def picked(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The pick of a plan's document and its workload; what the block finds missing in them is the file's mistake."""
    where, fix = option("plan", shorten(path.name)), "Make it with: tokonomics plan … --json > plan.json"
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=where) from None
    except (ValueError, RecursionError):
        raise BadInput("is not JSON", where=where, fix=fix) from None
    try:
        best, load = document["best"], document["workload"]
        if best is None:
            raise BadInput("nothing in this plan meets its SLOs", where=where)
        yield best, load
    except ValidationError as error:
        raise from_validation(error, where) from None
    except (KeyError, TypeError, ArithmeticError, AttributeError):
        raise BadInput("is not a plan", where=where, fix=fix) from None


MOST_DEVIATIONS = 3.5
"""Iglewicz and Hoaglin, see above."""
NORMAL = 1.4826
"""The standard deviation of a normal distribution ÷ its median distance from the median."""
LEAST_CHANGE = 1.1
"""Another mix of requests moves the price by less than a tenth (assumed)."""
LEAST_DAYS = 5
"""Of a kind: the median distance of fewer is one day's."""
_SATURDAY = 5


class UnusualDay(Noun):
    """A day's price of one model, against its usual days."""

    model: str
    day: date
    usd_per_mtok: PositiveFloat
    usual_usd_per_mtok: PositiveFloat
    ratio: PositiveFloat
    factors: tuple[Factor, ...]
    """Their product is the ratio."""
    largest: Factor | None
    said: str


def unusual_days(billed: Statement) -> tuple[UnusualDay, ...]:
    """Of a bill by model and day, the oldest first."""
    by_model: dict[str, dict[date, MeterTally]] = defaultdict(dict)
    for line in billed.lines:
        model, day = line.group
        if line.sums.usd_per_mtok:
            by_model[model][date.fromisoformat(day)] = line.sums
    found = [odd for model, days in by_model.items() for odd in _of_model(model, days)]
    return tuple(sorted(found, key=lambda odd: (odd.day, odd.model)))


def _of_model(model: str, days: dict[date, MeterTally]) -> list[UnusualDay]:
    prices = {day: math.log(sums.usd_per_mtok or 1.0) for day, sums in days.items()}
    found = []
    for kind in _kinds(sorted(days)):
        if len(kind) < LEAST_DAYS:
            continue
        middle = statistics.median(prices[day] for day in kind)
        spread = NORMAL * statistics.median(abs(prices[day] - middle) for day in kind)
        band = max(MOST_DEVIATIONS * spread, math.log(LEAST_CHANGE))
        odd = [day for day in kind if abs(prices[day] - middle) > band]
        usual = sum((days[day] for day in kind if day not in odd), MeterTally())
        found += [_explained(model, day, days[day], usual) for day in odd]
    return found


def _kinds(days: Sequence[date]) -> list[list[date]]:
    """Working days and weekends; all together where there are too few of either."""
    kinds = [[day for day in days if (day.weekday() >= _SATURDAY) is weekend] for weekend in (False, True)]
    return kinds if all(len(kind) >= LEAST_DAYS or not kind for kind in kinds) else [list(days)]


def _explained(model: str, day: date, sums: MeterTally, usual: MeterTally) -> UnusualDay:
    price, before = sums.usd_per_mtok or 0.0, usual.usd_per_mtok or 0.0
    factors = factors_between(sums, usual)
    ratio = price / before
    named = largest_factor([factor if ratio > 1 else _turned(factor) for factor in factors])
    largest = next((factor for factor in factors if named and factor.name == named.name), None)
    why = f"{largest.said} (×{largest.times:.2f})" if largest else "several small causes"
    said = f"{day}: {model or 'unnamed model'} at {usd(price)}/Mtok, usually {usd(before)} (×{ratio:.2f}): {why}"
    return UnusualDay(
        model=model, day=day, usd_per_mtok=price, usual_usd_per_mtok=before, ratio=ratio, factors=tuple(factors),
        largest=largest, said=said,
    )  # fmt: skip


def _turned(factor: Factor) -> Factor:
    return factor.model_copy(update={"times": 1 / factor.times})


def factors_between(sums: MeterTally, usual: MeterTally) -> list[Factor]:
    """Why one price is not the other; the last is what the others leave."""
    factors: list[Factor] = []

    def add(name: str, now: float | None, before: float | None, said: str) -> None:
        if now and before:
            factors.append(Factor(name=name, times=now / before, said=said))

    hourly, once = sums.usd_per_hour, usual.usd_per_hour
    add("price", hourly, once, f"a server cost {usd(hourly or 0)} an hour, usually {usd(once or 0)}")
    busy, before = _busy(sums), _busy(usual)
    add("idle", before, busy, f"{percent(1 - busy)} of the watched time saw no work, usually {percent(1 - before)}")
    said = f"{percent(_away(sums))} of the paid time was not watched, usually {percent(_away(usual))}"
    add("not watched", _unwatched(sums), _unwatched(usual), said)
    useful, before = _useful(sums), _useful(usual)
    said = f"failed requests took {percent(1 - useful)} of the busy time, usually {percent(1 - before)}"
    add("failures", before, useful, said)
    batch, before_batch = sums.batch, usual.batch
    add("batch", before_batch, batch, f"batch was {batch or 0:.3g}, usually {before_batch or 0:.3g}")
    hits, before = sums.cache_share or 0.0, usual.cache_share or 0.0
    said = f"{percent(hits)} of the prompt tokens came from the cache, usually {percent(before)}"
    add("cache hits", _billed_per_computed(usual), _billed_per_computed(sums), said)
    rest = (sums.usd_per_mtok or 1.0) / (usual.usd_per_mtok or 1.0) / math.prod(factor.times for factor in factors)
    pace = "slower" if rest > 1 else "faster"
    factors.append(Factor(name="speed", times=rest, said=f"each running request was {pace} than usual"))
    return factors


def _busy(sums: MeterTally) -> float:
    watched = sums.busy_s + sums.idle_s
    return sums.busy_s / watched if watched > 0 else 0.0


def _away(sums: MeterTally) -> float:
    return 1 - (sums.busy_s + sums.idle_s) / sums.seconds if sums.seconds > 0 else 0.0


def _useful(sums: MeterTally) -> float:
    return 1 - sums.failed_usd / sums.busy_usd if sums.busy_usd > 0 else 1.0


def _unwatched(sums: MeterTally) -> float | None:
    """Share of the tokens that was watched ÷ share of the time: 1 where all was."""
    seen = 1 - sums.unseen_tokens / sums.billed_tokens if sums.billed_tokens else 0.0
    share = (sums.busy_s + sums.idle_s) / sums.seconds if sums.seconds else 0.0
    return seen / share if share > 0 else None


def _billed_per_computed(sums: MeterTally) -> float | None:
    computed = sums.input_computed + sums.output
    return sums.billed_tokens / computed if computed > 0 else None
