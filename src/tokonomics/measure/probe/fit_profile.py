"""Turn timings into a profile: curves of this GPU, and how well they predict whole steps that were also timed.

A kernel's formula is fitted by least squares of logarithms, with far outliers damped and parameters in bounds. All
parameters are positive and are fitted in logarithms. The corner's sharpness is not fitted but tried at a few values
that compute fast. A parameter that the timings do not determine is pulled to its start. The bounds are orders of
magnitude of the hardware; ``benchmarks/fit_matrix_kernels.py`` and ``fit_attention_kernels.py`` fit the shipped curves
with them.

Each curve is fitted twice: without a quarter of its shapes, whose error is reported, and on all, which is kept. The
time between the kernels of a layer is what a stack of layers takes beyond its matrix products, each timed at exactly
the sizes it has there. Whole models are only used to check.
"""

import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput, UnknownName, from_validation, option, shorten
from tokonomics.measure.measurements import Measurement, steps_from
from tokonomics.measure.probe.timings import KIND, PROBE
from tokonomics.measure.validate import ScoredPrediction, kind_of, predict
from tokonomics.physics.attention_kernels import DecodeCurve, PrefillCurve, Work, decode_time, prefill_time
from tokonomics.physics.calibration import ErrorSpread, Fitted, HeldOut, Kernels, ProbedMachine, Profile, Range, using
from tokonomics.physics.matrix_kernels import GemmCurve, LinkCurve, all_reduce_seconds, gemm_seconds

Array = NDArray[np.float64]
Curve = TypeVar("Curve", bound=tuple[float, ...])


class Bounds(NamedTuple, Generic[Curve]):
    """Where each parameter of a formula starts, and its range."""

    start: Curve
    low: Curve
    high: Curve


GEMM = Bounds(
    GemmCurve(2.5e-6, 3e-6, 4e3, 0.85, 0.85, 16, 128, 64, 2, 0.1),
    GemmCurve(5e-7, 1e-8, 200, 0.3, 0.2, 0.1, 0.1, 0.1, 1, 1e-3),
    GemmCurve(2e-5, 1e-2, 1e8, 0.95, 1, 512, 4096, 2048, 8, 0.3),
)
LINK = Bounds(LinkCurve(6e-6, 0.6, 1.2), LinkCurve(1e-6, 0.001, 0.5), LinkCurve(1e-4, 1, 4))
DECODE = Bounds(
    DecodeCurve(6e-6, 0.8e-6, 100, 3e-6, 6e4, 0.85, 0.3, 1.8, 16, 8, 1e12),
    DecodeCurve(1e-6, 1e-9, 16, 1e-8, 1e3, 0.05, 0.02, 1.05, 0.3, 0.5, 5e9),
    DecodeCurve(40e-6, 2e-5, 1e5, 5e-5, 1e7, 1, 1, 5, 1e4, 64, 1e13),
)
PREFILL = Bounds(
    PrefillCurve(6e-6, 0.6, 200, 64, 0.5, 8e-9, 0.8, 3, 1.5),
    PrefillCurve(1e-6, 0.02, 1, 1, 0.02, 1e-10, 0.3, 0.01, 1.0),
    PrefillCurve(60e-6, 1, 5000, 1000, 1, 1e-6, 1, 300, 6),
)
GEMM_SHARPNESS = (1.0, 2.0, 4.0, 8.0)
ATTENTION_SHARPNESS = (1.0, 2.0, 4.0)
PULL = 0.3  # weight of an attention parameter's start, relative to one for each timing
HEAT_S = 1e-3  # a GPU that has computed for this long is half as hot as one that serves


