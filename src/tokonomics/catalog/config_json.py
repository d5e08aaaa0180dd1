"""Read a Hugging Face ``config.json`` as a ``ModelSpec``: one reader for the user's files and the catalogue's rows.

``model_type`` picks a row of ``config_families``; the row says how the layers are built; ``models`` counts. A field
that is missing, impossible or of an unknown size is an error that names it and the file: an architecture that is only
half understood would be priced wrongly without anyone noticing.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import date as Date  # noqa: N812 — `date` is the name of the parameter
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from tokonomics.catalog.config_exceptions import layers_of, nemotron_kinds
from tokonomics.catalog.config_families import (
    DECODER_ONLY,
    FAMILIES,
    HARMLESS,
    WRAPPER_HARMLESS,
    WRAPPERS,
    Family,
    Fields,
)
from tokonomics.catalog.config_layers import MOST_LAYERS, Frame, MixerLayer, MlpLayer, is_on
from tokonomics.catalog.config_mistral import from_params, is_params
from tokonomics.catalog.config_quantization import DTYPE_FIELDS, QUANTISERS, PartPrecisions, checkpoint_of
from tokonomics.catalog.config_towers import count_towers, read_tower
from tokonomics.catalog.layers import CompressedAttention, LayerGroup, Precision
from tokonomics.catalog.models import ModelSpec, Published
from tokonomics.errors import BadInput, did_you_mean, from_validation, option, shorten

PARAMS = "params.json"  # Mistral's own form
LARGEST_FILE = 10_000_000  # bytes; a config.json has a few thousand: a larger file is probably the weights


def read_config(
    path: Path, *, name: str | None = None, extra_parameters: int | None = None, as_family: str | None = None
) -> ModelSpec:
    """Return the model that a config.json describes, given its path or the directory that holds it."""
    try:
        file = path / "config.json" if path.is_dir() else path
        if path.is_dir() and not file.is_file() and (path / PARAMS).is_file():
            file = path / PARAMS
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=shorten(str(path), 400)) from None
    # Collections of configs put the model's name before both: ``model_config.json``, ``model_hf_quant_config.json``.
    beside = file.with_name(f"{file.name.removesuffix('config.json')}hf_quant_config.json")
    config, where = _parse(file), str(file)
    config = from_params(config, where) if is_params(config) else _with_modelopt(config, beside)
    written = datetime.fromtimestamp(file.stat().st_mtime).date()
    # In the cache of huggingface_hub, folders are models--ORG--NAME/snapshots/REVISION, and files are links elsewhere.
    folder = file.parent.resolve()
    cached = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)/snapshots", "/".join(folder.parts[-3:-1]))
    own = cached[2] if cached else folder.name if file.name in ("config.json", PARAMS) else file.stem
    called = name or own or "model"
    return from_config(
        config,
        key=called.lower(),
        name=called,
        family=str(config.get("model_type")),
        source=where,
        date=written,
        where=where,
        aliases=(f"{cached[1]}/{cached[2]}",) if cached else (),
        extra_parameters=extra_parameters,
        as_family=as_family,
    )


def from_config(
    config: Mapping[str, object],
    *,
    key: str,
    name: str,
    family: str,
    source: str,
    date: Date,
    where: str,
    aliases: tuple[str, ...] = (),
    published: Published | None = None,
    extra_parameters: int | None = None,
    as_family: str | None = None,
) -> ModelSpec:
    """Return the model that a parsed config describes.

    ``extra_parameters`` replaces the count of a vision tower; ``as_family`` reads it as that family, whatever it says.
    """
    if not all(isinstance(field, str) for field in config):
        raise BadInput("field names need to be strings", where=where)
    whole = _thinker(Fields(config, where))
    model_type = whole.word("model_type")
    if model_type is None:
        raise whole.wrong("model_type", "is missing", fix=_supported())
    text, text_type = _text_part(whole, model_type, as_family)
    row = FAMILIES[text_type]
    # Whether the LM head shares the embedding: the outer config decides, then the text model's, then the family.
    tied = whole.flag("tie_word_embeddings", text.flag("tie_word_embeddings", row.tied))
    frame = _frame(text, row)
    layers, (norms, once, tables) = layers_of(text, frame, row)
    checkpoint = checkpoint_of(whole, text, layers, frame.hidden, row.blocks.held)
    for part in ("vision_config", "audio_config"):
        whole.value(part)
    if extra_parameters is None:
        extra_parameters = count_towers(whole, model_type, frame.hidden)
    tower = read_tower(whole, model_type, frame.hidden) if whole.value("vision_config") is not None else None
    beside, head_bias, context = _around(text, row, frame)
    final_norm = frame.hidden * (2 if row.norm_bias else 1) * is_on(text, row.final_norm)
    groups = _groups(layers, norms * frame.hidden * (2 if row.norm_bias else 1))
    unread = (*_unread(whole, text, row, frame), *whole.notes)
    try:
        return ModelSpec(
            key=key,
            name=name,
            family=family,
            hidden=frame.hidden,
            vocab=frame.vocab,
            groups=groups,
            tied_embeddings=tied,
            final_norm_elements=final_norm + once,
            position_parameters=beside,
            head_bias_elements=head_bias,
            embedding_parameters=frame.vocab * frame.hidden + tables,
            extra_parameters=extra_parameters,
            vision=tower,
            max_context=context,
            mtp_layers=_mtp_layers(text),
            checkpoint=checkpoint.weights,
            checkpoint_bytes=checkpoint.weight_bytes,
            mixer_checkpoint=checkpoint.mixer,
            dense_checkpoint=checkpoint.dense,
            mixer_bytes=checkpoint.mixer_bytes,
            dense_bytes=checkpoint.dense_bytes,
            fp8_scales=checkpoint.fp8_scales,
            kv_checkpoint=checkpoint.kv or _usual_kv(groups),
            published=published,
            aliases=aliases,
            source=source,
            date=date,
            notes=_notes(unread, checkpoint, where),
        )
    except ValidationError as error:
        raise from_validation(error, where) from None


def _thinker(whole: Fields) -> Fields:
    """Return the part of Qwen-Omni that thinks and writes, which engines serve; any other config as it is.

    What quantised the whole, and its dtype, hold for the part; whether its LM head is tied, its text model says.
    """
    thinker = whole.child("thinker_config")
    if thinker is None:
        return whole
    text = thinker.child("text_config")
    tied = ("tie_word_embeddings",) if text is not None and text.has("tie_word_embeddings") else ()
    own = {name: value for name, value in thinker.values.items() if value is not None and name not in tied}
    stated = {name: whole.value(name) for name in (*QUANTISERS, *DTYPE_FIELDS) if whole.has(name)}
    if any(name in own for name in DTYPE_FIELDS):
        stated = {name: value for name, value in stated.items() if name not in DTYPE_FIELDS}
    return Fields(stated | own, whole.where, thinker.path)


def _unread(whole: Fields, text: Fields, row: Family, frame: Frame) -> tuple[str, ...]:
    """Return the fields that nobody interpreted, after checking those that are understood at some values only."""
    text.expect(DECODER_ONLY | row.expect)
    text.expect_words("layer_types", row.kinds)
    if whole is text:
        return text.unread(HARMLESS | row.harmless | WRAPPER_HARMLESS)
    sizes = {"hidden_size": [frame.hidden], "vocab_size": [frame.vocab], "num_reward_heads": [0]}
    whole.expect(DECODER_ONLY | sizes)
    return text.unread(HARMLESS | row.harmless) + whole.unread(WRAPPER_HARMLESS)


def _notes(unread: tuple[str, ...], checkpoint: PartPrecisions, where: str) -> tuple[str, ...]:
    """Return notes on the KV cache, on the quantiser's patterns, and on fields that are taken not to matter."""
    kept = f"its KV cache is for {checkpoint.kv_declared}; counted in FP8, the fewest bits that engines here keep"
    said = (kept, *checkpoint.notes) if checkpoint.kv_declared else checkpoint.notes
    notes = tuple(f"{where}: {note}" for note in said)
    if not unread:
        return notes
    named = ", ".join(f"'{shorten(name, 60)}'" for name in unread[:8]) + (" and others" if len(unread) > 8 else "")
    return (
        *notes,
        f"{where}: unknown {named}; taken to leave size and speed unchanged",
    )


