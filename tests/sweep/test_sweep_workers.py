"""Handing out points: every one of them ends exactly once, whatever its workers do."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.sweep.outcome import Outcome, Status
from tokonomics.sweep.points import Point
from tokonomics.sweep.progress import Clock, progress
from tokonomics.sweep.workers import Done, Event, Gone, NoWorkers, Ready, Worker, outcomes


class Scripted:
    """Workers without processes: ``deaths`` says how often each point kills whoever is asked it."""

    tries = 2
    lost = 0

    def __init__(self, deaths: dict[str, int], workers: int = 3, stillborn: int = 0) -> None:
        self._deaths, self._workers, self._stillborn = dict(deaths), workers, stillborn
        self._names = itertools.count()
        self._alive: set[int] = set()
        self._events: list[Event] = []
        self.asked: Counter[str] = Counter()
        self.dismissed = 0

    def keep_up(self, wanted: int) -> None:
        while len(self._alive) < min(self._workers, wanted):
            name = next(self._names)
            self._alive.add(name)
            if self._stillborn:
                self._stillborn -= 1
                self._gone(name)
            else:
                self._events.append(Ready(name))

    def ask(self, worker: Worker, values: dict[str, Any]) -> None:
        key = values["id"]
        self.asked[key] += 1
        if self._deaths.get(key, 0) > 0:
            self._deaths[key] -= 1
            self._gone(worker)
        elif self._deaths.get(key) != -1:  # -1 never answers
            self._events.append(Done(worker, Outcome(Status.OK, answer=key)))

    def wait(self, timeout_s: float | None) -> list[Event]:
        now, self._events = self._events[:2], self._events[2:]
        return now

    def dismiss(self, worker: Worker) -> None:
        assert isinstance(worker, int)
        self.dismissed += 1
        self._alive.remove(worker)

    def close(self) -> None: ...

    def _gone(self, worker: Worker) -> None:
        assert isinstance(worker, int)
        self._alive.remove(worker)
        self._events.append(Gone(worker, "killed"))


def points(count: int) -> list[Point]:
    return [Point(place, f"p{place}", {}, {"id": f"p{place}"}) for place in range(count)]


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_every_point_ends_once_and_is_asked_at_most_twice(deaths: list[int], workers: int) -> None:
    crew = Scripted({f"p{place}": times for place, times in enumerate(deaths)}, workers)
    ended = {
        point.id: outcome for batch in outcomes(crew, points(len(deaths)), limit_s=1e6) for point, outcome in batch
    }
    assert len(ended) == len(deaths)
    for place, times in enumerate(deaths):
        expected = Status.OK if times < crew.tries else Status.FAILED
        assert ended[f"p{place}"].status is expected
        assert crew.asked[f"p{place}"] == min(times + 1, crew.tries)
    assert crew.lost == sum(min(times, crew.tries) for times in deaths)


def test_an_answer_belongs_to_its_own_point() -> None:
    crew = Scripted({"p3": 1, "p5": 1})
    for batch in outcomes(crew, points(9), limit_s=1e6):
        assert all(outcome.answer == point.id for point, outcome in batch)


def test_a_point_out_of_time_loses_its_worker_and_is_not_asked_again() -> None:
    crew = Scripted({"p1": -1})
    ended = {point.id: outcome for batch in outcomes(crew, points(3), limit_s=0.05) for point, outcome in batch}
    assert ended["p1"].status is Status.FAILED
    assert "longer than 0.05 s" in str(ended["p1"].error)
    assert (crew.asked["p1"], crew.dismissed) == (1, 1)
    assert ended["p0"].status is ended["p2"].status is Status.OK


def test_workers_that_cannot_start_end_the_sweep_with_the_reason() -> None:
    with pytest.raises(NoWorkers, match="killed"):
        list(outcomes(Scripted({}, stillborn=9), points(3), limit_s=1e6))


def test_two_workers_that_fail_to_start_are_replaced() -> None:
    ended = [point.id for batch in outcomes(Scripted({}, stillborn=2), points(3), limit_s=1e6) for point, _ in batch]
    assert sorted(ended) == ["p0", "p1", "p2"]


def test_the_clock_starts_with_the_first_worker_that_is_ready() -> None:
    """Once, after those that died before they were, and before anything is asked."""
    crew = Scripted({"p1": 1}, stillborn=2)
    asked_before: list[int] = []
    for _ in outcomes(crew, points(4), limit_s=1e6, on_ready=lambda: asked_before.append(crew.asked.total())):
        pass
    assert asked_before[0] == 0
    assert len(asked_before) == 1


def test_the_start_of_workers_is_no_part_of_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """100 s until a worker is ready, then 10 s for the first of three points: 20 s are left."""
    now = [0.0]
    clock = Clock(lambda: now[0])
    with progress(3, 0, 1, clock) as advance:
        now[0] = 100.0
        clock.start()
        now[0] = 110.0
        clock.start()
        advance(1, 0)
    assert "1/3 points; about 20 s left" in capsys.readouterr().err