def least_log_squares(
    predict: Callable[[Array], Array],
    seconds: Array,
    begin: Sequence[float] | Array,
    low: Sequence[float] | Array,
    high: Sequence[float] | Array,
    *,
    fixed: int | None = None,
    weight: Array | None = None,
    pull: float = 0.0,
    pull_to: Sequence[float] | Array | None = None,
    most_steps: int = 100,
) -> tuple[float, Array]:
    """Return loss and parameters; the one at ``fixed`` does not change."""
    from scipy.optimize import least_squares

    first = np.asarray(begin, np.float64)
    free = np.arange(len(first)) != (-1 if fixed is None else fixed)
    target = np.log(seconds)
    scale = np.ones_like(target) if weight is None else weight
    origin = np.log(first if pull_to is None else np.asarray(pull_to, np.float64))[free]

    def whole(x: Array) -> Array:
        values = first.copy()
        values[free] = np.exp(x)
        return values

    def residuals(x: Array) -> Array:
        errors = scale * (np.log(predict(whole(x))) - target)
        return np.concatenate([errors, pull * (x - origin)]) if pull else np.asarray(errors)

    bounds = np.log(np.asarray(low))[free], np.log(np.asarray(high))[free]
    inside = np.clip(np.log(first)[free], bounds[0] + 1e-6, bounds[1] - 1e-6)
    solved = least_squares(residuals, inside, bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=most_steps)
    return float(solved.cost), whole(solved.x)


def fit_law(
    predict: Callable[[Array], Array],
    seconds: Array,
    bounds: Bounds[Any],
    *,
    sharpness: Sequence[float],
    weight: Array | None = None,
    pull: float = 0.0,
) -> Array:
    """Return the parameters under the sharpness that fits best."""
    place, trials = bounds.start._fields.index("sharpness"), []
    how = {"fixed": place, "weight": weight, "pull": pull}
    for p in sharpness:
        begin = np.where(np.arange(len(bounds.start)) == place, p, bounds.start)
        trials.append(least_log_squares(predict, seconds, begin, bounds.low, bounds.high, **how))
    return min(trials, key=lambda trial: trial[0])[1]


Rows = Sequence[Mapping[str, Any]]
Law = Callable[[Array, NDArray[np.intp]], Array]  # returns the seconds of the rows at some indices, given parameters

FEWEST_CHECKED = 3  # whole steps of a kind needed to keep their spread
FEWEST = 24  # with fewer timings a curve of ten parameters is a guess
FEW_PULLED = 12  # the same for a curve whose parameters are pulled to known ones
PRIOR_POINTS = 8  # weight of the spread without a profile, in points: a few good ones do not make an interval narrow

_SIZES = ("heads", "kv_heads", "head_dim", "batch")
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "memory": ("bytes_per_s",),
    "launch": (),
    "gemm": ("m", "n", "k", "us"),
    "gemm_fp8": (),
    "sustained": ("m", "n", "k", "us"),
    "decode_attention": (*_SIZES, "context", "us"),
    "prefill_attention": (*_SIZES, "tokens", "past", "us"),
    "all_reduce": ("gpus", "bytes", "us"),
    "layers": (*_SIZES[:1], "head_dim", "batch", "hidden", "intermediate", "qkv", "vocab", "layers", "ms"),
    "check": (),
    "validate": (),
}
_SIZE = (1.0, 2.0**24)
_LIMITS = {
    "us": (1e-3, 1e9), "ms": (1e-3, 1e6), "busy_ms": (0.0, 1e9), "heat": (0.0, 1.0), "past": (0.0, _SIZE[1]),
    "bytes_per_s": (1.0, 1e15), "bytes": (1.0, 1e13), "gpus": (1.0, 1e5),
}  # fmt: skip
"""From a nanosecond, less than a cycle of any GPU, to a quarter of an hour; to a thousand times the fastest memory."""
_MAY_LACK = {"gemm": ("heat", "busy_ms"), "sustained": ("heat", "busy_ms")}


