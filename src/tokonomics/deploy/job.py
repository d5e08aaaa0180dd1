"""What a deploy file is made from: a planned deployment, how often it runs, on which machines.

Nothing is computed here that the plan has not decided. A fleet is one job, or two where it is disaggregated: one for
prompts and one for answers.
"""

import math
from bisect import bisect_left
from enum import StrEnum

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.engines import Defaults
from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.sizing.engine_flags import EngineCommand, Role, ServerPlan, copies_in_one_server, engine_command, slug
from tokonomics.sizing.spare import Spare, in_zones
from tokonomics.traffic.workload import Spread
from tokonomics.types import Noun
from tokonomics.units import plural

PORT = 8000
_LOAD_BYTES_PER_S = 100e6
"""A slow download of the weights (0.8 Gbit/s). A probe that waits longer than needed costs nothing; one that gives up
early restarts the download."""
_START_S = 300  # compiling and capturing graphs before the first answer (assumed: five minutes of a cold start)
_P99_PER_MEAN = math.log(100)
"""Of an exponential distribution, 4.6: what stands in for the p99 of a plan that was not simulated."""
_KEPT_BACK = 0.1
"""Of the context that fits by our memory model. A choice: a start that fails costs more than a shorter context."""


class Target(StrEnum):
    """What a deploy file is for."""

    vllm = "vllm"
    sglang = "sglang"
    skypilot = "skypilot"
    kubernetes = "kubernetes"
    keda = "keda"
    llm_d = "llm-d"
    kserve = "kserve"
    dynamo = "dynamo"
    production_stack = "production-stack"
    dstack = "dstack"
    compose = "compose"


class DeployFile(Noun):
    """A file to save, and what in it the plan could not know."""

    name: str
    text: str
    fill_in: tuple[str, ...]


