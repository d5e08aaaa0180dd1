"""A Hugging Face ``config.json`` as a ``ModelSpec``: one reader for the user's files and for the catalogue's rows.

``model_type`` picks a row of ``config_families``; the row says how the layers are built; counting is ``models``'
business. A field that is missing, impossible or unknown is an error that names it and the file: an architecture
that is half understood would be costed wrongly without anyone noticing.
"""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import date as Date  # noqa: N812 — `date` is the name of the parameter
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from tokonomics.catalog.config_families import FAMILIES, WRAPPERS, Family
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import HARMLESS, WRAPPER_HARMLESS
from tokonomics.catalog.config_layers import MOST_LAYERS, Frame, is_on
from tokonomics.catalog.config_quantization import checkpoint_precision
from tokonomics.catalog.config_towers import count_tower
from tokonomics.catalog.models import LayerGroup, ModelSpec, Published
from tokonomics.errors import BadInput, did_you_mean, from_validation, shorten

LARGEST_FILE = 10_000_000  # bytes; a config.json has a few thousand: a file this large is probably the weights

DECODER_ONLY: dict[str, tuple[object, ...]] = {"is_encoder_decoder": (False,), "add_cross_attention": (False,)}


def read_config(path: Path, *, name: str | None = None, extra_parameters: int | None = None) -> ModelSpec:
    """The model a config.json describes; a directory is taken for the one that holds it."""
    file = _file_in(path)
    config = _with_modelopt(_parse(file), file.with_name("hf_quant_config.json"))
    written = datetime.fromtimestamp(file.stat().st_mtime).date()
    called = name or (file.resolve().parent.name if file.name == "config.json" else file.stem) or "model"
    return from_config(
        config,
        key=called.lower(),
        name=called,
        family=str(config.get("model_type")),
        source=str(file),
        date=written,
        where=str(file),
        extra_parameters=extra_parameters,
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
) -> ModelSpec:
    """The model that a parsed config describes; ``extra_parameters`` replaces the count of a vision tower."""
    if not all(isinstance(field, str) for field in config):
        raise BadInput("field names need to be strings", where=where)
    whole = Fields(config, where)
    model_type = whole.word("model_type")
    if model_type is None:
        raise whole.wrong("model_type", "is missing", fix=_supported())
    if model_type in WRAPPERS:
        text, text_type = _text_part(whole, model_type)
    elif model_type in FAMILIES:
        text, text_type = whole, model_type
    else:
        fix = f"{did_you_mean(model_type, (*FAMILIES, *WRAPPERS)) or ''} {_supported()}".lstrip()
        raise whole.wrong("model_type", f"names the unknown architecture '{shorten(model_type)}'", fix)

    row = FAMILIES[text_type]
    # Whether the LM head is the embedding: the outer config decides, then the text model's, then the family.
    tied = whole.flag("tie_word_embeddings", text.flag("tie_word_embeddings", row.tied))
    frame = _frame(text, row)
    precision = checkpoint_precision(whole, text)
    vision, audio = whole.value("vision_config"), whole.value("audio_config")
    if extra_parameters is None:
        if audio is not None:
            raise whole.wrong("audio_config", "describes an audio tower, which cannot be counted")
        extra_parameters = count_tower(whole, model_type, frame.hidden) if vision is not None else 0
    groups = _groups(text, row, frame)
    positions = frame.context + row.learned_positions if row.learned_positions is not None else 0
    head_bias = frame.vocab * is_on(text, row.head_bias)
    final_norm = frame.hidden * (2 if row.norm_bias else 1) * is_on(text, row.final_norm)
    for field, accepted in (DECODER_ONLY | dict(row.expect)).items():
        text.expect(field, accepted)
    text.refuse_unread(HARMLESS | row.harmless)
    if whole is not text:
        for field, accepted in DECODER_ONLY.items():
            whole.expect(field, accepted)
        whole.refuse_unread(WRAPPER_HARMLESS)
    try:
        return ModelSpec(
            key=key,
            name=name,
            family=family,
            hidden=frame.hidden,
            vocab=frame.vocab,
            groups=groups,
            tied_embeddings=tied,
            final_norm_elements=final_norm,
            position_parameters=positions * frame.hidden,
            head_bias_elements=head_bias,
            embedding_parameters=frame.vocab * frame.hidden,
            extra_parameters=extra_parameters,
            max_context=frame.context,
            mtp_layers=_mtp_layers(text),
            checkpoint=precision,
            published=published,
            aliases=aliases,
            source=source,
            date=date,
        )
    except ValidationError as error:
        raise from_validation(error, where) from None


