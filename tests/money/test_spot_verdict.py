"""Which workloads belong on spot."""

from tokonomics.catalog.spot import SCARCE, find_band
from tokonomics.money.spot_verdict import Suitability, spot_verdict

CALM = find_band("p5.48xlarge", "us-east-1").interruptions


def test_a_batch_may_be_all_spot() -> None:
    assert spot_verdict(answer_s=60, cold_start_s=120, replicas=1, interruptions=CALM, batch=True).max_spot_share == 1


def test_a_served_fleet_keeps_a_firm_base() -> None:
    verdict = spot_verdict(answer_s=60, cold_start_s=120, replicas=6, interruptions=CALM)
    assert verdict.suitability is Suitability.overflow
    assert verdict.cut_off_share == 0


def test_a_lone_replica_and_a_slow_start_under_a_strict_p99_stay_off_spot() -> None:
    alone = spot_verdict(answer_s=20, cold_start_s=120, replicas=1, interruptions=CALM)
    slow = spot_verdict(answer_s=20, cold_start_s=600, replicas=6, interruptions=CALM, strict_p99=True)
    assert alone.suitability is slow.suitability is Suitability.none
    assert any("1 replica" in reason.text for reason in alone.reasons if not reason.speaks_for)
    assert sum(not reason.speaks_for for reason in slow.reasons) == 3


def test_long_answers_on_a_scarce_market_are_cut_off() -> None:
    verdict = spot_verdict(answer_s=420, cold_start_s=120, replicas=6, interruptions=SCARCE)
    assert verdict.cut_off_share == SCARCE.per_hour * 300 / 3600
    assert verdict.suitability is Suitability.none
