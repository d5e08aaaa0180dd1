"""Describe what a deploy file starts: a planned deployment, its number of replicas and its machines.

The plan has already decided everything here. A fleet is one job, or two if it is disaggregated: one for prefill and one
for decode.
"""

import math
from bisect import bisect_left
from enum import StrEnum

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

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
"""Assume a slow download of the weights (0.8 Gbit/s). A probe that waits too long costs nothing; one that gives up
early restarts the download."""
_START_S = 300  # time to compile and capture graphs before the first answer (assumed: five minutes of a cold start)
_P99_PER_MEAN = math.log(100)
"""4.6, as in an exponential distribution: used for the p99 of a plan that was not simulated."""
_KEPT_BACK = 0.1
"""Share of the context that fits by our memory model to leave unused. A choice: a failed start costs more."""


class Target(StrEnum):
    """The tool that a deploy file is written for."""

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
    """A file to save, and a list of what the plan could not know."""

    name: str
    text: str
    fill_in: tuple[str, ...]


class MoreReplicas(Noun):
    """Hours that need more replicas than the quietest, as cron writes them."""

    replicas: PositiveInt
    start: str
    end: str


def _cron(moment_s: int, of_week: bool) -> str:
    """Write a moment of each day, or of each week from Monday on: ``30 6 * * *``."""
    day, rest = divmod(moment_s, 86_400)
    return f"{rest % 3600 // 60} {rest // 3600} * * {(day + 1) % 7 if of_week else '*'}"


