"""What drafts tokens for a model: modules of its own checkpoint, heads that others trained, and how much is accepted.

``data/drafts.csv`` holds accepted lengths as they were published: the mean tokens that a round of so many drafted ones
yields, the check's own included. They are a property of the texts, the temperature and the pair; each says its own.

A module of multi-token prediction is one layer like the model's last, behind a projection of the last token's embedding
and the hidden state to one width; embedding and head are the model's (DeepSeek-V3, arXiv:2412.19437, section 2.2). An
EAGLE-3 head is one dense layer behind a projection of three hidden states to one; queries, keys and values take
the embedding beside it, and its own head covers the commonest tokens alone (arXiv:2503.01840, section 3).
"""

import datetime as dt
import math
from functools import cache
from typing import Literal

from pydantic import Field, PositiveInt

from tokonomics.catalog.entries import shipped_rows
from tokonomics.catalog.layers import DenseMlp, GroupedAttention, LayerGroup, Precision, RecurrentMixer, weights_of
from tokonomics.catalog.models import ModelSpec
from tokonomics.types import Noun

EAGLE_VOCAB = 32_000
"""``draft_vocab_size`` of every head in the table (SpecForge ``configs/*-eagle3.json``; RedHatAI's speculators)."""


class PublishedDraft(Noun):
    """An accepted length, of whom and on what."""

    model: str
    method: Literal["mtp", "eagle3"]
    checkpoint: str | None = None  # of a head; None: in the model's own
    intermediate: PositiveInt | None = None  # feed-forward width of a head
    tokens: int = Field(ge=1, le=16)  # drafted in a round
    accepted_length: float = Field(ge=1)
    conditions: str
    source: str
    address: str
    read: dt.date


@cache
def load_drafts() -> tuple[PublishedDraft, ...]:
    """Every accepted length that was seen."""
    return tuple(map(PublishedDraft.model_validate, shipped_rows("drafts.csv")))


def drafts_of(model: ModelSpec, method: str) -> tuple[PublishedDraft, ...]:
    """What is published of a model's drafts by one method, the fewest tokens first."""
    rows = (row for row in load_drafts() if (row.model, row.method) == (model.key, method))
    return tuple(sorted(rows, key=lambda row: row.tokens))


def nearest_draft(model: ModelSpec, method: str, tokens: int) -> PublishedDraft | None:
    """The published round whose number of tokens is nearest."""
    return min(drafts_of(model, method), key=lambda row: abs(row.tokens - tokens), default=None)


def longer_draft(model: ModelSpec, method: str, tokens: int) -> PublishedDraft | None:
    """The shortest published round of so many tokens at least; the longest where none is.

    Later tokens of a round are accepted less often, so a longer round tells too little of a shorter one, not too much.
    """
    rows = drafts_of(model, method)
    return next((row for row in rows if row.tokens >= tokens), rows[-1] if rows else None)


def mtp_module(model: ModelSpec) -> ModelSpec | None:
    """The module of the checkpoint that drafts, with the model's embedding and head; None where it has none."""
    attention = [group for group in model.groups if group.mixer and not isinstance(group.mixer, RecurrentMixer)]
    if not model.mtp_layers or not attention:
        return None
    last = attention[-1]
    layers = [last.model_copy(update={"count": 1})]
    if last.mlp is None:  # attention and feed-forward are layers of their own (Nemotron)
        layers += [group.model_copy(update={"count": 1}) for group in model.groups if group.mlp][-1:]
    return _one_layer(model, "MTP", layers, 2 * model.hidden**2, norms=2)


def eagle_head(model: ModelSpec, intermediate: int) -> ModelSpec | None:
    """An EAGLE-3 head for a model; None where the model's attention is of a kind that no such head is known of."""
    attention = [group.mixer for group in model.groups if isinstance(group.mixer, GroupedAttention)]
    if not attention:
        return None
    like = attention[-1]
    mixer = GroupedAttention(heads=like.heads, kv_heads=like.kv_heads, head_dim=like.head_dim)
    layer = LayerGroup(count=1, mixer=mixer, mlp=DenseMlp(intermediate=intermediate), norm_elements=2 * model.hidden)
    attended = weights_of(mixer.products(model.hidden)[:1])
    head = _one_layer(model, "EAGLE-3", [layer], 3 * model.hidden**2 + attended, norms=1)
    own = {"vocab": EAGLE_VOCAB, "embedding_parameters": EAGLE_VOCAB * model.hidden, "checkpoint": Precision.bf16}
    return head.model_copy(update=own | {"mixer_checkpoint": None, "dense_checkpoint": None})


def _one_layer(model: ModelSpec, name: str, layers: list[LayerGroup], weights: int, norms: int) -> ModelSpec:
    """A draft of these layers, with so many weights before them.

    The projections before a layer are written as two of half their size, up and down: as many weights and FLOPs.
    """
    width = math.ceil(weights / (2 * model.hidden))
    before = LayerGroup(
        count=1, mixer=None, mlp=DenseMlp(intermediate=width, gated=False), norm_elements=norms * model.hidden
    )
    return model.model_copy(
        update={
            "key": f"{model.key}-{name.lower()}",
            "name": f"{name} of {model.name}",
            "groups": (before, *layers),
            "tied_embeddings": True,
            "embedding_parameters": model.vocab * model.hidden,
            "position_parameters": 0,
            "extra_parameters": 0,
            "mtp_layers": 0,
            "published": None,
            "aliases": (),
        }
    )
