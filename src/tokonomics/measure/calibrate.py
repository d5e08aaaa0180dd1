"""Results of a server → what its engine does differently from the sum of its kernels, checked on loads held out.

For each model served on a GPU by an engine, a few numbers: a factor on what the GPU takes for steps of few tokens, one
for prompts; factors on the host's launches and on a request's time outside any step where the engine has them; or the
host's seconds a step and a running sequence. They are fitted by least squares of log(predicted ÷ measured) over all
figures, each weighed by how well its kind is predicted in general, with far outliers held down and a pull towards no
correction that a few good loads outweigh.

Every second load (in order of size) teaches: terms are added one at a time, the one that explains these loads best
first, while it is worth its numbers (Akaike's criterion). The other loads judge, and can only take terms away: one that
makes no metric better there, and those that make one worse. What is left is saved as it was judged, and its interval
comes from the errors of the loads that judged.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Mode, Statistic
from tokonomics.measure.probe.fit_profile import held_out_figures, shrunken
from tokonomics.measure.validate import kind_of, steps_of, value_of
from tokonomics.physics.calibration import (
    Correction,
    ErrorSpread,
    HeldOut,
    Profile,
    Range,
    engine_of,
    using,
)
from tokonomics.physics.intervals import Kind, prior_deviation
from tokonomics.physics.steptime import StepModel
from tokonomics.types import Noun
from tokonomics.units import percent, plural, seconds

Term = Literal["decode", "prefill", "host", "launch", "request"]
Load = tuple[object, ...]
Terms = tuple[Term, ...]
Array = NDArray[np.float64]

FEWEST_LOADS = 4  # two to teach and two to judge
FEWEST_FOR_ALL = 4  # loads that teach, from which all numbers are fitted
NOISE = 0.05  # size of log(predicted ÷ measured) that is a run's own chance, and no reason to correct anything
FAR = 2 * NOISE  # errors beyond count less than their square
PROBED = 0.03
"""Change of a number from which its effect is read: a simulated run is made of whole steps, so its figures jump at
smaller ones."""
SCALED: tuple[Term, ...] = ("decode", "prefill", "launch", "request")  # terms that are factors
PRIOR: dict[Term, float] = {"decode": 0.3, "prefill": 0.5, "host": 1.0, "launch": 0.5, "request": 0.5}
"""How far a correction may well be: logarithm of a factor; the host's time as a share of the median time per token."""
CONTRADICTION = 1.5  # times that a load of fewer users may be slower than one of more, by chance
FACTORS = (0.5, 4.0)
FAR_OFF = 20.0
"""Times that predictions are off from which something was mistaken: the slowest host met (transformers') makes it 7."""
MOST_HOST = 50.0
"""Times the median time per token that a host may take for a step, or for the sequences of the largest batch."""
WORSE, BETTER = "made held-out loads worse", "no correction pays on the held-out loads"
SAID: dict[Term, str] = {
    "decode": "decode factor",
    "prefill": "prompt factor",
    "host": "host's time",
    "launch": "launch factor",
    "request": "request factor",
}


class GroupResult(Noun):
    """One model on a GPU under an engine: what was learned, and how well it holds."""

    what: str
    loads: PositiveInt
    taught: NonNegativeInt
    judged: NonNegativeInt
    rows: PositiveInt
    correction: Correction | None = None
    """Fitted on the loads that taught alone: what the others were predicted with, and what the profile keeps."""
    held_out: tuple[HeldOut, ...] = ()
    dropped: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # loads that contradict each other, or all that we know
    refused: str | None = None


class Calibrated(Noun):
    """What ``tokonomics calibrate`` found out."""

    profile: Profile
    groups: tuple[GroupResult, ...]
    not_predicted: dict[str, int]  # rows without a prediction, by reason
    notes: tuple[str, ...]


