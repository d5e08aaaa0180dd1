"""The files that start what was planned: a vLLM or SGLang command, a SkyPilot task, or Kubernetes objects.

Each is text made from the plan alone, headed by which plan made it and by what the user still has to fill in. What the
files were validated with is in docs/deploy.md.

SkyPilot: the plan's offer comes from SkyPilot's own catalogue, so its instance is asked for by name. Replicas are a
``service`` (``sky serve up``), which replaces machines that are lost. Several replicas on one machine share a port by
data parallelism, or, where the engine cannot do that, have a port each and no service.
"""

from datetime import date
from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import (
    PORT,
    DeployJob,
    EngineCommand,
    Shell,
    copies_in_one_server,
    engine_command,
    listen,
    over_nodes,
    shell_line,
    unless_first,
)
from tokonomics.planner.deploy_kubernetes import kubernetes_fill_in, kubernetes_notes, kubernetes_objects
from tokonomics.planner.deploy_text import DeployFile, Target, comment, described, yaml_text
from tokonomics.units import BYTES_PER_GB


def deploy_file(target: Target, job: DeployJob) -> DeployFile:
    """The file that starts this job with that tool."""
    engine = job.deployment.engine
    if target in (Target.vllm, Target.sglang) and engine.key != target:
        raise BadInput(
            f"the plan is for {engine.name}, whose speed and memory differ",
            where=option("deploy", target),
            fix=f"Plan with {option('engine', target)}.",
        )
    command = engine_command(job)
    match target:
        case Target.vllm | Target.sglang:
            body, notes, ending = _engine_line(job, command), _engine_notes(target, job), "sh"
        case Target.skypilot:
            body, notes, ending = _skypilot_task(job, command), _skypilot_notes(job), "yaml"
        case Target.kubernetes:
            objects = kubernetes_objects(job, command)
            body, notes, ending = "---\n".join(map(yaml_text, objects)), kubernetes_notes(job, command), "yaml"
    fill_in = [*command.fill_in, *(kubernetes_fill_in(job, command) if target is Target.kubernetes else ())]
    heading = [job.provenance, *what_runs(job), *notes, *(f"FILL IN {text}" for text in fill_in)]
    return DeployFile(
        name=f"{job.service_name}-{target.value}.{ending}",
        text=("#!/bin/sh\n" if ending == "sh" else "") + "".join(map(comment, heading)) + body,
        fill_in=tuple(fill_in),
    )


def provenance(command: str, made_on: date, offer: Offer | None) -> str:
    """Which plan made a file: the command line, the day, and how old its price is."""
    price = f"; {offer.provider} {offer.instance}, {offer.region}: price of {offer.date}" if offer else ""
    return f"Made by `{' '.join(command.split())}` on {made_on}{price}."


def what_runs(job: DeployJob) -> list[str]:
    deployment = job.deployment
    engine = deployment.engine
    kv = "" if deployment.model.is_encoder else f"KV {deployment.kv}, "
    lines = [f"{job.replicas:,} × ({deployment}), {kv}{engine.name} {engine.version}.", job.redundancy]
    if not job.simulated:
        lines.insert(0, "NOT SIMULATED: whether these replicas meet a target is not checked. Simulate the plan first.")
    return [*lines, *described(job)]


# --- one engine -----------------------------------------------------------------------------------------------------


def _engine_notes(target: Target, job: DeployJob) -> list[str]:
    notes, spans = [], job.machines_per_replica
    if spans > 1:
        name = f"sh {job.service_name}-{target.value}.sh"
        notes.append(
            f"A replica spans {spans} machines. Run on each of them with its number and the address of the first, "
            f"which answers: {name} 0 ADDRESS … {name} {spans - 1} ADDRESS."
        )
    elif job.machines > 1:
        notes.append(f"Run this on each of the {job.machines} machines.")
    if job.replicas_per_machine > 1:
        own = "a GPU" if job.deployment.gpus == 1 else f"{job.deployment.gpus} GPUs"
        ports = "one port" if copies_in_one_server(job) else f"ports {_ports(job)}"
        notes.append(f"It starts {job.replicas_per_machine} replicas, each on {own} of its own, behind {ports}.")
    if job.replicas > 1:
        notes.append(f"Put {f'a {job.router} router' if job.router else 'a load balancer'} in front of all of them.")
    return notes


def _engine_line(job: DeployJob, command: EngineCommand) -> str:
    if job.machines_per_replica > 1:
        rank, head = Shell('"$1"'), Shell('"$2"')
        words = (*command.program, *command.arguments, *over_nodes(job, rank, head), *listen())
        given = ': "${1:?number of this machine among those of its replica, from 0}" "${2:?address of the first}"'
        return f"{given}\n{shell_line((*words, *unless_first(job, rank)))}\n"
    copies = copies_in_one_server(job)
    if copies is None:
        return _a_server_per_port(job, command) + "\n"
    return shell_line((*command.program, *command.arguments, *copies, *listen())) + "\n"


def _a_server_per_port(job: DeployJob, command: EngineCommand) -> str:
    """Servers side by side on a machine, each on its own GPUs; if one ends, the rest keep running."""
    gpus = job.deployment.gpus
    visible = "HIP_VISIBLE_DEVICES" if job.deployment.gpu.vendor == "amd" else "CUDA_VISIBLE_DEVICES"
    mine = f'{visible}="$(seq -s, $((i * {gpus})) $((i * {gpus} + {gpus - 1})))"'
    words = (Shell(mine), *command.program, *command.arguments, *listen(Shell(f"$(({PORT} + i))")))
    servers = " ".join(map(str, range(job.replicas_per_machine)))
    return f"for i in {servers}; do\n  {shell_line(words, '    ')} &\ndone\nwait"


