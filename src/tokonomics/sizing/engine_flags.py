"""Write the command that starts a planned deployment: the engine's program and flags, its weights, its container.

Flags and values are those of the versions in ``catalog/data/engines.toml``, read in the engines' own argument parsers;
a test checks every flag against the list taken from the wheels (docs/deploy.md). A value that a plan cannot know is a
placeholder, which the command lists for filling in.

Memories behind the GPUs' KV cache: vLLM 0.32.0 keeps KV in host memory with ``--kv-offloading-size``, in GiB of one
engine however many ranks it has (config/cache.py, config/vllm.py); memories behind the host's are a list of its
offloading connector (v1/kv_offload/tiering/spec.py). Each attention group is an engine with its own memories. SGLang
0.5.23 counts host memory in whole GB of each rank (``--hicache-size``: mem_cache/pool_host/base.py), and has one store
behind it (mem_cache/hicache_storage.py). Both write KV through as it is computed, as the plan assumes.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from tokonomics.catalog.checkpoints import checkpoint_for
from tokonomics.catalog.engines import Defaults, MemoryRule
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.money.cache_tiers import parse_tiers
from tokonomics.physics.deployment import LOOKED_UP, Deployment, DraftMethod, Speculation
from tokonomics.units import BYTES_PER_GB, GIB

FILL_IN = "FILL-IN"  # every placeholder begins with this, so that a search finds them all
_FOLDERS = {
    "ssd": (f"{FILL_IN}-kv-folder", "a disk"),
    "remote": (f"{FILL_IN}-shared-kv-folder", "a file system that all replicas share"),
}
"""Placeholders of the folders that KV is kept in, and the storage they are on."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM 0.32.0, config/lora.py (MaxLoRARanks): other ranks are rounded up to the next of these."""
_SGLANG_DRAFTS = {DraftMethod.mtp: "EAGLE", DraftMethod.eagle3: "EAGLE3", DraftMethod.draft_model: "STANDALONE",
                  DraftMethod.ngram: "NGRAM"}  # fmt: skip


class Role(StrEnum):
    """The work of a replica in a disaggregated fleet."""

    prefill = "prefill"
    decode = "decode"


class ServerPlan(NamedTuple):
    """What one server has to serve."""

    deployment: Deployment
    limits: Defaults  # of batch and memory
    max_context: int  # tokens of the longest request, prompt and answer
    role: Role | None = None  # of a disaggregated fleet; None: the server does both
    tiers: str | None = None  # memories for KV behind the GPUs': ``dram=200@0,ssd=2000@0``
    prefix_cache: bool = True
    converts: bool = False  # the published checkpoint is converted on load, whatever quantised ones there are


class EngineCommand(NamedTuple):
    """The command for one server, without host and port, and what the user has to fill in first."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    fill_in: tuple[str, ...]
    queue_metric: str  # the gauge of waiting requests that the engine exports to Prometheus
    image: str
    package: str

    @property
    def container_program(self) -> list[str]:
        """Return the program in the engine's own container, which has python3; not all have python."""
        return ["python3" if word == "python" else word for word in self.program]

    @property
    def repository(self) -> str:
        """Return where the weights are, as clients name the model: vLLM's first word, SGLang's first value."""
        return self.arguments[self.arguments[0].startswith("--")]


class _Engine(NamedTuple):
    """Properties of an engine besides its flags."""

    program: tuple[str, ...]
    images: Mapping[str, str]  # published containers by the GPU's vendor
    queue_metric: str
    adapters: str  # the flag that names a LoRA adapter


_ENGINES = {
    "vllm": _Engine(
        program=("vllm", "serve"),
        images={"nvidia": "vllm/vllm-openai", "amd": "vllm/vllm-openai-rocm"},
        queue_metric="vllm:num_requests_waiting",
        adapters="--lora-modules NAME=PATH",
    ),
    "sglang": _Engine(
        program=("python", "-m", "sglang.launch_server"),
        images={"nvidia": "lmsysorg/sglang"},
        queue_metric="sglang:num_queue_reqs",
        adapters="--lora-paths NAME=PATH",
    ),
}


