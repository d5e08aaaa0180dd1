"""Read what a source says that it ran in our terms: model, GPU, engine and precision as a deployment with step times.

Sources append to names, use other names for engines and leave out precisions. If a row of InferenceMAX does not say how
its engine was set up, the options of its scripts are used, as read in SemiAnalysisAI/InferenceX, ``benchmarks/*.sh`` @
1fc5d73c, ``benchmarks/*_slurm.sh`` of 2025 (Llama 3 70B; TensorRT-LLM before 1.2) and ``benchmarks/single_node/*.sh``
of April 2026. A model that is not listed runs with its engine's defaults.
"""

import math
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from tokonomics.catalog.engines import Engine, find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, MoeMlp, Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import TokonomicsError, UnknownName, shorten
from tokonomics.measure.measurements import Measurement, Mode
from tokonomics.physics.calibration import profile_key
from tokonomics.physics.deployment import DRAFT_TOKENS, Deployment, acceptance_for, valid_tp
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.overhead import LAUNCHES, REQUESTS, Overhead, overhead, version_numbers
from tokonomics.physics.steptime import StepModel
from tokonomics.planner.parsing import draft_named

MANY_USERS = 16
SHORT = (1024, 1024)
"""Nominal lengths of the load at which scripts gather prompts."""
TUNED_GRAPH_TOKENS = 2048
"""``max-cudagraph-capture-size`` of InferenceMAX's recipes for vLLM (as of vLLM's own for GPT-OSS on Hopper)."""
LONGER_STEPS = (1, 2)
"""Version of TensorRT-LLM from which its scripts for DeepSeek allow a step 8,192 tokens, and let prompts gather."""


class Gathering(NamedTuple):
    """How prompts wait for others (TensorRT-LLM's ``batch_wait_timeout_iters``, ``batch_wait_max_tokens_ratio``)."""

    steps: int  # at the most
    share: float  # of a step's tokens: if those that wait and the answers' reach it, they wait no longer
    least_users: int = 1
    below_tp: int = 99

    def wait_steps(self, users: int, input_tokens: int, output_tokens: int, chunk: int) -> float:
        """Return the mean number of steps that a prompt waits for others, of which one comes when an answer ends."""
        each, at_once = users / output_tokens, chunk // input_tokens
        needed = math.ceil((self.share * chunk - users) / input_tokens)
        steps = float(self.steps) if needed > at_once else min(self.steps, max(0, needed - 1) / each)
        others = min(steps * each, max(0, at_once - 1))
        return steps * (1 + others / 2) / (1 + others)


class Recipe(NamedTuple):
    kv: Precision | None = None  # of the cache; None: the engine's default
    chunk: int | None = None  # tokens of a step with prompts
    polls: tuple[int, int] = (0, 0)
    """Steps after which the engine looks for new requests (``SCHEDULER_RECV_INTERVAL``), with few users and with many:
    on average half of them pass before a request is seen."""
    aligns: int = 0
    """The most steps that a prompt waits until every group of the attention has one, so that they are computed together
    (TensorRT-LLM's ``attention_dp_config``: ``enable_balance``, ``timeout_iters``); 0: none waits."""
    gathers: Gathering | None = None  # at the lengths ``SHORT``, without groups of the attention
    older: int | None = None  # tokens of a step before ``LONGER_STEPS``, if one prompt and the answers take fewer
    graph_tokens: int = TUNED_GRAPH_TOKENS  # of a step that is launched in captured pieces; 0: none is

    def step_tokens(self, row: Measurement) -> int | None:
        """Return the tokens that a step with prompts of that run holds at the most; None: the engine's default."""
        if self.older is not None and version_numbers(row.engine_version) < LONGER_STEPS:
            users = math.ceil((row.batch or 1) / row.dp)
            return max(self.older, row.input_tokens + users + 64) * row.dp
        return self.chunk and self.chunk * row.dp

    def gathered_steps(self, row: Measurement, chunk: int) -> float:
        """Return the mean number of steps without prompts that those of that run wait for each other."""
        gathers, users = self.gathers, row.batch or 1
        if gathers is None or row.dp > 1 or (row.input_tokens, row.output_tokens) != SHORT:
            return 0.0
        older = self.older is not None and version_numbers(row.engine_version) < LONGER_STEPS
        if older or users < gathers.least_users or row.tp >= gathers.below_tp:
            return 0.0
        inputs, outputs = (round(tokens * row.length_share) for tokens in SHORT)
        return gathers.wait_steps(users, inputs, outputs, chunk)

    def wait_steps(self, users: int, output_tokens: int, groups: int) -> float:
        """Return the mean number of steps before a request is seen."""
        polled = self.polls[users >= MANY_USERS] / 2
        if not self.aligns or groups == 1:
            return polled
        # The first waits longest; those that come meanwhile wait half of that. One comes each time an answer ends.
        others = self.aligns * users / output_tokens
        return polled + self.aligns * (1 + others / 2) / (1 + others)