def is_timings(document: object) -> bool:
    """Decide whether a JSON document is what ``probe.timings`` writes."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def profile_from(timings: Mapping[str, Any], command: str, where: str, gpu: str | None = None) -> Profile:
    machine = timings.get("machine")
    if not isinstance(machine, Mapping) or not isinstance(machine.get("device"), str):
        raise BadInput("the timings do not say which device they are of", where=where)
    check_timings(timings, where)
    device = str(machine["device"])
    try:
        found = find_gpu(gpu or device)
    except UnknownName:
        fix = f"Name it with {option('gpu')}, or add it: docs/catalogue.md."
        raise BadInput(f"no GPU of the catalogue is called '{shorten(device)}'", where=where, fix=fix) from None
    kernels = kernels_from(timings, found, where)
    try:
        profile = Profile(
            name=f"{found.key} probe",
            made=date.fromisoformat(str(timings.get("made") or date.today().isoformat())),
            command=command,
            machine=ProbedMachine(**{name: machine.get(name) for name in ProbedMachine.model_fields}),
            kernels=kernels,
            timings={name: timings[name] for name in PROBE if timings.get(name)},
        )
    except ValidationError as error:
        raise from_validation(error, where) from None
    except ValueError as error:
        raise BadInput(f"'made' is no date: {shorten(str(error))}", where=where) from None
    pairs = check(profile, timings.get("check") or (), found)
    spreads = {}
    for kind, (befores, afters) in _by_kind(pairs).items():
        if len(afters) >= FEWEST_CHECKED:
            prior = math.sqrt(statistics.fmean(error**2 for error in befores))
            spreads[kind] = ErrorSpread(deviation=shrunken(afters, prior), n=len(afters))
    kernels = kernels.model_copy(update={"spreads": spreads})
    return profile.model_copy(update={"kernels": kernels, "check": held_out_figures(sorted(pairs))})


def kernels_from(timings: Mapping[str, Any], gpu: Gpu, where: str) -> Kernels:
    copied = [row["bytes_per_s"] for row in timings.get("memory") or () if row.get("kind") == "copy"]
    gemm = _gemm(gpu, [*(timings.get("gemm") or ()), *(timings.get("sustained") or ())])
    if gemm is None:
        said = "too few matrix products were timed to fit their curve"
        raise BadInput(said, where=where, fix="Give the probe more time.")
    share = min(1.0, max(copied, default=0.0) / gpu.bandwidth_bytes_per_s) or GemmCurve(*gemm.curve).memory
    return Kernels(
        gpu=gpu.key,
        memory=share,
        gemm=gemm,
        decode=_by_width(timings.get("decode_attention") or (), gpu, decode=True),
        prefill=_by_width(timings.get("prefill_attention") or (), gpu, decode=False),
        all_reduce={
            gpus: fitted
            for gpus in sorted({int(row["gpus"]) for row in timings.get("all_reduce") or ()})
            if (fitted := _link(gpu, gpus, [row for row in timings["all_reduce"] if row["gpus"] == gpus]))
        },
        layer_s=_layer_s(timings.get("layers") or (), timings.get("gemm") or (), gpu, share),
        launch_s=_launch_s(timings.get("launch") or ()),
    )


def _gemm(gpu: Gpu, rows: Rows) -> Fitted | None:
    m, n, k = (_column(rows, name) for name in ("m", "n", "k"))
    busy_s = np.array([row.get("busy_ms", 0.0) for row in rows]) * 1e-3
    heat = np.array([row.get("heat", math.nan) for row in rows], np.float64)
    heat = np.where(np.isnan(heat), busy_s / (busy_s + HEAT_S), heat)
    peak, bandwidth = gpu.peak_flops(Precision.bf16), gpu.bandwidth_bytes_per_s

    def law(x: Array, at: NDArray[np.intp]) -> Array:
        return gemm_seconds(GemmCurve(*x), m[at], n[at], k[at], peak, bandwidth, 2.0, heat[at])

    # A model spends its time in its large matrices, and most of its steps have few tokens.
    weight = np.clip(np.sqrt(n * k / 16e6), 0.3, 1.5)
    shapes = [f"{row['n']}/{row['k']}" for row in rows]
    return _fitted(law, rows, GEMM, shapes, ("m", "n", "k"), GEMM_SHARPNESS, weight)


def _attention(gpu: Gpu, rows: Rows, *, decode: bool) -> Fitted | None:
    batch, heads, kv_heads, head_dim = (_column(rows, name) for name in ("batch", "heads", "kv_heads", "head_dim"))
    sizes = ("batch", "context") if decode else ("tokens", "past")
    first, second = (_column(rows, name) for name in sizes)
    peak, bandwidth = gpu.peak_flops(Precision.bf16), gpu.bandwidth_bytes_per_s

    def law(x: Array, at: NDArray[np.intp]) -> Array:
        work = Work(kv_heads[at], heads[at] / kv_heads[at], 4.0 * head_dim[at], 4.0 * head_dim[at])
        if decode:
            return decode_time(DecodeCurve(*x), bandwidth, peak, first[at], second[at], work)
        return prefill_time(PrefillCurve(*x), bandwidth, peak, first[at], second[at], work, None, batch[at])

    length = "context" if decode else "tokens"
    shapes = [f"{row['heads']}/{row['kv_heads']}/{row['batch']}/{row[length]}" for row in rows]
    return _fitted(law, rows, DECODE if decode else PREFILL, shapes, sizes, ATTENTION_SHARPNESS, pull=PULL)


def _link(gpu: Gpu, gpus: int, rows: Rows) -> Fitted | None:
    message = _column(rows, "bytes")
    seconds = _column(rows, "us") * 1e-6
    if len(rows) < 4:
        return None

    def law(x: Array) -> Array:
        return all_reduce_seconds(LinkCurve(*x), gpus, message, gpu.link_among(gpus))

    _, curve = least_log_squares(law, seconds, *LINK)
    seen = {"bytes": Range(low=float(message.min()), high=float(message.max()))}
    return Fitted(curve=_short(curve), seen=seen, rows=len(rows), held_out=0)


def _fitted(
    law: Law,
    rows: Rows,
    bounds: Bounds[Any],
    shapes: Sequence[str],
    sizes: Sequence[str],
    sharpness: Sequence[float],
    weight: Array | None = None,
    pull: float = 0.0,
) -> Fitted | None:
    """Return a curve fitted on all rows, with the error on a quarter of the shapes of one fitted on the rest."""
    fewest = FEW_PULLED if pull else FEWEST
    if len(rows) < fewest:
        return None
    seconds = _column(rows, "us") * 1e-6
    apart = np.array([zlib.crc32(shape.encode()) % 4 == 0 for shape in shapes])
    every = np.arange(len(rows))

    def solve(at: NDArray[np.intp]) -> Array:
        chosen = None if weight is None else weight[at]
        return fit_law(lambda x: law(x, at), seconds[at], bounds, sharpness=sharpness, weight=chosen, pull=pull)

    error = np.zeros(0)
    if 0 < apart.sum() < len(rows) - fewest // 2:
        unseen = every[apart]
        error = np.abs(np.log(law(solve(every[~apart]), unseen) / seconds[unseen]))
    return Fitted(
        curve=_short(solve(every)),
        seen={name: Range(low=min(row[name] for row in rows), high=max(row[name] for row in rows)) for name in sizes},
        rows=len(rows),
        held_out=len(error),
        median_error=float(np.median(error)) if len(error) else None,
        p90_error=float(np.quantile(error, 0.9)) if len(error) else None,
    )


def _by_width(rows: Rows, gpu: Gpu, *, decode: bool) -> dict[str, Fitted]:
    """Return one attention curve for each head width; for decode, grouped heads separately from plain ones."""

    def name(row: Mapping[str, Any]) -> str:
        return f"{'plain' if decode and row['heads'] == row['kv_heads'] else 'grouped'}/{row['head_dim']}"

    alike = {kind: [row for row in rows if name(row) == kind] for kind in sorted({name(row) for row in rows})}
    fits = {kind: _attention(gpu, own, decode=decode) for kind, own in alike.items()}
    return {kind: fitted for kind, fitted in fits.items() if fitted}


def _launch_s(rows: Rows) -> float | None:
    """Return the host's time to launch the smallest kernel, one after another."""
    found = [row["us"] * 1e-6 for row in rows if row.get("kind") == "by the host" and "us" in row]
    return statistics.median(found) if found else None


