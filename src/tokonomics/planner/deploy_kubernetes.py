"""Kubernetes objects that run a plan: a Deployment, its Service, disruption budget, autoscaler and volume for weights.

GPUs are asked for by their device plugin's resource name, and machines by labels that managed clusters or the vendors'
own labellers set. Replicas spread evenly over the plan's machines, or over zones, so that losing one costs what the
plan counted on. The autoscaler (``autoscaling/v2``) adds replicas when requests queue: CPU and GPU utilisation say
nothing about the load of an engine that fills its memory at start.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from tokonomics.catalog.gpus import Vendor
from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import FILL_IN, PORT, DeployJob, EngineCommand, listen, spanning_targets
from tokonomics.planner.deploy_tiers import tier_bytes
from tokonomics.sizing.hosts import host_gib
from tokonomics.units import GIB

_WEIGHTS_FOLDER = "/models"
"""Where a pod keeps downloaded weights (HF_HOME), whoever it runs as."""
GPU_RESOURCES: dict[Vendor, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "habana.ai/gaudi"}
"""Names of the vendors' device plugins."""

WAITING_PER_REPLICA = 5
"""Queued requests at which a replica is added: the example of vLLM's production stack (use_cases/autoscaling-keda)."""
WAITING = f"{WAITING_PER_REPLICA} waiting requests"
PROMETHEUS_FAILURES = 3
"""Times that Prometheus does not answer before the planned replicas are held: the example of KEDA's documentation."""

_FOR_THE_SYSTEM = 0.25
"""Of a machine's CPUs and memory: not asked for. A choice: GPUs decide how many pods fit, so asking for less costs
nothing, and asking for what is not there keeps a pod waiting. GKE alone reserves 17 % of 16 GiB and 2 % of 2 TiB (25 %
of the first 4 GiB, 20 % of the next 4, 10 % of 8, 6 % of 112, 2 % of the rest and 100 MiB:
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes); agents on every node take more."""
_SCRATCH_GIB = 10
"""Logs and compiled kernels of a pod, on the machine's own disk. A choice; weights are on the volume."""
_REVISIONS = 2
"""Of the weights that the volume holds: a new one is downloaded before the old one is deleted. A choice."""
_WEIGHTS_STEP_GIB = 10
_LEAVE_S = 10
"""For every load balancer to learn that a pod leaves, before the last requests are waited for. A choice."""
STOP_S = 30
"""For the engine to stop, after that: Kubernetes' own default of ``terminationGracePeriodSeconds``."""
PROBE_S = 10
TOKEN = "Gated weights: kubectl create secret generic hugging-face --from-literal=token=…"
RDMA = "Between machines, add your network plugin's RDMA resource to pods (such as rdma/ib: 1), and IPC_LOCK."
NIXL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
"""Where a server of a disaggregated fleet is asked for its KV (vLLM docs, "NixlConnector usage"); others ignore it."""
_LONGEST_WINDOW_S = 3600
"""What Kubernetes allows (API reference, HPAScalingRules v2)."""


def kubernetes_objects(job: DeployJob, command: EngineCommand) -> list[dict[str, Any]]:
    """The objects, in the order in which to create them."""
    return [*serving_objects(job, command, "kubernetes"), autoscaler(job, command)]


def serving_objects(job: DeployJob, command: EngineCommand, target: str) -> list[dict[str, Any]]:
    """All but what adds and removes replicas."""
    if job.machines_per_replica > 1:
        raise BadInput(
            f"a replica spans {job.machines_per_replica} machines, which a Deployment cannot start",
            where=option("deploy", target),
            fix=f"Use {spanning_targets(job)}, or plan with a larger machine.",
        )
    return [weights_claim(job), _deployment(job, command), _service(job), _disruption_budget(job)]


def kubernetes_fill_in(job: DeployJob, command: EngineCommand) -> list[str]:
    """What the user has to put right, in words."""
    image = f"{command.image}: a container with {job.deployment.engine.name} for {job.deployment.gpu.key}"
    volume = (
        f"{_storage_class()}: a storage class with ReadWriteMany, as pods on several machines read and fill it "
        "(GKE standard-rwx, AKS azurefile-csi-premium, EKS one for EFS or FSx); most default classes are ReadWriteOnce"
    )
    return [*([image] if command.image.startswith(FILL_IN) else []), volume]


