"""Collect what files say about a machine, for ``calibrate``: figures that can be predicted, and probed kernels.

A file is recognised by its content: a profile, the probe's timings, a table of results or a JSON of step times
(``measurements``), a log of an engine's steps (``engine_log``), a meter's ledger, or any result of a load generator
(``importers``).

Users of a closed loop never pause: by Little's law their number is requests a second × seconds an answer. A window
inside such a run that ends in the middle of a round counts fewer, so its throughput is too low; then the throughput is
computed from the answers' own times, with a note. A run counted from its first request to its last answer has no such
window: it is simulated as it was, with its beginning and its end.

A meter's ledger also gives loads: spans in which a server was seen and busy throughout, grouped by how many requests
ran at once, in steps of a factor of √2. A load has tokens a second, the mean lengths of its requests (prompt tokens
from a cache were not computed, and are left out), and the mean time to the first token if the engine states it. A batch
is a gauge read every interval, and requests come and go: this is rougher than a load of ``tokonomics bench``.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokonomics.catalog.gpus import find_gpu
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies, LoadPoint, Stated
from tokonomics.measure.engine_log import is_step_log, stated_by, steps_logged
from tokonomics.measure.importers.recognise import read_run
from tokonomics.measure.importers.vllm import VLLM
from tokonomics.measure.measurements import Measurement, Statistic, Unread, json_object, read_measurements, steps_from
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.measure.priced_run import GivenMachine, MeasuredMachine, as_model, machine_of, measurements_of
from tokonomics.measure.probe.fit_profile import check_timings, is_timings, profile_from
from tokonomics.measure.stated_setup import engine_named
from tokonomics.physics.calibration import Profile, is_profile, read_profile
from tokonomics.units import plural

BUSY = 0.99  # share from which a span counts as busy throughout: an idle part would look like a slow server
LEAST_ANSWERED = 20  # requests of a load; the mean length of fewer says little
_MAGIC = b"SQLite format 3\x00"


def is_ledger(path: Path) -> bool:
    """Decide whether a file is a SQLite database, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def runs_of(path: Path) -> list[BenchmarkRun]:
    """Return the loads of a meter's ledger: one run for each model and engine."""
    by_load: dict[tuple[str, str], dict[int, list[PaidTime]]] = defaultdict(lambda: defaultdict(list))
    with Ledger(path, read_only=True) as book:
        for span in book.spans():
            if _is_busy(span):
                size = round(2 * math.log2(max(1.0, span.running_s / span.running_seen_s)))
                by_load[span.model, span.engine][size].append(span)
    runs = []
    for (model, engine), loads in sorted(by_load.items()):
        points = [point for _, spans in sorted(loads.items()) if (point := _point(spans)) is not None]
        if points:
            when = datetime.fromtimestamp(max(span.end for spans in loads.values() for span in spans), UTC)
            what = {"tool": "tokonomics meter", "model": model or None, "stated": Stated(engine=engine)}
            runs.append(BenchmarkRun(**what, when=when, points=tuple(points)))
    if not runs:
        said = f"no load in it was busy throughout for {plural(LEAST_ANSWERED, 'answered request')}"
        fix = "Meter a busier server, or load it with tokonomics bench --save."
        raise BadInput(said, where=shorten(str(path), 200), fix=fix)
    return runs


def _is_busy(span: PaidTime) -> bool:
    # Compare with all seconds, not this model's part: the time of other models on a server is not known.
    busy = span.watched is WatchedSpan.seen and span.busy_s >= BUSY * span.seconds > 0
    return busy and span.running_seen_s > 0 and span.running_s > 0 and span.answered > 0 and span.output > 0


def _point(spans: list[PaidTime]) -> LoadPoint | None:
    def total(name: str) -> float:
        return float(sum(getattr(span, name) for span in spans))

    busy_s, answered, output, timed = (total(name) for name in ("busy_s", "answered", "output", "ttft_count"))
    computed = sum(span.input_total - span.input_cached for span in spans)
    if answered < LEAST_ANSWERED or computed < 1:
        return None
    return LoadPoint(
        concurrency=max(1, round(total("running_s") / total("running_seen_s"))),
        requests_per_s=answered / busy_s, input_tokens_per_s=computed / busy_s, output_tokens_per_s=output / busy_s,
        mean_input_tokens=computed / answered, mean_output_tokens=output / answered, duration_s=busy_s,
        completed=round(answered),
        ttft_s=Latencies(mean=total("ttft_s") / timed) if timed > 0 else None,
    )  # fmt: skip


ROUNDED = 0.95  # share of the users that Little's law must give for a window of whole rounds
CONTRADICTED = 0.1  # with fewer users than this share, a cut round does not explain it, and some figure is wrong

FEWEST_FOR_P99 = 40  # requests of a load; with fewer, one request decides the 99th percentile


@dataclass
class Evidence:
    rows: list[Measurement] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def probed(self) -> Profile | None:
        """Return the last profile whose kernels were probed."""
        return next((profile for profile in reversed(self.profiles) if profile.kernels), None)


