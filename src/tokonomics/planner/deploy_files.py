"""The files that start what was planned: a vLLM or SGLang command, a SkyPilot task, or Kubernetes objects.

Each is text made from the plan alone, headed by which plan made it and by what the user still has to fill in. What the
files were validated with is in docs/deploy.md.
"""

from datetime import date
from enum import StrEnum

from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import DeployJob, comment
from tokonomics.planner.deploy_kubernetes import kubernetes_notes, kubernetes_objects
from tokonomics.planner.deploy_skypilot import skypilot_notes, skypilot_task
from tokonomics.planner.engine_commands import EngineCommand, engine_command, listen, shell_line
from tokonomics.types import Noun


class Target(StrEnum):
    """What a deploy file is for."""

    vllm = "vllm"
    sglang = "sglang"
    skypilot = "skypilot"
    kubernetes = "kubernetes"


class DeployFile(Noun):
    """A file to save, and what in it the plan could not know."""

    name: str
    text: str
    fill_in: tuple[str, ...]


def deploy_file(target: Target, job: DeployJob) -> DeployFile:
    """The file that starts this job with that tool."""
    _same_engine(target, job)
    command = engine_command(job)
    match target:
        case Target.vllm | Target.sglang:
            body, notes, ending = _engine_line(target, job, command), _engine_notes(job), "sh"
        case Target.skypilot:
            body, notes, ending = skypilot_task(job, command), skypilot_notes(job), "yaml"
        case Target.kubernetes:
            body, notes, ending = kubernetes_objects(job, command), kubernetes_notes(job, command), "yaml"
    start = "#!/bin/sh\n" if ending == "sh" else ""
    fill_in = [*command.fill_in]
    if target is Target.kubernetes and command.image.startswith("FILL-IN"):
        fill_in.append(f"{command.image}: a container with {job.deployment.engine.name} for {job.deployment.gpu.key}")
    heading = [job.provenance, *_what(job), *notes, *(f"FILL IN {each}" for each in fill_in)]
    return DeployFile(
        name=f"{job.service_name}-{target.value}.{ending}",
        text=start + "".join(map(comment, heading)) + body,
        fill_in=tuple(fill_in),
    )


def provenance(command: str, made_on: date, offer: Offer | None) -> str:
    """Which plan made a file: the command line, the day, and how old its price is."""
    price = f"; {offer.provider} {offer.instance}, {offer.region}: price of {offer.date}" if offer else ""
    return f"Made by `{' '.join(command.split())}` on {made_on}{price}."


def _what(job: DeployJob) -> list[str]:
    deployment = job.deployment
    engine = deployment.engine
    below = deployment.weights.is_below(deployment.model.served)
    what = f"{job.replicas} × ({deployment}), KV {deployment.kv}, {engine.name} {engine.version}."
    quality = f"Weights below the checkpoint's {deployment.model.checkpoint}: check quality on your own task."
    chat = "Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model."
    return [what, quality, chat] if below else [what, chat]


def _engine_notes(job: DeployJob) -> list[str]:
    if job.replicas == 1:
        return []
    each = "its own GPU" if job.deployment.gpus == 1 else f"its own {job.deployment.gpus} GPUs"
    router = f"a {job.router} router" if job.router else "a load balancer"
    return [f"The plan runs {job.replicas} of these, each on {each}, behind {router}."]


def _engine_line(target: Target, job: DeployJob, command: EngineCommand) -> str:
    if job.nodes_per_replica > 1:
        raise BadInput(
            f"a replica spans {job.nodes_per_replica} machines, which no single command starts",
            where=option("deploy", target),
            fix=f"Use {option('deploy', 'skypilot')}.",
        )
    return shell_line((*command.program, *command.arguments, *listen())) + "\n"


def _same_engine(target: Target, job: DeployJob) -> None:
    engine = job.deployment.engine
    if target in (Target.vllm, Target.sglang) and engine.key != target:
        raise BadInput(
            f"the plan is for {engine.name}, whose speed and memory differ",
            where=option("deploy", target),
            fix=f"Plan with {option('engine', target)}.",
        )
