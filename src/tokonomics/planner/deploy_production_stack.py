"""vLLM production-stack: Helm values of its chart, which starts vLLM, a router and KEDA's ScaledObject.

The chart has fields for the usual flags; the others are its ``extraArgs``. Its own trigger adds a replica for every
five waiting requests, as the plan's autoscaler does, and is left as it is: its schema takes triggers for an object
where KEDA has a list. Fields: chart vllm-stack, 0.1.9 or later (helm/values.schema.json, helm/templates).
"""

import math
from collections.abc import Sequence
from typing import Any

from tokonomics.planner.deploy_job import PORT, DeployJob
from tokonomics.planner.deploy_kubernetes import (
    GPU_RESOURCES,
    PROBE_S,
    PRODUCT_LABELS,
    PROMETHEUS_FAILURES,
    TOKEN,
    WAITING,
    gpu_products,
    kubernetes_fill_in,
    machine_labels,
    placement,
    pod_requests,
    update_strategy,
    weights_claim,
)
from tokonomics.planner.deploy_target import (
    FleetSide,
    Written,
    band,
    cluster_notes,
    engine_limits,
    refuse_apart,
    refuse_other_engines,
    refuse_spanning,
)
from tokonomics.planner.deploy_text import Target, yaml_text
from tokonomics.serving.fleet import Router

_FIELDS = {
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--max-model-len": ("maxModelLen", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", float),
    "--dtype": ("dtype", str),
    "--runner": ("runner", str),
}
"""Flags of vLLM that the chart has a field for; it would give them twice otherwise."""
_ROUTING = {Router.round_robin.value: "roundrobin", Router.prefix_aware.value: "prefixaware"}


def write_production_stack(sides: Sequence[FleetSide]) -> Written:
    """The values of one chart."""
    refuse_other_engines(Target.production_stack, sides, "the production stack starts vLLM")
    refuse_apart(Target.production_stack, sides, "its chart sends KV by LMCache between one named pair, not by NIXL")
    refuse_spanning(Target.production_stack, sides, "which its chart starts with Ray, not as was planned")
    (side,) = sides
    job, _ = side
    routing = _ROUTING.get(job.router or "")
    values = {
        "servingEngineSpec": {
            "enableEngine": True,
            "containerPort": PORT,
            "startupProbe": {
                "initialDelaySeconds": 15,
                "periodSeconds": PROBE_S,
                "failureThreshold": job.start_s // PROBE_S,
                "httpGet": {"path": "/health", "port": PORT},
            },
            "strategy": update_strategy(job),
            "tolerations": placement(job)["tolerations"],
            "modelSpec": [_model(side)],
        },
        "routerSpec": {"enableRouter": True, "replicaCount": 1, "routingLogic": routing or "roundrobin"},
    }
    name = job.public_name
    return Written(
        files={"production-stack.yaml": yaml_text(values)},
        start="helm repo add vllm https://vllm-project.github.io/production-stack; "
        f"helm install {name} vllm/vllm-stack -f {name}-production-stack.yaml; KEDA and Prometheus (the chart's "
        "trigger asks prometheus-operated.monitoring.svc:9090) have to be there already; clients ask the service "
        f"{name}-router-service",
        notes=cluster_notes(sides, f"{TOKEN} The chart wants the secret to be there: with any token for open weights."),
        carries=[
            band(side, f"keda, with the chart's own trigger: {WAITING} a replica"),
            *map(engine_limits, sides),
            *([f"the {job.router} router (routingLogic)"] if routing else []),
            "machines (nodeSelectorTerms)",
        ],
        lacks=[
            *([] if routing or not job.router else [f"the {job.router} router: its router takes turns"]),
            "the spread over machines or zones, on which spare ones rely: see that replicas are on all of them",
        ],
        fill_in=kubernetes_fill_in(*side),
    )


def _model(side: FleetSide) -> dict[str, Any]:
    job, command = side
    repository, _, tag = command.image.partition(":")
    requests, claim = pod_requests(job), weights_claim(job)["spec"]
    config, extra = _vllm_config(command.arguments[1:])
    return {
        "name": job.public_name.removeprefix("llm-"),
        "repository": repository,
        "tag": tag,
        "modelURL": command.arguments[0],
        "replicaCount": job.replicas,
        "requestCPU": _whole_cores(str(requests.get("cpu", "1"))),
        "requestMemory": requests["memory"],
        "requestGPU": job.deployment.gpus,
        "requestGPUType": GPU_RESOURCES[job.deployment.gpu.vendor],
        "pvcStorage": claim["resources"]["requests"]["storage"],
        "pvcAccessMode": claim["accessModes"],
        "storageClass": claim["storageClassName"],
        "hf_token": {"secretName": "hugging-face", "secretKey": "token"},
        **({"nodeSelectorTerms": terms} if (terms := _machine_terms(job)) else {}),
        "vllmConfig": {**config, "extraArgs": extra},
        "keda": {
            "enabled": True,
            "minReplicaCount": job.replicas,
            "maxReplicaCount": job.most_replicas,
            "fallback": {"failureThreshold": PROMETHEUS_FAILURES, "replicas": job.replicas},
        },
    }


def _vllm_config(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Flags that the chart has fields for, and the rest as words."""
    config: dict[str, Any] = {"enablePrefixCaching": "--enable-prefix-caching" in words}
    extra: list[str] = []
    left = iter(word for word in words if word != "--enable-prefix-caching")
    for word in left:
        if word in _FIELDS:
            name, kind = _FIELDS[word]
            config[name] = kind(next(left))
        else:
            extra.append(word)
    return config, extra


def _whole_cores(cpu: str) -> int:
    return max(1, math.floor(int(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)))


def _machine_terms(job: DeployJob) -> list[dict[str, Any]]:
    """The machine's labels, or its GPU's, as terms of a node selector."""
    wanted = {key: [value] for key, value in machine_labels(job).items()}
    if not wanted and gpu_products(job):
        wanted = {PRODUCT_LABELS[job.deployment.gpu.vendor]: list(gpu_products(job))}
    expressions = [{"key": key, "operator": "In", "values": values} for key, values in wanted.items()]
    return [{"matchExpressions": expressions}] if expressions else []
