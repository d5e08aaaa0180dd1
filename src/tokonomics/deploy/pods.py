"""Describe the pod of a replica on Kubernetes: its allowed machines, its requests, and how replicas spread.

A pod requests GPUs by their device plugin's resource name, and machines by labels that managed clusters or the vendors'
own labellers set (``data/machines.toml``). Replicas spread evenly over the plan's machines, or over zones, so that
losing one costs what the plan counted on.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.deploy.job import PORT, DeployJob
from tokonomics.deploy.scripts import listen
from tokonomics.sizing.engine_flags import tier_bytes
from tokonomics.sizing.hosts import host_gib
from tokonomics.units import GIB

_FOR_THE_SYSTEM = 0.25
"""Share of a machine's CPUs and memory that pods do not request. A choice: GPUs decide how many pods fit, so
requesting less costs nothing, and requesting too much keeps a pod waiting. GKE alone reserves 17 % of 16 GiB and 2 %
of 2 TiB (25 % of the first 4 GiB, 20 % of the next 4, 10 % of 8, 6 % of 112, 2 % of the rest and 100 MiB:
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes); agents on every node take more."""
_THREADS = 2
"""vCPUs for each process of an engine: vLLM wants at least as many physical cores as processes, and where hyperthreads
are counted two vCPUs for each (0.32.0, docs/configuration/optimization.md, "CPU Resources for GPU Deployments")."""
_KEY_VARIABLES = {"vllm": "VLLM_API_KEY", "sglang": "API_KEY"}
_ARCH = "kubernetes.io/arch"
_SCRATCH_GIB = 10  # logs and compiled kernels of a pod, on the machine's own disk. A choice; weights are on the volume.
_REVISIONS = 2  # of the weights on the volume: a new one is downloaded before the old one is deleted. A choice.
_WEIGHTS_STEP_GIB = 10
_LEAVE_S = 10  # time for load balancers to learn that a pod leaves, before it waits for its last requests. A choice.
STOP_S = 30  # time for the engine to stop after that: Kubernetes' default of ``terminationGracePeriodSeconds``
_PROBE_S = 10
_LONGEST_WINDOW_S = 3600  # the most that Kubernetes allows (API reference, HPAScalingRules v2)
_LABEL = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@cache
def machine_names() -> dict[str, Any]:
    """Return the names that labellers, clouds and tools have for GPUs and machines."""
    return tomllib.loads((Path(__file__).parent / "data" / "machines.toml").read_text(encoding="utf-8"))


def gpu_name(tool: str, job: DeployJob) -> str | None:
    """Return a tool's name for the GPU of an instance, or for every such GPU; None if it has none."""
    names, instance = machine_names()[tool], job.offer.instance if job.offer else ""
    special = (name for start, name in names["instances"].items() if instance.startswith(start))
    name: str | None = next(special, names["gpus"].get(job.deployment.gpu.key))
    return name


