"""Compute what slower memories behind the GPU's prefix cache give to each request, and how long fetching takes.

Every tier keeps a copy of all computed KV (write-through, as LMCache and SGLang's HiCache do) and evicts the least
recently used, so its hits are those of the trace replayed through a cache of its size: one for each replica, or one for
all if the tier is shared. Engines fetch whatever a tier has, even where computing it is quicker: vLLM 0.26 (a grid of
loads on an H200, benchmarks/data/vllm_h200_levers.json.gz, 2026-11-19), LMCache (its issue 3641 asks for a way to
recompute instead) and HiCache from 256 tokens on (its design page). Fetches of a replica follow each other on its link;
a request joins the queue when its own is complete.

A tier behind host memory is written from there, at its own speed. KV that comes faster waits in host memory; what does
not fit there is dropped, and while some waits for room nothing is fetched, as that takes room too: the same servers
stored 39 of 61 GB, and fetched next to nothing meanwhile. Such a tier is looked up beside the engine, so each request
waits for one more step.

The replica of a request, and what it finds on its GPU, come from a simulation without the tiers. It errs both ways: a
fetch begins at arrival and not when its turn comes (too fast under load), a block may be found in a tier before it has
been written (too fast by the time of a prompt), and a fetched block that has since reached the GPU is fetched again
(too slow). In a closed loop the simulation without the tiers also says when requests are sent: the tiers answer sooner,
so that their content and the load of their links are computed at too low a load.
"""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes, layer_kv_bytes
from tokonomics.physics.steptime import step_model
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import Fetches
from tokonomics.traffic.prefix_reuse import FoundBySize, Replayed, SlowWrites, found_by_size, reuse_within
from tokonomics.traffic.trace import Floats, PrefixBlocks
from tokonomics.types import Noun

_GRID = 512  # positions at which computing and fetching are compared
STAGING_BYTES = 5e9
"""Host memory of each GPU's worker in front of a disk, if no other is given: LMCache's ``max_local_cpu_size``."""


class Tier(Noun):
    """A memory for KV beyond the GPUs'."""

    name: str
    size_bytes: NonNegativeFloat  # of one replica, or of all together if shared
    bytes_per_s: PositiveFloat
    """Into one GPU; the GPUs of a replica fetch their parts in parallel, each over its own link."""
    write_bytes_per_s: PositiveFloat | None = None
    """Likewise, from host memory; None: the tier is host memory, which the GPUs write faster than they compute."""
    shared: bool = False
    ttl_s: PositiveFloat | None = None  # KV unused for this long is dropped; None: only when room is needed


class TierHits(Noun):
    """What a tier gave over a whole trace."""

    name: str
    tokens: int  # prompt tokens fetched from it: all that it had and no faster memory did
    unwritten_tokens: int  # computed, and never stored there: they came faster than it is written
    saved_share: float
    """Of the time that prompts take without any cache, each in full chunks: what fetching these tokens saves."""
    compute_s: float  # that time
    busy_s: float  # busy time of its links, all replicas together
    quicker_from_bytes_per_s: float | None
    """The speed from which these fetches together take less time than computing; None: they do, or there are none."""
    held_bytes: float  # the most it ever held, of one replica, or of all if shared


def kv_bytes_per_token(deployment: Deployment) -> int:
    """Return the bytes of a token in a tier: all layers, each KV head once."""
    token_bytes = deployment.model.kv_bytes_in_windows(deployment.kv)
    if token_bytes <= 0:
        raise BadInput(f"{deployment.model.name} has no KV cache that grows with the prompt: nothing can be fetched")
    return token_bytes


def kv_bytes_per_token_and_gpu(deployment: Deployment) -> float:
    """Return the bytes of a token on the fullest GPU: its heads in its stage's layers.

    If there are more ranks than KV heads, they hold copies, and every rank holds MLA's latent vector whole: then it is
    not the replica's bytes divided by the number of GPUs.
    """
    groups = deployment.model.groups
    token = sum(group.count * layer_kv_bytes(group.mixer, deployment) for group in groups if group.mixer)
    stage = math.ceil(deployment.model.layers / deployment.pp) / deployment.model.layers
    return token * stage


