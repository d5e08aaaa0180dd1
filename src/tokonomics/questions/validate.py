"""How good are predictions against a file of measurements?"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, UnknownName
from tokonomics.questions.inputs import Profiled
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Kind, Placement, Text, declared

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import ReplayResult, ValidateResult


class ValidateRequest(Profiled):
    """
    The log of an engine (every request and step) is replayed in the simulator instead, run by run.
    The formats, with samples to start from: docs/validate.md.

    Examples:
      tokonomics validate benchmarks/data/h200_steps.json
      tokonomics validate published.csv.gz --split dev --chart scatter.svg
      tokonomics validate results.csv --json
      tokonomics validate benchmarks/data/h200_engine.json --fit-on 'closed-*,poisson-16'
    """

    file: Text = declared(
        ...,
        "A results table (csv, csv.gz), a JSON of step times, or an engine's log.",
        place=Placement.FIRST,
        kind=Kind.FILE,
        example="results.csv",
    )
    split: Text | None = declared(None, "Only rows of this split, where the table has one.", example="dev")
    fit_on: Text | None = declared(
        None,
        "Of an engine's log: runs to fit step times on, e.g. 'closed-*,poisson-16'.",
        example="closed-*,poisson-16",
    )
    steps_from: Text | None = declared(
        None, "Another log of the same engine to fit step times on.", kind=Kind.FILE, example="log.json"
    )


def validate(request: ValidateRequest, listener: Listener = SILENT) -> "ValidateResult | ReplayResult":
    """Predictions scored row by row; the log of an engine replayed run by run."""
    from tokonomics.measure.engine_log import is_engine_log
    from tokonomics.measure.measurements import read_measurements
    from tokonomics.measure.validate import validate as score
    from tokonomics.questions.measured_results import ValidateResult

    file, split = Path(request.file), request.split
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
    found, predictions = score([row for row in rows if split is None or row.split == split])
    return ValidateResult(**dict(found), predictions=predictions)


def _replay(file: Path, request: ValidateRequest) -> "ReplayResult":
    from tokonomics.measure.engine_log import read_engine_log
    from tokonomics.measure.replay import replay
    from tokonomics.questions.measured_results import ReplayResult

    if request.split is not None:
        raise BadInput("an engine's log has no splits", field="split")
    names = request.fit_on
    patterns = [name.strip() for name in names.split(",") if name.strip()] if names is not None else None
    steps_from = Path(request.steps_from) if request.steps_from else None
    source = read_engine_log(steps_from) if steps_from else None
    return ReplayResult(**dict(replay(read_engine_log(file), str(file), patterns, source, str(steps_from))))
