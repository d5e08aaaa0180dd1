"""The pod of a replica on Kubernetes: on which machines it may run, what it asks for, how replicas are spread.

GPUs are asked for by their device plugin's resource name, and machines by labels that managed clusters or the vendors'
own labellers set (``data/machines.toml``). Replicas spread evenly over the plan's machines, or over zones, so that
losing one costs what the plan counted on.
"""

import math
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.deploy.job import PORT, DeployJob
from tokonomics.deploy.scripts import listen
from tokonomics.sizing.engine_flags import tier_bytes
from tokonomics.sizing.hosts import host_gib
from tokonomics.units import GIB

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
_PROBE_S = 10
_LONGEST_WINDOW_S = 3600
"""What Kubernetes allows (API reference, HPAScalingRules v2)."""
_LABEL = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@cache
def machine_names() -> dict[str, Any]:
    """What labellers, clouds and tools call GPUs and machines."""
    return tomllib.loads((Path(__file__).parent / "data" / "machines.toml").read_text(encoding="utf-8"))


def gpu_name(tool: str, job: DeployJob) -> str | None:
    """What a tool calls the GPU of an instance, or every such GPU; None where it has no name of its own."""
    names, instance = machine_names()[tool], job.offer.instance if job.offer else ""
    special = (name for start, name in names["instances"].items() if instance.startswith(start))
    name: str | None = next(special, names["gpus"].get(job.deployment.gpu.key))
    return name


