"""Classes of service: how they are written, and whose requests they have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.there import refused, there

from tokonomics.errors import BadInput
from tokonomics.questions.requests.traffic import SimulateRequest
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import STATISTICS, Latency, Slo, parse_classes, parse_slos
from tokonomics.traffic.tenants import (
    ALIGNED,
    SPREAD,
    busier,
    by_tenant,
    classed,
    correlation,
    have_peaks,
    hurried,
    joined,
    most_shed,
    only,
    peak_phase,
    present,
    served_last,
    strictest,
    with_peaks,
    without_classes,
)
from tokonomics.traffic.trace import Trace, make_trace

GOLD = "gold,tenants=acme/b*,slo=ttft_p99=0.5+tpot_p99=40ms,priority=-1"


def of_tenants(*names: str) -> Trace:
    """One request of each in turn, ten times."""
    count = 10 * len(names)
    tenant = np.tile(np.arange(len(names), dtype=np.int32), 10)
    return make_trace(np.arange(count), np.full(count, 9), np.full(count, 9), tenant=tenant, tenants=names)


def test_a_class_says_whose_requests_under_which_targets_when_and_how_long_they_wait() -> None:
    gold, rest = parse_classes([GOLD, "rest,max_wait=500ms,max_queue=7,shed=5%,priority=3"], parse_slos("ttft_p90=9"))
    assert (gold.name, gold.tenants, gold.priority, gold.shed) == ("gold", ("acme", "b*"), -1, None)
    assert [(str(slo), slo.seconds) for slo in gold.slos] == [("ttft_p99", 0.5), ("tpot_p99", 0.04)]
    assert (rest.max_wait_s, rest.max_queue, rest.shed, rest.slos) == (0.5, 7, 0.05, parse_slos("ttft_p90=9"))


def test_a_table_says_the_same_as_a_text() -> None:
    table = {"name": "gold", "tenants": ["acme", "b*"], "slo": "ttft_p99=0.5,tpot_p99=40ms", "priority": -1}
    typed, written, nested = (
        SimulateRequest.checked({"gpu": "H100", "classes": classes}).classes
        for classes in (GOLD, [table], {**table, "slo": {"ttft_p99": 0.5, "tpot_p99": "40ms"}})
    )
    assert typed == written == nested == (GOLD,)


WRONG = (
    "tenants=acme", "a,tenants=x,share=1", "a,shed=5%", "a,share=120%", "a,priority=1.5", "a,max_queue=0", "a,slo=soon",
    "a,speed=9", "a,ttft_p99=0.2", "a a,share=1", "a b", "a,share=70% b,share=60%",
)  # fmt: skip


@pytest.mark.parametrize("texts", WRONG)
def test_what_is_no_class_is_refused(texts: str) -> None:
    assert refused(parse_classes, texts.split()).field == "classes"


def test_tenants_find_their_class_by_name_and_the_others_take_the_rest() -> None:
    trace = classed(of_tenants("acme", "beta", "bits", "zoo"), parse_classes([GOLD, "rest,priority=2"]))
    assert there(trace.service)[:4].tolist() == [0, 0, 0, 1]
    assert there(trace.priority)[:4].tolist() == [-1, -1, -1, 2]
    later = trace.take(np.array([3, 0])).faster(2).repeated(2)
    assert there(later.service).tolist() == [1, 0, 1, 0]
    assert without_classes(trace).classes == ()


def test_who_belongs_to_no_class_and_who_is_nobody_is_said() -> None:
    nobody = make_trace([0.0], [9], [9])
    for trace, texts in (
        (of_tenants("acme", "beta", "bits", "zoo"), [GOLD]),
        (of_tenants("acne", "beta"), [GOLD, "rest"]),
        (nobody, [GOLD]),
    ):
        assert refused(classed, trace, parse_classes(texts)).field == "classes"


def test_shares_are_drawn_the_same_for_the_same_seed() -> None:
    trace = make_trace(np.arange(20_000), np.full(20_000, 9), np.full(20_000, 9))
    classes = parse_classes(["gold,share=20%", "silver,share=0.3", "rest"])
    made, again, other = (there(classed(trace, classes, seed).service) for seed in (0, 0, 1))
    assert np.bincount(made) / 20_000 == pytest.approx([0.2, 0.3, 0.5], abs=0.01)
    assert (made == again).all()
    assert not (made == other).all()
    whole = there(classed(trace, parse_classes(["gold,share=20%", "others,share=80%"])).service)
    assert set(whole.tolist()) == {0, 1}


def test_the_strictest_of_all_classes_and_what_may_be_shed() -> None:
    gold, free = parse_classes([GOLD, "free,slo=ttft_p99=9+e2e_p50=60,max_wait=5"])
    shortest = {str(slo): slo.seconds for slo in strictest((gold, free))}
    assert shortest == {"ttft_p99": 0.5, "tpot_p99": 0.04, "e2e_p50": 60.0}
    assert (most_shed(gold), most_shed(free)) == (0.0, 0.5)
    # A fleet that is half as fast is one whose classes are owed everything in half the time.
    (one,) = hurried(classed(of_tenants("acme"), parse_classes(["all,slo=ttft_p99=4,max_wait=6"])), 2).classes
    assert (one.slos[0].seconds, one.max_wait_s) == (2.0, 3.0)


# --- SLOs as a person types them --------------------------------------------------------------------------------------


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
    st.floats(1e-6, 1.0),
)
def test_slos_that_are_written_out_are_read_back(names: list[tuple[Latency, str]], seconds: float) -> None:
    slos = tuple(Slo(latency=latency, statistic=statistic, seconds=seconds) for latency, statistic in names)
    assert parse_slos(",".join(f"{slo}={slo.seconds!r}" for slo in slos)) == slos


@pytest.mark.parametrize("text", [
    "", ",", "ttft", "ttft_p99=", "ttft=0", "ttft=-1", "ttft=nan", "ttft=inf", "ttft=soon", "ttft=never",
    "tttf=1", "ttft_p98=1", "ttft_p99_p90=1", "p99=1", "=1", "ttft=1,", "ttft_max=1", "ttft=1,ttft_p99=2",
])  # fmt: skip
def test_what_is_no_slo_is_refused(text: str) -> None:
    assert refused(parse_slos, text).field == "slo"


@pytest.mark.parametrize("text", ["ttft_p99=500", "tpot=200", "ttft_p99=500s", "ttft_p99=500000ms"])
def test_milliseconds_without_their_unit_are_refused_with_a_time_that_can_be_read(text: str) -> None:
    with pytest.raises(BadInput, match=r"Did you mean [25]00ms"):
        parse_slos(text)
    assert parse_slos("e2e=500")[0].seconds == 500.0


def test_fifty_seconds_a_token_are_refused_and_one_is_not() -> None:
    with pytest.raises(BadInput, match="Did you mean 50ms") as caught:
        parse_slos("ttft_p99=500ms,tpot=50")
    assert caught.value.field == "slo"
    assert [slo.seconds for slo in parse_slos("ttft_p99=500ms,tpot=1")] == [0.5, 1.0]


# --- tenants of a trace: moved, made busier and joined without losing a request ---------------------------------------


def day(arrivals: str = "diurnal:0.5,peak=2", tenants: str = "4,skew=0", sessions: str | None = None) -> Trace:
    return generate(
        parse_arrivals(arrivals), parse_lengths("300", "input"), parse_lengths("50", "output"), duration_s=86_400,
        tenants=parse_tenants(tenants), sessions=parse_sessions(sessions) if sessions else None,
    )  # fmt: skip


def test_peaks_fall_together_or_lie_a_quarter_of_a_day_apart() -> None:
    trace = day()

    def peaks(made: Trace) -> list[float]:
        return sorted(peak_phase(made.arrival_s[at], 86_400) for at in by_tenant(made).values())

    together, apart = peaks(with_peaks(trace, ALIGNED)), peaks(with_peaks(trace, SPREAD))
    assert np.ptp(together) < 0.01
    assert np.diff(apart) == pytest.approx([0.25] * 3, abs=0.01)
    assert (correlation(with_peaks(trace, ALIGNED)) or 0) > 0.95
    assert (correlation(with_peaks(trace, SPREAD)) or 1) < 0
    for where in (ALIGNED, SPREAD):  # keeps every request
        moved = with_peaks(trace, where)
        assert (np.diff(moved.arrival_s) >= 0).all()
        assert moved.arrival_s[0] == 0
        assert np.bincount(moved.tenant).tolist() == np.bincount(trace.tenant).tolist()  # type: ignore[arg-type]


def test_steady_traffic_has_no_time_of_day_and_who_is_served_last_is_behind_all_others() -> None:
    steady = day("poisson:0.01")
    assert have_peaks(day())
    assert not have_peaks(day("poisson:0.5"))
    assert (there(served_last(steady, 2).priority) == (steady.tenant == 2)).all()


def test_busier_doubles_one_tenant_and_leaves_the_others_alone() -> None:
    trace = day("diurnal:0.1,peak=2", sessions="3,think=60")
    made = busier(trace, 1)
    before, after = np.bincount(trace.tenant), np.bincount(made.tenant)  # type: ignore[arg-type]
    assert after.tolist() == [before[0], 2 * before[1], before[2], before[3]]
    for tenant in (0, 2, 3):
        assert np.diff(only(made, [tenant]).arrival_s) == pytest.approx(np.diff(only(trace, [tenant]).arrival_s))
    assert made.prefix is not None
    assert trace.prefix is not None
    assert made.prefix.distinct == 2 * trace.prefix.distinct
    first_of_copies = made.prefix.ids >= trace.prefix.distinct
    assert int(first_of_copies.sum()) == len(only(trace, [1]).prefix.ids)  # type: ignore[union-attr]
    # The day keeps its shape.
    assert peak_phase(only(made, [1]).arrival_s, 86_400) == pytest.approx(
        peak_phase(only(trace, [1]).arrival_s, 86_400), abs=0.02
    )


def test_logs_become_tenants_that_begin_together() -> None:
    first, second = make_trace([5, 7, 9], [1, 2, 3], [1, 1, 1]), make_trace([100, 101], [8, 9], [2, 2])
    made = joined([first, second], ["a", "b"])
    assert made.arrival_s.tolist() == [0, 0, 1, 2, 4]
    assert made.input_tokens.tolist() == [1, 8, 9, 2, 3]
    assert [made.tenants[each] for each in made.tenant] == ["a", "b", "b", "a", "a"]  # type: ignore[union-attr]
    assert present(made) == (0, 1)


def test_joined_logs_share_no_blocks() -> None:
    parts = [day("poisson:0.02", sessions="3,think=60") for _ in range(2)]
    made = joined(parts, ["a", "b"])
    assert made.prefix is not None
    for number, part in enumerate(parts):
        assert part.prefix is not None
        own = there(only(made, [number]).prefix)
        assert (own.ids - number * part.prefix.distinct == part.prefix.ids).all()
