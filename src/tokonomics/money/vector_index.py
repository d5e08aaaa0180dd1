"""What keeping answers for similar prompts costs beside the GPUs: memory, processors and embedding calls.

    memory     = entries × (vector + links of the graph + answer)
    processors = (embedding + look-up for every request, an entry for every one computed), in whole vCPUs

A process holds its core whether it is asked or not, so vCPUs are paid whole. A look-up in a graph of neighbours (HNSW)
takes longer with the logarithm of the entries (Malkov and Yashunin, arXiv:1603.09320, section 4.2.1), so one that was
measured among few is scaled by that. Random directions, the hardest case, grow faster while there are few
(benchmarks/bench_vector_index.py: 0.9 ms among 4,000, 1.5 ms among 16,000); both are little beside an embedding.
"""

import math

from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR
from tokonomics.money.cost import CostLine
from tokonomics.types import Noun
from tokonomics.units import BYTES_PER_GB, GIB, SECONDS_PER_HOUR

LINK_BYTES = 16 * 10
"""Of an entry, beyond its vector: 16 links, usearch's default, at 8 to 10 bytes each (hnswlib, ALGO_PARAMS.md of
v0.8.0, read 2026-11-17). benchmarks/bench_vector_index.py measured 149 bytes in usearch 2.26.6 on 2026-11-17."""
VCPU_USD_PER_HOUR = ((1.3232 - 0.9776) - 32 * GIB / BYTES_PER_GB * DRAM_USD_PER_GB_HOUR) / 8
"""AWS us-east-1, on demand, 2026-08-22 (offers.csv): g6.4xlarge and g6.2xlarge differ in 8 vCPUs and 32 GiB (and in
150 GB of local disk, which is left in). The price of memory is that of ``money.cache_tiers``."""


class VectorIndex(Noun):
    """An index as measured: what an entry takes, and processor seconds of what is done with it."""

    bytes_per_vector: NonNegativeInt
    embed_s: NonNegativeFloat = 0.0
    """Processor seconds of embedding a prompt; 0 where others do it and charge by the token."""
    lookup_s: NonNegativeFloat = 0.0
    add_s: NonNegativeFloat = 0.0
    measured_entries: NonNegativeInt = 0
    """In the index in which look-ups and entries were timed."""

    def slower(self, entries: int) -> float:
        """How many times as long a look-up takes among so many entries."""
        if self.measured_entries < 2:
            return 1.0
        return max(1.0, math.log(max(entries, 2)) / math.log(self.measured_entries))

    def stored_bytes(self, entries: int, answer_bytes: int) -> int:
        """Vectors, links and the answers, all together ``answer_bytes``."""
        return entries * (self.bytes_per_vector + LINK_BYTES) + answer_bytes

    def vcpus(self, entries: int, requests_per_s: float, added_per_s: float) -> int:
        """Whole ones that keep up in the mean."""
        asked = self.embed_s + self.lookup_s * self.slower(entries)
        busy = requests_per_s * asked + added_per_s * self.add_s * self.slower(entries)
        return math.ceil(round(busy, 9))

    def lines(self, entries: int, answer_bytes: int, requests_per_h: float, added_per_h: float) -> tuple[CostLine, ...]:
        """An hour of it, with that many entries."""
        gigabytes = self.stored_bytes(entries, answer_bytes) / BYTES_PER_GB
        vcpus = self.vcpus(entries, requests_per_h / SECONDS_PER_HOUR, added_per_h / SECONDS_PER_HOUR)
        return (
            CostLine(name="index and answers", quantity=gigabytes, unit="GB-hour", usd_per_unit=DRAM_USD_PER_GB_HOUR),
            CostLine(name="processors", quantity=vcpus, unit="vCPU-hour", usd_per_unit=VCPU_USD_PER_HOUR),
        )
