"""Compute what an hour of each server costs, what a month may cost, and how much it will cost.

One price holds for all servers, except servers with a label or an address that has its own. A month's budget is
compared with what is spent so far and the forecast of the remaining days, with an interval.

Days are forecast by least squares on the full days of the last eight weeks: a level, a straight trend and an effect of
each day of the week once there are two weeks of them, and their mean before that. The interval of the sum of the days
left is the standard prediction interval (Student's t; Draper and Smith, Applied Regression Analysis, 3rd edition 1998,
section 5.5), widened if errors of consecutive days are correlated: the long-run variance of a first-order
autoregression is (1 + r) ÷ (1 − r) times that of independent days (Hamilton, Time Series Analysis, 1994, section 7.2).
No interval covers what a trend cannot know, such as servers that will be added.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from tokonomics.catalog.offer_choice import cheapest_offer, select_offers
from tokonomics.catalog.offers import Offer, load_offers
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.measure.meter.ledger import DayUsd, Ledger
from tokonomics.measure.meter.state import BudgetState, MonthEnd
from tokonomics.types import Noun
from tokonomics.units import DAY_S


@dataclass(frozen=True)
class PriceOf:
    """The price of the servers with a label or, without a label's name, of the server at an address."""

    label: str
    value: str
    usd_per_hour: float

    @property
    def who(self) -> str:
        return f"{self.label}={self.value}" if self.label else self.value

    def holds(self, target: str, labels: Mapping[str, str]) -> bool:
        return labels.get(self.label) == self.value if self.label else target == self.value


@dataclass(frozen=True)
class Prices:
    """US dollars an hour of a server with all its GPUs."""

    usd_per_hour: float
    others: tuple[PriceOf, ...] = ()  # the first match counts

    def usd_per_hour_of(self, target: str, labels: Mapping[str, str]) -> float:
        return next((other.usd_per_hour for other in self.others if other.holds(target, labels)), self.usd_per_hour)


def parse_prices(texts: Iterable[str], gpus: int) -> tuple[PriceOf, ...]:
    """Read GPU-hour prices such as ``gpu=L4:0.80`` or ``http://gpu2:8000:0.80``, for servers with ``gpus`` GPUs."""
    from tokonomics.measure.meter.scrape import address_of
    from tokonomics.money.cost import require_positive

    prices = []
    for text in texts:
        who, _, price = text.strip().rpartition(":")
        try:
            usd = float(price)
        except ValueError:
            who, usd = "", 0.0
        label, equals, value = who.partition("=") if "://" not in who else ("", "", address_of(who))
        if not value and not equals:
            label, value = "", who  # a pod by its name in the meter: prod/llama-0
        if not value or (equals and not label):
            fix = "Such as gpu=L4:0.80 (a label of theirs), or http://gpu2:8000:0.80."
            raise BadInput(f"'{shorten(text)}' is not a price of some servers", field="price", fix=fix)
        prices.append(PriceOf(label.strip(), value.strip(), require_positive("price", usd) * gpus))
    return tuple(prices)


@dataclass(frozen=True)
class LabelOf:
    """A label of the server at an address; without an address, of all servers."""

    address: str
    name: str
    value: str


def parse_labels(texts: Iterable[str], urls: Iterable[str]) -> tuple[LabelOf, ...]:
    """Read labels such as ``team=search`` or ``http://gpu1:8000:team=search``, for the servers at ``urls``."""
    from tokonomics.measure.meter.scrape import address_of, on_loopback

    known = {on_loopback(address_of(url)) for url in urls}
    labels = []
    for text in texts:
        who, equals, value = text.partition("=")
        of, _, name = (part.strip() for part in who.rpartition(":"))
        if not equals or not name.isidentifier() or not value.strip():
            fix = "Such as team=search, or http://gpu1:8000:team=search for one of several servers."
            raise BadInput(f"'{shorten(text)}' is not a label", field="label", fix=fix)
        address = on_loopback(address_of(of)) if of else ""
        if address and address not in known:
            there = f"They are: {', '.join(map(shorten, sorted(known)))}." if known else None
            raise BadInput(f"{shorten(address)} is none of the servers given", field="label", fix=there)
        labels.append(LabelOf(address, name, value.strip()))
    return tuple(labels)


