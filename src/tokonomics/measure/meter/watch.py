"""One server over time: readings that come or are missed, turned into spans that follow each other without overlap.

The length of spans comes from the steady clock. Their dates follow the wall clock while it agrees; when it is set
forward they skip, when it is set back they follow it, which is said: two spans may then carry the same dates.

Frontends pass requests on to engines, and both count the same tokens: where both are metered, the engines count. A
frontend is left out for the models that an engine reports, and for no others: an engine elsewhere in the fleet says
nothing of it. Case does not tell names apart: clients may write a model's name in any.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tokonomics.measure.meter.engines import FRONTENDS
from tokonomics.measure.meter.ledger import Mark
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.measure.meter.spans import (
    PaidTime,
    Stretch,
    WatchedSpan,
    carried,
    dips,
    empty_spans,
    is_another,
    is_stranger,
    spans_between,
)
from tokonomics.units import seconds

CLOCK_SLACK_S = 2.0  # by which labels and the wall clock may differ before labels skip: clocks are slewed all the time
LONG_S = 120.0  # without a reading or a miss for longer, nobody looked: a machine slept, or a scraper was down
LONGEST_INTERVAL_S = 300.0  # Prometheus shows no sample that is older, so that nobody scrapes less often
MOST_AWAY_S = 31 * 86_400.0  # after a longer absence the machine was hardly paid for, or a clock was wrong: start anew
STARTED_AGAIN = "started again: what it counted between its last reading and its end is not known"
STRANGERS_BELIEVED = 3  # readings in a row of one other process, after which it is the server, from the first of them


class Watch:
    def __init__(
        self,
        target: str,
        usd_per_hour: float,
        mark: Mark | None = None,
        patience_s: float = LONG_S,
        after_patience: WatchedSpan = WatchedSpan.away,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.target, self.usd_per_hour, self._labels = target, usd_per_hour, labels or {}
        self._patience_s, self._after_patience = patience_s, after_patience
        self._booked_usd_per_hour = mark.usd_per_hour if mark else usd_per_hour
        self.readings: dict[str, Reading] = dict(mark.readings) if mark else {}
        self.until: float | None = mark.until if mark else None
        self.booked_until = float("-inf")  # what the ledger has of a server that disappeared and came back
        self.named: Reading | None = None  # the reading that told the model of a server whose model was not known
        self.misses = 0
        self.up = False
        self.said: str | None = None
        self._steady: float | None = None
        self._missing = False
        self._strangers: list[Sequence[Reading]] = []
        self._intervals: deque[float] = deque(maxlen=2)

    def take_readings(
        self, readings: Sequence[Reading], wall: float, steady: float, born: float | None = None
    ) -> list[PaidTime]:
        """Spans up to readings that came. ``born``: when the server began, where that was watched for."""
        readings = self._named(readings)
        self._refuse_strangers(readings)
        spans: list[PaidTime] = []
        anew = self.until is not None and self._steady is None and wall - self.until > MOST_AWAY_S
        if anew:
            self.readings, self.until = {}, None
        self._meet(readings)
        if self.until is None and born is not None:
            born = min(born, wall)  # its clock may be ahead of ours
            self.until, self._steady = born, steady - (wall - born)
        elif self.until is None and self.readings:
            # It had left and is back: what it counted meanwhile is ours, the time is not.
            self.until, self._steady, self._missing = wall, steady, True
        if self.up and readings:
            self._intervals.append(readings[0].at - self.last_at)
        said = "the last meter ended more than a month ago: counting starts anew" if anew else None
        if self.until is not None:
            stretch = self._stretch(self.until, wall, steady)
            said = "; ".join(filter(None, [said, *self._oddities(readings, self.until - stretch.start)])) or None
            spans = spans_between(self.readings, readings, stretch)
            self.until = stretch.start + stretch.seconds
            self.readings |= {reading.model: carried(self.readings.get(reading.model), reading) for reading in readings}
        else:
            self.until = wall
            self.readings = {reading.model: reading for reading in readings}
        self._steady = self._later(steady)
        self._missing, self.up, self.said = False, True, said
        return spans

    def _oddities(self, readings: Sequence[Reading], back_s: float) -> Iterator[str | None]:
        """What to say of readings that came: of time and tokens that are not as they seem, or not known."""
        if back_s > 0:
            yield f"the clock was set back by {seconds(back_s)}"
        known = [(self.readings[new.model], new) for new in readings if new.model in self.readings]
        yield next(filter(None, (dips(before, new) for before, new in known)), None)
        models = {reading.model for reading in self.current if reading.engine}
        swapped = bool(models) and models.isdisjoint(new.model for new in readings)
        if swapped or any(is_another(before, new) for before, new in known if before.engine):
            yield STARTED_AGAIN

    def missed(self, why: Missed, wall: float, steady: float) -> list[PaidTime]:
        """Spans up to a reading that did not come: paid, and not known."""
        self.misses += 1
        self.up, self.said = False, why.what
        if self.until is None:
            # Nobody knows its engine or model yet; it is paid for all the same.
            self.readings = self.readings or {"": Reading(self.target, "", "", wall, {}, labels=self._labels)}
            self.until, self._steady, self._missing = wall, steady, True
        if self._steady is None and wall - self.until > MOST_AWAY_S:
            return []
        stretch = self._stretch(self.until, wall, steady)
        if stretch.watched is WatchedSpan.seen:
            stretch = stretch._replace(watched=WatchedSpan.gap)
        spans = empty_spans(self.current, stretch)
        self.until, self._steady, self._missing = stretch.start + stretch.seconds, self._later(steady), True
        return spans

    def _later(self, steady: float) -> float:
        """A scrape that reaches us after its time was taken for a gap must not have that time paid again."""
        return steady if self._steady is None else max(self._steady, steady)

    @property
    def current(self) -> list[Reading]:
        """Of the models on its newest page. The counters of others are kept; their time is not theirs any more."""
        newest = max((reading.at for reading in self.readings.values()), default=None)
        return [reading for reading in self.readings.values() if reading.at == newest]

    @property
    def last_at(self) -> float:
        """When the newest of its readings was made that is in the book."""
        return max((reading.at for reading in self.readings.values() if reading.engine), default=self.booked_until)

    @property
    def patience_s(self) -> float:
        """How long between two readings is still watching: also a Prometheus that scrapes every few minutes watches."""
        usual_s = min(self._intervals) if len(self._intervals) == 2 and self._after_patience is WatchedSpan.gap else 0.0
        return max(self._patience_s, 1.5 * min(usual_s, LONGEST_INTERVAL_S))

    def _stretch(self, until: float, wall: float, steady: float) -> Stretch:
        """The time since ``until``; an absence costs what the server cost before it."""
        if self._steady is None:
            # A clock that was set back meanwhile is followed: the next absence is measured from there.
            return Stretch(WatchedSpan.away, min(until, wall), max(0.0, wall - until), self._booked_usd_per_hour)
        seconds = max(0.0, steady - self._steady)
        skipped = wall - seconds - until
        start = until + skipped if abs(skipped) > CLOCK_SLACK_S else until
        watched = WatchedSpan.seen if seconds <= self.patience_s else self._after_patience
        return Stretch(WatchedSpan.gap if self._missing else watched, start, seconds, self.usd_per_hour)

    def _named(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """A server that names its model on another page may fail to: its counters are still the same ones."""
        if len(readings) != 1 or len(self.current) != 1:
            return readings
        (now,), (known,) = readings, self.current
        if not now.model:
            return [replace(now, model=known.model)]
        if not known.model and known.engine:
            others = {model: reading for model, reading in self.readings.items() if model}
            self.readings, self.named = others | {now.model: replace(known, model=now.model)}, now
        return readings

    def _meet(self, readings: Sequence[Reading]) -> None:
        """The first reading of a server that did not answer before: its counts are ours if it began meanwhile."""
        unread = self.readings.get("")
        if unread is None or unread.engine:
            return
        began = [reading.started for reading in readings if reading.started is not None]
        ours = bool(began) and min(began) >= unread.at
        self.readings, self.named = {} if ours else {reading.model: reading for reading in readings}, readings[0]

    def _refuse_strangers(self, readings: Sequence[Reading]) -> None:
        before: Mapping[str, Reading] = self.readings
        strange = [new for new in readings if new.model in before and is_stranger(before[new.model], new)]
        if not strange:
            self._strangers = []
            return
        if self._strangers and self._strangers[0][0].started != readings[0].started:
            self._strangers = []
        self._strangers.append(readings)
        if len(self._strangers) < STRANGERS_BELIEVED:
            raise Missed(
                "another process answers at this address, beside the one before: a load balancer?",
                fix="Give the address of each server, so that its counters can be told apart.",
            )
        # What it did before we first read it is not known to be ours.
        self.readings |= {stranger.model: stranger for stranger in self._strangers[0]}
        self._strangers = []


class Frontends:
    """What engines serve, and which frontends were left out or counted for it."""

    def __init__(self) -> None:
        self._served: set[str] = set()
        self._left_out: set[tuple[str, str]] = set()
        self._counted: set[tuple[str, str]] = set()

    def learn(self, readings: Iterable[Reading]) -> None:
        """Remember what engines serve: also while one is away, its frontend has counted the same tokens."""
        self._served |= {_key(reading) for reading in readings if reading.engine and not _is_frontend(reading)}

    def without(self, readings: Sequence[Reading], watched: Iterable[Reading] = ()) -> list[Reading]:
        """Readings but those of frontends for models that engines report, among them those ``watched`` before."""
        if not any(map(_is_frontend, readings)):
            return list(readings)
        served = self._served | {_key(reading) for reading in watched if reading.engine and not _is_frontend(reading)}
        twice = [_is_frontend(reading) and _key(reading) in served for reading in readings]
        for reading, again in zip(readings, twice, strict=True):
            if _is_frontend(reading):
                (self._left_out if again else self._counted).add((reading.target, reading.model))
        return [reading for reading, again in zip(readings, twice, strict=True) if not again]

    def forget_notes(self) -> None:
        """Begin a new round: what is said is of the last one."""
        self._left_out, self._counted = set(), set()

    @property
    def notes(self) -> list[str]:
        """Which frontends were left out for which models; and which count beside engines of other models."""
        notes = [
            f"{target}: left out for {model or 'its unnamed model'}, whose engines are metered and count the same"
            for target, model in sorted(self._left_out)
        ]
        if self._served:
            notes += [
                f"{target}: counted for {model or 'its unnamed model'}, of which no engine is metered here"
                for target, model in sorted(self._counted)
            ]
        return notes


def _is_frontend(reading: Reading) -> bool:
    return reading.engine in FRONTENDS


def _key(reading: Reading) -> str:
    return reading.model.casefold()
