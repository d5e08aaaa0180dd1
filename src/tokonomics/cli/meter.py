"""Run ``tokonomics meter``: show what the tokens of live servers cost now."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep as pause
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tokonomics.cli.commands import command_of, help_of, values_of, with_options
from tokonomics.errors import BadInput, flag, option, shorten, spelled
from tokonomics.measure.meter.engines import ENGINES
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import parameters_of
from tokonomics.questions.requests.run import EveryWeek, MeterExportRequest, MeterReportRequest, MeterWatchRequest
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


def report(**given: Any) -> None:
    """Answer once, or write a report of every week."""
    weekly = EveryWeek.checked(values_of(parameters_of(EveryWeek), given))
    once = {name: value for name, value in given.items() if name not in EveryWeek.model_fields}
    if weekly.every is None:
        if weekly.send is not None:
            raise BadInput("is for weekly reports", field="send", fix=f"Add {option('every', 'week')}.")
        command_of(METER_REPORT)(**once)
        return
    if weekly.every.strip().lower() != "week":
        raise BadInput(f"'{shorten(weekly.every)}' is no period of reports", field="every", fix="Valid: week.")
    for name in ("until", "csv", "chart"):
        if given.get(name):
            raise BadInput(f"cannot be combined with {option('every', 'week')}", field=name)
    if given.get("html") is None:
        fix = f"Add {option('html', 'report.html')}: the files are then named report-2026-11-09.html and so on."
        raise BadInput("needs a file name", field="every", fix=fix)
    _weekly(
        MeterReportRequest.checked(values_of(METER_REPORT.parameters, once)), weekly.send, Path(given["html"]), given
    )


def _weekly(request: MeterReportRequest, command: str | None, path: Path, given: dict[str, Any]) -> None:
    """Write and send the reports until interrupted."""

    from tokonomics.measure.meter.readings import SystemClock
    from tokonomics.operate.weekly import WeeklyReport, WeeklyReports, keep_reporting, sender
    from tokonomics.questions.meter import is_metered
    from tokonomics.questions.scenario_text import command_of as command_typed
    from tokonomics.report.answer import describe
    from tokonomics.report.html import check_html_path, save_report

    check_html_path(path)

    def write(since: float, until: float, file: Path) -> bool:
        if not is_metered(request, since, until):
            return False
        days = {
            name: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for name, at in (("since", since), ("until", until))
        }
        asked = MeterReportRequest.checked(dict(request.given()) | days)
        with Terminal() as terminal:
            result = METER_REPORT.answer(asked, terminal)
        save_report(file, describe(METER_REPORT, result, asked), command_typed(METER_REPORT, asked))
        say(f"report saved to {file}")
        return True

    def show(done: WeeklyReport) -> None:
        if given.get("as_json"):
            typer.echo(done.model_dump_json())

    reports = WeeklyReports(path, write, say, sender(command) if command is not None else None)
    keep_reporting(reports, SystemClock(), pause, show)


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
_REPORTED = {**METER_REPORT.keys, **parameters_of(EveryWeek)}
app.command("report")(with_options(report, _REPORTED, help_of(METER_REPORT.summary, MeterReportRequest)))
_EXPORTED = {**parameters_of(MeterExportRequest), "as_json": parameters_of(Shown)["as_json"]}
app.command("export")(with_options(export, _EXPORTED, help_of(_EXPORT, MeterExportRequest)))
app.command("files")(files)
