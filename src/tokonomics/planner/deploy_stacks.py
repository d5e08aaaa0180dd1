"""The files of a plan for the tools that people deploy with: who writes them, and the heading that all of them have."""

from collections.abc import Callable, Mapping, Sequence

from tokonomics.planner.deploy_apart import what_runs_apart
from tokonomics.planner.deploy_compose import write_compose
from tokonomics.planner.deploy_dstack import write_dstack
from tokonomics.planner.deploy_dynamo import write_dynamo
from tokonomics.planner.deploy_files import what_runs
from tokonomics.planner.deploy_job import DeployJob, engine_command
from tokonomics.planner.deploy_keda import write_keda
from tokonomics.planner.deploy_kserve import write_kserve
from tokonomics.planner.deploy_llm_d import write_llm_d
from tokonomics.planner.deploy_production_stack import write_production_stack
from tokonomics.planner.deploy_target import FleetSide, Written
from tokonomics.planner.deploy_text import DeployFile, Target, comment

STACKS: Mapping[Target, Callable[[Sequence[FleetSide]], Written]] = {
    Target.keda: write_keda,
    Target.llm_d: write_llm_d,
    Target.kserve: write_kserve,
    Target.dynamo: write_dynamo,
    Target.production_stack: write_production_stack,
    Target.dstack: write_dstack,
    Target.compose: write_compose,
}


def stack_files(target: Target, *jobs: DeployJob) -> list[DeployFile]:
    """The files that start a fleet with that tool: of one job, or of the one for prompts and the one for answers."""
    sides = [FleetSide(job, engine_command(job)) for job in jobs]
    written = STACKS[target](sides)
    fill_in = tuple(dict.fromkeys([*(text for side in sides for text in side.command.fill_in), *written.fill_in]))
    serving = jobs[-1]
    what = what_runs(serving) if len(jobs) == 1 else what_runs_apart(jobs[0], jobs[1])
    heading = [
        serving.provenance,
        *what,
        f"Start: {written.start}.",
        *written.notes,
        *(f"Carries {text}." for text in written.carries),
        *(f"CANNOT CARRY {text}." for text in written.lacks),
        *(f"FILL IN {text}" for text in fill_in),
    ]
    head = "".join(map(comment, heading))
    return [
        DeployFile(name=f"{serving.public_name}-{ending}", text=head + body, fill_in=fill_in)
        for ending, body in written.files.items()
    ]
