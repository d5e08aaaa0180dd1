"""The load test against servers on loopback: what it counts is what the server sent; what goes wrong is counted."""

import asyncio
import json
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.loopback import Loopback, chunk, loopback
from tests.there import refused, there

from tokonomics.addresses import target
from tokonomics.errors import BadInput
from tokonomics.measure.bench import client, loads
from tokonomics.measure.bench import run as bench_run
from tokonomics.measure.bench.client import AnswerStream, BadAnswer, LoopTurns
from tokonomics.measure.bench.loads import (
    Budget,
    LoadWindow,
    Stopping,
    closed_loop,
    half_width,
    open_seconds,
    point_of,
)  # fmt: skip
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

SHORT = Budget(requests=30, seconds=20)


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with loopback() as made:
        yield made


def bench(server: Loopback, behaviour: str, **asked: object) -> BenchmarkRun:
    settings = {"users": [2], "budget": SHORT, "input": "const:50", "output": "const:6"} | asked
    return run_bench(BenchSettings(target(server.url(behaviour)), **settings))  # type: ignore[arg-type]


def counted(run: BenchmarkRun) -> dict[str, int]:
    """All that was served, in and outside of the windows."""
    points = run.points
    return {
        "requests": sum((point.completed or 0) + point.outside.requests - point.outside.failed for point in points),
        "input": sum((point.input_tokens or 0) + point.outside.input_tokens for point in points),
        "output": sum((point.output_tokens or 0) + point.outside.output_tokens for point in points),
    }


LOADS: dict[str, dict[str, object]] = {
    "users": {"users": [1, 5]},
    "rates": {"users": [], "rates": [200.0, 400.0]},
    "trace": {"users": [], "trace": make_trace([0.0, 0.01, 0.02, 0.02], [40, 90, 8, 300], [5, 1, 9, 0])},
    "sweep": {"users": [], "sweep": True},
}


@pytest.mark.parametrize("load", LOADS)
def test_every_token_the_server_sent_is_counted_once(load: str) -> None:
    with loopback() as server:
        run = bench(server, "good", **LOADS[load])
        assert counted(run) == dict(server.sent)
        assert all(point.failed == 0 for point in run.points)


def test_prompts_have_about_the_length_asked_for(server: Loopback) -> None:
    point = bench(server, "good", input="const:333").points[0]
    assert point.mean_input_tokens == 333  # a word is a token here, and the template's seven are learned
    assert point.mean_output_tokens == 6
    assert point.cached_tokens == 5 * (point.completed or 0)


def lengths_sent(server: Loopback) -> tuple[list[int], list[int]]:
    """Prompts as the server counts them (a word is a token, its template seven) and answers, from the fourth on."""
    bodies = server.bodies[3:]
    return [len(body["messages"][0]["content"].split()) + 7 for body in bodies], [body["max_tokens"] for body in bodies]


def test_a_number_is_the_mean_of_what_is_sent_and_every_load_sends_the_same() -> None:
    with loopback() as server:
        bench(server, "good", users=[1, 1], input="300", output="40", budget=Budget(precision=1e-3, requests=40))
        prompts, answers = lengths_sent(server)
        assert sum(prompts[:32]) / 32 == pytest.approx(300, rel=0.01)
        assert sum(answers[:32]) / 32 == pytest.approx(40, rel=0.02)
        assert max(prompts) > 2 * min(prompts)
        half = len(prompts) // 2
        assert prompts[:32] == prompts[half : half + 32]


def test_no_request_is_longer_than_the_server_says_it_takes() -> None:
    with loopback() as server:
        server.max_model_len = 400
        run = bench(server, "good", users=[2], input="300", output="40", budget=Budget(precision=1e-3, requests=60))
        assert max(prompt + answer for prompt, answer in zip(*lengths_sent(server), strict=True)) <= 400
        assert any("400" in note for note in run.notes)


def test_equal_seeds_send_equal_prompts_of_which_no_two_begin_alike(server: Loopback) -> None:
    sent = []
    for _ in range(2):
        server.bodies.clear()
        bench(server, "good", users=[1], seed=7)
        sent.append([body["messages"][0]["content"] for body in server.bodies][:30])
    assert sent[0] == sent[1]
    assert len({" ".join(text.split()[:12]) for text in sent[0]}) == 30