def kubernetes_notes(job: DeployJob, command: EngineCommand) -> list[str]:
    """What the cluster needs, and what the objects leave to it."""
    notes = [
        f"Start: kubectl apply -f {job.service_name}-kubernetes.yaml.",
        f"The plan is minReplicas ({job.replicas}); more cost more.",
        cluster_needs(job),
        f"The autoscaler needs {command.queue_metric} in the custom metrics API: Prometheus and prometheus-adapter.",
        _rollout(job),
        f"A pod that leaves serves on for {_LEAVE_S + job.answer_s} s: {_LEAVE_S} s until no request is sent to it, "
        f"{job.answer_s} s in which 99 % of requests are answered.",
        "The first pods download the weights to the volume; filled once by a job of your own it may be ReadOnlyMany.",
        TOKEN,
    ]
    if job.router and job.replicas > 1:
        notes.append(
            f"The plan was sized behind a {job.router} router. A Service spreads connections at random, which misses "
            "the SLO more often: put a gateway in front that routes each request, or plan with more --spare."
        )
    if job.over_zones:
        notes.append(
            "Machines have to be in zones as said above: pods may wait where they are less even, or in more zones. New "
            "pods wait while a zone is down: lower minDomains if it stays down."
        )
    memory, needed = job.offer and job.offer.memory_gb, _needed_gib(job)
    if memory and needed > (1 - _FOR_THE_SYSTEM) * memory:
        notes.append(
            f"Weights and processes{' and KV' if job.tiers else ''} may take {needed:.1f} GiB of a machine's "
            f"{memory:g}, more than pods ask for: the system needs some too. If memory runs out, plan with a larger "
            "machine."
        )
    if not machine_labels(job) and not gpu_products(job):
        on = f" {job.offer.provider} {job.offer.instance}, {job.offer.region}" if job.offer else ""
        notes.append(f"No label is known that tells{on or ' these machines'} apart: see that pods run there.")
    elif job.offer and not machine_labels(job):
        notes.append(
            f"Planned on {job.offer.provider} {job.offer.instance}, {job.offer.region}; pods go to any machine that "
            f"{_LABELLERS[job.deployment.gpu.vendor]} labels as having this GPU."
        )
    return notes


def cluster_needs(job: DeployJob) -> str:
    """Machines and what tells pods of their GPUs."""
    return (
        f"The cluster needs {job.deployment.gpu.key} machines, in a pool of their own (replicas spread over all that "
        f"the selector matches), and the device plugin for {GPU_RESOURCES[job.deployment.gpu.vendor]}."
    )


def _has_free_places(job: DeployJob) -> bool:
    """Whether the planned machines have GPUs for one more replica; where another side stands there too, it has them."""
    return job.role is None and job.machines * job.places_per_machine > job.replicas


def _rollout(job: DeployJob) -> str:
    """Where the pod of a surge finds GPUs, and what an update does without."""
    # A zone's rule may keep a pod from the machines that have room.
    if _has_free_places(job) and not job.over_zones:
        return "An update starts one pod more: the planned machines have GPUs for it."
    if job.spare:
        return "An update starts one pod more, if a machine is free for it, and else uses the spare machines."
    return (
        "An update starts one pod more, which needs a free machine. Without one it waits: set maxSurge 0 and "
        "maxUnavailable 1, and miss the SLO meanwhile."
    )


# --- machines -------------------------------------------------------------------------------------------------------

_INSTANCE_LABELLED = frozenset(("aws", "azure", "do", "gcp", "oci"))
"""Clouds whose managed clusters label a node with the instance type, spelled as in our catalogue
(``node.kubernetes.io/instance-type``: https://kubernetes.io/docs/reference/labels-annotations-taints; DigitalOcean:
digitalocean-cloud-controller-manager, docs/controllers/node/labels.md)."""

_SPOT_LABELS = {
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}
"""How the managed clusters of each cloud label their spot machines (EKS, GKE and AKS documentation)."""

_GKE_ACCELERATORS = {
    "T4": "nvidia-tesla-t4",
    "V100-16GB": "nvidia-tesla-v100",
    "A100-40GB": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "L4": "nvidia-l4",
    "H100-SXM": "nvidia-h100-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
    "RTXPRO6000": "nvidia-rtx-pro-6000",
}
"""Values of ``cloud.google.com/gke-accelerator``, which are Compute Engine's names of GPU models
(https://cloud.google.com/kubernetes-engine/docs/how-to/gpus, https://cloud.google.com/compute/docs/gpus)."""
_GKE_MEGA = ("a3-megagpu", "nvidia-h100-mega-80gb")
"""Machines whose H100 has a name of its own there."""

