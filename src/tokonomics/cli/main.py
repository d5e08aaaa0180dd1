"""The command line: verbs by group, and the one place where an error becomes a message and an exit code.

Only the verb that is typed is built; the others are listed by their summaries, so that help is quick.
"""

import gc
import io
import itertools
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import typer

from tokonomics import __version__
from tokonomics.errors import TokonomicsError, flag
from tokonomics.questions.verbs import BUY, KNOWN, RUN, VERBS

_INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 + SIGINT."""
_COMPLETED = "_TOKONOMICS_COMPLETE"
"""Set by the scripts that ``tokonomics --install-completion`` installs; Typer answers them."""


@dataclass(frozen=True)
class Action:
    """A command that does something instead of answering a question."""

    group: str
    summary: str
    home: str
    """``module:attribute``: a function, or a Typer application of several."""
    several: bool = False

    def load(self) -> Any:
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)


ACTIONS: dict[str, Action] = {
    "init": Action(BUY, "Write a scenario file to begin with: every input of every verb as a key, explained, with "
                   "values that work.", "tokonomics.cli.init:init"),
    "meter": Action(RUN, "What the tokens of live servers cost, from the counters that they expose; idle time "
                    "included.", "tokonomics.cli.meter:app", several=True),
    "prices": Action(KNOWN, "Keep the shipped GPU prices up to date.", "tokonomics.cli.prices:app", several=True),
    "sweep": Action(BUY, "Ask a verb at many points of a scenario; what is done is kept, and the same command goes on "
                    "from there.", "tokonomics.sweep.sweep:sweep"),
    "mcp": Action(RUN, "Answer agents over the Model Context Protocol: plan, fit, simulate, look up prices.",
                  "tokonomics.mcp.serve:mcp"),
    "web": Action(RUN, "Open the page: the same answers as here, with sliders, charts and links; on this machine "
                  "alone.", "tokonomics.web.serve:web"),
}  # fmt: skip


def application(only: str | None = None) -> typer.Typer:
    """The application with one verb whole and the others by name; whole in every verb where ``only`` is None."""
    app = typer.Typer(
        name="tokonomics",
        help="What every million LLM tokens costs: before you buy GPUs, while you run them, and what to change.",
        epilog="Start with:  tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for verb in VERBS.values():
        if only in (None, verb.name):
            from tokonomics.cli.commands import command_of
            from tokonomics.cli.scenario_command import ScenarioCommand

            kind = ScenarioCommand if verb.scenario else None
            app.command(verb.name, cls=kind, rich_help_panel=verb.group)(command_of(verb))
        else:
            app.command(verb.name, rich_help_panel=verb.group, help=verb.summary)(_listed)
    for name, action in ACTIONS.items():
        listed = only not in (None, name)
        if action.several:
            # Typer lists groups after commands: one that is only listed is a group as well.
            group = typer.Typer(help=action.summary) if listed else action.load()
            app.add_typer(group, name=name, rich_help_panel=action.group)
        elif listed:
            app.command(name, rich_help_panel=action.group, help=action.summary)(_listed)
        else:
            app.command(name, rich_help_panel=action.group)(action.load())
    return app


def _listed() -> None:
    """Stands for a verb that was not typed."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokonomics {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def run() -> None:
    """Run a verb; what a person got wrong becomes one message and exit code 2."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or ≤ shows ? instead of failing
    typed = _typed()
    app = application(typed[0] if typed else "")
    if not typed or not {"-h", "--help"}.isdisjoint(typed) or _COMPLETED in os.environ:
        _import_help()
    try:
        try:
            app(prog_name="tokonomics")  # not "python -m tokonomics": completion is made for that name
        finally:
            sys.stdout.flush()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer and Rich end so themselves
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
    """The words of the command line: those of the line that a shell completes, where it asks what to offer."""
    if _COMPLETED not in os.environ:
        return sys.argv[1:]
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _plain() -> bool:
    """Whether nothing but text is wanted: no colours, which leaves out bold as well, or a terminal without them."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def _open_closed() -> None:
    """A stream that was closed before the start (``>&-``) goes nowhere: what is saved is still saved."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process lasts
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def _import_help() -> None:
    """Load how Typer draws help without what it never draws here.

    It imports Markdown and tracebacks, whose parsers take a third of the time that ``tokonomics --help`` has.
    """
    unused = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    for module, name in unused.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, object)
    import_module("typer.rich_utils")
    for module in unused:
        del sys.modules[module]


def main() -> None:
    """Entry point of the ``tokonomics`` command."""
    # Imports make a million objects that stay: looking through them for garbage takes a tenth of the start.
    gc.set_threshold(100_000, 20, 20)
    if _plain():
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # without it, help and errors keep their bold
    try:
        run()
    finally:
        # They go with the process: looking through them once more at its end takes as long as a tenth of a plan.
        gc.freeze()


def _leave() -> NoReturn:
    """End quietly after a reader that left (head, less), with the exit code of programs that SIGPIPE ends.

    The signal itself stays ignored: it would end the page's server with the first browser that leaves.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(141)


def _show_example(mistake: BaseException | None) -> None:
    """After "Missing option …": what the verb's help says of it, and its first example, as it can be typed."""
    # MissingParameter is no public name of Typer; the class it extends is.
    if not isinstance(mistake, typer.BadParameter) or type(mistake).__name__ != "MissingParameter" or not mistake.ctx:
        return
    about, _, examples = (mistake.ctx.command.help or "").partition("Examples:")
    lines = [line.strip() for line in examples.strip().splitlines()]
    if lines:
        _, _, more = about.replace("\b", "").strip().partition("\n\n")
        typer.echo(more, err=True, nl=bool(more))
        rest = itertools.takewhile(lambda line: line and not line.startswith("tokonomics "), lines[1:])
        typer.echo(f"Such as: {' '.join(line.removesuffix(chr(92)).strip() for line in (lines[0], *rest))}", err=True)


def _complain(message: str) -> None:
    typer.echo("error: " if _plain() else typer.style("error: ", fg="red", bold=True), err=True, nl=False)
    typer.echo(message, err=True)
