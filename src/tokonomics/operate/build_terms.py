"""Find which terms of a step changed between two builds: what each adds to every probe, and a regression on them.

What a probe took before is split into what the same server's other probes tell: a request's time outside any step (a
lone prompt, less one step), the step itself, the steps that a prompt waits for, and the part of a step that grows with
prompts or with contexts. A change of one term then changes each probe in its own way, and the probes' changes, as
shares of what they took, are regressed on these by weighted least squares, far outliers damped. Terms are added one at
a time, the one that explains most first, while it is worth its numbers (the Bayesian information criterion): the first
is the cause. They are those of ``physics.calibration.Correction``, and:

- **graphs**: steps of more than K tokens take at least L, as the host launches their kernels one by one while the GPU
  waits (Correction's launch factor without captured graphs). With K = 0 every step does: eager mode. What waits for
  such a step waits longer too.
- **context**: the part of a decode step that its contexts add: attention, another KV precision.
- **cache**: the share of a repeated prompt that is computed again.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput
from tokonomics.operate.choose import NOISE
from tokonomics.operate.fingerprint import SHORT, Fingerprint, Probe, ProbeKind
from tokonomics.operate.probe_noise import variances
from tokonomics.physics.calibration import FEW, MANY
from tokonomics.physics.overhead import CAPTURED

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Term = Literal["kernels", "decode", "prefill", "context", "host", "launch", "graphs", "request", "cache"]

_MEDIAN = math.sqrt(math.pi / 2)  # deviation of a median relative to that of a mean, of normal values
_FAR = 3.0  # deviations from which a probe counts less (Huber's loss)
_HUBER_ROUNDS = 5
_LEAST_TIMES = 60  # values tried for the least time of a step, before the best of them is refined
_KERNELS: tuple[Term, ...] = ("decode", "prefill")  # the two parts of "kernels"
FALSE_ALARMS = 0.01  # share of comparisons of equal builds that may raise an alarm; our choice
_PART, _WHOLE = 0.1, 0.5
"""Shares of the changes that each term, and all together, have to explain to be named; our choice."""
_PROBES_FOR_A_NUMBER = 4  # with fewer, a term explains whatever was measured; our choice
_LARGEST = 50.0  # of a logarithm, so that its exponential is a number
_WAITED_STEPS = 0.5  # a prompt that arrives beside running answers waits for half of their step, if none is ahead
_DRIFT = 0.5
"""Deviation by which all requests of a server drift together from one fingerprint to the next, of their deviation from
round to round: five fingerprints of one vLLM on an H200 (``benchmarks/data/vllm_h200_guard.json.gz``) differed by 0.45
of it in the time of a request, four taken one after another by 0.56. Steps of answers alone drifted by nothing."""
_LINE_TO = 256  # tokens of lone prompts through which the line of a step's fixed part goes


# --- two builds as arrays, and what the old one's probes tell of its steps -------------------------------------------


@dataclass(frozen=True)
class ProbePair:
    """The probes that both builds ran: their medians, and how far the change of each may be off by chance."""

    probes: tuple[Probe, ...]
    before: Array
    after: Array
    error: Array  # one deviation of ``change``, by chance of its own
    drift: Array  # the same by a drift that all probes share
    freedom: Array  # degrees of freedom of these deviations

    @property
    def change(self) -> Array:
        return np.log(self.after / self.before)

    @property
    def excess(self) -> Array:
        """Return the change as a share of what a probe took before."""
        return self.after / self.before - 1

    @property
    def whole_error(self) -> Array:
        """Return one deviation of a probe's change, by chance and by the drift."""
        return np.hypot(self.error, self.drift)

    @property
    def weights(self) -> Array:
        return 1 / (self.error * self.after / self.before) ** 2

    def turned(self) -> "ProbePair":
        """Return the change back."""
        return replace(self, before=self.after, after=self.before)


def pair_of(old: Fingerprint, new: Fingerprint) -> ProbePair:
    """Return the probes that two fingerprints share, with the errors of their changes."""
    before, after = old.times(), new.times()
    probes = tuple(probe for probe in before if probe in after)
    if not probes:
        raise BadInput("the two fingerprints have no probe in common: their servers take too different loads")
    total = np.full(len(probes), NOISE**2)
    drift, squares = np.zeros(len(probes)), np.zeros(len(probes))
    for mark in (old, new):
        spread, freedom = (dict(zip(mark.times(), values, strict=True)) for values in variances(mark.probes))
        rounds = [len(mark.times()[probe].seconds) for probe in probes]
        own = np.array([_MEDIAN**2 * spread[probe] / count for probe, count in zip(probes, rounds, strict=True)])
        total = total + own
        drift = drift + [_DRIFT**2 * spread[probe] * (probe.kind is not ProbeKind.decode) for probe in probes]
        squares = squares + own**2 / np.array([freedom[probe] for probe in probes])
    return ProbePair(
        probes,
        np.array([before[probe].median_s for probe in probes]),
        np.array([after[probe].median_s for probe in probes]),
        np.sqrt(total),
        np.sqrt(drift),
        total**2 / squares,  # Satterthwaite's
    )


