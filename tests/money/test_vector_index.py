"""What a cache of answers costs beside the GPUs, by hand."""

import pytest
from tests.there import there

from tokonomics.catalog.offers import SNAPSHOT, load_offers
from tokonomics.levers.semantic_cache import LINK_BYTES, VCPU_USD_PER_HOUR, VectorIndex
from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR


def test_a_million_entries_of_a_small_model() -> None:
    """384 numbers of 4 bytes, 16 links of 10, an answer of 300 tokens of 4 bytes: 2.9 GB, under a cent an hour."""
    memory, processors = VectorIndex(bytes_per_vector=1536).lines(10**6, 10**6 * 1200, 3600.0, 3600.0)
    assert memory.quantity == pytest.approx((1536 + 160 + 1200) / 1000)
    assert memory.usd == pytest.approx(2.896 * 0.216 / 68.72, rel=1e-3)
    assert processors.quantity == 0


def test_processors_are_whole_and_the_look_up_grows_with_the_logarithm() -> None:
    index = VectorIndex(bytes_per_vector=1536, embed_s=0.01, lookup_s=0.001, add_s=0.002, measured_entries=1000)
    assert index.vcpus(1000, requests_per_s=50, added_per_s=40) == 1  # 0.63 of one
    assert index.vcpus(1000, requests_per_s=100, added_per_s=80) == 2  # 1.26
    assert index.slower(10**6) == pytest.approx(2)  # six digits against three
    assert index.slower(10) == 1
    assert index.vcpus(10**6, requests_per_s=100, added_per_s=80) == 2  # 100 × 12 ms + 80 × 4 ms = 1.52


def test_the_price_of_a_vcpu_is_what_two_machines_differ_by() -> None:
    small, large = (
        next(
            offer
            for offer in load_offers(SNAPSHOT)
            if (offer.provider, offer.region, offer.instance) == ("aws", "us-east-1", name)
        )
        for name in ("g6.2xlarge", "g6.4xlarge")
    )
    parts = 8 * VCPU_USD_PER_HOUR + 32 * 1.073741824 * DRAM_USD_PER_GB_HOUR
    assert parts == pytest.approx(there(large.usd_per_hour) - there(small.usd_per_hour))
    assert LINK_BYTES == 160