def engine_command(server: ServerPlan) -> EngineCommand:
    """Return the planned engine's command; only vLLM and SGLang are supported."""
    deployment = server.deployment
    engine, vendor, weights = deployment.engine, deployment.gpu.vendor, _weights(deployment)
    if engine.key not in _ENGINES:
        raise BadInput(
            f"no deploy file can be written for {engine.name}",
            field="deploy",
            fix=f"Plan with {' or '.join(option('engine', name) for name in _ENGINES)}.",
        )
    known = _ENGINES[engine.key]
    flags, folders = engine_flags(server)
    words = [*([weights.repository] if engine.key == "vllm" else []), *flag_words(flags)]
    drafts = deployment.speculation
    head = _draft_repository(drafts) if drafts and drafts.needs_checkpoint else ""
    fill_in = (
        weights.fill_in,
        f"{known.adapters} for each of the {deployment.lora_adapters} adapters" if deployment.lora_adapters else None,
        f"{head}: name a repository or a path of what drafts" if head.startswith(FILL_IN) else None,
        *folders,
    )
    return EngineCommand(
        program=known.program,
        arguments=tuple(words),
        fill_in=tuple(text for text in fill_in if text),
        queue_metric=known.queue_metric,
        image=f"{known.images.get(vendor, f'{FILL_IN}/{engine.key}-{vendor}')}:v{engine.version}",
        package=f"{engine.key}=={engine.version}",
    )


def engine_flags(server: ServerPlan) -> tuple["Flags", tuple[str, ...]]:
    """Return the flags of a planned server by name, and the folders that the user has to fill in."""
    deployment = server.deployment
    key, shared = deployment.engine.key, deployment.expert_gpus
    if key == "llama.cpp":
        return _llama_cpp(server), ()
    if key == "tensorrt-llm":
        return _trtllm(server), ()
    is_vllm = key == "vllm"
    if is_vllm and deployment.ep > 1 and deployment.ep != shared:
        raise BadInput(
            f"vLLM shares experts over all {shared} GPUs of a stage, not over {deployment.ep} groups",
            field="ep",
            fix=f"Use {option('ep', 1)} or {option('ep', shared)}, or {option('engine', 'sglang')}.",
        )
    sizes = tier_bytes(deployment, server.tiers)
    kept, folders = (_vllm_memories if is_vllm else _sglang_memories)(server, sizes) if sizes else ({}, ())
    weights = _weights(deployment, converts=server.converts)
    return (_vllm if is_vllm else _sglang)(server, weights, kept), folders


def flag_words(flags: "Flags") -> list[str]:
    """Return flags as the words of a command line."""
    words: list[str] = []
    for name, value in flags.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def copies_in_one_server(deployment: Deployment, replicas: int) -> tuple[str, ...] | None:
    """Return the flag that runs a machine's replicas behind one port; None if the engine has none.

    vLLM's data parallelism copies dense models, but distributes the experts of other models over all the copies.
    """
    if replicas == 1:
        return ()
    if (deployment.engine.key == "vllm" and deployment.model.is_moe) or deployment.dp > 1:
        return None
    return "--data-parallel-size", str(replicas)


# --- weights --------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Where an engine finds the weights, and whether it converts them to FP8 as it loads them."""

    repository: str
    to_fp8: bool
    fill_in: str | None = None  # what the user has to correct, in words; None if the repository is known


def repository_of(deployment: Deployment) -> str:
    """Return the checkpoint of a deployment's weights: a repository, or a placeholder."""
    return _weights(deployment).repository


def _weights(deployment: Deployment, *, converts: bool = False) -> Weights:
    """Return the checkpoint to serve: as published, made by others, converted on load, or one that the user names.

    If it ``converts``, checkpoints made by others are left aside.
    """
    model, wanted = deployment.model, deployment.weights
    published = catalogue_repository(model)
    split = deployment.tp, deployment.expert_parts
    listed = checkpoint_for(model, wanted, *split) if not model.served.is_below(wanted) else None
    if not converts and listed is not None and _REPOSITORY.fullmatch(listed.repository):
        return Weights(listed.repository, to_fp8=False)
    unquantised = model.served is Precision.bf16
    as_published = wanted is model.served or (unquantised and wanted is Precision.fp32)
    # Engines convert only 16- and 32-bit checkpoints, to FP8; a quantised checkpoint stays as it is.
    to_fp8 = unquantised and wanted is Precision.fp8
    if published is not None and (as_published or to_fp8):
        return Weights(published, to_fp8)
    kind = model.checkpoint if as_published or to_fp8 else wanted
    holder = f"{FILL_IN}/{slug(model.key).removesuffix(f'-{kind}')}-{kind}"
    kinds = " (AWQ or GPTQ)" if kind is Precision.int4 else ""
    why = f"the catalogue knows no repository of {model.name}"
    if published is not None:
        why = f"{published} is in {model.checkpoint}, of which {deployment.engine.name} makes no {wanted} on loading"
    return Weights(holder, to_fp8, f"{holder}: {why}; name a repository or a path with {kind} weights{kinds}")


