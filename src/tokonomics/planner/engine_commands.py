"""The command line that starts an engine as planned: parallelism, precisions, batch and memory limits.

Flags and their values are those of the versions in ``catalog/data/engines.toml``, read in the engines' own argument
parsers; a test holds every flag written here against the list taken from the wheels (docs/deploy.md).
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tokonomics.catalog.engines import MemoryRule
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import PORT, DeployJob, weights_for

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM 0.32.0, config/lora.py (MaxLoRARanks): a rank in between takes the next."""


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
    write = _WRITERS.get(engine.key)
    if write is None:
        raise BadInput(
            f"no deploy file can be written for {engine.name}",
            field="deploy",
            fix=f"Plan with {' or '.join(option('engine', name) for name in _WRITERS)}.",
        )
    return write(job)


def listen(port: int | Shell = PORT) -> tuple[str, ...]:
    """Where the server listens: on every interface, as others are to reach it. Both engines spell it so."""
    return "--host", "0.0.0.0", "--port", port if isinstance(port, Shell) else str(port)


def shell_line(words: Sequence[str], indent: str = "  ") -> str:
    """A command over several lines, one flag with its value on each; every word quoted where a shell needs it."""
    lines: list[str] = []
    for word in words:
        written = word if isinstance(word, Shell) else shlex.quote(word)
        flag = word.startswith("--")
        if lines and not flag:
            lines[-1] += f" {written}"
        else:
            lines.append(written)
    return f" \\\n{indent}".join(lines)


def copies_in_one_server(job: DeployJob) -> tuple[str, ...] | None:
    """The flag that runs several replicas of a machine behind one port; None where the engine has no such thing.

    vLLM's data parallelism copies dense models, but shares the experts of the others out over all the copies.
    """
    if job.replicas_per_node == 1:
        return ()
    if job.deployment.engine.key == "vllm" and job.deployment.model.is_moe:
        return None
    return "--data-parallel-size", str(job.replicas_per_node)


def over_nodes(job: DeployJob, rank: Shell, head: Shell) -> tuple[str, ...]:
    """Flags that join the machines of one replica; the same on each but for its rank."""
    if job.nodes_per_replica == 1:
        return ()
    common = ("--nnodes", str(job.nodes_per_replica), "--node-rank", rank)
    if job.deployment.engine.key == "vllm":
        return *common, "--master-addr", head
    return *common, "--dist-init-addr", Shell(f"{head}:5000")


def _vllm(job: DeployJob) -> EngineCommand:
    deployment, limits = job.deployment, job.batch_limits
    # `--quantization fp8` is for checkpoints that are FP8 already; 16-bit ones are converted under another name
    # (vllm 0.32.0, layers/quantization/fp8.py).
    weights = weights_for(job, converted_on_load=(Precision.fp8,))
    arguments = [weights.repository, "--tensor-parallel-size", str(deployment.tp)]
    if deployment.pp > 1:
        arguments += ["--pipeline-parallel-size", str(deployment.pp)]
    if deployment.ep > 1:
        if deployment.ep != deployment.tp:
            raise BadInput(
                f"vLLM shares experts over all {deployment.tp} tensor ranks, not over {deployment.ep} groups",
                field="ep",
                fix=f"Use {option('ep', 1)} or {option('ep', deployment.tp)}, or {option('engine', 'sglang')}.",
            )
        arguments.append("--enable-expert-parallel")
    if weights.convert_to:
        arguments += ["--quantization", "fp8_per_tensor"]
    arguments += ["--dtype", _dtype(job), "--kv-cache-dtype", _kv(job, fp8="fp8")]
    arguments += ["--max-num-seqs", str(limits.max_sequences)]
    arguments += ["--max-num-batched-tokens", str(limits.max_batched_tokens)]
    arguments += ["--max-model-len", str(job.max_context)]
    arguments += ["--gpu-memory-utilization", f"{limits.memory_fraction:g}"]
    arguments.append("--enable-prefix-caching" if job.prefix_cache else "--no-enable-prefix-caching")
    if deployment.lora_adapters:
        rank = next(lora_rank for lora_rank in _LORA_RANKS if lora_rank >= deployment.lora_rank)
        arguments += ["--enable-lora", "--max-loras", str(deployment.lora_adapters), "--max-lora-rank", str(rank)]
    images = {
        "nvidia": f"vllm/vllm-openai:v{deployment.engine.version}",
        "amd": f"vllm/vllm-openai-rocm:v{deployment.engine.version}",
    }
    return EngineCommand(
        program=("vllm", "serve"),
        arguments=tuple(arguments),
        fill_in=_to_fill_in(job, weights.fill_in, "--lora-modules NAME=PATH"),
        queue_metric="vllm:num_requests_waiting",
        image=_image(job, images),
        package=f"vllm=={deployment.engine.version}",
    )


def _sglang(job: DeployJob) -> EngineCommand:
    deployment, limits = job.deployment, job.batch_limits
    weights = weights_for(job, converted_on_load=(Precision.fp8,))
    arguments = ["--model-path", weights.repository, "--tp-size", str(deployment.tp)]
    if deployment.pp > 1:
        arguments += ["--pp-size", str(deployment.pp)]
    if deployment.ep > 1:
        arguments += ["--ep-size", str(deployment.ep)]
    if weights.convert_to:
        arguments += ["--quantization", "fp8"]
    arguments += ["--dtype", _dtype(job), "--kv-cache-dtype", _kv(job, fp8="fp8_e4m3")]
    arguments += ["--max-running-requests", str(limits.max_sequences)]
    arguments += ["--chunked-prefill-size", str(limits.max_batched_tokens)]
    arguments += ["--context-length", str(job.max_context)]
    if deployment.engine.memory_rule is MemoryRule.weights_and_kv and not limits.reserve_bytes:
        # With a reserve in bytes the share is the engine's own, worked out at start from the GPU and the batch.
        arguments += ["--mem-fraction-static", f"{limits.memory_fraction:g}"]
    if not job.prefix_cache:
        arguments.append("--disable-radix-cache")
    if deployment.lora_adapters:
        arguments += ["--enable-lora", "--max-loras-per-batch", str(deployment.lora_adapters)]
        arguments += ["--max-lora-rank", str(deployment.lora_rank), "--lora-target-modules", "all"]
    arguments.append("--enable-metrics")
    return EngineCommand(
        program=("python", "-m", "sglang.launch_server"),
        arguments=tuple(arguments),
        fill_in=_to_fill_in(job, weights.fill_in, "--lora-paths NAME=PATH"),
        queue_metric="sglang:num_queue_reqs",
        image=_image(job, {"nvidia": f"lmsysorg/sglang:v{deployment.engine.version}"}),
        package=f"sglang=={deployment.engine.version}",
    )


_WRITERS: Mapping[str, Callable[[DeployJob], EngineCommand]] = {"vllm": _vllm, "sglang": _sglang}


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


def _to_fill_in(job: DeployJob, weights: str | None, adapters: str) -> tuple[str, ...]:
    count = job.deployment.lora_adapters
    lora = f"{adapters} for each of the {count} adapters" if count else None
    return tuple(each for each in (weights, lora) if each)


def _image(job: DeployJob, images: Mapping[str, str]) -> str:
    """The engine's published container; a placeholder where it publishes none for that vendor."""
    gpu = job.deployment.gpu
    return images.get(gpu.vendor, f"FILL-IN/{job.deployment.engine.key}-{gpu.vendor}:v{job.deployment.engine.version}")
