"""List the sets of engine flags that are worth a simulation, and what each makes of a setup.

A flag set gives values to knobs. Some knobs the simulator knows (``MODELLED``): each changes a setup, and the engine's
writer spells it (``sizing.engine_flags``). Any other is a flag of the engine by its own name, of which only a trial can
tell. What the engine refuses, or what does not fit the GPU's memory, is never tried: vLLM ends at start with fewer
tokens a step than sequences (0.26, ``config/scheduler.py``: "max_num_batched_tokens has to be greater than or equal to
max_num_seqs"), llama.cpp takes a micro-batch above its batch as its batch (``common/common.cpp``).

An engine that may hold few sequences captures few graphs, and prompts beside them are then launched kernel by kernel:
vLLM's default is twice the sequences, 512 at the most. A set with fewer names the captured size beside it.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.physics.deployment import Deployment, valid_tp, why_not_run
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.overhead import CAPTURED, CAPTURED_PER_SEQUENCE
from tokonomics.planner.parsing import NO_DRAFT, draft_named, published_draft
from tokonomics.sizing.engine_flags import ServerPlan, engine_flags, flag_words, repository_of
from tokonomics.sizing.layouts import weight_choices, why_not
from tokonomics.sizing.setup import Setup
from tokonomics.types import Noun

Value = str | int | bool
Axes = Mapping[str, Sequence[Value]]


class FlagSet(Noun):
    """Values by knob; knobs that are not in it are left as the server is started."""

    values: dict[str, Value]

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, str(value)) for name, value in self.values.items())))

    @property
    def text(self) -> str:
        """Name it by its values, as ``--try`` takes them."""
        shown = [f"{name.replace('_', '-')}={_written(value)}" for name, value in self.values.items()]
        return ", ".join(shown) or "as started"


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what each knob does --------------------------------------------------------------------------------------------


def _flagged(setup: Setup, **changes: object) -> Setup:
    return setup.deployed(flags=setup.deployment.flags.model_copy(update=changes))


def _drafting(setup: Setup, value: str) -> Setup:
    drafts = None if value == NO_DRAFT else draft_named(value, setup.deployment.model, None, None)
    return setup.deployed(speculation=drafts)


def _batched(setup: Setup, tokens: int) -> Setup:
    return replace(setup, handling=replace(setup.handling, max_batched_tokens=tokens))


MODELLED: dict[str, Callable[[Setup, Any], Setup]] = {
    "tp": lambda setup, value: setup.deployed(tp=value),
    "pp": lambda setup, value: setup.deployed(pp=value),
    "dp": lambda setup, value: setup.deployed(dp=value),
    "ep": lambda setup, value: setup.deployed(ep=value),
    "max_sequences": lambda setup, value: replace(setup, max_sequences=value),
    "max_batched_tokens": _batched,
    "kv": lambda setup, value: setup.deployed(kv=Precision(value)),
    "weights": lambda setup, value: setup.deployed(weights=Precision(value)),
    "prefix_cache": lambda setup, value: replace(setup, prefix_cache=value),
    "captured_tokens": lambda setup, value: _flagged(setup, captured_tokens=value),
    "composes_ahead": lambda setup, value: _flagged(setup, composes_ahead=value),
    "draft": _drafting,
    "tiers": lambda setup, value: replace(setup, tiers=value or None),
}

SPELLED: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "max_sequences": ("max-num-seqs",),
        "max_batched_tokens": ("max-num-batched-tokens",),
        "kv": ("kv-cache-dtype",),
        "weights": ("quantization",),
        "prefix_cache": ("enable-prefix-caching", "no-enable-prefix-caching"),
        "captured_tokens": ("max-cudagraph-capture-size", "enforce-eager"),
        "composes_ahead": ("async-scheduling", "no-async-scheduling"),
        "draft": ("speculative-config",),
        "tp": ("tensor-parallel-size",),
        "pp": ("pipeline-parallel-size",),
        "dp": ("data-parallel-size",),
        "ep": ("enable-expert-parallel",),
        "tiers": ("kv-offloading-size", "kv-transfer-config"),
    },
    "sglang": {
        "max_sequences": ("max-running-requests",),
        "max_batched_tokens": ("chunked-prefill-size",),
        "kv": ("kv-cache-dtype",),
        "weights": ("quantization",),
        "prefix_cache": ("disable-radix-cache",),
        "captured_tokens": ("cuda-graph-max-bs-decode", "disable-decode-cuda-graph"),
        "composes_ahead": ("disable-overlap-schedule",),
        "draft": (
            "speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps", "speculative-eagle-topk",
            "speculative-num-draft-tokens",
        ),
        "tp": ("tp-size",),
        "pp": ("pp-size",),
        "dp": ("attn-dp-size",),
        "ep": ("ep-size",),
        "tiers": (
            "enable-hierarchical-cache", "hicache-size", "hicache-storage-backend",
            "hicache-storage-backend-extra-config",
        ),
    },
    "tensorrt-llm": {
        "max_sequences": ("max_batch_size",),
        "max_batched_tokens": ("max_num_tokens",),
        "tp": ("tp_size",),
        "pp": ("pp_size",),
        "ep": ("ep_size",),
        **dict.fromkeys(("kv", "prefix_cache", "captured_tokens", "composes_ahead"), ("extra_llm_api_options",)),
    },
    "llama.cpp": {
        "max_sequences": ("parallel", "ctx-size"),
        "max_batched_tokens": ("batch-size",),
        "kv": ("cache-type-k", "cache-type-v"),
        "prefix_cache": ("no-cache-prompt",),
    },
}  # fmt: skip
"""The flags that spell each knob, by engine: read in vLLM 0.26 and 0.32, SGLang 0.5.23, llama.cpp b10236, TensorRT-LLM
1.3.0 (``trtllm-serve``)."""


_WHOLE = {"max_sequences": 1, "max_batched_tokens": 1, "captured_tokens": 0, "tp": 1, "pp": 1, "dp": 1, "ep": 1}
LAYOUT = ("tp", "pp", "dp")
_SWITCHES = ("prefix_cache", "composes_ahead")
_TURN_OFF = ("no-", "disable-")


def _is_converted(started: Setup, changed: Setup) -> bool:
    """Tell whether a set turns a 16-bit checkpoint into FP8; no flag changes another one."""
    before, after = started.deployment.weights, changed.deployment.weights
    return before is started.deployment.model.served is Precision.bf16 and after is Precision.fp8


def with_values(setup: Setup, values: Mapping[str, Value]) -> Setup:
    """Return the setup with these values; flags that the simulator does not know change nothing."""
    for name, change in MODELLED.items():
        if name in values:
            setup = change(setup, values[name])
    return setup


def words_of(setup: Setup | None, engine: str, flags: FlagSet, converts: bool = True) -> list[str]:
    """Return a flag set as words of a command line, spelled for the engine.

    Fewer bits are converted on load, unless the command names the checkpoint.
    """
    known = SPELLED.get(engine, {})
    spelled = [name for knob in flags.values if knob in MODELLED for name in known.get(knob, ())]
    words: list[str] = []
    if spelled:
        assert setup is not None
        changed = with_values(setup, flags.values)
        if "attn-dp-size" in spelled:
            spelled.append("tp-size")  # SGLang's is that of all groups together
        written, _ = engine_flags(server_plan(changed)._replace(converts=converts))
        words = flag_words({name: written.get(name) for name in dict.fromkeys(spelled)})
    for name, value in flags.values.items():
        if name not in MODELLED and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def server_plan(setup: Setup) -> ServerPlan:
    """Return what one server of a setup has to serve."""
    own = setup.deployment.limits
    tokens = setup.handling.max_batched_tokens or own.max_batched_tokens
    limits = own.model_copy(
        update={"max_sequences": setup.max_sequences or own.max_sequences, "max_batched_tokens": tokens}
    )
    tiers = setup.tiers if isinstance(setup.tiers, str) else None
    return ServerPlan(setup.deployment, limits, setup.load.longest, tiers=tiers, prefix_cache=setup.prefix_cache)


# --- which sets there are -------------------------------------------------------------------------------------------

_SEQUENCES = (16, 32, 64, 128, 256, 512, 1024)
_STEP_TOKENS = (1024, 2048, 4096, 8192, 16_384)
"""Limits that are tried, in octaves: between two of them the price changes by less than between any and the best
(benchmarks/bench_tune.py)."""


def usual_axes(setup: Setup, gpus: int, names_it: bool = False) -> dict[str, tuple[Value, ...]]:
    """Return the knobs worth turning for a setup on a machine of so many GPUs, each with its values.

    If the command names the checkpoint, it ``names_it`` for any engine.
    """
    now, shares = setup.deployment, setup.load.trace.prefix is not None or setup.load.trace.turns is not None
    key = now.engine.key
    axes: dict[str, tuple[Value, ...]] = {"max_sequences": _SEQUENCES, "max_batched_tokens": _STEP_TOKENS}
    kinds = [now.kv, *(kv for kv in (Precision.fp8,) if kv.is_below(now.kv) and not _refused(now, kv=kv))]
    if len(kinds) > 1:
        axes["kv"] = tuple(kind.value for kind in kinds)
    bits = [each for each in weight_choices(now.model) if not _refused(now, weights=each)]
    if len(bits) > 1:
        axes["weights"] = tuple(each.value for each in bits)
    if shares:
        axes["prefix_cache"] = (True, False)
    if drafts := published_draft(now.model):
        name = {"mtp": "mtp", "eagle3": "eagle"}.get(drafts.method.value)
        axes |= {"draft": (NO_DRAFT, name)} if name else {}
    if gpus > 1:
        axes["tp"] = tuple(valid_tp(now.model, gpus, now.gpu))
        if now.model.is_moe:
            axes["ep"] = tuple(ep for ep in (1, 2, 4, 8) if ep <= gpus)
            axes["dp"] = tuple(dp for dp in (1, 2, 4, 8) if dp <= gpus)
    return {knob: values for knob, values in axes.items() if knob in SPELLED[key] or (knob == "weights" and names_it)}


def _refused(now: Deployment, **changes: Precision) -> str | None:
    kinds = {"weights": now.weights, "kv": now.kv} | changes
    return why_not_run(now.engine, now.gpu, **kinds)


def llama_cpp_axes() -> dict[str, tuple[Value, ...]]:
    """Return llama.cpp's flags worth turning on a machine whose speed nobody knows: threads, slots and batches."""
    cores = os.cpu_count() or 1
    threads = tuple(sorted({1, max(1, cores // 2), cores}))
    return {"threads": threads, "parallel": (1, 2, 4, 8), "batch-size": (512, 2048), "ubatch-size": (128, 512)}


@dataclass(frozen=True)
class FlagSpace:
    """The flag sets to choose from, and how many combinations are not, by reason."""

    sets: tuple[FlagSet, ...]
    refused: dict[str, int]


def space_of(setup: Setup | None, engine: str, axes: Axes, gpus: int = 1, converts: bool = True) -> FlagSpace:
    """Combine the values of all axes; leave out what the engine refuses, does not fit, or is the same as another.

    If it ``converts``, weights of fewer bits are what the engine makes of the published checkpoint as it loads it.
    """
    now = values_now(setup, axes) if setup is not None else {}
    refused: Counter[str] = Counter()
    found: dict[object, FlagSet] = {}
    for values in product(*axes.values()):
        flags = _for_all_groups(engine, FlagSet(values=dict(zip(axes, values, strict=True))), setup)
        if why := _why_never(setup, engine, flags, gpus, converts):
            refused[why] += 1
            continue
        flags = _with_graphs(setup, flags)
        regrouped = flags.values.get("dp", now.get("dp")) != now.get("dp")
        flags = FlagSet(
            values={
                knob: value
                for knob, value in flags.values.items()
                if now.get(knob) != value or (regrouped and knob in _LIMITS)
            }
        )
        if not flags.values:
            continue
        words = words_of(setup, engine, flags, converts)
        weights = setup and repository_of(with_values(setup, flags.values).deployment)
        if (converts or not setup) and not words:
            refused["the engine does not make it of the published checkpoint"] += 1
            continue
        found.setdefault((*words, None if converts else weights), flags)
    return FlagSpace(tuple(found.values()), dict(refused.most_common()))


_LIMITS = ("max_sequences", "max_batched_tokens")


def _for_all_groups(engine: str, flags: FlagSet, setup: Setup | None) -> FlagSet:
    """Return limits of all groups of the attention together: vLLM takes those of one, named or its own."""
    groups = flags.values.get("dp")
    if engine != "vllm" or setup is None or not isinstance(groups, int):
        return flags
    now = {name: int(value) // setup.deployment.dp for name, value in values_now(setup, _LIMITS).items()}
    limits = {name: int(flags.values.get(name, now[name])) * groups for name in _LIMITS}
    return FlagSet(values=flags.values | limits)


def values_now(setup: Setup, knobs: Iterable[str]) -> dict[str, Value]:
    """Return the values of knobs as the server is started."""
    deployment, plan = setup.deployment, server_plan(setup)
    known: dict[str, Value] = {
        "max_sequences": plan.limits.max_sequences,
        "max_batched_tokens": plan.limits.max_batched_tokens,
        "kv": deployment.kv.value,
        "weights": deployment.weights.value,
        "prefix_cache": setup.prefix_cache,
        "draft": deployment.speculation.name if deployment.speculation else NO_DRAFT,
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dp": deployment.dp,
        "ep": deployment.ep,
    }
    return {knob: known[knob] for knob in knobs if knob in known}


def _with_graphs(setup: Setup | None, flags: FlagSet) -> FlagSet:
    """Name the captured size beside few sequences, so that prompts beside them are still launched as graphs."""
    sequences = flags.values.get("max_sequences")
    if setup is None or "captured_tokens" in flags.values or not isinstance(sequences, int):
        return flags
    if setup.deployment.engine.key != "vllm" or CAPTURED_PER_SEQUENCE * sequences >= CAPTURED:
        return flags
    if setup.deployment.flags.captured_tokens is not None:
        return flags
    return FlagSet(values={**flags.values, "captured_tokens": CAPTURED})


def _why_never(setup: Setup | None, engine: str, flags: FlagSet, gpus: int, converts: bool) -> str | None:
    """Say why a set is never tried: the engine refuses it, or it does not fit; None if it may be."""
    given = flags.values
    batch, part = (given.get(name) for name in ("batch-size", "ubatch-size"))
    if isinstance(batch, int) and isinstance(part, int) and part > batch:
        return "a micro-batch above the batch is taken as the batch"
    if setup is None:
        return None
    try:
        changed = with_values(setup, given)
        spelled = (*SPELLED.get(engine, {}), *(() if converts else ("weights",)))
        if unknown := [knob for knob, value in given.items() if knob in MODELLED and knob not in spelled
                       and values_now(setup, [knob]).get(knob) != value]:  # fmt: skip
            return f"no flag of {engine} is known for {' and '.join(unknown)}"
        weights = changed.deployment.weights
        if converts and weights is not setup.deployment.weights and not _is_converted(setup, changed):
            return f"no flag makes {weights} of {setup.deployment.weights} weights"
        plan = server_plan(changed)
        if engine == "vllm" and plan.limits.max_batched_tokens < plan.limits.max_sequences:
            return "vLLM refuses fewer tokens a step than sequences"
        if changed.deployment.gpus > gpus:
            return f"takes more than the {gpus} GPUs of the machine"
        if wrong := _does_not_divide(changed.deployment):
            return wrong
        if refusal := why_not(changed.deployment, setup.load.longest):
            return refusal.reason
        if max_sequences(changed.deployment, setup.load.longest) < 1:
            return "the longest request does not fit"
        words_of(setup, engine, flags)
    except TokonomicsError as error:
        return error.what
    return None


def _does_not_divide(now: Deployment) -> str | None:
    if now.ep > 1 and now.ep != now.expert_gpus:
        return "experts are shared by all GPUs of a stage or by none"
    if now.tp not in valid_tp(now.model, gpu=now.gpu):
        return f"{now.model.name} cannot be split over {now.tp} GPUs"
    if now.dp > 1 and not now.model.is_moe:
        return "groups of the attention share experts, of which this model has none"
    return None


# --- what the user names --------------------------------------------------------------------------------------------


def parse_axes(texts: Iterable[str], engine: str, simulated: bool) -> dict[str, tuple[Value, ...]]:
    """Read ``max-num-seqs=64/128,kv=bf16/fp8``: flags as the engine spells them, or knobs, with values to try.

    If nothing is simulated, every name is a flag of the engine.
    """
    spelled = SPELLED.get(engine, {}) if simulated else {}
    by_flag = {spelling: knob for knob, names in spelled.items() for name in names[:1] for spelling in _spellings(name)}
    axes: dict[str, tuple[Value, ...]] = {}
    for part in (piece for text in texts for piece in text.split(",")):
        name, equals, listed = part.strip().partition("=")
        name = name.removeprefix("--").strip()
        if not equals or not name or not listed:
            fix = f"Such as {option('try_', 'max-num-seqs=64/128')}."
            raise BadInput(f"'{shorten(part)}' names no flag with values", field="try_", fix=fix)
        knob = by_flag.get(name, name)
        knob = knob.replace("-", "_") if simulated and knob.replace("-", "_") in MODELLED else knob
        values = [_read(knob, value.strip(), simulated) for value in listed.split("/")]
        turned_off = knob in _SWITCHES and name.startswith(_TURN_OFF)
        axes[knob] = tuple(not value if turned_off else value for value in values)
    return axes


def _spellings(flag: str) -> tuple[str, ...]:
    """Return how people write a flag: with dashes or underscores, and short."""
    return (flag, flag.replace("-", "_"), flag.replace("_", "-"), *_SHORT.get(flag, ()))


_SHORT = {
    "tensor-parallel-size": ("tp",), "pipeline-parallel-size": ("pp",), "data-parallel-size": ("dp",),
    "tp-size": ("tp", "tensor-parallel-size"), "attn-dp-size": ("dp-size", "dp"), "ep-size": ("ep",),
    "parallel": ("np",), "batch-size": ("b",), "cache-type-k": ("ctk",),
}  # fmt: skip
"""Other names of flags: ``vllm serve --help=all``, SGLang's ``server_args.py``, ``llama-server --help``."""


def gpus_of(flags: FlagSet, started: Mapping[str, Value]) -> int:
    """Return the GPUs of a set where nothing is simulated: those of the layout it names, else as it is ``started``."""
    kinds = {name: knob for known in SPELLED.values() for knob in LAYOUT for flag in known.get(knob, ())
             for name in (knob, *_spellings(flag))}  # fmt: skip
    layout = {knob: int(value) for knob, value in started.items() if knob in LAYOUT}
    layout |= {kinds[name]: value for name, value in flags.values.items() if name in kinds and isinstance(value, int)}
    return math.prod(layout.values())


def _read(knob: str, text: str, simulated: bool) -> Value:
    is_switch = text.lower() in ("true", "false")
    if simulated and knob in _SWITCHES and not is_switch:
        raise BadInput(f"'{shorten(text)}' is neither true nor false", where=knob, field="try_")
    if simulated and knob in _WHOLE and not (text.isdecimal() and int(text) >= _WHOLE[knob]):
        raise BadInput(f"'{shorten(text)}' is no whole number from {_WHOLE[knob]}", where=knob, field="try_")
    if not text:
        raise BadInput("a value is missing", where=knob, field="try_")
    if is_switch:
        return text.lower() == "true"
    if simulated and knob in ("kv", "weights"):
        allowed = KV_PRECISIONS if knob == "kv" else WEIGHT_PRECISIONS
        return parse_precision("bf16" if text == "auto" else text.removesuffix("_e4m3"), allowed, "try_").value
    try:
        return int(text)
    except ValueError:
        return text


def values_in(words: Sequence[str], engine: str) -> dict[str, Value]:
    """Read the values of known knobs in the words of a start command; switches that turn something off included."""
    found: dict[str, Value] = {}
    spelled = {spelling: knob for knob, names in SPELLED.get(engine, {}).items() for name in names
               for spelling in _spellings(name)}  # fmt: skip
    pairs = [word.partition("=") if "=" in word else (word, "", "") for word in words]
    for place, (word, equals, inline) in enumerate(pairs):
        name = word.lstrip("-")
        knob = spelled.get(name) if word.startswith("-") else None
        following = inline if equals else (words[place + 1] if place + 1 < len(words) else "")
        match knob, name:
            case None, _:
                continue
            case "prefix_cache" | "composes_ahead", _:
                found[knob] = not name.startswith(_TURN_OFF)
            case "captured_tokens", "enforce-eager" | "disable-decode-cuda-graph":
                found[knob] = 0
            case "ep", "enable-expert-parallel":
                found[knob] = True
            case _ if knob in _WHOLE:
                if following.isdecimal() and name != "ctx-size":
                    found[knob] = int(following)
            case "kv", _:
                found[knob] = "fp8" if following.startswith(("fp8", "q8")) else "bf16"
            case "weights", _:
                found |= {knob: "fp8"} if following.startswith("fp8") else {}
            case _:
                continue
    return _of_all_groups(found, engine)


def _of_all_groups(found: dict[str, Value], engine: str) -> dict[str, Value]:
    """Count what engines count for each group of data parallelism for all, and the other way round."""
    tp, groups = int(found.get("tp", 1)), int(found.get("dp", 1))
    if engine == "vllm":
        limits = {name: int(found[name]) * groups for name in ("max_sequences", "max_batched_tokens") if name in found}
        return found | limits | ({"ep": tp * groups} if "ep" in found else {})
    return found | {"tp": max(1, tp // groups)} if engine == "sglang" and "tp" in found else found
