"""Compute what answering a prompt with the answer to a similar one saves, and how often that answer is wrong.

The user's prompts go through a cache in order: a prompt whose nearest stored neighbour is at least as similar as the
threshold takes its answer, any other is computed and stored (GPTCache's rule: hits are not stored). Neighbours come
from usearch's approximate index. Whether a hit was right, only labels can say: pairs of texts with a label give the
share of false hits at each threshold.

A hit spares the whole request, so the bill is that of the trace without the hits; the GPU's prefix cache is on in both
runs. Which requests of the trace would hit is not known, so they are drawn at random, one by one: a later turn of a
conversation then finds less of its prompt on the GPU, as it would behind an answer that was never computed. Every other
request waits for its embedding and look-up before it is sent.

Beside the GPUs it costs memory = entries × (vector + links of the graph + answer) and processors = (embedding and
look-up of every request, an entry for every one computed), in whole vCPUs: a process holds its core whether it is asked
or not. A look-up in a graph of neighbours (HNSW) takes longer with the logarithm of the entries (Malkov and Yashunin,
arXiv:1603.09320, section 4.2.1), so one that was measured among few is scaled by that. Random directions, the hardest
case, grow faster while there are few (benchmarks/bench_vector_index.py: 0.9 ms among 4,000, 1.5 ms among 16,000).
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.errors import BadInput
from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR
from tokonomics.money.cost import BeforeAfter, CostLine, CostTree, replica_hour
from tokonomics.physics.deployment import Deployment
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.search import NeverHolds, ReplicasNeeded, replicas_needed
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.prompts import Embedded, Prompts, Vectors, tokens_of
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.traffic.workload import Spread
from tokonomics.types import Noun
from tokonomics.units import BYTES_PER_GB, GIB, SECONDS_PER_HOUR, TOKENS_PER_MTOK, seconds

LINK_BYTES = 16 * 10
"""Bytes of an entry beyond its vector: 16 links, usearch's default, at 8 to 10 bytes each (hnswlib, ALGO_PARAMS.md of
v0.8.0, read 2026-11-17). benchmarks/bench_vector_index.py measured 149 bytes in usearch 2.26.6 on 2026-11-17."""
VCPU_USD_PER_HOUR = ((1.3232 - 0.9776) - 32 * GIB / BYTES_PER_GB * DRAM_USD_PER_GB_HOUR) / 8
"""AWS us-east-1, on demand, 2026-08-22 (offers.csv): g6.4xlarge and g6.2xlarge differ in 8 vCPUs and 32 GiB (and in
150 GB of local disk, which is left in). The price of memory is that of ``money.cache_tiers``."""


class VectorIndex(Noun):
    """An index as measured: the bytes of an entry, and the processor seconds of each operation."""

    bytes_per_vector: NonNegativeInt
    embed_s: NonNegativeFloat = 0.0  # to embed a prompt; 0 if an endpoint does it and charges by the token
    lookup_s: NonNegativeFloat = 0.0
    add_s: NonNegativeFloat = 0.0
    measured_entries: NonNegativeInt = 0  # in the index in which look-ups and entries were timed

    def slower(self, entries: int) -> float:
        """Return how many times as long a look-up takes among that many entries."""
        if self.measured_entries < 2:
            return 1.0
        return max(1.0, math.log(max(entries, 2)) / math.log(self.measured_entries))

    def stored_bytes(self, entries: int, answer_bytes: int) -> int:
        """Return the bytes of vectors, links and all answers, which take ``answer_bytes``."""
        return entries * (self.bytes_per_vector + LINK_BYTES) + answer_bytes

    def vcpus(self, entries: int, requests_per_s: float, added_per_s: float) -> int:
        """Return the whole vCPUs that keep up on average."""
        asked = self.embed_s + self.lookup_s * self.slower(entries)
        busy = requests_per_s * asked + added_per_s * self.add_s * self.slower(entries)
        return math.ceil(round(busy, 9))

    def lines(self, entries: int, answer_bytes: int, requests_per_h: float, added_per_h: float) -> tuple[CostLine, ...]:
        """Return the hourly cost of the index with that many entries."""
        gigabytes = self.stored_bytes(entries, answer_bytes) / BYTES_PER_GB
        vcpus = self.vcpus(entries, requests_per_h / SECONDS_PER_HOUR, added_per_h / SECONDS_PER_HOUR)
        return (
            CostLine(name="index and answers", quantity=gigabytes, unit="GB-hour", usd_per_unit=DRAM_USD_PER_GB_HOUR),
            CostLine(name="processors", quantity=vcpus, unit="vCPU-hour", usd_per_unit=VCPU_USD_PER_HOUR),
        )


THRESHOLDS = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.98, 0.999)
BYTES_PER_TOKEN = 4  # of an answer's text: the characters a token is taken to have (``traffic.prompts``), a byte each


class HitPoint(Noun):
    """The hits at one threshold."""

    threshold: float
    hit_share: NonNegativeFloat
    stored: NonNegativeInt


class LabelPoint(Noun):
    """The result of one threshold on labelled pairs."""

    threshold: float
    accepted: NonNegativeInt  # pairs at least as similar as the threshold
    false_share: float | None  # share of the accepted pairs labelled as different; None if none is accepted
    found_share: float | None  # share of the pairs labelled the same that are accepted


class SemanticHits(Noun):
    """The result of sending the user's prompts through the cache."""

    prompts: NonNegativeInt
    source: str
    embedded_by: str
    means: bool  # False: hashing, which sees spelling only
    exact_share: NonNegativeFloat  # prompts that exactly repeat an earlier one: they need no embedding
    ttl_s: float | None
    points: tuple[HitPoint, ...]
    labels: tuple[LabelPoint, ...] = ()
    embed_s: NonNegativeFloat  # a prompt, as measured
    lookup_s: NonNegativeFloat  # a search in the fullest cache, as measured
    add_s: NonNegativeFloat = 0.0  # mean time to add an entry to the fullest cache, as measured
    embedded_here: bool = True  # on this machine; False: by an endpoint, which charges for it
    bytes_per_entry: NonNegativeInt

    def at(self, threshold: float) -> HitPoint:
        return min(self.points, key=lambda point: abs(point.threshold - threshold))

    @property
    def index(self) -> VectorIndex:
        """Return the index as timed here when it was fullest: at the highest threshold."""
        return VectorIndex(
            bytes_per_vector=self.bytes_per_entry,
            embed_s=self.embed_s if self.embedded_here else 0.0,
            lookup_s=self.lookup_s,
            add_s=self.add_s,
            measured_entries=max((point.stored for point in self.points), default=0),
        )