@dataclass(frozen=True)
class ProbeSteps:
    """What a probe's time is made of, as far as the other probes tell; one row for each probe."""

    requests: Array  # times that a request's time outside any step is in it
    step_s: Array  # of the step that computes it
    tokens: Array  # of the step that computes it
    waits: Array  # decode steps that it waits for before that
    waited_step_s: Array  # each of these
    waited_tokens: Array  # of each of these
    context_s: Array  # what contexts add to a decode step
    cached_s: Array  # what the prompt would take, of a prompt sent twice


def steps_of(pair: ProbePair) -> ProbeSteps:
    """Return what the probes' times were made of before the change."""
    took = dict(zip(pair.probes, pair.before.tolist(), strict=True))
    alone = {probe.prompt_tokens: value for probe, value in took.items() if probe.kind is ProbeKind.prompt}
    fixed_s = _intercept({tokens: value for tokens, value in alone.items() if tokens <= _LINE_TO} or alone)
    answers = {probe.users: took[probe] for probe in took if probe == _answers(probe.users)}
    answers = dict(sorted(answers.items())) or {1: 0.0}
    request_s = max(0.0, fixed_s - answers.get(1, 0.0))
    short_s = max(0.0, min(alone.values(), default=0.0) - request_s)  # the step of a short prompt
    waits = _waits(took, alone, answers)
    rows = []
    for probe, value in took.items():
        is_decode, is_beside = probe.kind is ProbeKind.decode, probe.kind is ProbeKind.beside
        tokens = probe.prompt_tokens * (1 if is_beside else probe.users)
        waited_step_s = _step_of(probe.users, answers) if is_beside else 0.0
        step_s = value if is_decode else max(0.0, value - request_s - waits * waited_step_s)
        computed_s = max(0.0, alone.get(tokens, 0.0) - fixed_s) if probe.kind is ProbeKind.again else 0.0
        if computed_s and value - fixed_s < computed_s / 2:  # found in the cache, but for its end
            tokens, step_s = SHORT, min(step_s, short_s)
        rows.append((
            0.0 if is_decode else 1.0,
            step_s,
            probe.users if is_decode else tokens + (probe.users if is_beside else 0),
            waits if is_beside else 0.0,
            waited_step_s,
            probe.users if is_beside else 0,
            max(0.0, value - took.get(_answers(probe.users), value)) if is_decode else 0.0,
            computed_s,
        ))  # fmt: skip
    return ProbeSteps(*np.array(rows, dtype=np.float64).T)


def _answers(users: int) -> Probe:
    return Probe(kind=ProbeKind.decode, prompt_tokens=SHORT, users=users)


def _step_of(users: int, answers: dict[int, float]) -> float:
    """Return the step of so many answers, between those that were timed."""
    return float(np.interp(users, list(answers), list(answers.values())))


def _waits(took: dict[Probe, float], alone: dict[int, float], answers: dict[int, float]) -> float:
    """Return how many decode steps a prompt waits for beside answers: half a step, or more if steps are planned ahead.

    The median over the probes that tell: a prompt beside answers, less the same prompt alone.
    """
    told = [
        (value - alone[probe.prompt_tokens]) / step_s
        for probe, value in took.items()
        if probe.kind is ProbeKind.beside and probe.prompt_tokens in alone
        if (step_s := _step_of(probe.users, answers)) > 0
    ]
    return max(_WAITED_STEPS, float(np.median(told))) if told else _WAITED_STEPS


def _intercept(alone: dict[int, float]) -> float:
    """Return what the shortest prompts take beside their tokens: the start of the line through them."""
    if not alone:
        return 0.0
    if len(alone) == 1:
        return next(iter(alone.values()))
    tokens, values = np.array(list(alone), dtype=np.float64), np.array(list(alone.values()))
    slope, start = np.polyfit(tokens, values, 1, w=1 / values)
    return float(np.clip(start if slope > 0 else values.min(), 0.0, values.min()))


# --- what a unit of each term adds to each probe ----------------------------------------------------------------------