def _file_in(path: Path) -> Path:
    """The file meant by a path; a directory stands for the config.json in it."""
    try:
        return path / "config.json" if path.is_dir() else path
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=shorten(str(path), 400)) from None


def _parse(file: Path) -> Mapping[str, object]:
    """The JSON object in a file, or the one thing that is wrong with it."""
    where = str(file)
    try:
        if not file.exists():
            raise BadInput("there is no such file", where=where, fix="Give the path of a Hugging Face config.json.")
        if not file.is_file():
            raise BadInput("is not a file", where=where, fix="Give the path of a Hugging Face config.json.")
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise BadInput(f"has {size} bytes, too many for a config.json", where=where, fix="Is it the weights?")
        config = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=where, fix="Is it the weights?") from None
    except json.JSONDecodeError as error:
        at, fix = f"{where}:{error.lineno}:{error.colno}", "The file may be cut off; fetch it again."
        raise BadInput(f"is not valid JSON: {error.msg}", where=at, fix=fix) from None
    except RecursionError:
        raise BadInput("is not a config.json: nested too deeply", where=where) from None
    except ValueError as error:  # a whole number of thousands of digits, or a path with a null character
        raise BadInput(f"cannot be read: {shorten(str(error))}", where=shorten(where, 400)) from None
    if not isinstance(config, dict):
        raise BadInput("needs a JSON object at the top", where=where, fix="A config.json starts with '{'.")
    return config


def _with_modelopt(config: Mapping[str, object], beside: Path) -> Mapping[str, object]:
    """The config with NVIDIA ModelOpt's quantisation, which its older exports keep in a file beside."""
    if "quantization_config" in config or not beside.is_file():
        return config
    given = Fields(_parse(beside), str(beside)).child("quantization")
    if given is None:
        raise BadInput("field 'quantization' is missing", where=str(beside))
    return {**config, "quantization_config": {"quant_method": "modelopt", "quant_algo": given.word("quant_algo")}}


def _text_part(whole: Fields, model_type: str) -> tuple[Fields, str]:
    """The text model inside a multimodal config."""
    text = whole.child("text_config")
    if text is None:
        raise whole.wrong("text_config", "is missing", fix=f"A config of type {model_type} keeps its text model there.")
    text_type = text.word("model_type") or WRAPPERS[model_type]
    if text_type not in FAMILIES:
        raise text.wrong("model_type", f"names the unknown architecture '{shorten(text_type)}'", fix=_supported())
    return text, text_type


def _frame(text: Fields, row: Family) -> Frame:
    """Width, depth, vocabulary and context length."""
    frame = Frame(
        hidden=text.size("hidden_size", "n_embd", "d_model", most=1 << 20),
        layers=text.size("num_hidden_layers", "n_layer", default=row.depth(text), most=MOST_LAYERS),
        vocab=text.size("vocab_size", default=row.vocab),
        context=text.size("max_position_embeddings", "n_positions", default=row.context, most=1 << 31),
    )
    if text.optional_size("word_embed_proj_dim") not in (None, frame.hidden):
        raise text.wrong("word_embed_proj_dim", "differs from hidden_size: projected embeddings are not supported")
    return frame


def _mtp_layers(text: Fields) -> int:
    """Modules of the checkpoint that draft.

    MiniMax names some (``num_mtp_modules``) whose weights it does not publish (MiniMax-M2 issue 47, M3 issue 13).
    """
    if text.has("num_mtp_modules"):
        return 0
    return text.optional_size("num_nextn_predict_layers", "mtp_num_hidden_layers", least=0, most=MOST_LAYERS) or 0


def _groups(text: Fields, row: Family, frame: Frame) -> tuple[LayerGroup, ...]:
    """Layers of the same make, counted."""
    mixers, mlps = row.mixers(text, frame), row.mlps(text, frame)
    norms = (row.norms if isinstance(row.norms, int) else row.norms(text)) * frame.hidden * (2 if row.norm_bias else 1)
    mixer_by_id, mlp_by_id = {id(mixer): mixer for mixer in mixers}, {id(mlp): mlp for mlp in mlps}
    counts = Counter((id(mixer), id(mlp)) for mixer, mlp in zip(mixers, mlps, strict=True))
    return tuple(
        LayerGroup.model_construct(count=count, mixer=mixer_by_id[mixer], mlp=mlp_by_id[mlp], norm_elements=norms)
        for (mixer, mlp), count in counts.items()
    )


def _supported() -> str:
    return f"Supported: {', '.join(sorted((*FAMILIES, *WRAPPERS)))}."
