"""Run ``tokonomics twin``: a meter that says what the next window of each server will be like, and what changed."""

from typing import Any

import typer

from tokonomics.cli.commands import command_of, help_of, values_of, with_options
from tokonomics.cli.meter import JSON_EACH, UrlsOrVerb, each_shown
from tokonomics.questions.request import parameters_of
from tokonomics.questions.requests.run import TwinRequest
from tokonomics.questions.verbs import TWIN_REPORT
from tokonomics.report.terminal import say, show, show_json

SUMMARY = "Predict a live server's next window, and say what changed."
_WATCH = "What the next window of these servers will be like, and how good that was the last time, until Ctrl-C."

app = typer.Typer(cls=UrlsOrVerb, no_args_is_help=True, help=help_of(SUMMARY, TwinRequest))


def watch(**given: Any) -> None:
    """Run until stopped, showing each interval."""
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.live_meter import LATE_S
    from tokonomics.measure.meter.session import meter_servers
    from tokonomics.questions.meter import ledger_of
    from tokonomics.questions.twin import LiveTwin, twin_asked
    from tokonomics.report import twin_view

    request = TwinRequest.checked(values_of(parameters_of(TwinRequest), given))
    json = bool(given.get("as_json"))
    settings, setup = twin_asked(request)
    if setup is None:
        say("nothing is simulated, as no model is named: servers are expected to go on as they did")
    path = ledger_of(request)
    with Ledger(path) as book, each_shown(json, request.once, twin_view.live, twin_view.line) as show_twin:
        twin = LiveTwin(book, setup, settings.window_s, LATE_S if settings.prometheus else settings.every_s)
        last = meter_servers(settings, book, lambda state: show_twin(twin.shown(state)), say, twin.beside)
        shown = twin.shown(last)
    if request.once and json:
        show_json(shown)
    elif not json:
        from tokonomics.report.blocks import sections

        show(sections(twin_view.live(shown)))
        more = f" --ledger {path}" if request.ledger else ""
        say(f"report:  tokonomics twin report --since 1d{more}")


_OPTIONS = {**parameters_of(TwinRequest), "as_json": JSON_EACH}
app.command("watch")(with_options(watch, _OPTIONS, help_of(_WATCH, TwinRequest)))
app.command("report")(command_of(TWIN_REPORT))
