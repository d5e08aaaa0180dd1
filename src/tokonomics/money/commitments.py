"""Find how many machines to reserve, for how long and from when on, if demand and prices are uncertain.

A stochastic program over months. Decided today, the same on every path: how many machines to commit to, on which term,
at the start of which month. What a path needs beyond them is rented by the hour at that path's price. With
``caution`` λ it minimises (1 − λ) × the mean bill + λ × the mean of its worst tenth (CVaR, as a linear program by
Rockafellar and Uryasev 2000). A commitment ends within the horizon; one made later costs today's quote moved as the
path's price on demand moved.

What a reserved machine saves in a month falls with every one more (each is needed in fewer hours), so the saving is
written as steps, each at most as wide as the machines between two levels of need.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput, option
from tokonomics.money.purchase_program import Program
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WORST_SHARE = 0.1  # of the paths: "the worst tenth"
_LEVELS = 64  # steps of a month's saving: more levels of need than this are merged, for the decision alone
_GAP = 1e-6  # of the program, whose relaxation is almost whole by itself


class Term(Noun):
    """A commitment that is sold: a machine, always paid, for so many months."""

    name: str
    months: PositiveInt
    usd_per_hour: PositiveFloat  # one machine, if it starts today


@dataclass(frozen=True)
class Futures:
    """Equally likely paths of what is needed and of what an hour on demand costs."""

    machines: Ints  # path × month × kind of hour
    hours: Floats  # in a month, of each kind of hour
    usd_per_hour: Floats  # path × month: one machine on demand

    @property
    def months(self) -> int:
        return int(self.machines.shape[1])

    @property
    def moved(self) -> Floats:
        """Return price ÷ today's, by path and month."""
        return self.usd_per_hour / self.usd_per_hour[:, :1]

    def path(self, number: int) -> "Futures":
        """Return one path alone."""
        return Futures(self.machines[number, None], self.hours, self.usd_per_hour[number, None])

    def hours_beyond(self, reserved: Ints | Floats) -> Floats:
        """Return the machine-hours to rent, by path and month, beyond what is reserved in each month."""
        short = np.maximum(0, self.machines - np.asarray(reserved)[None, :, None])
        rented: Floats = short @ self.hours
        return rented

    def least_usd(self, terms: Sequence[Term]) -> float:
        """Return a mean bill that no schedule is below: each hour needed, at its lowest price on any terms."""
        lowest = np.minimum.accumulate(self.moved, axis=1) * min(
            (term.usd_per_hour for term in terms), default=math.inf
        )
        used = self.hours_beyond(np.zeros(self.months)) * np.minimum(self.usd_per_hour, lowest)
        return float(used.sum(axis=1).mean())


@dataclass(frozen=True)
class Schedule:
    """What is committed to: machines by term and by the month in which they start."""

    bought: dict[tuple[Term, int], int]

    def by_month(self, months: int) -> Ints:
        """Return the machines reserved in each month."""
        reserved = np.zeros(months, np.int64)
        for (term, start), number in self.bought.items():
            reserved[start : start + term.months] += number
        return reserved

    def bills(self, futures: Futures) -> Floats:
        """Return the USD of the whole horizon on each path."""
        rented = futures.hours_beyond(self.by_month(futures.months))
        bills: Floats = (rented * futures.usd_per_hour).sum(axis=1)
        for (term, start), number in self.bought.items():
            bills = bills + number * _committed_usd(term, start, futures)
        return bills


NOTHING = Schedule({})


def _committed_usd(term: Term, start: int, futures: Futures) -> Floats:
    """Return what one machine costs to the end of its term, on each path."""
    owed: Floats = term.usd_per_hour * term.months * HOURS_PER_MONTH * futures.moved[:, start]
    return owed


def worst_tenth(bills: Floats) -> float:
    """Return the mean of the worst tenth of the bills (CVaR at 90 %), the last of them counted in part."""
    worst, share = np.sort(bills)[::-1], WORST_SHARE * len(bills)
    weights = np.clip(share - np.arange(len(bills)), 0.0, 1.0)
    return float(worst @ weights / share)


def objective(bills: Floats, caution: float) -> float:
    """Return (1 − caution) × the mean bill + caution × the mean of the worst tenth."""
    return (1 - caution) * float(bills.mean()) + caution * worst_tenth(bills)


def starts_of(term: Term, months: int, step: int) -> range:
    """Return the months in which a term may start: every ``step`` months, and it ends within the horizon."""
    return range(0, months - term.months + 1, step)