def gpu_cache_bytes(deployment: Deployment) -> int:
    """Return the KV that fits a replica's GPUs, each head counted once even if several ranks hold a copy."""
    tokens = max(0, kv_budget_bytes(deployment)) / kv_bytes_per_token_and_gpu(deployment)
    return math.floor(tokens * kv_bytes_per_token(deployment)) * deployment.dp


def fetch_s(deployment: Deployment, tier: Tier, tokens: NDArray[np.int64] | int) -> Floats:
    """Return the seconds to bring the KV of these tokens to a replica's GPUs over free links: every rank its copy."""
    return np.asarray(np.asarray(tokens) * kv_bytes_per_token_and_gpu(deployment) / tier.bytes_per_s, np.float64)


def compute_s(deployment: Deployment, tokens: NDArray[np.int64] | int, past: NDArray[np.int64] | int) -> Floats:
    """Return the seconds to compute these tokens of a prompt after ``past``, as a share of the engine's full chunk."""
    chunk = deployment.group_limits.max_batched_tokens
    return np.asarray(step_model(deployment).prefill(chunk, past) * np.asarray(tokens) / chunk, np.float64)


def break_even_position(deployment: Deployment, tier: Tier, block_tokens: int = 16) -> int | None:
    """Return the first position in a prompt from which fetching a block is quicker than computing it; None: nowhere.

    A token late in a prompt attends to all before it, so computing it takes longer; its KV is as large as any.
    """
    last = max(0, deployment.model.max_context - block_tokens)
    # A grid of powers finds it to within 2 %, then every position between two of them is tried.
    places = np.unique(np.concatenate([[0], np.geomspace(1, max(last, 1), _GRID).astype(np.int64)]))
    fetched_s = float(fetch_s(deployment, tier, block_tokens))
    wins = compute_s(deployment, block_tokens, places) > fetched_s
    if not wins.any():
        return None
    first = int(np.argmax(wins))
    if first == 0:
        return 0
    between = np.arange(places[first - 1] + 1, places[first] + 1)
    return int(between[np.argmax(compute_s(deployment, block_tokens, between) > fetched_s)])


def prompts_take_s(simulation: Simulation) -> tuple[float, float]:
    """Return the time of a trace's prompts in full chunks: computed whole, and without what the GPUs' caches found."""
    served, tokens = simulation.served, simulation.trace.input_tokens.astype(np.int64)
    found = np.minimum(served.cached_tokens.astype(np.int64), tokens)
    ways = (compute_s(simulation.deployment, tokens - past, past) for past in (np.zeros_like(found), found))
    whole, computed = (float(seconds[served.replica >= 0].sum()) for seconds in ways)
    return whole, computed


def plan_fetches(simulation: Simulation, tiers: tuple[Tier, ...]) -> tuple[Fetches, tuple[TierHits, ...]]:
    """Return what each request of a simulated trace fetches, fastest tier first: all that is there."""
    trace, deployment = simulation.trace, simulation.deployment
    if trace.prefix is None:
        raise BadInput("does not say which blocks its prompts share: there is nothing to keep", where=trace.source)
    served = simulation.served
    block = simulation.rules.block_tokens
    most = (trace.input_tokens.astype(np.int64) - 1) // block * block
    found = np.minimum(served.cached_tokens.astype(np.int64), most)
    prompts_s, _ = prompts_take_s(simulation)
    delay = np.zeros(len(trace))
    host_bytes = sum(tier.size_bytes for tier in tiers if tier.write_bytes_per_s is None)
    hits = []
    for tier in sorted(tiers, key=lambda tier: -tier.bytes_per_s):
        there, held, unwritten = _there(simulation, trace.prefix, tier, host_bytes, found)
        missing = np.where(served.replica >= 0, np.maximum(np.minimum(there, most) - found, 0), 0)
        takes = fetch_s(deployment, tier, missing)
        looks_s = 0.0 if tier.write_bytes_per_s is None else mean_step_s(simulation)
        computing, busy = float(compute_s(deployment, missing, found).sum()), float(takes.sum())
        delay = np.maximum(delay, looks_s + _delays(trace.arrival_s + looks_s, takes, served.replica))
        found = found + missing
        hits.append(
            TierHits(
                name=tier.name,
                tokens=int(missing.sum()),
                unwritten_tokens=unwritten * trace.prefix.block_tokens,
                saved_share=computing / prompts_s if prompts_s else 0.0,
                compute_s=computing,
                busy_s=busy,
                quicker_from_bytes_per_s=tier.bytes_per_s * busy / computing if busy > computing else None,
                held_bytes=float(held * trace.prefix.block_tokens * kv_bytes_per_token(deployment)),
            )
        )
    fetches = Fetches(found.astype(np.int32), delay)
    if simulation.sent is not None:
        # By request of the original trace, before a closed loop changed the order.
        as_given = np.argsort(simulation.sent)
        fetches = Fetches(fetches.tokens[as_given], fetches.delay_s[as_given])
    return fetches, tuple(hits)