class _Script(NamedTuple):
    engine: str
    model: str  # the beginning of its key
    place: str  # a GPU's key or an architecture
    weights: Precision
    tp: int | None  # None: any
    recipe: Recipe


_FP8, _FP4, _BF16 = Precision.fp8, Precision.nvfp4, Precision.bf16
_SCRIPTS = (
    # dsr1_fp4_b200.sh, dsr1_fp8_b200.sh (its TP 4 has other settings), dsr1_fp8_h200.sh
    _Script("sglang", "deepseek", "blackwell", _FP4, None, Recipe(_FP8, 16_384, (10, 30))),
    _Script("sglang", "deepseek", "blackwell", _FP8, 4, Recipe(_FP8, 8_192, (10, 10))),
    _Script("sglang", "deepseek", "blackwell", _FP8, None, Recipe(_FP8, 32_768, (10, 30))),
    _Script("sglang", "deepseek", "hopper", _FP8, None, Recipe(None, 32_768)),
    # qwen3.5_fp8_b200.sh, qwen3.5_bf16_b200.sh, qwen3.5_bf16_b300.sh, qwen3.5_fp8_h200.sh
    _Script("sglang", "qwen3.5", "blackwell", _FP8, None, Recipe(_FP8, 32_768, (10, 30))),
    _Script("sglang", "qwen3.5", "blackwell", _BF16, None, Recipe(None, 32_768, (10, 30))),
    _Script("sglang", "qwen3.5", "hopper", _FP8, None, Recipe(_FP8, 16_384)),
    # glm5_fp8_b200.sh, and with its options GLM-5 in NVFP4
    _Script("sglang", "glm-5", "blackwell", _FP8, None, Recipe(_FP8, 32_768)),
    _Script("sglang", "glm-5", "blackwell", _FP4, None, Recipe(_FP8, 32_768)),
    # dsr1_fp8_b200_trt.sh, dsr1_fp8_h200_trt.sh (and _slurm.sh), 70b_fp8_*_trt_slurm.sh, 70b_fp4_b200_trt_slurm.sh,
    # gptoss_fp4_b200_trt.sh, gptoss_fp4_h200_trt.sh
    _Script("tensorrt-llm", "deepseek", "blackwell", _FP8, None,
            Recipe(_FP8, aligns=60, older=0, gathers=Gathering(40, 0.8, least_users=64))),
    _Script("tensorrt-llm", "deepseek", "blackwell", _FP4, None, Recipe(_FP8, aligns=60, older=2_200)),
    _Script("tensorrt-llm", "deepseek", "hopper", _FP8, None, Recipe(_FP8, aligns=60, older=0)),
    _Script("tensorrt-llm", "llama", "blackwell", _FP8, None,
            Recipe(_FP8, 16_384, gathers=Gathering(20, 0.9, below_tp=8))),
    _Script("tensorrt-llm", "llama", "blackwell", _FP4, None, Recipe(_FP8, gathers=Gathering(20, 0.9, below_tp=8))),
    _Script("tensorrt-llm", "llama", "hopper", _FP8, None, Recipe(_FP8, gathers=Gathering(20, 0.9, below_tp=8))),
    _Script("tensorrt-llm", "gpt-oss", "blackwell", Precision.mxfp4, None, Recipe(_FP8, 20_000)),
    _Script("tensorrt-llm", "gpt-oss", "hopper", Precision.mxfp4, None, Recipe(None, 20_000)),
    # gptoss_fp4_b200.sh, 70b_fp8_h100_slurm.sh, 70b_fp8_h200_slurm.sh, 70b_fp8_b200_docker.sh, 70b_fp4_b200_docker.sh
    # (the last two: ``cudagraph_mode: FULL_DECODE_ONLY``). On an H100 the queues of rows marked ``dev`` are those of a
    # cache in 16 bits: they are older than the script.
    _Script("vllm", "gpt-oss", "blackwell", Precision.mxfp4, None, Recipe(_FP8, 8_192)),
    _Script("vllm", "llama", "H200", _FP8, None, Recipe(_FP8, 8_192, graph_tokens=512)),
    _Script("vllm", "llama", "hopper", _FP8, None, Recipe(None, 8_192, graph_tokens=512)),
    _Script("vllm", "llama", "blackwell", _FP8, None, Recipe(_FP8, 8_192, graph_tokens=0)),
    _Script("vllm", "llama", "blackwell", _FP4, None, Recipe(_FP8, 8_192, graph_tokens=0)),
)  # fmt: skip


