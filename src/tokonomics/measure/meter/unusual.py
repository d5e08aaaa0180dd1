"""Days whose $/Mtok leaves its band, and what made them so, as far as the meter sees.

A day is unusual where its price, as a logarithm, lies further from the median of its kind (working days or weekends;
all days while there are few) than 3.5 modified standard deviations, which are 1.4826 × the median distance from the
median: one odd day does not widen the band that finds it (Iglewicz and Hoaglin, How to Detect and Handle Outliers,
1993, which recommend 3.5).

Its price against the usual days' is a product of factors: dollars an hour; idle time; time that nobody watched; busy
time that failed requests took; requests running at once; billed tokens per computed one (cache hits); and what is left,
the speed of each request. The product is exact; the largest is named.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import date

from pydantic import PositiveFloat

from tokonomics.measure.meter.against_plan import largest_factor
from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.state import Factor, MeterTally
from tokonomics.types import Noun
from tokonomics.units import percent, usd

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


def unusual_days(of: Bill) -> tuple[UnusualDay, ...]:
    """Of a bill by model and day, the oldest first."""
    by_model: dict[str, dict[date, MeterTally]] = defaultdict(dict)
    for line in of.lines:
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