def pod_values(job: DeployJob, *, operated: bool = False, port: int = PORT) -> dict[str, Any]:
    """Return the manifest values for the pod of one replica, or of a machine's part of one; None where none applies.

    ``operated`` means that an operator sets the usual labels itself, so ours only tell pods of one kind apart.
    """
    deployment, model = job.deployment, job.deployment.model
    labels = {"tokonomics/replicas" if operated else "app.kubernetes.io/name": job.service_name}
    vendor = machine_names()["vendors"][deployment.gpu.vendor]
    machine, products = _machine_labels(job), machine_names()["products"].get(deployment.gpu.key, [])
    told, arch = machine or ({vendor["label"]: products} if products else {}), {_ARCH: "arm64"} if is_arm(job) else {}
    terms = _machine_terms(told | arch if told else {})
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    # GPUs of one pod; of one machine if a replica spans several.
    gpus = {vendor["resource"]: min(deployment.gpus, job.gpus_per_machine)}
    tolerations = [{"key": vendor["resource"], "operator": "Exists", "effect": "NoSchedule"}]
    if job.terms is Terms.spot and job.offer and job.offer.provider == "azure":
        key, value = machine_names()["labels"]["spot"]["azure"]
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    # GKE keeps pods off nodes with Arm CPUs by a taint (TaintConfig.ArchitectureTaintBehavior), and so may others.
    tolerations += [
        {"key": key, "operator": "Equal", "value": cpu, "effect": "NoSchedule"} for key, cpu in arch.items()
    ]
    weights_gib = _REVISIONS * model.weight_bytes(model.checkpoint) / GIB
    leave_s, offer = _LEAVE_S + job.answer_s, job.offer
    key = None if job.role else _KEY_VARIABLES[deployment.engine.key]
    # Kubernetes reads $(NAME) in an argument as a variable, and $$ as a dollar.
    words = [word.replace("$", "$$") for word in (*job.command.arguments, *listen(port))]
    user = machine_names()["security"]["users"].get(job.command.image.partition(":")[0])
    return {
        "labels": labels,
        "port": port,
        "arguments": [*words, *(["--api-key", f"$({key})"] if key and deployment.engine.key == "sglang" else [])],
        "key_variable": key,
        "user": user,
        "security": _security(deployment.gpu.vendor, user),
        "privileges": _privileges(deployment.gpu.vendor),
        "vendor": vendor,
        "machine_labels": machine | arch or None,
        # Select by the GPU's label if we know no label of the machine.
        "affinity": {"nodeAffinity": required} if terms and not machine else None,
        "machine_terms": terms,
        "where": f"{offer.provider} {offer.instance}, {offer.region}" if offer and not machine else None,
        "tolerations": tolerations,
        "spread": _spread(job, labels, is_labelled=bool(terms)),
        "rollout": _rollout(job),
        "has_budget": job.replicas > 1,
        # With zero, a machine could never be drained.
        "drainable": max(1, job.may_fail),
        "requests": _requests(job) | gpus,
        "gpus": gpus,
        "scarce_memory": _scarce_memory(job),
        "volume": f"{_WEIGHTS_STEP_GIB * math.ceil(weights_gib / _WEIGHTS_STEP_GIB)}Gi",
        "start_probes": job.start_s // _PROBE_S,
        # How long a leaving pod keeps serving: the engine is told to stop when its last requests are answered.
        "leave_s": leave_s,
        "grace_s": leave_s + STOP_S,
        # A replica that has just loaded its weights should not be removed at once.
        "window_s": min(job.start_s, _LONGEST_WINDOW_S),
    }


def is_arm(job: DeployJob) -> bool:
    """Tell whether the machine has Arm CPUs, for which containers have to be built."""
    known, instance = machine_names()["arm64"], job.offer.instance if job.offer else ""
    return job.deployment.gpu.key in known["gpus"] or instance.startswith(tuple(known["instances"]))


def _security(vendor: str, user: int | None) -> dict[str, Any] | None:
    """Return the pod's security context: the image's own user, whom group 0 lets write, and seccomp where it works."""
    context: dict[str, Any] = {}
    if user is not None:
        group = {"runAsGroup": 0, "fsGroup": 0, "fsGroupChangePolicy": "OnRootMismatch"}
        context = {"runAsNonRoot": True, "runAsUser": user, **group}
    if vendor in machine_names()["security"]["confined"]:
        context["seccompProfile"] = {"type": "RuntimeDefault"}
    return context or None


def _privileges(vendor: str) -> dict[str, Any]:
    """Return the container's security context: no way to more rights, and no capability that the GPU does not need."""
    added = machine_names()["security"]["capabilities"].get(vendor)
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})}}


def _machine_labels(job: DeployJob) -> dict[str, str]:
    """Return the labels that managed clusters set on the plan's machine; empty if we do not know them."""
    offer, known = job.offer, machine_names()["labels"]
    if offer is None or offer.provider not in known["instances"]:
        return {}
    labels, spot = {"node.kubernetes.io/instance-type": offer.instance}, known["spot"].get(offer.provider)
    if spot and offer.region != UNSPECIFIED:
        labels["topology.kubernetes.io/region"] = offer.region
    if offer.provider == "gcp":
        labels["cloud.google.com/gke-accelerator"] = gpu_name("gke", job) or ""
    wanted = {key: value for key, value in labels.items() if _LABEL.fullmatch(value)}
    return wanted | (dict([spot]) if spot and job.terms is Terms.spot else {})


def _machine_terms(labels: Mapping[str, str | list[str]]) -> list[dict[str, Any]] | None:
    """Return labels, each with one or several values, as terms of a node selector."""
    expressions = [
        {"key": key, "operator": "In", "values": [value] if isinstance(value, str) else value}
        for key, value in labels.items()
    ]
    return [{"matchExpressions": expressions}] if expressions else None


