"""The command line: verbs, and the one place where an error becomes a message and an exit code."""

import copy
import gc
import io
import itertools
import os
import signal
import sys

import typer

from tokonomics import __version__
from tokonomics.cli import (
    bench,
    breakeven,
    cache,
    calibrate,
    catalog,
    compare,
    completion,
    cost,
    diff,
    doctor,
    fit,
    fleet,
    imports,
    init,
    levers,
    meter,
    own_hardware,
    plan,
    predict,
    probe,
    simulate,
    tenants,
    trace,
    validate,
)
from tokonomics.cli.command_line import flag
from tokonomics.cli.scenario_file import ScenarioCommand
from tokonomics.errors import TokonomicsError

app = typer.Typer(
    name="tokonomics",
    help="What every million LLM tokens costs: before you buy GPUs, while you run them, and what to change.",
    epilog="Start with:  tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("plan", cls=ScenarioCommand)(plan.plan)
app.command("diff")(diff.diff)
app.command("init")(init.init)
app.command("fleet", cls=ScenarioCommand)(fleet.fleet)
app.command("fit", cls=ScenarioCommand)(fit.fit)
app.command("predict", cls=ScenarioCommand)(predict.predict)
app.command("curve", cls=ScenarioCommand)(predict.curve)
app.command("trace", cls=ScenarioCommand)(trace.trace)
app.command("simulate", cls=ScenarioCommand)(simulate.simulate)
app.command("capacity", cls=ScenarioCommand)(simulate.capacity)
app.command("cache", cls=ScenarioCommand)(cache.cache)
app.command("tenants", cls=ScenarioCommand)(tenants.tenants)
app.command("levers", cls=ScenarioCommand)(levers.levers)
app.command("stack", cls=ScenarioCommand)(levers.stack)
app.command("breakeven", cls=ScenarioCommand)(breakeven.breakeven)
app.command("own-hardware", cls=ScenarioCommand)(own_hardware.own_hardware)
app.command("compare", cls=ScenarioCommand)(compare.compare)
app.command("cost", cls=ScenarioCommand)(cost.cost)
app.command("bench")(bench.bench)
app.command("import")(imports.import_results)
app.command("probe")(probe.probe)
app.command("calibrate")(calibrate.calibrate)
app.command("models")(catalog.models)
app.command("gpus")(catalog.gpus)
app.command("offers", cls=ScenarioCommand)(catalog.offers)
app.command("apis")(catalog.apis)
app.command("validate")(validate.validate)
app.command("doctor")(doctor.doctor)
app.add_typer(meter.app, name="meter")
app.add_typer(catalog.prices, name="prices")


_INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokonomics {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def with_only(verb: str) -> typer.Typer:
    """The app as one verb needs it: building them all takes as long as importing Typer. All of it for other words."""
    commands = [each for each in app.registered_commands if each.name == verb]
    groups = [each for each in app.registered_groups if each.name == verb]
    if not commands and not groups:
        return app
    made = copy.copy(app)
    made.registered_commands, made.registered_groups = commands, groups
    return made


def run() -> None:
    """Run a verb; what a person got wrong becomes one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or ≤ shows ? instead of failing
    asked = with_only(sys.argv[1] if len(sys.argv) > 1 else "")
    if completion.VARIABLE in os.environ:
        completion.hook(app)
        asked = app
    try:
        try:
            asked(prog_name="tokonomics")  # not "python -m tokonomics": completion is made for that name
        finally:
            sys.stdout.flush()
    except SystemExit as leaving:
        if leaving.code == _INTERRUPTED:
            typer.echo("interrupted", err=True)
        _show_example(leaving.__context__)
        raise
    except TokonomicsError as error:
        _complain(error.message(flag))
        sys.exit(2)
    except MemoryError:
        _complain("there is not enough memory for this\n  Ask for less: fewer requests, replicas or rows.")
        sys.exit(1)
    except OSError as error:
        _complain(f"cannot write the output: {error.strerror or error}")
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - what could not be written is not tried again at exit
        sys.exit(1)


def main() -> None:
    """Entry point of the ``tokonomics`` command: a reader that leaves (head, less) ends it quietly."""
    # Imports make a million objects that stay: looking through them for garbage takes a tenth of the start.
    gc.set_threshold(100_000, 20, 20)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    run()


def _show_example(mistake: BaseException | None) -> None:
    """After "Missing option …": the first example of the verb's help, as it can be typed."""
    # MissingParameter is no public name of Typer; the class it extends is.
    if not isinstance(mistake, typer.BadParameter) or type(mistake).__name__ != "MissingParameter" or not mistake.ctx:
        return
    _, _, examples = (mistake.ctx.command.help or "").partition("Examples:")
    lines = [line.strip() for line in examples.strip().splitlines()]
    if lines:
        more = itertools.takewhile(lambda line: line and not line.startswith("tokonomics "), lines[1:])
        typer.echo(f"Such as: {' '.join(line.removesuffix(chr(92)).strip() for line in (lines[0], *more))}", err=True)


def _complain(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)
