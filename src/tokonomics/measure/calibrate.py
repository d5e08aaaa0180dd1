"""Fit how a server's engine differs from the sum of its kernels, and check the fit on held-out loads.

For each model served on a GPU by an engine, this fits a few numbers: a factor on the GPU's time for steps of few
tokens, one for prompts; factors on the host's launches and on a request's time outside any step if the engine has them;
or the host's seconds per step and per running sequence; and the share of the experts that the traffic visits, as dummy
weights may send every token to the same few. The fit is least squares of log(predicted ÷ measured) over all figures,
each weighted by how well its kind is predicted in general, with far outliers damped and a pull towards no correction
that a few good loads outweigh.

Every second load (in order of size) teaches: terms are added one at a time, the one that explains these loads best
first, while it is worth its numbers (Akaike's criterion). The other loads judge, and can only remove terms: one that
improves no metric there, and those that make one worse. What is left is saved as it was judged, and its interval comes
from the errors of the loads that judged.

No factor goes below the datasheet: it stops where a measured load's kernels would move their bytes at full bandwidth or
do their FLOPs at peak. The result says so, because then the prediction or the measurement is wrong.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from tokonomics.catalog.layers import MoeMlp
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Mode, Statistic
from tokonomics.measure.probe.fit_profile import held_out_figures, shrunken
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import kind_of, value_of
from tokonomics.physics.calibration import (
    FEW,
    MANY,
    Correction,
    ErrorSpread,
    HeldOut,
    Kernels,
    Profile,
    Range,
    engine_of,
    using,
)
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Kind, prior_deviation
from tokonomics.physics.steptime import StepModel
from tokonomics.types import Noun, copied
from tokonomics.units import percent, plural, seconds

Term = Literal["decode", "prefill", "host", "launch", "request", "experts"]
Load = tuple[object, ...]
Terms = tuple[Term, ...]
Array = NDArray[np.float64]

SCOPE = ("gpu", "engine", "model", "weights", "kv", "tp", "pp", "ep", "dp")  # what identifies a correction
FEWEST_LOADS = 4  # two to teach and two to judge
FEWEST_FOR_ALL = 4  # all numbers are fitted from this many teaching loads on
NOISE = 0.05  # log(predicted ÷ measured) of this size is chance, and no reason to correct anything
FAR = 2 * NOISE  # larger errors count less than their square
PROBED = 0.03  # step of the numeric slopes: a run has whole steps, so its figures jump at smaller changes
SCALED: tuple[Term, ...] = ("decode", "prefill", "launch", "request", "experts")  # terms that are factors
PRIOR: dict[Term, float] = {
    "decode": 0.3, "prefill": 0.5, "host": 1.0, "launch": 0.5, "request": 0.5, "experts": 1.0,
}  # fmt: skip
"""How large a correction may plausibly be: logarithm of a factor; the host's time as a share of the median time per
token."""
CONTRADICTION = 1.5  # factor by which a load of fewer users may be slower than one of more, by chance
FIRST_TOKEN_TRUST = 0.5
"""Weight of a first token relative to a time per token: under load a real vLLM's first tokens are predicted half as
well (benchmarks/results/vllm.json.gz: 11.9 against 5.5 % off in the median)."""
FACTORS = (0.5, 4.0)
_AT_FLOOR = 1.01  # a fit below this multiple of the least factor counts as stopped there
FAR_OFF = 20.0  # an error by this factor is a mistake in the input: the slowest host seen (transformers') is 7 × off
MOST_HOST = 50.0  # most time of the host for a step, or for the largest batch, in median times per token
SAID: dict[Term, str] = {
    "decode": "decode factor", "prefill": "prompt factor", "host": "host's time", "launch": "launch factor",
    "request": "request factor", "experts": "share of experts visited",
}  # fmt: skip


class GroupResult(Noun):
    """One model on a GPU under an engine: what was learned, and how well it predicts."""

    what: str
    loads: PositiveInt
    taught: NonNegativeInt
    judged: NonNegativeInt
    rows: PositiveInt
    correction: Correction | None = None  # fitted on the loads that taught alone; what the profile keeps
    held_out: tuple[HeldOut, ...] = ()
    dropped: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # loads that contradict each other, or everything known
    refused: str | None = None


class Calibrated(Noun):
    profile: Profile
    groups: tuple[GroupResult, ...]
    not_predicted: dict[str, int]  # rows without a prediction, by reason
    notes: tuple[str, ...]


def calibrate(evidence: Evidence, *, made: date, command: str, name: str, hold_out: float = 0.5) -> Calibrated:
    """Return a profile from all evidence; without a ``name``, it has that of its GPU."""
    about = {"name": name or "unnamed", "made": made, "command": command}
    profile = Profile(**about)
    if evidence.probed:
        profile = evidence.probed.model_copy(update=about | {"corrections": ()})
    groups: list[GroupResult] = []
    reasons: Counter[str] = Counter(row.reason for row in evidence.unread)
    if evidence.rows:
        with using(profile):
            members = _groups(evidence.rows, reasons)
            groups = [_group(rows, hold_out) for rows in members]
    fitted = [group.correction for group in groups if group.correction]
    kept, left_out = _kept(evidence.profiles, profile.kernels, fitted)
    if not fitted and not kept and profile.kernels is None and not any(group.held_out for group in groups):
        refusals = ["; ".join([f"{group.what}: {group.refused}", *group.doubts]) for group in groups if group.refused]
        common = [reason for reason, _ in reasons.most_common(2)]
        said = "; ".join(refusals or common) or "the files hold no figure that is predicted"
        names = f"{option('model')}, {option('gpu')}, {option('engine')} and {option('weights')}"
        fix = f"{names} say what files do not; docs/calibrate.md says what is needed."
        raise BadInput(f"nothing to calibrate on: {said}", fix=fix)
    profile = profile.model_copy(update={"corrections": (*kept, *fitted)})
    return Calibrated(
        profile=profile.model_copy(update={"name": name or " and ".join(profile.gpus)}),
        groups=tuple(groups),
        not_predicted=dict(reasons.most_common()),
        notes=(*evidence.notes, *left_out),
    )


def _kept(
    profiles: Sequence[Profile], kernels: Kernels | None, fitted: Sequence[Correction]
) -> tuple[list[Correction], list[str]]:
    """Return corrections that no new one replaces, if they were fitted beside these kernels, and notes on others.

    Probed kernels and a correction fitted without them would both count the same slow host.
    """
    scopes = [copied(correction, *SCOPE) for correction in fitted]
    kept: list[Correction] = []
    notes = []
    for given in profiles:
        left = [correction for correction in given.corrections if copied(correction, *SCOPE) not in scopes]
        if given.kernels == kernels:
            kept += left
        elif left:
            said = f"profile {given.name}: {plural(len(left), 'correction')} left out, fitted without the kernels"
            notes.append(f"{said} probed here: give the results it was calibrated on")
    return kept, notes


def _groups(rows: Sequence[Measurement], reasons: Counter[str]) -> list[list[Measurement]]:
    """Group rows by what one correction covers; count rows that cannot be predicted by reason."""
    members: dict[tuple[object, ...], list[Measurement]] = {}
    gpus = set()
    for row in rows:
        try:
            steps = steps_of(row)
            value_of(row, steps)
        except TokonomicsError as error:
            reasons[shorten(error.what, 200)] += 1
            continue
        at = steps.deployment
        gpus.add(at.gpu.key)
        engine = engine_of(at, row.engine is not None)
        layout = at.tp, at.pp, at.ep, at.dp
        members.setdefault((at.gpu.key, engine, at.model.key, at.weights, *layout, at.kv), []).append(row)
    if len(gpus) > 1:
        fix = f"Give the files of one, or name it with {option('gpu')} where a table holds several."
        said = f"the files are of {len(gpus)} GPUs ({shorten(', '.join(sorted(gpus)), 80)}): a profile speaks of one"
        raise BadInput(said, fix=fix)
    return list(members.values())


def load_of(row: Measurement) -> Load:
    """Return the load of a row: rows of one load teach or judge together."""
    size = row.batch or 0, row.rate or 0.0
    return (row.mode is Mode.prefill_step, row.input_tokens, row.output_tokens, *size)


def held_out_loads(loads: Iterable[Load], share: float) -> set[Load]:
    """Return the loads that judge: every second in order of size, or every n-th; the smallest teaches."""
    ordered = sorted(set(loads), key=lambda load: tuple(float(part) for part in load))  # type: ignore[arg-type]
    return set(ordered[1 :: max(2, round(1 / share))])


def _group(rows: list[Measurement], hold_out: float) -> GroupResult:
    at = steps_of(rows[0]).deployment
    engine = at.engine.name if rows[0].engine else "bare steps"
    what = f"{at.model.key} ({at.weights}) on {at.gpus} × {at.gpu.key}, {engine}"
    loads = {load_of(row) for row in rows}
    apart = held_out_loads(loads, hold_out)
    taught = [row for row in rows if load_of(row) not in apart]
    judging = [row for row in rows if load_of(row) in apart]
    counts = {"loads": len(loads), "rows": len(rows), "taught": len(loads) - len(apart), "judged": len(apart)}
    doubts = _doubts(rows)
    if len(loads) < FEWEST_LOADS:
        enough = f"{plural(len(loads), 'load')}, and it takes {FEWEST_LOADS}: half of them judge the rest"
        return GroupResult(what=what, **counts, doubts=doubts, refused=enough)
    halves = _Halves(taught, judging)
    explaining = _explaining(halves, _available(rows, counts["taught"]))
    terms, dropped = _paying(halves, explaining)
    found = {**counts, "held_out": halves.figures(terms, _figure), "dropped": dropped, "doubts": doubts}
    if not terms:
        refused = "no correction pays on the held-out loads: predictions stay as they are"
        return GroupResult(what=what, **found, refused=refused)
    trial = halves.trial(terms)
    stopped = _stopped(taught, trial, terms)
    found["doubts"] = (*doubts, *stopped)
    notes = (*dropped, *stopped)
    learned = {"held_out": found["held_out"], "spreads": _spreads(judging, trial, at), "notes": notes}
    return GroupResult(what=what, **found, correction=trial.model_copy(update=learned | _sizes(rows)))


class _Halves:
    """Loads that teach and loads that judge; a set of terms is fitted once."""

    def __init__(self, taught: Sequence[Measurement], judging: Sequence[Measurement]) -> None:
        self.taught, self.judging = taught, judging
        self._before = errors(judging, None)
        self._trials: dict[frozenset[Term], Correction] = {}

    def trial(self, terms: Terms) -> Correction:
        """Return these terms, fitted on the loads that teach."""
        which = frozenset(terms)
        if which not in self._trials:
            self._trials[which] = _correction(self.taught[0], fit(self.taught, terms))
        return self._trials[which]

    def misfit(self, terms: Terms) -> float:
        """Return Akaike's criterion on the loads that teach: the fit's loss in units of noise, plus two per number."""
        off = _weights(self.taught) * errors(self.taught, self.trial(terms)) / FAR
        loss = 2 * (FAR / NOISE) ** 2 * float(np.sum(np.sqrt(1 + off * off) - 1))
        return loss + 2 * sum(2 if term == "host" else 1 for term in terms)

    def figures(self, terms: Terms, name: Callable[[Measurement], str]) -> tuple[HeldOut, ...]:
        """Return errors on the loads that judge, by name: of a metric, or of each of its statistics."""
        after = errors(self.judging, self.trial(terms))
        return held_out_figures(sorted(zip(map(name, self.judging), self._before, after, strict=True)))


def _figure(row: Measurement) -> str:
    """Return its kind, with the statistic if it is not the mean."""
    kind = kind_of(row)
    return kind if row.statistic is Statistic.mean else f"{kind} {row.statistic}"


def _explaining(halves: _Halves, available: Terms) -> Terms:
    """Return the terms that explain the loads that teach: add the best one while it is worth its numbers."""
    terms: Terms = ()
    while len(terms) < len(available):
        more = [(*terms, term) for term in available if term not in terms]
        best = min(more, key=halves.misfit)
        if halves.misfit(best) >= halves.misfit(terms):
            break
        terms = best
    return terms


def _paying(halves: _Halves, terms: Terms) -> tuple[Terms, tuple[str, ...]]:
    """Return the terms that the judging loads keep, and why they removed the others."""
    dropped = []
    while terms:
        now = halves.figures(terms, kind_of)
        without = {term: tuple(other for other in terms if other != term) for term in terms}
        others = {term: halves.figures(rest, kind_of) for term, rest in without.items()}
        worse = [figure for figure in now if figure.worse]
        idle = [term for term in terms if not any(map(_clearly_worse, now, others[term]))]
        if worse:
            term = min(terms, key=lambda term: sum(held.after - held.before for held in others[term] if held.worse))
            shown = ", ".join(f"{held.figure} {percent(held.before)} → {percent(held.after)}" for held in worse)
            dropped.append(f"{SAID[term]}: made held-out loads worse ({shown})")
        elif idle:
            term = min(idle, key=lambda term: sum(held.after for held in others[term]))
            dropped.append(f"{SAID[term]}: made no metric of held-out loads better")
        else:
            break
        terms = without[term]
    return terms, tuple(dropped)


def _clearly_worse(one: HeldOut, other: HeldOut) -> bool:
    """Decide whether the other's error is larger by more than chance."""
    return other.model_copy(update={"before": one.after}).worse