def calibrate(evidence: Evidence, *, made: date, command: str, name: str, hold_out: float = 0.5) -> Calibrated:
    """A profile from all that is known; without a ``name``, it has that of its GPU."""
    profile = Profile(
        name=name or "unnamed",
        made=made,
        command=command,
        machine=evidence.machine,
        kernels=evidence.kernels,
        check=evidence.check,
        timings=evidence.timings,
    )
    groups: list[GroupResult] = []
    reasons: Counter[str] = Counter(row.reason for row in evidence.unread)
    if evidence.rows:
        with using(profile):
            members = _groups(evidence.rows, reasons)
            groups = [_group(rows, hold_out) for rows in members]
    fitted = _widened([group.correction for group in groups if group.correction])
    scopes = {_scope(each) for each in fitted}
    kept = [correction for correction in evidence.corrections if _scope(correction) not in scopes]
    if not fitted and not kept and evidence.kernels is None and not any(group.held_out for group in groups):
        refusals = ["; ".join([f"{group.what}: {group.refused}", *group.doubts]) for group in groups if group.refused]
        said = "; ".join(refusals) or _most_common(reasons)
        told = f"{option('model')}, {option('gpu')}, {option('engine')} and {option('weights')}"
        fix = f"{told} say what files do not; docs/calibrate.md says what is needed."
        raise BadInput(f"nothing to calibrate on: {said}", fix=fix)
    return Calibrated(
        profile=_named(profile.model_copy(update={"corrections": (*kept, *fitted)}), name),
        groups=tuple(groups),
        not_predicted=dict(reasons.most_common()),
        notes=tuple(evidence.notes),
    )


def _widened(fitted: Sequence[Correction]) -> list[Correction]:
    """A model seen at one precision and split only is corrected so at the others too: a host is as slow there.

    Else a plan would compare what is corrected with what is not, and pick what nobody measured.
    """
    seen = Counter((each.gpu, each.engine, each.model) for each in fitted)
    alone = [seen[each.gpu, each.engine, each.model] == 1 for each in fitted]
    return [
        each.model_copy(update={"weights": None, "tp": None}) if one else each
        for each, one in zip(fitted, alone, strict=True)
    ]


def _named(profile: Profile, name: str) -> Profile:
    return profile.model_copy(update={"name": name or " and ".join(profile.gpus)})


def _scope(correction: Correction) -> tuple[object, ...]:
    return correction.gpu, correction.engine, correction.model, correction.weights, correction.tp


def _most_common(reasons: Mapping[str, int]) -> str:
    named = sorted(reasons.items(), key=lambda each: -each[1])[:2]
    return "; ".join(reason for reason, _ in named) or "the files hold no figure that is predicted"


def _groups(rows: Sequence[Measurement], reasons: Counter[str]) -> list[list[Measurement]]:
    """Rows that one correction may speak of; those that cannot be predicted are counted by reason."""
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
        members.setdefault((at.gpu.key, engine, at.model.key, at.weights, at.tp, at.pp, at.ep, at.kv), []).append(row)
    if len(gpus) > 1:
        raise BadInput(
            f"the files are of {len(gpus)} GPUs ({shorten(', '.join(sorted(gpus)), 80)}): a profile speaks of one",
            fix=f"Give the files of one, or name it with {option('gpu')} where a table holds several.",
        )
    return list(members.values())


def load_of(row: Measurement) -> Load:
    """Rows of one load are taught or judged together."""
    size = row.batch or 0, row.rate or 0.0
    return (row.mode is Mode.prefill_step, row.input_tokens, row.output_tokens, *size)


def held_out_loads(loads: Iterable[Load], share: float) -> set[Load]:
    """Loads that judge: every second in order of size, or every n-th; the smallest teaches."""
    ordered = sorted(set(loads), key=lambda load: tuple(float(part) for part in load))  # type: ignore[arg-type]
    every = max(2, round(1 / share))
    return set(ordered[1::every])


