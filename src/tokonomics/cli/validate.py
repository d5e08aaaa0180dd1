"""``tokonomics validate``: predictions against measurements."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, check_files, give
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile


def validate(
    file: Annotated[
        Path, typer.Argument(help="A results table (csv, csv.gz), a JSON of step times, or an engine's log.")
    ],
    split: Annotated[str | None, typer.Option(help="Only rows of this split, where the table has one.")] = None,
    chart: ChartFile = None,
    fit_on: Annotated[
        str | None, typer.Option(help="Of an engine's log: runs to fit step times on, e.g. 'closed-*,poisson-16'.")
    ] = None,
    steps_from: Annotated[
        Path | None, typer.Option(help="Another log of the same engine to fit step times on.")
    ] = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Score predictions against a file of measurements: errors, bias, coverage, ranking; no row dropped silently.

    The log of an engine (every request and step) is replayed in the simulator instead, run by run.
    The formats, with samples to start from: docs/validate.md.

    \b
    Examples:
      tokonomics validate benchmarks/data/h200_steps.json
      tokonomics validate published.csv.gz --split dev --chart scatter.svg
      tokonomics validate results.csv --json
      tokonomics validate benchmarks/data/h200_engine.json --fit-on 'closed-*,poisson-16'
    """
    from tokonomics.errors import BadInput, UnknownName
    from tokonomics.measure.engine_log import is_engine_log
    from tokonomics.measure.measurements import read_measurements
    from tokonomics.measure.validate import validate as score
    from tokonomics.report.charts import validation_chart
    from tokonomics.report.validate_view import validate_view

    if is_engine_log(file):
        if chart or split is not None:
            raise BadInput("an engine's log has no splits and no chart", where="--chart" if chart else "--split")
        _replay(file, fit_on, steps_from, json)
        return
    if fit_on is not None or steps_from is not None:
        raise BadInput(
            "only the log of an engine has steps to fit",
            where="--fit-on" if fit_on is not None else "--steps-from",
            fix="The format: docs/validate.md.",
        )
    check_files(chart)
    rows = read_measurements(file)
    splits = {row.split for row in rows if row.split}
    if split is not None and split not in splits:
        raise UnknownName("split", split, splits, fix=f"The file has: {', '.join(sorted(splits)) or 'none'}.")
    result, predictions = score([row for row in rows if split is None or row.split == split])
    charts = {"Predicted over measured": lambda: validation_chart(predictions)} if predictions else {}
    give(
        Answer(result, lambda: validate_view(result), f"Predictions against {file.name}", charts),
        json=json,
        chart=chart,
    )


def _replay(file: Path, fit_on: str | None, steps_from: Path | None, json: bool) -> None:
    from tokonomics.measure.engine_log import read_engine_log
    from tokonomics.measure.replay import replay
    from tokonomics.report.replay_view import replay_view

    patterns = [each.strip() for each in fit_on.split(",") if each.strip()] if fit_on is not None else None
    source = read_engine_log(steps_from) if steps_from else None
    result = replay(read_engine_log(file), str(file), patterns, source, str(steps_from))
    give(Answer(result, lambda: replay_view(result), f"Replay of {file.name}"), json=json)