def _doubts(rows: Sequence[Measurement]) -> tuple[str, ...]:
    """Describe what is odd in the rows: tokens that get faster with more users, or predictions that are far off."""
    doubts = []
    shapes = {(row.input_tokens, row.output_tokens) for row in rows}
    for shape in sorted(shapes):
        of_shape = [row for row in rows if kind_of(row) == "tpot" and (row.input_tokens, row.output_tokens) == shape]
        typical = {row.batch: row.value for row in reversed(of_shape) if row.batch}  # the first statistic of each
        loads = sorted(typical.items())
        for place, (users, value) in enumerate(loads[:-1]):
            faster, least = min(loads[place + 1 :], key=lambda load: load[1])
            if value > CONTRADICTION * least:
                said = f"{plural(users, 'user')}: {seconds(value)} a token, but {seconds(least)} for {faster}"
                doubts.append(f"{said}: was the server warm?")
    # If no correction can reach it, the model, GPU or unit is not the one stated.
    off = statistics.median(map(abs, errors(rows, None)))
    if off >= math.log(FAR_OFF):
        said = f"predictions are {math.exp(off):,.0f} × off"
        doubts.append(f"{said}: the right model, GPU and precision, and times in seconds?")
    return tuple(doubts)


def _available(rows: Sequence[Measurement], taught: int) -> Terms:
    """Return the terms that may be fitted; fewer if fewer loads teach."""
    kinds = {kind_of(row) for row in rows}
    visited: Terms = ("experts",) if steps_of(rows[0]).deployment.model.is_moe else ()
    if rows[0].engine is None:
        named: tuple[tuple[Kind, Term], ...] = (("step", "decode"), ("prefill", "prefill"))
        return (*(term for kind, term in named if kind in kinds), *(visited if "step" in kinds else ()))
    if taught < FEWEST_FOR_ALL or not kinds & {"ttft", "prefill"}:
        return ("decode", "host", *visited)
    own = steps_of(rows[0]).engine
    launches: Terms = ("launch",) if own and own.layer_s else ()
    requests: Terms = ("request",) if own and own.request_seconds(1) and "ttft" in kinds else ()
    return ("decode", "host", "prefill", *launches, *requests, *visited)