class SemanticLever(Noun):
    """The bill with a share of the requests answered from the cache."""

    hit_share: NonNegativeFloat
    replicas_before: int
    replicas_after: int
    wait_s: NonNegativeFloat  # for embedding and look-up, before every request that the cache does not answer
    ttft_before_s: Spread | None
    ttft_after_s: Spread | None  # of the requests that are still computed, including the wait; None: there are none
    stored_bytes: NonNegativeInt  # vectors, the links between them and answers of the trace, all kept
    breaks: str | None  # the SLO that the wait breaks on any number of replicas; then there is no bill
    bill: BeforeAfter | None

    @property
    def beside_gpus(self) -> tuple[CostLine, ...]:
        """Return the hourly cost of the cache itself: embedding calls, memory, processors."""
        return self.bill.after.lines[1:] if self.bill else ()

    @property
    def share_of_gpus(self) -> float | None:
        """Return that cost over the bill of the remaining GPUs; None if none remain."""
        gpus = self.bill.after.lines[0].usd if self.bill else 0.0
        return math.fsum(line.usd for line in self.beside_gpus) / gpus if gpus else None


def semantic_hits(
    prompts: Prompts, embedded: Embedded, thresholds: Sequence[float] = THRESHOLDS, ttl_s: float | None = None
) -> SemanticHits:
    """Replay the prompts at every threshold."""
    if ttl_s is not None and prompts.arrival_s is None:
        raise BadInput("needs prompts with times", field="ttl", fix="Add a column arrival_s (seconds) to the file.")
    points, lookup_s, add_s = [], 0.0, 0.0
    for threshold in thresholds:
        hits, stored, lookup_s, add_s = _replay(embedded.vectors, threshold, prompts.arrival_s, ttl_s)
        points.append(HitPoint(threshold=threshold, hit_share=float(hits.mean()), stored=stored))
    return SemanticHits(
        prompts=len(prompts),
        source=prompts.source,
        embedded_by=embedded.how,
        means=embedded.means,
        exact_share=1 - len(set(prompts.texts)) / len(prompts),
        ttl_s=ttl_s,
        points=tuple(points),
        embed_s=embedded.seconds_per_text,
        lookup_s=lookup_s,
        add_s=add_s,
        embedded_here=embedded.here,
        bytes_per_entry=embedded.vectors.shape[1] * 4,
    )


def false_hits(
    first: Vectors, second: Vectors, same: NDArray[np.bool_], thresholds: Sequence[float] = THRESHOLDS
) -> tuple[LabelPoint, ...]:
    """Return what labelled pairs say about each threshold; the vectors have length 1."""
    likeness = np.einsum("ij,ij->i", first, second)
    points = []
    for threshold in thresholds:
        accepted = likeness >= threshold
        count, right = int(accepted.sum()), int((accepted & same).sum())
        false = (count - right) / count if count else None
        found = right / int(same.sum()) if same.any() else None
        points.append(LabelPoint(threshold=threshold, accepted=count, false_share=false, found_share=found))
    return tuple(points)


