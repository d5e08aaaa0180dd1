"""Read the model families, by ``model_type``, from the rows of ``data/families.toml``; and the fields of a config.

A row says in which fields a family keeps its heads, experts, windows and ranks, and what its config class assumes if a
field is absent; ``config_layers`` builds layers from it. To add a family, add a row. A family with layers that no row
can describe also names a function of ``config_exceptions``.

Every field of a config.json is read through ``Fields``, which checks its type and range and remembers that it was read.
A field that was not read, and is not known to leave the cost unchanged, is an error at the end if its name suggests a
size: it could change the answer, and the reader does not guess. Any other such field is mentioned in a note.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tokonomics.catalog.entries import shipped_tables
from tokonomics.errors import BadInput, did_you_mean, shorten

Size = int | str | Sequence[str | int]
"""A number, a field, or several names of one field; then a default if the field may be absent."""
Switch = bool | str | Sequence[str | bool]
"""Always, never, or the field that says so, with its default (false unless given)."""


@dataclass(frozen=True)
class Pattern:
    """Which layers are marked: by their numbers, else by a word or a mark for each, else by counting."""

    every: Size = 1  # one layer in this many; 0: none
    offset: Size | None = None  # which of them; None: the last
    first: Size = 0
    last: Size = -1  # -1: the model's last layer
    below: Size | None = None
    unless: str | None = None  # field with the numbers of layers that are not marked
    listed: str | None = None  # field with the numbers of layers that are marked
    counted_from: int = 0
    marks: Sequence[Any] | None = None  # field with a number for each layer, and whether 0 or another one marks
    words: Sequence[str] = ()  # fields with a word for each layer
    kinds: Mapping[str, bool] = field(default_factory=dict)  # what those words mean
    goes_on: bool = False  # the list of words may continue for draft layers
    needed: str | None = None  # there is no rule: how to fix a config without words


@dataclass(frozen=True)
class Windows:
    """Which layers see only the last tokens, and how many."""

    full: Pattern
    size: str = "sliding_window"
    default: Size | None = None
    least: int = 1  # 0: a window of 0 means the default
    null_is_none: bool = False  # null switches the window off; only a missing field means the default
    switch: Switch = True


@dataclass(frozen=True)
class Attention:
    """How a family projects queries, keys and values."""

    head_dim: int | None = None  # the config class's value if the field is absent; None means hidden ÷ heads
    heads: int | None = None
    kv_heads: int | None = None  # as above; None means as many as heads
    grouped: bool = True  # whether the family knows key/value heads at all
    kv_field: str = "num_key_value_heads"
    value_dim: str | None = None  # field with the width of a value, if it may differ from a key's
    query_rank: str | None = None  # field of a width between the hidden one and the queries
    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Literal["none", "head", "width", "head_with_bias"] = "none"
    """Norm vectors on queries and keys: one head wide, or as wide as the projections."""
    qk_norm_when: Switch = True
    sinks: Switch = False  # one learned attention sink per head (GPT-OSS)
    gate: Switch = False  # as wide as the queries
    head_gates: bool = False  # one for each head, from the hidden width (Step 3.7)
    bidirectional: bool = False
    sliding: Mapping[str, Size] = field(default_factory=dict)
    """Fields of layers with a window, if those have other heads, kv_heads, head_dim or value_dim."""
    sliding_sinks: Switch | None = None  # None: as other layers
    each_heads: str | None = None  # field with the heads of every layer, if they may differ
    each_kv_heads: str | None = None  # likewise, of keys and values


@dataclass(frozen=True)
class Recurrent:
    """The fields of a family's recurrent layers, and which layers between them attend."""

    kind: Literal["delta", "kda", "mamba2", "mamba", "conv", "lightning"]
    full: Pattern
    heads: Size = ""
    head_dim: Size = ""
    groups: Size = ""
    state: Size = ""
    kernel: Size = ""
    chunk: Size = ""  # tokens to a chunk of the scan
    expand: Size = ""  # inner width in units of the hidden one (Mamba)
    inner: str | None = None  # a field that repeats the inner width
    rank: str = ""
    proj_bias: Sequence[str] = ()
    conv_bias: str = ""
    state_dtype: str | None = None
    norms: bool = False  # on the step and on B and C


