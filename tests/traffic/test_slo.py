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


@pytest.mark.parametrize("text", [
    "", ",", "ttft", "ttft_p99=", "ttft=0", "ttft=-1", "ttft=nan", "ttft=inf", "ttft=soon", "ttft=never",
    "tttf=1", "ttft_p98=1", "ttft_p99_p90=1", "p99=1", "=1", "ttft=1,", "ttft_max=1", "ttft=1,ttft_p99=2",
])  # fmt: skip
def test_what_is_no_slo_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_slos(text)
    assert refused.value.field == "slo"


@pytest.mark.parametrize("text", ["ttft_p99=500", "tpot=200", "ttft_p99=500s", "ttft_p99=500000ms"])
def test_milliseconds_without_their_unit_are_refused_with_a_time_that_can_be_read(text: str) -> None:
    with pytest.raises(BadInput, match=r"Did you mean [25]00ms"):
        parse_slos(text)
    assert parse_slos("e2e=500")[0].seconds == 500.0