def labels_of(address: str, labels: Iterable[LabelOf]) -> dict[str, str]:
    """Return the labels of a server: its own before those of all servers."""
    from tokonomics.measure.meter.scrape import on_loopback

    ordered = sorted(labels, key=lambda label: bool(label.address))
    return {label.name: label.value for label in ordered if label.address in ("", on_loopback(address))}


def find_offer(text: str) -> Offer:
    """Return the machine of a provider, such as ``aws:p5.48xlarge`` (or with a slash), in its cheapest region."""
    provider, sign, instance = text.replace("/", ":").partition(":")
    if not sign or not provider or not instance:
        raise BadInput(f"'{shorten(text)}' names no offer", field="offer", fix="Such as aws:p5.48xlarge.")
    sold = select_offers(load_offers(), provider=provider)
    named = [offer for offer in sold if offer.instance.lower() == instance.lower()]
    if not named:
        raise UnknownName("instance", instance, {offer.instance for offer in sold}, fix="See: tokonomics offers")
    return cheapest_offer(named[0].gpu, named[0].gpus, offers=named)


_EPOCH = date(1970, 1, 1)
Floats = NDArray[np.float64]
WEEK = 7
HISTORY_DAYS = 8 * WEEK  # enough for the mean of each weekday, and short enough for a straight trend (assumed)
LEAST_FOR_WEEKDAYS = 2 * WEEK
LEAST_FOR_INTERVAL = 3
COVERED = 0.8  # share covered by the interval, as in every other forecast here
_MOST_RELATED = 0.9  # correlation of consecutive days' errors; above it the days say nothing about the mean


class MonthlyBudget(Noun):
    """Dollars a calendar month (UTC), for everything or for the servers with one model or label."""

    key: str = ""
    value: str = ""
    usd: PositiveFloat

    @property
    def name(self) -> str:
        return f"{self.key}={self.value}" if self.key else "all"

    def holds(self, day: DayUsd) -> bool:
        if not self.key:
            return True
        return (day.model if self.key == "model" else day.labels.get(self.key)) == self.value


def parse_budgets(texts: Iterable[str]) -> tuple[MonthlyBudget, ...]:
    """Read budgets such as ``5000``, ``model=llama-3.3-70b:2000`` or ``team=search:1500``."""
    budgets = []
    for text in texts:
        who, _, dollars = text.strip().rpartition(":")
        key, equals, value = who.partition("=")
        try:
            amount = float(dollars.replace(",", ""))
        except ValueError:
            amount = 0.0
        if not 0 < amount < 1e12 or (who and not (key.strip() and equals and value.strip())):
            fix = "Dollars a month, such as 5000, model=llama-3.3-70b:2000 or team=search:1500."
            raise BadInput(f"'{shorten(text)}' is not a budget", field="budget", fix=fix)
        budgets.append(MonthlyBudget(key=key.strip(), value=value.strip(), usd=amount))
    return tuple(budgets)