def least_factor(rows: Sequence[Measurement], term: Term) -> float:
    """Return the factor at which kernels of the rows' sizes reach the datasheet's limits; a lower one would break them.

    Sizes are those at which this factor alone decides: batches up to ``FEW``, prompts from ``MANY`` tokens on.
    """
    if term == "experts":  # those of one token
        mixtures = [group.mlp for group in steps_of(rows[0]).deployment.model.groups if isinstance(group.mlp, MoeMlp)]
        return max(mlp.active_experts / mlp.experts for mlp in mixtures)
    shares = [FACTORS[0]]
    for row in rows:
        floor, steps = steps_of(row).floor, steps_of(row).with_engine(None)
        if term == "prefill":
            prompt = max(row.input_tokens, MANY)
            shares.append(float(floor.prefill(prompt) / steps.prefill(prompt)))
        elif term == "decode" and row.mode is not Mode.prefill_step:
            sizes = min(row.batch or 1, FEW), row.input_tokens + row.output_tokens / 2
            shares.append(float(floor.decode(*sizes) / steps.decode(*sizes)))
    return max(shares)


def _stopped(rows: Sequence[Measurement], found: Correction, terms: Terms) -> tuple[str, ...]:
    """Return a note for each factor that stopped at the datasheet, with what that means."""
    gpu, notes = steps_of(rows[0]).deployment.gpu, []
    rates = f"{gpu.bandwidth_bytes_per_s / 1e12:.2g} TB/s or its peak FLOP/s"
    causes = "another precision, split or context, cached prompts, drafts"
    for term in terms:
        least, factor = least_factor(rows, term), getattr(found, term, 1.0)
        if FACTORS[0] < least and factor < _AT_FLOOR * least:
            stopped = f"the {SAID[term]} stopped at × {factor:.3g}, at which {gpu.key} reaches {rates}"
            why = f"fewer bytes move than predicted ({causes}), or the measurement is off"
            notes.append(f"{stopped}, and the loads ask for less: {why}")
    return tuple(notes)