def catalogue_repository(model: ModelSpec) -> str | None:
    """Return the Hugging Face repository among a model's names; the catalogue lists it last."""
    return next((alias for alias in reversed(model.aliases) if _REPOSITORY.fullmatch(alias)), None)


def slug(text: str) -> str:
    """Return a text as lower-case letters, digits and single dashes, at most 40 of them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "model"


def _draft_repository(drafts: Speculation) -> str:
    """Return where the draft is found; a placeholder if the catalogue does not know."""
    known = drafts.checkpoint or (drafts.draft and catalogue_repository(drafts.draft))
    return known or f"{FILL_IN}/{slug(drafts.draft.key if drafts.draft else 'draft')}"


# --- flags ----------------------------------------------------------------------------------------------------------

Flags = Mapping[str, object]  # values by name without dashes: the name alone for True, nothing for None or False


def _vllm(server: ServerPlan, weights: Weights, memories: Flags) -> Flags:
    deployment, limits, drafts = server.deployment, server.limits, server.deployment.speculation
    adapters, own = deployment.lora_adapters, deployment.flags
    # A failed transfer of KV fails its request (vLLM 0.32.0, docs/features/nixl_connector_usage.md).
    side = "kv_producer" if server.role is Role.prefill else "kv_consumer"
    transfer = {"kv_connector": "NixlConnector", "kv_role": side, "kv_load_failure_policy": "fail"}
    # vLLM 0.32.0, config/speculative.py: the method, where the draft is unless in the checkpoint, tokens a round.
    draft: dict[str, object] = {"model": _draft_repository(drafts)} if drafts and drafts.needs_checkpoint else {}
    if drafts and drafts.method is DraftMethod.ngram:
        draft = {"prompt_lookup_min": LOOKED_UP[0], "prompt_lookup_max": LOOKED_UP[1]}
    return {
        "tensor-parallel-size": deployment.tp,
        "pipeline-parallel-size": deployment.pp if deployment.pp > 1 else None,
        "data-parallel-size": deployment.dp if deployment.dp > 1 else None,
        "enable-expert-parallel": deployment.ep > 1,
        # Across machines, one half of a batch is sent to its experts while the other half is computed.
        "all2all-backend": "deepep_low_latency" if deployment.spans_machines else None,
        "enable-dbo": deployment.spans_machines,
        # `--quantization fp8` is for checkpoints that are FP8 already; 16-bit ones are converted under another name
        # (vllm 0.32.0, layers/quantization/fp8.py).
        "quantization": "fp8_per_tensor" if weights.to_fp8 else None,
        "dtype": _dtype(deployment),
        "kv-cache-dtype": _kv(deployment, fp8="fp8"),
        # Limits are per attention group (vllm 0.32.0, "Data Parallel Deployment").
        "max-num-seqs": -(-limits.max_sequences // deployment.dp),
        "max-num-batched-tokens": limits.max_batched_tokens // deployment.dp,
        "max-model-len": server.max_context,
        "gpu-memory-utilization": f"{limits.memory_fraction:g}",
        "runner": "pooling" if deployment.model.is_encoder else None,
        "enable-prefix-caching": deployment.reuses_prefixes and server.prefix_cache,
        "no-enable-prefix-caching": not server.prefix_cache,
        "max-cudagraph-capture-size": own.captured_tokens or None,
        "enforce-eager": own.captured_tokens == 0,
        "async-scheduling": own.composes_ahead is True,
        "no-async-scheduling": own.composes_ahead is False,
        "kv-cache-memory-bytes": own.kv_bytes and int(own.kv_bytes),
        "kv-transfer-config": json.dumps(transfer) if server.role else None,
        **memories,
        "enable-lora": bool(adapters),
        "max-loras": adapters or None,
        "max-lora-rank": next(rank for rank in _LORA_RANKS if rank >= deployment.lora_rank) if adapters else None,
        "speculative-config": drafts
        and json.dumps({"method": drafts.method.value, **draft, "num_speculative_tokens": drafts.tokens}),
    }


def _sglang(server: ServerPlan, weights: Weights, memories: Flags) -> Flags:
    deployment, limits, drafts = server.deployment, server.limits, server.deployment.speculation
    adapters, role, own = deployment.lora_adapters, server.role, deployment.flags
    # With a reserve in bytes, the engine computes its memory share at start from the GPU and the batch.
    shares = deployment.engine.memory_rule is MemoryRule.weights_and_kv and not limits.reserve_bytes
    flags: dict[str, object] = {
        "model-path": weights.repository,
        # SGLang's tensor ranks form groups that attend to their own sequences.
        "tp-size": deployment.expert_gpus,
        # `--dp-size N --enable-dp-attention` is deprecated until the end of 2026 (0.5.23, arg_groups/parallel_hook.py).
        "attn-dp-size": deployment.dp if deployment.dp > 1 else None,
        "moe-a2a-backend": "deepep" if deployment.spans_machines else None,
        "enable-two-batch-overlap": deployment.spans_machines,
        "pp-size": deployment.pp if deployment.pp > 1 else None,
        "ep-size": deployment.ep if deployment.ep > 1 else None,
        "quantization": "fp8" if weights.to_fp8 else None,
        "dtype": _dtype(deployment),
        "kv-cache-dtype": _kv(deployment, fp8="fp8_e4m3"),
        "max-running-requests": limits.max_sequences,
        "chunked-prefill-size": limits.max_batched_tokens,
        "is-embedding": deployment.model.is_encoder,
        "context-length": server.max_context,
        "disable-radix-cache": not server.prefix_cache,
        "cuda-graph-max-bs-decode": own.captured_tokens or None,
        "disable-decode-cuda-graph": own.captured_tokens == 0,
        "disable-overlap-schedule": own.composes_ahead is False,
        "mem-fraction-static": f"{limits.memory_fraction:g}" if shares else None,
        "enable-lora": bool(adapters),
        "max-loras-per-batch": adapters or None,
        "max-lora-rank": deployment.lora_rank if adapters else None,
        "lora-target-modules": "all" if adapters else None,
        "disaggregation-mode": role and role.value,
        "disaggregation-transfer-backend": "nixl" if role else None,
        "enable-metrics": True,
        **memories,
    }
    if drafts is None:
        return flags
    # SGLang 0.5.23, "Speculative Decoding": one chain, so the tokens checked are those drafted and one more.
    return flags | {
        "speculative-algorithm": _SGLANG_DRAFTS[drafts.method],
        "speculative-draft-model-path": _draft_repository(drafts) if drafts.needs_checkpoint else None,
        "speculative-num-steps": drafts.tokens,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": drafts.tokens + 1,
    }


def _trtllm(server: ServerPlan) -> Flags:
    """Return the flags of ``trtllm-serve``; what it has no flag for is in a file (``trtllm_options``)."""
    deployment, limits, options = server.deployment, server.limits, trtllm_options(server)
    return {
        "tp_size": deployment.tp,
        "pp_size": deployment.pp if deployment.pp > 1 else None,
        "ep_size": deployment.ep if deployment.ep > 1 else None,
        "max_batch_size": limits.max_sequences,
        "max_num_tokens": limits.max_batched_tokens,
        "max_seq_len": server.max_context,
        "extra_llm_api_options": options_file(options) if options else None,
    }


def trtllm_options(server: ServerPlan) -> dict[str, object]:
    """Return what TensorRT-LLM reads from a YAML file (1.3.0, ``llmapi/llm_args.py``): only what is not its default."""
    deployment, own = server.deployment, server.deployment.flags
    cache: dict[str, object] = {"dtype": "fp8"} if deployment.kv is Precision.fp8 else {}
    cache |= {} if server.prefix_cache else {"enable_block_reuse": False}
    options: dict[str, object] = {"kv_cache_config": cache} if cache else {}
    if own.captured_tokens:
        options["cuda_graph_config"] = {"max_batch_size": own.captured_tokens, "enable_padding": True}
    if own.composes_ahead is False:
        options["disable_overlap_scheduler"] = True
    return options


def options_file(options: Mapping[str, object]) -> str:
    """Return a file name of their own for options."""
    return f"trtllm-{sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]}.yaml"


def _llama_cpp(server: ServerPlan) -> Flags:
    """Return the flags of llama.cpp's server, whose slots divide the context among them (tools/server/README.md)."""
    limits, kv = server.limits, "q8_0" if server.deployment.kv is Precision.fp8 else "f16"
    return {
        "parallel": limits.max_sequences,
        "ctx-size": limits.max_sequences * server.max_context,
        "batch-size": limits.max_batched_tokens,
        "cache-type-k": kv,
        "cache-type-v": kv,
        "no-cache-prompt": not server.prefix_cache,
        "metrics": True,
    }


