"""What the writer of every target takes and gives: the sides of a planned fleet, and files with what they say of it.

A fleet has one side, or two where prompts and answers have replicas of their own. A writer says which planned
quantities its files carry and which they cannot; where a target cannot start a plan at all, it refuses and names
targets that can.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import DeployJob, EngineCommand, Role, spanning_targets
from tokonomics.planner.deploy_kubernetes import RDMA, cluster_needs
from tokonomics.planner.deploy_text import Target


class FleetSide(NamedTuple):
    """Replicas of one kind, and the command that starts one."""

    job: DeployJob
    command: EngineCommand

    @property
    def does(self) -> str:
        """What its requests are, in a word."""
        return {None: "requests", Role.prefill: "prompts", Role.decode: "answers"}[self.job.role]


class Written(NamedTuple):
    """The files of one target, and what to know of them."""

    files: Mapping[str, str]
    """Text by the ending of its name."""
    start: str
    carries: Sequence[str]
    """Planned quantities that the files set, with where."""
    lacks: Sequence[str]
    """Those that the target has no place for, with what to do instead."""
    fill_in: Sequence[str] = ()
    notes: Sequence[str] = ()


def refuse_apart(target: Target, sides: Sequence[FleetSide], why: str) -> None:
    """Refuse a fleet of two sides, naming the targets that start this one."""
    if len(sides) == 1:
        return
    prefill, engine = sides[0].job, sides[0].job.deployment.engine.key
    able = [engine, Target.llm_d, Target.dynamo, Target.compose]
    if engine == "vllm":
        able.append(Target.kserve)
    if engine == "vllm" or prefill.replicas == 1:
        able += [Target.kubernetes, Target.keda]
    _refuse(target, f"the plan is disaggregated: {why}", " or ".join(option("deploy", name) for name in able))


def refuse_spanning(target: Target, sides: Sequence[FleetSide], why: str) -> None:
    """Refuse replicas on several machines each, naming the targets that start them."""
    for job, _ in sides:
        if job.machines_per_replica > 1:
            spans = f"a replica spans {job.machines_per_replica} machines, {why}"
            _refuse(target, spans, f"{spanning_targets(job)}, or plan with a larger machine")


def refuse_other_engines(target: Target, sides: Sequence[FleetSide], why: str) -> None:
    """Refuse engines but vLLM, naming the targets that start them."""
    job, apart = sides[0].job, len(sides) > 1
    if job.deployment.engine.key == "vllm":
        return
    able = [Target.llm_d, Target.dynamo, Target.compose, *([] if apart else [Target.kubernetes, Target.keda])]
    spans = any(side.job.machines_per_replica > 1 for side in sides)
    named = spanning_targets(job) if spans else " or ".join(option("deploy", name) for name in able)
    _refuse(target, f"the plan is for {job.deployment.engine.name}: {why}", named)


def _refuse(target: Target, why: str, able: str) -> NoReturn:
    raise BadInput(why, where=option("deploy", target), fix=f"Use {able}.")


def cluster_notes(sides: Sequence[FleetSide], *more: str) -> list[str]:
    """What a cluster has to have, for targets that run on Kubernetes."""
    job = sides[-1].job
    networked = job.machines > 1 and (len(sides) > 1 or job.machines_per_replica > 1)
    return [cluster_needs(job), *more, *([RDMA] if networked else [])]


def band(side: FleetSide, where: str) -> str:
    """That an autoscaler keeps between the planned replicas and twice as many."""
    return f"{side.job.replicas} to {side.job.most_replicas} replicas for {side.does} ({where})"


def engine_limits(side: FleetSide) -> str:
    """What every engine command says of how a replica is split, and of its batches."""
    deployment, limits = side.job.deployment, side.job.limits
    split = "".join(f", {name}={ranks}" for name, ranks in (("PP", deployment.pp), ("DP", deployment.dp)) if ranks > 1)
    memories = f", KV in {side.job.tiers}" if side.job.tiers else ""
    return (
        f"TP={deployment.tp}{split}, batch limit {limits.max_sequences} sequences, {limits.max_batched_tokens} tokens"
        f"{memories} (engine arguments for {side.does})"
    )