def recipe(engine: str, model: str, place: str, weights: Precision, tp: int) -> Recipe:
    """Return how InferenceMAX runs a model with an engine on a GPU or an architecture, by our keys."""
    asked = (engine, place, weights)
    found = (
        script.recipe
        for script in _SCRIPTS
        if (script.engine, script.place, script.weights) == asked
        and model.startswith(script.model)
        and script.tp in (None, tp)
    )
    return next(found, Recipe())


ENGINES = {
    "autoawq": "llama.cpp", "deepspeed": "vllm", "exllama": "llama.cpp", "lmdeploy": "vllm", "mlc": "vllm",
    "ollama": "llama.cpp", "optimum-habana": "vllm", "text-generation-inference": "tgi", "triton": "tensorrt-llm",
    "trt": "tensorrt-llm",
}  # fmt: skip
"""Our engine under which another is predicted, by the beginning of its name.

Those under vLLM batch continuously as it does. AutoAWQ and ExLlama are loops over one batch like llama.cpp, with 4-bit
weights and several GPUs split by layers.
"""

LLAMA_CPP = ("llama.cpp", "ollama")  # these run its kernels and its scheduler; the others predicted as it share neither

HOSTLESS = "optimum-habana"
"""Engines that run a static batch from a plain loop, whole steps as graphs of the accelerator, without a scheduler."""

EAGER = "eager"
"""In the name of an engine that launched its decode steps kernel by kernel (``--disable-cuda-graph``)."""
EAGER_LAUNCHES = 0.38
"""Launches of such an engine, in those of the logged vLLM: its host was as much faster. Fitted by
``benchmarks/fit_eager.py`` on the times per token of public runs at a rate that are marked ``calibrate``."""

_PRECISIONS = (
    (r"mxfp4", Precision.mxfp4),
    (r"nvfp4|fp4", Precision.nvfp4),
    (r"awq|gptq|int4|w4a|q4|4[- ]?bit", Precision.int4),
    (r"w8a8|int8|q8", Precision.int8),
    (r"fp8|e4m3|e5m2|f8", Precision.fp8),
    (r"fp32|float32|f32", Precision.fp32),
    (r"16|half", Precision.bf16),
)
"""How sources write precisions, the most specific first."""

