"""Handing out points: every one of them ends exactly once, whatever its workers do."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.sweep.crew import Crew, NoWorkers, answer, outcomes
from tokonomics.sweep.outcome import PointOutcome, Status
from tokonomics.sweep.points import SweepPoint
from tokonomics.sweep.view import SweepClock, progress
from tokonomics.workers import Replied, Spent, Task, WorkerDied


class Scripted(Crew):
    """Workers without processes: ``deaths`` says how often each point kills whoever is asked it."""

    def __init__(self, deaths: dict[str, int], workers: int = 3, stillborn: int = 0) -> None:
        super().__init__(lambda: ScriptedWorker(self), workers)
        self.deaths, self.stillborn = dict(deaths), stillborn
        self.asked: Counter[str] = Counter()
        self.dismissed = 0
        self.counting = threading.Lock()


class ScriptedWorker:
    """Answers at once, dies, or waits until its time is over."""

    def __init__(self, crew: Scripted) -> None:
        self._crew, self._point, self._hangs = crew, "", False

    def alive(self) -> bool:
        return True

    def ask(self, request: dict[str, Any]) -> None:
        self._point = request["id"]
        with self._crew.counting:
            self._crew.asked[self._point] += 1

    def hear(self, timeout_s: float | None) -> Replied | None:
        crew, point = self._crew, self._point
        with crew.counting:
            dies = crew.deaths.get(point, 0) > 0 if point else crew.stillborn > 0
            crew.deaths[point] = crew.deaths.get(point, 0) - (point != "" and dies)
            crew.stillborn -= not point and dies
        if dies:
            raise WorkerDied("killed")
        self._hangs = crew.deaths.get(point) == -1  # it never answers
        return None if self._hangs else Replied(json.dumps(asdict(PointOutcome(Status.OK, answer=point))).encode())

    def kill(self) -> None: ...

    def end(self) -> None:
        self._crew.dismissed += self._hangs


def ended(
    crew: Scripted, points: int, limit_s: float = 1e6, on_ready: Callable[[], None] = lambda: None
) -> list[tuple[str, PointOutcome]]:
    """What became of p0, p1 and so on."""
    asked = [SweepPoint(place, f"p{place}", {}, {"id": f"p{place}"}) for place in range(points)]
    with closing(crew):
        return [(point.id, outcome) for batch in outcomes(crew, asked, limit_s, on_ready) for point, outcome in batch]


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_every_point_ends_once_and_is_asked_at_most_twice(deaths: list[int], workers: int) -> None:
    crew = Scripted({f"p{place}": times for place, times in enumerate(deaths)}, workers)
    every = ended(crew, len(deaths))
    assert len(every) == len(deaths)
    for place, times in enumerate(deaths):
        expected = Status.OK if times < crew.tries else Status.FAILED
        assert dict(every)[f"p{place}"].status is expected
        assert crew.asked[f"p{place}"] == min(times + 1, crew.tries)
    assert crew.lost == sum(min(times, crew.tries) for times in deaths)


class AtOnce(Scripted):
    """All that it is asked is answered before anybody looks."""

    def submit(self, task: Task) -> None:
        task._finish(json.dumps(asdict(PointOutcome(Status.OK))).encode())


def test_what_ends_is_handed_on_every_second_however_much_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by 0.3 s whenever it is read: who kills the sweep loses no more than a second's work."""
    now = itertools.count(0.0, 0.3)
    monkeypatch.setattr("tokonomics.sweep.crew.time", SimpleNamespace(monotonic=lambda: next(now)))
    points = [SweepPoint(place, f"p{place}", {}, {"id": f"p{place}"}) for place in range(30)]
    with closing(AtOnce({})) as crew:
        batches = [len(batch) for batch in outcomes(crew, points, 1e6)]
    assert sum(batches) == 30
    assert max(batches) <= 4


def test_an_answer_belongs_to_its_own_point() -> None:
    crew = Scripted({"p3": 1, "p5": 1})
    assert all(outcome.answer == id for id, outcome in ended(crew, 9))


def test_a_point_out_of_time_loses_its_worker_and_is_not_asked_again() -> None:
    crew = Scripted({"p1": -1})
    found = dict(ended(crew, 3, limit_s=0.05))
    assert found["p1"].status is Status.FAILED
    assert "longer than 0.05 s" in str(found["p1"].error)
    assert (crew.asked["p1"], crew.dismissed) == (1, 1)
    assert found["p0"].status is found["p2"].status is Status.OK


def test_workers_that_cannot_start_end_the_sweep_with_the_reason() -> None:
    with pytest.raises(NoWorkers, match="killed"):
        ended(Scripted({}, stillborn=9), 3)


def test_two_workers_that_fail_to_start_are_replaced() -> None:
    assert sorted(id for id, _ in ended(Scripted({}, stillborn=2), 3)) == ["p0", "p1", "p2"]


def test_a_point_that_took_all_memory_costs_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it after a failed allocation might fail the next point."""

    def ask(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tokonomics.questions.verbs.Verb.answer", ask)
    with pytest.raises(Spent) as spent:
        answer("plan", {"model": "llama-3.1-8b"})
    assert spent.value.args[0]["status"] == "failed"
    assert "--memory" in spent.value.args[0]["error"]


def test_the_clock_starts_with_the_first_worker_that_is_ready() -> None:
    """Once, after those that died before they were, and before anything is asked."""
    crew = Scripted({"p1": 1}, stillborn=2)
    asked_before: list[int] = []
    ended(crew, 4, on_ready=lambda: asked_before.append(crew.asked.total()))
    assert asked_before == [0]


def test_the_start_of_workers_is_no_part_of_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """100 s until a worker is ready, then 10 s for the first of three points: 20 s are left."""
    now = [0.0]
    clock = SweepClock(lambda: now[0])
    with progress(3, 0, 1, clock) as advance:
        now[0] = 100.0
        clock.start()
        now[0] = 110.0
        clock.start()
        advance(1, 0)
    assert "1/3 points; about 20 s left" in capsys.readouterr().err