def _layer_s(stacks: Rows, products: Rows, gpu: Gpu, share: float) -> float | None:
    """Return the median over stacks of a layer's time beyond its products and the bytes of its small operations."""
    timed = {(row["m"], row["n"], row["k"]): row["us"] * 1e-6 for row in products}
    left = []
    for row in stacks:
        names = ("hidden", "intermediate", "qkv", "batch", "layers")
        hidden, inner, qkv, batch, layers = (int(row[name]) for name in names)
        wide = int(row["heads"]) * int(row["head_dim"])
        layer = [(qkv, hidden), (hidden, wide), (2 * inner, hidden), (hidden, inner)]
        sizes = [(batch, n, k) for n, k in [*layer, (int(row["vocab"]), hidden)]]
        if not all(size in timed for size in sizes):
            continue
        # As physics.steptime counts the bytes of norms, rotary embedding, activation and residual.
        moved = batch * (8.0 * hidden + 2 * qkv + 3 * inner) * 2.0
        own = sum(timed[size] for size in sizes[:-1])
        whole = (row["ms"] * 1e-3 - timed[sizes[-1]]) / layers
        left.append(whole - own - moved / (gpu.bandwidth_bytes_per_s * share))
    return max(0.0, statistics.median(left)) if left else None


Pair = tuple[str, float, float]  # what was predicted, log(predicted ÷ measured) without the profile, and with it