def _parse(file: Path) -> Mapping[str, object]:
    """Return the JSON object in a file, or raise an error that says what is wrong with it."""
    where = str(file)
    try:
        if not file.is_file():
            what = "is not a file" if file.exists() else "there is no such file"
            raise BadInput(what, where=where, fix="Give the path of a Hugging Face config.json.")
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise BadInput(f"has {size} bytes, too many for a config.json", where=where, fix="Is it the weights?")
        config = json.loads(file.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=where, fix="Is it the weights?") from None
    except json.JSONDecodeError as error:
        at, fix = f"{where}:{error.lineno}:{error.colno}", "The file may be cut off; fetch it again."
        raise BadInput(f"is not valid JSON: {error.msg}", where=at, fix=fix) from None
    except RecursionError:
        raise BadInput("is not a config.json: nested too deeply", where=where) from None
    except (OSError, ValueError) as error:  # also a number of thousands of digits, or a null character in the path
        said = shorten(getattr(error, "strerror", None) or str(error))
        raise BadInput(f"cannot be read: {said}", where=shorten(where, 400)) from None
    if not isinstance(config, dict):
        raise BadInput("needs a JSON object at the top", where=where, fix="A config.json starts with '{'.")
    return config


def _with_modelopt(config: Mapping[str, object], beside: Path) -> Mapping[str, object]:
    """Return the config with what NVIDIA ModelOpt says in a separate file, in its older exports all of it."""
    own = config.get("quantization_config") or {}
    if not isinstance(own, Mapping) or not beside.is_file():
        return config
    given = Fields(_parse(beside), str(beside)).child("quantization")
    if given is None:
        raise BadInput("field 'quantization' is missing", where=str(beside))
    return {**config, "quantization_config": {"quant_method": "modelopt", "quantization": given.values, **own}}


