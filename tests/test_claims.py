"""The founding documents' arithmetic, claim by claim, against figures computed by hand."""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.fleet.cheapest import fixed_rule
from tokonomics.money.cost import cost, load_cost, saving
from tokonomics.physics.steptime import step_model
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.trace import PrefixBlocks

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from claims import CLAIMS
from document_right_sizing import CASES, LARGE, SMALL, cheapest_gpu, kv_bound, reaching, small_traffic, why
from document_right_sizing import Row as RightSizingRow


@pytest.mark.parametrize(
    ("claim", "usd_per_hour", "tokens_per_second", "gpus", "expected"),
    [
        ("C02", 4.50, 4800, 1, 0.2604),
        ("C03", 2.21, 2900, 1, 0.2117),
        ("C04", 1.01, 850, 1, 0.3301),
        ("C05", 0.54, 620, 1, 0.2419),
        ("C06", 0.38, 350, 1, 0.3016),
        ("C07", 2.21, 2400, 4, 1.0231),
        ("C08", 4.50, 6200, 4, 0.8065),
        ("C09", 2.21, 1800, 2, 0.6821),
        ("C10", 4.50, 1500, 1, 0.8333),
        ("C11", 2.21, 3200, 2, 0.3837),
        ("C16", 4.50, 400, 1, 3.125),
        ("C17", 4.50, 3800, 1, 0.3289),
    ],
)
def test_prices_per_mtok(claim: str, usd_per_hour: float, tokens_per_second: float, gpus: int, expected: float) -> None:
    assert cost(usd_per_hour, tokens_per_second, 1.0, gpus).usd_per_mtok == pytest.approx(expected, abs=6e-5), claim


def test_c07_is_the_one_row_of_its_table_at_seventy_percent() -> None:
    assert cost(2.21, 2400, 0.7, 4).usd_per_mtok == pytest.approx(1.46, abs=0.005)
    assert cost(2.21, 2400, 1.0, 4).usd_per_mtok != pytest.approx(1.46, abs=0.1)


def naive_tokens_per_s(batch: int) -> float:
    return batch / (14e9 / 3.35e12 * 1.2)


def test_c12_naive_decode_of_one_request() -> None:
    assert naive_tokens_per_s(1) == pytest.approx(199.4, abs=0.05)


def test_c13_the_naive_code_does_not_give_its_own_numbers() -> None:
    ours = [naive_tokens_per_s(batch) for batch in (32, 64, 128)]
    assert ours == pytest.approx([6381, 12762, 25524], abs=1)
    assert all(our > 1.6 * stated for our, stated in zip(ours, (3800, 4800, 5100), strict=True))


def test_c15_kv_cache_of_a_2048_token_sequence() -> None:
    per_token = find_model("llama-2-7b").kv_bytes_per_token(Precision.bf16)
    assert per_token == 512 * 1024
    assert per_token * 2048 / 1e6 == pytest.approx(1073.7, abs=0.05)


def test_c18_prefix_caching_and_c19_its_two_shares() -> None:
    """10,000 requests an hour of 2,048 + 256 tokens, 85 % of which find the first part cached; $0.50 per Mtok."""
    prefix_blocks, hits = 2048 // 16, 8500
    sharing = hits + 1  # the first of them writes what the others find
    blocks = PrefixBlocks(
        ids=np.tile(np.arange(prefix_blocks, dtype=np.int32), sharing),
        starts=np.minimum(np.arange(10_001), sharing) * prefix_blocks,
        block_tokens=16,
        distinct=prefix_blocks,
    )
    tokens = np.full(10_000, 2048 + 256, np.int32)
    cached = reuse(blocks, tokens)
    assert tokens.sum() == pytest.approx(23.04e6)
    assert (tokens - cached).sum() == pytest.approx(5.632e6)
    assert cached.sum() / tokens.sum() == pytest.approx(0.7556, abs=5e-5)
    assert cached.sum() / 1e6 * 0.50 == pytest.approx(8.704)
    assert cached.max() / 2304 == pytest.approx(0.889, abs=5e-4)


def test_c22_hybrid_fleet_and_c23_spot_discount() -> None:
    hybrid = fixed_rule()
    assert [line.usd for line in hybrid.tree.lines] == pytest.approx([6453.2, 1278.96])
    assert hybrid.usd_per_month == pytest.approx(7732.16)
    assert hybrid.compared_usd_per_month == pytest.approx(9679.8)
    assert hybrid.largest_fleet == 8  # its own text says that the peak needs ten
    assert hybrid.saved_share == pytest.approx(0.2012, abs=5e-5)
    assert saving(2.21, 0.73) == pytest.approx(0.6697, abs=5e-5)


def test_c26_multi_tenant_bill() -> None:
    assert saving(40_000, 15_000) == pytest.approx(0.625)


