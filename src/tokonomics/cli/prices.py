"""``tokonomics prices``: keep the shipped GPU prices up to date."""

from typing import Annotated

import typer

from tokonomics.report.terminal import show, show_json

app = typer.Typer(help="Keep the shipped GPU prices up to date.", no_args_is_help=True)


@app.callback()
def _prices() -> None:
    pass  # without a callback Typer would run a single command in place of the group


@app.command("refresh")
def refresh(
    source: Annotated[
        str, typer.Option(help="skypilot (public catalogue files) or gpuhunt (extra \\[live]).")
    ] = "skypilot",
    url: Annotated[str | None, typer.Option(help="Where the catalogue files are, instead of the public place.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fetch current GPU prices from the network; the old ones stay where a provider fails.

    \b
    Examples:
      tokonomics prices refresh
      tokonomics prices refresh --provider aws,gcp
      tokonomics prices refresh --source gpuhunt
    """
    from tokonomics.catalog.refresh import refresh as fetch
    from tokonomics.planner.parsing import listed
    from tokonomics.report.blocks import sections
    from tokonomics.report.catalog_view import refreshed

    result = fetch(source=source, url=url, providers=listed(provider, "provider"))
    show_json(result) if json else show(sections(refreshed(result)))
    if result.path is None:
        raise typer.Exit(1)