def fit(rows: Sequence[Measurement], terms: Sequence[Term]) -> dict[str, float]:
    """Return the numbers that explain the rows best, with a pull towards no correction."""
    from scipy.optimize import least_squares

    if not terms:
        return {}
    weights = _weights(rows)
    # The host's time is in units of the time per token.
    times = [row.value for row in rows if kind_of(row) in ("tpot", "step")]
    rates = [(row.batch or 1) / row.value for row in rows if kind_of(row) == "throughput"]
    step_unit_s = statistics.median(times or rates or [row.value for row in rows])
    units_s = {"step": step_unit_s, "sequence": step_unit_s / max(row.batch or 1 for row in rows)}
    own = steps_of(rows[0]).engine
    start = dict.fromkeys((*units_s, *SCALED), 0.0)
    if own and not own.overlapped:
        start |= {"step": own.step_s / units_s["step"], "sequence": own.sequence_s / units_s["sequence"]}
    free = [name for term in terms for name in (units_s if term == "host" else (term,))]
    low = [0.0 if name in units_s else math.log(least_factor(rows, name)) for name in free]  # type: ignore[arg-type]
    high = [MOST_HOST if name in units_s else 0.0 if name == "experts" else math.log(FACTORS[1]) for name in free]
    middle = math.log(least_factor(rows, "experts")) / 2 if "experts" in free else 0.0
    pulls = np.array([NOISE / PRIOR["host" if name in units_s else name] for name in free])  # type: ignore[index]
    origin = np.array([start[name] for name in free])

    def numbers(x: Array) -> dict[str, float]:
        found = dict(zip(free, x.tolist(), strict=True))
        factors: dict[str, float] = {name: math.exp(found[name]) for name in SCALED if name in found}
        return factors | {f"{name}_s": found[name] * unit_s for name, unit_s in units_s.items() if name in found}

    known: dict[bytes, Array] = {}

    def residuals(x: Array) -> Array:
        """Return the weighted errors of the rows at ``x``, and the weighted distance of each number from its origin.

        Results are remembered because ``slopes`` starts at the point where the solver has just been. A copy is returned
        because the solver overwrites the array it gets.
        """
        if (at := x.tobytes()) not in known:
            missed = weights * errors(rows, _correction(rows[0], numbers(x)))
            known[at] = np.concatenate([missed, pulls * (x - origin)])
        return known[at].copy()

    def slopes(x: Array) -> Array:
        here = residuals(x)
        # Traffic visits no more than all experts, and no fewer than a token's: look away from the nearer end.
        steps = [-PROBED if name == "experts" and at > middle else PROBED for name, at in zip(free, x, strict=True)]
        return np.stack([(residuals(x + change) - here) / change.sum() for change in np.diag(steps)], axis=1)

    begin = np.clip(origin, np.array(low) + 1e-4, np.array(high) - 1e-4)
    if "experts" in free:  # at either end nothing changes on one side
        begin[free.index("experts")] = middle
    stop = {"xtol": 1e-3, "ftol": 1e-4, "max_nfev": 30}
    solved = least_squares(residuals, begin, slopes, bounds=(low, high), loss="soft_l1", f_scale=FAR, **stop)
    return numbers(solved.x)


