"""What is said of a model family: how its layers are built, and which of its fields leave the cost unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    ExpertStyle,
    Frame,
    MixerLayer,
    MlpLayer,
    MlpStyle,
    dense_mlp,
    grouped_attention,
    mixture,
)

Mixers = Callable[[Fields, Frame], list[MixerLayer]]
Mlps = Callable[[Fields, Frame], list[MlpLayer]]
NOT_BIDIRECTIONAL: Mapping[str, tuple[object, ...]] = {"use_bidirectional_attention": (False,)}
BIAS = ("attention_bias", False)


@dataclass(frozen=True)
class Encoder:
    """What of an encoder lies before and behind its layers."""

    norm_elements: int  # of the norm on the embedding, in hidden widths
    types: int  # kinds of tokens that have a vector of their own, where the config does not say
    head: Callable[[Fields, Frame], int]  # parameters of a pooler or a classifier
    unused_positions: int = 0  # of the table of learned positions


@dataclass(frozen=True)
class Family:
    """How to read one ``model_type``."""

    mixers: Mixers
    mlps: Mlps = dense_mlp
    norms: int | Callable[[Fields], int] = 2  # norm vectors of hidden width in a layer
    norm_bias: bool = False
    tied: bool = False  # whether the LM head shares the embedding when the config does not say
    learned_positions: int | None = None  # rows beyond the context length of a learned position table
    head_bias: bool | tuple[str, bool] = False
    final_norm: tuple[str, bool] | bool = True
    vocab: int | None = None
    context: int | None = None
    depth: Callable[[Fields], int | None] = lambda fields: None  # where ``num_hidden_layers`` may be left out
    tables: Callable[[Fields, Frame], int] = lambda fields, frame: 0  # parameters of embeddings beside the usual one
    once: Callable[[Fields, Frame], int] = lambda fields, frame: 0  # small parameters after the last layer
    expect: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # fields understood at these values only
    harmless: frozenset[str] = frozenset()
    encoder: Encoder | None = None


def attention(**style: object) -> Mixers:
    """Grouped attention in the style given."""
    return partial(grouped_attention, style=AttentionStyle(**style))  # type: ignore[arg-type]


def mlp(**style: object) -> Mlps:
    return partial(dense_mlp, style=MlpStyle(**style))  # type: ignore[arg-type]


def experts(**style: object) -> Mlps:
    return partial(mixture, style=ExpertStyle(**style))  # type: ignore[arg-type]
