"""How InferenceMAX sets its engines up where a row does not say: what its scripts pass to them.

Read in SemiAnalysisAI/InferenceX, ``benchmarks/*.sh`` @ 1fc5d73c and ``benchmarks/single_node/*.sh`` of April 2026. A
model that is not listed runs as its engine does by itself.
"""

from typing import NamedTuple

from tokonomics.catalog.layers import Precision

MANY_USERS = 16


class Recipe(NamedTuple):
    kv: Precision | None = None  # of the cache; None: as the engine has it
    chunk: int | None = None  # tokens of a step with prompts
    polls: tuple[int, int] = (0, 0)
    """Steps after which new requests are looked for (``SCHEDULER_RECV_INTERVAL``), with few users and with many: in the
    mean half of them pass before a request is seen."""
    aligns: int = 0
    """Steps that a prompt waits at the most until every group of the attention has one, so that they are computed
    together (TensorRT-LLM's ``attention_dp_config``: ``enable_balance``, ``timeout_iters``); 0: none waits."""

    def wait_steps(self, users: int, output_tokens: int, groups: int) -> float:
        """Steps that pass before a request is looked at, in the mean."""
        polled = self.polls[users >= MANY_USERS] / 2
        if not self.aligns or groups == 1:
            return polled
        # The first waits the longest; who comes while it does waits half of that. One comes each time an answer ends.
        others = self.aligns * users / output_tokens
        return polled + self.aligns * (1 + others / 2) / (1 + others)


class _Script(NamedTuple):
    engine: str
    model: str  # how its key begins
    architecture: str
    weights: Precision
    tp: int | None  # None: any
    recipe: Recipe


_FP8, _FP4, _BF16 = Precision.fp8, Precision.nvfp4, Precision.bf16
_SCRIPTS = (
    # dsr1_fp4_b200.sh, dsr1_fp8_b200.sh (its TP 4 has settings of its own), dsr1_fp8_h200.sh
    _Script("sglang", "deepseek", "blackwell", _FP4, None, Recipe(_FP8, 16_384, (10, 30))),
    _Script("sglang", "deepseek", "blackwell", _FP8, 4, Recipe(_FP8, 8_192, (10, 10))),
    _Script("sglang", "deepseek", "blackwell", _FP8, None, Recipe(_FP8, 32_768, (10, 30))),
    _Script("sglang", "deepseek", "hopper", _FP8, None, Recipe(None, 32_768)),
    # qwen3.5_fp8_b200.sh, qwen3.5_bf16_b200.sh, qwen3.5_bf16_b300.sh, qwen3.5_fp8_h200.sh
    _Script("sglang", "qwen3.5", "blackwell", _FP8, None, Recipe(_FP8, 32_768, (10, 30))),
    _Script("sglang", "qwen3.5", "blackwell", _BF16, None, Recipe(None, 32_768, (10, 30))),
    _Script("sglang", "qwen3.5", "hopper", _FP8, None, Recipe(_FP8, 16_384)),
    # dsr1_fp8_b200_trt.sh, dsr1_fp8_h200_trt.sh, 70b_fp8_*_trt.sh, gptoss_fp4_b200_trt.sh (on an H200 the engine's own)
    _Script("tensorrt-llm", "deepseek", "blackwell", _FP8, None, Recipe(_FP8, aligns=60)),
    _Script("tensorrt-llm", "deepseek", "blackwell", _FP4, None, Recipe(_FP8, aligns=60)),
    _Script("tensorrt-llm", "deepseek", "hopper", _FP8, None, Recipe(_FP8, aligns=60)),
    _Script("tensorrt-llm", "llama", "blackwell", _FP8, None, Recipe(_FP8)),
    _Script("tensorrt-llm", "llama", "blackwell", _FP4, None, Recipe(_FP8)),
    _Script("tensorrt-llm", "llama", "hopper", _FP8, None, Recipe(_FP8)),
    _Script("tensorrt-llm", "gpt-oss", "blackwell", Precision.mxfp4, None, Recipe(_FP8)),
    # gptoss_fp4_b200.sh
    _Script("vllm", "gpt-oss", "blackwell", Precision.mxfp4, None, Recipe(_FP8, 8_192)),
)


def recipe(engine: str, model: str, architecture: str, weights: Precision, tp: int) -> Recipe:
    """Of an engine, a model and an architecture by our keys."""
    asked = (engine, architecture, weights)
    found = (
        script.recipe
        for script in _SCRIPTS
        if (script.engine, script.architecture, script.weights) == asked
        and model.startswith(script.model)
        and script.tp in (None, tp)
    )
    return next(found, Recipe())