def mean_step_s(simulation: Simulation) -> float:
    """Return the mean time of an engine step."""
    steps = int(simulation.replicas["steps"].sum())
    return float(simulation.replicas["busy_s"].sum()) / steps if steps else 0.0


def tiers_of_every_size(simulation: Simulation, *, shared: bool = False) -> FoundBySize:
    """Return what a tier finds for the requests of a simulation, by its size: for each replica, or one for all."""
    trace, replica = simulation.trace, simulation.served.replica
    if trace.prefix is None:
        return found_by_size()
    served = np.where(replica >= 0, 0, -1) if shared else replica
    groups = [np.flatnonzero(served == place) for place in np.unique(served[served >= 0])]
    return found_by_size(*((trace.prefix.take(own), trace.input_tokens[own]) for own in groups))


def _there(
    simulation: Simulation, prefix: PrefixBlocks, tier: Tier, host_bytes: float, found: NDArray[np.int64]
) -> Replayed:
    """Return what a tier holds of each prompt, behind so much host memory and what was found in faster ones."""
    trace, deployment = simulation.trace, simulation.deployment
    block_bytes = prefix.block_tokens * kv_bytes_per_token(deployment)
    capacity = int(tier.size_bytes // block_bytes)
    there = np.zeros(len(trace), np.int32)
    most = unwritten = 0
    replica = simulation.served.replica
    groups = [np.flatnonzero(replica == place) for place in np.unique(replica)]
    for own in [np.arange(len(trace))] if tier.shared else groups:
        writes = None
        if tier.write_bytes_per_s is not None:
            block = prefix.block_tokens
            writes = SlowWrites(
                block_s=block * kv_bytes_per_token_and_gpu(deployment) / tier.write_bytes_per_s,
                front_blocks=(host_bytes or STAGING_BYTES * deployment.gpus) // block_bytes,
                chunk_blocks=max(1, deployment.group_limits.max_batched_tokens // block),
                link=np.maximum(replica[own], 0) if tier.shared else np.zeros(len(own), np.int32),
                have=found[own] // block,
                computing_s=compute_s(deployment, np.maximum(trace.input_tokens[own] - found[own], 0), found[own]),
            )
        came = trace.input_tokens[own], trace.arrival_s[own]
        made = reuse_within(prefix.take(own), *came, capacity, tier.ttl_s, writes)
        there[own] = made.tokens
        most, unwritten = max(most, made.most_blocks), unwritten + made.unwritten_blocks
    return Replayed(there, most, unwritten)


def _delays(arrival_s: Floats, takes_s: Floats, replica: NDArray[np.int16]) -> Floats:
    """Return the time from arrival to the end of each request's fetch; fetches of a replica follow each other."""
    delays = np.zeros(len(arrival_s))
    for place in np.unique(replica[takes_s > 0]):
        own = np.flatnonzero((replica == place) & (takes_s > 0))
        work = np.cumsum(takes_s[own])
        # The link was idle until the latest arrival that found it idle: end = work so far + the longest wait.
        ends = work + np.maximum.accumulate(arrival_s[own] - (work - takes_s[own]))
        delays[own] = ends - arrival_s[own]
    return delays