def _columns(pair: ProbePair) -> dict[Term, Array]:
    """Return what one unit of each term adds to each probe, as a share of what it took.

    Their effect is proportional to their size; a term that explains all comes before its parts.
    """
    had = steps_of(pair)
    # Long prompts are kernels' work (``Correction.factor``), short ones where they take more than the shortest.
    long = np.log(np.clip(had.tokens, FEW, MANY) / FEW) / math.log(MANY / FEW)
    alone = (had.requests > 0) & (had.waits == 0)
    shortest_s = had.step_s[alone].min(initial=math.inf)
    place = np.maximum(long, 1 - np.minimum(shortest_s, had.step_s) / np.maximum(had.step_s, 1e-12))
    waited_s = had.waits * had.waited_step_s
    added: dict[Term, Array] = {
        "kernels": had.step_s + waited_s,
        "decode": (1 - had.requests) * had.step_s + waited_s,
        "prefill": had.requests * place * had.step_s,
        "context": had.context_s,
        "host": 1 + had.waits,
        "request": had.requests,
        "cache": had.cached_s,
    }
    return {term: column / pair.before for term, column in added.items() if np.count_nonzero(column) > 1}


class LeastStep(NamedTuple):
    """Steps that take a least time, however little they compute: those with prompts, or of more tokens than this."""

    term: Term
    above_tokens: int = 0


_LEAST = (LeastStep("launch"), *(LeastStep("graphs", 2**power if power >= 0 else 0) for power in range(-1, 10)))
"""Largest captured steps are tried at the sizes of the probes' steps; 512 is the largest by default (vLLM)."""


def tested_columns(pair: ProbePair) -> dict[str, Array]:
    """Return columns of the probes that the verdict tests together, by what they are.

    They are the terms, and a time that is added to all steps of more than K tokens that were captured before.
    """
    had, found = steps_of(pair), {_TESTED[term]: column for term, column in _columns(pair).items()}
    seen: set[bytes] = set()
    for above in [least.above_tokens for least in _LEAST if least.term == "graphs"]:
        steps = ((had.tokens > above) & (had.tokens <= CAPTURED)) + had.waits * (had.waited_tokens > above)
        if np.count_nonzero(steps) > 1 and steps.tobytes() not in seen:
            seen.add(steps.tobytes())
            found[f"steps of {above + 1} to {CAPTURED} tokens"] = steps / pair.before
    return found


_TESTED: dict[Term, str] = {
    "kernels": "all steps", "decode": "steps of few tokens", "prefill": "prompts", "context": "contexts",
    "host": "every step by the same time", "request": "every request by the same time",
    "cache": "prompts that were sent before",
}  # fmt: skip


# --- regression on the terms -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """A set of terms fitted to the changes."""

    terms: tuple[Term, ...] = ()
    sizes: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()  # the largest on a probe
    least: LeastStep | None = None
    with_prompts_s: float | None = None  # the least time of steps with prompts, if they have one of their own
    left: Array | None = None  # of the changes, what is not explained
    loss: float = math.inf


class _Fit(NamedTuple):
    sizes: Array
    errors: Array
    left: Array  # of the changes, what the terms do not explain
    loss: float
    shares: Array  # of each probe's change that goes into each size


def _solved(columns: Array, excess: Array, weights: Array, known: Array | float = 0.0) -> _Fit:
    """Fit by weighted least squares, with far outliers damped (Huber).

    ``known`` says how surely each column's size is zero already: one over its variance.
    """
    damped, ridge = weights, np.diag(np.broadcast_to(known, columns.shape[1:]))
    sizes, spread = np.zeros(columns.shape[1]), ridge
    left, shares = excess, columns.T
    for _ in range(_HUBER_ROUNDS if columns.shape[1] else 1):
        spread = np.linalg.pinv((columns * damped[:, None]).T @ columns + ridge, hermitian=True)
        shares = spread @ (columns * damped[:, None]).T
        sizes = shares @ excess
        left = excess - columns @ sizes
        damped = weights * np.minimum(1.0, _FAR / np.maximum(np.sqrt(weights) * np.abs(left), 1e-9))
    loss = _loss(left, weights)
    scale = max(1.0, loss / max(1, len(excess) - columns.shape[1]))
    return _Fit(sizes, np.sqrt(np.maximum(np.diag(spread) * scale, 0.0)), left, loss, shares)


def _loss(left: Array, weights: Array) -> float:
    """Return Huber's loss: squares of deviations, and only as much as their size for those far off."""
    far = np.sqrt(weights) * np.abs(left)
    return float(np.sum(np.where(far <= _FAR, far**2, 2 * _FAR * far - _FAR**2)))