def _spread(job: DeployJob, labels: Mapping[str, str], is_labelled: bool) -> list[dict[str, Any]] | None:
    """Spread strictly over machines, or over zones if one may fail; over the others where possible.

    Not strictly over machines if no label tells them apart: machines without a GPU would count as empty ones. Nor
    strictly over both: what is lost with a machine is lost with its zone too, and two strict rules can each forbid the
    only places that the other allows. The two sides of a disaggregated fleet share machines, so a strict rule on one
    could keep the other out.
    """
    if job.replicas == 1:
        return None
    evenly = {"maxSkew": 1, "labelSelector": {"matchLabels": labels}}
    machine = evenly | {"topologyKey": "kubernetes.io/hostname"}
    zone = evenly | {"topologyKey": "topology.kubernetes.io/zone"}
    # Do not count machines that a pod may not run on as empty ones either.
    hard = {"whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}
    soft = {"whenUnsatisfiable": "ScheduleAnyway"}
    constraints = []
    if job.role is None and (is_labelled or job.replicas_per_machine == 1) and not job.over_zones:
        # With more places than replicas, the first machines would be filled before the last one exists.
        constraints.append(machine | hard | ({"minDomains": job.machines} if _has_free_places(job) else {}))
    # During an update old pods count above; here new ones spread among themselves, if there is room.
    constraints.append(machine | soft | {"matchLabelKeys": ["pod-template-hash"]})
    constraints.append(zone | (hard | _zone_limits(job) if job.over_zones else soft))
    return constraints


def _zone_limits(job: DeployJob) -> dict[str, int]:
    """Return limits as even as the machines allow: a zone then has no more pods than the plan can do without."""
    zones = job.machines_in_zones
    larger = sum(machines > zones[-1] for machines in zones)
    # Once the smaller zones are full, the larger ones share the other replicas.
    others = job.replicas - len(zones) * zones[-1] * job.places_per_machine
    return {"maxSkew": max(1, math.ceil(others / max(1, larger))), "minDomains": len(zones)}


def _has_free_places(job: DeployJob) -> bool:
    """Tell whether the planned machines have GPUs for one more replica; not if the other side uses them."""
    return job.role is None and job.machines * job.places_per_machine > job.replicas


def _rollout(job: DeployJob) -> str:
    """Say where the extra pod of an update finds GPUs, and what an update does without."""
    # A zone's rule may keep a pod off the machines that have room.
    if _has_free_places(job) and not job.over_zones:
        return "An update starts one pod more: the planned machines have GPUs for it."
    if job.spare:
        return "An update starts one pod more, if a machine is free for it, and else uses the spare machines."
    return (
        "An update starts one pod more, which needs a free machine. Without one it waits: set maxSurge 0 and "
        "maxUnavailable 1, and miss the SLO meanwhile."
    )


def _requests(job: DeployJob) -> dict[str, str | int]:
    """Return what one pod requests besides GPUs: what it needs, or its share of a machine that has less for it.

    CPUs are two hardware threads for each process, memory the weights that it loads through the page cache, a process
    for each GPU, and KV. The system keeps a quarter of the machine.
    """
    offer, deployment = job.offer, job.deployment
    part = (1 - _FOR_THE_SYSTEM) / job.places_per_machine
    gpus = min(deployment.gpus, job.gpus_per_machine)
    threads = _THREADS * _processes(gpus, math.ceil(deployment.dp * gpus / deployment.gpus))
    cores = min(threads, part * offer.vcpus) if offer and offer.vcpus else threads
    needed = math.ceil(host_gib(deployment, gpus) + _kept_gib(job))
    memory = min(needed, math.floor(part * offer.memory_gb)) if offer and offer.memory_gb else needed
    cpu = str(int(cores)) if cores >= 1 else f"{int(1000 * cores)}m"
    return {"cpu": cpu, "memory": f"{memory}Gi", "ephemeral-storage": f"{_SCRATCH_GIB}Gi"}


def _processes(gpus: int, groups: int) -> int:
    """Count the processes of an engine: one a GPU, an API server and a scheduler a group, and one to join groups.

    vLLM 0.32.0, docs/design/arch_overview.md, "V1 Process Architecture"; SGLang has a scheduler for each GPU, and a
    process each for tokens in and out.
    """
    return gpus + 2 * groups + (1 if groups > 1 else 0)


def _kept_gib(job: DeployJob) -> float:
    """Return the GiB of KV that a pod keeps in host memory."""
    return tier_bytes(job.deployment, job.tiers).get("dram", 0.0) / job.machines_per_replica / GIB


def _needed_gib(job: DeployJob) -> float:
    """Return the memory of one machine that its replicas need, with the KV that they keep there."""
    return host_gib(job.deployment, job.gpus_per_machine) + _kept_gib(job) * job.places_per_machine


def _scarce_memory(job: DeployJob) -> str | None:
    """Warn if weights and processes may take more of a machine's memory than pods request."""
    memory, needed = job.offer and job.offer.memory_gb, _needed_gib(job)
    if not memory or needed <= (1 - _FOR_THE_SYSTEM) * memory:
        return None
    return f"{' and KV' if job.tiers else ''} may take {needed:.1f} GiB of a machine's {memory:g}"
