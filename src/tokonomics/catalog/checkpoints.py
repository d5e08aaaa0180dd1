"""Find what others published for a model: quantised checkpoints, their quality at fewer bits, and drafts.

``data/checkpoints.csv`` names repositories on Hugging Face, with where and when each was seen, and its format in the
words of ``recovery.csv`` (empty: the source does not say); the first one listed for a model and precision is preferred,
the authors' own before others'. Unlisted checkpoints may also exist.

Recovery is the score of the quantised model divided by that of the published one on the same benchmark, or the mean
over several benchmarks. ``data/recovery.csv`` has one row for each score, with its source and date; a user's own scores
are in the section ``recovery`` of their catalogue and come first. A model without a score uses that of a named model of
its family with the same kind of layers and no larger, because smaller models lose more (Kurtic et al., arXiv
2411.02355: 8B against 70B and 405B). FP8 with a scale for each tensor, channel or block differ, as do GPTQ and AWQ: a
score of another format than the deployed checkpoint's says so.

``data/drafts.csv`` holds published accepted lengths: the mean tokens that a round of drafting yields, including the one
that the check gives. They depend on the texts, the temperature and the pair; each row says its own. A module of
multi-token prediction is one layer like the model's last, behind a projection of the last token's embedding and the
hidden state to one width; it uses the model's embedding and head (DeepSeek-V3, arXiv:2412.19437, section 2.2). An
EAGLE-3 head is one dense layer behind a projection of three hidden states to one; queries, keys and values also take
the embedding, and its own head covers only the most common tokens (arXiv:2503.01840, section 3).
"""

import datetime as dt
import math
import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from tokonomics.catalog.entries import save_entry, shipped_rows, user_path, user_tables
from tokonomics.catalog.layers import (
    DenseMlp,
    GroupedAttention,
    LayerGroup,
    MoeMlp,
    Precision,
    RecurrentMixer,
    Scales,
    weights_of,
)
from tokonomics.catalog.load_models import find_model, models_of_family
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import from_validation, shorten
from tokonomics.types import Noun, copied
from tokonomics.units import fine_percent

_MADE_WITH = {
    Precision.fp8: "llm-compressor makes one without data (FP8_DYNAMIC)",
    Precision.int8: "llm-compressor makes one (W8A8, with calibration data)",
    Precision.int4: "llm-compressor makes one (W4A16, GPTQ or AWQ, with calibration data)",
    Precision.nvfp4: "llm-compressor makes one (NVFP4, with calibration data)",
}
"""The scheme for each precision, and whether it needs data: llm-compressor, docs/guides/compression_schemes.md, read on
2026-11-16."""
_AT_LOAD = "vLLM also quantises at load (--quantization fp8_per_tensor), where the {published} weights fit the GPUs"
"""vLLM, docs/features/quantization/fp8.md, "Online Dynamic Quantization": the weights are loaded as they were published
before they are quantised; read on 2026-11-16."""

_TUNED = re.compile(r"(^|[-_])(instruct|chat|it)($|[-_.])", re.IGNORECASE)


class Checkpoint(Noun):
    """A repository that holds a model at a precision."""

    model: str
    precision: Precision
    format: str | None = None  # in the words of a score's method: ``W8A8 FP8, blocks``; None: not known
    repository: str
    source: str  # where it was seen
    address: str | None = None
    read: dt.date


@cache
def load_checkpoints() -> tuple[Checkpoint, ...]:
    """Return every quantised checkpoint that was seen, the preferred one of a model and precision first."""
    return tuple(map(Checkpoint.model_validate, shipped_rows("checkpoints.csv")))


_BLOCK = 128
"""Weights on a side of a block with a scale of its own (Qwen3-VL-4B-Instruct-FP8, README: "fine-grained fp8
quantization with block size of 128")."""