class DeployJob(Noun):
    """A deployment to be started ``replicas`` times, on so many machines."""

    deployment: Deployment
    replicas: PositiveInt
    machines: PositiveInt  # to pay for
    spare: NonNegativeInt = 0  # machines that may fail while the others meet every target
    over_zones: bool = False
    """Whether a whole zone may fail: replicas then spread strictly over zones, not over machines."""
    e2e_s: Spread  # from a request to the end of its answer, as planned
    max_context: PositiveInt  # tokens of the longest request, prompt and answer
    limits: Defaults  # of batch and memory
    offer: Offer | None = None
    terms: Terms = Terms.on_demand
    router: str | None = None  # how the plan spreads requests over replicas
    provenance: str  # which plan made it, in words; any number of lines
    simulated: bool = True  # whether the plan simulated it, so that percentiles of its latencies are known
    role: Role | None = None  # of a disaggregated fleet: which side these replicas are; None: each does both
    tiers: str | None = None  # memories for KV behind the GPUs', of each replica: ``dram=200@0,ssd=2000@0``
    requests_per_s: PositiveFloat | None = None  # that one replica holds; None: not known
    usd_per_hour: PositiveFloat | None = None  # of one machine; None: not known

    @property
    def gpus_per_machine(self) -> int:
        """GPUs of a machine of the offer; with none, as many as one replica can use in a machine."""
        if self.offer:
            return self.offer.gpus
        parts = self.deployment.pp * self.deployment.dp
        return self.deployment.tp * min(parts, self.deployment.gpu.gpus_per_node // self.deployment.tp)

    @property
    def machines_per_replica(self) -> int:
        """Whole stages, or groups of the attention, on each machine: tensor parallelism does not leave one."""
        parts = self.deployment.pp * self.deployment.dp
        return math.ceil(parts / (self.gpus_per_machine // self.deployment.tp))

    @property
    def groups_per_machine(self) -> int:
        """Groups of the attention that stand whole on each machine of a replica; 0: a group spans machines."""
        groups, left = divmod(self.deployment.dp, self.machines_per_replica)
        whole = not left and groups * self.deployment.tp * self.deployment.pp <= self.gpus_per_machine
        return groups if whole else 0

    @property
    def most_replicas(self) -> int:
        """To which an autoscaler may add. A choice: the plan itself is the least that it runs."""
        return 2 * self.replicas

    @property
    def places_per_machine(self) -> int:
        """Replicas for which a machine has GPUs; at least 1."""
        return max(1, self.gpus_per_machine // self.deployment.gpus)

    @property
    def replicas_per_machine(self) -> int:
        """At the most, when they are spread evenly: what is lost with one machine; at least 1."""
        return max(1, math.ceil(self.replicas / self.machines))

    @property
    def machines_in_zones(self) -> list[int]:
        """Machines in each zone, as even as can be, the most first; those of one replica are together."""
        together = self.machines_per_replica
        return [together * groups for groups in in_zones(self.machines // together)]

    @property
    def answer_s(self) -> int:
        """Whole seconds in which 99 % of requests are answered, at least 1."""
        estimated = None if self.e2e_s.mean is None else _P99_PER_MEAN * self.e2e_s.mean
        return math.ceil(self.e2e_s.p99 or estimated or 1)

    @property
    def redundancy(self) -> str:
        """How many replicas run on how many machines, and what may fail, in words."""
        where = f"{plural(self.replicas, 'replica')} on {plural(self.machines, 'machine')}"
        if self.over_zones:
            zones = self.machines_in_zones
            sold = (self.offer.instance, self.offer.region) if self.offer else ("the machine", UNSPECIFIED)
            return (
                f"{where}, {' + '.join(map(str, zones))} in {len(zones)} zones: a zone may fail, and the others still "
                f"meet every target, {Spare(zone=True).assumed(*sold, len(zones))}."
            )
        lost = self.replicas_per_machine
        where += f", {lost} on one at the most" if lost > 1 and self.machines > 1 else ""
        if self.spare:
            return f"{where}: {plural(self.spare, 'machine')} may fail, and the others still meet every target."
        if self.machines == 1:
            return f"{where}: no redundancy. Nothing is served while it is down."
        if self.replicas == 1:
            return f"{where}: no redundancy. Nothing is served while one of them is down."
        return f"{where}: none is spare. With one down, {lost} of {self.replicas} are lost and targets may be missed."

    @property
    def start_s(self) -> int:
        """How long a first start may take before it counts as failed, in whole minutes."""
        model = self.deployment.model
        return 60 * math.ceil((_START_S + model.weight_bytes(model.checkpoint) / _LOAD_BYTES_PER_S) / 60)

    @property
    def public_name(self) -> str:
        """A name that Kubernetes accepts for a service (RFC 1035: a letter, then letters, digits and dashes)."""
        return f"llm-{slug(self.deployment.model.key)}"

    @property
    def service_name(self) -> str:
        """The same, told apart by side where there are two."""
        return f"{self.public_name}-{self.role}" if self.role else self.public_name

    @property
    def command(self) -> EngineCommand:
        """What starts one replica."""
        return engine_command(ServerPlan(self.deployment, self.limits, self.max_context, self.role, self.tiers))

    @property
    def copies(self) -> tuple[str, ...] | None:
        """The flag that runs all replicas of a machine behind one port; None where the engine has no such thing."""
        return copies_in_one_server(self.deployment, self.replicas_per_machine)

    @property
    def may_fail(self) -> int:
        """Replicas that the plan can do without."""
        return min(self.replicas, self.spare * self.replicas_per_machine)

    @property
    def routed(self) -> str | None:
        """How requests are spread over the replicas; None: there is nothing to spread."""
        return self.router if self.replicas > 1 else None

    @property
    def spans(self) -> bool:
        """Whether a replica is on several machines."""
        return self.machines_per_replica > 1

    @property
    def answers(self) -> bool:
        """Whether the prompts of its answers are computed by other replicas."""
        return self.role is Role.decode

    @property
    def does(self) -> str:
        """What its requests are, in a word."""
        return {None: "requests", Role.prefill: "prompts", Role.decode: "answers"}[self.role]

    @property
    def band(self) -> str:
        """Between which numbers of replicas an autoscaler keeps, in words."""
        return f"{self.replicas} to {self.most_replicas} replicas for {self.does}"

    @property
    def engine_limits(self) -> str:
        """What every engine command says of how a replica is split, and of its batches."""
        ranks = (("PP", self.deployment.pp), ("DP", self.deployment.dp))
        split = "".join(f", {name}={count}" for name, count in ranks if count > 1)
        return (
            f"TP={self.deployment.tp}{split}, batch limit {self.limits.max_sequences} sequences, "
            f"{self.limits.max_batched_tokens} tokens{f', KV in {self.tiers}' if self.tiers else ''} "
            f"(engine arguments for {self.does})"
        )


def longest_context(deployment: Deployment) -> int:
    """The model's own context, or the longest of which one sequence fits."""
    longest = deployment.model.max_context
    if max_sequences(deployment, longest) >= 1:
        return longest
    fits = bisect_left(range(1, longest), True, key=lambda context: max_sequences(deployment, context) < 1)
    # Engines refuse to start with a context that does not fit, and our memory model is not theirs to the byte.
    return max(1, math.floor(fits * (1 - _KEPT_BACK)))
