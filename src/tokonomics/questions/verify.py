"""Answer whether a certificate follows from what was measured, and measure its best set again: ``verify``."""

import secrets
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from tokonomics.addresses import BenchTarget, split_address, target
from tokonomics.catalog.engines import find_engine
from tokonomics.errors import BadInput, option
from tokonomics.operate.record import FlagTrial, Record, TrialLoad, disagreements, read_record
from tokonomics.operate.server import running
from tokonomics.operate.start_command import filled
from tokonomics.operate.trial import Played, replayed, server_facts
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import VerifyRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.traffic import read_time
from tokonomics.questions.tune_answer import RankedSet, between, bounds, saved_share
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.units import percent, plural

SCATTER = 0.2
"""By how much a load may be later when it is played again: twice the scatter of lateness from play to play on a real
vLLM (docs/questions/which-flags.md)."""


class VerifyResult(Result):
    """Whether the figures of a certificate follow from its requests, and what the best flags do when measured again."""

    certificate: str
    model: str
    gpu: str | None
    engine: str
    slos: str
    trials: int
    loads: int
    requests: int
    wrong: tuple[str, ...]  # figures that do not follow from what was measured
    best: str | None
    rate: float | None
    tried: tuple[RankedSet, ...] = ()  # the trials, in their order
    best_set: RankedSet | None = None
    saved_share: float | None = None  # of the dollars of a token: best against as started
    stopped: str | None = None  # why no further set was tried
    again: TrialLoad | None = None  # the best set's highest load that held, played once more; None if it was not
    record: Any = beside()

    @property
    def is_found(self) -> bool:
        again = self.again
        return not self.wrong and (again is None or (again.late is not None and again.late <= 1 + SCATTER))

    def headline(self) -> str:
        if self.wrong:
            return f"{self.certificate}: {plural(len(self.wrong), 'figure')} do not follow from what was measured"
        if self.again is not None:
            late = "failed" if self.again.late is None else f"{percent(self.again.late)} of its targets"
            return f"{self.certificate}: {self.best} at {self.again.rate:.3g}/s again: {late}"
        return f"{self.certificate}: {plural(self.loads, 'load')} of {plural(self.trials, 'trial')} checked, all agree"


def verify(request: VerifyRequest, listener: Listener = SILENT) -> VerifyResult:
    """Compute a certificate's figures again from its requests; measure its best flags again if a server is given."""
    path = Path(request.verify)
    record = read_record(path, "verify")
    address = request.target if split_address(request.target or "") else None
    if request.target and not address:
        raise BadInput("is no address of a server", field="target", fix="Such as http://localhost:8000.")
    loads = [load for trial in record.trials for load in trial.loads]
    tried = {trial.flags: _tried(record, trial) for trial in record.trials}
    held = [trial for trial in record.trials if trial.finished and trial.rate > 0]
    best = max(held, key=lambda trial: trial.rate / trial.gpus, default=None)
    return VerifyResult(
        certificate=str(path),
        model=record.question.model,
        gpu=record.question.gpu,
        engine=find_engine(record.question.engine).name,
        slos=bounds(parse_slos(record.question.slos)),
        tried=tuple(tried.values()),
        best_set=tried[best.flags] if best else None,
        saved_share=saved_share(tried[record.trials[0].flags], tried[best.flags], simulated=False) if best else None,
        stopped=record.stopped,
        trials=len(record.trials),
        loads=len(loads),
        requests=sum(len(load.requests.sent_s) for load in loads),
        wrong=disagreements(record),
        best=best.flags.text if best else None,
        rate=best.rate if best else None,
        again=_again(request, record, best, address, listener) if best and (address or request.start) else None,
        record=record,
    )


def _tried(record: Record, trial: FlagTrial) -> RankedSet:
    """Return a trial as it stands in its certificate."""
    rate = trial.rate if trial.finished and not trial.failed else None
    return RankedSet(
        name=trial.flags.text,
        words=trial.words,
        values=dict(trial.flags.values),
        gpus=trial.gpus,
        predicted_rate=trial.predicted,
        measured_rate=rate,
        **between(trial),
        usd_per_mtok=record.usd_per_mtok(rate or 0.0, trial.gpus),
        failed=trial.failed,
    )


def _again(
    request: VerifyRequest, record: Record, best: FlagTrial, address: str | None, listener: Listener
) -> TrialLoad:
    """Play the highest load that the best set held once more, on a running server or on one that is started."""
    if record.shares_prefixes:
        fix = f"Ask again with another {option('out', 'again.json')}."
        raise BadInput("a certificate does not hold what prompts had in common, so they cannot be sent again", fix=fix)
    load = max(
        (load for load in best.loads if load.again is None and (load.late or 9) <= 1), key=lambda load: load.rate
    )
    rows = load.requests
    trace = make_trace(np.array(rows.sent_s), np.array(rows.input_tokens), np.array(rows.output_tokens))

    def play(where: BenchTarget) -> TrialLoad:
        slos, seed = parse_slos(record.question.slos), secrets.randbelow(2**31)
        played = Played(where, server_facts(where).get("model_id"), trace, len(trace), slos, request.timeout, seed)
        return replayed(played, load.rate)

    if address is not None:
        return play(target(address))
    where, command = filled(request.start or "", shlex.split(best.words), record.question.engine, best.checkpoint)
    patience_s = read_time(request.patience, "patience") or 0.0
    log = Path(request.verify).with_suffix(".server.log")
    with running(command, where, log, patience_s=patience_s, doing=listener.doing):
        return play(where)