def test_c33_c34_cost_per_token_and_c35_price_per_gpu() -> None:
    assert cost(10, 1000).usd_per_token == pytest.approx(2.778e-6, rel=1e-4)
    assert cost(10, 2000).usd_per_token == pytest.approx(1.389e-6, rel=1e-3)
    p4d = Offer(provider="aws", region="us-east-1", instance="p4d.24xlarge", gpu="A100-40GB", gpus=8, usd_per_hour=32,
                date=date(2026, 1, 1), source="the article")  # fmt: skip
    assert p4d.usd_per_gpu_hour() == pytest.approx(4.0)


def test_c36_burst_then_idle_against_steady_at_the_same_mean() -> None:
    burst, even = (load_cost(load, 4.50, 38_000, gpus=8) for load in ("8x0.99,16x0", "24x0.33"))
    assert burst.mean_utilization == pytest.approx(even.mean_utilization)
    assert (burst.gpus_for_peak, even.gpus_for_peak) == (8, 3)
    assert burst.usd_per_mtok_for_peak / even.usd_per_mtok_for_peak == pytest.approx(8 / 3)


def test_c36_burst_then_idle_against_steady_seventy_percent() -> None:
    burst, steady = load_cost("8x0.99,16x0", 10, 1000), load_cost("24x0.7", 10, 1000)
    assert burst.usd_per_mtok > 2 * steady.usd_per_mtok


def test_the_documents_five_wrong_figures_are_still_called_wrong() -> None:
    called = {claim.key: claim.verdict for claim in CLAIMS if claim.verdict.startswith("**")}
    assert sorted(called) == ["C07", "C13", "C15", "C29", "C30"]


def test_c39_no_row_decodes_faster_than_its_memory_can_be_read() -> None:
    """Weights once a step and the KV of 1,024 tokens for each sequence, at the datasheets' bandwidth."""
    bandwidth = {"H100-SXM": 3.35e12, "A100-80GB": 2.039e12, "A10G": 600e9, "L4": 300e9, "T4": 320e9}
    kv_bytes = {
        "llama-2-7b": 2 * 32 * 4096 * 2,
        "llama-2-70b": 2 * 80 * 8 * 128 * 2,
        "mixtral-8x7b": 2 * 32 * 8 * 128 * 2,
    }
    dense_bytes = {"llama-2-7b": 13.2e9, "llama-2-70b": 137e9}  # 16 bits; what decoding reads: not the embedding
    for row in (*SMALL, *LARGE):
        reach = bandwidth[row.gpu] * row.gpus
        weights = dense_bytes.get(row.model, 0.0) * (0.25 if row.weights is Precision.int4 else 1)
        steps = step_model(row.deployment)
        for batch in (1, 64, 512):
            least_s = (weights + batch * 1024 * kv_bytes[row.model]) / reach
            assert float(steps.decode(batch, 1024)) > least_s, (row, batch)
        assert kv_bound(row) == pytest.approx(reach / (1024 * kv_bytes[row.model]), rel=0.01)


def test_c39_the_batch_that_makes_the_stated_figure_is_the_first_that_does() -> None:
    for row in LARGE:
        assert row.stated is not None
        steps = step_model(row.deployment)
        slow = next(batch for batch in range(1, 400) if batch / float(steps.decode(batch, 1024)) >= row.stated)
        assert reaching(row.stated, steps) == slow
    assert reaching(1e9, step_model(LARGE[0].deployment)) is None


def test_c39_the_reasons_follow_from_memory_and_batch() -> None:
    """A T4's 16 GB hold no sequence beside 13.5 GB; an L4's 24 GB some 13 of 0.54 GB."""
    reasons = {row.gpu: why(row) for row in SMALL}
    assert reasons["T4"].startswith("no room")
    assert reasons["L4"].startswith("memory: reading KV alone allows 559 tok/s")  # 300 GB/s over 0.537 GB
    assert why(LARGE[0]).startswith("batch")
    assert "not in the article" in why(RightSizingRow("llama-2-7b", Precision.bf16, "L4", 1, 0.54, None))


def test_c40_the_rule_of_thumb_turns_with_the_prices() -> None:
    prices = {"A100-80GB": 1.0, "H100-SXM": 1.0}
    assert cheapest_gpu("llama-2-13b", prices, CASES[0]) == "H100-SXM"
    assert cheapest_gpu("llama-2-13b", prices | {"H100-SXM": 3.0}, CASES[0]) == "A100-80GB"
    assert small_traffic("llama-3.3-70b", {"L4": 0.5, "H100-SXM": 1.8}) == 0  # three L4 hold no 70B
    one, three = (small_traffic("llama-3.2-3b", {"L4": 0.5, "H100-SXM": price}) for price in (1.0, 1.8))
    assert three == pytest.approx(3 * one)
