"""Define what the meter knows now: for each server and model, and in total, what the tokens of three windows cost.

A tally adds up spans; every figure on the screen, in JSON and on our own ``/metrics`` comes from one.
"""

from collections.abc import Callable
from datetime import date
from typing import Any, TypeVar, cast

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, computed_field

from tokonomics.measure.meter.readings import GpuReading
from tokonomics.types import Marked, Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, usd

Value = TypeVar("Value")


def _figure(of: Callable[[Any], Value]) -> Value:
    """Return a property that is also part of the JSON."""
    return cast(Value, computed_field(property(of)))


class MeterTally(Noun):
    """Sums over spans. Seconds and dollars are those of the machines, tokens those that were counted in them."""

    seconds: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    gap_s: float = 0.0  # the server did not answer, but is paid for
    away_s: float = 0.0  # the meter did not run; the server is paid for
    usd: float = 0.0
    busy_usd: float = 0.0
    idle_usd: float = 0.0
    gap_usd: float = 0.0
    away_usd: float = 0.0
    failed_usd: float = 0.0  # part of ``busy_usd``: share of failed among ended requests, as if each cost the same
    input_total: float = 0.0
    input_cached: float = 0.0
    output: float = 0.0
    unseen_tokens: float = 0.0  # part of input and output: counted while the server or the meter was away
    unseen_output: float = 0.0  # the output among ``unseen_tokens``
    answered: float = 0.0
    failed: float = 0.0
    preempted: float = 0.0
    running_s: float = 0.0  # requests running × seconds, over the time in which the gauge was seen
    running_seen_s: float = 0.0  # busy seconds for which ``running_s`` is known
    starved_s: float = 0.0  # part of ``busy_s`` with less than half of the planned batch running
    starved_usd: float = 0.0
    ttft_s: float = 0.0
    ttft_count: float = 0.0

    def __add__(self, other: "MeterTally") -> "MeterTally":
        mine, its = self.__dict__, other.__dict__
        return MeterTally.model_construct(**{name: mine[name] + its[name] for name in mine})

    @_figure
    def input_computed(self) -> float:
        return max(0.0, self.input_total - self.input_cached)

    @_figure
    def billed_tokens(self) -> float:
        """Return input and output, as an API would bill them."""
        return self.input_total + self.output

    @_figure
    def usd_per_mtok(self) -> float | None:
        """Return the price on the reservation basis: every paid hour, over input and output tokens."""
        return usd_per_mtok_of(self.usd, self.billed_tokens)

    @_figure
    def usd_per_mtok_output(self) -> float | None:
        """Return the price on the reservation basis, over output tokens alone."""
        return usd_per_mtok_of(self.usd, self.output)

    @_figure
    def usd_per_mtok_usage(self) -> float | None:
        """Return the price on the usage basis: busy time alone, over the tokens counted while it was watched."""
        return usd_per_mtok_of(self.busy_usd, self.billed_tokens - self.unseen_tokens)

    @_figure
    def usd_per_mtok_output_usage(self) -> float | None:
        return usd_per_mtok_of(self.busy_usd, self.output - self.unseen_output)

    @_figure
    def idle_share(self) -> float | None:
        """Return the idle share of the watched time."""
        return _ratio(self.idle_s, self.busy_s + self.idle_s)

    @_figure
    def batch(self) -> float | None:
        """Return the mean number of running requests over busy time."""
        return _ratio(self.running_s, self.running_seen_s)

    @_figure
    def cache_share(self) -> float | None:
        return _ratio(self.input_cached, self.input_total)

    @_figure
    def tokens_per_s(self) -> float | None:
        return _ratio(self.billed_tokens, self.seconds)

    @_figure
    def output_per_s(self) -> float | None:
        return _ratio(self.output, self.seconds)

    @_figure
    def usd_per_hour(self) -> float | None:
        return self.usd / self.seconds * SECONDS_PER_HOUR if self.seconds > 0 else None


def usd_per_mtok_of(usd: float, tokens: float) -> float | None:
    """Return dollars per Mtok; None while there is no token."""
    return usd / tokens * TOKENS_PER_MTOK if tokens > 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


class Planned(Noun):
    """What the plan says about one replica."""

    usd_per_mtok: PositiveFloat  # reservation basis, input and output tokens
    batch: NonNegativeFloat | None = None
    usd_per_hour: NonNegativeFloat | None = None
    tokens_per_s: NonNegativeFloat | None = None  # input and output
    cache_share: float | None = None  # of the prompt tokens; None: the plan does not say, and zero is assumed
    requests_per_s: NonNegativeFloat | None = None


