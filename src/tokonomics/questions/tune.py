"""Answer which engine flags meet the user's targets at the lowest price, proven on their engine: ``tune``.

The server is started for each flag set if its command is known; one that runs already is measured as it is, and the
next set is proposed. Everything measured is kept in a certificate, load by load.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tokonomics.addresses import BenchTarget
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.files import check_path, write_text
from tokonomics.measure.bench.run import LoadInterrupted
from tokonomics.operate.choose import Expected
from tokonomics.operate.flag_sets import (
    Axes,
    FlagSet,
    gpus_of,
    server_plan,
    space_of,
    values_in,
    values_now,
    with_values,
)
from tokonomics.operate.record import FlagTrial, Record, TuneQuestion, read_record, save_record
from tokonomics.operate.replay_rate import simulated_rate
from tokonomics.operate.server import BadCommand, running
from tokonomics.operate.start_command import filled
from tokonomics.operate.trial import Played, machine_facts, measured, server_facts
from tokonomics.operate.tuning import FlagSearch, new_trial, search_flags, with_trial
from tokonomics.physics.intervals import EIGHTY_PERCENT, interval
from tokonomics.questions.plan import deploy_targets_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import TuneRequest
from tokonomics.questions.serving import fleet_of, price_of, say_if_compiling
from tokonomics.questions.traffic import read_time
from tokonomics.questions.tune_answer import TuneResult, answer_of, deploy_files_of_best
from tokonomics.questions.tune_asked import AskedFlags
from tokonomics.sizing.engine_flags import options_file, trtllm_options
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.screen import late_alone
from tokonomics.units import plural

_BLIND = 10.0  # one deviation of what all sets share, where nothing is simulated: any rate is as likely as another


def tune(request: TuneRequest, listener: Listener = SILENT) -> TuneResult:
    """Simulate every flag set, try the few that may be best on the engine, and return the best."""
    asked = AskedFlags(request, listener)
    out = Path(request.out)
    check_path(out, "out", (".json",))
    targets = deploy_targets_of(request.deploy, None)
    price = _price(asked)
    axes = asked.axes()
    space = space_of(asked.setup, asked.engine, axes, request.gpus, asked.converts)
    if not space.sets:
        reason = next(iter(space.refused), "no values")
        raise BadInput(f"no flag set can be tried: {reason}", field="try_")
    say_if_compiling(listener)
    search = _search(asked, space.sets, listener)
    record = _record(asked, axes, price)
    if not request.dry_run:
        record = _on_the_engine(asked, search, record, out, listener)
    result = answer_of(asked, search, record, dict(space.refused))
    files = deploy_files_of_best(asked, search, record, result, targets, listener)
    return result.model_copy(
        update={"certificate": None if request.dry_run else str(out), "deploy": tuple(files), "record": record}
    )


def _price(asked: AskedFlags) -> tuple[float, str] | None:
    """Return the dollars of a GPU-hour and where they are from."""
    if asked.setup is None:
        usd_per_hour = asked.request.usd_per_hour
        return None if usd_per_hour is None else (usd_per_hour, "as given")
    found = price_of(asked.setup.deployment, fleet_of(), asked.request)
    return found and (found[0] / asked.setup.deployment.gpus, found[1])


def _search(asked: AskedFlags, sets: Sequence[FlagSet], listener: Listener) -> FlagSearch:
    """Simulate the server as it is started and every set; return them with what is expected of each."""
    count = listener.counting(f"simulating {plural(len(sets), 'flag set')}", len(sets))
    as_started = FlagSet(values={})
    setup = asked.setup
    if setup is None:
        blind = tuple(Expected(flags, flags.values, 1.0) for flags in (as_started, *sets))
        read = values_in(asked.words, asked.engine)
        return FlagSearch(blind, tuple(gpus_of(each.flags, read) for each in blind), _BLIND, is_blind=True)
    now = values_now(setup, dict.fromkeys(knob for flags in sets for knob in flags.values))
    guess = max(setup.load.trace.rate, 1e-3)
    candidates, gpus, found, never = [], [], False, False
    refusal: NotServed | None = None
    for done, flags in enumerate((as_started, *sets)):
        changed = with_values(setup, flags.values)
        late = late_alone(changed.deployment, changed.load, changed.slos)
        refusal = refusal or late
        rate = 0.0 if late else simulated_rate(changed, guess, asked.requests)[0]
        if rate > 0 or not flags.values:
            never = never or rate <= 0
            found, guess = found or rate > 0, rate or guess
            gpus.append(changed.deployment.gpus)
            candidates.append(Expected(flags, now | flags.values, (rate or guess / 100) / gpus[-1]))
        if count:
            count(done)
    if not found:
        refusal = refusal or NotServed(Reason.too_slow, "misses its targets even at next to no load")
        raise BadInput(f"no flag set meets the targets: {setup.deployment} {refusal.reason}", fix=refusal.what_to_do)
    unsure = interval(1.0, "throughput", setup.deployment)
    shared = math.log(unsure.high / unsure.low) / 2 / EIGHTY_PERCENT
    # Of sets that are expected to do the same, the one with fewer changes comes first.
    order = sorted(range(1, len(candidates)), key=lambda place: _worth(candidates[place]))
    places = (0, *order)
    ordered = tuple(candidates[at] for at in places), tuple(gpus[at] for at in places)
    return FlagSearch(*ordered, shared, never_as_started=never)


def _worth(expected: Expected) -> tuple[float, int]:
    return -float(f"{expected.predicted:.2g}"), len(expected.flags.values)


def _record(asked: AskedFlags, axes: Axes, price: tuple[float, str] | None) -> Record:
    request, trace = asked.request, asked.trace
    first = trace.take(np.arange(min(asked.requests, len(trace))))
    question = TuneQuestion(
        model=asked.model_name or "unnamed",
        gpu=request.gpu,
        engine=asked.engine,
        server=request.start or request.target or "",
        setup=repr((str(asked.setup.deployment), asked.setup.deployment.kv, server_plan(asked.setup).limits))
        if asked.setup
        else "",
        slos=",".join(f"{slo}={slo.seconds:g}" for slo in asked.slos),
        traffic=sha256(repr(trace.digest).encode()).hexdigest(),
        requests=asked.requests,
        axes={name: tuple(str(value) for value in values) for name, values in axes.items()},
        gpus=request.gpus,
    )
    return Record(
        made=datetime.now(UTC),
        question=question,
        machine=machine_facts(),
        usd_per_gpu_hour=price[0] if price else None,
        price_from=price[1] if price else None,
        shares_prefixes=trace.prefix is not None or trace.turns is not None,
        tokens_per_request=float(first.input_tokens.mean() + first.output_tokens.mean()),
    )


def _on_the_engine(asked: AskedFlags, search: FlagSearch, new: Record, out: Path, listener: Listener) -> Record:
    """Try sets on the engine until the search is over, from where an earlier run of the command left off."""
    record = _earlier(new, out, listener) or new
    try:
        if asked.address is not None:
            return _as_it_runs(asked, search, record, out, listener)

        def keep(now: Record) -> None:
            save_record(now, out)

        def measure(place: int, trial: FlagTrial) -> FlagTrial:
            nonlocal record
            record = _latest(out, record)
            return _started(asked, search, place, trial, record, out, listener)

        return search_flags(record, search, measure, keep, asked.request.trials)
    except (LoadInterrupted, KeyboardInterrupt):
        if not out.exists():
            raise LoadInterrupted("interrupted before anything was measured") from None
        fix = "The same command goes on from there."
        raise LoadInterrupted(f"interrupted; everything measured is in {out}", fix=fix) from None


def _latest(out: Path, record: Record) -> Record:
    return read_record(out) if out.exists() else record


def _keeping(record: Record, out: Path) -> Callable[[FlagTrial], None]:
    """Return a function that keeps a trial, finished or not."""

    def keep(trial: FlagTrial) -> None:
        save_record(with_trial(record, trial), out)

    return keep


def _earlier(new: Record, out: Path, listener: Listener) -> Record | None:
    """Return what an earlier run measured of the same question; refuse to write over another's."""
    if not out.exists():
        return None
    found = read_record(out)
    if found.question != new.question:
        names = [name for name in type(new.question).model_fields
                 if getattr(found.question, name) != getattr(new.question, name)]  # fmt: skip
        what = f"{out} holds a search with another {' and '.join(names)}"
        raise BadInput(what, field="out", fix=f"Name another file, such as {option('out', 'tune-2.json')}.")
    listener.note(f"going on from {plural(len(found.trials), 'trial')} in {out}")
    return found