def _group(rows: list[Measurement], hold_out: float) -> GroupResult:
    steps = steps_of(rows[0])
    what = _words(rows[0], steps)
    loads = {load_of(row) for row in rows}
    apart = held_out_loads(loads, hold_out)
    taught = [row for row in rows if load_of(row) not in apart]
    judging = [row for row in rows if load_of(row) in apart]
    counts = {"loads": len(loads), "rows": len(rows), "taught": len(loads) - len(apart), "judged": len(apart)}
    doubts = _doubts(rows) + _far_off(rows)
    if len(loads) < FEWEST_LOADS:
        enough = f"{plural(len(loads), 'load')}, and it takes {FEWEST_LOADS}: half of them judge the rest"
        return GroupResult(what=what, **counts, doubts=doubts, refused=enough)
    halves = _Halves(taught, judging)
    explaining = _explaining(halves, _available(rows, counts["taught"]))
    terms, dropped = _paying(halves, explaining)
    found = {**counts, "held_out": halves.figures(terms, _figure), "dropped": dropped, "doubts": doubts}
    if not terms:
        return GroupResult(what=what, **found, refused=f"{BETTER}: predictions stay as they are")
    trial = halves.trial(terms)
    correction = trial.model_copy(
        update={
            "held_out": halves.figures(terms, _figure),
            "spreads": _spreads(judging, trial, steps),
            "notes": dropped,
            **_sizes(rows),
        }
    )
    return GroupResult(what=what, **found, correction=correction)


class _Halves:
    """Loads that teach and loads that judge; a set of terms is fitted once."""

    def __init__(self, taught: Sequence[Measurement], judging: Sequence[Measurement]) -> None:
        self.taught, self.judging = taught, judging
        self._before = errors(judging, None)
        self._trials: dict[frozenset[Term], Correction] = {}

    def trial(self, terms: Terms) -> Correction:
        """These terms, fitted on the loads that teach."""
        which = frozenset(terms)
        if which not in self._trials:
            self._trials[which] = _correction(self.taught[0], fit(self.taught, terms))
        return self._trials[which]

    def misfit(self, terms: Terms) -> float:
        """Akaike's criterion on the loads that teach: the fit's loss in units of noise, and two for each number."""
        off = _weights(self.taught) * errors(self.taught, self.trial(terms)) / FAR
        loss = 2 * (FAR / NOISE) ** 2 * float(np.sum(np.sqrt(1 + off * off) - 1))
        return loss + 2 * sum(2 if term == "host" else 1 for term in terms)

    def figures(self, terms: Terms, name: Callable[[Measurement], str]) -> tuple[HeldOut, ...]:
        """Errors on the loads that judge, by name: of a metric, or of each of its statistics."""
        after = errors(self.judging, self.trial(terms))
        return held_out_figures(sorted(zip(map(name, self.judging), self._before, after, strict=True)))


def _figure(row: Measurement) -> str:
    """Its kind, with the statistic where it is not the mean."""
    kind = kind_of(row)
    return kind if row.statistic is Statistic.mean else f"{kind} {row.statistic}"


def _explaining(halves: _Halves, available: Terms) -> Terms:
    """Terms that explain the loads that teach: the best one more each time, while it is worth its numbers."""
    terms: Terms = ()
    while len(terms) < len(available):
        more = [(*terms, term) for term in available if term not in terms]
        best = min(more, key=halves.misfit)
        if halves.misfit(best) >= halves.misfit(terms):
            break
        terms = best
    return terms


def _paying(halves: _Halves, terms: Terms) -> tuple[Terms, tuple[str, ...]]:
    """The terms that the loads that judge leave, and why they took the others away."""
    dropped = []
    while terms:
        now = halves.figures(terms, kind_of)
        without = {term: tuple(each for each in terms if each != term) for term in terms}
        others = {term: halves.figures(rest, kind_of) for term, rest in without.items()}
        worse = [figure for figure in now if figure.worse]
        idle = [term for term in terms if not any(map(_clearly_worse, now, others[term]))]
        if worse:
            term = min(terms, key=lambda each: _harm(others[each]))
            shown = ", ".join(f"{each.figure} {percent(each.before)} → {percent(each.after)}" for each in worse)
            dropped.append(f"{SAID[term]}: {WORSE} ({shown})")
        elif idle:
            term = min(idle, key=lambda each: sum(figure.after for figure in others[each]))
            dropped.append(f"{SAID[term]}: made no metric of held-out loads better")
        else:
            break
        terms = without[term]
    return terms, tuple(dropped)


def _clearly_worse(one: HeldOut, other: HeldOut) -> bool:
    """Whether the other's error is larger, by more than chance moves it."""
    return other.model_copy(update={"before": one.after}).worse