def reach(chance: float, freedom: Array | float) -> Array:
    """Return how many deviations an interval reaches to either side that is wrong with this chance (Student's t)."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 1 - chance / 2))


def effects(pair: ProbePair, columns: dict[str, Array], chance: float) -> Iterator[tuple[str, float, float]]:
    """Yield for each column by itself the interval of its largest ratio; logarithms are alike both ways."""
    for name, column in columns.items():
        fit = _solved(np.stack([column, pair.drift], axis=1), pair.change, pair.error**-2, np.array([0.0, 1.0]))
        parts = (fit.shares[0] * pair.error) ** 2  # of the variance of the size, from each probe
        freedom = float(parts.sum() ** 2 / np.sum(parts**2 / pair.freedom))  # Satterthwaite's
        size, away = float(fit.sizes[0]), float(reach(chance, freedom)) * float(fit.errors[0])
        most = float(column.max())
        yield name, float(ratio_of((size - away) * most)), float(ratio_of((size + away) * most))


def ratio_of(change: Array | float) -> Array:
    """Return the ratio of which this is the logarithm, as a number that is neither zero nor infinite."""
    return np.asarray(np.exp(np.clip(change, -_LARGEST, _LARGEST)))


def explained(pair: ProbePair, tolerance: float) -> Explanation:
    """Return the terms that explain the changes: add the best one while it is worth its numbers."""
    columns, had = _columns(pair), steps_of(pair)
    found: tuple[Term, ...] = ()
    best = _fitted(pair, columns, had, (), None)
    whole = _beyond(best.loss, pair)
    while True:
        linear = tuple(term for term in found if term in columns)
        rest = [term for term in columns if term not in found]
        more = [_fitted(pair, columns, had, _joined(linear, term), best.least) for term in rest]
        if best.least is None:
            more += [_fitted(pair, columns, had, linear, least) for least in _LEAST]
        more = [fit for fit in more if _is_sure(fit, found, pair)]
        tried = min(more, key=lambda fit: _worth(fit, pair), default=best)
        effect = {term: abs(size) for term, size in zip(tried.terms, tried.effects, strict=True) if term not in found}
        if not effect or _worth(tried, pair) >= _worth(best, pair):
            break
        gained = _beyond(best.loss, pair) - _beyond(tried.loss, pair)
        if max(effect.values()) <= tolerance or gained < _PART * whole:
            break
        new = sorted(effect, key=lambda term: -effect[term])
        kept = [term for term in found if term in tried.terms]
        # What takes the place of all kernels is as strong as they were.
        best, found = tried, (*new, *kept) if len(kept) < len(found) else (*kept, *new)
    if _beyond(best.loss, pair) > (1 - _WHOLE) * whole:
        return Explanation()
    places = [best.terms.index(term) for term in found]
    sizes, errors, largest = ([values[at] for at in places] for values in (best.sizes, best.errors, best.effects))
    return replace(best, terms=found, sizes=tuple(sizes), errors=tuple(errors), effects=tuple(largest))


def _joined(linear: tuple[Term, ...], term: Term) -> tuple[Term, ...]:
    """Return terms with one more; all kernels and those of decode or of prompts are never named side by side."""
    if term == "kernels":
        return (*(each for each in linear if each not in _KERNELS), term)
    if term in _KERNELS and "kernels" in linear:
        return (*(each for each in linear if each != "kernels"), *_KERNELS)
    return (*linear, term)


def _is_sure(fit: Explanation, found: tuple[Term, ...], pair: ProbePair) -> bool:
    """Tell whether a fit can be meant: new terms' intervals leave no change out, and nothing takes negative time."""
    far = float(reach(FALSE_ALARMS, float(np.median(pair.freedom))))
    named = {term: at for at, term in enumerate(fit.terms) if not (fit.least and term == fit.least.term)}
    least = all(fit.sizes[at] > -1 for term, at in named.items() if term in ("kernels", "context", *_KERNELS))
    return least and all(abs(fit.sizes[at]) > far * fit.errors[at] for term, at in named.items() if term not in found)


def _beyond(loss: float, pair: ProbePair) -> float:
    """Return the part of a loss that is more than the noise makes: one for each probe."""
    return max(0.0, loss - len(pair.probes))


def _worth(fit: Explanation, pair: ProbePair) -> float:
    """Return the Bayesian information criterion; a fit closer than the noise is not better for it.

    A least time has three numbers: its tokens, and a time for steps with prompts and for those without.
    """
    count, numbers = len(pair.probes), len(fit.terms) + 2 * (fit.least is not None)
    if count < _PROBES_FOR_A_NUMBER * numbers:
        return math.inf
    return count * math.log1p(_beyond(fit.loss, pair) / count) + math.log(count) * numbers


