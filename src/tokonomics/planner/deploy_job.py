"""What a deploy file is made from: a planned deployment, how often it runs, its limits, and the engine's command line.

Nothing is computed here that the plan has not decided. A value that the plan cannot know is a placeholder, which the
file names for filling in. Flags and values are those of the versions in ``catalog/data/engines.toml``, read in the
engines' own argument parsers; a test holds every flag against the list taken from the wheels (docs/deploy.md).
"""

import json
import math
import re
import shlex
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.checkpoints import checkpoint_for
from tokonomics.catalog.engines import Defaults, MemoryRule
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput, option
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.speculation import DraftMethod, Speculation
from tokonomics.planner.deploy_tiers import sglang_memories, vllm_memories
from tokonomics.serving.spread import Spread
from tokonomics.sizing.spare import Spare, in_zones
from tokonomics.types import Noun
from tokonomics.units import plural

PORT = 8000
FILL_IN = "FILL-IN"
"""What every placeholder begins with, so that a search finds them all."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_LOAD_BYTES_PER_S = 100e6
"""A slow download of the weights (0.8 Gbit/s). A probe that waits longer than needed costs nothing; one that gives up
early restarts the download."""
_START_S = 300
"""Compiling and capturing graphs before the first answer (assumed: five minutes of a cold start)."""
_P99_PER_MEAN = math.log(100)
"""Of an exponential distribution, 4.6: what stands in for the p99 of a plan that was not simulated."""
_KEPT_BACK = 0.1
"""Of the context that fits by our memory model. A choice: a start that fails costs more than a shorter context."""
_SGLANG_DRAFTS = {
    DraftMethod.mtp: "EAGLE",
    DraftMethod.eagle3: "EAGLE3",
    DraftMethod.draft_model: "STANDALONE",
}
_DATA_PARALLEL_PORT = 13345
"""On the first machine of a vLLM replica, for the others: its documentation's example. Any free port would do."""
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM 0.32.0, config/lora.py (MaxLoRARanks): a rank in between takes the next."""


class Role(StrEnum):
    """What the replicas of a disaggregated fleet do."""

    prefill = "prefill"
    decode = "decode"


class DeployJob(Noun):
    """A deployment to be started ``replicas`` times, on so many machines."""

    deployment: Deployment
    replicas: PositiveInt
    machines: PositiveInt
    """To pay for."""
    spare: NonNegativeInt = 0
    """Machines that may fail while the others meet every target."""
    over_zones: bool = False
    """Whether a whole zone may fail: replicas then spread strictly over zones, not over machines."""
    e2e_s: Spread
    """From a request to the end of its answer, as planned."""
    max_context: PositiveInt
    """Tokens of the longest request, prompt and answer."""
    limits: Defaults
    """Of batch and memory."""
    offer: Offer | None = None
    terms: Terms = Terms.on_demand
    router: str | None = None
    """How the plan spreads requests over replicas."""
    provenance: str
    """Which plan made it, in words; any number of lines."""
    simulated: bool = True
    """Whether the plan simulated it, so that percentiles of its latencies are known."""
    role: Role | None = None
    """Of a disaggregated fleet: which side these replicas are; None: each does both."""
    tiers: str | None = None
    """Memories for KV behind the GPUs', of each replica: ``dram=200@0,ssd=2000@0``."""
    requests_per_s: PositiveFloat | None = None
    """That one replica holds; None: not known."""
    usd_per_hour: PositiveFloat | None = None
    """Of one machine; None: not known."""

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
        return f"llm-{_slug(self.deployment.model.key)}"

    @property
    def service_name(self) -> str:
        """The same, told apart by side where there are two."""
        return f"{self.public_name}-{self.role}" if self.role else self.public_name


def spanning_targets(job: DeployJob) -> str:
    """The targets whose files start a replica on several machines, as a door spells them."""
    engine = job.deployment.engine.key
    names = ["dynamo", *(["kserve"] if engine == "vllm" else []), *([] if job.role else ["skypilot", engine])]
    return " or ".join(option("deploy", name) for name in names)


def longest_context(deployment: Deployment) -> int:
    """The model's own context, or the longest of which one sequence fits."""
    longest = deployment.model.max_context
    if max_sequences(deployment, longest) >= 1:
        return longest
    fits = bisect_left(range(1, longest), True, key=lambda context: max_sequences(deployment, context) < 1)
    # Engines refuse to start with a context that does not fit, and our memory model is not theirs to the byte.
    return max(1, math.floor(fits * (1 - _KEPT_BACK)))


