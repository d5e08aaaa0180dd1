"""``tokonomics meter files``: the dashboard and the alerts that read the meter's own metrics."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.report.terminal import say, show_json


def files(
    directory: Annotated[Path, typer.Argument(help="Where to write them; made if it is not there.", metavar="DIR")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that were changed.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A Grafana dashboard, Prometheus rules with alerts, and a scrape configuration, for `meter --listen`.

    \b
    Examples:
      tokonomics meter files monitoring
      tokonomics meter files /etc/prometheus --overwrite
    """
    from tokonomics.measure.meter.ready_files import write_files

    written = write_files(directory, overwrite)
    if json:
        show_json({"written": [str(path) for path in written]})
        return
    for path in written:
        typer.echo(f"{path} saved")
    say("Import the dashboard in Grafana, and load the rules with rule_files in prometheus.yml.")