def checkpoint_for(model: ModelSpec, weights: Precision, tp: int = 1, expert_parts: int = 1) -> Checkpoint | None:
    """Return a checkpoint of a model at a precision: its authors' own, or one by others; None if none is known.

    ``tp`` GPUs share each layer and ``expert_parts`` each expert. Engines refuse to load blocks that would be cut
    (vllm-project/vllm issues 17569 and 52997; QwenLM/Qwen3 issue 1485: Qwen3-30B-A3B-FP8 on four GPUs), so a checkpoint
    in blocks is passed over for another where a GPU's part of a feed-forward matrix is not whole blocks. So is a
    quantised base model where the published checkpoint is tuned to instructions: it would not answer as that one does.
    """
    listed = _listed(model, weights)
    if weights is model.served and model.repository not in [row.repository for row in listed]:
        named = {"model": model.key, "precision": weights, "repository": model.repository}
        form = listed[0].format if listed else None  # of a quantised checkpoint: as others of it are
        return Checkpoint(**named, format=form, source=model.source, read=model.date) if model.repository else None
    listed.sort(key=lambda row: row.repository != model.repository)
    fits = _in_whole_blocks(model, tp, expert_parts)
    tuned = [row for row in listed if _is_tuned(row.repository) or not _is_tuned(model.repository)]
    return next((row for row in tuned if fits or "blocks" not in (row.format or "")), None)


_SCALES = {
    "W8A8 FP8, blocks": Scales.blocks, "W8A8 FP8, dynamic": Scales.channel, "W8A8 FP8, per tensor": Scales.tensor,
}  # fmt: skip
"""By format; FP8_DYNAMIC has a scale for each output (llm-compressor, docs/guides/compression_schemes.md)."""


def fp8_scales(model: ModelSpec, tp: int = 1, expert_parts: int = 1) -> Scales | None:
    """Return what shares a scale in a model's FP8 weights: its config's, else a listed checkpoint's; None: unknown."""
    if model.fp8_scales:
        return model.fp8_scales
    listed = checkpoint_for(model, Precision.fp8, tp, expert_parts)
    return _SCALES.get(listed.format or "") if listed else None


def _is_tuned(repository: str | None) -> bool:
    """Tell whether a checkpoint's name says that it is tuned to instructions."""
    return _TUNED.search(repository or "") is not None


def _listed(model: ModelSpec, weights: Precision) -> list[Checkpoint]:
    return [row for row in load_checkpoints() if (row.model, row.precision) == (model.key, weights)]


def _in_whole_blocks(model: ModelSpec, tp: int, expert_parts: int) -> bool:
    """Tell whether each GPU's part of every feed-forward matrix is made of whole blocks."""
    widths: list[tuple[int, int]] = []
    for group in model.groups:
        match group.mlp:
            case DenseMlp(intermediate=width):
                widths.append((width, tp))
            case MoeMlp(intermediate=width, shared_intermediate=shared):
                widths += [(width, expert_parts), (shared, tp)]
    return all(parts == 1 or width % (parts * _BLOCK) == 0 for width, parts in widths)


def how_to_make(model: ModelSpec, weights: Precision, engine: str) -> str:
    """Describe what to do if no checkpoint is known: the tool that makes one, and whether the engine needs one."""
    cut = [f"{row.repository} cannot be cut into so many parts: its blocks are {_BLOCK} wide"
           for row in _listed(model, weights)[:1]]  # fmt: skip
    ways = [*cut, *([_MADE_WITH[weights]] if weights in _MADE_WITH else [])]
    if weights is Precision.fp8 and engine == "vllm":
        ways.append(_AT_LOAD.format(published=model.served))
    return "; ".join(ways) or "one must be made"


SECTION = "recovery"
_AS_LARGE = 1.05  # factor on the parameters: releases of one size differ in their vocabularies
QuantisedPart = Literal["weights", "kv"]  # what is kept at fewer bits


class RecoveryScore(Noun):
    """A published score of a quantised model on one benchmark."""

    model: str
    part: QuantisedPart
    precision: Precision
    benchmark: str
    baseline: PositiveFloat | None = None  # of the model as published; None if only the share is stated
    quantised: PositiveFloat | None = None
    recovery_percent: PositiveFloat
    method: str
    checkpoint: str | None = None
    source: str
    address: str
    date: dt.date | None = None  # of publication, if the source says
    read: dt.date


