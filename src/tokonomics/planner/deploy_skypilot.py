"""A plan as a SkyPilot task: the machines to rent, how the engine is installed, and how it is started on them.

The plan's offer comes from SkyPilot's own catalogue, so its instance is asked for by name. Replicas are a ``service``
(``sky serve up``), which replaces machines that are lost; where one machine runs several replicas they share one port
by data parallelism, or, where the engine cannot do that, have a port each and no service.
"""

from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.planner.deploy_job import PORT, DeployJob, yaml_text
from tokonomics.planner.engine_commands import (
    EngineCommand,
    Shell,
    copies_in_one_server,
    listen,
    over_nodes,
    shell_line,
)
from tokonomics.units import BYTES_PER_GB

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

_RANK = Shell('"$SKYPILOT_NODE_RANK"')
_HEAD = Shell('"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"')


def skypilot_task(job: DeployJob, command: EngineCommand) -> str:
    """The task's YAML, without its heading."""
    copies = copies_in_one_server(job)
    several_ports = copies is None
    task: dict[str, Any] = {"name": job.service_name, "resources": _resources(job, several_ports)}
    if several_ports:
        task["num_nodes"] = job.nodes
    else:
        task["num_nodes"] = job.nodes_per_replica
        task["service"] = {
            "readiness_probe": {"path": "/health", "initial_delay_seconds": job.start_s},
            "replicas": job.nodes // job.nodes_per_replica,
            "ports": PORT,
        }
    # Empty unless `--secret HF_TOKEN` hands over the one of your shell.
    task["secrets"] = {"HF_TOKEN": ""}
    task["setup"] = f"pip install {command.package}\n"
    server = _a_server_per_port(job, command) if copies is None else _one_server(job, command, copies)
    task["run"] = f"{server}\n"
    return yaml_text(task)


def skypilot_notes(job: DeployJob) -> list[str]:
    """What to know before starting it."""
    name = f"{job.service_name}-skypilot.yaml"
    if copies_in_one_server(job) is None:
        ports = f"{PORT} to {PORT + job.replicas_per_node - 1}"
        notes = [f"Start: sky launch {name}. Put a load balancer over ports {ports} of all {job.nodes} machines."]
    else:
        notes = [f"Start: sky serve up {name} (sky launch starts one replica of it). Gated weights: --secret HF_TOKEN."]
    offer = job.offer
    if offer and offer.provider not in CLOUDS:
        notes.append(f"SkyPilot does not rent from {offer.provider}: it looks elsewhere, at another price.")
    if offer is None:
        notes.append("The plan names no offer: SkyPilot takes the cheapest it knows.")
    if offer and job.terms is Terms.reserved:
        notes.append("The price is a reserved one: a reservation has to be bought from the provider first.")
    return notes


def _resources(job: DeployJob, several_ports: bool) -> dict[str, Any]:
    offer = job.offer
    resources: dict[str, Any] = {}
    if offer and offer.provider in CLOUDS:
        named = offer.region != UNSPECIFIED and "/" not in offer.region
        resources["infra"] = f"{offer.provider}/{offer.region}" if named else offer.provider
        resources["instance_type"] = offer.instance
    if offer is None or offer.provider not in CLOUDS or offer.provider in _NAMED_BY_GPU:
        resources["accelerators"] = f"{_gpu_name(job)}:{job.gpus_per_node}"
    resources["use_spot"] = job.terms is Terms.spot
    resources["ports"] = f"{PORT}-{PORT + job.replicas_per_node - 1}" if several_ports else PORT
    weights_gb = job.deployment.model.weight_bytes(job.deployment.model.checkpoint) / BYTES_PER_GB
    if 2 * weights_gb > _DEFAULT_DISK_GB:
        resources["disk_size"] = 100 * -(-int(2 * weights_gb) // 100)
    return resources


def _gpu_name(job: DeployJob) -> str:
    instance = job.offer.instance if job.offer else ""
    special = next((name for start, name in _INSTANCE_GPU_NAMES.items() if instance.startswith(start)), None)
    return special or _GPU_NAMES.get(job.deployment.gpu.key, job.deployment.gpu.key)


def _one_server(job: DeployJob, command: EngineCommand, copies: tuple[str, ...]) -> str:
    words = (*command.program, *command.arguments, *copies, *over_nodes(job, _RANK, _HEAD), *listen())
    if job.nodes_per_replica > 1 and job.deployment.engine.key == "vllm":
        # Machines but the first only compute: they answer no requests.
        words = (*words, Shell('$([ "$SKYPILOT_NODE_RANK" = 0 ] || echo --headless)'))
    return shell_line(words)


def _a_server_per_port(job: DeployJob, command: EngineCommand) -> str:
    """Servers side by side on a machine, each on its own GPUs; if one ends, the rest keep running."""
    gpus = job.deployment.gpus
    visible = "HIP_VISIBLE_DEVICES" if job.deployment.gpu.vendor == "amd" else "CUDA_VISIBLE_DEVICES"
    mine = f'{visible}="$(seq -s, $((i * {gpus})) $((i * {gpus} + {gpus - 1})))"'
    words = (Shell(mine), *command.program, *command.arguments, *listen(Shell(f"$(({PORT} + i))")))
    servers = " ".join(map(str, range(job.replicas_per_node)))
    return f"for i in {servers}; do\n  {shell_line(words, '    ')} &\ndone\nwait"