_SUFFIX = re.compile(
    r"[-_.](instruct|chat|it|hf|base|fp8|fp16|bf16|awq|gptq|int4|int8|w8a8|w4a16|nvfp4|mxfp4|gguf|dynamic|v\d(\.\d)?)$"
)
"""What sources append to a model's name without changing its shape."""


def steps_of(row: Measurement) -> StepModel:
    # An engine's own program measures low-latency rows, without a front end.
    era = (row.year, row.engine_version, row.tuned, row.mode is not Mode.low_latency)
    served = (row.model, row.gpu, row.tp, row.pp, row.ep, row.dp, row.weights, row.kv, row.engine)
    return _step_model(served, era, profile_key(), (row.draft, row.accepted_length), row.visited_experts)


def deployment_of(row: Measurement) -> Deployment | None:
    """Return what a row ran on; None if we do not know all of it."""
    with suppress(TokonomicsError):
        return steps_of(row).deployment
    return None


@lru_cache(maxsize=4096)
def _step_model(
    stated: tuple[Any, ...],
    era: tuple[int, str | None, bool, bool],
    profile: str | None,
    drafted: tuple[str | None, float | None],
    visited_experts: int | None,
) -> StepModel:
    deployment = stated_deployment(*stated)
    if era[2] and stated[-2] is None and (kv := recipe_of(deployment).kv):
        stated = (*stated[:-2], kv, stated[-1])
        deployment = stated_deployment(*stated)
    draft, accepted_length = drafted
    if draft:
        deployment = _drafting(deployment, draft, accepted_length)
    if visited_experts:
        deployment = deployment.model_copy(update={"visited_experts": visited_experts})
    if stated[-1] is None:  # no engine: bare steps
        return StepModel(deployment, None)
    year, version, tuned, served = era
    own = overhead(deployment.engine, year, version, deployment.gpu.architecture)
    own = as_run(own, deployment, stated[-1], tuned=tuned, served=served)
    return StepModel(deployment, own, aligned=tuned and recipe_of(deployment).aligns > 0)


def as_run(own: Overhead, deployment: Deployment, engine: str, *, tuned: bool, served: bool) -> Overhead:
    """Return an engine's own time as a source set it up; ``engine`` is the source's name for it."""
    changes: dict[str, object] = {} if served else dict.fromkeys(REQUESTS, 0.0)
    if plain_engine(engine) not in LLAMA_CPP:
        changes |= {"unpacks": False, "score_passes": 0.0}
    if HOSTLESS in engine.lower():
        changes |= {"step_s": 0.0, "sequence_s": 0.0}
    if EAGER in engine.lower():
        logged = overhead(find_engine("vllm"))
        changes |= {name: EAGER_LAUNCHES * getattr(logged, name) for name in LAUNCHES}
        changes |= {"captures": False, "overlapped": True}
    if tuned:
        changes |= {"overlapped": True, "graph_tokens": recipe_of(deployment).graph_tokens if own.graph_tokens else 0}
    return own.model_copy(update=changes)


def _drafting(deployment: Deployment, draft: str, accepted_length: float | None) -> Deployment:
    """Return the deployment with the drafts that a row states (``mtp:3``), with the stated or published acceptance."""
    name, _, stated = draft.partition(":")
    tokens = int(stated) if stated else None
    acceptance = None if accepted_length is None else acceptance_for(accepted_length, tokens or DRAFT_TOKENS)
    if accepted_length is not None and acceptance is None:
        raise TokonomicsError(f"no round of {tokens or DRAFT_TOKENS} drafted tokens yields {accepted_length:g}")
    made = draft_named(name, deployment.model, tokens, acceptance)
    return deployment.model_copy(update={"speculation": made})


