"""The command line: verbs, and the one place where an error becomes a message and an exit code."""

import os
import sys

import typer

from tokonomics import __version__
from tokonomics.cli import catalog, cost, fit, plan

app = typer.Typer(
    name="tokonomics",
    help="What every million LLM tokens costs: before you buy GPUs, while you run them, and what to change.",
    epilog="Start with:  tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("plan")(plan.plan)
app.command("fit")(fit.fit)
app.command("cost")(cost.cost)
app.command("models")(catalog.models)
app.command("gpus")(catalog.gpus)
app.command("offers")(catalog.offers)
app.command("apis")(catalog.apis)
app.add_typer(catalog.prices, name="prices")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokonomics {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def run() -> None:
    """Entry point of the ``tokonomics`` command."""
    try:
        app()
    except BrokenPipeError:  # the reader (head, less) left: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        from tokonomics.errors import TokonomicsError

        if not isinstance(error, TokonomicsError):
            raise
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(2)
