"""The price that is paid against the planned one, as factors that multiply to the ratio.

Dollars per token = dollars an hour ÷ (busy share × requests running while busy × computed tokens a second of each ×
billed tokens per computed one). Each of the five is compared with the plan's; what the plan does not say is one factor
with the rest. Busy and idle are shares of the watched time; that gaps and absences had more or fewer tokens an hour is
a factor of its own. The product is exact. A smaller batch makes each request faster, so these two weigh together when
the largest reason is named.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tokonomics.errors import BadInput, from_validation, option, shorten
from tokonomics.measure.meter.state import Factor, MeterTally, Planned, Verdict
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