# --- weights --------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Where an engine finds the weights, and whether it converts them to FP8 as it loads them."""

    repository: str
    to_fp8: bool
    fill_in: str | None = None
    """What the user has to put right, in words; None when the repository is known."""


def _weights(job: DeployJob) -> Weights:
    """The checkpoint to serve: as published, one that others made, converted on load, or one that the user names."""
    model, wanted = job.deployment.model, job.deployment.weights
    published = catalogue_repository(model)
    listed = checkpoint_for(model, wanted) if wanted.is_below(model.served) else None
    if listed is not None:
        return Weights(listed.repository, to_fp8=False)
    unquantised = model.served is Precision.bf16
    as_published = wanted is model.served or (unquantised and wanted is Precision.fp32)
    # What is already quantised stays as it is: engines convert 16- and 32-bit checkpoints only, and those to FP8.
    to_fp8 = unquantised and wanted is Precision.fp8
    if published is not None and (as_published or to_fp8):
        return Weights(published, to_fp8)
    kind = model.checkpoint if as_published or to_fp8 else wanted
    holder = f"{FILL_IN}/{_slug(model.key)}-{kind}"
    engine, kinds = job.deployment.engine.name, " (AWQ or GPTQ)" if kind is Precision.int4 else ""
    why = f"the catalogue knows no repository of {model.name}"
    if published is not None:
        why = f"{published} is in {model.checkpoint}, of which {engine} makes no {wanted} on loading"
    return Weights(holder, to_fp8, f"{holder}: {why}; name a repository or a path with {kind} weights{kinds}")


def catalogue_repository(model: ModelSpec) -> str | None:
    """The Hugging Face repository among a model's names; the catalogue lists it last."""
    return next((alias for alias in reversed(model.aliases) if _REPOSITORY.fullmatch(alias)), None)


def _slug(text: str) -> str:
    """Lower-case letters, digits and single dashes, at most 40 of them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "model"


# --- commands -------------------------------------------------------------------------------------------------------


class Shell(str):
    """Part of a command that a shell is to expand, so it is not quoted."""


class EngineCommand(NamedTuple):
    """What starts one server, without host and port, and what the user has to fill in first."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    fill_in: tuple[str, ...]
    queue_metric: str
    """The gauge of waiting requests that the engine exports to Prometheus."""
    image: str
    package: str


def engine_command(job: DeployJob) -> EngineCommand:
    """The planned engine's command; only vLLM and SGLang are written out."""
    engine = job.deployment.engine
    writers = {"vllm": _vllm, "sglang": _sglang}
    if engine.key not in writers:
        raise BadInput(
            f"no deploy file can be written for {engine.name}",
            field="deploy",
            fix=f"Plan with {' or '.join(option('engine', name) for name in writers)}.",
        )
    return writers[engine.key](job, _weights(job))


def listen(port: int | Shell = PORT) -> tuple[str, ...]:
    """Where the server listens: on every interface, as others are to reach it. Both engines spell it so."""
    return "--host", "0.0.0.0", "--port", port if isinstance(port, Shell) else str(port)


def shell_line(words: Sequence[str], indent: str = "  ") -> str:
    """A command over several lines, one flag with its value on each; every word quoted where a shell needs it."""
    lines: list[str] = []
    for word in words:
        written = word if isinstance(word, Shell) else shlex.quote(word)
        if lines and not word.startswith("--"):
            lines[-1] += f" {written}"
        else:
            lines.append(written)
    return f" \\\n{indent}".join(lines)


def copies_in_one_server(job: DeployJob) -> tuple[str, ...] | None:
    """The flag that runs several replicas of a machine behind one port; None where the engine has no such thing.

    vLLM's data parallelism copies dense models, but shares the experts of the others out over all the copies.
    """
    if job.replicas_per_machine == 1:
        return ()
    if (job.deployment.engine.key == "vllm" and job.deployment.model.is_moe) or job.deployment.dp > 1:
        return None
    return "--data-parallel-size", str(job.replicas_per_machine)


def over_nodes(job: DeployJob, rank: Shell, head: Shell) -> tuple[str, ...]:
    """Flags that join the machines of one replica; the same on each but for its rank.

    vLLM joins whole groups of the attention by data parallelism, and parts of one by ranks (vllm 0.32.0, "Data Parallel
    Deployment", and engine/arg_utils.py).
    """
    if job.machines_per_replica == 1:
        return ()
    common = ("--nnodes", str(job.machines_per_replica), "--node-rank", rank)
    if job.deployment.engine.key != "vllm":
        return *common, "--dist-init-addr", Shell(f"{head}:5000")
    if not job.groups_per_machine:
        return *common, "--master-addr", head
    groups = ("--data-parallel-size-local", str(job.groups_per_machine))
    return *groups, "--data-parallel-address", head, "--data-parallel-rpc-port", str(_DATA_PARALLEL_PORT)


