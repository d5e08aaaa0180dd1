"""SLOs as a person types them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.errors import BadInput
from tokonomics.traffic.slo import STATISTICS, Latency, Slo, parse_slos


@pytest.mark.parametrize(
    ("text", "latency", "statistic", "seconds"),
    [
        ("ttft_p99=0.5", "ttft", "p99", 0.5),
        ("tpot_p90=50ms", "tpot", "p90", 0.05),
        ("e2e_mean=20s", "e2e", "mean", 20.0),
        ("ttft=1", "ttft", "p99", 1.0),
        (" TTFT_P50 = 250 MS ", "ttft", "p50", 0.25),
        ("e2e_p95=1e6", "e2e", "p95", 1e6),
        ("job_p99=5m", "job", "p99", 300.0),
    ],
)
def test_a_slo_is_read(text: str, latency: str, statistic: str, seconds: float) -> None:
    (made,) = parse_slos(text)
    assert (made.latency, made.statistic) == (latency, statistic)
    assert made.seconds == pytest.approx(seconds)


@given(
    st.lists(st.tuples(st.sampled_from(Latency), st.sampled_from(STATISTICS)), min_size=1, unique=True),
    st.floats(1e-6, 120.0),
)
def test_slos_that_are_written_out_are_read_back(names: list[tuple[Latency, str]], seconds: float) -> None:
    slos = tuple(Slo(latency=latency, statistic=statistic, seconds=seconds) for latency, statistic in names)
    assert parse_slos(",".join(f"{slo}={slo.seconds!r}" for slo in slos)) == slos


@pytest.mark.parametrize(
    "text", ["", ",", "ttft", "ttft_p99=", "ttft=0", "ttft=-1", "ttft=nan", "ttft=inf", "ttft=soon"]
)
def test_a_slo_without_a_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="slo: "):
        parse_slos(text)


@pytest.mark.parametrize("text", ["tttf=1", "ttft_p98=1", "ttft_p99_p90=1", "p99=1", "=1", "ttft=1,", "ttft_max=1"])
def test_a_name_that_is_no_slo_is_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_slos(text)
    message = str(refused.value)
    assert "is not an SLO" in message
    assert [name for name in (*Latency, *STATISTICS) if name not in message] == []


def test_the_same_slo_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        parse_slos("ttft=1,ttft_p99=2")


@pytest.mark.parametrize("text", ["ttft_p99=500", "tpot=200"])
def test_milliseconds_without_their_unit_are_told_how_to_write_it(text: str) -> None:
    with pytest.raises(BadInput, match=f"Did you mean {text.partition('=')[2]}ms"):
        parse_slos(text)
    assert parse_slos("e2e=500")[0].seconds == 500.0


@pytest.mark.parametrize("text", ["ttft_p99=500s", "ttft_p99=500000ms"])
def test_more_than_anybody_waits_is_refused_with_a_time_that_can_be_read(text: str) -> None:
    with pytest.raises(BadInput, match="is 500 seconds") as refused:
        parse_slos(text)
    assert "Did you mean 500ms?" in str(refused.value)


def test_a_refusal_names_its_field() -> None:
    with pytest.raises(BadInput, match="slo: 'ttft=never'"):
        parse_slos("ttft=never")