class Pod(NamedTuple):
    """A pod that runs one replica, or a machine's part of one."""

    job: DeployJob
    operated: bool = False
    """Whether an operator gives the usual labels itself, so that ours tell pods of one kind."""
    port: int = PORT

    @property
    def labels(self) -> dict[str, str]:
        return {"tokonomics/replicas" if self.operated else "app.kubernetes.io/name": self.job.service_name}

    @property
    def arguments(self) -> list[str]:
        """Of the engine's program, with where it listens."""
        return [*self.job.command.arguments, *listen(self.port)]

    # --- machines

    @property
    def vendor(self) -> dict[str, str]:
        """Names of the vendor's device plugin and labels."""
        names: dict[str, str] = machine_names()["vendors"][self.job.deployment.gpu.vendor]
        return names

    @property
    def products(self) -> list[str]:
        """Label values of the GPU; none where we do not know them."""
        values: list[str] = machine_names()["products"].get(self.job.deployment.gpu.key, [])
        return values

    @property
    def machine_labels(self) -> dict[str, str] | None:
        """The machine of the plan, by the labels that managed clusters set; None where we do not know them."""
        offer, known = self.job.offer, machine_names()["labels"]
        if offer is None or offer.provider not in known["instances"]:
            return None
        labels, spot = {"node.kubernetes.io/instance-type": offer.instance}, known["spot"].get(offer.provider)
        if spot and offer.region != UNSPECIFIED:
            labels["topology.kubernetes.io/region"] = offer.region
        if offer.provider == "gcp":
            labels["cloud.google.com/gke-accelerator"] = gpu_name("gke", self.job) or ""
        wanted = {key: value for key, value in labels.items() if _LABEL.fullmatch(value)}
        return (wanted | (dict([spot]) if spot and self.job.terms is Terms.spot else {})) or None

    @property
    def affinity(self) -> dict[str, Any] | None:
        """The GPU by its label, where the machine has none that we know."""
        if self.machine_labels or not self.products:
            return None
        terms = [{"matchExpressions": [{"key": self.vendor["label"], "operator": "In", "values": self.products}]}]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    @property
    def machine_terms(self) -> list[dict[str, Any]] | None:
        """The machine's labels, or its GPU's, as terms of a node selector."""
        wanted = {key: [value] for key, value in (self.machine_labels or {}).items()}
        if not wanted and self.products:
            wanted = {self.vendor["label"]: self.products}
        expressions = [{"key": key, "operator": "In", "values": values} for key, values in wanted.items()]
        return [{"matchExpressions": expressions}] if expressions else None

    @property
    def tolerations(self) -> list[dict[str, str]]:
        tolerations = [{"key": self.vendor["resource"], "operator": "Exists", "effect": "NoSchedule"}]
        if self.job.terms is Terms.spot and self.job.offer and self.job.offer.provider == "azure":
            key, value = machine_names()["labels"]["spot"]["azure"]
            tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
        return tolerations

    # --- spread

    @property
    def spread(self) -> list[dict[str, Any]] | None:
        """Strictly over machines, or over zones where one may fail; over the others as far as it can be had.

        Not strictly over machines where no label tells them apart: those without a GPU would count as empty ones. Nor
        beside zones: what is lost with a machine is lost with its zone too, and two strict rules can each forbid the
        only places that the other allows. The two sides of a disaggregated fleet share machines: strictly even, one
        could keep the other out.
        """
        job = self.job
        if job.replicas == 1:
            return None
        evenly = {"maxSkew": 1, "labelSelector": {"matchLabels": self.labels}}
        machine = evenly | {"topologyKey": "kubernetes.io/hostname"}
        zone = evenly | {"topologyKey": "topology.kubernetes.io/zone"}
        # Machines that a pod may not run on are not empty ones either.
        hard = {"whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}
        soft = {"whenUnsatisfiable": "ScheduleAnyway"}
        constraints = []
        told_apart = self.machine_labels or self.products or job.replicas_per_machine == 1
        if job.role is None and told_apart and not job.over_zones:
            # Where there are more places than replicas, the first machines would be filled before the last is there.
            constraints.append(machine | hard | ({"minDomains": job.machines} if self._has_free_places else {}))
        # During an update old pods count above; the new ones are spread among themselves, as far as there is room.
        constraints.append(machine | soft | {"matchLabelKeys": ["pod-template-hash"]})
        constraints.append(zone | (hard | self._zone_limits if job.over_zones else soft))
        return constraints

    @property
    def _zone_limits(self) -> dict[str, int]:
        """As even as the machines in the zones allow: a zone then has no more pods than the plan can do without."""
        zones = self.job.machines_in_zones
        larger = sum(machines > zones[-1] for machines in zones)
        # Once zones with a machine less are full, the larger ones share the other replicas.
        others = self.job.replicas - len(zones) * zones[-1] * self.job.places_per_machine
        return {"maxSkew": max(1, math.ceil(others / max(1, larger))), "minDomains": len(zones)}

    @property
    def _has_free_places(self) -> bool:
        """Whether the planned machines have GPUs for another replica; where another side stands too, it has them."""
        return self.job.role is None and self.job.machines * self.job.places_per_machine > self.job.replicas

    @property
    def rollout(self) -> str:
        """Where the pod of a surge finds GPUs, and what an update does without."""
        # A zone's rule may keep a pod from the machines that have room.
        if self._has_free_places and not self.job.over_zones:
            return "An update starts one pod more: the planned machines have GPUs for it."
        if self.job.spare:
            return "An update starts one pod more, if a machine is free for it, and else uses the spare machines."
        return (
            "An update starts one pod more, which needs a free machine. Without one it waits: set maxSurge 0 and "
            "maxUnavailable 1, and miss the SLO meanwhile."
        )

    @property
    def drainable(self) -> int:
        """Pods that may be drained at once: none at all would keep a machine from ever being drained."""
        return max(1, self.job.may_fail)

    # --- resources

    @property
    def requests(self) -> dict[str, str | int]:
        """What one replica may count on: its part of the machine, without what is left to the system."""
        offer, places = self.job.offer, self.job.places_per_machine
        part = (1 - _FOR_THE_SYSTEM) / places
        asked: dict[str, str | int] = {}
        if offer and offer.vcpus:
            cores = part * offer.vcpus
            asked["cpu"] = str(int(cores)) if cores >= 1 else f"{int(1000 * cores)}m"
        known = offer and offer.memory_gb
        memory = math.floor(part * known) if known else math.ceil(self._needed_gib / places)
        asked |= {"memory": f"{memory}Gi", "ephemeral-storage": f"{_SCRATCH_GIB}Gi"}
        return asked | self.gpus

    @property
    def gpus(self) -> dict[str, str | int]:
        """GPUs of one pod: those of a machine where a replica spans several."""
        return {self.vendor["resource"]: min(self.job.deployment.gpus, self.job.gpus_per_machine)}

    @property
    def _needed_gib(self) -> float:
        """Memory of one machine that the replicas on it need, with what they keep of KV there."""
        job = self.job
        kept = tier_bytes(job.deployment, job.tiers).get("dram", 0.0)
        shared = kept * job.places_per_machine / job.machines_per_replica
        return host_gib(job.deployment, job.gpus_per_machine) + shared / GIB

    @property
    def scarce_memory(self) -> str | None:
        """What weights and processes may take of a machine, where that is more than pods ask for."""
        memory, needed = self.job.offer and self.job.offer.memory_gb, self._needed_gib
        if not memory or needed <= (1 - _FOR_THE_SYSTEM) * memory:
            return None
        return f"{' and KV' if self.job.tiers else ''} may take {needed:.1f} GiB of a machine's {memory:g}"

    @property
    def volume(self) -> str:
        """Size of the volume of weights."""
        model = self.job.deployment.model
        needed = _REVISIONS * model.weight_bytes(model.checkpoint) / GIB
        return f"{_WEIGHTS_STEP_GIB * math.ceil(needed / _WEIGHTS_STEP_GIB)}Gi"

    # --- seconds

    @property
    def leave_s(self) -> int:
        """How long a pod that leaves serves on: the engine is told to stop when its last requests are answered."""
        return _LEAVE_S + self.job.answer_s

    @property
    def grace_s(self) -> int:
        return self.leave_s + STOP_S

    @property
    def start_probes(self) -> int:
        return self.job.start_s // _PROBE_S

    @property
    def window_s(self) -> int:
        """A replica that has just loaded its weights should not be sent away again at once."""
        return min(self.job.start_s, _LONGEST_WINDOW_S)

    @property
    def where(self) -> str | None:
        """The planned machine, in words, where its label is not known."""
        offer = self.job.offer
        return f"{offer.provider} {offer.instance}, {offer.region}" if offer and not self.machine_labels else None