def semantic_cache_lever(
    deployment: Deployment,
    trace: Trace,
    prompts: Prompts,
    hit_share: float,
    usd_per_replica_hour: Callable[[int], float],
    *,
    embed_usd_per_mtok: float = 0.0,
    wait_s: float = 0.0,
    index: VectorIndex | None = None,
    slos: Sequence[Slo] = (),
    seed: int = 0,
) -> SemanticLever:
    """Bill the trace without that share of its requests, drawn at random; the others wait ``wait_s`` for a look-up.

    The bill includes the embedding of all prompts, memory for what is stored (each prompt that was computed, and its
    answer) and the processors of embedding and index.
    """
    if not 0 <= hit_share <= 1:
        raise BadInput(f"a share of hits is from 0 to 1, got {hit_share}")
    left = trace.sampled(1 - hit_share, seed) if hit_share < 1 else trace.take(np.zeros(0, np.intp))

    def served(requests: Trace, kept: Sequence[Slo]) -> ReplicasNeeded | None:
        if not len(requests):
            return None
        return replicas_needed(Setup(deployment, load_of_requests(requests), slos=tuple(kept)))

    before, after, breaks = served(trace, slos), None, None
    try:
        after = served(left, _sooner(slos, wait_s))
    except NeverHolds as never:
        breaks = never.what
    hours = trace.duration_s / SECONDS_PER_HOUR
    mtok = float(np.mean([tokens_of(text) for text in prompts.texts])) * len(trace) / TOKENS_PER_MTOK
    mtok_per_hour = mtok / hours if hours else 0.0
    embedding = CostLine(name="embedding", quantity=mtok_per_hour, unit="Mtok", usd_per_unit=embed_usd_per_mtok)
    answer_bytes = int(left.output_tokens.sum(dtype=np.int64)) * BYTES_PER_TOKEN
    beside = [embedding]
    if index:
        per_hour = [len(part) / hours if hours else 0.0 for part in (trace, left)]
        beside += index.lines(len(left), answer_bytes, *per_hour)

    def hour(name: str, held: ReplicasNeeded | None, *more: CostLine) -> CostTree:
        replicas = held.replicas if held else 0
        return replica_hour(name, replicas, usd_per_replica_hour(max(1, replicas)), *more)

    later = {name: None if value is None else value + wait_s for name, value in after.outcome.ttft_s} if after else {}
    now, then = hour("no answer reused", before), hour("similar ones answered from the cache", after, *beside)
    return SemanticLever(
        hit_share=hit_share,
        replicas_before=before.replicas if before else 0,
        replicas_after=after.replicas if after else 0,
        wait_s=wait_s,
        ttft_before_s=before.outcome.ttft_s if before else None,
        ttft_after_s=Spread(**later) if after else None,
        stored_bytes=index.stored_bytes(len(left), answer_bytes) if index else 0,
        breaks=breaks,
        bill=None if breaks else BeforeAfter(before=now, after=then),
    )


def _sooner(slos: Sequence[Slo], wait_s: float) -> tuple[Slo, ...]:
    """Subtract a wait that is the same for all requests from the SLOs: it only moves every arrival."""
    waiting = [slo for slo in slos if slo.latency is not Latency.tpot]
    for slo in waiting:
        if slo.seconds <= wait_s:
            late = f"{slo} is {seconds(slo.seconds)}, the look-up alone takes {seconds(wait_s)}"
            raise NeverHolds(NotServed(Reason.too_slow, late))
    return tuple(slo.model_copy(update={"seconds": slo.seconds - wait_s}) if slo in waiting else slo for slo in slos)


def _replay(
    vectors: Vectors, threshold: float, arrival_s: Floats | None, ttl_s: float | None
) -> tuple[NDArray[np.bool_], int, float, float]:
    """Return which prompts hit, how many are stored in the end, and the seconds of a search then and of adding one."""
    index = _index(vectors.shape[1])
    hits = np.zeros(len(vectors), bool)
    stored: list[int] = []
    oldest, adding_s = 0, 0.0
    ttl = math.inf if ttl_s is None else ttl_s
    for place, vector in enumerate(vectors):
        if arrival_s is not None:
            while oldest < len(stored) and arrival_s[place] - arrival_s[stored[oldest]] > ttl:
                index.remove(stored[oldest])
                oldest += 1
        if oldest < len(stored):
            nearest = index.search(vector, 1)
            hits[place] = len(nearest.distances) > 0 and 1.0 - float(nearest.distances[0]) >= threshold
        if not hits[place]:
            began = time.perf_counter()
            index.add(place, vector)
            adding_s += time.perf_counter() - began
            stored.append(place)
    sample = vectors[:: max(1, len(vectors) // 200)]
    began = time.perf_counter()
    for vector in sample:
        index.search(vector, 1)
    lookup_s = (time.perf_counter() - began) / len(sample)
    return hits, len(stored) - oldest, lookup_s, adding_s / max(1, len(stored))


def _index(width: int) -> Any:
    try:
        from usearch.index import Index as Usearch
    except ImportError:
        fix = "In a checkout: pip install '.[semantic]'"
        raise BadInput("usearch is not installed", field="semantic", fix=fix) from None
    return Usearch(ndim=width, metric="cos", dtype="f32")
