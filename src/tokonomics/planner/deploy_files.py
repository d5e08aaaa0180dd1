"""The files that start what was planned: a vLLM or SGLang command, a SkyPilot task, or Kubernetes objects.

Each is text made from the plan alone, headed by which plan made it and by what the user still has to fill in. What the
files were validated with is in docs/deploy.md.

SkyPilot: the plan's offer comes from SkyPilot's own catalogue, so its instance is asked for by name. Replicas are a
``service`` (``sky serve up``), which replaces machines that are lost. Several replicas on one machine share a port by
data parallelism, or, where the engine cannot do that, have a port each and no service.

Kubernetes: GPUs are asked for by their device plugin's resource name, so the scheduler packs replicas onto machines as
the plan does. The autoscaler (``autoscaling/v2``) adds replicas when requests queue: CPU and GPU utilisation say
nothing about the load of an engine that fills its memory at start.
"""

import math
import re
from datetime import date
from enum import StrEnum
from typing import Any

import yaml

from tokonomics.catalog.gpus import Vendor
from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import (
    FILL_IN,
    PORT,
    DeployJob,
    EngineCommand,
    Shell,
    copies_in_one_server,
    engine_command,
    listen,
    over_nodes,
    shell_line,
)
from tokonomics.types import Noun
from tokonomics.units import BYTES_PER_GB


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
            body, notes, ending = _engine_line(target, job, command), _engine_notes(job), "sh"
        case Target.skypilot:
            body, notes, ending = _skypilot_task(job, command), _skypilot_notes(job), "yaml"
        case Target.kubernetes:
            body, notes, ending = _kubernetes_objects(job, command), _kubernetes_notes(job, command), "yaml"
    fill_in = [*command.fill_in]
    if target is Target.kubernetes and command.image.startswith(FILL_IN):
        fill_in.append(f"{command.image}: a container with {engine.name} for {job.deployment.gpu.key}")
    heading = [job.provenance, *_what(job), *notes, *(f"FILL IN {text}" for text in fill_in)]
    return DeployFile(
        name=f"{job.service_name}-{target.value}.{ending}",
        text=("#!/bin/sh\n" if ending == "sh" else "") + "".join(map(comment, heading)) + body,
        fill_in=tuple(fill_in),
    )


def provenance(command: str, made_on: date, offer: Offer | None) -> str:
    """Which plan made a file: the command line, the day, and how old its price is."""
    price = f"; {offer.provider} {offer.instance}, {offer.region}: price of {offer.date}" if offer else ""
    return f"Made by `{' '.join(command.split())}` on {made_on}{price}."


def _what(job: DeployJob) -> list[str]:
    deployment = job.deployment
    engine, model = deployment.engine, deployment.model
    lines = [f"{job.replicas} × ({deployment}), KV {deployment.kv}, {engine.name} {engine.version}."]
    if deployment.weights.is_below(model.served):
        lines.append(f"Weights below the checkpoint's {model.checkpoint}: check quality on your own task.")
    return [*lines, "Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model."]


def comment(text: str) -> str:
    """Text as ``#`` lines; what could end a line early in a shell or in YAML is shown instead of obeyed."""
    shown = ("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
             for line in text.strip().splitlines() or [""])  # fmt: skip
    return "".join(f"# {line}".rstrip() + "\n" for line in shown)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Block style, lists indented, nothing named and pointed at."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Lines as a literal block; quoted unless every reader of YAML 1.1 or 1.2 takes it for a string."""
        not_strings = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
        plain = re.fullmatch("[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in not_strings
        style = "|" if text.endswith("\n") and text[0].isalnum() else None if plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(value: object) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=math.inf))


# --- one engine -----------------------------------------------------------------------------------------------------


def _engine_notes(job: DeployJob) -> list[str]:
    if job.replicas == 1:
        return []
    gpus = "its own GPU" if job.deployment.gpus == 1 else f"its own {job.deployment.gpus} GPUs"
    router = f"a {job.router} router" if job.router else "a load balancer"
    return [f"The plan runs {job.replicas} of these, each on {gpus}, behind {router}."]


def _engine_line(target: Target, job: DeployJob, command: EngineCommand) -> str:
    if job.nodes_per_replica > 1:
        raise BadInput(
            f"a replica spans {job.nodes_per_replica} machines, which no single command starts",
            where=option("deploy", target),
            fix=f"Use {option('deploy', 'skypilot')}.",
        )
    return shell_line((*command.program, *command.arguments, *listen())) + "\n"


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
        task["num_nodes"] = job.nodes
        server = _a_server_per_port(job, command)
    else:
        task["num_nodes"] = job.nodes_per_replica
        task["service"] = {
            "readiness_probe": {"path": "/health", "initial_delay_seconds": job.start_s},
            "replicas": job.nodes // job.nodes_per_replica,
            "ports": PORT,
        }
        server = _one_server(job, command, copies)
    # Empty unless `--secret HF_TOKEN` hands over the one of your shell.
    task |= {"secrets": {"HF_TOKEN": ""}, "setup": f"pip install {command.package}\n", "run": f"{server}\n"}
    return yaml_text(task)


