"""Long work: its events come in order, cancelling kills, limits hold, and the server outlives its workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

import pytest
from starlette.testclient import TestClient
from tests.web.page_events import events_of

from tokonomics.guarded.worker import guarded_pool, memory_of_worker
from tokonomics.web.safety import Gate
from tokonomics.web.service import Event, Jobs
from tokonomics.workers import (
    Broken,
    Busy,
    Cancelled,
    NoWorker,
    Pool,
    Task,
    TaskRefused,
    TaskTimeout,
    WorkerDied,
)

TOLD, BADLY = "tests.web.told_worker:begin", "tests.web.told_worker:begin_badly"
ROOM = 10**9
LONG_ENOUGH_S = 60
ENDLESS = {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:50", "requests": 20_000_000,
           "input": "lognormal:mean=500,cv=1", "output": "lognormal:mean=200,cv=1"}  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """One worker that does as it is told, and room for two tasks."""
    made = guarded_pool(1, 2, tmp_path, ROOM, begin=TOLD)
    yield made
    made.close()


class Asked(Task):
    """A task whose start can be waited for."""

    def __init__(self, what: str, limit_s: float = LONG_ENOUGH_S) -> None:
        self.heard: list[str] = []
        self.began = threading.Event()
        super().__init__({"what": what}, limit_s, say=self._hear)

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self.began.set()


def pid_of(pool: Pool) -> int:
    task = Asked("answer")
    pool.submit(task)
    return int(json.loads(task.done.result(LONG_ENOUGH_S))["pid"])


@pytest.fixture
def running(pool: Pool) -> Asked:
    """A task without end that the worker has begun."""
    task = Asked("hang")
    pool.submit(task)
    task.began.wait(LONG_ENOUGH_S)
    return task


def test_cancelling_kills_the_worker_and_a_new_one_takes_its_place(pool: Pool) -> None:
    before = pid_of(pool)
    assert pid_of(pool) == before
    task = Asked("hang")
    pool.submit(task)
    task.began.wait(LONG_ENOUGH_S)
    task.cancel()
    assert isinstance(task.done.exception(LONG_ENOUGH_S), Cancelled)
    assert pid_of(pool) != before
    assert not Path(f"/proc/{before}").exists()


@pytest.mark.parametrize("leave", [Task.cancel, Task.drop])
def test_who_leaves_costs_neither_a_worker_nor_who_is_served(
    pool: Pool, running: Asked, leave: Callable[[Task], None]
) -> None:
    (worker,) = pool._workers
    waiting, unheard = Asked("answer"), Asked("answer")
    pool.submit(waiting)
    pool.submit(unheard)
    leave(waiting)
    unheard.done.cancel()
    running.drop()
    assert isinstance(waiting.done.exception(LONG_ENOUGH_S), Cancelled)
    assert not running.done.done()
    assert worker.alive()
    running.cancel()
    assert pid_of(pool)
    assert unheard.heard == []


@pytest.mark.parametrize(
    ("what", "limit_s", "problem"),
    [
        ("hang", 0.1, TaskTimeout),
        ("die", LONG_ENOUGH_S, WorkerDied),
        ("overreach", LONG_ENOUGH_S, WorkerDied),  # inside polars a failed allocation ends the process
        ("exhaust", LONG_ENOUGH_S, TaskRefused),
    ],
)
def test_a_worker_that_a_task_used_up_is_replaced(
    pool: Pool, what: str, limit_s: float, problem: type[Exception]
) -> None:
    before, task = pid_of(pool), Asked(what, limit_s)
    pool.submit(task)
    assert type(task.done.exception(LONG_ENOUGH_S)) is problem
    assert pid_of(pool) != before


def test_a_full_queue_refuses_at_once_and_closing_ends_what_runs_and_what_waits(pool: Pool, running: Asked) -> None:
    waiting = [Asked("answer"), Asked("answer")]
    for task in waiting:
        pool.submit(task)
    with pytest.raises(Busy):
        pool.submit(Asked("answer"))
    pool.close()
    assert all(task.done.exception(LONG_ENOUGH_S) for task in (running, *waiting))


def test_no_worker_is_started_once_the_end_has_come() -> None:
    """Three threads wait for their turn to start one; on a busy machine each start would take seconds."""
    turn, started = threading.Lock(), list[int]()

    def start() -> NoReturn:
        started.append(1)
        raise OSError

    pool = Pool(start, turn=turn)
    with turn:
        pool.grow(3)
        closing = threading.Thread(target=pool.close)
        closing.start()
        with pytest.raises(Busy):  # noqa: PT012 - as soon as it is closed
            while True:
                pool.submit(Asked("answer"))
                time.sleep(0.001)
    closing.join(LONG_ENOUGH_S)
    assert not closing.is_alive()
    assert started == []


def test_a_refusal_keeps_its_words_and_a_fault_is_no_refusal(pool: Pool) -> None:
    refused, broken = Asked("refuse"), Asked("break")
    pool.submit(refused)
    pool.submit(broken)
    problem = refused.done.exception(LONG_ENOUGH_S)
    assert isinstance(problem, TaskRefused)
    assert (problem.what, problem.where, problem.fix) == ("no", "--x", "yes")
    assert isinstance(broken.done.exception(LONG_ENOUGH_S), Broken)


def test_where_no_worker_starts_the_task_hears_why(tmp_path: Path) -> None:
    pool = guarded_pool(1, 1, tmp_path, ROOM, begin=BADLY)
    task = Asked("answer")
    pool.submit(task)
    problem = task.done.exception(LONG_ENOUGH_S)
    pool.close()
    assert isinstance(problem, NoWorker)
    assert "ended with exit code 3" in str(problem)


def test_a_worker_that_died_while_idle_costs_no_task(pool: Pool) -> None:
    before = pid_of(pool)
    os.kill(before, signal.SIGKILL)
    for worker in list(pool._workers):
        while worker.alive():
            continue
    assert pid_of(pool) != before


def plainly(done: Future[bytes]) -> Event:
    """In place of the service's own words."""
    return Event("answer", b"{}" if done.exception() else done.result())


