"""States of a meter, made by hand, for what shows them."""

from typing import Any

from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import (
    BudgetState,
    ExpectedFigure,
    GroupState,
    MeterState,
    MeterTally,
    MonthEnd,
    Planned,
)

HOUR = MeterTally(
    seconds=3600, busy_s=1800, idle_s=1200, gap_s=500, away_s=100,
    usd=7.2, busy_usd=3.6, idle_usd=2.4, gap_usd=1.0, away_usd=0.2, failed_usd=0.36,
    input_total=3_000_000, input_cached=1_000_000, output=1_000_000,
    answered=900, failed=100, preempted=3, running_s=18_000, running_seen_s=1800,
)  # fmt: skip
"""An hour of a $7.20 server: half of it busy."""


def group(**changed: Any) -> GroupState:
    known: dict[str, Any] = {
        "target": "http://gpu1:8000", "model": "llama", "engine": "vllm", "labels": {"team": "search"}, "up": True,
        "busy": True, "usd_per_hour": 7.2, "running": 12.0, "waiting": 2.0, "kv_share": 0.5, "now": HOUR, "hour": HOUR,
        "today": HOUR, "total": HOUR, "misses": 4,
    }  # fmt: skip
    return GroupState(**(known | changed))


def gpu(**changed: Any) -> GpuReading:
    known: dict[str, Any] = {
        "at": 0.0, "uuid": "GPU-1", "name": "NVIDIA H200", "utilization": 0.9, "power_w": 500.0, "energy_j": 3.6e6,
        "memory_used_bytes": 1e11, "memory_total_bytes": 1.4e11, "dram_active": 0.6, "tensor_active": 0.2,
        "labels": {"hostname": "node-1", "gpu": "0"},
    }  # fmt: skip
    return GpuReading(**(known | changed))


def budget(**changed: Any) -> BudgetState:
    """One that holds."""
    known: dict[str, Any] = {
        "budget": "team=search", "month": "2026-11", "budget_usd": 1000.0, "spent_usd": 400.0,
        "month_end": MonthEnd(mid=800.0, low=700.0, high=900.0, days_known=20), "spent_up_on": None,
    }  # fmt: skip
    return BudgetState(**(known | changed))


def expected(**changed: Any) -> ExpectedFigure:
    """What a twin says of one figure."""
    known: dict[str, Any] = {
        "target": "http://gpu1:8000", "model": "llama", "figure": "tpot_s", "low": 0.01, "mid": 0.012, "high": 0.014,
        "error": 0.03, "coverage": 0.8,
    }  # fmt: skip
    return ExpectedFigure(**(known | changed))


def state(*groups: GroupState, **changed: Any) -> MeterState:
    sums = {
        name: sum((getattr(each, name) for each in groups), MeterTally()) for name in ("now", "hour", "today", "total")
    }
    known: dict[str, Any] = {
        "at": 1_794_700_000.0, "every_s": 15.0, "price_from": "as given", "groups": groups,
        "planned": Planned(usd_per_mtok=1.5), "gpus": (gpu(),), "energy_j": 3.6e5, "electricity_usd": 0.015,
        "budgets": (budget(),), "expected": (expected(),), **sums,
    }  # fmt: skip
    return MeterState(**(known | changed))
