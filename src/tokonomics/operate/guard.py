"""Compare two fingerprints term by term: what became slower, by how much, and which part of a step it is.

What a probe took before is split into what the same server's other probes tell: a request's time outside any step (a
lone prompt, less one step), the step itself, and the part of it that grows with prompts or with contexts. A change of
one term then changes each probe in its own way, and the probes' changes, as shares of what they took, are regressed on
these by weighted least squares, far outliers damped. Terms are added one at a time, the one that explains most first,
while it is worth its numbers (the Bayesian information criterion): the first is the cause. They are those of
``physics.calibration.Correction``, and:

- **graphs**: steps of more than K tokens take at least L, as the host launches their kernels one by one while the GPU
  waits (Correction's launch factor without captured graphs). With K = 0 every step does: eager mode.
- **context**: the part of a decode step that its contexts add: attention, another KV precision.
- **cache**: the share of a repeated prompt that is computed again.

A build is slower if the interval of any probe's change, or of any term's largest effect on a probe, lies beyond the
tolerance. The intervals hold together: of two equal builds, one comparison in a hundred raises an alarm (Bonferroni).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveFloat

from tokonomics.errors import BadInput, shorten
from tokonomics.operate.choose import NOISE
from tokonomics.operate.fingerprint import AT_ONCE, SHORT, Fingerprint, Probe, ProbeKind, ProbeTimes
from tokonomics.physics.calibration import FEW, MANY
from tokonomics.physics.overhead import CAPTURED
from tokonomics.types import Noun
from tokonomics.units import percent, seconds

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Term = Literal["kernels", "decode", "prefill", "context", "host", "launch", "graphs", "request", "cache"]
Side = Literal["slower", "faster"]
Verdict = Literal["same", "slower", "faster"]

TOLERANCE = 0.03
"""Changes up to this are none: half as much again as two alike servers differed by (``choose.NOISE``)."""
FALSE_ALARMS = 0.01  # share of comparisons of equal builds that may raise an alarm; our choice
_MEDIAN = math.sqrt(math.pi / 2)  # deviation of a median relative to that of a mean, of normal values
_FAR = 3.0  # deviations from which a probe counts less (Huber's loss)
_HUBER_ROUNDS = 5
_LEAST_TIMES = 60  # values tried for the least time of a step, before the best of them is refined
_PART, _WHOLE = 0.1, 0.5
"""Shares of the changes that each term, and all together, have to explain to be named; our choice."""
_LARGEST = 50.0  # of a logarithm, so that its exponential is a number
_WAITED_STEPS = 0.5  # a prompt that arrives beside running answers waits for half of one of their steps
_LINE_TO = 256  # tokens of lone prompts through which the line of a step's fixed part goes


class ProbeChange(Noun):
    """How much longer a probe takes than before."""

    probe: Probe
    name: str
    before_s: PositiveFloat
    after_s: PositiveFloat
    ratio: PositiveFloat  # after ÷ before, with an interval that holds for all probes together
    low: PositiveFloat
    high: PositiveFloat
    explained: PositiveFloat | None = None  # the ratio that the terms found give

    def side(self, tolerance: float) -> Side | None:
        return _side(self.low - 1, self.high - 1, tolerance)


class TermChange(Noun):
    """A term that changed: by how much, and what that is."""

    term: Term
    size: float  # seconds, a factor, or a share
    low: float
    high: float
    above_tokens: NonNegativeInt | None = None  # of graphs: steps of more tokens than this
    before_s: float | None = None  # of launches: the least time of such a step before
    effect: float  # the largest on any probe, as a share of what it took; negative if faster
    said: str


class ToldChange(Noun):
    """What the servers say of themselves, where it differs."""

    name: str
    before: str
    after: str
    lost: bool = False  # room that is gone: it raises an alarm


class BuildChange(Noun):
    """Two builds side by side."""

    verdict: Verdict
    tolerance: float
    probes: tuple[ProbeChange, ...]
    terms: tuple[TermChange, ...] = ()  # the cause first
    told: tuple[ToldChange, ...] = ()
    unlike: tuple[str, ...] = ()  # reasons why the two may not be comparable
    turned: bool = False  # the new build is faster: the terms say what the old one did beyond it

    @property
    def lost(self) -> tuple[ToldChange, ...]:
        return tuple(row for row in self.told if row.lost)

    @property
    def is_worse(self) -> bool:
        return self.verdict == "slower" or bool(self.lost)

    @property
    def typical(self) -> float:
        """Return the median of the probes' ratios."""
        return float(np.median([change.ratio for change in self.probes]))


