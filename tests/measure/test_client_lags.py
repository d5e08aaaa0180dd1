"""What the client of the load test says it adds is what it adds, by the clocks of those who send to it."""

import asyncio
import socket
import time
from collections.abc import Iterator
from threading import Timer

import numpy as np
import pytest
from tests.measure.timed_server import TimedSender, stamps, timed_server
from tests.there import there

from tokonomics.addresses import target
from tokonomics.measure.bench import client
from tokonomics.measure.bench.client import Client, LoopTurns, Reply, own_delay, run_in_turns
from tokonomics.measure.bench.loads import LoadWindow, point_of
from tokonomics.measure.bench.sessions import BenchPrompts

Pipe = tuple[socket.socket, socket.socket]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = socket.socketpair()
    with reading, writing:
        yield reading, writing


def test_what_is_found_at_once_came_before(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for at 10.00 and 10.08, handed on at 10.10 after another look: it came at 10.04, give or take 40 ms."""
    now_s = 10.0
    monkeypatch.setattr(client, "perf_counter", lambda: now_s)
    reading, writing = pipe
    with LoopTurns() as turns:
        assert turns.waited_s(11.0) == 0, "nobody has looked"
        turns.register(reading, 1)
        turns.select(0)
        writing.send(b"first")
        now_s = 10.08
        assert len(turns.select(0)) == 1
        now_s = 10.09
        turns.select(0)
        assert turns.waited_s(10.10) == pytest.approx(0.06)


def test_what_was_waited_for_has_just_come(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(client, "perf_counter", lambda: now_s)
    reading, writing = pipe

    def send() -> None:
        nonlocal now_s
        now_s = 20.5
        writing.send(b"first")

    with LoopTurns() as turns:
        turns.register(reading, 1)
        turns.select(0)
        now_s = 20.0
        later = Timer(0.2, send)
        later.start()
        assert len(turns.select(None)) == 1
        later.join()
        turns.select(0)
        assert turns.waited_s(20.501) == pytest.approx(0.001)
        assert turns.idle_s == pytest.approx(0.5)


def test_the_own_part_is_told_from_a_twentieth_on() -> None:
    assert own_delay([], []) is None
    assert own_delay([0.004] * 9, [0.1] * 9) is None
    assert "60 ms of 160 ms (p50)" in (own_delay([0.06] * 9, [0.16] * 9) or "")


def test_a_client_that_waits_for_a_connection_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second from asking to writing, of which 0.4 s had nothing to do."""

    class Network:
        async def write(self, _: bytes) -> None:
            pass

    with LoopTurns() as turns:
        reply = Reply(due_s=10.0, sent_s=10.0)
        body = client._TimedBody(b"{}", reply, turns)
        turns.idle_s += 0.4
        monkeypatch.setattr(client, "perf_counter", lambda: 10.5)
        asyncio.run(body.write(Network()))  # type: ignore[arg-type]
    assert reply.held_s == pytest.approx(0.1)


def test_a_reply_does_not_count_retries_as_the_clients_own() -> None:
    reply = Reply(due_s=10.0, sent_s=10.01, held_s=0.02, first_s=11.0, waited_s=0.04)
    assert reply.own_s == pytest.approx(0.01 + 0.02 + 0.04)
    reply.retries = 1
    assert reply.own_s == pytest.approx(0.02 + 0.04)


class Blocking(TimedSender):
    """In the client's own loop: while it sends the first text the client can do nothing, for 40 ms."""

    shares: Iterator[float]

    def _first(self, asked: float, due: float, tokens: int, words: int) -> None:
        before = next(self.shares)
        time.sleep(0.04 * before)
        super()._first(asked, due, tokens, words)
        time.sleep(0.04 * (1 - before))


def test_a_client_that_is_blocked_for_a_known_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts come evenly over the time in which it is blocked, so that the middle is right on average."""
    monkeypatch.setattr(Blocking, "shares", iter(np.linspace(0.025, 0.975, 20).tolist()), raising=False)
    monkeypatch.setattr(Blocking, "ttft_s", 0.001)
    monkeypatch.setattr(Blocking, "tokens", 1)

    async def ask(turns: LoopTurns) -> list[Reply]:
        server = await asyncio.get_running_loop().create_server(Blocking, "127.0.0.1", 0)
        async with server:
            where = target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            prompts = BenchPrompts(where, "m", 0)
            async with Client(where, 60, 0, turns) as asking:
                return [
                    await asking.ask(prompts.of_words(8, 1), time.perf_counter(), keep_text=True) for _ in range(20)
                ]

    replies = run_in_turns(ask)
    waited = sum((reply.first_s or 0.0) - stamps(reply.text)[1] for reply in replies)
    assert waited > 20 * 0.04 / 2
    assert sum(reply.waited_s for reply in replies) == pytest.approx(waited, rel=0.3)
    window = LoadWindow(replies[0].due_s, opened_s=replies[0].due_s, closed_s=replies[-1].end_s, replies=replies)
    point = there(point_of(window))
    assert "the client was busy itself" in point.notes[0]


@pytest.mark.explore
@pytest.mark.parametrize("streams", [500, 1000])
def test_what_many_streams_cost_the_client_is_said(streams: int) -> None:
    """From its clock and the server's, in the same run, whatever else the machine does."""

    async def ask(turns: LoopTurns) -> list[Reply]:
        where = target(address)
        prompts, replies = BenchPrompts(where, "m", 0), []
        async with Client(where, 600, 0, turns) as asking:

            async def user() -> None:
                for is_warm in (False, True, True):
                    reply = await asking.ask(prompts.of_words(64, 16), time.perf_counter(), keep_text=True)
                    assert reply.error is None
                    if is_warm:
                        replies.append(reply)

            await asyncio.gather(*(user() for _ in range(streams)))
        return replies

    with timed_server(0.2, 0.05, 16) as address:
        replies = run_in_turns(ask)
    sending = [reply.sent_s - reply.due_s + reply.held_s for reply in replies]
    reading = [(reply.first_s or 0.0) - stamps(reply.text)[1] for reply in replies]
    own = np.add(sending, reading)
    said = [reply.own_s for reply in replies]
    assert np.percentile(said, 50) == pytest.approx(np.percentile(own, 50), rel=0.4)
    assert np.percentile(said, 99) == pytest.approx(np.percentile(own, 99), rel=0.4)
