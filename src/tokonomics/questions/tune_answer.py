"""Say what a search for flags found: every set with what was expected and measured, the best, and its deploy files."""

import shlex
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tokonomics.catalog.engines import find_engine
from tokonomics.deploy.job import DeployFile, DeployJob, Target, longest_context
from tokonomics.levers.ranking import QualityKept, quality_kept
from tokonomics.operate.choose import believe, next_trial
from tokonomics.operate.flag_sets import (
    FlagSet,
    Value,
    server_plan,
    with_values,
)
from tokonomics.operate.record import FlagTrial, Record
from tokonomics.operate.replay_rate import LASTS, bracket, longest_wait_s
from tokonomics.operate.tuning import FlagSearch
from tokonomics.questions.request import Listener
from tokonomics.questions.result import Result, beside
from tokonomics.questions.tune_asked import AskedFlags
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import lengths_text, spread
from tokonomics.types import Noun, today
from tokonomics.units import requests_a_second, seconds, usd

_SHOWN = 12  # sets of the ranking, beside those tried
_TO_TRY = 3


class RankedSet(Noun):
    """A flag set: what is expected of it after the trials, and what was measured."""

    name: str  # its values, as ``--try`` takes them
    words: str  # the flags, as the engine takes them
    checkpoint: str | None = None  # what is served, if not what is served as started
    values: dict[str, Value]
    gpus: int
    predicted_rate: float | None  # requests a second in simulation, before any trial
    expected_rate: float | None = None  # after the trials, with its 80 % interval
    low_rate: float | None = None
    high_rate: float | None = None
    measured_rate: float | None = None  # between the next two; None if it was not tried
    held_rate: float | None = None  # the highest that was played and met the targets
    missed_rate: float | None = None  # the next that was played and did not; None if none
    usd_per_mtok: float | None = None  # at the measured rate, else at the predicted one
    failed: str | None = None


class TuneResult(Result):
    """The flag sets that were simulated and tried, and which is best."""

    ROWS: ClassVar[str] = "ranked"

    model: str
    gpu: str | None
    engine: str
    slos: str
    traffic: str
    requests: int  # of a load, at least
    least_load_s: float  # for so long they arrive, at least
    simulated: int
    refused: dict[str, int]  # combinations that are never tried, by reason
    started: RankedSet  # the server as it is started today
    best: RankedSet | None  # None if no set met the targets
    saved_share: float | None  # of the dollars of a token: best against as started, both measured or both simulated
    quality: QualityKept | None = None  # what the best set keeps of the quality of answers, if it serves fewer bits
    ranked: tuple[RankedSet, ...]
    trials: tuple[RankedSet, ...]
    stopped: str | None  # why no further set is tried
    to_try: tuple[RankedSet, ...] = ()  # without trials: what would be tried first
    proposed: str | None = None  # flags to start the server with next, if it is not ours to start
    price_from: str | None = None
    certificate: str | None = None
    deploy: tuple[DeployFile, ...] = ()

    record: Any = beside()
    search: Any = beside()

    def headline(self) -> str:
        best = self.best
        if best is None:
            return f"{self.model}: no flag set met {self.slos}"
        price = "" if best.usd_per_mtok is None else f", {usd(best.usd_per_mtok)} per Mtok"
        holds = requests_a_second(f"{best.measured_rate or best.predicted_rate or 0:.3g}")
        how = "measured" if best.measured_rate is not None else "simulated"
        return f"{self.model}: {best.name} holds {holds} ({how}){price}"


def answer_of(asked: AskedFlags, search: FlagSearch, record: Record, refused: dict[str, int]) -> TuneResult:
    rows = _rows(asked, search, record)
    tried = {trial.flags: trial for trial in record.trials}
    by_flags = {each.flags: row for each, row in zip(search.candidates, rows, strict=True)}
    held = [
        by_flags[flags] for flags, trial in tried.items() if trial.finished and trial.rate > 0 and flags in by_flags
    ]
    order = sorted(rows, key=lambda row: -((row.measured_rate or row.predicted_rate or 0) / row.gpus))
    best = max(held, key=lambda row: (row.measured_rate or 0) / row.gpus, default=None)
    if best is None and not record.trials and not search.is_blind:
        best = _telling(order)[0]
    started = rows[0]
    shown = {row.name: row for row in order if row is started or row.measured_rate is not None or row.failed}
    first = () if record.trials or search.is_blind else _first_trials(search, rows)
    shown |= {row.name: row for row in (*_telling(order)[:_SHOWN], *first)}
    proposed = record.proposed and shlex.join(asked.words_of(record.proposed))
    return TuneResult(
        model=record.question.model,
        gpu=asked.setup.deployment.gpu.key if asked.setup else None,
        engine=find_engine(asked.engine).name,
        slos=bounds(asked.slos),
        traffic=lengths_text(asked.trace),
        requests=asked.requests,
        least_load_s=LASTS * longest_wait_s(asked.slos),
        simulated=0 if search.is_blind else len(search.candidates),
        refused=refused,
        started=started,
        best=best,
        saved_share=saved_share(started, best, simulated=not record.trials) if best else None,
        quality=_quality(asked, best),
        ranked=tuple(row for row in order if row.name in shown),
        trials=tuple(by_flags[trial.flags] for trial in record.trials if trial.flags in by_flags),
        stopped=record.stopped,
        to_try=first,
        proposed=proposed,
        price_from=record.price_from,
        record=record,
        search=search,
    )