def compare(old: Fingerprint, new: Fingerprint, tolerance: float = TOLERANCE) -> BuildChange:
    """Return what changed from one build to another."""
    pair = _pair(old, new)
    probes, tests = pair.probes, len(pair.probes) + len(_LINEAR)
    reach = pair.reach(tests)
    changes = [
        ProbeChange(
            probe=probe,
            name=probe.name,
            before_s=float(pair.before[place]),
            after_s=float(pair.after[place]),
            ratio=float(np.exp(pair.change[place])),
            low=float(np.exp(pair.change[place] - reach * pair.error[place])),
            high=float(np.exp(pair.change[place] + reach * pair.error[place])),
        )
        for place, probe in enumerate(probes)
    ]
    sides = {change.side(tolerance) for change in changes}
    sides |= {_side(low, high, tolerance) for low, high in _effects(pair, reach)}
    verdict: Verdict = "slower" if "slower" in sides else "faster" if "faster" in sides else "same"
    turned = verdict == "faster"
    slow = pair.turned() if turned else pair
    best = _explained(slow, tolerance) if verdict != "same" else _NOTHING
    if best.left is not None and best.terms:
        ratios = 1 + slow.excess - best.left
        changes = [
            change.model_copy(update={"explained": float(1 / ratio if turned else ratio)})
            for change, ratio in zip(changes, np.maximum(ratios, 0.01), strict=True)
        ]
    return BuildChange(
        verdict=verdict,
        tolerance=tolerance,
        probes=tuple(changes),
        terms=tuple(_named(slow, best, reach)),
        told=tuple(_told(old, new, tolerance)),
        unlike=tuple(_unlike(old, new)),
        turned=turned,
    )


def _side(low: float, high: float, tolerance: float) -> Side | None:
    """Return to which side an interval of a relative change lies beyond the tolerance."""
    return "slower" if low > tolerance else "faster" if high < -tolerance else None


# --- two builds as arrays, and what the old one's probes tell of its steps -------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """The probes that both builds ran: their medians, and how far the change of each may be off by chance."""

    probes: tuple[Probe, ...]
    before: Array
    after: Array
    error: Array  # one deviation of ``change``
    freedom: float  # degrees of freedom of these deviations

    @property
    def change(self) -> Array:
        return np.log(self.after / self.before)

    @property
    def excess(self) -> Array:
        """Return the change as a share of what a probe took before."""
        return self.after / self.before - 1

    @property
    def weights(self) -> Array:
        return 1 / (self.error * self.after / self.before) ** 2

    def turned(self) -> "_Pair":
        """Return the change back."""
        return replace(self, before=self.after, after=self.before)

    def reach(self, tests: int) -> float:
        """Return how many deviations an interval reaches if so many are to hold together."""
        from scipy.stats import t as student

        return float(student.ppf(1 - FALSE_ALARMS / tests / 2, self.freedom))


def _pair(old: Fingerprint, new: Fingerprint) -> _Pair:
    before, after = old.times(), new.times()
    probes = tuple(probe for probe in before if probe in after)
    if not probes:
        raise BadInput("the two fingerprints have no probe in common: their servers take too different loads")
    errors = [NOISE**2 + _error(before[probe]) ** 2 + _error(after[probe]) ** 2 for probe in probes]
    rounds = [len(before[probe].seconds) + len(after[probe].seconds) - 2 for probe in probes]
    return _Pair(
        probes,
        np.array([before[probe].median_s for probe in probes]),
        np.array([after[probe].median_s for probe in probes]),
        np.sqrt(errors),
        max(1.0, float(np.median(rounds))),
    )


