"""A plan as Kubernetes objects: a Deployment of replicas, a Service in front, an autoscaler on the engine's own queue.

GPUs are asked for by their device plugin's resource name, so the scheduler packs replicas onto machines as the plan
does. CPU and GPU utilisation say nothing about the load of an engine that fills its memory at start; the number of
waiting requests does, so the autoscaler (``autoscaling/v2``) adds replicas when requests queue.
"""

import re
from typing import Any

from tokonomics.catalog.gpus import Vendor
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import PORT, DeployJob, yaml_text
from tokonomics.planner.engine_commands import EngineCommand, listen

_WEIGHTS_FOLDER = "/models"
"""Where a pod keeps downloaded weights (HF_HOME), whoever it runs as."""
_RESOURCES: dict[Vendor, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "habana.ai/gaudi"}
"""Names of the vendors' device plugins."""

_SPOT_LABELS = {
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}
"""How the managed clusters of each cloud label their spot machines (EKS, GKE and AKS documentation)."""

_WAITING_PER_REPLICA = 5
"""Queued requests at which a replica is added: the example of vLLM's production stack (use_cases/autoscaling-keda)."""

_LABEL = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PROBE_S = 10
_LONGEST_WINDOW_S = 3600
"""What Kubernetes allows (API reference, HPAScalingRules v2)."""


def kubernetes_objects(job: DeployJob, command: EngineCommand) -> str:
    """Deployment, Service and HorizontalPodAutoscaler, without their heading."""
    if job.nodes_per_replica > 1:
        raise BadInput(
            f"a replica spans {job.nodes_per_replica} machines, which a Deployment cannot start",
            where=option("deploy", "kubernetes"),
            fix=f"Use {option('deploy', 'skypilot')}, or plan with a larger machine.",
        )
    objects = (_deployment(job, command), _service(job), _autoscaler(job, command))
    return "---\n".join(yaml_text(each) for each in objects)


def kubernetes_notes(job: DeployJob, command: EngineCommand) -> list[str]:
    """What the cluster has to have."""
    kinds = _RESOURCES[job.deployment.gpu.vendor]
    notes = [
        f"Start: kubectl apply -f {job.service_name}-kubernetes.yaml.",
        f"The plan is minReplicas ({job.replicas}); more cost more.",
        f"The cluster needs machines with {job.deployment.gpu.key} and the device plugin for {kinds}.",
        f"The autoscaler needs {command.queue_metric} in the custom metrics API: Prometheus and prometheus-adapter.",
        "Weights are kept as long as the pod: mount a volume claim at model-cache to keep them longer.",
        "Gated weights: kubectl create secret generic hugging-face --from-literal=token=…",
    ]
    if job.router and job.replicas > 1:
        notes.append(
            f"The plan was sized behind a {job.router} router. A Service spreads connections at random, which keeps "
            "the SLO less well: put a gateway in front that routes each request, or plan with more --spare."
        )
    if job.offer and not _selector(job):
        notes.append(
            f"Planned on {job.offer.provider} {job.offer.instance}, {job.offer.region}: see that pods run there."
        )
    return notes


def _deployment(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    labels: dict[str, Any] = {"app.kubernetes.io/name": job.service_name}
    scrape: dict[str, Any] = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": "/metrics",
    }
    pod: dict[str, Any] = {
        "containers": [_container(job, command)],
        "volumes": [
            {"name": "model-cache", "emptyDir": {}},
            # Ranks exchange data through shared memory, of which a container has 64 MB by itself.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if selector := _selector(job):
        pod["nodeSelector"] = selector
    resource = _RESOURCES[job.deployment.gpu.vendor]
    tolerations: list[dict[str, str]] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if job.terms is Terms.spot and job.offer and job.offer.provider == "azure":
        key, value = _SPOT_LABELS["azure"]
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    pod["tolerations"] = tolerations
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": job.service_name, "labels": labels},
        "spec": {
            # No `replicas`: the autoscaler owns the number, and applying this file again must not undo it.
            "selector": {"matchLabels": labels},
            # The plan pays for no spare GPU, so an old pod has to leave before a new one can start.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels, "annotations": scrape}, "spec": pod},
        },
    }


def _container(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    health: dict[str, Any] = {"path": "/health", "port": "http"}
    return {
        "name": job.deployment.engine.key,
        "image": command.image,
        # The containers of these engines have python3; not all have python.
        "command": ["python3" if each == "python" else each for each in command.program],
        "args": [*command.arguments, *listen()],
        "env": [
            {"name": "HF_HOME", "value": _WEIGHTS_FOLDER},
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}},
            },
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "requests": {_RESOURCES[job.deployment.gpu.vendor]: job.deployment.gpus},
            "limits": {_RESOURCES[job.deployment.gpu.vendor]: job.deployment.gpus},
        },
        "startupProbe": {"httpGet": health, "periodSeconds": _PROBE_S, "failureThreshold": job.start_s // _PROBE_S},
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": health, "periodSeconds": _PROBE_S, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "model-cache", "mountPath": _WEIGHTS_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _selector(job: DeployJob) -> dict[str, Any]:
    """The machine of the plan, by the labels that managed clusters set; nothing where we do not know them."""
    offer = job.offer
    if offer is None or offer.provider not in _SPOT_LABELS:
        return {}
    wanted: dict[str, Any] = {}
    labels = {"node.kubernetes.io/instance-type": offer.instance, "topology.kubernetes.io/region": offer.region}
    wanted.update({key: value for key, value in labels.items() if _LABEL.fullmatch(value)})
    if job.terms is Terms.spot:
        key, value = _SPOT_LABELS[offer.provider]
        wanted[key] = value
    return wanted


def _service(job: DeployJob) -> dict[str, Any]:
    labels: dict[str, Any] = {"app.kubernetes.io/name": job.service_name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.service_name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }


def _autoscaler(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job.service_name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": job.service_name},
            "minReplicas": job.replicas,
            "maxReplicas": job.max_replicas or 2 * job.replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": command.queue_metric},
                        "target": {"type": "AverageValue", "averageValue": str(_WAITING_PER_REPLICA)},
                    },
                }
            ],
            # A replica that has just loaded its weights should not be sent away again at once.
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": min(job.start_s, _LONGEST_WINDOW_S)}},
        },
    }
