"""Results of a server → what its engine does differently from the sum of its kernels, checked on loads held out.

For each model served on a GPU by an engine, a few numbers: a factor on what the GPU takes for steps of few tokens, one
for prompts; factors on the host's launches and on a request's time outside any step where the engine has them; or the
host's seconds a step and a running sequence. They are fitted by least squares of
log(predicted ÷ measured) over all figures, each weighed by how well its kind is predicted in general, with a pull
towards no correction that a few good loads outweigh. Every second load (in order of size) teaches a first fit, of the
fewest numbers that explain it about as well as any; the others judge it, and what made a kind of figure worse there is
left out. What is kept is then fitted on all loads, and its interval comes from the errors of the loads that judged.
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

from tokonomics.errors import BadInput, TokonomicsError, shorten
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Mode
from tokonomics.measure.probe.fit_profile import held_out_figures, shrunken
from tokonomics.measure.validate import kind_of, steps_of, value_of
from tokonomics.nouns import Noun
from tokonomics.physics.calibration import (
    Correction,
    HeldOut,
    Profile,
    Range,
    Spread,
    engine_of,
    using,
)
from tokonomics.physics.intervals import prior_deviation
from tokonomics.physics.steptime import StepModel
from tokonomics.units import percent, plural, seconds

Term = Literal["decode", "prefill", "host", "launch", "request"]
Load = tuple[object, ...]
Array = NDArray[np.float64]

FEWEST_LOADS = 4
"""Two to teach and two to judge."""
FEWEST_FOR_ALL = 4
"""Loads that teach, from which all numbers are fitted."""
NOISE = 0.05
"""Size of log(predicted ÷ measured) that is a run's own chance, and no reason to correct anything."""
SCALED: tuple[Term, ...] = ("decode", "prefill", "launch", "request")
"""Terms that are factors."""
PRIOR: dict[Term, float] = {"decode": 0.3, "prefill": 0.5, "host": 1.0, "launch": 0.5, "request": 0.5}
"""How far a correction may well be: logarithm of a factor; the host's time as a share of the median time per token."""
CONTRADICTION = 1.5
"""Times that a load of fewer users may be slower than one of more, by chance."""
FACTORS = (0.5, 4.0)
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
    trial: Correction | None = None
    """Fitted on the loads that taught alone: what the loads that judged were predicted with."""
    correction: Correction | None = None
    """Fitted on all loads: what the profile keeps."""
    held_out: tuple[HeldOut, ...] = ()
    dropped: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Loads that contradict each other."""
    refused: str | None = None


class Calibrated(Noun):
    """What ``tokonomics calibrate`` found out."""

    profile: Profile
    groups: tuple[GroupResult, ...]
    not_predicted: dict[str, int]
    """Rows without a prediction, by reason."""
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
    fitted = _widened([each.correction for each in groups if each.correction])
    scopes = {_scope(each) for each in fitted}
    kept = [each for each in evidence.corrections if _scope(each) not in scopes]
    if not fitted and not kept and evidence.kernels is None:
        refusals = ["; ".join([f"{each.what}: {each.refused}", *each.doubts]) for each in groups if each.refused]
        said = "; ".join(refusals) or _most_common(reasons)
        raise BadInput(f"nothing to calibrate on: {said}", fix="docs/calibrate.md says what is needed.")
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
            fix="Give the files of one, or name it with --gpu where a table holds several.",
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
    doubts = _doubts(rows)
    if len(loads) < FEWEST_LOADS:
        enough = f"{plural(len(loads), 'load')}, and it takes {FEWEST_LOADS}: half of them judge the rest"
        return GroupResult(what=what, **counts, doubts=doubts, refused=enough)
    before = errors(judging, None)
    dropped: list[str] = []
    for terms, trial in _trials(taught, _candidates(rows, counts["taught"])):
        pairs = zip(map(kind_of, judging), before, errors(judging, trial), strict=True)
        figures = held_out_figures(list(pairs))
        worse = [each for each in figures if each.worse]
        if not worse:
            final = _correction(rows, fit(rows, terms)).model_copy(
                update={"held_out": figures, "spreads": _spreads(judging, trial, steps), "notes": tuple(dropped)}
            )
            done = {"trial": trial, "correction": final, "held_out": figures, "dropped": tuple(dropped)}
            return GroupResult(what=what, **counts, doubts=doubts, **done)
        said = ", ".join(f"{each.figure} {percent(each.before)} → {percent(each.after)}" for each in worse)
        dropped.append(f"{' and '.join(SAID[term] for term in terms)}: made held-out loads worse ({said})")
    return GroupResult(
        what=what,
        **counts,
        held_out=figures,
        dropped=tuple(dropped),
        doubts=doubts,
        refused="every correction made the held-out loads worse: predictions stay as they are",
    )


def _trials(
    taught: Sequence[Measurement], candidates: Sequence[tuple[Term, ...]]
) -> list[tuple[tuple[Term, ...], Correction]]:
    """What to try on the loads that judge: the fewest numbers that explain those that teach about as well as any."""
    trials = [(terms, _correction(taught, fit(taught, terms))) for terms in candidates]
    off = {terms: _misfit(taught, trial) for terms, trial in trials}
    enough = 1.15 * min(off.values()) + NOISE / 5
    first = next(trial for trial in trials if off[trial[0]] <= enough)
    rest = sorted((trial for trial in trials if trial[0] and trial is not first), key=lambda each: off[each[0]])
    return [first, *rest]


def _misfit(rows: Sequence[Measurement], correction: Correction) -> float:
    return float(np.average(np.abs(errors(rows, correction)), weights=_trust(rows)))


def _doubts(rows: Sequence[Measurement]) -> tuple[str, ...]:
    """More users at once never make a token faster: where a run says so, the slower load was not steady."""
    made = []
    shapes = {(row.input_tokens, row.output_tokens) for row in rows}
    for shape in sorted(shapes):
        loads = sorted(
            (row.batch, row.value)
            for row in rows
            if row.batch and kind_of(row) == "tpot" and (row.input_tokens, row.output_tokens) == shape
        )
        for place, (users, value) in enumerate(loads[:-1]):
            faster, least = min(loads[place + 1 :], key=lambda load: load[1])
            if value > CONTRADICTION * least:
                made.append(
                    f"{plural(users, 'user')}: {seconds(value)} a token, but {seconds(least)} for {faster}: "
                    "was the server warm?"
                )
    return tuple(made)


def _words(row: Measurement, steps: StepModel) -> str:
    at = steps.deployment
    engine = at.engine.name if row.engine else "bare steps"
    return f"{at.model.key} ({at.weights}) on {at.gpus} × {at.gpu.key}, {engine}"


def _candidates(rows: Sequence[Measurement], taught: int) -> list[tuple[Term, ...]]:
    """What may be fitted, fewest numbers first; fewer of them where fewer loads teach."""
    kinds = {kind_of(row) for row in rows}
    if rows[0].engine is None:
        options: list[tuple[Term, ...]] = [(), ("decode",)] if "step" in kinds else [(), ("prefill",)]
        return [*options, ("decode", "prefill")] if {"step", "prefill"} <= kinds else options
    options = [(), ("decode",), ("host",), ("decode", "host")]
    if taught >= FEWEST_FOR_ALL and "ttft" in kinds:
        options += [("decode", "prefill"), ("prefill", "host"), ("decode", "prefill", "host")]
        own = steps_of(rows[0]).engine
        if own and own.layer_s:
            options += [
                ("decode", "launch"),
                ("decode", "prefill", "launch"),
                ("decode", "prefill", "launch", "request"),
            ]
    return options


def fit(rows: Sequence[Measurement], terms: Sequence[Term]) -> dict[str, float]:
    """The numbers that explain the rows best, with a pull towards no correction."""
    from scipy.optimize import least_squares

    if not terms:
        return {}
    trust = _trust(rows)
    unit_s = _time_per_token_s(rows)
    own = steps_of(rows[0]).engine
    start = {"step": 0.0, "sequence": 0.0} | dict.fromkeys(SCALED, 0.0)
    if own and not own.overlapped:
        start |= {"step": own.step_s / unit_s, "sequence": own.sequence_s / unit_s}
    free = [each for term in terms for each in (("step", "sequence") if term == "host" else (term,))]
    low = [0.0 if each in ("step", "sequence") else math.log(FACTORS[0]) for each in free]
    high = [50.0 if each in ("step", "sequence") else math.log(FACTORS[1]) for each in free]
    pulls = np.array([NOISE / PRIOR["host" if each in ("step", "sequence") else each] for each in free])  # type: ignore[index]
    origin = np.array([start[each] for each in free])

    def numbers(x: Array) -> dict[str, float]:
        found = dict(zip(free, x.tolist(), strict=True))
        made: dict[str, float] = {name: math.exp(found[name]) for name in SCALED if name in found}
        if "step" in found:
            made |= {"step_s": found["step"] * unit_s, "sequence_s": found["sequence"] * unit_s}
        return made

    def residuals(x: Array) -> Array:
        return np.concatenate([trust * errors(rows, _trial(rows[0], numbers(x))), pulls * (x - origin)])

    begin = np.clip(origin, np.array(low) + 1e-4, np.array(high) - 1e-4)
    solved = least_squares(
        residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=2 * NOISE, diff_step=1e-3, max_nfev=30
    )
    return numbers(solved.x)


def _trust(rows: Sequence[Measurement]) -> Array:
    """Weights of figures: waits for a first token are predicted less well than times per token."""

    def weight(row: Measurement) -> float:
        at = steps_of(row).deployment
        best = prior_deviation("tpot" if row.engine else "step", at)
        return min(1.0, best / prior_deviation(kind_of(row), at))

    return np.array([weight(row) for row in rows])


def _time_per_token_s(rows: Sequence[Measurement]) -> float:
    """What the host's time is measured in."""
    times = [row.value for row in rows if kind_of(row) in ("tpot", "step")]
    rates = [(row.batch or 1) / row.value for row in rows if kind_of(row) == "throughput"]
    return statistics.median(times or rates or [row.value for row in rows])


