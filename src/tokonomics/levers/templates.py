"""Find which parts of the prompts are fixed, and what it saves to compute their KV once and keep it.

With block hashes, a fixed part is a chain of leading blocks that many requests share: the longest such chain of each
request is its template. With texts, prompts with the same first words are a group; a word is fixed if eight words in a
row around it are found in nearly all of the group. Only the words before the first dynamic word can be reused as they
are: KV depends on everything before. Fixed words further back could be reused if the prompt were reordered.

A kept template is computed once on each replica; after that its requests skip its prefill. The trace is simulated with
the GPU's LRU cache as it is, and with the templates pinned in memory that the cache then lacks; each prompt is charged
the predicted time of computing what was not found, after what was found. Approximations: each prompt is computed alone
and in one piece, and a template in use is held beside its pinned copy (one each, so memory is overestimated).
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput
from tokonomics.money.cost import BeforeAfter, CostLine, CostTree
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, Fetches
from tokonomics.serving.tiers import gpu_cache_bytes, kv_bytes_per_token, kv_bytes_per_token_and_gpu
from tokonomics.traffic.prompts import Prompts, tokens_of
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

LEAST_SHARE = 0.01  # share of the requests that must share a beginning to make it a template
_MOST_TEMPLATES = 20
_MOST_ROOM = 0.5  # of the GPUs' room for KV that may be pinned (assumed: running requests need the rest)
_HEAD_WORDS = 8
_SHINGLE = 8
_NEARLY_ALL = 0.9


class Template(Noun):
    """A fixed beginning that many requests share."""

    requests: PositiveInt
    fixed_tokens: PositiveInt
    mean_tokens: NonNegativeFloat  # of its requests' whole prompts
    kv_bytes: NonNegativeInt
    once_s: NonNegativeFloat  # to compute it, on one replica
    saved_s_per_request: NonNegativeFloat
    """The prefill time that a request of mean length saves: its first tokens are its cheapest."""


class TemplateLever(Noun):
    """The saving of keeping the templates' KV, in prefill time at the replica's price."""

    templates: tuple[Template, ...]
    requests: NonNegativeInt
    covered_share: NonNegativeFloat  # of the requests that follow a template
    fixed_share: NonNegativeFloat  # of all prompt tokens
    pinned: NonNegativeInt  # templates that are kept: those that save most, in at most half of the room for KV
    kv_bytes: NonNegativeInt  # of those, on each replica; shared blocks count once
    room_share: NonNegativeFloat  # share of the GPUs' room for KV, which the cache then lacks
    once_usd: NonNegativeFloat  # to compute them on every replica
    bill: BeforeAfter
    """Prefill of an hour: with the cache as it is, and with templates kept, each computed once in the trace."""


class TextTemplate(Noun):
    """A group of prompts with the same first words."""

    begins: str
    prompts: PositiveInt
    tokens: NonNegativeFloat  # of a prompt, in the mean; estimated from its length
    fixed_head_tokens: NonNegativeFloat  # before the first dynamic word: a prefix cache reuses them as they are
    fixed_later_tokens: NonNegativeFloat  # after it: reusable only if they are moved to the front


@dataclass(frozen=True)
class _Fixed:
    """The part that each request of a trace shares with many others."""

    template: NDArray[np.int64]  # by request: the last block of its template, which names it; -1 without one
    blocks: NDArray[np.int64]  # by request: of that template
    block_tokens: int


def _fixed(trace: Trace, least_share: float) -> _Fixed:
    prefix = trace.prefix
    if prefix is None:
        raise BadInput("does not say which blocks its prompts share", where=trace.source)
    uses = np.bincount(prefix.ids, minlength=prefix.distinct)
    least = max(2, math.ceil(least_share * len(trace)))
    lengths = np.diff(prefix.starts)
    place = np.arange(len(prefix.ids)) - np.repeat(prefix.starts[:-1], lengths)
    owner = np.repeat(np.arange(len(trace)), lengths)
    # Ids are chained, so later blocks of a request are never used more: shared blocks come first.
    blocks = np.bincount(owner[uses[prefix.ids] >= least], minlength=len(trace))
    template = np.full(len(trace), -1, np.int64)
    ends = place == blocks[owner] - 1
    template[owner[ends]] = prefix.ids[ends]
    return _Fixed(template, blocks, prefix.block_tokens)


def _templates(trace: Trace, deployment: Deployment, fixed: _Fixed) -> list[tuple[int, Template]]:
    model, per_token = step_model(deployment), kv_bytes_per_token(deployment)
    found = []
    for block in np.unique(fixed.template[fixed.template >= 0]):
        own = np.flatnonzero(fixed.template == block)
        tokens = int(fixed.blocks[own[0]]) * fixed.block_tokens
        mean = float(trace.input_tokens[own].mean())
        rest = max(1.0, mean - tokens)
        template = Template(
            requests=len(own),
            fixed_tokens=tokens,
            mean_tokens=mean,
            kv_bytes=tokens * per_token,
            once_s=float(model.prefill(tokens)),
            saved_s_per_request=max(0.0, float(model.prefill(tokens + rest) - model.prefill(rest, tokens))),
        )
        found.append((int(block), template))
    return sorted(found, key=lambda entry: -entry[1].requests * entry[1].fixed_tokens)


def template_lever(
    deployment: Deployment,
    trace: Trace,
    usd_per_replica_hour: float,
    *,
    replicas: int = 1,
    least_share: float = LEAST_SHARE,
) -> TemplateLever:
    """Pin the templates on every replica; simulate the trace with the GPU's cache as it is, and with them."""
    fixed = _fixed(trace, least_share)
    templates = _templates(trace, deployment, fixed)
    pinned, blocks, once_s = _pinned(trace, deployment, fixed, templates)
    now = simulate(deployment, trace, FleetSettings(replicas=replicas))
    now_s = kept_s = _prefill_s(now)
    if pinned:
        taken_bytes = blocks * fixed.block_tokens * kv_bytes_per_token_and_gpu(deployment)
        tokens = np.where(np.isin(fixed.template, list(pinned)), fixed.blocks * fixed.block_tokens, 0)
        there = Fetches(np.minimum(tokens, trace.input_tokens).astype(np.int32), np.zeros(len(trace)))
        kept = simulate(with_less_room(deployment, taken_bytes), trace, now.fleet, fetches=there)
        kept_s = _prefill_s(kept)
    hours = max(trace.duration_s, 1.0) / SECONDS_PER_HOUR
    covered = np.minimum(fixed.blocks * fixed.block_tokens, trace.input_tokens)
    kv_bytes = blocks * fixed.block_tokens * kv_bytes_per_token(deployment)

    def line(name: str, busy_s: float) -> CostLine:
        busy_hours = busy_s / SECONDS_PER_HOUR / hours
        return CostLine(name=name, quantity=busy_hours, unit="replica-hour", usd_per_unit=usd_per_replica_hour)

    once = line("templates, once", once_s * replicas)
    return TemplateLever(
        templates=tuple(template for _, template in templates[:_MOST_TEMPLATES]),
        requests=len(trace),
        covered_share=float((fixed.template >= 0).mean()),
        fixed_share=float(covered.sum()) / float(trace.input_tokens.sum(dtype=np.int64)),
        pinned=len(pinned),
        kv_bytes=kv_bytes,
        room_share=kv_bytes / max(1, gpu_cache_bytes(deployment)),
        once_usd=once.usd * hours,
        bill=BeforeAfter(
            before=CostTree(name="cache as it is", lines=(line("prefill", now_s),)),
            after=CostTree(name="templates kept", lines=(line("prefill", kept_s), once)),
        ),
    )