def _dtype(deployment: Deployment) -> str:
    """Return the type of activations and unquantised weights; ``auto`` is the checkpoint's own 16 bits."""
    if deployment.weights is Precision.fp32:
        return "float32"
    if "bf16" not in deployment.gpu.flops:
        return "half"  # Volta and Turing have no bf16.
    return "bfloat16" if deployment.model.checkpoint is Precision.fp32 else "auto"


def _kv(deployment: Deployment, *, fp8: str) -> str:
    if deployment.kv is not Precision.fp8:
        # ``auto`` would keep the cache of a checkpoint with scales for it in 8 bits.
        return "bfloat16" if deployment.model.kv_served is Precision.fp8 else "auto"
    return "fp8_inc" if deployment.gpu.vendor == "intel" else fp8


# --- memories behind the GPUs ---------------------------------------------------------------------------------------


def tier_bytes(deployment: Deployment, tiers: str | None) -> dict[str, float]:
    """Return the bytes of each memory by name: of one replica, or of all together if it is shared."""
    return {price.tier.name: price.tier.size_bytes for price in parse_tiers(tiers, deployment)} if tiers else {}


def _vllm_memories(server: ServerPlan, sizes: Mapping[str, float]) -> tuple[Flags, tuple[str, ...]]:
    """Return the flag for host memory; with disks or a shared folder, the connector's configuration instead."""
    host = sizes.get("dram", 0.0) / server.deployment.dp
    if not host:
        raise BadInput(
            "vLLM keeps KV on disks behind host memory only",
            field="tiers",
            fix=f"Such as {option('tiers', f'dram=100@0,{server.tiers}')}.",
        )
    if len(sizes) == 1:
        return {"kv-offloading-size": f"{host / GIB:.1f}"}, ()
    behind = [{"type": "fs", "root_dir": _FOLDERS[name][0]} for name in sizes if name != "dram"]
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": int(host), "secondary_tiers": behind}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    fill_in = tuple(
        f"{folder}: a folder on {where} of {sizes[name] / BYTES_PER_GB:g} GB that vLLM does not clear by itself"
        for name, (folder, where) in _FOLDERS.items()
        if name in sizes
    )
    return {"kv-transfer-config": json.dumps(config)}, fill_in