@pytest.mark.parametrize("watched", [True, False])
def test_a_job_that_nobody_watches_is_stopped(pool: Pool, monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    monkeypatch.setattr("tokonomics.web.service.ABANDONED_S", 0.0)
    job = Jobs(pool, per_client=1).start("client", {"what": "hang"}, LONG_ENOUGH_S, plainly)

    async def look_once() -> None:
        watching = job.stream()
        assert await anext(watching)
        await watching.aclose()

    if watched:
        asyncio.run(look_once())
    assert isinstance(job.task.done.exception(LONG_ENOUGH_S), Cancelled)


def test_large_answers_are_forgotten_sooner(pool: Pool) -> None:
    jobs = Jobs(pool, per_client=1, kept_bytes=1)
    first = jobs.start("client", {"what": "answer"}, LONG_ENOUGH_S, plainly)
    first.task.done.result(LONG_ENOUGH_S)
    jobs.start("client", {"what": "answer"}, LONG_ENOUGH_S, plainly)
    assert jobs.find(first.id) is None


class SeenTooEarly(Future[bytes]):
    """Whoever looks sees it unfinished: as between looking and settling."""

    def done(self) -> bool:
        return False


def test_a_task_settles_once_whoever_comes_first() -> None:
    """The worker's answer, the clock and whoever waits may all end a task at the same moment."""
    given_up = Task({}, LONG_ENOUGH_S, done=SeenTooEarly())
    given_up.done.cancel()
    given_up._finish(b"x")
    assert given_up.done.cancelled()
    answered = Task({}, LONG_ENOUGH_S, done=SeenTooEarly())
    answered._finish(b"x")
    answered.cancel()
    answered._finish(TaskTimeout("too late"))
    assert answered.done.result() == b"x"


def test_a_listener_that_fails_costs_no_worker(pool: Pool) -> None:
    def deaf(what: str) -> None:
        raise RuntimeError("nobody listens")

    task = Task({"what": "answer"}, LONG_ENOUGH_S, say=deaf)
    pool.submit(task)
    assert isinstance(task.done.exception(LONG_ENOUGH_S), Broken)
    assert pid_of(pool)


def test_a_task_goes_to_a_worker_that_is_not_warming_up(tmp_path: Path) -> None:
    """Two workers, and a warm-up without end: it holds up one of them alone, and tasks go to the other."""
    pool = guarded_pool(2, 2, tmp_path, ROOM, begin=TOLD, warm_ups=["plan"])
    try:
        assert all(pid_of(pool) for _ in range(5))
    finally:
        pool.close()


@pytest.mark.parametrize("fenced", [True, False])
def test_workers_do_not_know_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool) -> None:
    hub = ["HF_TOKEN", "HF_TOKEN_PATH"]
    for name in ("TOKONOMICS_TOKEN", *hub):
        monkeypatch.setenv(name, "a-token-of-some-length")
    pool = guarded_pool(1, 1, tmp_path if fenced else None, ROOM, begin=TOLD)
    task = Asked("answer")
    pool.submit(task)
    # On the command line's side of the fence the hub is asked as the command line does.
    assert json.loads(task.done.result(LONG_ENOUGH_S))["secrets"] == ([] if fenced else hub)
    pool.close()