class DeployJob(Noun):
    """A deployment to start ``replicas`` times on ``machines`` machines."""

    deployment: Deployment
    replicas: PositiveInt
    machines: PositiveInt  # to pay for
    spare: NonNegativeInt = 0  # machines that may fail while the others meet every target
    over_zones: bool = False
    """Whether a whole zone may fail: replicas then spread strictly over zones instead of machines."""
    e2e_s: Spread  # from a request to the end of its answer, as planned
    max_context: PositiveInt  # tokens of the longest request, prompt and answer
    limits: Defaults  # on batch and memory
    offer: Offer | None = None
    terms: Terms = Terms.on_demand
    router: str | None = None  # how the plan spreads requests over replicas
    provenance: str  # text that says which plan made it; may have several lines
    simulated: bool = True  # whether the plan simulated it, so that percentiles of its latencies are known
    role: Role | None = None  # side of a disaggregated fleet; None: each replica does both
    tiers: str | None = None  # KV memory of each replica beyond the GPUs: ``dram=200@0,ssd=2000@0``
    prefix_cache: bool = True
    requests_per_s: PositiveFloat | None = None  # that one replica can serve; None: unknown
    usd_per_hour: PositiveFloat | None = None  # of one machine; None: unknown
    by_hour: tuple[PositiveInt, ...] = ()
    """The replicas that each hour of a day, or of a week from Monday on, needs; empty: all need the planned ones."""
    cold_start_s: NonNegativeFloat = 0.0  # before its hour, a replica has to be ordered

    @property
    def gpus_per_machine(self) -> int:
        """Return the GPUs of the offer's machine; without an offer, as many as a replica can use in one machine."""
        if self.offer:
            return self.offer.gpus
        parts = self.deployment.pp * self.deployment.dp
        return self.deployment.tp * min(parts, self.deployment.gpu.gpus_per_node // self.deployment.tp)

    @property
    def machines_per_replica(self) -> int:
        """Return the machines of a replica. Each has whole stages or attention groups: TP stays within one."""
        parts = self.deployment.pp * self.deployment.dp
        return math.ceil(parts / (self.gpus_per_machine // self.deployment.tp))

    @property
    def groups_per_machine(self) -> int:
        """Return the whole attention groups on each machine of a replica; 0 if a group spans machines."""
        groups, left = divmod(self.deployment.dp, self.machines_per_replica)
        whole = not left and groups * self.deployment.tp * self.deployment.pp <= self.gpus_per_machine
        return groups if whole else 0

    @property
    def most_replicas(self) -> int:
        """Return the largest number of replicas for an autoscaler. A choice: the plan itself is the smallest."""
        return 2 * self.replicas

    @property
    def least_replicas(self) -> int:
        """Return the replicas of the quietest hour."""
        return min(self.by_hour, default=self.replicas)

    @property
    def hours_with_more(self) -> list["MoreReplicas"]:
        """Return the stretches of hours that need more than the quietest, from a cold start before each."""
        begins = [hour for hour, count in enumerate(self.by_hour) if count != self.by_hour[hour - 1]]
        if not begins:
            return []
        ends = [*begins[1:], begins[0] + len(self.by_hour)]
        cold_s, week_s = math.ceil(self.cold_start_s / 60) * 60, len(self.by_hour) * 3600
        of_week = len(self.by_hour) > 24

        def begin_s(start: int, end: int) -> int:
            """Return when to order: after the last end, as KEDA takes a later start for one within its own hours."""
            free_s = week_s - (end - start) * 3600
            return (start * 3600 - min(cold_s, free_s - 60)) % week_s

        return [
            MoreReplicas(
                replicas=self.by_hour[start],
                start=_cron(begin_s(start, end), of_week),
                end=_cron(end * 3600 % week_s, of_week),
            )
            for start, end in zip(begins, ends, strict=True)
            if self.by_hour[start] > self.least_replicas
        ]

    @property
    def places_per_machine(self) -> int:
        """Return how many replicas have GPUs in one machine; at least 1."""
        return max(1, self.gpus_per_machine // self.deployment.gpus)

    @property
    def replicas_per_machine(self) -> int:
        """Return the most replicas on a machine if they are spread evenly, which one failure loses; at least 1."""
        return max(1, math.ceil(self.replicas / self.machines))

    @property
    def machines_in_zones(self) -> list[int]:
        """Return the machines in each zone, most first, spread evenly; those of one replica stay together."""
        together = self.machines_per_replica
        return [together * groups for groups in in_zones(self.machines // together)]

    @property
    def answer_s(self) -> int:
        """Return the whole seconds in which 99 % of requests are answered; at least 1."""
        estimated = None if self.e2e_s.mean is None else _P99_PER_MEAN * self.e2e_s.mean
        return math.ceil(self.e2e_s.p99 or estimated or 1)

    @property
    def redundancy(self) -> str:
        """Say how many replicas run on how many machines, and what may fail."""
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
        """Return how long a first start may take before it counts as failed, in whole minutes."""
        model = self.deployment.model
        return 60 * math.ceil((_START_S + model.weight_bytes(model.checkpoint) / _LOAD_BYTES_PER_S) / 60)

    @property
    def public_name(self) -> str:
        """Return a name that Kubernetes accepts for a service (RFC 1035: a letter, then letters, digits and dashes)."""
        return f"llm-{slug(self.deployment.model.key)}"

    @property
    def service_name(self) -> str:
        """Return the public name, with the side added if there are two."""
        return f"{self.public_name}-{self.role}" if self.role else self.public_name

    @property
    def command(self) -> EngineCommand:
        """Return the command that starts one replica."""
        shared = self.role, self.tiers, self.prefix_cache
        return engine_command(ServerPlan(self.deployment, self.limits, self.max_context, *shared))

    @property
    def copies(self) -> tuple[str, ...] | None:
        """Return the flag that runs all replicas of a machine behind one port; None if the engine has none."""
        return copies_in_one_server(self.deployment, self.replicas_per_machine)

    @property
    def may_fail(self) -> int:
        """Return how many replicas the plan can do without."""
        return min(self.replicas, self.spare * self.replicas_per_machine)

    @property
    def routed(self) -> str | None:
        """Say how requests are spread over the replicas; None if there is nothing to spread."""
        return self.router if self.replicas > 1 else None

    @property
    def spans(self) -> bool:
        """Tell whether a replica is on several machines."""
        return self.machines_per_replica > 1

    @property
    def answers(self) -> bool:
        """Tell whether these replicas decode prompts that other replicas computed."""
        return self.role is Role.decode

    @property
    def does(self) -> str:
        """Name the kind of its requests in one word."""
        return {None: "requests", Role.prefill: "prompts", Role.decode: "answers"}[self.role]

    @property
    def band(self) -> str:
        """Say between which numbers of replicas an autoscaler stays."""
        return f"{self.replicas} to {self.most_replicas} replicas for {self.does}"

    @property
    def hourly_band(self) -> str:
        """Say between which numbers of replicas an autoscaler stays that knows the hours."""
        band = f"{self.least_replicas} to {self.most_replicas} replicas for {self.does}"
        more = ", ".join(f"{more.replicas} from {more.start} to {more.end}" for more in self.hours_with_more)
        return f"{band}, at least {more} (cron, a cold start early)" if more else band

    @property
    def hours_text(self) -> str | None:
        """Say how many replicas the quietest hour needs; None if every hour needs the planned ones."""
        least = self.least_replicas
        return f"{least} in {plural(self.by_hour.count(least), 'hour')}" if self.by_hour else None

    @property
    def engine_limits(self) -> str:
        """Say how every engine command splits a replica and limits its batches."""
        ranks = (("PP", self.deployment.pp), ("DP", self.deployment.dp))
        split = "".join(f", {name}={count}" for name, count in ranks if count > 1)
        return (
            f"TP={self.deployment.tp}{split}, batch limit {self.limits.max_sequences} sequences, "
            f"{self.limits.max_batched_tokens} tokens{f', KV in {self.tiers}' if self.tiers else ''} "
            f"(engine arguments for {self.does})"
        )


def longest_context(deployment: Deployment) -> int:
    """Return the model's own context, or the longest that fits for one sequence."""
    longest = deployment.model.max_context
    if max_sequences(deployment, longest) >= 1:
        return longest
    fits = bisect_left(range(1, longest), True, key=lambda context: max_sequences(deployment, context) < 1)
    # Engines refuse to start if the context does not fit, and our memory model differs from theirs by some bytes.
    return max(1, math.floor(fits * (1 - _KEPT_BACK)))