def recipe_of(deployment: Deployment) -> Recipe:
    """Return how InferenceMAX runs a deployment: as on that GPU, or else as on its architecture."""
    engine, model, gpu = deployment.engine.key, deployment.model.key, deployment.gpu
    places = (recipe(engine, model, place, deployment.weights, deployment.tp) for place in (gpu.key, gpu.architecture))
    return next((found for found in places if found != Recipe()), Recipe())


def stated_deployment(
    model: str, gpu: str, tp: int, pp: int, ep: int, dp: int, weights: str, kv: str | None, engine: str | None
) -> Deployment:
    """Return what a source says that it ran, in our terms; raise an error if that is not possible."""
    if tp * dp % ep:
        raise TokonomicsError(f"experts over {ep} GPUs, attention over {tp}: neither divides the other")
    spec = model_named(model)
    if ep > min((group.mlp.experts for group in spec.groups if isinstance(group.mlp, MoeMlp)), default=ep):
        raise TokonomicsError(f"{spec.name} has fewer experts than {ep}")
    if tp not in valid_tp(spec):
        raise TokonomicsError(f"{spec.name} cannot be split {tp} ways")
    if pp > spec.layers:
        raise TokonomicsError(f"{spec.name} has {spec.layers} layers, fewer than {pp} stages")
    found = engine_named(engine) if engine else find_engine("vllm")
    # GPT-OSS is MXFP4 whatever a source states; if none is stated, use the checkpoint's own precision.
    precision = spec.served if spec.checkpoint is Precision.mxfp4 else stated_weights(weights, model) or spec.served
    # Predict what a source says that it ran, even if the engine's current release does not run it.
    split = {"tp": tp, "pp": pp, "ep": ep, "dp": dp}
    made = Deployment(model=spec, gpu=find_gpu(gpu), engine=found, **split, weights=precision, kv=_kv(kv))
    if max_sequences(made, 1):
        return made
    # It did run, so allow more of the memory than the engine's default.
    everything = {"at_least_gib": 0, "except_gpus": (), "memory_fraction": 1.0, "reserve_bytes": 0}
    limits = made.group_limits.model_copy(update=everything)
    return made.model_copy(update={"engine": found.model_copy(update={"defaults": (limits,)})})


def model_named(name: str) -> ModelSpec:
    """Return the model with that name, without what sources append to it."""
    try:
        return find_model(name)
    except UnknownName:
        shorter = _SUFFIX.sub("", name.lower())
        if shorter == name.lower():
            raise
        return model_named(shorter)


def plain_engine(name: str) -> str:
    return re.split(r"[\s+(]", name.strip().lower())[0]


def engine_named(name: str) -> Engine:
    """Return the engine with that name, or the one it is predicted as."""
    plain = plain_engine(name)
    return find_engine(next((ours for theirs, ours in ENGINES.items() if plain.startswith(theirs)), plain))


def assumed_weights(text: str, name: str) -> Precision | None:
    """Return the checkpoint's own precision if neither the source nor the model's name states one."""
    model = model_named(name)
    return None if model.checkpoint is Precision.mxfp4 or stated_weights(text, name) else model.served


def stated_weights(text: str, name: str) -> Precision | None:
    """Return the precision that a source or its model's name states (Llama-3.1-8B-Instruct-FP8); None if none does."""
    if text.lower() not in ("unstated", "auto", "") and not re.search(r"default|\bn/s\b", text.lower()):
        return _precision(text)
    named = (precision for pattern, precision in _PRECISIONS if re.search(rf"[-_.]({pattern})", name.lower()))
    return next(named, None)


def _kv(text: str | None) -> Precision:
    if text is None or text.lower() in ("", "auto", "unstated"):
        return Precision.bf16
    if (stated := _precision(text)) not in KV_PRECISIONS:
        raise TokonomicsError(f"no curve for a KV cache in {stated}")
    return stated


def _precision(text: str) -> Precision:
    for pattern, precision in _PRECISIONS:
        if re.search(pattern, text.lower()):
            return precision
    raise TokonomicsError(f"unknown precision '{shorten(text)}'")
