"""Who takes what waits: the one that did the like before, unless it is busy."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tokonomics.workers import Busy, Task, WaitingLine

LONG_ENOUGH_S = 60.0


@dataclass(eq=False)
class Errand(Task):
    over: threading.Event = field(default_factory=threading.Event)


def named(*names: str) -> Errand:
    return Errand(None, LONG_ENOUGH_S, like=names)


class Crowd:
    """Threads that take errands and hold each until it is over; ``taken`` tells who took what."""

    def __init__(self, most: int = 0) -> None:
        self.line = WaitingLine(most)
        self.taken: queue.SimpleQueue[tuple[str, Errand]] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []

    def join(self, name: str) -> None:
        self.threads.append(threading.Thread(target=self._live, name=name, daemon=True))
        self.threads[-1].start()

    def _live(self) -> None:
        while errand := self.line.take():
            assert isinstance(errand, Errand)
            self.taken.put((threading.current_thread().name, errand))
            errand.over.wait(LONG_ENOUGH_S)

    def until_idle(self, count: int) -> None:
        until = time.monotonic() + LONG_ENOUGH_S
        while len(self.line._idle) < count and time.monotonic() < until:
            time.sleep(0.001)

    def who_takes(self, errand: Errand) -> str:
        self.line.put(errand)
        return self.taken.get(timeout=LONG_ENOUGH_S)[0]


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    made.line.close()
    for thread in made.threads:
        thread.join(LONG_ENOUGH_S)


def test_who_did_it_before_does_it_again(crowd: Crowd) -> None:
    crowd.join("first")
    done = named("plan")
    assert crowd.who_takes(done) == "first"
    done.over.set()
    crowd.join("second")
    for _ in range(20):
        crowd.until_idle(2)
        again = named("other", "plan")
        assert crowd.who_takes(again) == "first"
        again.over.set()


def test_where_that_one_is_busy_another_does_it(crowd: Crowd) -> None:
    crowd.join("first")
    held = named("plan")
    assert crowd.who_takes(held) == "first"
    crowd.join("second")
    other = named("plan")
    assert crowd.who_takes(other) == "second"
    held.over.set()
    other.over.set()


def test_the_nearest_name_counts_though_another_did_the_next_one(crowd: Crowd) -> None:
    """Two answers beside each other: one client and verb, each solved by another worker, asked for their charts."""
    for name in ("first", "second"):
        crowd.join(name)
    a, b = named("a", "client"), named("b", "client")
    solved = {"a": crowd.who_takes(a), "b": crowd.who_takes(b)}
    assert sorted(solved.values()) == ["first", "second"]
    for held in (a, b):
        held.over.set()
    for key in "abab":
        crowd.until_idle(2)
        drawn = named(key, "client")
        drawn.over.set()
        assert crowd.who_takes(drawn) == solved[key]
    assert all(thread.is_alive() for thread in crowd.threads)


def test_what_waits_for_one_that_takes_another_is_anybodys(crowd: Crowd) -> None:
    crowd.join("first")
    done = named("plan")
    done.over.set()
    assert crowd.who_takes(done) == "first"
    crowd.join("second")
    for _ in range(20):
        crowd.until_idle(2)
        both = [named("plan"), named("plan")]
        with crowd.line._changed:  # both come before anybody wakes
            for errand in both:
                crowd.line.put(errand)
        taken = [crowd.taken.get(timeout=LONG_ENOUGH_S)[0] for _ in both]
        for errand in both:
            errand.over.set()
        assert sorted(taken) == ["first", "second"]


def test_what_came_first_is_taken_first(crowd: Crowd) -> None:
    errands = [named(str(place % 2)) for place in range(6)]
    for errand in errands:
        errand.over.set()
        crowd.line.put(errand)
    crowd.join("only")
    assert [crowd.taken.get(timeout=LONG_ENOUGH_S)[1] for _ in errands] == errands


def test_no_more_than_so_many_wait_and_none_after_the_end() -> None:
    line = WaitingLine(1)
    waits = named()
    line.put(waits)
    with pytest.raises(Busy):
        line.put(named())
    assert line.close() == [waits]
    with pytest.raises(Busy):
        line.put(named())
    assert line.take() is None


def test_those_that_are_over_give_way_where_the_line_is_full() -> None:
    line = WaitingLine(2)
    first, second = named(), named()
    line.put(first)
    line.put(second)
    first.cancel()
    line.put(last := named())
    assert line.close() == [second, last]