def read_evidence(paths: Sequence[Path], given: GivenMachine, command: str) -> Evidence:
    found = Evidence()
    for path in paths:
        where = shorten(str(path), 200)
        if is_ledger(path):
            for run in runs_of(path):
                _add_run(found, run, given, where)
            continue
        document = json_object(path)
        if document and is_profile(document):
            _add_profile(found, read_profile(path), where)
        elif document and is_timings(document):
            _add_timings(found, document, given, command, where)
        elif document and is_step_log(document):
            _add_steps(found, document, given, where)
        elif path.name.lower().endswith((".csv", ".csv.gz")) or (document and {"rows", "gpu"} <= document.keys()):
            _add_rows(found, read_measurements(path), given)
        else:
            _add_run(found, read_run(path), given, where)
    return found


def _add_timings(found: Evidence, timings: Mapping[str, Any], given: GivenMachine, command: str, where: str) -> None:
    """Add the curves of the kernels, and whole models timed for validation as ordinary steps."""
    check_timings(timings, where)
    steps = timings.get("validate") or ()
    if timings.get("gemm") or not steps:
        _add_profile(found, profile_from(timings, command, where, given.gpu), where)
    machine = timings.get("machine")
    device = str(machine.get("device")) if isinstance(machine, Mapping) else "unnamed"
    _add_rows(found, steps_from(steps, given.gpu or device, {}), given)


def _add_profile(found: Evidence, profile: Profile, where: str) -> None:
    if profile.kernels:
        known = found.probed.kernels if found.probed else None
        if known and known.gpu != profile.kernels.gpu:
            said = f"kernels of {known.gpu} and of {profile.kernels.gpu}: a profile holds those of one GPU"
            raise BadInput(said, where=where, fix="Calibrate each GPU by itself.")
    found.profiles.append(profile)


def _add_rows(found: Evidence, rows: Sequence[Measurement | Unread], given: GivenMachine) -> None:
    """Add the rows of a table, only those of the GPU that was asked for."""
    wanted = find_gpu(given.gpu).key if given.gpu else None
    for row in rows:
        if isinstance(row, Unread):
            found.unread.append(row)
        elif wanted is None or (_is_known(find_gpu, row.gpu) and find_gpu(row.gpu).key == wanted):
            foreign = row.engine and not _is_known(engine_named, row.engine)
            changes = {"model": given.model, "weights": given.weights, "engine": given.engine if foreign else None}
            found.rows.append(row.model_copy(update={name: value for name, value in changes.items() if value}))


def _add_steps(found: Evidence, document: Mapping[str, Any], given: GivenMachine, where: str) -> None:
    """Add an engine's steps, and the loads under which it logged them if they are in the file."""
    stated, model = stated_by(document, where), given.model or document.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("names no model", where=where, fix=f"Give {option('model')}.")
    found.rows += steps_logged(document, model, _machine(stated, given, where), where)
    loads = document.get("loads")
    results = [load for load in loads if VLLM.matches(load)] if isinstance(loads, list) else []
    if results:
        _add_run(found, VLLM.read(results, where).model_copy(update={"stated": stated, "model": model}), given, where)


def _add_run(found: Evidence, run: BenchmarkRun, given: GivenMachine, where: str) -> None:
    machine = _machine(run.stated, given, where)
    if given.model:
        run = as_model(run, given.model)
    if run.model is None:
        raise BadInput("names no model", where=where, fix=f"Give {option('model')}.")
    points = tuple(_whole_rounds(point) for point in run.points)
    changed = sum(point is not stated for point, stated in zip(points, run.points, strict=True))
    if changed:
        taken = f"throughput of {plural(changed, 'load')} taken from users ÷ answer time"
        note = f"{shorten(Path(where).name, 60)}: {taken}, as the window ended in the middle of a round"
        found.notes.append(note)
    found.rows += taught_by(run.model_copy(update={"points": points}), machine)


def _machine(stated: Stated, given: GivenMachine, where: str) -> MeasuredMachine:
    if given.engine is None and stated.engine and not _is_known(engine_named, stated.engine):
        fix = f"Say with {option('engine')} which of ours stands for it; its host's time is then fitted."
        raise BadInput(f"the engine '{shorten(stated.engine)}' is none of ours", where=where, fix=fix)
    machine = machine_of(stated, given)
    if machine is None:
        raise BadInput("does not say which GPU it ran on", where=where, fix=f"Give {option('gpu')}.")
    return machine


def taught_by(run: BenchmarkRun, machine: MeasuredMachine) -> list[Measurement]:
    """Return every figure of a run that teaches or judges: all but those that one request decides."""
    rows = measurements_of(run, machine)
    return [row for row in rows if row.statistic is not Statistic.p99 or (row.run.requests or 0) >= FEWEST_FOR_P99]


def _whole_rounds(point: LoadPoint) -> LoadPoint:
    """Return the point with its throughput by Little's law if a window after a warm-up counted too few answers."""
    took = point.e2e_s.mean if point.e2e_s else None
    if not took or not point.concurrency or point.failed or point.outside.requests < point.concurrency:
        return point
    on_their_way = point.requests_per_s * took
    if not CONTRADICTED * point.concurrency < on_their_way < ROUNDED * point.concurrency:
        return point
    more = point.concurrency / on_their_way
    rates = ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")
    return point.model_copy(update={name: getattr(point, name) * more for name in rates})


def _is_known(find: Callable[[str], object], name: str) -> bool:
    with suppress(TokonomicsError):
        return bool(find(name))
    return False
