"""Keep what a server did in windows of ten minutes: counts, dollars, memory, histograms of latencies and lengths.

A window is the sum of the spans of paid time that begin in it, with what the ledger of dollars does not need: the
engine's histograms, time per token, and gauges. Windows add up, so that older ones become hours. They are written in
the transaction of their spans: whatever ends the meter, a window has just what the spans have.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from pydantic import Field, field_serializer

from tokonomics.measure.meter.readings import STEPS, Counted
from tokonomics.measure.meter.spans import BEYOND, Buckets, Glimpse, PaidTime, cut_every, tally
from tokonomics.measure.meter.state import MeterTally
from tokonomics.types import Noun

WINDOW_S = 600.0


class ServedWindow(Noun):
    """What one model on one server did in a period."""

    target: str
    model: str
    engine: str
    start: float  # unix seconds, a multiple of ten minutes
    labels: dict[str, str] = Field(default_factory=dict)
    sums: MeterTally = MeterTally()
    tpot_s: float = 0.0
    tpot_count: float = 0.0
    prompt_s: float = 0.0
    step_s: float = 0.0
    step_count: float = 0.0
    step_answers: float = 0.0
    watched_s: float = 0.0
    gauged_s: float = 0.0
    kv_share_s: float = 0.0
    kv_peak: float = 0.0
    waiting_s: float = 0.0
    buckets: dict[Counted, dict[float, float]] = Field(default_factory=dict)
    started: float | None = None  # of the newest process in it
    restarts: int = 0
    states: dict[str, str] = Field(default_factory=dict)

    @field_serializer("sums")
    def _counted(self, sums: MeterTally) -> dict[str, float]:
        """Write what was summed, and not what is computed from it."""
        return {name: value for name, value in sums.__dict__.items() if value}

    @property
    def key(self) -> tuple[str, str, float]:
        return self.target, self.model, self.start

    @property
    def requests(self) -> float:
        """Return the requests that got their first token, or that ended where first tokens are not counted."""
        return self.sums.ttft_count or self.sums.answered

    @property
    def seen_requests(self) -> float:
        """Return those that came while the server was watched: what was counted over a gap came in time nobody saw."""
        tokens = self.sums.billed_tokens
        unseen = self.sums.unseen_tokens / tokens if tokens > 0 else 0.0
        return self.requests * (1 - min(1.0, unseen))

    @property
    def seen_s(self) -> float:
        """Return this model's part of the seconds in which its server was watched."""
        return self.sums.busy_s + self.sums.idle_s

    @property
    def is_shared(self) -> bool:
        """Tell whether other models of the server had more than a tenth of its time."""
        return self.seen_s < 0.9 * self.watched_s


def quantile(buckets: Buckets, share: float) -> float | None:
    """Return a quantile of a histogram, even within a bucket, as Prometheus' ``histogram_quantile`` does.

    Values beyond the last finite bound count as that bound.
    """
    total = sum(buckets.values())
    if total <= 0:
        return None
    wanted, below, low = share * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if below + count >= wanted and count > 0:
            return low if bound == BEYOND else low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return low


class OpenWindows:
    """The windows that are open, each until a span of the next one comes."""

    def __init__(self, known: Callable[[str, str, float], ServedWindow | None], length_s: float = WINDOW_S) -> None:
        """``known`` looks a window up that was written before: by another meter, or before the clock was set back."""
        self._known, self._length_s = known, length_s
        self._open: dict[tuple[str, str], ServedWindow] = {}

    def add(self, spans: Iterable[PaidTime]) -> list[ServedWindow]:
        """Add spans and return the windows that changed."""
        changed: dict[tuple[str, str, float], ServedWindow] = {}
        for span in spans:
            *earlier, last = cut_every(span, self._length_s)
            for piece in (*(replace(piece, glimpse=None) for piece in earlier), last):
                now = self._at(piece)
                now = with_glimpse(now, piece.glimpse, tally(piece))
                self._open[piece.target, piece.model] = changed[now.key] = now
        return list(changed.values())

    def _at(self, piece: PaidTime) -> ServedWindow:
        start = piece.start // self._length_s * self._length_s
        window = self._open.get((piece.target, piece.model))
        if window is None or window.start != start:
            window = self._known(piece.target, piece.model, start)
        return window or ServedWindow(
            target=piece.target, model=piece.model, engine=piece.engine, start=start, labels=dict(piece.labels)
        )

    def forget(self, targets: Iterable[str]) -> None:
        gone = set(targets)
        self._open = {key: window for key, window in self._open.items() if key[0] not in gone}


def with_glimpse(window: ServedWindow, seen: Glimpse | None, sums: MeterTally) -> ServedWindow:
    """Return the window with an interval added."""
    if seen is None:
        return window.model_copy(update={"sums": window.sums + sums})
    restarted = None not in (window.started, seen.started) and window.started != seen.started
    return window.model_copy(
        update={
            "sums": window.sums + sums,
            **{name: getattr(window, name) + getattr(seen, name) for name in _ADDED},
            "kv_peak": max(window.kv_peak, seen.kv_peak),
            "buckets": _together(window.buckets, seen.buckets),
            "started": seen.started if seen.started is not None else window.started,
            "restarts": window.restarts + (restarted or seen.is_another),
            "states": dict(seen.states) or window.states,
        }
    )


_ADDED = ("tpot_s", "tpot_count", "prompt_s", *STEPS, "watched_s", "gauged_s", "kv_share_s", "waiting_s")


def joined(one: ServedWindow, other: ServedWindow, start: float) -> ServedWindow:
    """Return two windows of a server as one, which begins at ``start``; ``other`` is the later one."""
    added = {name: getattr(one, name) + getattr(other, name) for name in (*_ADDED, "restarts")}
    restarted = None not in (one.started, other.started) and one.started != other.started
    return other.model_copy(
        update={
            **added,
            "start": start,
            "sums": one.sums + other.sums,
            "kv_peak": max(one.kv_peak, other.kv_peak),
            "buckets": _together(one.buckets, other.buckets),
            "restarts": added["restarts"] + restarted,
        }
    )


def _together(one: Mapping[Counted, Buckets], other: Mapping[Counted, Buckets]) -> dict[Counted, dict[float, float]]:
    return {
        kind: {
            bound: one.get(kind, {}).get(bound, 0.0) + other.get(kind, {}).get(bound, 0.0)
            for bound in {*one.get(kind, {}), *other.get(kind, {})}
        }
        for kind in {**one, **other}
    }
