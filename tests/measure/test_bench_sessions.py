"""Sessions against servers on loopback: each turn waits for the answer before it and goes on with it."""

import resource
from collections.abc import Iterator

import numpy as np
import pytest
from tests.measure.loopback import Loopback, loopback
from tests.measure.timed_server import figures, timed_server
from tests.there import there

from tokonomics.addresses import target
from tokonomics.errors import BadInput
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint
from tokonomics.traffic.generate import Sessions
from tokonomics.traffic.trace import Trace, Turns


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback() as made:
        yield made


def bench(server: Loopback, **asked: object) -> BenchmarkRun:
    settings = {"budget": Budget(precision=1e-9, requests=60, seconds=20), "input": "const:30", "output": "const:6"}
    return run_bench(BenchSettings(target(server.url("talks")), **(settings | asked)))  # type: ignore[arg-type]


def conversations(server: Loopback) -> list[tuple[tuple[tuple[str, str], ...], str]]:
    """Those after the three prompts by which the test learns how the server counts."""
    return [talk for talk in server.talks if len(talk[0]) > 1 or talk[1].count(" ") == 5]


def test_a_turn_goes_on_with_what_was_really_answered(server: Loopback) -> None:
    run = bench(server, users=[3], sessions=Sessions(4, 0.0))
    answers = {answer for _, answer in server.talks}
    later = [said for said, _ in conversations(server) if len(said) > 1]
    assert len(later) > 20
    for said in later:
        assert [role for role, _ in said] == ["user", "assistant"] * (len(said) // 2) + ["user"]
        assert all(text in answers for role, text in said if role == "assistant")
        words = [len(text.split()) for role, text in said if role == "user"]
        assert words == [30] * len(words)
    jobs = there(run.points[0].jobs)
    # Thirty new words a turn; what stood before is the n − 1 turns of 30 and their answers of 6.
    for row in jobs.by_turn:
        if row.first == row.last:
            assert row.mean_input_tokens == 36 * row.first - 6
            assert row.cached_share == pytest.approx(36 * (row.first - 1) / (36 * row.first - 6))


def test_a_job_takes_its_answers_and_its_pauses(server: Loopback) -> None:
    """Five turns of one user with 20 ms between: 80 ms of pauses are the least a job can take."""
    turns = Turns(np.arange(4, dtype=np.int32), np.asarray([0, 0, 1, 2, 3, 4]), np.full(5, 0.02), np.zeros(5, np.int32))
    inputs = np.asarray([10, 40, 80, 20, 60], np.int32)  # the fourth is shorter than what was said: it begins anew
    trace = Trace(np.linspace(0, 0.04, 5), inputs, np.full(5, 5, np.int32), turns=turns)
    run = bench(server, trace=trace)
    jobs = there(run.points[0].jobs)
    assert (jobs.finished, jobs.requests_per_job) == (1, 5)
    assert (there(jobs.job_s).p50 or 0) >= 0.08
    assert [len(said) for said, _ in server.talks[-5:]] == [1, 3, 5, 1, 3]
    assert sorted(record.input_tokens for record in run.points[0].records) == sorted(inputs.tolist())


def test_branches_run_together_and_the_next_turn_reads_both(server: Loopback) -> None:
    turns = Turns(np.asarray([0, 0, 1, 2], np.int32), np.asarray([0, 0, 1, 2, 4]), np.zeros(4), np.zeros(4, np.int32))
    inputs, outputs = np.asarray([10, 40, 50, 90], np.int32), np.full(4, 5, np.int32)
    run = bench(server, trace=Trace(np.linspace(0, 0.03, 4), inputs, outputs, turns=turns))
    first, *branches, last = server.talks[-4:]
    assert all(said[:2] == (first[0][0], ("assistant", first[1])) for said, _ in branches)
    others = [answer for said, answer in branches if said != last[0][: len(said)]]
    assert len(others) == 1
    assert others[0] in last[0][-1][1]
    assert {record.turn for record in run.points[0].records} == {1, 2, 3}


def test_a_long_pause_does_not_outlast_the_time_of_the_load(server: Loopback) -> None:
    """Two first turns, hours of pauses: the load ends with its time, and nothing was measured."""
    with pytest.raises(BadInput):
        bench(server, users=[2], sessions=Sessions(50, 10_000.0), budget=Budget(requests=100, seconds=0.3))


# --- many streams at once: none is lost, latencies are the server's or the client says what is its own ----------------


OWN = ("the client was busy", "of a core")
"""What the client says where it was slow itself, as on a busy machine."""


def streamed(streams: int, ttft_s: float, tpot_s: float, tokens: int) -> tuple[LoadPoint, dict[str, float], bool]:
    """The client's figures, the server's own, and whether the client says that some of it may be its own doing."""
    with timed_server(ttft_s, tpot_s, tokens) as address:
        budget = Budget(precision=1e-9, requests=2 * streams, seconds=300)
        load = BenchSettings(
            target(address), users=[streams], input="const:20", output=f"const:{tokens}", budget=budget, timeout_s=600
        )
        run = run_bench(load)
        (point,) = run.points
        said = any(word in note for note in (*point.notes, *run.notes) for word in OWN)
        return point, figures(address), said


def judge(point: LoadPoint, server: dict[str, float], streams: int, said: bool, most_off: float) -> None:
    assert (point.failed, point.errors) == (0, {})
    assert server["most_at_once"] == streams, "all at the same time"
    ttft_off = (there(point.ttft_s).p50 or 0.0) / server["ttft_p50"] - 1
    assert said or ttft_off < most_off
    assert said or abs((there(point.tpot_s).p50 or 0.0) / server["tpot_p50"] - 1) < most_off


def test_fifty_streams_are_read_as_the_server_sends_them() -> None:
    point, server, said = streamed(50, ttft_s=0.2, tpot_s=0.05, tokens=4)
    judge(point, server, 50, said, most_off=0.05)
    assert (there(point.ttft_s).p50 or 0.0) >= 0.2, "nobody hears a token before it is sent"


def test_more_streams_than_files_may_be_open_are_refused_before_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    with pytest.raises(BadInput, match="4,096"):
        run_bench(BenchSettings(target("http://127.0.0.1:9"), users=[5000], input="const:20", output="const:4"))
    assert raised == [(4096, 4096)]


@pytest.mark.explore
@pytest.mark.parametrize(("streams", "most_off"), [(100, 0.02), (500, 0.02)])
def test_hundreds_of_streams_are_read_as_the_server_sends_them(streams: int, most_off: float) -> None:
    point, server, said = streamed(streams, ttft_s=0.4, tpot_s=0.05, tokens=16)
    judge(point, server, streams, said, most_off)


@pytest.mark.explore
def test_ten_thousand_streams_at_once_are_all_answered() -> None:
    """A fleet's worth from one client: every one is answered whole, and what the client adds is said."""
    point, server, said = streamed(10_000, ttft_s=2.0, tpot_s=1.0, tokens=8)
    judge(point, server, 10_000, said, most_off=0.05)
    assert (point.completed or 0) + point.outside.requests >= 20_000