def best_schedule(
    futures: Futures,
    terms: Sequence[Term],
    *,
    caution: float = 0.0,
    step: int = 1,
    gap: float = _GAP,
    time_limit_s: float = 30.0,
    whole: bool = True,
) -> Schedule:
    """Return the schedule with the least (1 − caution) × mean bill + caution × worst tenth.

    ``whole=False`` leaves out that machines are whole: with one path they come out whole anyway, because each
    commitment covers months without a break (an interval matrix).
    """
    choices = [(term, start) for term in terms for start in starts_of(term, futures.months, step)]
    most = int(futures.machines.max(initial=0))
    if not choices or not most:
        return NOTHING
    levels = np.unique(np.append(futures.machines, 0))
    if len(levels) > _LEVELS:
        levels = np.unique(np.linspace(0, most, _LEVELS).round().astype(np.int64))
    widths, saved = np.diff(levels), _saved_usd(futures, levels)  # saved: path × month × step, by one machine
    owed = np.array([_committed_usd(term, start, futures) for term, start in choices])  # choice × path
    paths, (months, steps) = len(futures.machines), saved.shape[1:]
    scale = float(futures.usd_per_hour.mean()) * HOURS_PER_MONTH  # of a machine's month: keeps figures near one
    program, mean_weight = Program(), (1 - caution) / scale
    bought = program.add_columns(len(choices), owed.mean(axis=1) * mean_weight, whole=whole)
    used = np.concatenate(
        [
            program.add_columns(months, -saved[:, :, j].mean(axis=0) * mean_weight, most=int(widths[j]))
            for j in range(steps)
        ]
    ).reshape(steps, months)
    covered = program.add_rows(np.zeros(months))  # reserved ≥ used, in every month
    for column, (term, start) in zip(bought, choices, strict=True):
        rows = covered[start : start + term.months]
        program.put(rows, np.full(len(rows), column), 1.0)
    for columns in used:
        program.put(covered, columns, -1.0)
    if caution:
        # CVaR = threshold + mean(excess) ÷ 0.1, with excess ≥ bill − threshold on every path.
        threshold = program.add_columns(1, caution)
        excess = program.add_columns(paths, caution / (WORST_SHARE * paths))
        without = (futures.hours_beyond(np.zeros(months)) * futures.usd_per_hour).sum(axis=1)
        rows = program.add_rows(without / scale)
        program.put(rows, np.broadcast_to(threshold, paths), 1.0)
        program.put(rows, excess, 1.0)
        for number, column in enumerate(bought):
            program.put(rows, np.full(paths, column), -owed[number] / scale)
        for j in range(steps):
            for month in range(months):
                program.put(rows, np.full(paths, used[j, month]), saved[:, month, j] / scale)
    found = program.solved(gap, time_limit_s, relaxed=not whole)
    if found.x is None:
        raise BadInput(
            f"no schedule of commitments was found within {time_limit_s:.3g} s",
            fix=f"Give {option('time_limit')} more.",
        )
    counts = np.rint(found.x[bought]).astype(int)
    return Schedule({choice: int(number) for choice, number in zip(choices, counts, strict=True) if number})


def _saved_usd(futures: Futures, levels: Ints) -> Floats:
    """Return what a reserved machine between two levels saves: path × month × step, in USD on demand."""
    rented = np.stack([futures.hours_beyond(np.full(futures.months, level)) for level in levels], axis=-1)
    saved: Floats = -np.diff(rented, axis=-1) / np.diff(levels) * futures.usd_per_hour[:, :, None]
    return saved


def with_foresight(futures: Futures, terms: Sequence[Term], step: int = 1) -> Floats:
    """Return the bill of each path for a buyer who knew it: nobody can pay less."""
    paths = (futures.path(number) for number in range(len(futures.machines)))
    return np.array([float(best_schedule(path, terms, step=step, whole=False).bills(path)[0]) for path in paths])


def by_rule(futures: Futures, terms: Sequence[Term], middle: Futures, share: float) -> Schedule:
    """Return commitments by a rule: that quantile of the hours of each term on the middle path, renewed to the end.

    Share 1 reserves for the busiest hour, 0.5 the median. Of several terms the one with the lowest mean bill counts, as
    a buyer would choose who knows the same paths.
    """
    schedules = [Schedule(dict(_renewed(term, middle, share))) for term in terms if term.months <= futures.months]
    return min(schedules, key=lambda schedule: float(schedule.bills(futures).mean()), default=NOTHING)


def _renewed(term: Term, middle: Futures, share: float) -> Iterable[tuple[tuple[Term, int], int]]:
    for start in starts_of(term, middle.months, term.months):
        needed = middle.machines[0, start : start + term.months]
        yield (term, start), _quantile(needed, middle.hours, share)


def _quantile(machines: Ints, hours: Floats, share: float) -> int:
    """Return the least number of machines that is enough in that share of the hours."""
    weights = np.broadcast_to(hours, machines.shape).ravel()
    order = np.argsort(machines, axis=None)
    reached = np.cumsum(weights[order]) / weights.sum()
    return int(machines.ravel()[order][np.searchsorted(reached, share - 1e-9)])


class CommitmentWay(Noun):
    """A way to buy for the whole horizon, on the same paths as the others."""

    name: str
    usd_per_month: NonNegativeFloat  # mean over paths and months
    worst_tenth_usd_per_month: NonNegativeFloat
    note: str = ""


def way(name: str, bills: Floats, months: int, note: str = "") -> CommitmentWay:
    """Return a way's mean bill a month, and that of its worst tenth."""
    return CommitmentWay(
        name=name,
        usd_per_month=float(bills.mean()) / months,
        worst_tenth_usd_per_month=worst_tenth(bills) / months,
        note=note,
    )


def ways_to_buy(
    futures: Futures, terms: Sequence[Term], middle: Futures, ours: Schedule, safest: Schedule, step: int
) -> tuple[CommitmentWay, ...]:
    """Return ours and what it is compared with, all paid on the same paths."""
    months = futures.months

    def paid(name: str, schedule: Schedule, note: str) -> CommitmentWay:
        return way(name, schedule.bills(futures), months, note)

    return (
        paid("this plan", ours, ""),
        paid("all on demand", NOTHING, "nothing is owed"),
        paid("all reserved", by_rule(futures, terms, middle, 1.0), "the busiest hour of the middle path"),
        paid("median rule", by_rule(futures, terms, middle, 0.5), "the median hour of the middle path"),
        paid("lowest worst tenth", safest, f"{option('caution', 1)}"),
        way("perfect foresight", with_foresight(futures, terms, step), months, "each path known: a bound"),
    )


def months_of(name: str) -> int:
    """Return the months of a term by its name: ``1 year``, ``3 years``, ``6 months``."""
    number, unit = name.split()
    return int(number) * (12 if unit.startswith("year") else 1)