_LABELLERS: dict[Vendor, str] = {
    "nvidia": "NVIDIA's GPU feature discovery",
    "amd": "AMD's node labeller",
    "intel": "a labeller",
}
PRODUCT_LABELS: dict[Vendor, str] = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.device-id"}
"""https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md;
https://instinct.docs.amd.com/projects/k8s-device-plugin (labels of the node labeller)."""
_PRODUCTS = {
    "T4": ("Tesla-T4",),
    "V100-16GB": ("Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-FHHL-16GB"),
    "V100-32GB": ("Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-32GB"),
    "A10": ("NVIDIA-A10",),
    "A10G": ("NVIDIA-A10G",),
    "A30": ("NVIDIA-A30",),
    "A40": ("NVIDIA-A40",),
    "A6000": ("NVIDIA-RTX-A6000",),
    "A100-40GB": ("NVIDIA-A100-SXM4-40GB",),
    "A100-40GB-PCIe": ("NVIDIA-A100-PCIE-40GB",),
    "A100-80GB": ("NVIDIA-A100-SXM4-80GB",),
    "A100-80GB-PCIe": ("NVIDIA-A100-80GB-PCIe",),
    "L4": ("NVIDIA-L4",),
    "L40": ("NVIDIA-L40",),
    "L40S": ("NVIDIA-L40S",),
    "H100-PCIe": ("NVIDIA-H100-PCIe",),
    "H100-SXM": ("NVIDIA-H100-80GB-HBM3",),
    "H100-NVL": ("NVIDIA-H100-NVL",),
    "H200": ("NVIDIA-H200",),
    "H200-NVL": ("NVIDIA-H200-NVL",),
    "GH200": ("NVIDIA-GH200-480GB",),
    "B200": ("NVIDIA-B200",),
    "B300": ("NVIDIA-B300-SXM6-AC",),
    "GB200": ("NVIDIA-GB200",),
    "GB300": ("NVIDIA-GB300",),
    "RTX3090": ("NVIDIA-GeForce-RTX-3090",),
    "RTX4090": ("NVIDIA-GeForce-RTX-4090",),
    "RTX5090": ("NVIDIA-GeForce-RTX-5090",),
    "RTX6000-Ada": ("NVIDIA-RTX-6000-Ada-Generation",),
    "RTXPRO6000": (
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
        "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition",
    ),
    "MI250X": ("7408",),
    "MI300X": ("74a1", "74a9", "74b5", "74bd"),
    "MI325X": ("74a5",),
    "MI355X": ("75a3",),
}
"""What the labellers write. NVIDIA: the driver's name of the product with dashes for spaces (names as in
https://docs.runpod.io/references/gpu-types and on nvidia-smi); a GPU that is shared or cut up has another name, and is
not what was planned. AMD: PCI device ids (gpuhunt 0.1.34, constraints.py, from libdrm's amdgpu.ids)."""

_LABEL = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def machine_labels(job: DeployJob) -> dict[str, str]:
    """The machine of the plan, by the labels that managed clusters set; nothing where we do not know them."""
    offer = job.offer
    if offer is None or offer.provider not in _INSTANCE_LABELLED:
        return {}
    labels = {"node.kubernetes.io/instance-type": offer.instance}
    if offer.provider in _SPOT_LABELS and offer.region != UNSPECIFIED:
        labels["topology.kubernetes.io/region"] = offer.region
    if offer.provider == "gcp":
        mega, name = _GKE_MEGA
        gpu = name if offer.instance.startswith(mega) else _GKE_ACCELERATORS.get(job.deployment.gpu.key, "")
        labels["cloud.google.com/gke-accelerator"] = gpu
    wanted = {key: value for key, value in labels.items() if _LABEL.fullmatch(value)}
    spot = job.terms is Terms.spot and offer.provider in _SPOT_LABELS
    return wanted | dict([_SPOT_LABELS[offer.provider]] if spot else [])


def gpu_products(job: DeployJob) -> tuple[str, ...]:
    """Label values of the GPU; none where we do not know them."""
    return _PRODUCTS.get(job.deployment.gpu.key, ())


