"""A plan names the peak of its traffic and what each hour needs, and its files carry the same numbers."""

import pytest
import yaml
from tests.there import there

from tokonomics.questions.by_hour import fleet_command, swing_of
from tokonomics.questions.load import load_of
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import PlanResult
from tokonomics.report.plan_view import plan as described
from tokonomics.report.wording import workload_text

ASKED = {"model": ["llama-3.1-8b"], "input": "const:3000", "output": "const:300", "slo": "ttft_p99=4,tpot_p99=100ms"}


def test_the_hours_of_a_plan_are_in_its_document_its_screen_and_its_files() -> None:
    """Six tenths of a request a second in the mean and twice as many at noon take two L4, and one at night."""
    asked = ASKED | {"arrivals": "diurnal:0.6,peak=2", "gpu": ["L4"], "weights": ["fp8"], "deploy": ["keda"]}
    request = PlanRequest.checked(asked)
    found = plan(request)
    assert isinstance(found, PlanResult)
    best, hours, swing = there(found.best), there(found.by_hour), there(found.swing)
    assert swing.peak_rate == pytest.approx(1.2, rel=1e-3)
    assert max(hours.replicas) <= best.replicas
    assert hours.replicas[0] < hours.replicas[12]
    assert found.plain()["by_hour"]["replicas"] == list(hours.replicas)
    text = described(found, request).text()
    assert there(found.fleet_command) in " ".join(text.split())
    (file,) = found.deploy
    scaled = next(part for part in yaml.safe_load_all(file.text) if part["kind"] == "ScaledObject")["spec"]
    assert scaled["minReplicaCount"] == min(hours.replicas)
    assert max(int(row["metadata"].get("desiredReplicas", 0)) for row in scaled["triggers"]) == max(hours.replicas)


def test_the_command_asks_a_fleet_for_the_same_traffic() -> None:
    request = PlanRequest.checked(
        ASKED | {"rate": "6", "arrivals": "diurnal:3,peak=3", "gpu": ["L4"], "region": ["EU"]}
    )
    swing = there(swing_of(request, load_of(request)))
    assert swing.mean_rate == pytest.approx(6)
    assert swing.peak_rate == pytest.approx(18, rel=1e-3)
    said = there(fleet_command(request, swing))
    for part in ("fleet llama-3.1-8b", "--demand diurnal:6,peak=3", "--gpu L4", "--region EU", "--slo ttft_p99=4"):
        assert part in said
    assert "--rate" not in said
    assert "--arrivals" not in said


def test_even_traffic_and_conversations_have_no_such_command() -> None:
    even = PlanRequest.checked(ASKED | {"rate": "6"})
    assert swing_of(even, load_of(even)) is None
    assert fleet_command(even, None) is None
    talks = PlanRequest.checked(ASKED | {"arrivals": "diurnal:1,peak=3", "sessions": "5"})
    assert fleet_command(talks, swing_of(talks, load_of(talks))) is None


def test_the_heading_names_the_mean_the_peak_and_when() -> None:
    for arrivals, words in (
        ("diurnal:3,peak=3", ("3 requests/s", "9 at the peak", "12:00")),
        ("weekly:3,peak=2", ("Monday", "12:00")),
        ("onoff:10,on=60,off=300", ("10 at the peak", "6 min")),
    ):
        request = PlanRequest.checked(ASKED | {"arrivals": arrivals})
        load = load_of(request)
        text = workload_text(load.workload, swing_of(request, load))
        assert all(word in text for word in words), text