def _harm(figures: Sequence[HeldOut]) -> float:
    """By how much figures are worse than with no correction."""
    return sum(figure.after - figure.before for figure in figures if figure.worse)


def _doubts(rows: Sequence[Measurement]) -> tuple[str, ...]:
    """More users at once never make a token faster: where a run says so, the slower load was not steady."""
    made = []
    shapes = {(row.input_tokens, row.output_tokens) for row in rows}
    for shape in sorted(shapes):
        of_shape = [row for row in rows if kind_of(row) == "tpot" and (row.input_tokens, row.output_tokens) == shape]
        typical = {row.batch: row.value for row in reversed(of_shape) if row.batch}  # the first statistic of each
        loads = sorted(typical.items())
        for place, (users, value) in enumerate(loads[:-1]):
            faster, least = min(loads[place + 1 :], key=lambda load: load[1])
            if value > CONTRADICTION * least:
                made.append(
                    f"{plural(users, 'user')}: {seconds(value)} a token, but {seconds(least)} for {faster}: "
                    "was the server warm?"
                )
    return tuple(made)


def _far_off(rows: Sequence[Measurement]) -> tuple[str, ...]:
    """What no correction reaches is another model, GPU or unit than was said."""
    off = statistics.median(map(abs, errors(rows, None)))
    if off < math.log(FAR_OFF):
        return ()
    return (f"predictions are {math.exp(off):,.0f} × off: the right model, GPU and precision, and times in seconds?",)


def _words(row: Measurement, steps: StepModel) -> str:
    at = steps.deployment
    engine = at.engine.name if row.engine else "bare steps"
    return f"{at.model.key} ({at.weights}) on {at.gpus} × {at.gpu.key}, {engine}"


def _available(rows: Sequence[Measurement], taught: int) -> Terms:
    """What may be fitted; less of it where fewer loads teach."""
    kinds = {kind_of(row) for row in rows}
    if rows[0].engine is None:
        named: tuple[tuple[Kind, Term], ...] = (("step", "decode"), ("prefill", "prefill"))
        return tuple(term for kind, term in named if kind in kinds)
    if taught < FEWEST_FOR_ALL or not kinds & {"ttft", "prefill"}:
        return ("decode", "host")
    own = steps_of(rows[0]).engine
    launches: Terms = ("launch",) if own and own.layer_s else ()
    requests: Terms = ("request",) if own and own.request_seconds(1) and "ttft" in kinds else ()
    return ("decode", "host", "prefill", *launches, *requests)


def fit(rows: Sequence[Measurement], terms: Sequence[Term]) -> dict[str, float]:
    """The numbers that explain the rows best, with a pull towards no correction."""
    from scipy.optimize import least_squares

    if not terms:
        return {}
    weights = _weights(rows)
    step_unit_s = _time_per_token_s(rows)
    units_s = {"step": step_unit_s, "sequence": step_unit_s / max(row.batch or 1 for row in rows)}
    own = steps_of(rows[0]).engine
    start = dict.fromkeys((*units_s, *SCALED), 0.0)
    if own and not own.overlapped:
        start |= {"step": own.step_s / units_s["step"], "sequence": own.sequence_s / units_s["sequence"]}
    free = [each for term in terms for each in (units_s if term == "host" else (term,))]
    low = [0.0 if each in units_s else math.log(FACTORS[0]) for each in free]
    high = [MOST_HOST if each in units_s else math.log(FACTORS[1]) for each in free]
    pulls = np.array([NOISE / PRIOR["host" if each in units_s else each] for each in free])  # type: ignore[index]
    origin = np.array([start[each] for each in free])

    def numbers(x: Array) -> dict[str, float]:
        found = dict(zip(free, x.tolist(), strict=True))
        made: dict[str, float] = {name: math.exp(found[name]) for name in SCALED if name in found}
        return made | {f"{name}_s": found[name] * unit_s for name, unit_s in units_s.items() if name in found}

    def residuals(x: Array) -> Array:
        return np.concatenate([weights * errors(rows, _correction(rows[0], numbers(x))), pulls * (x - origin)])

    def slopes(x: Array) -> Array:
        here = residuals(x)
        return np.stack([(residuals(x + change) - here) / PROBED for change in PROBED * np.eye(len(x))], axis=1)

    begin = np.clip(origin, np.array(low) + 1e-4, np.array(high) - 1e-4)
    solved = least_squares(
        residuals,
        begin,
        slopes,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=FAR,
        xtol=1e-3,
        ftol=1e-4,
        max_nfev=30,
    )
    return numbers(solved.x)


