"""KServe: one LLMInferenceService, whose presets start vLLM and llm-d's endpoint picker.

The presets make the command: parallel sizes are fields of the service, which the presets for several machines make
flags of; every other flag goes through the variable VLLM_ADDITIONAL_ARGS. The preset for one machine leaves out most of
those fields, so there all flags are given. A replica on several machines has a ``worker`` (a LeaderWorkerSet); prompts
of a disaggregated fleet have a ``prefill`` of their own. Autoscaling is the Workload Variant Autoscaler's, which is
told what a replica costs.

Fields: KServe 0.21.0 (pkg/apis/serving/v1alpha2/llm_inference_service_types.go, config/llmisvcconfig).
"""

import shlex
from collections.abc import Sequence
from typing import Any

from tokonomics.planner.deploy_job import FILL_IN, DeployJob, Role
from tokonomics.planner.deploy_kubernetes import PROMETHEUS_FAILURES, own_labels, placement, pod_gpus, pod_requests
from tokonomics.planner.deploy_llm_d import endpoint_picker, picked_as
from tokonomics.planner.deploy_target import (
    FleetSide,
    Written,
    band,
    cluster_notes,
    engine_limits,
    refuse_other_engines,
)
from tokonomics.planner.deploy_text import Target, yaml_text

_TENSOR, _PIPELINE, _DATA = (f"--{kind}-parallel-size" for kind in ("tensor", "pipeline", "data"))
_EXPERTS = "--enable-expert-parallel"


def write_kserve(sides: Sequence[FleetSide]) -> Written:
    """The service; where there are two sides, the one that answers is the service itself."""
    refuse_other_engines(Target.kserve, sides, "KServe's presets start vLLM")
    serving = sides[-1]
    job, command = serving
    carried, missing = picked_as(sides)
    spec = {
        "model": {"uri": f"hf://{command.arguments[0]}", "name": job.public_name},
        **_workload(serving),
        **({"prefill": _workload(sides[0])} if sides[0].job.role is Role.prefill else {}),
        "router": {"gateway": {}, "route": {}, "scheduler": {"config": {"inline": endpoint_picker(sides)}}},
    }
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": job.public_name},
        "spec": spec,
    }
    fixed = ", ".join(f"replicas: {side.job.replicas} for {side.does}" for side in sides)
    return Written(
        files={"kserve.yaml": yaml_text(service)},
        start=f"kubectl apply -f {job.public_name}-kserve.yaml; KServe's autoscaling (Workload Variant Autoscaler, "
        f"KEDA, Prometheus) has to be there already: without it put {fixed} in place of scaling; clients ask the URL "
        f"that kubectl get llminferenceservice {job.public_name} shows",
        notes=cluster_notes(
            sides,
            "Gated weights: a secret with HF_TOKEN that the service account of KServe's storage initializer uses.",
        ),
        carries=[
            *(band(side, "spec.scaling") for side in sides),
            *map(engine_limits, sides),
            *carried,
            "machines, spare ones and their spread (nodeSelector, topologySpreadConstraints)",
        ],
        lacks=[
            *missing,
            f"vLLM {job.deployment.engine.version}: the presets bring their own, see its version",
            "the queue at which a replica is added: the Workload Variant Autoscaler decides by its own rules",
        ],
        fill_in=[f"{command.image}: a container with vLLM"] if command.image.startswith(FILL_IN) else [],
    )


def _workload(side: FleetSide) -> dict[str, Any]:
    """One kind of pods: how many, how split, on which machines."""
    job = side.job
    deployment, several = job.deployment, job.machines_per_replica > 1
    parallelism = {
        "tensor": deployment.tp,
        **({"pipeline": deployment.pp} if deployment.pp > 1 else {}),
        **({"data": deployment.dp} if deployment.dp > 1 else {}),
        **({"dataLocal": job.groups_per_machine} if several and job.groups_per_machine else {}),
        **({"expert": True} if deployment.ep > 1 else {}),
    }
    pod = _pod(side)
    return {
        "scaling": _scaling(side),
        "parallelism": parallelism,
        "labels": own_labels(job),
        "template": pod,
        **({"worker": pod} if several else {}),
    }


def _scaling(side: FleetSide) -> dict[str, Any]:
    job = side.job
    keda = {"fallback": {"failureThreshold": PROMETHEUS_FAILURES, "replicas": job.replicas}}
    cost = {} if job.usd_per_hour is None else {"variantCost": f"{job.usd_per_hour * job.machines / job.replicas:.4f}"}
    return {"minReplicas": job.replicas, "maxReplicas": job.most_replicas, "wva": {**cost, "keda": keda}}


def _more_flags(side: FleetSide) -> list[str]:
    """What the preset does not say itself."""
    said = _flags_of_preset(side.job)
    words = iter(side.command.arguments[1:])
    kept: list[str] = []
    for word in words:
        if word not in said:
            kept.append(word)
        elif word != _EXPERTS:
            next(words)  # its size
    return kept


def _flags_of_preset(job: DeployJob) -> set[str]:
    """Made of the fields of ``parallelism`` (config-llm-worker-data-parallel, config-llm-worker-pipeline-parallel)."""
    if job.machines_per_replica == 1:
        return set()
    data, stages = job.deployment.dp > 1, job.deployment.pp > 1
    if data == stages:
        return set()  # there is no preset for both, or for layers alone that are split over machines
    return {_TENSOR, _DATA, _EXPERTS} if data else {_TENSOR, _PIPELINE}


def _pod(side: FleetSide) -> dict[str, Any]:
    """What differs from the preset's pod."""
    job, command = side
    # NVIDIA's preset containers run as a user of their own; another image has to be named elsewhere.
    image = {} if job.deployment.gpu.vendor == "nvidia" else {"image": command.image}
    container = {
        "name": "main",
        **image,
        "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": shlex.join(_more_flags(side))}],
        "resources": {"requests": pod_requests(job), "limits": pod_gpus(job)},
    }
    return {"containers": [container], **placement(job, own_labels(job))}
