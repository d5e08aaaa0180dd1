"""KEDA: the Kubernetes objects of a plan, with a ScaledObject in place of the HorizontalPodAutoscaler.

It asks Prometheus for the engine's queue by itself, so no adapter is needed, and holds the planned replicas when
Prometheus does not answer. Fields: KEDA 2 (apis/keda/v1alpha1/scaledobject_types.go), its scaler "Prometheus".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokonomics.planner.deploy_apart import router_fill_in, router_objects
from tokonomics.planner.deploy_job import FILL_IN, PORT
from tokonomics.planner.deploy_kubernetes import (
    PROMETHEUS_FAILURES,
    TOKEN,
    WAITING,
    WAITING_PER_REPLICA,
    kubernetes_fill_in,
    labels_of,
    scaling_behavior,
    serving_objects,
)
from tokonomics.planner.deploy_target import FleetSide, Written, band, cluster_notes, engine_limits
from tokonomics.planner.deploy_text import Target, yaml_text

PROMETHEUS = f"http://{FILL_IN}-prometheus:9090"
PROMETHEUS_FILL_IN = f"{PROMETHEUS}: the address of the Prometheus that scrapes these pods"
_POD = "-[a-z0-9]+-[a-z0-9]{5}"
"""How the name of a Deployment's pod ends: the hash of its template, and five characters."""


def scaled_object(side: FleetSide, target: Mapping[str, str], pods: str) -> dict[str, Any]:
    """Adds replicas to a target while requests queue in its pods, whose names match a regular expression."""
    job, command = side
    query = f'sum({command.queue_metric}{{pod=~"{pods}"}})'
    trigger = {
        "type": "prometheus",
        "name": "waiting-requests",
        # The sum over pods, for each of them.
        "metricType": "AverageValue",
        "metadata": {"serverAddress": PROMETHEUS, "query": query, "threshold": str(WAITING_PER_REPLICA)},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": job.service_name, "labels": labels_of(job)},
        "spec": {
            "scaleTargetRef": dict(target),
            "minReplicaCount": job.replicas,
            "maxReplicaCount": job.most_replicas,
            "fallback": {"failureThreshold": PROMETHEUS_FAILURES, "replicas": job.replicas},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": scaling_behavior(job)}},
            "triggers": [trigger],
        },
    }


def write_keda(sides: Sequence[FleetSide]) -> Written:
    """Each side's objects and its ScaledObject, and the router of two sides."""
    objects: list[dict[str, Any]] = []
    for side in sides:
        own = serving_objects(*side, target=Target.keda)
        # The two sides share the volume of weights.
        objects += own if not objects else own[1:]
        name = side.job.service_name
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        objects.append(scaled_object(side, deployment, f"{name}{_POD}"))
    jobs = [side.job for side in sides]
    if len(sides) > 1:
        objects += router_objects(*jobs)
    fill_in = [*kubernetes_fill_in(*sides[-1]), PROMETHEUS_FILL_IN, *(router_fill_in(jobs[-1]) if jobs[1:] else ())]
    alone = len(sides) == 1 and jobs[0].router and jobs[0].replicas > 1
    lacks = [f"the {jobs[0].router} router: a Service spreads connections at random; llm-d routes requests"]
    return Written(
        files={"keda.yaml": "---\n".join(map(yaml_text, objects))},
        start=f"kubectl apply -f {jobs[-1].public_name}-keda.yaml; KEDA and Prometheus have to be there already; "
        f"clients ask the service {jobs[-1].public_name if jobs[1:] else jobs[0].service_name}, port {PORT}",
        notes=cluster_notes(sides, TOKEN),
        carries=[
            *(band(side, f"ScaledObject, a replica more for every {WAITING} of each") for side in sides),
            *map(engine_limits, sides),
            "machines, spare ones and their spread (nodeSelector, topologySpreadConstraints)",
        ],
        lacks=lacks if alone else [],
        fill_in=fill_in,
    )