def _weights(rows: Sequence[Measurement]) -> Array:
    """How much a row counts: less where its metric is predicted less well in general, as waits for a first token are.

    Statistics of one metric of a load share its weight.
    """
    alike = Counter((load_of(row), kind_of(row)) for row in rows)

    def weight(row: Measurement) -> float:
        at = steps_of(row).deployment
        best = prior_deviation("tpot" if row.engine else "step", at)
        trust = min(1.0, best / prior_deviation(kind_of(row), at))
        return trust / math.sqrt(alike[load_of(row), kind_of(row)])

    return np.array([weight(row) for row in rows])


def _time_per_token_s(rows: Sequence[Measurement]) -> float:
    """What the host's time is measured in."""
    times = [row.value for row in rows if kind_of(row) in ("tpot", "step")]
    rates = [(row.batch or 1) / row.value for row in rows if kind_of(row) == "throughput"]
    return statistics.median(times or rates or [row.value for row in rows])


def _correction(row: Measurement, numbers: Mapping[str, float]) -> Correction:
    """Of what a row ran on, with numbers that one can read."""
    at = steps_of(row).deployment
    return Correction(
        gpu=at.gpu.key,
        engine=engine_of(at, row.engine is not None),
        model=at.model.key,
        weights=at.weights,
        tp=at.tp,
        learned_at=f"{at.weights}, TP {at.tp}",
        loads=1,
        rows=1,
        **{name: float(f"{value:.5g}") for name, value in numbers.items()},
    )


def _sizes(rows: Sequence[Measurement]) -> dict[str, object]:
    """What was seen, for a correction to keep."""
    seen = {}
    sizes: dict[str, Callable[[Measurement], float | None]] = {
        "batch": lambda row: row.batch,
        "rate": lambda row: row.rate,
        "input_tokens": lambda row: row.input_tokens,
        "output_tokens": lambda row: row.output_tokens if row.engine else None,
        "context": lambda row: row.input_tokens + (row.output_tokens if row.engine else 0),
    }
    for name, of in sizes.items():
        values = [value for row in rows if (value := of(row)) is not None]
        if values:
            seen[name] = Range(low=min(values), high=max(values))
    # An answer's first token is written with the prompt alone in the cache.
    seen["context"] = Range(low=seen["input_tokens"].low, high=seen["context"].high)
    return {"seen": seen, "loads": len({load_of(row) for row in rows}), "rows": len(rows)}


def errors(rows: Sequence[Measurement], correction: Correction | None) -> list[float]:
    """log(predicted ÷ measured) of rows, as they come or corrected."""
    corrected: dict[StepModel, StepModel] = {}
    found = []
    for row in rows:
        steps = steps_of(row)
        if correction is not None:
            if steps not in corrected:
                corrected[steps] = steps.corrected(correction)
            steps = corrected[steps]
        found.append(math.log(value_of(row, steps) / row.value))
    return found


def _spreads(rows: Sequence[Measurement], trial: Correction, steps: StepModel) -> dict[str, ErrorSpread]:
    """How far held-out figures lie from what was learned, as if some of the known size came before.

    Statistics of one load err together: they count as one.
    """
    made: dict[Kind, dict[Load, list[float]]] = {}
    for row, error in zip(rows, errors(rows, trial), strict=True):
        made.setdefault(kind_of(row), {}).setdefault(load_of(row), []).append(error)
    spreads: dict[str, ErrorSpread] = {}
    for kind, loads in made.items():
        sizes = [math.sqrt(statistics.fmean(error * error for error in found)) for found in loads.values()]
        spreads[kind] = ErrorSpread(deviation=shrunken(sizes, prior_deviation(kind, steps.deployment)), n=len(sizes))
    return spreads
