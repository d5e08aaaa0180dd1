"""Run the command line: verbs by group, and the one place where an error becomes a message and an exit code.

Only the typed verb is built; the others are listed by their summaries, so that help is quick.
"""

import gc
import io
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from tokonomics import __version__
from tokonomics.errors import TokonomicsError, flag
from tokonomics.questions.verbs import BUY, KNOWN, QUESTIONS, RUN, TRAFFIC, VERBS, Verb

_INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it: 128 + SIGINT
_COMPLETED = "_TOKONOMICS_COMPLETE"
"""Set by the scripts that ``tokonomics --install-completion`` installs; Typer answers them."""


@dataclass(frozen=True)
class Action:
    """A command that does something instead of answering a question."""

    group: str
    summary: str
    home: str  # ``module:attribute``: a function, or a Typer application of several

    def load(self) -> Any:
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)


ACTIONS: dict[str, Action] = {
    "init": Action(BUY, "Write a scenario file to begin with.", "tokonomics.cli.commands:init"),
    "sweep": Action(BUY, "Ask a verb at many points of a scenario.", "tokonomics.sweep.sweep:sweep"),
    "meter": Action(RUN, "What the tokens of live servers cost, idle time included.", "tokonomics.cli.meter:app"),
    "twin": Action(RUN, "Predict a live server's next window, and say what changed.", "tokonomics.cli.twin:app"),
    "web": Action(RUN, "Open the page: the same answers, with sliders and charts.", "tokonomics.web.serve:web"),
    "mcp": Action(RUN, "Answer agents over the Model Context Protocol.", "tokonomics.mcp.serve:mcp"),
}


class _Verbs(TyperGroup):
    """Show help as one line for each verb, short enough for a screen."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = ["Usage: tokonomics VERB [OPTIONS]", "", self.help or ""]
        for group in (BUY, TRAFFIC, RUN, KNOWN):
            listed = {name: verb for name, verb in (VERBS | ACTIONS).items() if verb.group == group}
            lines += ["", group, *(f"  {name:11}{verb.summary}" for name, verb in listed.items())]
        lines += [
            "",
            "Options: --version, --doctor, --install-completion, --show-completion, --help",
            self.epilog or "",
        ]
        formatter.write("\n".join(lines) + "\n")


def application(only: str | None = None) -> typer.Typer:
    """Return the application with one verb complete and the others by name; all complete if ``only`` is None."""
    app = typer.Typer(
        name="tokonomics",
        cls=_Verbs,
        help="What every million LLM tokens costs: before you buy GPUs, while you run them,\nand what to change.",
        epilog="Start with:  tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for verb in VERBS.values():
        if only in (None, verb.name):
            _add_command(app, verb, verb.name)
        else:
            app.command(verb.name, help=verb.summary)(_listed)
    for name, action in ACTIONS.items():
        if only not in (None, name):
            app.command(name, help=action.summary)(_listed)
        elif isinstance(loaded := action.load(), typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name)(loaded)
    for verb in QUESTIONS.values():
        group, _, name = verb.name.rpartition(" ")
        if not verb.by or only not in (None, group or name):
            continue
        if group:
            named = typer.Typer(callback=_listed, help=verb.summary, no_args_is_help=True)
            app.add_typer(named, name=group, hidden=True)
        _add_command(named if group else app, verb, name, hidden=True)
    return app


def _add_command(app: typer.Typer, verb: Verb, name: str, hidden: bool = False) -> None:
    from tokonomics.cli.commands import ScenarioCommand, VerbCommand, command_of, more_inputs

    kind = ScenarioCommand if verb.scenario else VerbCommand
    app.command(name, cls=kind, hidden=hidden, epilog=more_inputs(verb))(command_of(verb))


def _listed() -> None:
    """Stand in for a verb that was not typed."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokonomics {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
    doctor: bool = typer.Option(False, "--doctor", help="What is installed, found and out of date."),
) -> None:
    pass


def run() -> None:
    """Run a verb; what a person got wrong becomes one message and exit code 2."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or ≤ shows ? instead of failing
    typed = _typed()
    typed[:1] = ["doctor"] if typed[:1] == ["--doctor"] else typed[:1]
    app = application(typed[0] if typed else "")
    try:
        try:
            app(typed, prog_name="tokonomics")  # not "python -m tokonomics": completion is made for that name
        finally:
            sys.stdout.flush()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer and Rich exit this way themselves
            _leave()
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
    except BrokenPipeError:
        _leave()
    except OSError as error:
        _complain(f"cannot write the output: {error.strerror or error}")
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - what could not be written is not tried again at exit
        sys.exit(1)


def _typed() -> list[str]:
    """Return the words of the command line, or of the line to complete if a shell asks for completion."""
    if _COMPLETED not in os.environ:
        return sys.argv[1:]
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _plain() -> bool:
    """Tell whether only plain text is wanted: colours are off, which leaves out bold too, or the terminal has none."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def _open_closed() -> None:
    """Send streams that were closed before the start (``>&-``) to nowhere, so that files are still saved."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process lasts
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def main() -> None:
    # Imports create objects that stay, and a plan next to no garbage: three scans of 100,000 take 60 ms of it.
    gc.set_threshold(500_000, 20, 20)
    if _plain():
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # without it, help and errors keep their bold
    try:
        run()
    finally:
        # They go with the process: scanning them once more at its end takes a tenth of a plan's time.
        gc.freeze()


def _leave() -> NoReturn:
    """Exit quietly after the reader of a pipe left (head, less), with the exit code of programs that SIGPIPE ends.

    The signal itself stays ignored: it would end the page's server with the first browser that leaves.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(141)


def _show_example(mistake: BaseException | None) -> None:
    """Print the first example of the verb's help after "Missing option …", ready to type."""
    # MissingParameter is not a public name of Typer, but its base class is.
    if not isinstance(mistake, typer.BadParameter) or type(mistake).__name__ != "MissingParameter" or not mistake.ctx:
        return
    _, _, examples = (mistake.ctx.command.help or "").partition("Examples:")
    if examples.strip():
        typer.echo(f"Such as: {examples.strip().splitlines()[0]}", err=True)


def _complain(message: str) -> None:
    typer.echo("error: " if _plain() else typer.style("error: ", fg="red", bold=True), err=True, nl=False)
    typer.echo(message, err=True)
