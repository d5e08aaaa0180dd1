"""Watch one server over time: turn readings that come or are missed into consecutive spans without overlap.

The length of spans comes from the steady clock. Their dates follow the wall clock while it agrees. When it is set
forward they skip; when it is set back they follow it, with a note: two spans may then have the same dates.

Frontends pass requests on to engines, and both count the same tokens: if both are metered, only the engines count. A
frontend is left out for the models that a metered engine reports, and for no others. Names are compared without case,
because clients may write a model's name in any case.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tokonomics.measure.meter.engines import FRONTENDS
from tokonomics.measure.meter.ledger import Mark
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.measure.meter.spans import (
    PaidTime,
    ReadingChange,
    Stretch,
    WatchedSpan,
    change_between,
    empty_spans,
    is_stranger,
    spans_between,
)
from tokonomics.units import seconds

CLOCK_SLACK_S = 2.0  # allowed difference between spans and the wall clock, which is slewed all the time
LONG_S = 120.0  # after longer without a reading or a miss, nobody looked: a machine slept, or a scraper was down
LONGEST_INTERVAL_S = 300.0  # Prometheus shows no sample that is older, so nobody scrapes less often
MOST_AWAY_S = 31 * 86_400.0  # after a longer absence start again: the machine was hardly paid for, or a clock was wrong
STARTED_AGAIN = "started again: what it counted between its last reading and its end is not known"
STRANGERS_BELIEVED = 3  # after this many readings in a row another process is the server, from the first of them on


class Watch:
    """A server's last readings, and up to when its time is booked."""

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
        self.booked_until = float("-inf")  # how far the ledger has a server that disappeared and came back
        self.named: Reading | None = None  # the first reading that named the model of a server without one
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
        """Return spans up to readings that came. ``born`` is when the server began, if it is known to be new."""
        readings = self._name_model(readings)
        self._refuse_strangers(readings)
        said = None
        if self.until is not None and self._steady is None and wall - self.until > MOST_AWAY_S:
            self.readings, self.until = {}, None
            said = "the last meter ended more than a month ago: counting starts anew"
        self._take_first_counts(readings)
        if self.until is None and born is not None:
            born = min(born, wall)  # its clock may be ahead of ours
            self.until, self._steady = born, steady - (wall - born)
        elif self.until is None and self.readings:
            # It had left and is back: count its tokens meanwhile, but not the time.
            self.until, self._steady, self._missing = wall, steady, True
        if self.up and readings:
            self._intervals.append(readings[0].at - self.last_at)
        spans: list[PaidTime] = []
        if self.until is not None:
            stretch = self._stretch(self.until, wall, steady)
            changes = [change_between(self.readings.get(reading.model), reading) for reading in readings]
            said = "; ".join(filter(None, [said, *self._oddities(changes, self.until - stretch.start)])) or None
            spans = spans_between(changes, stretch)
            self.until = stretch.start + stretch.seconds
            self.readings |= {change.now.model: change.carried for change in changes}
        else:
            self.until = wall
            self.readings = {reading.model: reading for reading in readings}
        self._pass_time(steady, missing=False)
        self.up, self.said = True, said
        return spans

    def _oddities(self, changes: Sequence[ReadingChange], back_s: float) -> Iterator[str | None]:
        """Yield notes about time and tokens that are doubtful or not known."""
        if back_s > 0:
            yield f"the clock was set back by {seconds(back_s)}"
        yield next((change.fell for change in changes if change.fell), None)
        models = {reading.model for reading in self.current if reading.engine}
        swapped = bool(models) and models.isdisjoint(change.now.model for change in changes)
        if swapped or any(change.is_another for change in changes if change.before and change.before.engine):
            yield STARTED_AGAIN

    def missed(self, why: Missed, wall: float, steady: float) -> list[PaidTime]:
        """Return spans up to a reading that did not come: paid, but unknown."""
        self.misses += 1
        self.up, self.said = False, why.what
        if self.until is None:
            # Its engine and model are not known yet, but it is paid for.
            self.readings = self.readings or {"": Reading(self.target, "", "", wall, {}, labels=self._labels)}
            self.until, self._steady, self._missing = wall, steady, True
        if self._steady is None and wall - self.until > MOST_AWAY_S:
            return []
        stretch = self._stretch(self.until, wall, steady)
        if stretch.watched is WatchedSpan.seen:
            stretch = stretch._replace(watched=WatchedSpan.gap)
        spans = empty_spans(self.current, stretch)
        self.until = stretch.start + stretch.seconds
        self._pass_time(steady, missing=True)
        return spans

    def _pass_time(self, steady: float, missing: bool) -> None:
        """Never go back: a scrape that comes after its time was booked as a gap must not be paid again."""
        self._steady, self._missing = steady if self._steady is None else max(self._steady, steady), missing

    @property
    def current(self) -> list[Reading]:
        """Return the models on its newest page. The counters of others are kept, but they have no share of the time."""
        newest = max((reading.at for reading in self.readings.values()), default=None)
        return [reading for reading in self.readings.values() if reading.at == newest]

    @property
    def last_at(self) -> float:
        """Return when its newest booked reading was made."""
        return max((reading.at for reading in self.readings.values() if reading.engine), default=self.booked_until)

    @property
    def patience_s(self) -> float:
        """Return how long between two readings still counts as watched: a Prometheus may scrape every few minutes."""
        usual_s = min(self._intervals) if len(self._intervals) == 2 and self._after_patience is WatchedSpan.gap else 0.0
        return max(self._patience_s, 1.5 * min(usual_s, LONGEST_INTERVAL_S))

    def _stretch(self, until: float, wall: float, steady: float) -> Stretch:
        """Return the time since ``until``; an absence costs what the server cost before it."""
        if self._steady is None:
            # Follow a clock that was set back meanwhile: the next absence is measured from there.
            return Stretch(WatchedSpan.away, min(until, wall), max(0.0, wall - until), self._booked_usd_per_hour)
        seconds = max(0.0, steady - self._steady)
        skipped = wall - seconds - until
        start = until + skipped if abs(skipped) > CLOCK_SLACK_S else until
        watched = WatchedSpan.seen if seconds <= self.patience_s else self._after_patience
        return Stretch(WatchedSpan.gap if self._missing else watched, start, seconds, self.usd_per_hour)

    def _name_model(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Keep the model of a server that names it on another page, which may fail; its counters are the same."""
        if len(readings) != 1 or len(self.current) != 1:
            return readings
        (now,), (known,) = readings, self.current
        if not now.model:
            return [replace(now, model=known.model)]
        if not known.model and known.engine:
            others = {model: reading for model, reading in self.readings.items() if model}
            self.readings, self.named = others | {now.model: replace(known, model=now.model)}, now
        return readings

    def _take_first_counts(self, readings: Sequence[Reading]) -> None:
        """Count all of a server that did not answer before if it began meanwhile, else only what comes from now on."""
        unread = self.readings.get("")
        if unread is None or unread.engine:
            return
        began = [reading.started for reading in readings if reading.started is not None]
        ours = bool(began) and min(began) >= unread.at
        self.readings, self.named = {} if ours else {reading.model: reading for reading in readings}, readings[0]

    def _refuse_strangers(self, readings: Sequence[Reading]) -> None:
        known = self.readings
        if not any(new.model in known and is_stranger(known[new.model], new) for new in readings):
            self._strangers = []
            return
        if self._strangers and self._strangers[0][0].started != readings[0].started:
            self._strangers = []
        self._strangers.append(readings)
        if len(self._strangers) < STRANGERS_BELIEVED:
            raise Missed("another process answers at this address, beside the one before: a load balancer?")
        # What it did before its first reading may not be ours.
        self.readings |= {stranger.model: stranger for stranger in self._strangers[0]}
        self._strangers = []


class Frontends:
    """The models that engines serve, and the frontends that were left out for them."""

    def __init__(self) -> None:
        self._served: set[str] = set()
        self._left_out: set[tuple[str, str]] = set()

    def learn(self, readings: Iterable[Reading]) -> None:
        """Remember what engines serve: even while one is away, its frontend has counted the same tokens."""
        self._served |= _models_of_engines(readings)

    def without(self, readings: Sequence[Reading], watched: Iterable[Reading] = ()) -> list[Reading]:
        """Leave out frontends for models that engines report, now or when they were ``watched`` before."""
        if not any(reading.engine in FRONTENDS for reading in readings):
            return list(readings)
        served = self._served | _models_of_engines(watched)

        def is_counted_twice(reading: Reading) -> bool:
            return reading.engine in FRONTENDS and reading.model.casefold() in served

        self._left_out |= {(reading.target, reading.model) for reading in readings if is_counted_twice(reading)}
        return [reading for reading in readings if not is_counted_twice(reading)]

    def forget_notes(self) -> None:
        """Begin a new round: notes are about the last one."""
        self._left_out = set()

    @property
    def notes(self) -> list[str]:
        return [
            f"{target}: left out for {model or 'its unnamed model'}, whose engines are metered and count the same"
            for target, model in sorted(self._left_out)
        ]


def _models_of_engines(readings: Iterable[Reading]) -> set[str]:
    return {reading.model.casefold() for reading in readings if reading.engine and reading.engine not in FRONTENDS}
