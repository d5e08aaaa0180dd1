"""Price a change of builds on the user's traffic: the highest rate under the SLOs, simulated before and after.

The build that was measured as the faster one sets the level: the step model is calibrated on its probes
(``measure.calibrate``), unless a profile is in use already. The other build is the same with the terms that were found
(``guard``) put into that correction, and both with what their servers say of their KV cache. So two builds without a
difference cost the same to the last bit, and an error of the level changes both alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from tokonomics.catalog.layers import Precision
from tokonomics.errors import TokonomicsError
from tokonomics.measure.calibrate import calibrate
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts
from tokonomics.operate.fingerprint import PROBES, SHORT, Fingerprint, ProbeKind
from tokonomics.operate.guard import BuildChange, TermChange
from tokonomics.operate.replay_rate import simulated_rate
from tokonomics.physics.calibration import Correction, Profile, active, using
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import sequence_bytes
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.sizing.setup import Setup
from tokonomics.units import percent

_CONTEXT = 8192  # tokens over which the KV bytes of a token are taken: whole blocks, and windows count in part
_MOST_RUNNING = max(probe.users for probe in PROBES)
End = Literal["size", "low", "high"]
ENDS: tuple[End, ...] = ("size", "low", "high")
_COMPUTED_AGAIN = 0.5  # share of a repeated prompt from which the prefix cache is taken as off; our choice


@dataclass(frozen=True)
class HeldRates:
    """Requests a second that each build holds, and the ends of the interval of the changed one."""

    before: float
    after: float
    ends: tuple[float, float]  # of after ÷ before
    calibrated: str  # what the level was taken from
    left_out: tuple[str, ...]  # changes that the simulator has no term for


def held_rates(setup: Setup, old: Fingerprint, new: Fingerprint, change: BuildChange, requests: int) -> HeldRates:
    """Return the highest rate of one replica with each build."""
    fast, slow = (new, old) if change.turned else (old, new)
    base_setup, slow_setup = told_setup(setup, fast), told_setup(setup, slow)
    level, calibrated = _level(base_setup.deployment, fast)
    guess, made = max(setup.load.trace.rate, 1e-3), fast.made.date()

    def rate(of: Setup, correction: Correction, near: float) -> float:
        with using(_profile(correction, made)):
            return simulated_rate(of, near or guess, requests)[0]

    fast_rate = rate(base_setup, level, guess)
    same_words = base_setup == slow_setup and not change.terms
    rates = [fast_rate] * 3
    if not same_words:
        with using(_profile(level, made)):
            steps = step_model(slow_setup.deployment)
        rates = [rate(*_changed(slow_setup, level, steps, change.terms, end), fast_rate) for end in ENDS]
    slow_rate, *others = rates
    before, after = (slow_rate, fast_rate) if change.turned else (fast_rate, slow_rate)
    ratios = [_ratio(fast_rate, each) if change.turned else _ratio(each, fast_rate) for each in (slow_rate, *others)]
    return HeldRates(before, after, (min(ratios), max(ratios)), calibrated, tuple(_left_out(change)))


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.inf if one > 0 else 1.0


def told_setup(setup: Setup, mark: Fingerprint) -> Setup:
    """Return the setup with what a server says of its KV cache: its precision, its size, and whether prefixes stay."""
    told, deployment = mark.engine, setup.deployment
    if "fp8" in str(told.get("kv_dtype", "")):
        deployment = deployment.model_copy(update={"kv": Precision.fp8})
    if isinstance(tokens := told.get("kv_tokens"), int) and tokens > 0:
        each = sequence_bytes(deployment, _CONTEXT) / _CONTEXT
        flags = deployment.flags.model_copy(update={"kv_bytes": tokens * each})
        deployment = deployment.model_copy(update={"flags": flags})
    off = str(told.get("prefix_caching")) == "False"
    return replace(setup, deployment=deployment, prefix_cache=setup.prefix_cache and not off)


# --- the level: a correction of the step model on the probes of the faster build --------------------------------------


def measurements(mark: Fingerprint, deployment: Deployment) -> Iterator[Measurement]:
    """Yield the probes that the step model predicts: lone prompts, and answers at once after short prompts."""
    known: dict[str, Any] = {
        name: getattr(deployment, name) for name in ("tp", "pp", "ep", "dp", "gpus")
    } | {
        "model": deployment.model.key, "gpu": deployment.gpu.key, "engine": deployment.engine.key,
        "weights": str(deployment.weights), "kv": str(deployment.kv), "year": mark.made.year, "rate": None,
        "source": "fingerprint",
    }  # fmt: skip
    for each in mark.probes:
        probe, tokens = each.probe, max(1, round(each.tokens))
        if probe.kind is ProbeKind.prompt:
            load = {"mode": Mode.fixed_concurrency, "metric": Metric.ttft_s, "output_tokens": 1}
        elif probe.kind is ProbeKind.decode and probe.prompt_tokens == SHORT:
            load = {"mode": Mode.fixed_batch, "metric": Metric.tpot_s, "output_tokens": probe.answer}
        else:
            continue
        yield Measurement(
            key=probe.name, value=each.median_s, batch=probe.users, input_tokens=tokens, **load, **known,
            run=RunFacts(requests=probe.users),
        )  # fmt: skip


def _level(deployment: Deployment, mark: Fingerprint) -> tuple[Correction, str]:
    """Return the correction under which the step model does what a build did, and where it is from."""
    nothing = Correction(gpu=deployment.gpu.key, engine=deployment.engine.key, loads=1, rows=1)
    profile = active()
    if profile is not None:
        found = profile.correction_of(deployment, step_model(deployment).engine)
        return _for_all(found or nothing), f"profile {profile.name}"
    evidence = Evidence(rows=list(measurements(mark, deployment)))
    try:
        learned = calibrate(evidence, made=mark.made.date(), command="tokonomics guard", name="guard")
    except TokonomicsError:
        return nothing, "the step model as it is: no correction of it pays on these probes"
    found = learned.profile.correction_of(deployment, step_model(deployment).engine)
    if found is None:
        return nothing, "the step model as it is"
    errors = ", ".join(f"{each.figure} {percent(each.before)} → {percent(each.after)}" for each in found.held_out)
    return _for_all(found), f"calibrated on its probes (off on those held out: {errors})"


def _for_all(found: Correction) -> Correction:
    """Return a correction that holds whatever the precision of the KV cache is."""
    return found.model_copy(update={"weights": None, "kv": None, "spreads": {}, "held_out": ()})


def _profile(correction: Correction, made: date) -> Profile:
    """Return the profile in use with its correction replaced."""
    given = active() or Profile(name="guard", made=made, command="tokonomics guard")
    return given.model_copy(update={"corrections": (correction,)})


# --- the change, as a correction and flags ----------------------------------------------------------------------------


def _changed(
    setup: Setup, level: Correction, steps: StepModel, terms: tuple[TermChange, ...], end: End
) -> tuple[Setup, Correction]:
    """Return the setup and the correction of a build with these terms beyond those of the level."""
    for term in terms:
        setup, level = _with(setup, level, term, getattr(term, end), steps)
    return setup, level


def _with(setup: Setup, level: Correction, term: TermChange, size: float, steps: StepModel) -> tuple[Setup, Correction]:
    engine = steps.engine
    factors: dict[str, float] = {}
    if term.term in ("kernels", "decode"):
        factors["decode"] = max(0.01, size)
    if term.term in ("kernels", "prefill"):
        factors["prefill"] = max(0.01, size)
    if term.term == "request" and engine and (own_s := engine.request_seconds(SHORT)) > 0:
        factors["request"] = max(0.01, 1 + size / own_s)
    composed_s = engine.step_s if engine and engine.overlapped else 0.0  # no launch, and in the least time of a step
    if term.term == "launch" and (own_s := float(steps.launch_s(SHORT)) - composed_s) > 0:
        factors["launch"] = max(0.01, 1 + (size - (term.before_s or size)) / own_s)
    if term.term == "graphs" and engine:
        above = term.above_tokens or 0
        setup = setup.deployed(flags=setup.deployment.flags.model_copy(update={"captured_tokens": above}))
        own_s = float(_without_graphs(steps).launch_s(above + 1)) - composed_s
        running = math.sqrt((above + 1) * _MOST_RUNNING)  # among those whose steps told the least time
        launches_s = size - composed_s - engine.sequence_s * running
        if term.longer_s is not None:  # how a lone prompt divides into request and step is the simulator's own
            launches_s = float(steps.launch_s(SHORT)) - composed_s + term.longer_s + size - term.size
        factors["launch"] = max(0.01, launches_s / own_s) if own_s > 0 else 1.0
    if term.term == "cache" and size > _COMPUTED_AGAIN:
        setup = replace(setup, prefix_cache=False)
    changes: dict[str, Any] = {name: getattr(level, name) * factor for name, factor in factors.items()}
    if term.term == "host":
        changes["step_s"] = max(0.0, (level.step_s or 0.0) + size)
    return setup, level.model_copy(update=changes)


def _without_graphs(steps: StepModel) -> StepModel:
    return steps.with_engine(steps.engine and steps.engine.model_copy(update={"graph_tokens": 0}))


def _left_out(change: BuildChange) -> Iterator[str]:
    """Yield what was found and is not simulated."""
    for term in change.terms:
        if term.term == "context" and not any(row.name == "KV precision" for row in change.told):
            yield f"not priced, as the simulator has no term for it: {term.said}"
        if term.term == "cache" and term.size <= _COMPUTED_AGAIN:
            yield f"not priced: {term.said}"
