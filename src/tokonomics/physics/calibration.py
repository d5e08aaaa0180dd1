"""Apply a profile, which holds what was measured on the user's own machine, to every prediction.

A profile can have two parts. ``kernels`` are curves with the formulas of ``matrix_kernels`` and ``attention_kernels``,
fitted on what ``calibrate --probe`` timed on a GPU; they replace ours wherever that GPU runs those kernels.
``corrections`` give, for an engine on a GPU, a factor for decode steps, one for prompts, and the time that the host
adds to a step. ``tokonomics calibrate`` fits them on results of a server, with a pull towards no correction. Each part
keeps the sizes it was measured at and its error on held-out points.

A correction is measured on one layout (precisions, TP, PP, EP, DP) and corrects every layout of its GPU, engine and
model: the nearest measured layout decides, by the same precisions first, then the same number of GPUs, then the least
different split. All its terms carry over, because no split changes them: clocks, power limits and kernel builds belong
to the GPU and the engine; launches and the time of a request outside any step belong to the host. But only what makes
a layout slower is carried over. A factor below 1 may come from one shape, or from a mistake in the input, so a layout
that was not measured keeps the plain prediction and its range there. So no layout wins a comparison because it was not
corrected, or by a gain that nobody measured on it. No correction makes any operation faster than its bytes at the
datasheet's bandwidth or its FLOPs at peak (``steptime``, ``LeastKernels``).

The profile in use is global, as the user's catalogue is: set by ``using`` or ``$TOKONOMICS_PROFILE``; without one
nothing changes. A cache of step times must include ``profile_key`` in its key.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput, from_validation, shorten
from tokonomics.files import write_text
from tokonomics.physics import attention_kernels, matrix_kernels
from tokonomics.physics.attention_kernels import DecodeCurve, PrefillCurve
from tokonomics.physics.curves import Array
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.matrix_kernels import GemmCurve, LinkCurve
from tokonomics.physics.overhead import LAUNCHES, REQUESTS, Overhead
from tokonomics.types import Noun

SCHEMA_VERSION: Final = 1
VARIABLE = "TOKONOMICS_PROFILE"
LARGEST_FILE = 50_000_000
BARE = "bare"  # the engine name of steps that run without an engine
_FACTORS: Final = ("decode", "prefill", "launch", "request", "experts")
FEW, MANY = 256.0, 2048.0
"""The decode factor holds up to the first number of tokens, the prompt factor from the second; between, a mixture."""


class Range(Noun):
    """A range of sizes that were measured, both ends included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)


class Fitted(Noun):
    """A curve, the sizes it was fitted on, and its error on held-out rows."""

    curve: tuple[float, ...]  # the fields of its formula, in order
    seen: dict[str, Range]
    rows: PositiveInt
    held_out: NonNegativeInt
    median_error: NonNegativeFloat | None = None  # size of log(predicted ÷ timed) on rows held out from a first fit
    p90_error: NonNegativeFloat | None = None


