"""``tokonomics validate``: predictions against measurements."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.output import Json, show, show_json


def validate(
    file: Annotated[Path, typer.Argument(help="A results table (csv, csv.gz) or a JSON of step times.")],
    split: Annotated[str | None, typer.Option(help="Only rows of this split, where the table has one.")] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Save predicted against measured: .svg, .png, .html, .json.")
    ] = None,
    json: Json = False,
) -> None:
    """Score predictions against a file of measurements: errors, bias, coverage, ranking; no row dropped silently.

    The format, with a sample to start from: docs/validate.md.

    \b
    Examples:
      tokonomics validate benchmarks/data/h200_steps.json
      tokonomics validate published.csv.gz --split dev --chart scatter.svg
      tokonomics validate results.csv --json
    """
    from tokonomics.errors import UnknownName
    from tokonomics.measure.measurements import read_measurements
    from tokonomics.measure.validate import validate as score
    from tokonomics.report.charts import check_chart_path, save_chart, validation_chart
    from tokonomics.report.validate_view import validate_view

    if chart:
        check_chart_path(chart)
    rows = read_measurements(file)
    splits = {row.split for row in rows if row.split}
    if split is not None and split not in splits:
        raise UnknownName("split", split, splits, fix=f"The file has: {', '.join(sorted(splits)) or 'none'}.")
    result, predictions = score([row for row in rows if split is None or row.split == split])
    if chart and predictions:
        save_chart(validation_chart(predictions), chart)
        typer.echo(f"chart saved to {chart}", err=True)
    show_json(result) if json else show(validate_view(result))