def _sglang_memories(server: ServerPlan, sizes: Mapping[str, float]) -> tuple[Flags, tuple[str, ...]]:
    """Return the flags of its hierarchical cache: host memory by rank, with one store that may lie behind."""
    behind, gpus = [name for name in sizes if name != "dram"], server.deployment.gpus
    host_gb = int(sizes.get("dram", 0.0) / gpus // BYTES_PER_GB)
    if not host_gb or len(behind) > 1:
        what = "needs a GB of host memory for each GPU" if not host_gb else "has one store behind host memory, not two"
        raise BadInput(
            f"SGLang's hierarchical cache {what}",
            field="tiers",
            fix=f"Such as {option('tiers', f'dram={gpus}@0,ssd=1000@0')}.",
        )
    flags: dict[str, object] = {"enable-hierarchical-cache": True, "hicache-size": host_gb}
    if not behind:
        return flags, ()
    (folder, where), size = _FOLDERS[behind[0]], sizes[behind[0]]
    # Each rank clears its own part of the folder.
    extra = {"file_storage_path": folder, "max_size": int(size / gpus)}
    flags |= {"hicache-storage-backend": "file", "hicache-storage-backend-extra-config": json.dumps(extra)}
    return flags, (f"{folder}: a folder on {where}, {size / BYTES_PER_GB:g} GB",)