class Kernels(Noun):
    """Curves of one GPU."""

    gpu: str  # its key in the catalogue
    memory: float = Field(gt=0, le=1)  # share of the datasheet's bandwidth that a large copy reaches
    gemm: Fitted | None = None  # dense layers in bf16: PyTorch calls the same cuBLAS as the engines do
    decode: dict[str, Fitted] = Field({})  # PyTorch's attention, by "mode/head width"; for bare steps only
    prefill: dict[str, Fitted] = Field({})
    all_reduce: dict[int, Fitted] = Field({})  # NCCL's, by number of GPUs; used if ours were not timed on this GPU
    layer_s: NonNegativeFloat | None = None  # time between the kernels of a layer
    launch_s: PositiveFloat | None = None  # the host's time to launch the smallest kernel
    spreads: dict[str, "ErrorSpread"] = Field({})  # errors of whole steps against the sum of these curves, by kind

    @model_validator(mode="after")
    def _curves_are_of_their_laws(self) -> Self:
        laws: list[tuple[type[tuple[float, ...]], Iterable[Fitted]]] = [
            (GemmCurve, [self.gemm] if self.gemm else []),
            (DecodeCurve, self.decode.values()),
            (PrefillCurve, self.prefill.values()),
            (LinkCurve, self.all_reduce.values()),
        ]
        for law, fits in laws:
            names: tuple[str, ...] = law._fields  # type: ignore[attr-defined]
            for fit in fits:
                if len(fit.curve) != len(names) or min(fit.curve) <= 0:
                    raise ValueError(f"a {law.__name__} has {len(names)} positive numbers: {', '.join(names)}")
                shares = [fit.curve[names.index(name)] for name in ("memory", "compute", "link") if name in names]
                if max(shares) > 1:
                    raise ValueError(f"a {law.__name__} reaches more than its datasheet")
        return self

    def gemm_curve(self, weights: Precision) -> GemmCurve | None:
        """Return the curve of dense layers; only bf16 is replaced, because PyTorch's FP8 is far from the engines'."""
        return GemmCurve(*self.gemm.curve) if self.gemm and weights is Precision.bf16 else None

    def decode_curve(self, heads: float, kv_heads: float, head_dim: int, window: int | None) -> DecodeCurve | None:
        """Return PyTorch's decode attention at the nearest head width; windows were not timed."""
        fit = None if window else _nearest(self.decode, "grouped" if heads > kv_heads else "plain", head_dim)
        return DecodeCurve(*fit.curve) if fit else None

    def prefill_curve(self, head_dim: int, window: int | None) -> PrefillCurve | None:
        fit = None if window else _nearest(self.prefill, "grouped", head_dim)
        return PrefillCurve(*fit.curve) if fit else None

    def link_curve(self, gpu: Gpu, gpus: int) -> LinkCurve | None:
        """Return NCCL's all-reduce if the engines' own was not timed on this GPU."""
        timed = matrix_kernels.curve_origin(gpu, "all_reduce", gpus=gpus).basis == "measured"
        return None if timed or gpus not in self.all_reduce else LinkCurve(*self.all_reduce[gpus].curve)


class ErrorSpread(Noun):
    """Standard deviation of log(measured ÷ predicted) on held-out points, pulled towards the one without a profile."""

    deviation: PositiveFloat
    n: PositiveInt


class HeldOut(Noun):
    """The errors of one figure on held-out points, without and with the profile."""

    figure: str
    n: PositiveInt
    before: NonNegativeFloat  # median size of log(predicted ÷ measured) without the profile
    after: NonNegativeFloat
    bias_before: float
    bias_after: float

    @property
    def worse(self) -> bool:
        """Decide whether the error grew by more than chance: a tenth of it plus one percent."""
        return self.after > 1.1 * self.before + 0.01


class Coverage(StrEnum):
    """What a profile knows about a layout."""

    measured = "measured"  # calibrated on exactly this layout
    carried_over = "carried over"
    """Corrected by the nearest layout that was measured, or predicted from kernels that were probed."""
    not_covered = "not covered"  # another GPU, engine or model: the profile changes nothing