class Recovery(Noun):
    """The share of a model's quality that remains at fewer bits, and its source."""

    model: str  # the measured one: the model asked for, or one of its family
    part: QuantisedPart = "weights"
    precision: Precision
    format: str | None = None  # how it was quantised: ``W8A8 FP8, blocks``; None: the user's own, not said
    deployed: str | None = None  # the format that a plan deploys; None: not known
    recovery: PositiveFloat  # mean over the benchmarks; 1: nothing is lost
    benchmarks: tuple[str, ...]
    checkpoint: str | None = None
    source: str
    date: dt.date  # of publication; if the source does not say, the day it was read
    published: bool = True  # the date is that of publication
    own: bool = False  # the user's own measurement


class OwnRecovery(Noun):
    """A score in the user's catalogue."""

    model: str
    part: QuantisedPart = "weights"
    precision: Precision
    recovery: PositiveFloat
    tasks: tuple[str, ...]
    source: str = "your own measurement"
    date: dt.date


@cache
def load_scores() -> tuple[RecoveryScore, ...]:
    """Return every published score that is shipped."""
    return tuple(map(RecoveryScore.model_validate, shipped_rows("recovery.csv")))


_NO_CHECKPOINT = "W8A8 FP8, per tensor"
"""What vLLM and SGLang make of 16-bit weights at load (``--quantization fp8_per_tensor``, ``fp8``: engine_flags.py)."""


def recovery_of(
    model: ModelSpec, precision: Precision, part: QuantisedPart = "weights", tp: int = 1, expert_parts: int = 1
) -> Recovery | None:
    """Return a model's recovery at a precision: the user's own score, a published one, or its family's; else None.

    Of several scores, one of the checkpoint that a plan names comes first, then one of the same format.
    """
    every = (*map(_own, user_tables(SECTION).items()), *_published())
    known = [found for found in every if found.precision is precision and found.part == part]
    of_it = [found for found in known if found.model == model.key] or _nearest_relatives(model, known)
    listed = checkpoint_for(model, precision, tp, expert_parts) if part == "weights" else None
    made = _NO_CHECKPOINT if part == "weights" and precision is Precision.fp8 else None
    deployed = listed.format if listed else made

    def preference(found: Recovery) -> tuple[bool, bool, bool, bool, float]:
        """Prefer the user's own, then the checkpoint and the format of a plan, then any checkpoint; then the worst."""
        of_that = listed is not None and found.checkpoint == listed.repository
        same = deployed is not None and _is_of_format(found, deployed)
        return found.own, of_that, same, found.checkpoint is not None, -found.recovery

    best = max(of_it, key=preference, default=None)
    return best and best.model_copy(update={"deployed": deployed})


def _is_of_format(found: Recovery, deployed: str) -> bool:
    """Tell whether a score's format is the deployed one; its method may say more after a comma."""
    return found.format is not None and (found.format == deployed or found.format.startswith(f"{deployed}, "))


def allowed_by_recovery(
    model: ModelSpec, precisions: Sequence[Precision], floor: float, part: QuantisedPart = "weights"
) -> tuple[tuple[Precision, ...], dict[Precision, str]]:
    """Return the precisions whose recovery reaches the floor, and why the others are left out.

    The published precision, or more bits, needs no score.
    """
    published = model.served if part == "weights" else model.kv_served
    kept, left_out = [], {}
    for precision in precisions:
        found = recovery_of(model, precision, part) if precision.is_below(published) else None
        if not precision.is_below(published) or (found and round(found.recovery, 4) >= floor):
            kept.append(precision)
        elif found is None:
            left_out[precision] = f"no published score for {model.name} or its family"
        else:
            left_out[precision] = f"recovers less than {floor * 100:g} %: {recovery_text(found, model)}"
    return tuple(kept), left_out