def check(profile: Profile, rows: Rows, gpu: Gpu) -> list[Pair]:
    """Predict whole steps without and with a profile."""
    pairs: list[Pair] = []
    for row in steps_from(list(rows), gpu.key, {}):
        if not isinstance(row, Measurement):
            continue
        with using(None):
            before = predict(row)
        with using(profile):
            after = predict(row)
        if isinstance(before, ScoredPrediction) and isinstance(after, ScoredPrediction):
            pairs.append((kind_of(row), before.error, after.error))
    return pairs


def held_out_figures(pairs: Sequence[Pair]) -> tuple[HeldOut, ...]:
    """Return how far off each kind is, before and after, in the order in which kinds first appear."""
    return tuple(
        HeldOut(
            figure=kind,
            n=len(before),
            before=statistics.median(map(abs, before)),
            after=statistics.median(map(abs, after)),
            bias_before=statistics.median(before),
            bias_after=statistics.median(after),
        )
        for kind, (before, after) in _by_kind(pairs).items()
    )


def _by_kind(pairs: Sequence[Pair]) -> dict[str, tuple[list[float], list[float]]]:
    """Return the errors before and after, by kind."""
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for kind, before, after in pairs:
        found[kind][0].append(before)
        found[kind][1].append(after)
    return found


def shrunken(errors: Sequence[float], prior: float) -> float:
    """Return the root mean square of errors, as if there had been ``PRIOR_POINTS`` more of the size known before."""
    total = sum(error * error for error in errors) + PRIOR_POINTS * prior * prior
    return math.sqrt(total / (len(errors) + PRIOR_POINTS))


def _column(rows: Rows, name: str) -> Array:
    return np.array([row[name] for row in rows], np.float64)


def _short(curve: Array) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in curve)


def check_timings(timings: Mapping[str, Any], where: str) -> None:
    """Refuse the first row that a fit could not use: a curve fitted on a damaged row would be silently wrong.

    Values that no fit reads are also kept in the profile, so every number must be finite.
    """
    for section, needed in _NEEDED.items():
        rows = timings.get(section)
        if rows is None:
            continue
        if not isinstance(rows, list):
            raise BadInput(f"'{section}' is not a list of timings", where=where)
        for place, row in enumerate(rows, 1):
            at = f"row {place} of '{section}'"
            if not isinstance(row, Mapping):
                raise BadInput(f"{at} is not an object", where=where)
            for field, value in row.items():
                is_infinite = isinstance(value, float) and not math.isfinite(value)
                if not isinstance(value, str | int | float | None) or is_infinite:
                    raise BadInput(f"{at}: '{shorten(field)}' is {shorten(repr(value), 30)}", where=where)
            for field in (*needed, *(field for field in _MAY_LACK.get(section, ()) if field in row)):
                value, (least, most) = row.get(field), _LIMITS.get(field, _SIZE)
                if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                    shown = "missing" if value is None else shorten(repr(value), 30)
                    raise BadInput(f"{at}: '{field}' is {shown}, not a number from {least:g} to {most:g}", where=where)