class Correction(Noun):
    """How an engine on a GPU differs from the sum of its kernels."""

    gpu: str
    engine: str
    model: str | None = None  # only this model; None: all
    weights: Precision | None = None  # the layout that was measured; None: all
    kv: Precision | None = None
    tp: PositiveInt | None = None
    pp: PositiveInt = 1
    ep: PositiveInt = 1
    dp: PositiveInt = 1
    learned_at: str | None = None  # precision and split that were measured, in words
    decode: PositiveFloat = 1.0  # factor on the GPU's time for steps of few tokens
    prefill: PositiveFloat = 1.0  # factor on the GPU's time for prompts
    step_s: NonNegativeFloat | None = None  # time that the host adds to a step; None: the engine's own figures
    sequence_s: NonNegativeFloat | None = None
    launch: PositiveFloat = 1.0  # factor on the host's time to launch a layer of a step with prompts
    request: PositiveFloat = 1.0  # factor on a request's time outside any step
    experts: float = Field(default=1.0, gt=0, le=1)  # share of a layer's experts that the traffic visits at all
    seen: dict[str, Range] = Field({})
    loads: PositiveInt
    rows: PositiveInt
    held_out: tuple[HeldOut, ...] = ()
    spreads: dict[str, ErrorSpread] = Field({})
    notes: tuple[str, ...] = ()

    def of_engine(self, engine: Overhead) -> Overhead:
        """Return the engine's overhead, corrected."""
        added: dict[str, Any] = {
            name: getattr(engine, name) * factor
            for factor, names in ((self.launch, LAUNCHES), (self.request, REQUESTS))
            for name in names
        }
        if self.step_s is not None:
            added |= {"step_s": self.step_s, "sequence_s": self.sequence_s or 0.0, "overlapped": False}
        return engine.model_copy(update=added)

    def covers(self, deployment: Deployment, engine: str) -> bool:
        """Decide whether it corrects this deployment, as measured or carried over."""
        same = self.gpu == deployment.gpu.key and self.engine == engine
        return same and self.model in (None, deployment.model.key)

    def distance(self, deployment: Deployment) -> tuple[float, ...]:
        """Return how far the measured layout is from this one, the most important difference first; zeros if the same.

        A deployment with drafts or adapters is always another layout, because calibration has none.
        """
        ours = [self.tp or deployment.tp, self.pp, self.ep, self.dp]
        theirs = [deployment.tp, deployment.pp, deployment.ep, deployment.dp]
        apart = [abs(math.log2(own / other)) for own, other in zip(ours, theirs, strict=True)]
        gpus = ours[0] * self.pp * self.dp
        return (
            self.weights not in (None, deployment.weights),
            self.kv not in (None, deployment.kv),
            abs(math.log2(gpus / deployment.gpus)),
            sum(apart),
            deployment.speculation is not None or deployment.lora_adapters > 0,
        )

    def carried_over(self, engine: Overhead | None) -> Self:
        """Return the part that holds on layouts that were not measured: what makes them slower, no held-out errors."""
        carried: dict[str, Any] = {name: max(1.0, getattr(self, name)) for name in _FACTORS}
        if self.step_s is not None and engine:
            carried["step_s"] = max(self.step_s, engine.step_s)
            carried["sequence_s"] = max(self.sequence_s or 0.0, engine.sequence_s)
        return self.model_copy(update=carried | {"held_out": (), "spreads": {}})

    def summary(self) -> str:
        """Describe the correction in a few words, with the sizes it was measured at."""
        batch = self.seen.get("batch")
        loads = f" of {batch.low:,.0f} to {batch.high:,.0f} at once" if batch else ""
        what = "bare steps" if self.engine == BARE else self.engine
        of = ", ".join(part for part in (self.model, self.learned_at) if part)
        return f"{what} on {self.gpu}{f' ({of})' if of else ''} corrected on {self.loads} loads{loads}"

    def factor(self, tokens: Array) -> Array:
        """Return the factor on a step's token-wise part, which moves from decode's to the prompts' as tokens grow."""
        place = np.log(np.clip(tokens, FEW, MANY) / FEW) / math.log(MANY / FEW)
        return np.asarray(np.exp((1 - place) * math.log(self.decode) + place * math.log(self.prefill)))


def _nearest(fits: Mapping[str, Fitted], mode: attention_kernels.Mode, head_dim: int) -> Fitted | None:
    widths = {int(name.split("/")[1]): fit for name, fit in fits.items() if name.split("/")[0] == mode}
    return widths[min(widths, key=lambda width: abs(math.log(width / head_dim)))] if widths else None