def _weights(rows: Sequence[Measurement]) -> Array:
    """Return how much each row counts; statistics of one metric of a load share its weight."""
    alike = Counter((load_of(row), kind_of(row)) for row in rows)
    trust = np.array([FIRST_TOKEN_TRUST if kind_of(row) == "ttft" else 1.0 for row in rows])
    return trust / np.sqrt([alike[load_of(row), kind_of(row)] for row in rows])


def _correction(row: Measurement, numbers: Mapping[str, float]) -> Correction:
    """Return a correction for the setup of a row, its numbers rounded for reading."""
    at = steps_of(row).deployment
    degrees = copied(at, "tp", "pp", "ep", "dp")
    split = " ".join(f"{name.upper()} {degree}" for name, degree in degrees.items() if name == "tp" or degree > 1)
    return Correction(
        gpu=at.gpu.key, engine=engine_of(at, row.engine is not None), model=at.model.key,
        **copied(at, *SCOPE[3:]), learned_at=f"{at.weights}, {split}", loads=1, rows=1,
        **{name: float(f"{value:.5g}") for name, value in numbers.items()},
    )  # fmt: skip


def _sizes(rows: Sequence[Measurement]) -> dict[str, object]:
    """Return the sizes that were seen, for a correction to keep."""
    outputs = [row.output_tokens if row.engine else None for row in rows]
    sizes: dict[str, list[float | None]] = {
        "batch": [row.batch for row in rows],
        "rate": [row.rate for row in rows],
        "input_tokens": [row.input_tokens for row in rows],
        "output_tokens": [*outputs],
        # An answer's first token is written with only the prompt in the cache.
        "context": [
            row.input_tokens + more for row, output in zip(rows, outputs, strict=True) for more in (0, output or 0)
        ],
    }
    known = {name: [value for value in values if value is not None] for name, values in sizes.items()}
    seen = {name: Range(low=min(values), high=max(values)) for name, values in known.items() if values}
    return {"seen": seen, "loads": len({load_of(row) for row in rows}), "rows": len(rows)}


def errors(rows: Sequence[Measurement], correction: Correction | None) -> list[float]:
    """Return log(predicted ÷ measured) of rows, uncorrected or corrected."""

    @cache
    def corrected(steps: StepModel) -> StepModel:
        return steps.corrected(correction) if correction is not None else steps

    return [math.log(value_of(row, corrected(steps_of(row))) / row.value) for row in rows]


def _spreads(rows: Sequence[Measurement], trial: Correction, at: Deployment) -> dict[str, ErrorSpread]:
    """Return how far held-out figures are from the fit, as if some errors of the known size came before.

    Statistics of one load err together: they count as one.
    """
    by_kind: dict[Kind, dict[Load, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, error in zip(rows, errors(rows, trial), strict=True):
        by_kind[kind_of(row)][load_of(row)].append(error)
    spreads: dict[str, ErrorSpread] = {}
    for kind, loads in by_kind.items():
        sizes = [math.sqrt(statistics.fmean(error * error for error in of_load)) for of_load in loads.values()]
        spreads[kind] = ErrorSpread(deviation=shrunken(sizes, prior_deviation(kind, at)), n=len(sizes))
    return spreads