def _started(
    asked: AskedFlags,
    search: FlagSearch,
    place: int,
    trial: FlagTrial,
    record: Record,
    out: Path,
    listener: Listener,
) -> FlagTrial:
    """Start the server with a flag set, measure it, and stop it."""
    before = [each for each in record.trials if each.flags != trial.flags]
    flags = search.candidates[place].flags
    words = asked.words_of(flags)
    last = [trial.model_copy(update={"words": shlex.join(words), "checkpoint": asked.checkpoint_of(flags)})]

    def keep(now: FlagTrial) -> None:
        last[0] = now
        save_record(with_trial(record, now), out)

    where, command = filled(asked.request.start or "", words, asked.engine, asked.checkpoint_of(flags))
    _write_options(asked, flags)
    log = out.with_suffix(".server.log")
    patience_s = read_time(asked.request.patience, "patience") or 0.0
    listener.doing(f"starting the server: {flags.text}")
    try:
        with running(command, where, log, patience_s=patience_s, doing=listener.doing) as server:
            facts = server_facts(where)
            begun = last[0].model_copy(update={"ready_s": server.started_s, "engine": last[0].engine | facts})
            played = _played(asked, where, listener, flags.text, facts)
            return measured(begun, played, _guess(search, place, asked, before), keep, server)
    except LoadInterrupted:
        raise
    except TokonomicsError as error:
        if last[0].finished:
            return last[0]  # what could not be ended is met by the next start
        if isinstance(error, BadCommand) or not (flags.values or last[0].loads):
            raise  # the command itself, or the port: no set would do better
        return last[0].model_copy(update={"failed": shorten(error.what, 400)})