def _error(times: ProbeTimes) -> float:
    """Return one deviation of the logarithm of a probe's median, from its rounds."""
    logs = np.log(times.seconds)
    return _MEDIAN * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else 1.0


@dataclass(frozen=True)
class _Steps:
    """What a probe's time is made of, as far as the other probes tell; one row for each probe."""

    requests: Array  # times that a request's time outside any step is in it
    steps: Array  # that it waits for
    step_s: Array  # of the step that computes it
    waits_s: Array  # for the step before
    tokens: Array  # of the step that computes it
    context_s: Array  # what contexts add to a decode step
    cached_s: Array  # what the prompt would take, of a prompt sent twice


def _steps(pair: _Pair) -> _Steps:
    took = dict(zip(pair.probes, pair.before.tolist(), strict=True))
    alone = {probe.prompt_tokens: value for probe, value in took.items() if probe.kind is ProbeKind.prompt}
    fixed_s = _intercept({tokens: value for tokens, value in alone.items() if tokens <= _LINE_TO} or alone)
    one = next((value for probe, value in took.items() if probe == Probe(**_ONE_ANSWER)), 0.0)
    request_s = max(0.0, fixed_s - one)
    short_s = max(0.0, min(alone.values(), default=0.0) - request_s)  # the step of a short prompt
    rows = []
    for probe, value in took.items():
        is_decode, is_beside = probe.kind is ProbeKind.decode, probe.kind is ProbeKind.beside
        tokens = probe.prompt_tokens * (probe.users if probe.kind is not ProbeKind.beside else 1)
        short = Probe(kind=ProbeKind.decode, prompt_tokens=SHORT, users=probe.users)
        waited_s = _WAITED_STEPS * took.get(short, one) if is_beside else 0.0
        if is_beside and probe.prompt_tokens in alone:  # measured: it is half a step, or more if steps are planned ahead
            waited_s = max(0.0, value - alone[probe.prompt_tokens])
        waits_s = waited_s
        step_s = value if is_decode else max(0.0, value - request_s - waits_s)
        computed_s = max(0.0, alone.get(tokens, 0.0) - fixed_s) if probe.kind is ProbeKind.again else 0.0
        if computed_s and value - fixed_s < computed_s / 2:  # found in the cache, but for its end
            tokens, step_s = SHORT, min(step_s, short_s)
        rows.append((
            0.0 if is_decode else 1.0,
            1 + _WAITED_STEPS * is_beside,
            step_s,
            waits_s,
            probe.users if is_decode else tokens + (probe.users if is_beside else 0),
            max(0.0, value - took.get(short, value)) if is_decode else 0.0,
            computed_s,
        ))  # fmt: skip
    return _Steps(*np.array(rows, dtype=np.float64).T)


_ONE_ANSWER = {"kind": ProbeKind.decode, "prompt_tokens": SHORT, "users": 1}


def _intercept(alone: dict[int, float]) -> float:
    """Return what the shortest prompts take beside their tokens: the start of the line through them."""
    if not alone:
        return 0.0
    if len(alone) == 1:
        return next(iter(alone.values()))
    tokens, values = np.array(list(alone), dtype=np.float64), np.array(list(alone.values()))
    slope, start = np.polyfit(tokens, values, 1, w=1 / values)
    return float(np.clip(start if slope > 0 else values.min(), 0.0, values.min()))


# --- regression on the terms -----------------------------------------------------------------------------------------

_LINEAR: tuple[Term, ...] = ("kernels", "decode", "prefill", "context", "host", "request", "cache")
"""Terms whose effect on a probe is proportional to their size; one that explains all comes before its parts."""