class GroupState(Noun):
    target: str
    model: str
    engine: str
    labels: dict[str, str]
    up: bool  # whether the last reading came
    busy: bool | None  # in the last span; None while nothing is known
    usd_per_hour: float
    running: float | None
    waiting: float | None
    kv_share: float | None
    now: MeterTally  # the last minute; longer if the engine counts tokens only when requests end
    hour: MeterTally  # this hour by the clock, UTC
    today: MeterTally  # this day, UTC
    total: MeterTally  # everything in the ledger
    misses: int  # readings that did not come, since the meter started
    said: str | None = None  # why the last reading did not come, or what is odd about it


class Factor(Noun):
    """One reason why the price is not the planned one: above 1 more expensive, below 1 cheaper."""

    name: str
    times: float
    said: str


class Verdict(Noun):
    """The price compared with the plan; the factors multiply to the ratio."""

    usd_per_mtok: float
    planned_usd_per_mtok: float
    ratio: float
    factors: tuple[Factor, ...]
    largest: Factor | None
    said: str


class StatementLine(Noun):
    group: tuple[str, ...]  # a value for each of the bill's keys; "" if there is none
    sums: MeterTally


class Statement(Noun):
    since: float
    until: float
    by: tuple[str, ...]
    lines: tuple[StatementLine, ...]
    total: MeterTally
    planned: Planned | None = None
    against_plan: Verdict | None = None


class MonthEnd(Noun):
    """A month's forecast total: the middle, and an interval that covers 80 %; None if too little is known."""

    mid: NonNegativeFloat
    low: NonNegativeFloat | None
    high: NonNegativeFloat | None
    days_known: NonNegativeInt  # full days that it is forecast from


class BudgetState(Noun):
    """A budget compared with what is spent and the forecast of the month."""

    budget: str
    month: str
    budget_usd: PositiveFloat
    spent_usd: NonNegativeFloat
    month_end: MonthEnd
    spent_up_on: date | None  # when it was used up, or when the forecast's middle passes it; None: not in this month

    @property
    def is_missed(self) -> bool:
        return self.spent_up_on is not None

    @property
    def said(self) -> str:
        """Write a line for people."""
        ends = self.month_end
        low, high = (self.budget_usd if bound is None else bound for bound in (ends.low, ends.high))
        if not self.spent_usd and not ends.mid:
            fate = "has nothing booked to it (check its spelling)"
        elif self.spent_usd >= self.budget_usd:
            fate = "is spent"
        elif self.spent_up_on is not None:
            fate = f"will {'' if low > self.budget_usd else 'probably '}be exceeded on {self.spent_up_on}"
        else:
            fate = "holds, but not surely" if high > self.budget_usd else "holds"
        bounds = [usd(bound) for bound in (ends.low, ends.high) if bound is not None]
        between = f" ({' to '.join(bounds)})" if len(set(bounds)) == 2 else ""
        so_far = f"{usd(self.spent_usd)} spent so far, {usd(ends.mid)} by the end of {self.month}{between}"
        return f"{self.budget}: the budget of {usd(self.budget_usd)} {fate}: {so_far}"


class ExpectedFigure(Noun):
    """What a twin expects of a server's present window, and how good its forecasts of the last day were."""

    target: str
    model: str
    figure: str
    low: float
    mid: float
    high: float
    error: float | None = None
    coverage: float | None = None


class MeterState(Noun):
    at: float  # unix seconds
    every_s: float
    price_from: str
    groups: tuple[GroupState, ...]
    now: MeterTally  # sum over the groups; the other windows include servers that have left since
    hour: MeterTally
    today: MeterTally
    total: MeterTally
    gpus: tuple[GpuReading, ...] = ()
    energy_j: float | None = None  # drawn by the GPUs since the meter started; None if none is read
    electricity_usd: float | None = None  # for that energy, if its price is given; not part of the bill
    planned: Planned | None = None
    against_plan: Verdict | None = None  # of today
    budgets: tuple[BudgetState, ...] = ()  # of this month, as of this hour
    notes: tuple[Marked, ...] = ()  # servers that do not answer, a disk that is full, a clock that jumped
    held_spans: int = 0  # spans that could not be written to the ledger yet
    expected: tuple[ExpectedFigure, ...] = ()  # by a twin, if one runs

    @_figure
    def tokens_per_s(self) -> float:
        """Return input and output tokens a second of all servers together."""
        return sum(group.now.tokens_per_s or 0.0 for group in self.groups)