def _ports(job: DeployJob) -> str:
    return f"{PORT} to {PORT + job.replicas_per_machine - 1}"


# --- SkyPilot -------------------------------------------------------------------------------------------------------

CLOUDS = frozenset((
    "aws", "azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "lambda", "nebius", "oci", "primeintellect",
    "runpod", "seeweb", "shadeform", "vast", "verda", "yotta",
))  # fmt: skip
"""Providers of our catalogue that SkyPilot 0.14.1 rents from (sky.utils.schemas, ``infra``)."""

_NAMED_BY_GPU = frozenset(("aws", "azure", "gcp"))
"""Clouds whose GPUs we can spell as SkyPilot does. It refuses an instance together with another spelling of its GPU;
elsewhere spellings differ by instance (H100, H100-SXM), so there the instance alone says which GPU is meant."""

_GPU_NAMES = {"A100-40GB": "A100", "V100-16GB": "V100", "H100-SXM": "H100", "H100-PCIe": "H100", "H100-NVL": "H100"}
"""sky/catalog/data_fetchers/fetch_azure.py, fetch_aws.py and fetch_gcp.py of SkyPilot 0.14.1."""

_INSTANCE_GPU_NAMES = {"a3-megagpu": "H100-MEGA", "g5g": "T4g"}
"""Instances whose GPU SkyPilot tells apart from the one that we count it as."""

_DEFAULT_DISK_GB = 256
"""SkyPilot's own disk; asked for more only when the weights, and as much again for the system, need it."""


def _skypilot_task(job: DeployJob, command: EngineCommand) -> str:
    """The machines to rent, how the engine is installed, and how it is started on them."""
    copies = copies_in_one_server(job)
    task: dict[str, Any] = {"name": job.service_name, "resources": _resources(job, copies is None)}
    if copies is None:
        task["num_nodes"] = job.machines
        server = _a_server_per_port(job, command)
    else:
        task["num_nodes"] = job.machines_per_replica
        task["service"] = {
            "readiness_probe": {"path": "/health", "initial_delay_seconds": job.start_s},
            "replicas": job.machines // job.machines_per_replica,
            "ports": PORT,
        }
        server = _one_server(job, command, copies)
    # Empty unless `--secret HF_TOKEN` hands over the one of your shell.
    task |= {"secrets": {"HF_TOKEN": ""}, "setup": f"pip install {command.package}\n", "run": f"{server}\n"}
    return yaml_text(task)


def _skypilot_notes(job: DeployJob) -> list[str]:
    name, offer = f"{job.service_name}-skypilot.yaml", job.offer
    if copies_in_one_server(job) is None:
        over = f"ports {_ports(job)} of {'the machine' if job.machines == 1 else f'all {job.machines} machines'}"
        notes = [f"Start: sky launch {name}. Put a load balancer over {over}."]
    else:
        notes = [f"Start: sky serve up {name} (sky launch starts one replica of it). Gated weights: --secret HF_TOKEN."]
    if offer is None:
        notes.append("The plan names no offer: SkyPilot takes the cheapest it knows.")
    elif offer.provider not in CLOUDS:
        notes.append(f"SkyPilot does not rent from {offer.provider}: it looks elsewhere, at another price.")
    if job.over_zones:
        notes.append("No zone is named here and SkyPilot takes any with room: see that the machines are as said above.")
    if offer and job.terms is Terms.reserved:
        notes.append("The price is a reserved one: a reservation has to be bought from the provider first.")
    return notes


def _resources(job: DeployJob, several_ports: bool) -> dict[str, Any]:
    offer, model = job.offer, job.deployment.model
    resources: dict[str, Any] = {}
    if offer and offer.provider in CLOUDS:
        named = offer.region != UNSPECIFIED and "/" not in offer.region
        resources["infra"] = f"{offer.provider}/{offer.region}" if named else offer.provider
        resources["instance_type"] = offer.instance
    if offer is None or offer.provider not in CLOUDS or offer.provider in _NAMED_BY_GPU:
        resources["accelerators"] = f"{_gpu_name(job)}:{job.gpus_per_machine}"
    resources["use_spot"] = job.terms is Terms.spot
    resources["ports"] = f"{PORT}-{PORT + job.replicas_per_machine - 1}" if several_ports else PORT
    weights_gb = model.weight_bytes(model.checkpoint) / BYTES_PER_GB
    if 2 * weights_gb > _DEFAULT_DISK_GB:
        resources["disk_size"] = 100 * -(-int(2 * weights_gb) // 100)
    return resources


def _gpu_name(job: DeployJob) -> str:
    instance, gpu = job.offer.instance if job.offer else "", job.deployment.gpu.key
    special = (name for start, name in _INSTANCE_GPU_NAMES.items() if instance.startswith(start))
    return next(special, _GPU_NAMES.get(gpu, gpu))


def _one_server(job: DeployJob, command: EngineCommand, copies: tuple[str, ...]) -> str:
    rank, head = Shell('"$SKYPILOT_NODE_RANK"'), Shell('"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"')
    words = (*command.program, *command.arguments, *copies, *over_nodes(job, rank, head), *listen())
    return shell_line((*words, *unless_first(job, rank)))