def _columns(pair: _Pair) -> dict[Term, Array]:
    """Return what one unit of each term adds to each probe, as a share of what it took."""
    had = _steps(pair)
    # Long prompts are kernels' work (``Correction.factor``), short ones where they take more than the shortest.
    long = np.log(np.clip(had.tokens, FEW, MANY) / FEW) / math.log(MANY / FEW)
    alone = (had.requests > 0) & (had.steps == 1)
    shortest_s = had.step_s[alone].min(initial=math.inf)
    place = np.maximum(long, 1 - np.minimum(shortest_s, had.step_s) / np.maximum(had.step_s, 1e-12))
    added: dict[Term, Array] = {
        "kernels": had.step_s + had.waits_s,
        "decode": (1 - had.requests) * had.step_s + had.waits_s,
        "prefill": had.requests * place * had.step_s,
        "context": had.context_s,
        "host": had.steps,
        "request": had.requests,
        "cache": had.cached_s,
    }
    return {term: column / pair.before for term, column in added.items() if np.count_nonzero(column) > 1}


class _Least(NamedTuple):
    """Steps that take a least time, however little they compute: those with prompts, or of more tokens than this."""

    term: Term
    above_tokens: int = 0


_LEAST = (_Least("launch"), *(_Least("graphs", 2**power if power >= 0 else 0) for power in range(-1, 10)))
"""Largest captured steps are tried at the sizes of the probes' steps; 512 is the largest by default (vLLM)."""


@dataclass(frozen=True)
class _Explained:
    """A set of terms fitted to the changes."""

    terms: tuple[Term, ...]
    sizes: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()  # the largest on a probe
    least: _Least | None = None
    left: Array | None = None  # of the changes, what is not explained
    loss: float = math.inf


_NOTHING = _Explained(())


def _solved(columns: Array, excess: Array, weights: Array) -> tuple[Array, Array, Array, float]:
    """Return sizes, their deviations, what is left, and the loss, with far outliers damped (Huber)."""
    damped = weights
    sizes: Array = np.zeros(columns.shape[1])
    left = excess
    for _ in range(_HUBER_ROUNDS if columns.shape[1] else 1):
        root = np.sqrt(damped)
        sizes = np.asarray(np.linalg.lstsq(columns * root[:, None], excess * root, rcond=None)[0])
        left = excess - columns @ sizes
        damped = weights * np.minimum(1.0, _FAR / np.maximum(np.sqrt(weights) * np.abs(left), 1e-9))
    loss = _loss(left, weights)
    scale = max(1.0, loss / max(1, len(excess) - columns.shape[1]))
    spread = np.linalg.pinv((columns * damped[:, None]).T @ columns) * scale
    return sizes, np.sqrt(np.maximum(np.diag(spread), 0.0)), left, loss


def _loss(left: Array, weights: Array) -> float:
    """Return Huber's loss: squares of deviations, and only as much as their size for those far off."""
    far = np.sqrt(weights) * np.abs(left)
    return float(np.sum(np.where(far <= _FAR, far**2, 2 * _FAR * far - _FAR**2)))


def _effects(pair: _Pair, reach: float) -> Iterator[tuple[float, float]]:
    """Yield for each term by itself the interval of its largest effect on a probe, from logarithms: alike both ways."""
    for column in _columns(pair).values():
        (size,), (error,), _, _ = _solved(
            column[:, None], pair.change, pair.error**-2
        )  # as logarithms, alike both ways
        most = float(column.max())
        yield math.expm1((size - reach * error) * most), math.expm1(min(_LARGEST, (size + reach * error) * most))


def _explained(pair: _Pair, tolerance: float) -> _Explained:
    """Return the terms that explain the changes: add the best one while it is worth its numbers."""
    columns, had = _columns(pair), _steps(pair)
    found: tuple[Term, ...] = ()
    best = _fitted(pair, columns, had, (), None)
    whole_loss = best.loss
    while True:
        linear = tuple(term for term in found if term in columns)
        rest = [term for term in columns if term not in found]
        more = [_fitted(pair, columns, had, (*linear, term), best.least) for term in rest]
        if best.least is None:
            more += [_fitted(pair, columns, had, linear, least) for least in _LEAST]
        tried = min(more, key=lambda fit: _worth(fit, pair), default=best)
        new = next((term for term in tried.terms if term not in found), None)
        if new is None or _worth(tried, pair) >= _worth(best, pair):
            break
        if abs(tried.effects[tried.terms.index(new)]) <= tolerance or best.loss - tried.loss < _PART * whole_loss:
            break
        best, found = tried, (*found, new)
    if best.loss > (1 - _WHOLE) * whole_loss:
        return _NOTHING
    places = [best.terms.index(term) for term in found]
    sizes, errors, effects = ([values[at] for at in places] for values in (best.sizes, best.errors, best.effects))
    return replace(best, terms=found, sizes=tuple(sizes), errors=tuple(errors), effects=tuple(effects))


