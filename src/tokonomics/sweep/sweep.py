"""Run ``tokonomics sweep``: many answers at once, over a grid or at random, on all cores or a cluster; resumable."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.memory_budget import can_limit_memory
from tokonomics.questions.result import Result
from tokonomics.questions.scenario import SWEPT_UNASKED, swept_keys
from tokonomics.questions.scenario_text import command_line
from tokonomics.questions.verbs import scenario_verbs
from tokonomics.report.answer import Answer
from tokonomics.report.terminal import check_files, give, say, show, show_json

if TYPE_CHECKING:
    from tokonomics.sweep.study import Sweep


class SweepResult(Result):
    """The best points, and what each swept key changes."""

    document: dict[str, Any]
    kept: bool

    @property
    def is_found(self) -> bool:
        return self.kept

    def plain(self) -> Any:
        return self.document


_INTERRUPTED = 130  # the exit code after Ctrl+C
_FILE = "<path>"


def _swept(ctx: typer.Context) -> list[str]:
    """Complete ``--over`` in a shell with the keys of the chosen verb."""
    asked = ctx.params.get("verb")
    keys = [key for verb in ([asked] if asked in scenario_verbs() else SWEPT_UNASKED) for key in swept_keys(verb)]
    return [f"{key}=" for key in dict.fromkeys(keys)]


def sweep(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What stays the same in every point.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="A key of the scenario and its values: gpu=H100,H200; with --random also rate=1..50:log.",
            autocompletion=_swept,
        ),
    ] = None,
    verb: Annotated[
        str | None,
        typer.Option(
            help="What is asked.",
            show_default="the first of plan, simulate, capacity with all these keys",
            autocompletion=scenario_verbs,
        ),
    ] = None,
    random: Annotated[int | None, typer.Option(min=1, help="Draw so many points instead of the whole grid.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --random.")] = 0,
    into: Annotated[
        Path | None, typer.Option(help="The folder for the results.", show_default="SCENARIO.sweep beside it")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Workers.", show_default="one for each core")] = None,
    memory: Annotated[
        float | None, typer.Option(help="GB that one worker may take.", show_default="its share of this machine")
    ] = None,
    limit: Annotated[str, typer.Option(help="The longest one point may take.")] = "300s",
    ray: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address (extra ray): auto, or 10.0.0.1:6379.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="The figure that ranks the points.", show_default="usd_per_mtok")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Points to show.")] = 10,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Do again what failed before.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what is done in the folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the points, and time one of them; nothing is kept.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(help="Predict with a profile of your machine.", show_default="$TOKONOMICS_PROFILE, if set"),
    ] = None,
    chart: Annotated[str | None, typer.Option(metavar=_FILE, help="Save a chart: .svg, .png, .html or .json.")] = None,
    html: Annotated[
        str | None,
        typer.Option(metavar=_FILE, help="Save a report in one file: figures, charts, inputs; opens offline."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Ask a verb at many points of a scenario.

    What is done is kept, and the same command goes on from there.

    \b
    Examples:
      tokonomics sweep chat.toml --over gpu=H100,H200,L40S --over rate=5,10,20
      tokonomics sweep chat.toml --over gpu=H100,H200,tp=1,2,4,rate=5,10,20 --chart sweep.svg
      tokonomics sweep chat.toml --over 'slo=ttft_p99=1,tpot_p99=50ms;ttft_p99=2,tpot_p99=80ms' --over weights=bf16,fp8
      tokonomics sweep chat.toml --verb capacity --over gpu=H100,H200 --over input=200..8000:log --random 100
      tokonomics sweep chat.toml --over rate=1..50 --random 500 --ray 10.0.0.1:6379
    """
    from tokonomics.sweep.outcome import check_figure
    from tokonomics.sweep.store import opened
    from tokonomics.sweep.study import Interrupted, prepared, run_of
    from tokonomics.sweep.view import sweep_chart, sweep_sections

    check_files(chart, html)
    made = prepared(
        scenario, over or [], verb, random=random, seed=seed, into=into, limit=limit, profile=profile, fresh=fresh
    )
    if by is not None:
        check_figure(made.verb, by.replace("-", "_"))
    for line in made.notes:
        say(line)
    if dry_run:
        _dry_run(made, jobs, json)
        return
    if ray is None and not can_limit_memory():  # as on macOS
        say("workers may take any amount of memory: this system sets no limit, and --memory does nothing")
    with opened(made.folder) as store:
        try:
            run = run_of(made, store, jobs=jobs, memory_gb=memory, ray=ray, fresh=fresh, retry_failed=retry_failed)
        except Interrupted as stopped:
            say(f"stopped: {stopped}")
            raise typer.Exit(_INTERRUPTED) from None
    for line in run.about_this_run():
        say(line)
    found = run.summary(by)
    charts = {"What the swept keys change": lambda: sweep_chart(found)} if found.ranked else {}
    result = SweepResult(document=run.plain(found, top), kept=any(row.kept for row in found.rows))
    title = f"{made.verb} over {', '.join(made.over)}"
    answer = Answer(result, title, lambda: sweep_sections(found, top, run.about_results()), charts)
    code = give(answer, command_line(sys.argv[1:]), json=json, chart=chart, html=html)
    if code:
        raise typer.Exit(code)


def _dry_run(made: "Sweep", jobs: int | None, json: bool) -> None:
    from tokonomics.sweep.crew import most_workers
    from tokonomics.sweep.study import done_before, timed
    from tokonomics.sweep.view import points_sections
    from tokonomics.units import plural, seconds

    done = done_before(made)
    if json:
        points = [{"point": point.place, "id": point.id, "over": dict(point.over)} for point in made.points]
        show_json({"verb": made.verb, "points": points, "done": done, "folder": str(made.folder)})
        return
    workers, took = jobs or most_workers(), timed(made)
    left = seconds(took * (len(made.points) - done) / workers)
    said = [
        f"The first point took {seconds(took)} here: about {left} for what is left on {plural(workers, 'worker')}.",
        f"Results go to {made.folder}",
    ]
    show(points_sections(made.points, done, said))