_TEXT_PARTS = ("text_config", "llm_config", "language_config")  # what holds the text model of a multimodal one


def _text_part(whole: Fields, model_type: str, as_family: str | None) -> tuple[Fields, str]:
    """Return the text model in a config, which is all of it or a part of a multimodal one, and its family."""
    given = next((name for name in _TEXT_PARTS if whole.has(name)), _TEXT_PARTS[0])
    inner = whole.child(given) if model_type in WRAPPERS or as_family or model_type not in FAMILIES else None
    if model_type in WRAPPERS and inner is None and not whole.has("hidden_size"):
        raise whole.wrong("text_config", "is missing", fix=f"A config of type {model_type} keeps its text model there.")
    text = whole if inner is None else inner
    own = model_type if inner is None else inner.word("model_type") or WRAPPERS.get(model_type, model_type)
    text_type = as_family or (own if own in FAMILIES else WRAPPERS.get(own, own))
    if as_family and as_family not in FAMILIES:
        fix = f"{did_you_mean(as_family, FAMILIES) or ''} Known: {', '.join(sorted(FAMILIES))}.".lstrip()
        raise BadInput(f"'{shorten(as_family)}' is not a family", field="as_family", fix=fix)
    if text_type not in FAMILIES or (inner is not None and FAMILIES[text_type].encoder):
        hint = _supported()
        if found := [name for name, row in FAMILIES.items() if name != text_type and _reads(text.again(), row)]:
            others = f" It could also be {', '.join(found[1:4])}." if len(found) > 1 else ""
            hint = f"If it is built like {found[0]}, give {option('as_family', found[0])}.{others}"
        fix = f"{did_you_mean(text_type, (*FAMILIES, *WRAPPERS)) or ''} {hint}".lstrip()
        raise text.wrong("model_type", f"names the unknown architecture '{shorten(text_type)}'", fix=fix)
    return text, text_type