def _skypilot_notes(job: DeployJob) -> list[str]:
    name, offer = f"{job.service_name}-skypilot.yaml", job.offer
    if copies_in_one_server(job) is None:
        ports = f"{PORT} to {PORT + job.replicas_per_node - 1}"
        notes = [f"Start: sky launch {name}. Put a load balancer over ports {ports} of all {job.nodes} machines."]
    else:
        notes = [f"Start: sky serve up {name} (sky launch starts one replica of it). Gated weights: --secret HF_TOKEN."]
    if offer is None:
        notes.append("The plan names no offer: SkyPilot takes the cheapest it knows.")
    elif offer.provider not in CLOUDS:
        notes.append(f"SkyPilot does not rent from {offer.provider}: it looks elsewhere, at another price.")
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
        resources["accelerators"] = f"{_gpu_name(job)}:{job.gpus_per_node}"
    resources["use_spot"] = job.terms is Terms.spot
    resources["ports"] = f"{PORT}-{PORT + job.replicas_per_node - 1}" if several_ports else PORT
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


# --- Kubernetes -----------------------------------------------------------------------------------------------------

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


def _kubernetes_objects(job: DeployJob, command: EngineCommand) -> str:
    """A Deployment of replicas, a Service in front, an autoscaler on the engine's own queue."""
    if job.nodes_per_replica > 1:
        raise BadInput(
            f"a replica spans {job.nodes_per_replica} machines, which a Deployment cannot start",
            where=option("deploy", "kubernetes"),
            fix=f"Use {option('deploy', 'skypilot')}, or plan with a larger machine.",
        )
    return "---\n".join(map(yaml_text, (_deployment(job, command), _service(job), _autoscaler(job, command))))


def _kubernetes_notes(job: DeployJob, command: EngineCommand) -> list[str]:
    notes = [
        f"Start: kubectl apply -f {job.service_name}-kubernetes.yaml.",
        f"The plan is minReplicas ({job.replicas}); more cost more.",
        f"The cluster needs machines with {job.deployment.gpu.key} and the device plugin for "
        f"{_RESOURCES[job.deployment.gpu.vendor]}.",
        f"The autoscaler needs {command.queue_metric} in the custom metrics API: Prometheus and prometheus-adapter.",
        "Weights are kept as long as the pod: mount a volume claim at model-cache to keep them longer.",
        "Gated weights: kubectl create secret generic hugging-face --from-literal=token=…",
    ]
    if job.router and job.replicas > 1:
        notes.append(
            f"The plan was sized behind a {job.router} router. A Service spreads connections at random, which misses "
            "the SLO more often: put a gateway in front that routes each request, or plan with more --spare."
        )
    if job.offer and not _selector(job):
        notes.append(
            f"Planned on {job.offer.provider} {job.offer.instance}, {job.offer.region}: see that pods run there."
        )
    return notes


def _deployment(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": job.service_name}
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
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
    pod["tolerations"] = [{"key": _RESOURCES[job.deployment.gpu.vendor], "operator": "Exists", "effect": "NoSchedule"}]
    if job.terms is Terms.spot and job.offer and job.offer.provider == "azure":
        key, value = _SPOT_LABELS["azure"]
        pod["tolerations"].append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
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
    health = {"path": "/health", "port": "http"}
    gpus = {_RESOURCES[job.deployment.gpu.vendor]: job.deployment.gpus}
    token = {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}}
    return {
        "name": job.deployment.engine.key,
        "image": command.image,
        # The containers of these engines have python3; not all have python.
        "command": ["python3" if word == "python" else word for word in command.program],
        "args": [*command.arguments, *listen()],
        "env": [{"name": "HF_HOME", "value": _WEIGHTS_FOLDER}, {"name": "HF_TOKEN", "valueFrom": token}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": gpus, "limits": gpus},
        "startupProbe": {"httpGet": health, "periodSeconds": _PROBE_S, "failureThreshold": job.start_s // _PROBE_S},
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": health, "periodSeconds": _PROBE_S, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "model-cache", "mountPath": _WEIGHTS_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _selector(job: DeployJob) -> dict[str, str]:
    """The machine of the plan, by the labels that managed clusters set; nothing where we do not know them."""
    offer = job.offer
    if offer is None or offer.provider not in _SPOT_LABELS:
        return {}
    labels = {"node.kubernetes.io/instance-type": offer.instance, "topology.kubernetes.io/region": offer.region}
    wanted = {key: value for key, value in labels.items() if _LABEL.fullmatch(value)}
    return wanted | dict([_SPOT_LABELS[offer.provider]] if job.terms is Terms.spot else [])


def _service(job: DeployJob) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": job.service_name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.service_name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }


def _autoscaler(job: DeployJob, command: EngineCommand) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": str(_WAITING_PER_REPLICA)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job.service_name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": job.service_name},
            "minReplicas": job.replicas,
            "maxReplicas": 2 * job.replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": command.queue_metric}, "target": target}}],
            # A replica that has just loaded its weights should not be sent away again at once.
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": min(job.start_s, _LONGEST_WINDOW_S)}},
        },
    }
