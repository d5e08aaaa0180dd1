"""Explain why a price is not the planned or usual one, as factors that multiply to the ratio; find unusual days.

Dollars per token = dollars an hour ÷ (busy share × requests running while busy × computed tokens a second of each ×
billed tokens per computed one). Each of the five is compared with the plan's; what the plan does not state is combined
into one factor. Busy and idle are shares of the watched time; gaps and absences, which may have had more or fewer
tokens an hour, are a separate factor. The product is exact.

A day is unusual if its price, as a logarithm, is further from the median of its kind (working days or weekends; all
days while there are few) than 3.5 modified standard deviations, which are 1.4826 × the median distance from the median:
one odd day does not widen the band that finds it (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993, which
recommend 3.5). Its price relative to the usual days is a product of the same factors, and of the busy time that failed
requests took.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, ValidationError

from tokonomics.errors import BadInput, from_validation, option, shorten
from tokonomics.measure.meter.state import Factor, MeterTally, Planned, Statement, Verdict
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent, usd

_NO_NEWS = 1.05  # a factor or ratio this close to 1 counts as planned: predictions are not more exact


def compare(actual: MeterTally, planned: Planned) -> Verdict | None:
    """Compare the metered price with the plan's, with the reasons; None while there is no price yet."""
    price = actual.usd_per_mtok
    if price is None or price <= 0:
        return None
    ratio = price / planned.usd_per_mtok
    factors = _plan_factors(actual, planned, ratio)
    largest = _largest_factor(factors)
    said = f"you pay {ratio:.2g}× the plan"
    if 1 / _NO_NEWS <= ratio <= _NO_NEWS:
        said = "you pay what was planned"
    elif ratio < 1:
        said += ": less than was planned"
    else:
        said += f": {largest.said}" if largest else ""
        if planned.tokens_per_s and actual.tokens_per_s and actual.tokens_per_s < planned.tokens_per_s / _NO_NEWS:
            said += f"; the load is {percent(actual.tokens_per_s / planned.tokens_per_s)} of the planned one"
    figures = {"usd_per_mtok": price, "planned_usd_per_mtok": planned.usd_per_mtok, "ratio": ratio}
    return Verdict(**figures, factors=tuple(factors), largest=largest, said=said)


def _plan_factors(actual: MeterTally, planned: Planned, ratio: float) -> list[Factor]:
    """Return why the price is not the planned one; the last factor is what the others leave."""
    hourly, billed, busy = actual.usd_per_hour, actual.billed_tokens, _busy_share(actual)
    batch = actual.batch if busy else None
    was_away = busy and actual.seconds > (actual.busy_s + actual.idle_s) * (1 + 1e-9)
    seen = 1 - actual.unseen_tokens / billed
    computed = actual.input_computed + actual.output
    # The plan states only the share of cached prompt tokens: take the rest of the mix from these prompts.
    tokens = actual.input_total * (1 - (planned.cache_share or 0.0)) + actual.output or computed
    hoped = "not in the plan" if planned.cache_share is None else f"planned {percent(planned.cache_share)}"
    factors = _known_factors(
        ("price", hourly, planned.usd_per_hour,
         f"a server costs {usd(hourly or 0)} an hour, planned {usd(planned.usd_per_hour or 0)}"),
        ("idle hours", 1.0, busy, f"{percent(1 - busy)} of the watched time saw no work"),
        ("not watched", _unwatched(actual) if was_away else None, 1.0,
         f"{percent(_away_share(actual))} of the paid time was not watched; it had {percent(1 - seen)} of the tokens"),
        ("batch", planned.batch, batch, f"batch is {batch or 0:.3g}, planned {planned.batch or 0:.3g}"),
        ("cache hits", billed / tokens if computed else None, billed / computed if computed else None,
         f"{percent(actual.cache_share or 0.0)} of the prompts come from the cache, {hoped}"),
    )  # fmt: skip
    rest = ratio
    for factor in factors:
        rest /= factor.times
    known = {factor.name for factor in factors}
    missing = [name for name in ("price", "idle hours", "batch", "cache hits") if name not in known]
    if missing:
        unknown = ", ".join((*missing, "speed"))
        return [*factors, Factor(name="the rest", times=rest, said=f"not planned or not measured yet: {unknown}")]
    return [*factors, _speed(rest, "each running request is {} than planned")]