def unless_first(job: DeployJob, rank: Shell) -> tuple[str, ...]:
    """What vLLM is told on a replica's machines but the first: they only compute, and answer no requests."""
    if job.machines_per_replica == 1 or job.deployment.engine.key != "vllm":
        return ()
    words = "--headless"
    if job.groups_per_machine:
        number = rank.strip('"')
        words += f" --data-parallel-start-rank $(({number} * {job.groups_per_machine}))"
    return (Shell(f"$([ {rank} = 0 ] || echo {words})"),)


def _flags(values: Mapping[str, object]) -> tuple[str, ...]:
    """``--name value`` for each value; the name alone for True, nothing for None or False."""
    words: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return tuple(words)


def _vllm(job: DeployJob, weights: Weights) -> EngineCommand:
    deployment, limits, version = job.deployment, job.limits, job.deployment.engine.version
    shared = deployment.expert_gpus
    if deployment.ep > 1 and deployment.ep != shared:
        raise BadInput(
            f"vLLM shares experts over all {shared} GPUs of a stage, not over {deployment.ep} groups",
            field="ep",
            fix=f"Use {option('ep', 1)} or {option('ep', shared)}, or {option('engine', 'sglang')}.",
        )
    adapters, memories = deployment.lora_adapters, vllm_memories(deployment, job.tiers)
    flags = {
        "tensor-parallel-size": deployment.tp,
        "pipeline-parallel-size": deployment.pp if deployment.pp > 1 else None,
        "data-parallel-size": deployment.dp if deployment.dp > 1 else None,
        "enable-expert-parallel": deployment.ep > 1,
        # Over machines tokens are sent to their experts, one half of a batch while the other is computed.
        "all2all-backend": "deepep_low_latency" if deployment.spans_machines else None,
        "enable-dbo": deployment.spans_machines,
        # `--quantization fp8` is for checkpoints that are FP8 already; 16-bit ones are converted under another name
        # (vllm 0.32.0, layers/quantization/fp8.py).
        "quantization": "fp8_per_tensor" if weights.to_fp8 else None,
        "dtype": _dtype(job),
        "kv-cache-dtype": _kv(job, fp8="fp8"),
        # Limits are those of each group of the attention (vllm 0.32.0, "Data Parallel Deployment").
        "max-num-seqs": -(-limits.max_sequences // deployment.dp),
        "max-num-batched-tokens": limits.max_batched_tokens // deployment.dp,
        "max-model-len": job.max_context,
        "gpu-memory-utilization": f"{limits.memory_fraction:g}",
        "runner": "pooling" if deployment.model.is_encoder else None,
        "enable-prefix-caching": deployment.reuses_prefixes,
        "kv-transfer-config": _vllm_transfer(job.role) if job.role else None,
        **memories.flags,
        "enable-lora": bool(adapters),
        "max-loras": adapters or None,
        "max-lora-rank": next(rank for rank in _LORA_RANKS if rank >= deployment.lora_rank) if adapters else None,
        "speculative-config": _vllm_drafts(deployment.speculation),
    }
    images = {"nvidia": f"vllm/vllm-openai:v{version}", "amd": f"vllm/vllm-openai-rocm:v{version}"}
    return EngineCommand(
        program=("vllm", "serve"),
        arguments=(weights.repository, *_flags(flags)),
        fill_in=(*_to_fill_in(job, weights, "--lora-modules NAME=PATH"), *memories.fill_in),
        queue_metric="vllm:num_requests_waiting",
        image=_image(job, images),
        package=f"vllm=={version}",
    )


def _sglang(job: DeployJob, weights: Weights) -> EngineCommand:
    deployment, limits, version = job.deployment, job.limits, job.deployment.engine.version
    # With a reserve in bytes the share is the engine's own, worked out at start from the GPU and the batch.
    shares = deployment.engine.memory_rule is MemoryRule.weights_and_kv and not limits.reserve_bytes
    adapters, memories = deployment.lora_adapters, sglang_memories(deployment, job.tiers)
    flags = {
        "model-path": weights.repository,
        # Of SGLang's tensor ranks, groups attend to sequences of their own.
        "tp-size": deployment.expert_gpus,
        # `--dp-size N --enable-dp-attention` is deprecated until the end of 2026 (0.5.23, arg_groups/parallel_hook.py).
        "attn-dp-size": deployment.dp if deployment.dp > 1 else None,
        "moe-a2a-backend": "deepep" if deployment.spans_machines else None,
        "enable-two-batch-overlap": deployment.spans_machines,
        "pp-size": deployment.pp if deployment.pp > 1 else None,
        "ep-size": deployment.ep if deployment.ep > 1 else None,
        "quantization": "fp8" if weights.to_fp8 else None,
        "dtype": _dtype(job),
        "kv-cache-dtype": _kv(job, fp8="fp8_e4m3"),
        "max-running-requests": limits.max_sequences,
        "chunked-prefill-size": limits.max_batched_tokens,
        "is-embedding": deployment.model.is_encoder,
        "context-length": job.max_context,
        "mem-fraction-static": f"{limits.memory_fraction:g}" if shares else None,
        "enable-lora": bool(adapters),
        "max-loras-per-batch": adapters or None,
        "max-lora-rank": deployment.lora_rank if adapters else None,
        "lora-target-modules": "all" if adapters else None,
        "disaggregation-mode": job.role and job.role.value,
        "disaggregation-transfer-backend": "nixl" if job.role else None,
        "enable-metrics": True,
        **memories.flags,
        **_sglang_drafts(deployment.speculation),
    }
    return EngineCommand(
        program=("python", "-m", "sglang.launch_server"),
        arguments=_flags(flags),
        fill_in=(*_to_fill_in(job, weights, "--lora-paths NAME=PATH"), *memories.fill_in),
        queue_metric="sglang:num_queue_reqs",
        image=_image(job, {"nvidia": f"lmsysorg/sglang:v{version}"}),
        package=f"sglang=={version}",
    )


def _vllm_drafts(drafts: Speculation | None) -> str | None:
    """vLLM 0.32.0, config/speculative.py: the method, where the draft is unless in the checkpoint, tokens a round."""
    if drafts is None:
        return None
    model = {} if drafts.method is DraftMethod.mtp else {"model": _draft_repository(drafts)}
    return json.dumps({"method": drafts.method.value, **model, "num_speculative_tokens": drafts.tokens})


def _sglang_drafts(drafts: Speculation | None) -> dict[str, object]:
    """SGLang 0.5.23, "Speculative Decoding": one chain, so the tokens checked are those drafted and one more."""
    if drafts is None:
        return {}
    own = drafts.method is DraftMethod.mtp
    return {
        "speculative-algorithm": _SGLANG_DRAFTS[drafts.method],
        "speculative-draft-model-path": None if own else _draft_repository(drafts),
        "speculative-num-steps": drafts.tokens,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": drafts.tokens + 1,
    }


def _draft_repository(drafts: Speculation) -> str:
    """Where the draft is found; a placeholder where the catalogue does not know."""
    known = drafts.checkpoint or (drafts.draft and catalogue_repository(drafts.draft))
    return known or f"{FILL_IN}/{_slug(drafts.draft.key if drafts.draft else 'draft')}"


def _vllm_transfer(role: Role) -> str:
    """How KV is sent on (vLLM 0.32.0, docs/features/nixl_connector_usage.md); a failed transfer fails its request."""
    side = "kv_producer" if role is Role.prefill else "kv_consumer"
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": side, "kv_load_failure_policy": "fail"})


def _dtype(job: DeployJob) -> str:
    """Of activations, and of weights that are not quantised; ``auto`` is the checkpoint's own 16 bits."""
    deployment = job.deployment
    if deployment.weights is Precision.fp32:
        return "float32"
    if "bf16" not in deployment.gpu.flops:
        return "half"  # Volta and Turing have no bf16.
    return "bfloat16" if deployment.model.checkpoint is Precision.fp32 else "auto"


def _kv(job: DeployJob, *, fp8: str) -> str:
    if job.deployment.kv is not Precision.fp8:
        return "auto"
    return "fp8_inc" if job.deployment.gpu.vendor == "intel" else fp8


def _to_fill_in(job: DeployJob, weights: Weights, adapters: str) -> tuple[str, ...]:
    count = job.deployment.lora_adapters
    lora = f"{adapters} for each of the {count} adapters" if count else None
    drafts = job.deployment.speculation
    head = _draft_repository(drafts) if drafts and drafts.method is not DraftMethod.mtp else ""
    unknown = f"{head}: name a repository or a path of what drafts" if head.startswith(FILL_IN) else None
    return tuple(text for text in (weights.fill_in, lora, unknown) if text)


def _image(job: DeployJob, images: Mapping[str, str]) -> str:
    """The engine's published container; a placeholder where it publishes none for that vendor."""
    vendor, engine = job.deployment.gpu.vendor, job.deployment.engine
    return images.get(vendor, f"{FILL_IN}/{engine.key}-{vendor}:v{engine.version}")