@dataclass(frozen=True)
class Blocks:
    """How a family's feed-forward blocks are built: dense, or experts in the sparse layers."""

    width: Size = "intermediate_size"  # of a dense block; (): every layer has experts
    ratio: int | None = None  # width in units of hidden if the field may be absent (GPT-2: 4)
    gated: bool = True
    bias: Switch = False
    experts: Size | None = None
    active: Size = "num_experts_per_tok"
    expert_width: Size = "moe_intermediate_size"
    sparse: Pattern = Pattern()
    shared: Sequence[Size] = ()  # their product is the total width of the shared experts
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False  # one per expert: plain, or a balancing correction (DeepSeek-V3, arXiv:2408.15664)
    latent: str | None = None  # field of the width that routed experts work in
    latent_norm: Switch = False
    hashed: str | None = None  # field: how many layers choose experts by the token's number, without a bias (V4)
    held: Mapping[str, str] = field(default_factory=dict)
    """Modules of a layer that hold its ``experts`` or its ``shared`` block, if they have other names than usual."""
    dense_up_to: int | None = None  # up to this many experts mean a plain block without a router (Jamba, Granite 4)


@dataclass(frozen=True)
class Encoder:
    """What an encoder has before and after its layers."""

    norm_elements: int = 0  # of the norm on the embedding, in hidden widths
    types: int = 0  # kinds of tokens with a vector of their own, if the config does not say
    pooled: bool = False  # a product with the first token's state, and a classifier behind it
    unused_positions: int = 0  # of the table of learned positions


@dataclass(frozen=True)
class Family:
    """How to read one ``model_type``."""

    mixers: str = "grouped"  # a name in ``config_exceptions.MIXERS``: what attends
    attention: Attention = Attention()
    windows: Windows | None = None
    recurrent: Recurrent | None = None  # between the layers that attend
    side_by_side: bool = False  # attention and recurrence in one layer, written as two (Falcon-H1)
    feed_forward: str = "blocks"  # a name in ``config_exceptions.FEED_FORWARD``
    blocks: Blocks = Blocks()
    around: str | None = None  # a name in ``config_exceptions.AROUND``: norms and tables that depend on the config
    norms: int = 2  # norm vectors of hidden width in a layer
    norm_bias: bool = False
    tied: bool = False  # whether the LM head shares the embedding if the config does not say
    learned_positions: int | None = None  # rows beyond the context length of a learned position table
    head_bias: Switch = False
    final_norm: Switch = True
    vocab: int | None = None
    context: int | None = None
    expect: dict[str, Sequence[object]] = field(default_factory=dict)  # fields understood at these values only
    kinds: Sequence[str] = ("full_attention", "attention")
    """Words of ``layer_types`` that say nothing new, if nothing else reads it: transformers 5 writes it for all."""
    harmless: frozenset[str] = frozenset()
    encoder: Encoder | None = None


@dataclass(frozen=True)
class Tower:
    """How to read the vision tower of one ``model_type``: an encoder, and what projects its patches to tokens."""

    projector: str  # a name in ``config_towers.PROJECTORS``
    width: Size = "hidden_size"
    inner: Size = "intermediate_size"
    ratio: float = 0  # if the inner width is given in units of the width (``mlp_ratio``): its default
    attention: Size = 0  # width of attention, if it differs
    heads: Size = 0  # instead, with ``head_dim``; then queries and keys have norms
    layers: Size = "num_hidden_layers"
    patch: Size = "patch_size"
    channels: Size = ("num_channels", 3)
    frames: Size = 1
    gated: bool = False
    biased: Switch = True
    norms: int = 2  # in a layer
    norm_bias: bool = True  # wherever matrices have one
    scales: int = 0  # vectors in a layer
    grid: Size | None = None  # pixels to a side: each of its patches has a position
    positions: Sequence[Size] = ()  # sizes whose product is the number of positions
    vectors: int = 0
    merge: Size = ()  # patches to the side of a token
    out: Size = 0  # width of a token; 0: the text model's
    window: Size | None = None  # pixels to a side, within which most layers attend
    expect: Mapping[str, Sequence[object]] = field(default_factory=dict)
    sizing: Mapping[str, Any] = field(default_factory=dict)  # one of ``images.Sizing``; none: takes no images here
    needed: Sequence[str] = ()  # fields whose defaults are enough to count a tower but not to size its images