def _fitted(
    pair: ProbePair, columns: dict[Term, Array], had: ProbeSteps, linear: tuple[Term, ...], least: LeastStep | None
) -> Explanation:
    """Fit terms together; where some steps take a least time, try many."""
    none, drift = np.zeros(len(pair.probes)), pair.drift * pair.after / pair.before
    matrix = np.stack([columns[term] for term in linear], axis=1) if linear else none[:, None][:, :0]

    def fit(offset: Array, more: Array = matrix[:, :0]) -> _Fit:
        found = _solved(np.concatenate([matrix, more], axis=1), pair.excess - offset, pair.weights)
        return found._replace(errors=np.hypot(found.errors, found.shares @ drift))

    def largest(sizes: Array) -> list[float]:
        return [float(size * columns[term].max()) for term, size in zip(linear, sizes, strict=False)]

    if least is None:
        sizes, errors, left, loss, _ = fit(none)
        return Explanation(linear, tuple(sizes), tuple(errors), tuple(largest(sizes)), left=left, loss=loss)

    def loss_at(offset: Array) -> float:
        return fit(offset).loss if linear else _loss(pair.excess - offset, pair.weights)

    groups = [group for group in _groups(pair, had, least) if group.is_timed.any()]
    if not groups:
        return Explanation()
    times, steps, others = [], [], none
    for group in groups:
        ends = float(had.step_s[group.is_timed].min()), float(pair.after[group.is_timed].max())
        tried = np.geomspace(max(ends[0], 1e-9), max(ends[1], 1.01 * ends[0], 1e-9), _LEAST_TIMES)
        steps.append(float(tried[1] / tried[0]))
        offsets = [others + group.added(least_s) for least_s in tried]
        losses = [loss_at(offset) for offset in offsets]
        times.append(float(tried[int(np.argmin(losses))]))
        others = offsets[int(np.argmin(losses))]
    slopes = [group.slope(at) for group, at in zip(groups, times, strict=True)]
    sizes, errors, *_ = fit(others, np.stack(slopes, axis=1))
    moved = sizes[len(linear) :]  # between two that were tried
    times = [min(max(at + float(more), at / by), at * by) for at, more, by in zip(times, moved, steps, strict=True)]
    whole = sum((group.added(at) for group, at in zip(groups, times, strict=True)), none)
    sizes, _, left, loss, _ = fit(whole)
    terms, most = (*linear, least.term), (*largest(sizes), float(whole.max()))
    own_s = next((at for group, at in zip(groups, times, strict=True) if group.has_prompts), None)
    return Explanation(terms, (*sizes, times[0]), tuple(errors[: len(terms)]), most, least, own_s, left, loss)


@dataclass(frozen=True)
class _StepGroup:
    """Steps that take the same least time, and what they are of each probe."""

    is_timed: Flags  # the probe's own step
    step_s: Array
    waits: Array  # such steps that a prompt waits for
    waited_step_s: Array
    share: Array  # a second of each probe
    has_prompts: bool

    def added(self, least_s: float) -> Array:
        """Return what a least time of these steps adds to each probe, as a share of what it took."""
        own = np.where(self.is_timed, np.maximum(least_s - self.step_s, 0.0), 0.0)
        return (own + self.waits * np.maximum(least_s - self.waited_step_s, 0.0)) * self.share

    def slope(self, least_s: float) -> Array:
        """Return what a second more of it adds."""
        own = self.is_timed & (self.step_s < least_s)
        return (own + self.waits * (self.waited_step_s < least_s)) * self.share


def _groups(pair: ProbePair, had: ProbeSteps, least: LeastStep) -> list[_StepGroup]:
    """Return steps without prompts and steps with them.

    How much of a lone prompt is its step is known only roughly, so steps with prompts have a least time of their own.
    """
    prompts, none = had.requests > 0, np.zeros(len(pair.probes))
    if least.term == "launch":  # in captured pieces up to so many tokens, kernel by kernel above
        few = had.tokens <= CAPTURED
        chosen = [(prompts & few, none, True), (prompts & ~few, none, True)]
    else:
        larger, waits = had.tokens > least.above_tokens, had.waits * (had.waited_tokens > least.above_tokens)
        chosen = [(larger & ~prompts, waits, False), (larger & prompts, none, True)]
    share = 1 / pair.before
    return [_StepGroup(own, had.step_s, waits, had.waited_step_s, share, which) for own, waits, which in chosen]
