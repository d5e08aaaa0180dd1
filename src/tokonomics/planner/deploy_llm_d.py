"""llm-d: the plan's pods as Deployments that an InferencePool selects, and Helm values of the router before it.

Since 0.7 llm-d starts model servers from plain manifests (its chart for them is deprecated) and its router from a
chart, which makes the InferencePool and the endpoint picker (EPP). The planned router becomes the picker's
configuration. On a disaggregated fleet a sidecar before every decode server asks a prefill server first.

Names: llm-d 0.9.0 (guides/pd-disaggregation, guides/recipes/modelserver), llm-d-router 0.10.0
(config/charts/README.md), Gateway API Inference Extension 1.5.0.
"""

from collections.abc import Sequence
from typing import Any

from tokonomics.planner.deploy_job import PORT, Role
from tokonomics.planner.deploy_kubernetes import (
    TOKEN,
    WAITING,
    autoscaler,
    kubernetes_fill_in,
    pod_template,
    serving_objects,
)
from tokonomics.planner.deploy_target import FleetSide, Written, band, cluster_notes, engine_limits
from tokonomics.planner.deploy_text import Target, yaml_text
from tokonomics.serving.fleet import Router

ROUTER_CHART = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone --version v0.10.0"
_SIDECAR = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.10.0"
_BEHIND_SIDECAR = 8200
"""Where a decode server listens when the sidecar has its port (guides/pd-disaggregation/modelserver)."""
_PROXY_PORT = 8081
"""Of the proxy beside the endpoint picker (config/charts/llm-d-router-standalone/values.yaml)."""
_CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}
"""How a sidecar hands KV over (guides/recipes/modelserver/base/single-host/pd)."""
_PLUGINS_FILE = "plan-plugins.yaml"


def endpoint_picker(sides: Sequence[FleetSide]) -> dict[str, Any]:
    """The planned router as an EndpointPickerConfig: what replicas are scored by, on each side."""
    job, apart = sides[-1].job, len(sides) > 1
    prefixes = job.router == Router.prefix_aware
    loads = job.router in (Router.least_outstanding, Router.power_of_two, Router.prefix_aware)
    picker = "max-score-picker" if loads else "random-picker"
    scorers = [*(["prefix-cache-scorer"] if prefixes else []), *(["active-request-scorer"] if loads else [])]
    plugins: list[dict[str, Any]] = [{"type": name} for name in (*scorers, picker)]
    if prefixes:
        # As far as a prompt can be long (llm-d, guides/optimized-baseline).
        known = {"maxPrefixTokensToMatch": job.max_context}
        plugins.insert(0, {"type": "approx-prefix-cache-producer", "parameters": known})
    profiles = [("default", [*scorers, picker])]
    if apart:
        always = "always-disagg-pd-decider"
        handler = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": always}}}
        plugins = [{"type": always}, handler, {"type": "prefill-filter"}, {"type": "decode-filter"}, *plugins]
        # Prompts that were computed are with the servers that compute them.
        answers = [name for name in scorers if name != "prefix-cache-scorer"]
        profiles = [("prefill", ["prefill-filter", *scorers, picker]), ("decode", ["decode-filter", *answers, picker])]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": [
            {"name": name, "plugins": [{"pluginRef": plugin} for plugin in used]} for name, used in profiles
        ],
    }


def picked_as(sides: Sequence[FleetSide]) -> tuple[list[str], list[str]]:
    """How the endpoint picker routes, and what of the planned router it does not do."""
    router = sides[-1].job.router
    if router in (None, Router.round_robin):
        return [], ["round-robin routing: replicas are picked at random"]
    near = ["power-of-two routing: the least busy of all replicas is picked"] if router == Router.power_of_two else []
    return [f"the {router} router (EndpointPickerConfig)"], near


def write_llm_d(sides: Sequence[FleetSide]) -> Written:
    """Manifests of the model servers, and values of the router's chart."""
    objects: list[dict[str, Any]] = []
    for side in sides:
        claim, deployment, _, budget = serving_objects(*side, target=Target.llm_d)
        deployment["spec"]["template"] = _pod(side)
        # The two sides share the volume of weights.
        objects += [*([claim] if not objects else []), deployment, budget, autoscaler(*side)]
    carried, missing = picked_as(sides)
    job = sides[-1].job
    name = job.public_name
    return Written(
        files={
            "llm-d.yaml": "---\n".join(map(yaml_text, objects)),
            "llm-d-router.yaml": yaml_text(_router_values(sides)),
        },
        start=f"kubectl apply -f {name}-llm-d.yaml; helm install {name} {ROUTER_CHART} -f {name}-llm-d-router.yaml; "
        f"clients ask the service {name}-epp. The InferencePool's definition (Gateway API Inference Extension 1.5.0) "
        "has to be there already, and Prometheus with its adapter for the autoscaler",
        notes=cluster_notes(sides, TOKEN),
        carries=[
            *(band(side, f"HorizontalPodAutoscaler, {WAITING} a replica") for side in sides),
            *map(engine_limits, sides),
            *carried,
            "machines, spare ones and their spread (nodeSelector, topologySpreadConstraints)",
        ],
        lacks=missing,
        fill_in=kubernetes_fill_in(*sides[-1]),
    )


def _pod(side: FleetSide) -> dict[str, Any]:
    """The replica's pod with labels for the pool; with a sidecar where answers begin with another's prompts."""
    job, command = side
    answers = job.role is Role.decode
    template = pod_template(job, command, _BEHIND_SIDECAR if answers else PORT)
    template["metadata"]["labels"] |= _pool_labels(side) | ({"llm-d.ai/role": job.role.value} if job.role else {})
    if answers:
        connector = _CONNECTORS[job.deployment.engine.key]
        template["spec"]["initContainers"] = [
            {
                "name": "routing-proxy",
                "image": _SIDECAR,
                "args": [
                    f"--port={PORT}",
                    f"--kv-connector={connector}",
                    "--secure-serving=false",
                ],
                "ports": [{"name": "sidecar", "containerPort": PORT}],
                # A sidecar: it runs as long as the server.
                "restartPolicy": "Always",
                "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
            }
        ]
    return template


def _pool_labels(side: FleetSide) -> dict[str, str]:
    return {"llm-d.ai/model": side.job.public_name}


def _router_values(sides: Sequence[FleetSide]) -> dict[str, Any]:
    side = sides[-1]
    return {
        "router": {
            "extraServicePorts": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": _PROXY_PORT}],
            "epp": {
                # How busy a replica is, is what one picker has sent there: two would each know a part of it.
                "replicas": 1,
                "pluginsConfigFile": _PLUGINS_FILE,
                "pluginsCustomConfig": {_PLUGINS_FILE: yaml_text(endpoint_picker(sides))},
            },
            "modelServers": {
                "type": side.job.deployment.engine.key,
                "protocol": "http",
                "matchLabels": _pool_labels(side),
                "targetPorts": [{"number": PORT}],
            },
            "inferencePool": {"create": True, "failureMode": "FailOpen"},
            "proxy": {"enabled": True, "proxyType": "envoy", "mode": "sidecar"},
        }
    }