def test_a_worker_ends_in_the_middle_of_its_work_when_the_server_is_gone(tmp_path: Path) -> None:
    """By its line alone, as on systems that tell no process of its parent's end."""
    busy = "import os, sys, threading\nfrom tokonomics.workers import end_with_the_parent\n"
    busy += "sys.platform = 'other'\nend_with_the_parent(0)\nos.write(1, b'x')\nthreading.Event().wait()\n"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.read(1) == b"x"
        process.stdin.close()
        assert process.wait(LONG_ENOUGH_S) == 0


@pytest.mark.parametrize(
    ("workers", "whole_gib", "each_gib"), [(3, 64, 6), (3, 16, 0.8 * 16 / 3), (8, 4, 1), (2, 2, 1)]
)
def test_workers_share_the_machines_memory(workers: int, whole_gib: float, each_gib: float) -> None:
    assert memory_of_worker(workers, int(whole_gib * 2**30)) == pytest.approx(each_gib * 2**30, rel=1e-6)


def test_cancelling_a_simulation_kills_it_and_the_server_answers_meanwhile(page: TestClient, gate: Gate) -> None:
    id = page.post("/api/v1/jobs", json={"verb": "simulate", "inputs": ENDLESS}).json()["id"]
    job = gate.service.jobs.find(id)
    assert job
    assert page.post("/api/v1/answers/curve", json={"model": "qwen3-8b", "gpu": "H100"}).status_code == 200
    assert page.get(f"/api/v1/jobs/{id}").json() == {"id": id, "state": "running"}
    assert page.delete(f"/api/v1/jobs/{id}").status_code == 204
    events = events_of(page, id)
    assert events[-1] == ("cancelled", {})
    assert [name for name, _ in events[:-1]] == ["progress"] * (len(events) - 1)
    assert page.get(f"/api/v1/jobs/{id}").json()["state"] == "cancelled"
    assert page.delete(f"/api/v1/jobs/{id}").status_code == 204


def test_who_looks_again_sees_what_came_since(page: TestClient) -> None:
    wrong = {"model": "llama-3.1-8b", "gpu": "H100", "trace": "azure-conv", "arrivals": "poisson:1"}
    id = page.post("/api/v1/jobs", json={"verb": "simulate", "inputs": wrong}).json()["id"]
    everything = events_of(page, id)
    assert everything[-1][0] == "failed"
    assert everything[-1][1]["error"]["where"] == "arrivals"

    def since(seen: str) -> tuple[int, str]:
        reply = page.get(f"/api/v1/jobs/{id}/events", headers={"last-event-id": seen})
        return reply.status_code, reply.text

    assert since("0")[1].startswith("id: 1\n")
    for seen in (str(len(everything) - 1), "99", "999999999999"):
        assert since(seen) == (200, "")


def test_a_job_nobody_started_is_not_there(page: TestClient) -> None:
    for method, path in (("GET", "/api/v1/jobs/x"), ("GET", "/api/v1/jobs/x/events"), ("DELETE", "/api/v1/jobs/x")):
        assert page.request(method, path).status_code == 404


def test_wrong_inputs_are_refused_before_a_job_is_made(page: TestClient) -> None:
    for body in (
        {"verb": "simulte", "inputs": {}},
        {"verb": "simulate", "inputs": {"gpu": 3, "x": 1}},
        {"verb": "web"},
    ):
        reply = page.post("/api/v1/jobs", json=body)
        assert reply.status_code == 422
        assert reply.json()["error"]["what"]