Rows = Mapping[str, Any]
WINDOW_WORDS: Rows = {"words": ["layer_types"], "kinds": {"full_attention": True, "sliding_attention": False}}


def _begun(row: Rows, rows: Rows, part: str | None = None) -> dict[str, Any]:
    """Return a row, or one table of it, with what it inherits from the row it is ``like``."""
    if "like" not in row:
        return dict(row)
    other = _begun(rows[row["like"]], rows)
    if part is not None:
        other = _begun(other[part], rows, part)
    return other | {key: value for key, value in row.items() if key != "like"}


def _family(row: Rows, tables: Rows) -> Family:
    """Return the typed form of one row."""
    rows = tables["families"]
    whole = _begun(row, rows)
    parts = {part: _begun(whole.get(part, {}), rows, part) for part in ("attention", "recurrent", "blocks")}
    recurrent, blocks, windows = parts["recurrent"], parts["blocks"], whole.get("windows")
    windows = tables["windows"][windows] if isinstance(windows, str) else windows
    typed = {
        "attention": Attention(**parts["attention"]),
        "windows": Windows(**windows | {"full": Pattern(**WINDOW_WORDS | windows["full"])}) if windows else None,
        "recurrent": Recurrent(**recurrent | {"full": Pattern(**recurrent.get("full", {}))}) if recurrent else None,
        "blocks": Blocks(**blocks | {"sparse": Pattern(**blocks.get("sparse", {}))}),
        "encoder": Encoder(**whole["encoder"]) if "encoder" in whole else None,
        "harmless": _names(whole.get("harmless", ""), tables),
    }
    return Family(**whole | typed)


def _names(text: str, tables: Rows) -> frozenset[str]:
    """Return the field names in a text of words; ``@mamba`` means the list of that name."""
    found: set[str] = set()
    for word in text.split():
        found |= _names(tables["harmless"][word[1:]], tables) if word.startswith("@") else {word}
    return frozenset(found)


_TABLES = shipped_tables("families.toml")
FAMILIES: dict[str, Family] = {name: _family(row, _TABLES) for name, row in _TABLES["families"].items()}
TOWERS: dict[str, Tower] = {name: Tower(**_begun(row, _TABLES["towers"])) for name, row in _TABLES["towers"].items()}
WRAPPERS: dict[str, str] = _TABLES["wrappers"]
"""Multimodal types, whose text model is under ``text_config``, with the text model's default type."""
HARMLESS, WRAPPER_HARMLESS, TOWER_HARMLESS, AUDIO_HARMLESS = (
    _names(f"@{kind}", _TABLES) for kind in ("everywhere", "wrapper", "tower", "audio")
)
"""Fields that leave the cost unchanged: of any model, of wrappers of a text model, of towers, and of those for audio.
"""
DECODER_ONLY: dict[str, Sequence[object]] = {"is_encoder_decoder": (False,), "add_cross_attention": (False,)}
SHAPE_WORDS = tuple(_TABLES["shape_words"].split())
"""A field nobody reads is refused if a word of its name starts with one of these: it could change the counts."""


LARGEST = 1 << 24  # far above any width, count or vocabulary of a real model: a larger number is a mistake


Value = TypeVar("Value")