def lossy_pairs(
    model: ModelSpec, weights: Sequence[Precision], kv: Sequence[Precision], floor: float
) -> dict[tuple[Precision, Precision], str]:
    """Return the weights and KV caches that together lose too much, and why; their recoveries are multiplied."""
    found = {}
    for pair in product(weights, kv):
        of_weights = recovery_of(model, pair[0]) if pair[0].is_below(model.served) else None
        of_kv = recovery_of(model, pair[1], "kv") if pair[1].is_below(model.kv_served) else None
        if of_weights and of_kv and round(of_weights.recovery * of_kv.recovery, 4) < floor:
            both = f"{fine_percent(of_weights.recovery)} and {fine_percent(of_kv.recovery)}"
            found[pair] = f"together less than {floor * 100:g} %: {both} of the published model"
    return found


def recovery_text(found: Recovery, model: ModelSpec) -> str:
    """Write ``99.9 % of BF16 on OpenLLM v1 (model card of …, 2024-07-23)``; name another model and another format."""
    published = model.served if found.part == "weights" else Precision.bf16
    whose = "" if found.model == model.key else f", scored on {find_model(found.model).name}"
    whose += _another_format(found)
    kept = f"{fine_percent(found.recovery)} of {published.upper()}"
    several = "the mean of " if len(found.benchmarks) > 1 else ""
    when = f"{'' if found.published else 'read on '}{found.date}"
    return f"{kept} on {several}{', '.join(found.benchmarks)}{whose} ({found.source}, {when})"


def _another_format(found: Recovery) -> str:
    """Say which format was scored and which is deployed, unless they are the same or a user's own score counts."""
    if found.part == "kv" or found.own or found.format is None:
        return ""
    if found.deployed is None:
        return f", scored as {found.format}, deployed in a format that is not known"
    if _is_of_format(found, found.deployed):
        return ""
    unnamed = " of a kind that is not named" if found.deployed.startswith(found.format) else ""
    return f", scored as {found.format}{unnamed}, deployed as {found.deployed}"


def save_recovery(found: OwnRecovery) -> Path:
    """Save a score in the user's catalogue, replacing an earlier one of the model and precision; return its path."""
    fields = found.model_dump(exclude={"part"} if found.part == "weights" else set())
    kv = "" if found.part == "weights" else " kv"
    return save_entry(SECTION, f"{found.model} {found.precision}{kv}", fields)


@cache
def _published() -> tuple[Recovery, ...]:
    """Return the mean over the benchmarks of each checkpoint, or of each method if a source names no checkpoint."""

    def subject(score: RecoveryScore) -> tuple[str, ...]:
        return score.model, score.part, score.precision, score.checkpoint or "", score.source, score.method

    found = []
    for _, group in groupby(sorted(load_scores(), key=subject), key=subject):
        scores = list(group)
        first = scores[0]
        found.append(
            Recovery(
                **copied(first, "model", "part", "precision", "checkpoint"),
                format=first.method,
                recovery=fmean(score.recovery_percent for score in scores) / 100,
                benchmarks=tuple(score.benchmark for score in scores),
                source=first.source if first.checkpoint else f"{first.method}; {first.source}",
                date=first.date or first.read,
                published=first.date is not None,
            )
        )
    return tuple(found)


def _own(entry: tuple[str, dict[str, object]]) -> Recovery:
    key, table = entry
    try:
        read = OwnRecovery.model_validate(table)
    except ValidationError as error:
        where = f"{user_path()} [{SECTION}.{shorten(key)}]"
        raise from_validation(error, where, OwnRecovery.model_fields) from None
    return Recovery(**read.model_dump(exclude={"tasks"}), benchmarks=read.tasks, own=True)


def _nearest_relatives(model: ModelSpec, known: Sequence[Recovery]) -> list[Recovery]:
    """Return the scores of the largest model no larger than this: of its family, else its generation (3.1 for 3.3)."""

    def generation(family: str) -> str:
        return re.sub(r"\.\d+$", "", family)

    def kinds_of_layers(spec: ModelSpec) -> set[tuple[type, type]]:
        return {(type(group.mixer), type(group.mlp)) for group in spec.groups}

    scored = {found.model for found in known}
    relatives = [relative for relative in models_of_family(model.family) if relative.key in scored]
    if not relatives:
        mine = generation(model.family)
        relatives = [spec for spec in map(find_model, sorted(scored)) if generation(spec.family) == mine]
    alike = [relative for relative in relatives if kinds_of_layers(relative) == kinds_of_layers(model)]
    largest = _AS_LARGE * model.parameters
    sizes = {relative.key: relative.parameters for relative in alike if relative.parameters <= largest}
    # If two have the same size, take the later: llama-3.1-70b before llama-3-70b.
    nearest = max(sorted(sizes, reverse=True), key=lambda key: round(math.log(sizes[key]), 2), default=None)
    return [found for found in known if found.model == nearest]