class ProbedMachine(Noun):
    """The machine on which the kernels were timed."""

    device: str
    gpus: PositiveInt
    driver: str | None = None
    torch: str | None = None
    cuda: str | None = None


class Profile(Noun):
    """Everything known about a machine, in one file."""

    kind: Literal["tokonomics profile"] = "tokonomics profile"
    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    made: date
    command: str
    machine: ProbedMachine | None = None
    kernels: Kernels | None = None
    corrections: tuple[Correction, ...] = ()
    check: tuple[HeldOut, ...] = ()  # whole steps that the probe predicted and timed
    timings: dict[str, Any] = Field({})  # as timed, so that the curves can be fitted again

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy as any noun does, without the cached key, because the copy may predict differently."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("key", None)
        return copied

    @cached_property
    def key(self) -> str:
        """Return a hash that is equal for profiles with equal predictions."""
        said = self.model_dump_json(exclude={"timings", "name", "command", "made"})
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs that it has data on."""
        named = [correction.gpu for correction in self.corrections] + ([self.kernels.gpu] if self.kernels else [])
        return tuple(dict.fromkeys(named))

    def kernels_of(self, gpu: Gpu) -> Kernels | None:
        """Return the curves timed on this GPU; a catalogue entry that the user changed is another GPU."""
        return self.kernels if self.kernels and self.kernels.gpu == gpu.key else None

    def correction_of(self, deployment: Deployment, engine: Overhead | None) -> Correction | None:
        """Return the correction of a deployment under an engine; without an engine, that of its bare steps.

        It is the one measured on the same layout, else what carries over from the nearest; None if nothing covers it.
        """
        nearest = self._nearest(deployment, engine_of(deployment, engine is not None))
        if nearest is None or not any(nearest.distance(deployment)):
            return nearest
        return nearest.carried_over(engine)

    def knows(self, deployment: Deployment) -> Coverage:
        """Decide whether a deployment was measured with its engine."""
        nearest = self._nearest(deployment, deployment.engine.key)
        if nearest and not any(nearest.distance(deployment)):
            return Coverage.measured
        return Coverage.carried_over if nearest or self.kernels_of(deployment.gpu) else Coverage.not_covered

    def _nearest(self, deployment: Deployment, engine: str) -> Correction | None:
        """Return the correction of the nearest layout among those that cover a deployment, its own model's first."""
        covering = [correction for correction in self.corrections if correction.covers(deployment, engine)]

        def order(item: Correction) -> tuple[float, ...]:
            return (item.model is None, *item.distance(deployment), [item.weights, item.kv, item.tp].count(None))

        return min(covering, key=order, default=None)

    def summary(self) -> str:
        """Describe the profile in one line."""
        parts = [f"kernels of {self.kernels.gpu} probed"] if self.kernels else []
        parts += [correction.summary() for correction in self.corrections]
        return f"profile {self.name} of {self.made}: {'; '.join(parts) or 'empty'}"


_NOT_SET: Final = object()
_ACTIVE: ContextVar[object] = ContextVar("tokonomics_profile", default=_NOT_SET)


@contextmanager
def using(profile: Profile | None) -> Iterator[None]:
    """Predict with this profile inside the context."""
    before = _ACTIVE.set(profile)
    try:
        yield
    finally:
        _ACTIVE.reset(before)


def active() -> Profile | None:
    """Return the profile in use: the one set for this run, or the environment's."""
    chosen = _ACTIVE.get()
    if chosen is not _NOT_SET:
        return chosen  # type: ignore[return-value]
    given = os.environ.get(VARIABLE)
    return read_profile(Path(given).expanduser()) if given else None


def profile_key() -> str | None:
    """Return the key of the profile in use, for caches of step times."""
    profile = active()
    return profile.key if profile else None


def profiled(deployment: Deployment) -> Coverage | None:
    """Return what the profile in use knows about a deployment; None without a profile."""
    profile = active()
    return profile.knows(deployment) if profile else None


