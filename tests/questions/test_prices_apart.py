"""What the two sides of a disaggregated simulation cost: of one provider in one region, at the newest prices."""

from pathlib import Path

import pytest
from tests.deployed import on
from tests.planner.test_market import FRESH, offer
from tests.there import there

from tokonomics.catalog.offers import write_offers
from tokonomics.questions.requests.traffic import SimulateRequest
from tokonomics.questions.serving import prices_apart
from tokonomics.serving.fleet_settings import FleetSettings


def test_a_place_where_prices_are_old_is_not_the_cheapest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure asked $1 a GPU 200 days ago; AWS and Google ask $4 and $5 since; in its region its quote is newest."""
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path))
    old = [offer("azure", gpu, 1.0, age=FRESH * 20) for gpu in ("H100", "L40S")]
    new = [offer(provider, gpu, usd) for provider, usd in (("aws", 4.0), ("gcp", 5.0)) for gpu in ("H100", "L40S")]
    write_offers(tmp_path / "offers.csv", [*old, *new])
    fleet = FleetSettings(replicas=1, prefill_replicas=1, prefill=on("llama-3.1-8b", "L40S"))
    request = SimulateRequest.checked({"model": "llama-3.1-8b", "gpu": "H100", "rate": 1, "input": "9", "output": "9"})
    prompts, answers, source = there(prices_apart(on("llama-3.1-8b", "H100"), fleet, request))
    assert (prompts, answers) == (4.0, 4.0)
    assert "azure" not in source