def _trial(row: Measurement, numbers: Mapping[str, float]) -> Correction:
    at = steps_of(row).deployment
    engine = engine_of(at, row.engine is not None)
    return Correction(
        gpu=at.gpu.key,
        engine=engine,
        model=at.model.key,
        weights=at.weights,
        tp=at.tp,
        learned_at=f"{at.weights}, TP {at.tp}",
        loads=1,
        rows=1,
        **numbers,
    )


def _correction(rows: Sequence[Measurement], numbers: Mapping[str, float]) -> Correction:
    """With the sizes that were seen."""
    short = {name: float(f"{value:.5g}") for name, value in numbers.items()}
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
    loads = len({load_of(row) for row in rows})
    return _trial(rows[0], short).model_copy(update={"seen": seen, "loads": loads, "rows": len(rows)})


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


def _spreads(rows: Sequence[Measurement], trial: Correction, steps: StepModel) -> dict[str, Spread]:
    """How far held-out figures lie from what the first fit says, as if some of the known size came before."""
    made: dict[str, list[float]] = {}
    for row, error in zip(rows, errors(rows, trial), strict=True):
        made.setdefault(kind_of(row), []).append(error)
    return {
        kind: Spread(deviation=shrunken(found, prior_deviation(kind, steps.deployment)), n=len(found))  # type: ignore[arg-type]
        for kind, found in made.items()
    }