def _worth(fit: _Explained, pair: _Pair) -> float:
    """Return the Bayesian information criterion; a fit closer than the noise is not better for it."""
    count, numbers = len(pair.probes), len(fit.terms) + (fit.least is not None)
    return count * math.log(max(fit.loss, count) / count) + math.log(count) * numbers


def _fitted(
    pair: _Pair, columns: dict[Term, Array], had: _Steps, linear: tuple[Term, ...], least: _Least | None
) -> _Explained:
    """Fit terms together; where some steps take a least time, try many."""
    none = np.zeros(len(pair.probes))
    matrix = np.stack([columns[term] for term in linear], axis=1) if linear else none[:, None][:, :0]

    def fit(offset: Array, more: Array = matrix[:, :0]) -> tuple[Array, Array, Array, float]:
        return _solved(np.concatenate([matrix, more], axis=1), pair.excess - offset, pair.weights)

    def effects(sizes: Array) -> list[float]:
        return [float(size * columns[term].max()) for term, size in zip(linear, sizes, strict=False)]

    if least is None:
        sizes, errors, left, loss = fit(none)
        return _Explained(linear, tuple(sizes), tuple(errors), tuple(effects(sizes)), None, left, loss)
    step_s, share = had.step_s, 1 / pair.before
    prompts, larger = had.requests > 0, had.tokens > least.above_tokens
    # How much of a lone prompt is its step is known only roughly, so steps with prompts have a least time of their own.
    groups = [larger & ~prompts, larger & prompts]
    if least.term == "launch":  # in captured pieces up to so many tokens, kernel by kernel above
        groups = [prompts & within for within in (had.tokens <= CAPTURED, had.tokens > CAPTURED)]
    if not any(group.any() for group in groups):
        return _NOTHING
    times, others = [], none

    def added(group: Flags, least_s: float) -> Array:
        return np.where(group, np.maximum(least_s - step_s, 0.0), 0.0) * share

    def loss_at(offset: Array) -> float:
        return fit(offset)[3] if linear else _loss(pair.excess - offset, pair.weights)

    for group in groups:
        ends = float(step_s[group].min(initial=1.0)), float(pair.after[group].max(initial=1e-9))
        tried = np.geomspace(max(ends[0], 1e-9), max(ends[1], 1.01 * ends[0], 1e-9), _LEAST_TIMES)
        losses = [loss_at(others + added(group, least_s)) for least_s in tried]
        times.append(float(tried[int(np.argmin(losses))]))
        others = others + added(group, times[-1])
    slopes = [np.where(group & (step_s < at), share, 0.0) for group, at in zip(groups, times, strict=True)]
    sizes, errors, _, _ = fit(others, np.stack(slopes, axis=1))
    moved = sizes[len(linear) :]  # between two that were tried
    times = [max(0.0, at + float(more)) for at, more in zip(times, moved, strict=True)]
    whole = sum((added(group, at) for group, at in zip(groups, times, strict=True)), none)
    sizes, _, left, loss = fit(whole)
    terms, most = (*linear, least.term), (*effects(sizes), float(whole.max()))
    return _Explained(terms, (*sizes, times[0]), tuple(errors[: len(terms)]), most, least, left, loss)


# --- in words --------------------------------------------------------------------------------------------------------

_SAID: dict[Term, str] = {
    "kernels": "steps take {0} as long, in proportion to their work: kernels",
    "decode": "steps of few tokens take {0} as long, in proportion to their work: kernels of decode",
    "prefill": "prompts take {0} as long, in proportion to their work: kernels of prompts",
    "context": "what contexts add to a step takes {0} as long: attention, or another KV precision",
    "host": "every step takes {0} {1}, whatever its size: the host (scheduling, launches)",
    "request": "every request takes {0} {1} outside its steps: HTTP, tokenising, queueing",
    "cache": "{0} {1} of a prompt sent before is computed again: prefix cache",
}