def placement(job: DeployJob, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """On which machines a pod may run: by instance type where its label is known, by GPU elsewhere.

    ``labels``: those that tell pods of one kind, where they are not the Deployment's.
    """
    placed: dict[str, Any] = {}
    if selector := machine_labels(job):
        placed["nodeSelector"] = selector
    elif products := gpu_products(job):
        label = PRODUCT_LABELS[job.deployment.gpu.vendor]
        terms = [{"matchExpressions": [{"key": label, "operator": "In", "values": list(products)}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        placed["affinity"] = {"nodeAffinity": required}
    tolerations = [{"key": GPU_RESOURCES[job.deployment.gpu.vendor], "operator": "Exists", "effect": "NoSchedule"}]
    if job.terms is Terms.spot and job.offer and job.offer.provider == "azure":
        key, value = _SPOT_LABELS["azure"]
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    if job.replicas > 1:
        # The two sides of a disaggregated fleet share machines: strictly even, one could keep the other out.
        strict = job.role is None and (bool(placed) or job.replicas_per_machine == 1)
        placed["topologySpreadConstraints"] = _spread(job, strict, labels or labels_of(job))
    return placed | {"tolerations": tolerations}


def _spread(job: DeployJob, strict: bool, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Strictly over machines, or over zones where one may fail; over the others as far as it can be had.

    Not strictly over machines where no label tells them apart: those without a GPU would count as empty ones. Nor
    beside zones: what is lost with a machine is lost with its zone too, and two strict rules can each forbid the only
    places that the other allows.
    """
    evenly = {"maxSkew": 1, "labelSelector": {"matchLabels": dict(labels)}}
    machine = evenly | {"topologyKey": "kubernetes.io/hostname"}
    zone = evenly | {"topologyKey": "topology.kubernetes.io/zone"}
    # Machines that a pod may not run on are not empty ones either.
    hard = {"whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}
    soft = {"whenUnsatisfiable": "ScheduleAnyway"}
    constraints = []
    if strict and not job.over_zones:
        # Where there are more places than replicas, the first machines would be filled before the last one is there.
        fewest = {"minDomains": job.machines} if _has_free_places(job) else {}
        constraints.append(machine | hard | fewest)
    # During an update old pods count above; the new ones are spread among themselves, as far as there is room.
    constraints.append(machine | soft | {"matchLabelKeys": ["pod-template-hash"]})
    constraints.append(zone | (hard | _zone_limits(job) if job.over_zones else soft))
    return constraints


def _zone_limits(job: DeployJob) -> dict[str, int]:
    """As even as the machines in the zones allow: a zone then has no more pods than the plan can do without."""
    zones = job.machines_in_zones
    larger = sum(machines > zones[-1] for machines in zones)
    # Once zones with a machine less are full, the larger ones share the other replicas.
    others = job.replicas - len(zones) * zones[-1] * job.places_per_machine
    return {"maxSkew": max(1, math.ceil(others / max(1, larger))), "minDomains": len(zones)}


def pod_requests(job: DeployJob) -> dict[str, str | int]:
    """What one replica may count on: its part of the machine, without what is left to the system."""
    offer, places = job.offer, job.places_per_machine
    part = (1 - _FOR_THE_SYSTEM) / places
    asked: dict[str, str | int] = {}
    if offer and offer.vcpus:
        cores = part * offer.vcpus
        asked["cpu"] = str(int(cores)) if cores >= 1 else f"{int(1000 * cores)}m"
    known = offer and offer.memory_gb
    memory = math.floor(part * known) if known else math.ceil(_needed_gib(job) / places)
    asked |= {"memory": f"{memory}Gi", "ephemeral-storage": f"{_SCRATCH_GIB}Gi"}
    return asked | pod_gpus(job)


def _needed_gib(job: DeployJob) -> float:
    """Memory of one machine that the replicas on it need, with what they keep of KV there."""
    kept = tier_bytes(job.deployment, job.tiers).get("dram", 0.0) * job.places_per_machine / job.machines_per_replica
    return host_gib(job.deployment, job.gpus_per_machine) + kept / GIB


def pod_gpus(job: DeployJob) -> dict[str, str | int]:
    """GPUs of one pod: those of a machine where a replica spans several."""
    return {GPU_RESOURCES[job.deployment.gpu.vendor]: min(job.deployment.gpus, job.gpus_per_machine)}


# --- objects --------------------------------------------------------------------------------------------------------


def labels_of(job: DeployJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": job.service_name}


def own_labels(job: DeployJob) -> dict[str, str]:
    """Tells pods of one kind where an operator gives the usual labels itself."""
    return {"tokonomics/replicas": job.service_name}


def _deployment(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    labels = labels_of(job)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": job.service_name, "labels": labels},
        "spec": {
            # No `replicas`: the autoscaler owns the number, and applying this file again must not undo it.
            "selector": {"matchLabels": labels},
            "strategy": update_strategy(job),
            "template": pod_template(job, command),
        },
    }


def pod_template(job: DeployJob, command: EngineCommand, port: int = PORT) -> dict[str, Any]:
    """A pod that runs one replica, with the labels and annotations that others find it by."""
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": _LEAVE_S + job.answer_s + STOP_S,
        "containers": [_container(job, command, port)],
        "volumes": [
            {"name": "model-cache", "persistentVolumeClaim": {"claimName": _claim_name(job)}},
            # Ranks exchange data through shared memory, of which a container has 64 MB by itself.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {"metadata": {"labels": labels_of(job), "annotations": scrape}, "spec": pod | placement(job)}


def update_strategy(job: DeployJob) -> dict[str, Any]:
    """Without spare machines none may be missing; with them, as many as the plan can do without."""
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": may_fail(job)}}


def may_fail(job: DeployJob) -> int:
    """Replicas that the plan can do without."""
    return min(job.replicas, job.spare * job.replicas_per_machine)


def _container(job: DeployJob, command: EngineCommand, port: int) -> dict[str, Any]:
    health = {"path": "/health", "port": "http"}
    token = {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}}
    return {
        "name": job.deployment.engine.key,
        "image": command.image,
        # The containers of these engines have python3; not all have python.
        "command": ["python3" if word == "python" else word for word in command.program],
        "args": [*command.arguments, *listen(port)],
        "env": [
            {"name": "HF_HOME", "value": _WEIGHTS_FOLDER},
            {"name": "HF_TOKEN", "valueFrom": token},
            # Where the other side asks for KV (vLLM 0.32.0, envs.py).
            *([{"name": NIXL_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}] if job.role else ()),
        ],
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"requests": pod_requests(job), "limits": pod_gpus(job)},
        "startupProbe": {"httpGet": health, "periodSeconds": PROBE_S, "failureThreshold": job.start_s // PROBE_S},
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": health, "periodSeconds": PROBE_S, "timeoutSeconds": 5, "failureThreshold": 6},
        # The engine is told to stop only when its last requests have been answered.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVE_S + job.answer_s)]}}},
        "volumeMounts": [
            {"name": "model-cache", "mountPath": _WEIGHTS_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def weights_claim(job: DeployJob) -> dict[str, Any]:
    model = job.deployment.model
    needed = _REVISIONS * model.weight_bytes(model.checkpoint) / GIB
    size = _WEIGHTS_STEP_GIB * math.ceil(needed / _WEIGHTS_STEP_GIB)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _claim_name(job), "labels": labels_of(job)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": _storage_class(),
            "resources": {"requests": {"storage": f"{size}Gi"}},
        },
    }


def _claim_name(job: DeployJob) -> str:
    return f"{job.public_name}-weights"


def _storage_class() -> str:
    return f"{FILL_IN}-shared"


def _service(job: DeployJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.service_name, "labels": labels_of(job)},
        "spec": {"selector": labels_of(job), "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }


def _disruption_budget(job: DeployJob) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": job.service_name, "labels": labels_of(job)},
        "spec": {
            # None at all would keep a machine from ever being drained.
            "maxUnavailable": max(1, may_fail(job)),
            "selector": {"matchLabels": labels_of(job)},
            # A pod that serves nothing must not keep a machine from being drained either.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def autoscaler(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": str(WAITING_PER_REPLICA)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job.service_name, "labels": labels_of(job)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": job.service_name},
            "minReplicas": job.replicas,
            "maxReplicas": job.most_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": command.queue_metric}, "target": target}}],
            "behavior": scaling_behavior(job),
        },
    }


def scaling_behavior(job: DeployJob) -> dict[str, Any]:
    """A replica that has just loaded its weights should not be sent away again at once."""
    return {"scaleDown": {"stabilizationWindowSeconds": min(job.start_s, _LONGEST_WINDOW_S)}}