def test_latencies_are_those_of_the_server(server: Loopback) -> None:
    """Six tokens, five milliseconds apart: what is targeted by the server's clock is the least the client can see."""
    point = bench(server, "slow", users=[1], budget=Budget(requests=10)).points[0]
    spreads = (point.ttft_s, point.tpot_s, point.itl_s, point.e2e_s)
    ttft_s, tpot_s, itl_s, e2e_s = (spread.p50 or 0.0 for spread in spreads if spread is not None)
    assert min(ttft_s, tpot_s, itl_s, e2e_s / 6) >= 0.0045
    assert point.requests_per_s <= 1 / (6 * 0.0045)


def test_a_stall_is_felt_by_everyone_who_was_due_in_it() -> None:
    """Open loop: at 200 requests a second, a stall of 0.4 s catches 80 requests, half of which wait over 0.2 s.

    A loop that waits for answers before it sends would have seen one (coordinated omission).
    """
    with loopback() as server:
        point = bench(server, "stalls", users=[], rates=[200.0], budget=Budget(requests=300, seconds=20)).points[0]
    waited = [record.ttft_s for record in point.records if record.ttft_s is not None]
    assert sum(each > server.stall_s / 2 for each in waited) >= 25
    with loopback() as server:
        closed = bench(server, "stalls", users=[1], budget=Budget(requests=100, seconds=20)).points[0]
    assert sum((record.ttft_s or 0) > server.stall_s / 2 for record in closed.records) <= 1


def test_a_request_that_is_due_after_the_end_is_not_waited_for(server: Loopback) -> None:
    trace = make_trace([0.0, 0.01, 86_400.0], [40, 40, 40], [3, 3, 3])
    point = bench(server, "good", users=[], trace=trace, budget=Budget(seconds=30)).points[0]
    assert (point.completed, point.stopped) == (2, "30 s")


@pytest.mark.parametrize(("held_back", "said"), [(6, True), (4, False)])
def test_answers_that_come_in_one_piece_are_said_to_tell_no_time_per_token(held_back: int, said: bool) -> None:
    """Ten answers of five tokens within a second each, of which a proxy held so many back to their end."""
    window = LoadWindow(0.0, opened_s=0.0, closed_s=10.0)
    for place in range(10):
        gaps = [] if place < held_back else [0.2] * 4
        reply = client.Reply(0.0, 0.0, 1.0 - sum(gaps), 1.0, 1.0, input_tokens=3, output_tokens=5)
        reply.gaps_s, reply.pieces = gaps, [1] * len(gaps)
        window.keep(reply, inside=True)
    point = there(point_of(window))
    assert any("60%" in note for note in point.notes) is said


FAULTS = ("fails", "cut", "stops", "garbage", "html", "endless", "uncounted", "says", "hangs", "boasts")


@pytest.mark.parametrize("behaviour", FAULTS)
def test_what_cannot_be_measured_is_refused(server: Loopback, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 1_000_000)
    monkeypatch.setattr(client, "LONGEST_LINE", 500_000)
    assert refused(bench, server, behaviour, model="tiny", timeout_s=0.5, retries=0).fix


def test_failures_among_answers_are_counted_with_their_reason(server: Loopback) -> None:
    point = bench(server, "half", budget=Budget(requests=20)).points[0]
    # The other user's request, under way when the twentieth ended, counts where it fails.
    assert (point.completed or 0) + (point.failed or 0) in (20, 21)
    assert point.errors == {"HTTP 500: out of memory": point.failed}
    assert 5 <= (point.failed or 0) <= 15
    assert point.output_tokens == 6 * (point.completed or 0)


def test_a_refused_request_is_tried_again_and_its_wait_counts(server: Loopback) -> None:
    point = bench(server, "busy", users=[1], budget=Budget(requests=5), retries=1).points[0]
    assert (point.completed, point.failed, point.retries) == (5, 0, 5)
    assert min(record.ttft_s or 0 for record in point.records) >= 0.09  # with the wait before the second attempt
    with pytest.raises(BadInput):
        bench(server, "busy", retries=0)