def _reads(text: Fields, row: Family) -> bool:
    """Decide whether a family interprets every field that could set a size."""
    try:
        frame = _frame(text, row)
        _ = layers_of(text, frame, row), is_on(text, row.final_norm), is_on(text, row.head_bias)
        text.expect(DECODER_ONLY | row.expect)
        text.expect_words("layer_types", row.kinds)
        for field in ("tie_word_embeddings", "torch_dtype", "dtype", "expert_dtype", "vision_config", "audio_config"):
            text.value(field)
        text.unread(HARMLESS | row.harmless | WRAPPER_HARMLESS)
    except (BadInput, ValidationError):
        return False
    return True


def _frame(text: Fields, row: Family) -> Frame:
    """Return width, depth, vocabulary and context length."""
    hidden = text.size("hidden_size", "n_embd", "n_embed", "d_model", most=1 << 20)
    depth = len(nemotron_kinds(text)) if row.mixers == "nemotron" else None
    frame = Frame(
        hidden=hidden,
        layers=text.size("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=depth, most=MOST_LAYERS),
        vocab=text.size("vocab_size", default=row.vocab),
        context=text.size("max_position_embeddings", "n_positions", default=row.context, most=1 << 31),
    )
    if text.optional_size("word_embed_proj_dim") not in (None, frame.hidden):
        raise text.wrong("word_embed_proj_dim", "differs from hidden_size: projected embeddings are not supported")
    return frame


def _around(text: Fields, row: Family, frame: Frame) -> tuple[int, int, int]:
    """Return the parameters beside the embedding and the head's matrix, and the tokens that a prompt may have."""
    positions = frame.context + row.learned_positions if row.learned_positions is not None else 0
    beside = positions * frame.hidden
    if row.encoder is None:
        return beside, frame.vocab * is_on(text, row.head_bias), frame.context
    types = text.size("type_vocab_size", default=row.encoder.types, least=0)
    beside += (types + row.encoder.norm_elements) * frame.hidden
    head = frame.hidden * frame.hidden + frame.hidden if row.encoder.pooled else 0
    architectures = text.words("architectures") or () if row.encoder.pooled else ()
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        named = text.child("id2label")  # the scores of a classifier after the pooler; a reranker has one
        head += text.size("num_labels", default=len(named.names()) if named else 2) * (frame.hidden + 1)
    return beside, head, frame.context - row.encoder.unused_positions


def _mtp_layers(text: Fields) -> int:
    """Count the checkpoint's modules that draft.

    MiniMax names some (``num_mtp_modules``) whose weights it does not publish (MiniMax-M2 issue 47, M3 issue 13).
    """
    if text.has("num_mtp_modules"):
        return 0
    return text.optional_size("num_nextn_predict_layers", "mtp_num_hidden_layers", least=0, most=MOST_LAYERS) or 0


def _groups(layers: list[tuple[MixerLayer, MlpLayer]], norms: int) -> tuple[LayerGroup, ...]:
    """Group identical layers and count them."""
    mixer_by_id, mlp_by_id = {id(mixer): mixer for mixer, _ in layers}, {id(mlp): mlp for _, mlp in layers}
    counts = Counter((id(mixer), id(mlp)) for mixer, mlp in layers)
    return tuple(
        LayerGroup.model_construct(count=count, mixer=mixer_by_id[mixer], mlp=mlp_by_id[mlp], norm_elements=norms)
        for (mixer, mlp), count in counts.items()
    )


def _usual_kv(groups: tuple[LayerGroup, ...]) -> Precision | None:
    """Return FP8 for DeepSeek-V4's rows: recipes ask for it; most kernels read no other (vllm-project/vllm#55134)."""
    compressed = any(isinstance(group.mixer, CompressedAttention) for group in groups)
    return Precision.fp8 if compressed else None


def _supported() -> str:
    return f"Supported: {', '.join(sorted((*FAMILIES, *WRAPPERS)))}."
