"""NVIDIA Dynamo: a DynamoGraphDeployment of a frontend that routes and of workers, with ScaledObjects for the workers.

The operator joins the machines of one replica by itself (``multinode``), and gives probes, ports and shared memory.
Each kind of workers has a scaling adapter, which KEDA turns.

Fields: Dynamo 1.6.1 (deploy/operator/api/v1beta1; manifests in the ai-dynamo wheel, dynamo/profiler/templates/dgd);
routers: dynamo/common/configuration/groups/router_args.py.
"""

from collections.abc import Sequence
from typing import Any

from tokonomics.planner.deploy_job import FILL_IN
from tokonomics.planner.deploy_keda import PROMETHEUS_FILL_IN, scaled_object
from tokonomics.planner.deploy_kubernetes import (
    TOKEN,
    WAITING,
    kubernetes_fill_in,
    own_labels,
    placement,
    pod_template,
    weights_claim,
)
from tokonomics.planner.deploy_target import FleetSide, Written, band, cluster_notes, engine_limits
from tokonomics.planner.deploy_text import yaml_text
from tokonomics.serving.fleet import Router

_VERSION = "1.6.1"
_RUNS = {"vllm": "0.31.0", "sglang": "0.5.21"}
"""Engines that its containers bring (the wheel's requirements)."""
_ROUTER_MODES = {
    Router.round_robin.value: "round-robin",
    Router.least_outstanding.value: "least-loaded",
    Router.power_of_two.value: "power-of-two",
    Router.prefix_aware.value: "kv",
}
_PARTS_OF_THE_OPERATOR = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_SHARED_MEMORY = "shared-memory"


def write_dynamo(sides: Sequence[FleetSide]) -> Written:
    """The graph, the volume of weights, and what scales each kind of workers."""
    job = sides[-1].job
    engine, name = job.deployment.engine, job.public_name
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"backendFramework": engine.key, "components": [_frontend(sides), *map(_workers, sides)]},
    }
    scalers = []
    for side in sides:
        part = _component_name(side)
        adapter = {
            "apiVersion": "nvidia.com/v1beta1",
            "kind": "DynamoGraphDeploymentScalingAdapter",
            "name": f"{name}-{part}",
        }
        scalers.append(scaled_object(side, adapter, f"{name}-.*{part}.*"))
    image = _image(job.deployment.engine.key, job.deployment.gpu.vendor)
    own = [f"{image}: a Dynamo container for {job.deployment.gpu.key}"] if image.startswith(FILL_IN) else []
    storage = [text for text in kubernetes_fill_in(*sides[-1]) if not text.startswith(sides[-1].command.image)]
    return Written(
        files={"dynamo.yaml": "---\n".join(map(yaml_text, [weights_claim(sides[0].job), graph, *scalers]))},
        start=f"kubectl apply -f {name}-dynamo.yaml; Dynamo's operator, KEDA and Prometheus have to be there already; "
        f"clients ask the service {name}-frontend",
        notes=cluster_notes(sides, TOKEN),
        carries=[
            *(band(side, f"scalingAdapter and ScaledObject, {WAITING} a replica") for side in sides),
            *map(engine_limits, sides),
            *([f"the {job.router} router (frontend's router mode)"] if job.router else []),
            "machines, spare ones and their spread (nodeSelector, topologySpreadConstraints)",
        ],
        lacks=[
            f"{engine.name} {engine.version}: Dynamo {_VERSION}'s containers bring {_RUNS[engine.key]}",
            "a disruption budget: drain one machine at a time",
        ],
        fill_in=[*own, *storage, PROMETHEUS_FILL_IN],
    )


def _image(engine: str, vendor: str) -> str:
    if vendor != "nvidia":
        return f"{FILL_IN}/dynamo-{engine}-{vendor}:{_VERSION}"
    return f"nvcr.io/nvidia/ai-dynamo/{engine}-runtime:{_VERSION}"


def _component_name(side: FleetSide) -> str:
    return side.job.role.value if side.job.role else "worker"


def _frontend(sides: Sequence[FleetSide]) -> dict[str, Any]:
    job = sides[-1].job
    container = {
        "name": "main",
        "image": _image(job.deployment.engine.key, job.deployment.gpu.vendor),
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": ["--router-mode", _ROUTER_MODES.get(job.router or "", "round-robin")],
    }
    return {
        "name": "frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": {"spec": {"containers": [container]}},
    }


def _words(side: FleetSide) -> list[str]:
    """The engine's flags, which Dynamo takes as they are; vLLM's model and its role are named by two more."""
    job, command = side
    if job.deployment.engine.key == "vllm":
        role = ["--disaggregation-mode", job.role.value] if job.role else []
        return ["--model", *command.arguments, *role]
    words = [*command.arguments]
    if "--attn-dp-size" in words:
        # SGLang 0.5.21 spells it so.
        words[words.index("--attn-dp-size")] = "--dp-size"
        words.append("--enable-dp-attention")
    return words


def _workers(side: FleetSide) -> dict[str, Any]:
    job, command = side
    deployment = job.deployment
    template = pod_template(job, command)
    template["metadata"] = {"labels": own_labels(job)}
    pod = template["spec"] | placement(job, own_labels(job))
    template["spec"] = pod
    (container,) = pod["containers"]
    container |= {
        "name": "main",
        "image": _image(deployment.engine.key, deployment.gpu.vendor),
        "command": ["python3", "-m", f"dynamo.{deployment.engine.key}"],
        "args": _words(side),
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["name"] != _SHARED_MEMORY],
    }
    for part in _PARTS_OF_THE_OPERATOR:
        del container[part]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != _SHARED_MEMORY]
    several = {"multinode": {"nodeCount": job.machines_per_replica}} if job.machines_per_replica > 1 else {}
    return {
        "name": _component_name(side),
        "type": _component_name(side),
        "replicas": job.replicas,
        "scalingAdapter": {},
        **several,
        "podTemplate": template,
    }