@pytest.mark.parametrize("behaviour", ["locked", "mutters", "gossips"])
def test_no_piece_of_a_key_is_shown(server: Loopback, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    key = "sk-proj-" + "0123456789abcdef" * 3
    monkeypatch.setenv("OPENAI_API_KEY", key)
    refusal = refused(bench, server, behaviour, model="tiny")
    assert "OPENAI_API_KEY" in str(refusal)
    shown = str(refusal) + repr(bench(server, "good"))
    assert not any(key[start : start + 8] in shown for start in range(len(key) - 8))


def test_a_server_of_the_bare_standard_is_asked_in_its_words(server: Loopback) -> None:
    run = bench(server, "strict")
    assert run.points[0].mean_output_tokens == 6
    assert any("ignore_eos" in note for note in run.notes)


def test_without_a_model_or_a_server_nothing_is_measured(server: Loopback) -> None:
    assert refused(bench, server, "two").field == "model"
    for model in (None, "m"):
        with pytest.raises(BadInput):
            run_bench(BenchSettings(target("http://127.0.0.1:9"), model=model, retries=0))


def test_a_sweep_doubles_until_the_slo_breaks_and_looks_between() -> None:
    """It goes on as long as twice the users bring a twentieth more: how far depends on the machine."""
    with loopback() as server:
        run = bench(server, "slow", users=[], sweep=True, slos=parse_slos("tpot_p50=1ms"), budget=Budget(requests=8))
        assert [point.concurrency for point in run.points] == [1]  # five milliseconds a token: broken at once
        run = bench(server, "slow", users=[], sweep=True, budget=Budget(requests=20, seconds=5))
    users = [point.concurrency or 0 for point in run.points]
    assert users == [2**place for place in range(len(users))]
    grew = [more.output_tokens_per_s >= 1.05 * less.output_tokens_per_s for less, more in pairwise(run.points)]
    assert grew == [True] * (len(grew) - 1) + [False]


def test_a_spent_budget_ends_the_test(server: Loopback) -> None:
    run = bench(server, "good", users=[1, 2, 3], usd_per_hour=3600.0, budget=Budget(requests=10_000, usd=0.05))
    assert len(run.points) < 3
    assert any("$0.05 spent" in note for note in run.notes)


ANSWER = b"".join(
    [
        b": a comment\n\n",
        chunk(content=""),
        chunk(content="data: "),
        chunk(content="b\u00e9") + chunk(content='"finish_reason":null'),
        chunk(finish="length"),
        chunk(usage={"prompt_tokens": 11, "completion_tokens": 4}),
        b"data: [DONE]\n\n",
    ]
)


@given(st.lists(st.integers(1, len(ANSWER) - 1), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_means_the_same_however_it_is_cut(places: list[int], ends: bytes) -> None:
    body = ANSWER.replace(b"\n", ends)
    edges = [0, *sorted(places), len(body)]
    answer = AnswerStream()
    for at, (start, end) in enumerate(pairwise(edges)):
        answer.feed(body[start:end], float(at))
    answer.close()
    assert (answer.input_tokens, answer.output_tokens, answer.ended) == (11, 4, True)
    assert answer.first_s is not None
    assert sum(gap * many for gap, many in zip(answer.gaps_s, answer.pieces, strict=True)) == pytest.approx(
        (answer.last_s or 0) - (answer.first_s or 0)
    )


def test_text_in_a_last_line_without_an_end_arrived_when_its_bytes_did_and_a_cut_chunk_is_none() -> None:
    answer = AnswerStream()
    answer.feed(chunk(usage={"prompt_tokens": 1, "completion_tokens": 1}), 4.0)
    answer.feed(chunk("all of it", "stop").rstrip(), 5.0)
    answer.close()
    assert (answer.first_s, answer.last_s) == (5.0, 5.0)
    for spoilt in (chunk(content="b").replace(b"}]", b"", 1), chunk(content="b")[:-4] + b"\n\n"):
        with pytest.raises(BadAnswer):
            AnswerStream().feed(chunk(content="a") + spoilt, 1.0)


def test_a_stream_without_an_end_of_line_is_not_kept() -> None:
    answer = AnswerStream()
    answer.feed(b"x" * client.LONGEST_LINE, 0.0)
    with pytest.raises(BadAnswer):
        answer.feed(b"x", 0.0)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """95 of 100 intervals of independent values hold the true mean; with 400 trials, between 91 and 99."""
    chance = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        values = array("d", chance.exponential(1.0, 500))
        width, mean = half_width(values), float(np.mean(values))
        assert width is not None
        held += abs(mean - 1.0) <= width * mean
    assert 364 <= held <= 396


def test_closely_known_stops_early_and_noise_does_not() -> None:
    chance = random.Random(0)
    steady, noisy = Stopping(Budget(precision=0.05), 1), Stopping(Budget(precision=0.05), 1)
    for _ in range(100):
        steady.add(1.0, 2.0 + 0.01 * chance.random())
        noisy.add(chance.expovariate(1.0), chance.expovariate(1.0))
    assert steady.reason(1.0, 0.0) == "interval within 5%"
    assert noisy.reason(1.0, 0.0) is None
    assert noisy.precision is not None
    assert noisy.precision > 0.05


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("https://h/openai/v1", "https://h/openai/v1/chat/completions"),
        ("http://h/v1/completions", "http://h/v1/completions"),
        ("http://h/x/v1/chat/completions", "http://h/x/v1/chat/completions"),
    ],
)
def test_an_address_is_understood_as_people_write_it(address: str, url: str) -> None:
    assert target(address).url == url
    assert target(address).models_url.endswith("/v1/models")


def test_plain_completions_are_asked_by_their_address(server: Loopback) -> None:
    server.bodies.clear()
    asked = BenchSettings(target(server.url("good") + "/completions"), users=[1], budget=SHORT, output="const:3")
    assert run_bench(asked).points[0].mean_output_tokens == 3
    assert all("prompt" in body and "messages" not in body for body in server.bodies)


@pytest.mark.parametrize("address", ["", "localhost:8000", "ftp://h", "http://", "http://h:0", "http://h:99999"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(BadInput):
        target(address)


def test_a_password_in_the_address_is_not_kept(server: Loopback) -> None:
    with_password = server.url("good").replace("http://", "http://me:hunter2@")
    run = run_bench(BenchSettings(target(with_password), users=[1], budget=SHORT, output="const:2"))
    assert "hunter2" not in json.dumps(run.model_dump(mode="json"))


def test_a_server_that_hangs_up_after_each_answer_costs_no_retry() -> None:
    """llama.cpp promises to keep the connection and closes it: found out once, then each request opens its own."""
    with loopback() as server:
        run = bench(server, "leaves", users=[3], retries=0)
        assert counted(run) == dict(server.sent)
    assert (run.points[0].failed, run.points[0].retries) == (0, 0)
    # The server's address, and that it hangs up; on a busy machine also that the client took a whole core.
    assert len([note for note in run.notes if "core" not in note]) == 2


def test_an_interrupted_test_keeps_the_loads_it_finished() -> None:
    """Ctrl-C cancels the test: one load is done, the next is under way."""

    async def interrupted(server: Loopback) -> BenchmarkRun | None:
        asked = BenchSettings(
            target(server.url("slow")), users=[1, 2], input="const:50", output="const:6", budget=Budget(requests=5)
        )
        made = bench_run._Bench(asked, None)
        task = asyncio.create_task(made.run(LoopTurns()))
        closed = made._closed

        async def watched(users: int) -> object:
            if users == 2:
                asyncio.get_running_loop().call_soon(task.cancel)
            return await closed(users)

        made._closed = watched  # type: ignore[assignment, method-assign]
        await task
        return made.result

    with loopback() as server:
        run = asyncio.run(interrupted(server))
    assert run is not None
    assert [point.concurrency for point in run.points] == [1]
    assert any("Interrupted" in note for note in run.notes)


def test_a_server_that_does_not_keep_up_is_said_to() -> None:
    with loopback() as server:
        point = bench(server, "queues", users=[], rates=[150.0], budget=Budget(requests=60, seconds=20)).points[0]
    assert any("were answered" in note for note in point.notes)
    assert point.requests_per_s < 60  # it cannot answer more than 50, whatever is due


def test_a_load_is_rated_over_the_time_in_which_requests_were_due() -> None:
    """Twenty in a second, each answered 0.4 s later: what the drain takes does not count."""
    with loopback() as server:
        point = bench(server, "late", users=[], rates=[20.0], budget=Budget(requests=20, seconds=20)).points[0]
        came = server.came_s[-20:]
    assert point.completed == 20
    assert point.requests_per_s == pytest.approx(19 / (came[-1] - came[0]), rel=0.1)
    assert not any("were answered" in note for note in point.notes)


def replies(due_s: list[float], end_s: list[float]) -> LoadWindow:
    window = LoadWindow(started_s=0.0)
    for due, end in zip(due_s, end_s, strict=True):
        window.replies.append(client.Reply(due_s=due, sent_s=due, first_s=due, last_s=end, end_s=end))
    return window


EVERY_HALF_SECOND = [0.5 * number for number in range(120)]


@pytest.mark.parametrize(
    ("due_s", "end_s", "expected"),
    [
        # Answers take ten seconds: two a second, over sixty seconds, whatever comes after the last request.
        (EVERY_HALF_SECOND, [at + 10 for at in EVERY_HALF_SECOND], 60),
        # One answer each 0.8 s, however many wait: 120 of them take 96 s.
        (EVERY_HALF_SECOND, [1 + 0.8 * number for number in range(120)], 96),
        # A load shorter than its answers is measured to the last of them.
        ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], None),
        ([0.0, 0.1, 0.2, 0.3], [2.0, 2.1, 2.2, 2.3], None),
    ],
)
def test_an_open_load_is_rated_over_its_time(due_s: list[float], end_s: list[float], expected: float | None) -> None:
    found = open_seconds(replies(due_s, end_s))
    assert found == (None if expected is None else pytest.approx(expected))


def test_answers_of_many_lengths_are_no_falling_behind() -> None:
    chance = np.random.default_rng(5)
    due = np.sort(chance.uniform(0, 60, 200))
    found = open_seconds(replies(due.tolist(), (due + chance.exponential(5, 200)).tolist()))
    assert found == pytest.approx((due[-1] - due[0]) * 200 / 199)


def test_who_stays_silent_is_given_up_and_counts_as_failed() -> None:
    """Without limit the load would last until the server hangs up, a minute later, and those failures be nobody's."""
    with loopback() as server:
        point = bench(server, "some_hang", users=[4], budget=Budget(precision=0.0, seconds=0.3)).points[0]
    given_up = "no whole answer long after the load had ended"
    assert point.errors.get(given_up, 0) + point.errors.get("the stream was cut off", 0) == point.failed
    assert given_up in point.errors


def test_a_client_that_was_busy_says_what_it_may_have_added(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """All streams are read in one thread: while it is at one of them, the first tokens of others wait."""
    feed = AnswerStream.feed

    def slowly(stream: AnswerStream, data: bytes, now_s: float) -> None:
        sleep(0.02)
        feed(stream, data, now_s)

    monkeypatch.setattr(AnswerStream, "feed", slowly)
    point = bench(server, "slow", users=[8], output="const:20", budget=Budget(requests=24)).points[0]
    assert any("the client was busy itself" in note for note in point.notes)


class _Rounds:
    """A server that answers all users at once, every ten seconds: what a full batch of equal requests looks like."""

    gave_up = False

    def __init__(self) -> None:
        self.rounds: Counter[object] = Counter()

    async def ask(self, body: bytes, due_s: float) -> client.Reply:
        user = asyncio.current_task()
        await asyncio.sleep(0)  # the others' turn: answers of a round follow each other
        self.rounds[user] += 1
        end_s = 10.0 * self.rounds[user]
        return client.Reply(
            due_s=end_s - 10, sent_s=end_s - 10, first_s=end_s - 9, last_s=end_s, end_s=end_s, output_tokens=7
        )


@pytest.mark.parametrize("seconds", [1.0, 22.0, 95.0])
def test_answers_in_rounds_are_counted_in_whole_rounds(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Little's law, 8 users with answers of ten seconds get 0.8 a second, wherever the window happens to end."""
    monkeypatch.setattr(loads, "_LOOKED_EVERY_S", 60.0)  # not by the clock: the rounds' seconds are made up
    window = LoadWindow(started_s=0.0)

    async def load() -> None:
        async with asyncio.timeout(5):
            stopping = Stopping(Budget(precision=0.0, seconds=seconds), 8)
            rounds: Any = _Rounds()
            work = loads.one_request(rounds, lambda: client.Asked(b"", 7))
            await closed_loop(rounds, 8, work, stopping, lambda: 0.0, window)

    asyncio.run(load())
    assert window.opened_s is not None
    assert window.closed_s is not None
    assert len(window.replies) / (window.closed_s - window.opened_s) == pytest.approx(0.8)
