"""Run ``tokonomics meter``: show what the tokens of live servers cost now."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tokonomics.cli.commands import command_of, help_of, values_of, with_options
from tokonomics.errors import flag, option, shorten, spelled
from tokonomics.measure.meter.engines import ENGINES
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import parameters_of
from tokonomics.questions.requests.run import MeterExportRequest, MeterWatchRequest
from tokonomics.questions.verbs import METER_REPORT
from tokonomics.report.terminal import Terminal, console, say, show, show_json

if TYPE_CHECKING:
    from tokonomics.measure.meter.session import Show
    from tokonomics.report.blocks import View

_WATCH = "What the tokens of these servers cost now, this hour and today, until Ctrl-C."
*_FIRST, _LAST = (words.title for words in ENGINES)
_READ = f"{', '.join(_FIRST)} and {_LAST}"
_EXPORT = "What tokens have cost, for LiteLLM, FinOps tools (FOCUS 1.2), Prometheus or a spreadsheet."


class UrlsOrVerb(TyperGroup):
    """Read ``meter http://…`` as ``meter watch http://…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["watch", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Add the options of ``watch``, which are those of ``meter URL``."""
        own, watched = self.params, self.commands["watch"].params
        self.params = [*watched, *own]
        try:
            super().format_help(ctx, formatter)
        finally:
            self.params = own


app = typer.Typer(
    cls=UrlsOrVerb,
    no_args_is_help=True,
    help=f"""What the tokens of live servers cost, idle time included.

    Reads the counters that {_READ} expose. Every interval goes to a ledger, which survives crashes of the
    meter and restarts of the servers without losing or inventing a token. How it counts: docs/meter.md.

    \b
    Examples:
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49
      tokonomics meter http://gpu1:8000 http://gpu2:8000 --gpu H100 --gpus 2 --plan plan.json
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49 --once --every 10s --json
      tokonomics meter --prometheus http://prometheus:9090 --query 'namespace="prod"' --gpu H100 --listen 9464
      tokonomics meter report --since 7d --by model,day --chart week.png
      tokonomics meter export litellm --since 30d > prices.json
    """,
)


def watch(**given: Any) -> None:
    """Meter until stopped, showing each interval."""
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.session import meter_servers
    from tokonomics.questions.meter import asked, ledger_of

    request = MeterWatchRequest.checked(values_of(parameters_of(MeterWatchRequest), given))
    json = bool(given.get("as_json"))
    checked = asked(request)
    path = ledger_of(request)
    with Ledger(path) as book, _shown(json, request.once) as show_state:
        last = meter_servers(checked, book, show_state, say=say)
    if request.once and json:
        show_json(last)
    elif not json:
        from tokonomics.report.blocks import sections
        from tokonomics.report.meter_view import end, live

        show(sections(live(last) if request.once else end(last)))
        more = f" --ledger {path}" if request.ledger else ""
        say(f"report:  tokonomics meter report --since 1d --by model,hour{more}")


def _shown(json: bool, once: bool) -> "AbstractContextManager[Show]":
    from tokonomics.report import meter_view

    return each_shown(json, once, meter_view.live, meter_view.line)


@contextmanager
def each_shown(
    json: bool, once: bool, live: Callable[[Any], "View"], line: Callable[[Any], str]
) -> Iterator[Callable[[Any], None]]:
    """Yield the function that shows each interval: redrawn on a terminal, a line in a pipe, an object as JSON."""
    if once:
        yield lambda state: None
        return
    if json:
        yield lambda state: typer.echo(state.model_dump_json())
        return
    screen = console()
    if not screen.is_terminal:
        yield lambda state: typer.echo(spelled(line(state), flag))
        return
    from rich.live import Live

    from tokonomics.report.blocks import sections
    from tokonomics.report.terminal import renderable

    with Live(console=screen, auto_refresh=False, transient=True) as shown:
        yield lambda state: shown.update(renderable(sections(live(state))), refresh=True)


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
    from tokonomics.measure.meter.exposition import write_files

    written = write_files(directory, overwrite)
    if json:
        show_json({"written": [str(path) for path in written]})
        return
    for path in written:
        typer.echo(f"{path} saved")
    say("Import the dashboard in Grafana, and load the rules with rule_files in prometheus.yml.")


def export(**given: Any) -> None:
    """Print or save what tokens cost in another tool's format."""
    from tokonomics.files import write_text
    from tokonomics.measure.meter.export import text_of_export
    from tokonomics.questions.meter import export_format, meter_export
    from tokonomics.report.meter_view import export_line

    request = MeterExportRequest.checked(values_of(parameters_of(MeterExportRequest), given))
    form = export_format(request.format)
    with Terminal() as terminal:
        found = meter_export(request, terminal)
    text = text_of_export(found, form)
    if request.out is not None:
        write_text(Path(request.out), text, option("out", shorten(request.out)))
        say(f"{request.out} saved")
    if given.get("as_json"):
        show_json(found)
    elif request.out is None:
        typer.echo(text, nl=False)
    say(export_line(found))


JSON_EACH = replace(parameters_of(Shown)["as_json"], help="One JSON object an interval, or the last with --once.")
_OPTIONS = {**parameters_of(MeterWatchRequest), "as_json": JSON_EACH}
app.command("watch")(with_options(watch, _OPTIONS, help_of(_WATCH, MeterWatchRequest)))
app.command("report")(command_of(METER_REPORT))
_EXPORTED = {**parameters_of(MeterExportRequest), "as_json": parameters_of(Shown)["as_json"]}
app.command("export")(with_options(export, _EXPORTED, help_of(_EXPORT, MeterExportRequest)))
app.command("files")(files)