def _pinned(
    trace: Trace, deployment: Deployment, fixed: _Fixed, templates: list[tuple[int, Template]]
) -> tuple[set[int], int, float]:
    """Return the templates to keep, largest saving first; their distinct blocks, and the seconds to compute them."""
    prefix, model = trace.prefix, step_model(deployment)
    assert prefix is not None
    room = _MOST_ROOM * gpu_cache_bytes(deployment) / (fixed.block_tokens * kv_bytes_per_token(deployment))
    pinned: set[int] = set()
    held: set[int] = set()
    once_s = 0.0
    for name, _ in templates:
        request = int(np.argmax(fixed.template == name))
        chain = prefix.blocks_of(request)[: fixed.blocks[request]].tolist()
        # Ids are chained, so another template can share only its beginning.
        new = [block for block in chain if block not in held]
        if len(held) + len(new) > room:
            continue
        if new:
            past = len(chain) - len(new)
            once_s += float(model.prefill(len(new) * fixed.block_tokens, past * fixed.block_tokens))
        pinned.add(name)
        held.update(new)
    return pinned, len(held), once_s


def _prefill_s(simulation: Simulation) -> float:
    """Return the seconds of a replica that the prompts took, each computed alone, after what was found of it."""
    served = simulation.served
    done = served.status == DONE
    found = served.cached_tokens[done].astype(np.float64)
    rest = simulation.trace.input_tokens[done] - found
    return float(step_model(simulation.deployment).prefill(rest, found).sum())