def _named(pair: _Pair, found: _Explained, reach: float) -> Iterator[TermChange]:
    """Yield each term found with its size as people say it: a factor, seconds, a share."""
    for place, term in enumerate(found.terms):
        size, away = found.sizes[place], reach * found.errors[place]
        is_factor = term in ("kernels", "decode", "prefill", "context")
        size += is_factor
        yield TermChange(
            term=term,
            size=size,
            low=size - away,
            high=size + away,
            above_tokens=found.least.above_tokens if term == "graphs" and found.least else None,
            before_s=_steps(pair).step_s[_steps(pair).requests > 0].min(initial=math.inf) if term == "launch" else None,
            effect=found.effects[place],
            said=_said(term, size, found.least.above_tokens if found.least else 0),
        )


def _said(term: Term, size: float, above: int) -> str:
    if term == "launch":
        return f"no step with prompts takes less than {seconds(size)}: the host launches them more slowly"
    if term == "graphs":
        which = f"no step of more than {above} tokens takes" if above else "no step takes"
        why = f"graphs captured to about {above} tokens" if above else "eager mode, no captured graphs"
        return f"{which} less than {seconds(size)}: the host launches its kernels one by one ({why})"
    if term == "cache":
        return _SAID[term].format(percent(abs(size)), "more" if size > 0 else "less")
    if term in ("host", "request"):
        return _SAID[term].format(seconds(abs(size)), "longer" if size > 0 else "less")
    return _SAID[term].format(f"{max(0.0, size):.2f} times")


_TOLD: dict[str, str] = {
    "version": "build", "build_info": "build", "kv_tokens": "KV cache, tokens", "kv_dtype": "KV precision",
    "prefix_caching": "prefix caching", "memory_share": "share of memory", "slots": "requests at once",
    "context": "context of a request", "model_max_model_len": "longest request", "driver": "driver",
    "model_digest": "files of the model",
}  # fmt: skip
_ROOM = ("kv_tokens", "slots", "context", "model_max_model_len")
"""Facts of which less is a loss."""


def _told(old: Fingerprint, new: Fingerprint, tolerance: float) -> Iterator[ToldChange]:
    """Yield what the servers, and the machines they were measured from, say differently."""
    for name, ours in _TOLD.items():
        before, after = ({**mark.machine, **mark.engine}.get(name) for mark in (old, new))
        if before is None or after is None or before == after:
            continue
        is_less = name in _ROOM and isinstance(before, int) and after < before * (1 - tolerance)
        lost = is_less or (name == "prefix_caching" and str(after) == "False")
        yield ToldChange(name=ours, before=_fact(before), after=_fact(after), lost=lost)
    if new.at_once < old.at_once and any(AT_ONCE in reason for reason in new.skipped.values()):
        yield ToldChange(name="answers seen at once", before=f"{old.at_once}", after=f"{new.at_once}", lost=True)


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shorten(str(value), 60)


def _unlike(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    """Yield reasons why two fingerprints may tell more than what the builds do."""
    for what, before, after in (
        ("model", old.model, new.model),
        ("engine", old.engine.get("engine"), new.engine.get("engine")),
        ("GPUs", old.machine.get("gpus"), new.machine.get("gpus")),
        ("machine", old.machine.get("machine"), new.machine.get("machine")),
    ):
        if before is not None and after is not None and before != after:
            names = (", ".join(value) if isinstance(value, list) else str(value) for value in (before, after))
            yield f"another {what}: {' → '.join(shorten(name, 60) for name in names)}"
    before, after = old.times(), new.times()
    counted = [after[probe].tokens / before[probe].tokens for probe in before if probe in after]
    if counted and abs(np.median(counted) - 1) > _COUNTED:
        yield "prompts of the same words have another number of tokens: another tokenizer or chat template"


_COUNTED = 0.1
"""Share by which the tokens of equal prompts may differ; words are drawn at random (our choice)."""