def saved_share(started: RankedSet, best: RankedSet, simulated: bool) -> float | None:
    """Return the share of a token's dollars that the best set saves, both measured or both simulated."""
    both = [each.predicted_rate if simulated else each.measured_rate for each in (started, best)]
    if not both[0] or not both[1]:
        return None
    return 1 - (both[0] / started.gpus) / (both[1] / best.gpus)


def between(trial: FlagTrial) -> dict[str, float | None]:
    """Return the two rates that were played between which a trial reads its own."""
    low, high = bracket(trial.counted)
    return {"held_rate": low.rate if low else None, "missed_rate": high.rate if high else None}


def bounds(slos: Sequence[Slo]) -> str:
    """Write targets with what they promise."""
    return ", ".join(f"{slo.label} ≤ {seconds(slo.seconds)}" for slo in slos)


def _quality(asked: AskedFlags, best: RankedSet | None) -> QualityKept | None:
    """Return what fewer bits keep of the quality of answers; None if the best set serves as many as started."""
    if asked.setup is None or best is None:
        return None
    before, after = asked.setup.deployment, with_values(asked.setup, best.values).deployment
    return quality_kept(before, after) if (before.weights, before.kv) != (after.weights, after.kv) else None


def _first_trials(search: FlagSearch, rows: Sequence[RankedSet]) -> tuple[RankedSet, ...]:
    """Return what would be tried first if every trial were as predicted."""
    measured: dict[int, float] = {0: search.candidates[0].predicted}
    while len(measured) < _TO_TRY:
        place = next_trial(search.candidates, measured, believe(search.candidates, measured, search.shared))
        if place is None:
            break
        measured[place] = search.candidates[place].predicted
    return tuple(rows[place] for place in measured)


def _telling(order: Sequence[RankedSet]) -> list[RankedSet]:
    """Leave out sets that are expected to do the same as one with fewer changes."""
    found: dict[object, RankedSet] = {}
    for row in sorted(order, key=lambda row: len(row.values)):
        found.setdefault(row.name if row.expected_rate is None else (f"{row.expected_rate:.3g}", row.gpus), row)
    kept = {row.name for row in found.values()}
    return [row for row in order if row.name in kept]


def _rows(asked: AskedFlags, search: FlagSearch, record: Record) -> list[RankedSet]:
    """Return every set with what is expected of it now."""
    belief = search.belief(record.trials)
    low, high = belief.ends()
    tried, as_started = {trial.flags: trial for trial in record.trials}, asked.checkpoint_of(FlagSet(values={}))
    rows = []
    for place, (candidate, gpus) in enumerate(zip(search.candidates, search.gpus, strict=True)):
        trial, checkpoint = tried.get(candidate.flags), asked.checkpoint_of(candidate.flags)
        done = trial is not None and trial.finished and not trial.failed
        rate = trial.rate if trial and done else None
        predicted = None if search.is_blind else candidate.predicted * gpus
        if place == 0 and search.never_as_started:
            predicted = 0.0
        known = (not search.is_blind and predicted != 0) or bool(record.trials)
        rows.append(
            RankedSet(
                name=candidate.flags.text,
                words=shlex.join(asked.words_of(candidate.flags)),
                checkpoint=checkpoint if checkpoint != as_started and not asked.converts else None,
                values=dict(candidate.flags.values),
                gpus=gpus,
                predicted_rate=predicted,
                expected_rate=float(np.exp(belief.mid[place])) * gpus if known else None,
                low_rate=float(low[place]) * gpus if known else None,
                high_rate=float(high[place]) * gpus if known else None,
                measured_rate=rate,
                **(between(trial) if trial else {}),
                usd_per_mtok=record.usd_per_mtok(rate if rate is not None else predicted or 0.0, gpus),
                failed=trial.failed if trial else None,
            )
        )
    return rows


def deploy_files_of_best(
    asked: AskedFlags,
    search: FlagSearch,
    record: Record,
    result: TuneResult,
    targets: Sequence[Target],
    listener: Listener,
) -> list[DeployFile]:
    """Return the best flags as deploy files."""
    if not targets or result.best is None or asked.setup is None:
        return []
    from tokonomics.deploy.targets import deploy_files, provenance

    setup = with_values(asked.setup, result.best.values)
    plan, trial = (
        server_plan(setup),
        next((each for each in record.trials if each.flags.values == result.best.values), None),
    )
    held = [load for load in trial.loads if load.late is not None and load.late <= 1] if trial else []
    answers = [each for each in max(held, key=lambda load: load.rate).requests.e2e_s if each] if held else []
    job = DeployJob(
        deployment=setup.deployment,
        replicas=1,
        machines=1,
        e2e_s=spread(np.array(answers, dtype=np.float64)),
        max_context=longest_context(setup.deployment),
        limits=plan.limits,
        provenance=provenance(listener.typed or "tokonomics tune", today(), None),
        tiers=plan.tiers,
        prefix_cache=plan.prefix_cache,
        requests_per_s=result.best.measured_rate or result.best.predicted_rate,
    )
    return [file for each in targets for file in deploy_files(each, job)]