class BudgetBook:
    """Budgets and the ledger they are compared with; past days are read once."""

    def __init__(self, budgets: Sequence[MonthlyBudget], ledger: Ledger) -> None:
        self._budgets, self._ledger = budgets, ledger
        self._gone: list[DayUsd] = []
        self._read_to: int | None = None

    def states(self, now: float) -> tuple[BudgetState, ...]:
        """Return each budget in the month of an instant."""
        if not self._budgets:
            return ()
        month = datetime.fromtimestamp(now, UTC).date().replace(day=1)
        known = self._days(int(now // DAY_S) - HISTORY_DAYS, now)
        return tuple(
            _state(budget, [day for day in known if budget.holds(day)], month, now) for budget in self._budgets
        )

    def _days(self, first: int, now: float) -> list[DayUsd]:
        """Return the days; read yesterday again, because its last minutes may have come late."""
        since = first if self._read_to is None else max(first, self._read_to)
        read = list(self._ledger.usd_by_day(since * DAY_S, now))
        known = [day for day in self._gone if day.day >= first] + read
        self._read_to = int(now // DAY_S) - 1
        self._gone = [day for day in known if day.day < self._read_to]
        return known


def _state(budget: MonthlyBudget, known: Sequence[DayUsd], month: date, now: float) -> BudgetState:
    spent: dict[int, float] = defaultdict(float)
    for part in known:
        spent[part.day] += part.usd
    first, last = ((day - _EPOCH).days for day in (month, (month + timedelta(days=32)).replace(day=1)))
    began = min((part.began for part in known), default=now)
    so_far = sum(dollars for day, dollars in spent.items() if first <= day < last)
    left = _left(spent, began, now, last)
    low, high = left.interval
    return BudgetState(
        budget=budget.name, month=f"{month:%Y-%m}", budget_usd=budget.usd, spent_usd=so_far,
        month_end=MonthEnd(
            mid=so_far + sum(left.mid), days_known=left.days,
            low=None if low is None else so_far + low, high=None if high is None else so_far + high,
        ),
        spent_up_on=_spent_up_on(budget.usd, spent, first, int(now // DAY_S), left.mid),
    )  # fmt: skip


def _spent_up_on(
    budget_usd: float, spent: Mapping[int, float], first: int, today: int, ahead: Sequence[float]
) -> date | None:
    """Return the day on which a month from ``first`` on uses up its budget: as booked, or as forecast from today on."""
    booked = [spent.get(day, 0.0) for day in range(first, today + 1)]
    for day, total in enumerate(accumulate(booked), first):
        if total >= budget_usd:
            return _EPOCH + timedelta(days=day)
    for day, total in enumerate(accumulate(ahead, initial=sum(booked)), today - 1):
        if total > budget_usd:
            return _EPOCH + timedelta(days=day)
    return None


class DaysLeft(NamedTuple):
    """Dollars of the rest of today and of each later day, an interval of their sum, and the full days known."""

    mid: Sequence[float]
    interval: tuple[float, float] | tuple[None, None]
    days: int


def _left(spent: Mapping[int, float], began: float, now: float, end: int) -> DaysLeft:
    today = int(now // DAY_S)
    rest = 1 - (now - today * DAY_S) / DAY_S
    first = max(today - HISTORY_DAYS, -int(-began // DAY_S))
    history = np.array([spent.get(day, 0.0) for day in range(first, today)])
    ahead = range(today, end)
    parts = np.array([rest, *([1.0] * (len(ahead) - 1))])
    if not len(history):
        # Only the day on which the meter began is known: assume the same rate.
        seen_s = max(now - began, 1.0)
        pace = sum(spent.values()) / seen_s * DAY_S
        return DaysLeft(list(pace * parts), (None, None), 0)
    return forecast(history, first, ahead, parts)


def forecast(history: Floats, first: int, ahead: Sequence[int], parts: Floats) -> DaysLeft:
    """Forecast the days ``ahead`` (each in ``parts``) from the dollars of full days from ``first`` on (since 1970)."""
    from scipy.special import stdtrit  # slow to load: only when needed

    rich = len(history) >= LEAST_FOR_WEEKDAYS
    known = _features(range(first, first + len(history)), first, rich)
    wanted = _features(ahead, first, rich) * parts[:, None]
    inverse = np.linalg.pinv(known.T @ known)
    weights = inverse @ known.T @ history
    mid = np.maximum(wanted @ weights, 0.0)
    free = len(history) - known.shape[1]
    if len(history) < LEAST_FOR_INTERVAL or free < 1:
        return DaysLeft(list(mid), (None, None), len(history))
    missed = history - known @ weights
    noise = float(missed @ missed) / free
    together = wanted.sum(axis=0)
    sure = float(together @ inverse @ together)
    student = float(stdtrit(free, (1 + COVERED) / 2))
    width = student * float(np.sqrt(noise * _related(missed) * (float(parts.sum()) + sure)))
    total = float(mid.sum())
    return DaysLeft(list(mid), (max(0.0, total - width), total + width), len(history))


def _features(days: Sequence[int], first: int, rich: bool) -> Floats:
    """Return a level; with two weeks also a trend and six of the seven weekdays, the seventh being the level itself."""
    level = np.ones((len(days), 1))
    if not rich:
        return level
    numbers = np.array(days)[:, None]
    return np.hstack([level, numbers - float(first), numbers % WEEK == np.arange(1, WEEK)])


def _related(missed: Floats) -> float:
    """Return the variance of a sum of such days ÷ that of independent days."""
    if len(missed) < LEAST_FOR_WEEKDAYS or not missed.any():
        return 1.0
    related = float(missed[1:] @ missed[:-1]) / float(missed @ missed)
    related = min(max(related, 0.0), _MOST_RELATED)
    return (1 + related) / (1 - related)