def _write_options(asked: AskedFlags, flags: FlagSet) -> None:
    """Write the file with what TensorRT-LLM has no flags for, where the command runs."""
    if asked.setup is None or asked.engine != "tensorrt-llm":
        return
    from tokonomics.deploy.manifest import yaml_text

    if options := trtllm_options(server_plan(with_values(asked.setup, flags.values))):
        write_text(Path(options_file(options)), yaml_text(options), "the options of TensorRT-LLM")


def _played(asked: AskedFlags, where: BenchTarget, listener: Listener, name: str, facts: Mapping[str, Any]) -> Played:
    return Played(
        target=where,
        model=facts.get("model_id"),
        trace=asked.trace,
        requests=asked.requests,
        slos=asked.slos,
        timeout_s=asked.request.timeout,
        seed=asked.request.seed,
        show=listener.watching(),
        doing=lambda what: listener.doing(f"{name}: {what}"),
    )


def _guess(search: FlagSearch, place: int, asked: AskedFlags, trials: Sequence[FlagTrial]) -> float:
    """Return the rate that is expected of a set after the trials; that of the log if nothing is known."""
    if search.is_blind and not search.measured(trials):
        return asked.trace.rate
    return float(np.exp(search.belief(trials).mid[place])) * search.gpus[place]


def _as_it_runs(asked: AskedFlags, search: FlagSearch, record: Record, out: Path, listener: Listener) -> Record:
    """Measure the running server as the set that was proposed last, and propose the next."""
    assert asked.address is not None
    flags = record.proposed or FlagSet(values={})
    place = search.place_of(flags)
    if place is None:
        raise BadInput(f"{out} proposes flags that this search does not have", field="out")
    if record.proposed is None and record.stopped:
        return record
    facts = server_facts(asked.address)
    began = facts.get("process_start_time_seconds")
    before = record.trials[-1].engine.get("process_start_time_seconds") if record.trials else None
    trial = next((each for each in record.trials if each.flags == flags), None) or new_trial(search, place)
    if asked.request.skip:
        if record.proposed is None:
            raise BadInput("no flags are proposed that could be skipped", field="skip")
        return _proposing(asked, search, with_trial(record, trial.model_copy(update={"failed": "as you said"})), out)
    if not trial.loads and record.trials:
        words = shlex.join(asked.words_of(flags))
        if began is not None and began == before:
            fix = f"Restart it with: {words}. If the engine refuses them, give {option('skip')}."
            raise BadInput("the server was not restarted since its last trial", fix=fix)
        if began is None:
            listener.note(f"the server does not tell when it was started: this is taken as a server with {words}")
    trial = trial.model_copy(update={"engine": facts, "words": shlex.join(asked.words_of(flags))})
    played = _played(asked, asked.address, listener, flags.text, facts)
    trial = measured(trial, played, _guess(search, place, asked, record.trials), _keeping(record, out))
    record = with_trial(record, trial)
    return _proposing(asked, search, record, out)


def _proposing(asked: AskedFlags, search: FlagSearch, record: Record, out: Path) -> Record:
    """Keep the record with the set to start the server with next, or why there is none."""
    following = search.next_place(record.trials, asked.request.trials)
    changes: dict[str, object] = {"proposed": None, "stopped": search.why_over(record.trials, asked.request.trials)}
    if following is not None:
        changes = {"proposed": search.candidates[following].flags, "stopped": None}
    record = record.model_copy(update=changes)
    save_record(record, out)
    return record