EAGLE_VOCAB = 32_000
"""``draft_vocab_size`` of every head in the table (SpecForge ``configs/*-eagle3.json``; RedHatAI's speculators)."""


class PublishedDraft(Noun):
    """An accepted draft length: who published it, for which model and texts."""

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
    """Return every accepted length that was seen."""
    return tuple(map(PublishedDraft.model_validate, shipped_rows("drafts.csv")))


def drafts_of(model: ModelSpec, method: str) -> tuple[PublishedDraft, ...]:
    """Return what is published about a model's drafts by one method, the fewest tokens first."""
    rows = (row for row in load_drafts() if (row.model, row.method) == (model.key, method))
    return tuple(sorted(rows, key=lambda row: row.tokens))


def nearest_draft(model: ModelSpec, method: str, tokens: int) -> PublishedDraft | None:
    """Return the published round whose number of tokens is nearest."""
    return min(drafts_of(model, method), key=lambda row: abs(row.tokens - tokens), default=None)


def longer_draft(model: ModelSpec, method: str, tokens: int) -> PublishedDraft | None:
    """Return the shortest published round of at least this many tokens; the longest if there is none.

    Later tokens of a round are accepted less often, so a longer round understates a shorter one.
    """
    rows = drafts_of(model, method)
    return next((row for row in rows if row.tokens >= tokens), rows[-1] if rows else None)


def mtp_module(model: ModelSpec) -> ModelSpec | None:
    """Return the checkpoint's module that drafts, with the model's embedding and head; None if it has none."""
    attention = [group for group in model.groups if group.mixer and not isinstance(group.mixer, RecurrentMixer)]
    if not model.mtp_layers or not attention:
        return None
    last = attention[-1]
    layers = [last.model_copy(update={"count": 1})]
    if last.mlp is None:  # attention and feed-forward are separate layers (Nemotron)
        layers += [group.model_copy(update={"count": 1}) for group in model.groups if group.mlp][-1:]
    return _one_layer(model, "MTP", layers, 2 * model.hidden**2, norms=2)


_OF_PARTS = ("checkpoint_bytes", "mixer_checkpoint", "dense_checkpoint", "mixer_bytes", "dense_bytes")


def eagle_head(model: ModelSpec, intermediate: int) -> ModelSpec | None:
    """Return an EAGLE-3 head for a model; None if no such head is known for the model's kind of attention."""
    attention = [group.mixer for group in model.groups if isinstance(group.mixer, GroupedAttention)]
    if not attention:
        return None
    like = attention[-1]
    mixer = GroupedAttention(heads=like.heads, kv_heads=like.kv_heads, head_dim=like.head_dim)
    layer = LayerGroup(count=1, mixer=mixer, mlp=DenseMlp(intermediate=intermediate), norm_elements=2 * model.hidden)
    attended = weights_of(mixer.products(model.hidden)[:1])
    head = _one_layer(model, "EAGLE-3", [layer], 3 * model.hidden**2 + attended, norms=1)
    own = {"vocab": EAGLE_VOCAB, "embedding_parameters": EAGLE_VOCAB * model.hidden, "checkpoint": Precision.bf16}
    return head.model_copy(update=own | dict.fromkeys(_OF_PARTS))


def _one_layer(model: ModelSpec, name: str, layers: list[LayerGroup], weights: int, norms: int) -> ModelSpec:
    """Return a draft of these layers behind projections with this number of weights.

    The projections are written as two of half their size, up and down, which has the same weights and FLOPs.
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
