"""Answer how good predictions are, and how the user's machine differs: ``validate``, ``calibrate``, ``probe``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokonomics.catalog.gpus import find_gpu
from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.files import check_path
from tokonomics.measure.calibrate import Calibrated
from tokonomics.measure.calibrate import calibrate as fit
from tokonomics.measure.engine_log import is_engine_log, read_engine_log
from tokonomics.measure.evidence import read_evidence
from tokonomics.measure.measurements import Measurement, parse_json, read_measurements, read_text
from tokonomics.measure.probe.fit_profile import is_timings, profile_from
from tokonomics.measure.probe.timings import PROBE, SECONDS, measure, why_not
from tokonomics.measure.replay import Replay, replay
from tokonomics.measure.validate import Validation
from tokonomics.measure.validate import validate as score
from tokonomics.physics.calibration import Profile, using, write_profile
from tokonomics.questions.bench import paths_of, require_range, said_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import CalibrateRequest, ProbeRequest, ValidateRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.serving import say_if_compiling
from tokonomics.types import today
from tokonomics.units import percent, plural


class CalibrateResult(Result, Calibrated):
    """A profile, what was learned about each server, and its errors on held-out loads."""

    ROWS = "groups"

    saved_to: Any = beside()  # the file that holds the profile; None if nothing was saved

    def headline(self) -> str:
        learned = plural(len(self.profile.corrections), "correction")
        return f"{self.profile.name}: {learned} from {plural(len(self.groups), 'server')}"


class ProbeResult(Result):
    """A profile from the kernels of one GPU; the saved file also holds the timings."""

    profile: Profile
    saved_to: Any = beside()

    def plain(self) -> Any:
        return self.profile.model_dump(mode="json")

    def headline(self) -> str:
        return f"{', '.join(self.profile.gpus)}: kernels timed on {self.profile.made}"


class ValidateResult(Result, Validation):
    """Errors of predictions, by group, and what could not be predicted."""

    predictions: Any = beside()

    def headline(self) -> str:
        if self.overall is None:
            return f"none of {plural(self.rows, 'row')} could be predicted"
        return (
            f"{self.predicted:,} of {plural(self.rows, 'row')} predicted: median error "
            f"{percent(math.expm1(self.overall.median_abs_log_error))}, "
            f"{percent(self.overall.inside_interval)} inside the interval"
        )


class ReplayResult(Result, Replay):
    """The runs of an engine's log, each served again in the simulator."""

    ROWS = "runs"

    def headline(self) -> str:
        return f"{self.model} on {self.gpu}: {plural(len(self.runs), 'run')} replayed"


def calibrate(request: CalibrateRequest, listener: Listener = SILENT) -> CalibrateResult:
    """Make a profile of the machine from measurements on it."""
    require_range("hold_out", request.hold_out, 0.1, 0.5)
    out = Path(request.out) if request.out else None
    if out:
        check_path(out, "out", (".json",))
    said = said_of(request, request.model)
    paths = paths_of(request.files)
    command = "tokonomics calibrate " + " ".join(path.name for path in paths)
    listener.doing("simulating the loads")
    with using(None):
        evidence = read_evidence(paths, said, command)
        if any(row.engine for row in evidence.rows):
            say_if_compiling(listener)
        made = fit(evidence, made=today(), command=command, name=request.name or "", hold_out=request.hold_out)
    kept = bool(made.profile.corrections or made.profile.kernels)
    if out and kept:
        write_profile(made.profile, out)
    shown = made.model_copy(update={"profile": made.profile.model_copy(update={"timings": {}})})
    return CalibrateResult(**dict(shown), saved_to=str(out) if out and kept else None)


def validate(request: ValidateRequest, listener: Listener = SILENT) -> ValidateResult | ReplayResult:
    """Score predictions row by row, or replay the log of an engine run by run."""
    file, split = Path(request.files), request.split
    if is_engine_log(file):
        return _replay(file, request)
    if request.fit_on is not None or request.steps_from is not None:
        raise BadInput(
            "only the log of an engine has steps to fit",
            field="fit_on" if request.fit_on is not None else "steps_from",
            fix="The format: docs/validate.md.",
        )
    rows = read_measurements(file)
    splits = {row.split for row in rows if row.split}
    if split is not None and split not in splits:
        raise UnknownName("split", split, splits, fix=f"The file has: {', '.join(sorted(splits)) or 'none'}.")
    chosen = [row for row in rows if split is None or row.split == split]
    if request.visited_experts is not None:
        said = {"visited_experts": request.visited_experts}
        chosen = [row.model_copy(update=said) if isinstance(row, Measurement) else row for row in chosen]
    found, predictions = score(chosen)
    return ValidateResult(**dict(found), predictions=predictions)


def _replay(file: Path, request: ValidateRequest) -> ReplayResult:
    if request.split is not None:
        raise BadInput("an engine's log has no splits", field="split")
    names = request.fit_on
    patterns = [name.strip() for name in names.split(",") if name.strip()] if names is not None else None
    steps_from = Path(request.steps_from) if request.steps_from else None
    source = read_engine_log(steps_from) if steps_from else None
    return ReplayResult(**dict(replay(read_engine_log(file), str(file), patterns, source, str(steps_from))))


def probe(request: ProbeRequest, listener: Listener = SILENT) -> ProbeResult:
    """Time the kernels and save a profile that every prediction can use."""
    out = Path(request.out)
    timings = Path(request.timings) if request.timings else None
    check_path(out, "out", (".json",))
    if request.gpu is not None:
        find_gpu(request.gpu)
    with using(None):
        found = read_timings(timings) if timings else _measure(request.quick, listener)
        how = f" --from {timings.name}" if timings else " --quick" * request.quick
        made = profile_from(found, f"tokonomics probe{how}", str(timings or "the probe"), request.gpu)
    write_profile(made, out)
    return ProbeResult(profile=made.model_copy(update={"timings": {}}), saved_to=str(out))


def read_timings(path: Path) -> Mapping[str, Any]:
    """Read the timings of a probe that ran elsewhere."""
    where = shorten(str(path), 200)
    found = parse_json(read_text(path), where)
    if not is_timings(found):
        raise BadInput(
            "holds no timings of a probe",
            where=where,
            fix="Make them on the machine with the GPU: python -m tokonomics.measure.probe.timings timings.json",
        )
    return found  # type: ignore[no-any-return]


def _measure(quick: bool, listener: Listener) -> Mapping[str, Any]:
    """Time the kernels of this machine, and say what is being timed."""
    missing = why_not()
    if missing:
        raise BadInput(
            f"this machine cannot be probed: {missing}",
            fix="Run it where the GPU is, with PyTorch installed. Timings need nothing else: there, python -m "
            f"tokonomics.measure.probe.timings timings.json; here, give {option('timings', 'timings.json')}.",
        )

    listener.doing("warming up")
    found = measure(
        "cuda",
        quick,
        list(PROBE),
        SECONDS / 3 if quick else SECONDS,
        lambda done: None,
        lambda says, rows, left: listener.doing(f"{says}: {rows:,} timed, at most {left:.0f} s left"),
    )
    for section, why in found["failures"].items():
        listener.note(f"{section} failed and is left out: {why}")
    return found