def _known_factors(*rows: tuple[str, float | None, float | None, str]) -> list[Factor]:
    """Return the first value over the second as a factor, for the rows in which both are known."""
    return [Factor(name=name, times=now / before, said=said) for name, now, before, said in rows if now and before]


def _speed(times: float, said: str) -> Factor:
    return Factor(name="speed", times=times, said=said.format("slower" if times > 1 else "faster"))


def _largest_factor(factors: list[Factor]) -> Factor | None:
    """Return the factor to name. A small batch makes each request fast, so batch and speed count together."""
    *others, rest = factors
    batch = [other for other in others if other.name == "batch"]
    weights = [(other.times, other) for other in others if other.name != "batch"]
    both = [rest, *batch]
    weights.append((math.prod(factor.times for factor in both), max(both[::-1], key=lambda factor: factor.times)))
    weight, largest = max(weights, key=lambda pair: pair[0])
    return largest if weight > _NO_NEWS else None


def read_plan(path: Path) -> Planned:
    """Read one replica of the best offer of ``tokonomics plan … --json``."""
    with best_of_plan(path) as (best, load):
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
def best_of_plan(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the best offer and the workload of a plan's JSON; a missing key is reported as the file's mistake."""
    where, fix = option("plan", shorten(path.name)), "Make it with: tokonomics plan … --json > plan.json"
    try:
        document = json.loads(path.read_text())
        best, load = document["best"], document["workload"]
        if best is None:
            raise BadInput("nothing in this plan meets its SLOs", where=where)
        yield best, load
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=where) from None
    except ValidationError as error:
        raise from_validation(error, where) from None
    except (KeyError, TypeError, ArithmeticError, AttributeError, ValueError, RecursionError):
        raise BadInput("is not a plan as JSON", where=where, fix=fix) from None


MOST_DEVIATIONS = 3.5  # Iglewicz and Hoaglin, see above
NORMAL = 1.4826  # the standard deviation of a normal distribution ÷ its median distance from the median
LEAST_CHANGE = 1.1  # a different mix of requests changes the price by less than a tenth (assumed)
LEAST_DAYS = 5  # of a kind: with fewer, one day decides the median distance
_SATURDAY = 5


class UnusualDay(Noun):
    """A day's price of one model compared with its usual days."""

    model: str
    day: date
    usd_per_mtok: PositiveFloat
    usual_usd_per_mtok: PositiveFloat
    ratio: PositiveFloat
    factors: tuple[Factor, ...]  # their product is the ratio
    largest: Factor | None
    said: str


def unusual_days(billed: Statement) -> tuple[UnusualDay, ...]:
    """Return the unusual days of a bill by model and day, oldest first."""
    by_model: dict[str, dict[date, MeterTally]] = defaultdict(dict)
    for line in billed.lines:
        model, day = line.group
        if line.sums.usd_per_mtok:
            by_model[model][date.fromisoformat(day)] = line.sums
    found = []
    for model, days in by_model.items():
        prices = {day: math.log(sums.usd_per_mtok or 1.0) for day, sums in days.items()}
        for kind in _kinds(sorted(days)):
            middle = statistics.median(prices[day] for day in kind)
            spread = NORMAL * statistics.median(abs(prices[day] - middle) for day in kind)
            band = max(MOST_DEVIATIONS * spread, math.log(LEAST_CHANGE))
            odd = [day for day in kind if abs(prices[day] - middle) > band]
            usual = sum((days[day] for day in kind if day not in odd), MeterTally())
            found += [_explained(model, day, days[day], usual) for day in odd]
    return tuple(sorted(found, key=lambda odd: (odd.day, odd.model)))


def _kinds(days: list[date]) -> list[list[date]]:
    """Return working days and weekends; all days together if either has too few, and nothing if all are too few."""
    kinds = [[day for day in days if (day.weekday() >= _SATURDAY) is weekend] for weekend in (False, True)]
    kinds = kinds if all(len(kind) >= LEAST_DAYS or not kind for kind in kinds) else [days]
    return [kind for kind in kinds if len(kind) >= LEAST_DAYS]


def _explained(model: str, day: date, sums: MeterTally, usual: MeterTally) -> UnusualDay:
    price, before = sums.usd_per_mtok or 0.0, usual.usd_per_mtok or 0.0
    factors, ratio = factors_between(sums, usual), price / before
    turned = [factor.model_copy(update={"times": 1 / factor.times}) for factor in factors]
    named = _largest_factor(factors if ratio > 1 else turned)
    largest = next((factor for factor in factors if named and factor.name == named.name), None)
    why = f"{largest.said} (×{largest.times:.2f})" if largest else "several small causes"
    said = f"{day}: {model or 'unnamed model'} at {usd(price)}/Mtok, usually {usd(before)} (×{ratio:.2f}): {why}"
    return UnusualDay(
        model=model, day=day, usd_per_mtok=price, usual_usd_per_mtok=before, ratio=ratio, factors=tuple(factors),
        largest=largest, said=said,
    )  # fmt: skip


def factors_between(sums: MeterTally, usual: MeterTally) -> list[Factor]:
    """Return why one price is not the other; the last factor is what the others leave."""
    (hourly, batch), (usual_hourly, usual_batch) = ((tally.usd_per_hour, tally.batch) for tally in (sums, usual))
    busy, usual_busy = _busy_share(sums), _busy_share(usual)
    useful, usual_useful = _useful_share(sums), _useful_share(usual)
    factors = _known_factors(
        ("price", hourly, usual_hourly,
         f"a server cost {usd(hourly or 0)} an hour, usually {usd(usual_hourly or 0)}"),
        ("idle", usual_busy, busy,
         f"{percent(1 - busy)} of the watched time saw no work, usually {percent(1 - usual_busy)}"),
        ("not watched", _unwatched(sums), _unwatched(usual),
         f"{percent(_away_share(sums))} of the paid time was not watched, usually {percent(_away_share(usual))}"),
        ("failures", usual_useful, useful,
         f"failed requests took {percent(1 - useful)} of the busy time, usually {percent(1 - usual_useful)}"),
        ("batch", usual_batch, batch, f"batch was {batch or 0:.3g}, usually {usual_batch or 0:.3g}"),
        ("cache hits", _billed_per_computed(usual), _billed_per_computed(sums),
         f"{percent(sums.cache_share or 0.0)} of the prompt tokens came from the cache, "
         f"usually {percent(usual.cache_share or 0.0)}"),
    )  # fmt: skip
    rest = (sums.usd_per_mtok or 1.0) / (usual.usd_per_mtok or 1.0) / math.prod(factor.times for factor in factors)
    return [*factors, _speed(rest, "each running request was {} than usual")]


def _busy_share(sums: MeterTally) -> float:
    watched = sums.busy_s + sums.idle_s
    return sums.busy_s / watched if watched > 0 else 0.0


def _away_share(sums: MeterTally) -> float:
    return 1 - (sums.busy_s + sums.idle_s) / sums.seconds if sums.seconds > 0 else 0.0


def _useful_share(sums: MeterTally) -> float:
    return 1 - sums.failed_usd / sums.busy_usd if sums.busy_usd > 0 else 1.0


def _unwatched(sums: MeterTally) -> float | None:
    """Return the watched share of the tokens ÷ that of the time: 1 if everything was watched."""
    seen = 1 - sums.unseen_tokens / sums.billed_tokens if sums.billed_tokens else 0.0
    share = (sums.busy_s + sums.idle_s) / sums.seconds if sums.seconds else 0.0
    return seen / share if share > 0 else None


def _billed_per_computed(sums: MeterTally) -> float | None:
    computed = sums.input_computed + sums.output
    return sums.billed_tokens / computed if computed > 0 else None