def engine_of(deployment: Deployment, served: bool) -> str:
    """Return the engine's name in corrections."""
    return deployment.engine.key if served else BARE


def read_profile(path: Path) -> Profile:
    """Read a profile from its file."""
    where = shorten(str(path), 200)
    try:
        stamp = path.stat()
    except (OSError, ValueError) as error:
        reason = shorten(str(getattr(error, "strerror", None) or error))
        raise BadInput(f"cannot be read: {reason}", where=where, fix="Make one: tokonomics calibrate.") from None
    if stamp.st_size > LARGEST_FILE:
        raise BadInput(f"has {stamp.st_size:,} bytes, too many for a profile", where=where)
    return _parsed(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, changed: int, size: int) -> Profile:
    """Read a profile, again only after its file has changed."""
    where = shorten(str(path), 200)
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"is not a profile: {shorten(str(error), 120)}", where=where) from None
    if not is_profile(document):
        fix = "Make one with `tokonomics calibrate --probe` or `tokonomics calibrate FILE --out mine.json`."
        raise BadInput("is not a profile", where=where, fix=fix)
    if document.get("schema_version") != SCHEMA_VERSION:
        version = shorten(str(document.get("schema_version")))
        raise BadInput(f"has schema version {version}; this tokonomics reads {SCHEMA_VERSION}", where=where)
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise from_validation(error, where) from None


def _no_number(text: str) -> float:
    """Refuse NaN, which would spread through every prediction made with the profile."""
    raise ValueError(f"{text} is no number of JSON")


def is_profile(document: object) -> bool:
    """Decide whether a JSON document says that it is a profile."""
    return isinstance(document, Mapping) and document.get("kind") == "tokonomics profile"


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile with one timing per line, atomically."""
    whole = profile.model_dump(mode="json", exclude={"timings"})
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    if profile.timings:
        lines = [f' "{name}": {_rows(rows)}' for name, rows in profile.timings.items()]
        text = text.removesuffix("\n}") + ',\n "timings": {\n' + ",\n".join(lines) + "\n}}"
    write_text(path, text + "\n", shorten(str(path), 200))


def _rows(rows: object) -> str:
    if not isinstance(rows, list):
        return json.dumps(rows)
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"


def outside(
    profile: Profile, gpus: Iterable[str], engines: Iterable[str], models: Iterable[str], sizes: Mapping[str, float]
) -> list[str]:
    """List the parts of a question that a profile does not cover, by the catalogue's names."""
    asked, served, notes = list(gpus), list(engines), []
    if unknown := [gpu for gpu in asked if gpu not in profile.gpus]:
        known = ", ".join(profile.gpus) or "no GPU"
        notes.append(f"the profile is of {known}: predictions for {', '.join(unknown)} are as without it")
    here = [item for item in profile.corrections if (not asked or item.gpu in asked) and item.engine != BARE]
    for model in models:
        fitting = [item for item in here if item.model in (None, model) and (not served or item.engine in served)]
        if here and not fitting:
            seen = ", ".join(dict.fromkeys(f"{item.model or 'all models'} under {item.engine}" for item in here))
            asked_of = f"{model} under {', '.join(served)}" if served else model
            notes.append(f"the profile was calibrated on {seen}: {asked_of} is not corrected by it")
        for correction in fitting:
            notes += _beyond(correction, sizes)
    return notes


def _beyond(correction: Correction, sizes: Mapping[str, float]) -> list[str]:
    notes = []
    for name, value in sizes.items():
        known = correction.seen.get(name)
        if known is None or known.holds(value):
            continue
        side = f"beyond the {known.high:,.4g}" if value > known.high else f"below the {known.low:,.4g}"
        notes.append(f"extrapolates: {name.replace('_', ' ')} {value:,.4g} is {side} it was calibrated on")
    return notes