def with_less_room(deployment: Deployment, taken_bytes: float) -> Deployment:
    """Return the deployment with that much less memory for KV on its GPUs."""
    gpu, before = deployment.gpu, kv_budget_bytes(deployment)

    def smaller(by: int) -> Deployment:
        # Reduce the memory that processes see, not the installed one, by which engines choose their limits.
        return deployment.model_copy(update={"gpu": gpu.model_copy(update={"visible_bytes": gpu.usable_bytes - by})})

    # The engine only uses a share of the memory, so more than the difference is removed.
    by = math.ceil(taken_bytes)
    missed = max(1, before - kv_budget_bytes(smaller(by)))
    return smaller(math.ceil(by * taken_bytes / missed))


def text_templates(prompts: Prompts, least_share: float = LEAST_SHARE) -> tuple[TextTemplate, ...]:
    """Return groups of prompts with the same first eight words, most fixed tokens first."""
    groups: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for text in prompts.texts:
        words = text.split()
        if len(words) >= _HEAD_WORDS:
            groups[tuple(words[:_HEAD_WORDS])].append(words)
    least = max(2, math.ceil(least_share * len(prompts)))
    found = [_text_template(head, group) for head, group in groups.items() if len(group) >= least]
    return tuple(sorted(found, key=lambda text: -text.prompts * (text.fixed_head_tokens + text.fixed_later_tokens)))


def _text_template(head: tuple[str, ...], group: list[list[str]]) -> TextTemplate:
    seen: Counter[tuple[str, ...]] = Counter()
    for words in group:
        seen.update({tuple(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1)})
    fixed = {shingle for shingle, times in seen.items() if times >= _NEARLY_ALL * len(group)}
    heads, laters, tokens = [], [], []
    for words in group:
        marked = np.zeros(len(words), bool)
        for at in range(len(words) - _SHINGLE + 1):
            if tuple(words[at : at + _SHINGLE]) in fixed:
                marked[at : at + _SHINGLE] = True
        first_dynamic = int(np.argmin(marked)) if not marked.all() else len(words)
        behind = [words[at] for at in range(first_dynamic, len(words)) if marked[at]]
        heads.append(tokens_of(" ".join(words[:first_dynamic])) if first_dynamic else 0)
        laters.append(tokens_of(" ".join(behind)) if behind else 0)
        tokens.append(tokens_of(" ".join(words)))
    return TextTemplate(
        begins=" ".join(head),
        prompts=len(group),
        tokens=float(np.mean(tokens)),
        fixed_head_tokens=float(np.mean(heads)),
        fixed_later_tokens=float(np.mean(laters)),
    )
