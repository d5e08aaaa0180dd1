"""Which parts of the prompts are fixed, and what it saves to compute their KV once and keep it.

With block hashes, a fixed part is a chain of leading blocks that many requests share: the longest such chain of each
request is its template. With texts, prompts with the same first words are a group; a word is fixed where eight words
in a row around it are found in nearly all of the group. Only what stands before the first dynamic word can be reused as
it is: KV depends on all that comes before. Fixed words further back could be, if the prompt were put in another order.

A kept template is computed once on each replica; after that every request of it skips its prefill. What the GPU's LRU
cache would have kept anyway is not saved twice: the simulated cache is taken off.
"""

import math
from collections import Counter, defaultdict

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.money.levers.bill import LeverBill
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.serving.tiers import kv_bytes_per_token
from tokonomics.traffic.prompts import Prompts, tokens_of
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_HOUR

LEAST_SHARE = 0.01
"""Of the requests that must share a beginning for it to be a template."""
_MOST_TEMPLATES = 20
_HEAD_WORDS = 8
_SHINGLE = 8
_NEARLY_ALL = 0.9


class Template(Noun):
    """A fixed beginning that many requests share."""

    requests: PositiveInt
    fixed_tokens: PositiveInt
    mean_tokens: NonNegativeFloat
    """Of its requests' whole prompts."""
    kv_bytes: NonNegativeInt
    once_s: NonNegativeFloat
    """To compute it, on one replica."""
    saved_s_per_request: NonNegativeFloat
    """Prefill that a request does not do."""


class TemplateLever(Noun):
    """What keeping the templates' KV saves, in prefill time at the replica's price."""

    templates: tuple[Template, ...]
    requests: NonNegativeInt
    covered_share: NonNegativeFloat
    """Of the requests that follow a template."""
    fixed_share: NonNegativeFloat
    """Of all prompt tokens."""
    kv_bytes: NonNegativeInt
    once_usd: NonNegativeFloat
    """To compute all of them on every replica."""
    bill: LeverBill
    """Prefill of an hour: with the cache as it is, and with the templates kept for good."""


class TextTemplate(Noun):
    """A group of prompts with the same first words."""

    begins: str
    prompts: PositiveInt
    tokens: NonNegativeFloat
    """Of a prompt, in the mean; estimated from its length."""
    fixed_head_tokens: NonNegativeFloat
    """Before the first dynamic word: a prefix cache reuses them as they are."""
    fixed_later_tokens: NonNegativeFloat
    """Behind it: reusable only if they are moved to the front."""


def block_templates(
    trace: Trace, deployment: Deployment, least_share: float = LEAST_SHARE
) -> tuple[tuple[Template, ...], float, float]:
    """Templates by the tokens they save, largest first; the shares of requests and of prompt tokens they cover."""
    prefix = trace.prefix
    if prefix is None:
        raise BadInput("does not say which blocks its prompts share", where=trace.source)
    uses = np.bincount(prefix.ids, minlength=prefix.distinct)
    least = max(2, math.ceil(least_share * len(trace)))
    lengths = np.diff(prefix.starts)
    place = np.arange(len(prefix.ids)) - np.repeat(prefix.starts[:-1], lengths)
    owner = np.repeat(np.arange(len(trace)), lengths)
    # Ids are chained, so the uses of a request's blocks never rise: shared ones are its first ones.
    shared = np.bincount(owner[uses[prefix.ids] >= least], minlength=len(trace))
    last = prefix.ids[(place == shared[owner] - 1)]
    with_one = np.flatnonzero(shared > 0)
    fixed = np.minimum(shared[with_one] * prefix.block_tokens, trace.input_tokens[with_one])
    model, per_token = step_model(deployment), kv_bytes_per_token(deployment)
    made = []
    for block in np.unique(last):
        own = with_one[last == block]
        tokens = int(shared[own[0]]) * prefix.block_tokens
        spent = float(model.prefill(tokens, 0))
        made.append(
            Template(
                requests=len(own),
                fixed_tokens=tokens,
                mean_tokens=float(trace.input_tokens[own].mean()),
                kv_bytes=tokens * per_token,
                once_s=spent,
                saved_s_per_request=spent,
            )
        )
    made.sort(key=lambda each: -each.requests * each.fixed_tokens)
    total = float(trace.input_tokens.sum(dtype=np.int64))
    return tuple(made), len(with_one) / len(trace), float(fixed.sum()) / total


def template_lever(
    deployment: Deployment,
    trace: Trace,
    usd_per_replica_hour: float,
    *,
    replicas: int = 1,
    cached_share: float = 0.0,
    least_share: float = LEAST_SHARE,
) -> TemplateLever:
    """Keep every template for good; ``cached_share`` of the prompt tokens is found by the GPU's cache as it is."""
    found, covered, fixed_share = block_templates(trace, deployment, least_share)
    hours = max(trace.duration_s, 1.0) / SECONDS_PER_HOUR
    prefill_s = float(step_model(deployment).prefill(trace.input_tokens.astype(np.float64)).sum())
    now_s = prefill_s * (1 - cached_share)
    kept_s = prefill_s * (1 - max(cached_share, fixed_share))
    once_s = sum(each.once_s for each in found) * replicas
    return TemplateLever(
        templates=found[:_MOST_TEMPLATES],
        requests=len(trace),
        covered_share=covered,
        fixed_share=fixed_share,
        kv_bytes=sum(each.kv_bytes for each in found),
        once_usd=once_s / SECONDS_PER_HOUR * usd_per_replica_hour,
        bill=LeverBill(
            before=_prefill_bill("cache as it is", now_s / hours, usd_per_replica_hour),
            after=_prefill_bill("templates kept", kept_s / hours, usd_per_replica_hour),
        ),
    )


def text_templates(prompts: Prompts, least_share: float = LEAST_SHARE) -> tuple[TextTemplate, ...]:
    """Groups of prompts with the same first eight words, those with most fixed tokens first."""
    groups: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for text in prompts.texts:
        words = text.split()
        if len(words) >= _HEAD_WORDS:
            groups[tuple(words[:_HEAD_WORDS])].append(words)
    least = max(2, math.ceil(least_share * len(prompts)))
    made = [_text_template(head, group) for head, group in groups.items() if len(group) >= least]
    return tuple(sorted(made, key=lambda each: -each.prompts * (each.fixed_head_tokens + each.fixed_later_tokens)))


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
        behind = [
            word for word, is_fixed in zip(words[first_dynamic:], marked[first_dynamic:], strict=True) if is_fixed
        ]
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


def _prefill_bill(name: str, busy_s_per_hour: float, usd_per_replica_hour: float) -> CostTree:
    line = CostLine(
        name="prefill",
        quantity=busy_s_per_hour / SECONDS_PER_HOUR,
        unit="replica-hour",
        usd_per_unit=usd_per_replica_hour,
    )
    return CostTree(name=name, lines=(line,))
