"""dstack: a fleet of the planned machines, and a service with the planned replicas on it.

Replicas share a machine by its blocks. dstack scales by requests a second: what one replica holds is the plan's own
figure. Fields: dstack 0.22.5 (core/models/configurations.py, fleets.py); names of GPUs: gpuhunt 0.1.34.
"""

import math
from collections.abc import Sequence
from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.planner.deploy_job import FILL_IN, PORT, DeployJob, listen, shell_line
from tokonomics.planner.deploy_target import FleetSide, Written, band, engine_limits, refuse_apart, refuse_spanning
from tokonomics.planner.deploy_text import Target, yaml_text
from tokonomics.serving.fleet import Router
from tokonomics.units import BYTES_PER_GB, plural, requests_a_second

_SAME_NAME = ["aws", "azure", "crusoe", "cudo", "gcp", "lambda", "nebius", "oci", "runpod", "seeweb", "verda", "vultr"]
_BACKENDS = {name: name for name in _SAME_NAME} | {"do": "digitalocean", "vast": "vastai"}
"""Providers of our catalogue by dstack's names (BackendType)."""
_OWN_NAMES = frozenset({"aws", "azure", "gcp", "lambda", "oci"})
"""Of those, whose machines and regions gpuhunt calls as their sellers do, as our catalogue does. Of the others it makes
up names (RunPod's are kinds of GPU, Vast's numbers of offers): gpuhunt 0.1.34, providers/."""
_GPUS = {
    "A100-40GB": ("A100", "40GB"),
    "A100-40GB-PCIe": ("A100", "40GB"),
    "A100-80GB": ("A100", "80GB"),
    "A100-80GB-PCIe": ("A100", "80GB"),
    "V100-16GB": ("V100", "16GB"),
    "V100-32GB": ("V100", "32GB"),
    "H100-SXM": ("H100", None),
    "H100-PCIe": ("H100", None),
    "H100-NVL": ("H100NVL", None),
    "H200-NVL": ("H200NVL", None),
    "RTX6000-Ada": ("RTX6000Ada", None),
}
"""GPUs that gpuhunt spells otherwise; several of a name are told apart by memory."""
_SHARED_MEMORY = "32GB"
"""Through which ranks exchange data: SGLang's documentation, "Install", for Docker."""


def write_dstack(sides: Sequence[FleetSide]) -> Written:
    """The fleet, and the service on it."""
    refuse_apart(Target.dstack, sides, "a service is written with one kind of replicas and no router")
    refuse_spanning(Target.dstack, sides, "and a replica of a service is on one")
    (side,) = sides
    job, command = side
    name = job.public_name
    scales, by_turns = job.requests_per_s is not None, job.router == Router.round_robin
    routed, lost = bool(job.router) and job.replicas > 1, _lost_of_machines(job)
    image = [f"{command.image}: a container with {job.deployment.engine.name}"]
    return Written(
        files={"dstack-fleet.yaml": yaml_text(_fleet(job)), "dstack.yaml": yaml_text(_service(side))},
        start=f"dstack apply -f {name}-dstack-fleet.yaml, then -f {name}-dstack.yaml; HF_TOKEN has to be set in your "
        "shell, and a gateway there for replicas to be added",
        carries=[
            band(side, f"replicas, one more for every {requests_a_second(f'{job.requests_per_s:.3g}')}") if scales
            else plural(job.replicas, "replica"),
            f"{plural(job.machines, 'machine')}: {_told_of_machines(job)} (the fleet)",
            *map(engine_limits, sides),
            *(["the round-robin router (dstack's gateway)"] if routed and by_turns else []),
        ],
        lacks=[
            *([f"the {lost} of the offer: dstack looks for such GPUs anywhere"] if lost else []),
            *([f"the {job.router} router: dstack's gateway takes turns"] if routed and not by_turns else []),
            *(["the spread on which spare machines rely: see that replicas are on all of them"] if job.spare else []),
            "the queue as a trigger: dstack scales by requests/s alone",
        ],
        fill_in=image if command.image.startswith(FILL_IN) else [],
    )  # fmt: skip


def _gpus(job: DeployJob, count: int) -> dict[str, Any]:
    name, memory = _GPUS.get(job.deployment.gpu.key, (job.deployment.gpu.key, None))
    return {"name": name, **({"memory": memory} if memory else {}), "count": count}


def _fleet(job: DeployJob) -> dict[str, Any]:
    most = math.ceil(job.most_replicas / job.places_per_machine)
    fleet: dict[str, Any] = {
        "type": "fleet",
        "name": job.public_name,
        "nodes": {"min": job.machines, "target": job.machines, "max": max(job.machines, most)},
        **({"blocks": "auto"} if job.places_per_machine > 1 else {}),
        "resources": {"gpu": _gpus(job, job.gpus_per_machine)},
        "spot_policy": "spot" if job.terms is Terms.spot else "on-demand",
    }
    offer = job.offer
    if offer and offer.provider in _BACKENDS:
        fleet["backends"] = [_BACKENDS[offer.provider]]
        if offer.provider in _OWN_NAMES:
            fleet["instance_types"] = [offer.instance]
            fleet |= {"regions": [offer.region]} if offer.region != UNSPECIFIED else {}
    return fleet


def _told_of_machines(job: DeployJob) -> str:
    lost = _lost_of_machines(job).split(", ")
    return ", ".join(what for what in ("GPUs", "seller", "instance", "region", "spot or on demand") if what not in lost)


def _lost_of_machines(job: DeployJob) -> str:
    """What of the offer dstack has no name for."""
    if job.offer is None or job.offer.provider not in _BACKENDS:
        return "seller, instance, region"
    return "" if job.offer.provider in _OWN_NAMES else "instance, region"


def _service(side: FleetSide) -> dict[str, Any]:
    job, command = side
    model = job.deployment.model
    weights_gb = math.ceil(2 * model.weight_bytes(model.checkpoint) / BYTES_PER_GB)
    replicas: dict[str, Any] = {"replicas": job.replicas}
    if job.requests_per_s is not None:
        scaling = {"metric": "rps", "target": float(f"{job.requests_per_s:.4g}"), "scale_down_delay": f"{job.start_s}s"}
        replicas = {"replicas": f"{job.replicas}..{job.most_replicas}", "scaling": scaling}
    return {
        "type": "service",
        "name": job.public_name,
        "image": command.image,
        "env": ["HF_TOKEN"],
        "commands": [f"{shell_line((*command.program, *command.arguments, *listen()))}\n"],
        "port": PORT,
        "model": _repository(side),
        "probes": [{"type": "http", "url": "/health"}],
        "resources": {
            "gpu": _gpus(job, job.deployment.gpus),
            "shm_size": _SHARED_MEMORY,
            # Weights, and as much again for the system.
            "disk": f"{max(100, weights_gb)}GB..",
        },
        "fleets": [job.public_name],
        **replicas,
    }


def _repository(side: FleetSide) -> str:
    """Where the weights are, as clients name the model: the first word of vLLM, the first value of SGLang."""
    words = side.command.arguments
    return words[1] if words[0].startswith("--") else words[0]
