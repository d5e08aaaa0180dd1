"""Many streams at once: none is lost, latencies are the server's or the client says what is its own."""

import resource

import pytest
from tests.measure.timed_server import figures, timed_server
from tests.there import there

from tokonomics.addresses import target
from tokonomics.errors import BadInput
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.benchmark_run import LoadPoint

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
