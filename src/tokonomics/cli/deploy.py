"""The files that start the pick of a plan, from what was typed."""

import math
from collections.abc import Sequence
from pathlib import Path

import typer

from tokonomics.clock import today
from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.files import make_folder, write_text
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.planner.deploy_files import DeployFile, Target, deploy_file, provenance
from tokonomics.planner.deploy_job import DeployJob
from tokonomics.planner.parsing import listed
from tokonomics.planner.plan import Study

_KEPT_BACK = 0.1
"""Of the context that fits by our memory model. A choice: a start that fails costs more than a shorter context."""


def targets_from(names: Sequence[str] | None, folder: Path | None) -> list[Target]:
    """The tools that files are wanted for."""
    if names is None and folder is not None:
        raise BadInput("is where --deploy saves its files", where="--deploy-to", fix="Give --deploy vllm as well.")
    for name in (given := listed(names, "deploy") or []):
        if name not in set(Target):
            guess = nearest(name, [each.value for each in Target], 1)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise BadInput(
                f"no files are made for '{shorten(name)}'", where="--deploy", fix=f"Valid: {', '.join(Target)}.{hint}"
            )
    return [Target(name) for name in given]


def deploy_files_of(study: Study, targets: Sequence[Target], command: str) -> list[DeployFile]:
    """The files of the plan's cheapest candidate; ``command`` made the plan."""
    best = study.plan.best
    if best is None:
        return []
    sized = study.of(best)
    bought = (best.provider, best.region, best.instance)
    offer = next(
        machine.offer
        for machine in sized.screened.hosts.machines
        if (machine.offer.provider, machine.offer.region, machine.offer.instance) == bought
    )
    deployment = sized.deployment
    job = DeployJob(
        deployment=deployment,
        replicas=best.replicas,
        max_context=longest_context(deployment),
        limits=deployment.limits.model_copy(update={"max_sequences": best.max_sequences}),
        offer=offer,
        terms=best.terms,
        router=best.router.value,
        provenance=provenance(command, today(), offer),
    )
    return [deploy_file(target, job) for target in targets]


def longest_context(deployment: Deployment) -> int:
    """The model's own context, or the longest of which one sequence fits."""
    longest = deployment.model.max_context
    if max_sequences(deployment, longest) >= 1:
        return longest
    fits, too_long = 1, longest
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if max_sequences(deployment, middle) >= 1 else (fits, middle)
    # Engines refuse to start with a context that does not fit, and our memory model is not theirs to the byte.
    return max(1, math.floor(fits * (1 - _KEPT_BACK)))


def save_files(files: Sequence[DeployFile], folder: Path) -> None:
    """Write the files, and say where."""
    where = f"--deploy-to {shorten(str(folder), 200)}"
    make_folder(folder, where)
    for each in files:
        write_text(folder / each.name, each.text, where)
        typer.echo(f"{folder / each.name} saved", err=True)