class Fields:
    """The fields of one JSON object, with the file and the path they came from."""

    def __init__(self, values: Mapping[str, object], where: str, path: str = "") -> None:
        self.values = values
        self._read: set[str] = set()
        self.where = where
        self.path = path
        self.notes: tuple[str, ...] = ()  # fields inside this one that nobody interpreted

    def wrong(self, name: str, what: str, fix: str | None = None) -> BadInput:
        """Return the error that names the field and its file."""
        return BadInput(f"field '{shorten(self.path + name)}' {what}", where=self.where, fix=fix)

    def again(self) -> "Fields":
        """Return the same fields, none of them read yet."""
        return Fields(self.values, self.where, self.path)

    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    def has(self, name: str) -> bool:
        """Decide whether the field is there, even as null."""
        return name in self.values

    def value(self, name: str) -> object:
        """Return the field, null if absent; ``linear_attn_config.kda_layers`` is inside another."""
        outer, _, inner = name.partition(".")
        if not inner or name in self.values:
            self._read.add(name)
            return self.values.get(name)
        self._read.add(outer)
        around = self.values.get(outer)
        return around.get(inner) if isinstance(around, Mapping) else None

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number under any of its names; absent or null means the default, or an error without one."""
        given = self.optional_size(*names, least=least, most=most)
        size = default if given is None else given
        if size is None:
            raise self.wrong(names[0], "is missing", fix="Copy it from the model's original config.json.")
        return size

    def optional_size(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """Return a whole number, or None; several names for one thing must agree."""
        found: int | None = None
        for name in names:
            given = self.value(name)
            if isinstance(given, list) and len(given) > 1 and all(item == given[0] for item in given):
                given = given[0]  # the same for every layer (Hunyuan)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int):
                raise self.wrong(name, f"needs a whole number (got {_quoted(given)})")
            if not least <= given <= most:
                raise self.wrong(name, f"needs a whole number from {least} to {most} (got {_quoted(given)})")
            if found is not None and found != given:
                raise self.wrong(name, f"says {given} where '{names[0]}' says {found}")
            found = given
        return found

    def ratio(self, name: str, most: float, default: float = 0.0) -> float:
        """Return a positive number, which may be a fraction; absent, null or 0 means the default."""
        given = self.value(name) or default
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= most:
            raise self.wrong(name, "needs a number above 0")
        return given

    def flag(self, name: str, default: bool) -> bool:
        given = self._typed(name, bool, "true or false")
        return default if given is None else given

    def word(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def words(self, name: str) -> list[str] | None:
        return self._typed(name, list, "a list of strings", lambda item: isinstance(item, str))

    def numbers(self, name: str) -> list[int] | None:
        """Return a list of non-negative whole numbers."""
        return self._typed(name, list, "a list of whole numbers", lambda n: type(n) is int and 0 <= n <= LARGEST)

    def child(self, name: str) -> "Fields | None":
        """Return the nested object of that name."""
        given = self._typed(name, dict, "an object")
        return None if given is None else Fields(given, self.where, f"{self.path}{name}.")

    def _typed(
        self, name: str, kind: type[Value], wanted: str, fine: Callable[[Any], bool] = lambda item: True
    ) -> Value | None:
        """Return the field's value, None if absent or null; refuse it unless it is what is wanted, item by item."""
        given = self.value(name)
        if given is None or (isinstance(given, kind) and (not isinstance(given, list) or all(map(fine, given)))):
            return given
        raise self.wrong(name, f"needs {wanted} (got {_quoted(given)})")

    def expect(self, understood: Mapping[str, Sequence[object]]) -> None:
        """Check fields that are understood at these values only; absent and null are fine."""
        for name, accepted in understood.items():
            given = self.value(name)
            if given is not None and not any(type(given) is type(value) and given == value for value in accepted):
                wanted = " or ".join(map(_quoted, accepted))
                raise self.wrong(name, f"is understood only as {wanted} (got {_quoted(given)})")

    def expect_words(self, name: str, understood: Collection[str]) -> None:
        """Check a list of words that nobody has read: these are understood."""
        if name not in self._read and (given := self.words(name)):
            unknown = next((word for word in given if word not in understood), None)
            if unknown is not None:
                raise self.wrong(name, f"has '{shorten(unknown, 40)}', which is not one of {', '.join(understood)}")

    def unread(self, harmless: Collection[str]) -> tuple[str, ...]:
        """Return the fields that nobody interpreted, for a note; raise if one's name suggests that it sets a size."""
        left = [
            name
            for name, given in self.values.items()
            if given is not None and name not in self._read and name not in harmless and not name.startswith("_")
        ]
        for name in left:
            words = name.lower().replace("-", "_").split("_")
            if any(word.startswith(SHAPE_WORDS) for word in words):
                otherwise = "If it does not change the model's size, prefix it with '_' in a copy of the file."
                fix = f"{did_you_mean(name, self._read) or ''} {otherwise}".lstrip()
                raise self.wrong(name, "is not one this reader can interpret", fix)
        return tuple(f"{self.path}{name}" for name in left)


def _quoted(value: object) -> str:
    """Return a value as JSON would show it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinity"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, str):
        return f"'{shorten(value, 40)}'"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, Mapping) else shorten(repr(value), 40)
