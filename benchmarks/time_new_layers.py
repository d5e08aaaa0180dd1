# mypy: ignore-errors
"""Time the kernels of sparse, latent, routed and recurrent layers as vLLM runs them, one at a time, on this GPU.

    python benchmarks/time_new_layers.py OUT.json [--sections index_decode,…] [--once]

Needs a Hopper GPU, PyTorch and vLLM 0.26 with its FlashMLA, FlashAttention 3 and DeepGEMM (which compiles by nvcc).
A kernel is timed inside a CUDA graph, each call after a read of 256 MB that leaves nothing of its data in L2; that read
alone is timed in a second graph and taken off. All of it three times over: each time is the median of them. ``--once``
runs every kernel once, which compiles it, and times none. A case that fails is printed and left out.

Shapes: DeepSeek-V3.2's indexer (64 heads of 128) and latent attention (512 + 64) with 128 heads, and the 16 that
tensor parallelism over 8 GPUs leaves; an eighth of DeepSeek-V3's experts, and all of Qwen3-30B-A3B's; Gated DeltaNet of
Qwen3-Next, KDA of Kimi Linear, Mamba-2 of Nemotron 3 Nano.
"""

import argparse
import datetime
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]
Shape = dict[str, Any]
Cases = Iterator[tuple[Shape, Callable[[], Call]]]

DEVICE = "cuda"
INDEX_HEADS, INDEX_DIM, TOPK, PAGE = 64, 128, 2048, 64
RANK, ROPE = 512, 64
SCALE = (128 + ROPE) ** -0.5
SPARSE_ROW_BYTES = 656  # FlashMLA's FP8 rows: 512 values, 4 scales in 32 bits, 64 rotary values in 16 bits
MOST_SPLITS = 32  # vLLM's default where a graph captures FlashAttention's decode
COPIES, REPLAYS, PASSES = 3, 9, 3


class Clock:
    """Seconds of a call with cold caches, as the difference of two graphs."""

    def __init__(self) -> None:
        self.other = torch.ones(64 << 20, device=DEVICE)  # 256 MB, four times the L2
        self.sum = torch.zeros((), device=DEVICE)
        self.hot = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
        self.read_s = self._graph_s(None)

    def seconds(self, call: Call) -> float:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        return (self._graph_s(call) - self.read_s) / COPIES

    def _graph_s(self, call: Call | None) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(COPIES):
                torch.sum(self.other, dim=0, out=self.sum)
                if call:
                    call()
        for _ in range(4):  # clocks up
            self.hot @ self.hot
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16).to(dtype)


def fp8(*shape: int) -> torch.Tensor:
    return normal(*shape, dtype=torch.float8_e4m3fn)


def whole(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def pages(batch: int, context: int) -> torch.Tensor:
    """A block table of scattered pages."""
    each = -(-context // PAGE)
    return torch.randperm(batch * each, device=DEVICE, dtype=torch.int32).view(batch, each)


def index_decode() -> Cases:
    """Scores of every cached key by DeepGEMM, and the best of them by vLLM's kernels."""
    grid = itertools.product((1, 4, 16, 64, 128), (2048, 8192, 32768, 131072))
    for (batch, context), part in itertools.product(grid, ("scores", "topk")):
        shape = {"part": part, "heads": INDEX_HEADS, "batch": batch, "context": context}
        yield shape, lambda s=shape: _index_step(**s)
    for batch, context in itertools.product((4, 64), (8192, 131072)):
        shape = {"part": "scores", "heads": INDEX_HEADS // 2, "batch": batch, "context": context}
        yield shape, lambda s=shape: _index_step(**s)


def _index_step(part: str, heads: int, batch: int, context: int) -> Call:
    from vllm.utils.deep_gemm import fp8_fp4_paged_mqa_logits, get_num_sms, get_paged_mqa_logits_metadata

    lengths = torch.full((batch, 1), context, dtype=torch.int32, device=DEVICE)
    if part == "topk":
        scores = torch.randn(batch, context, device=DEVICE)
        chosen, room = whole([[-1] * TOPK] * batch), torch.zeros(1 << 20, dtype=torch.uint8, device=DEVICE)
        pick = torch.ops._C.cooperative_topk if batch <= 32 else torch.ops._C.persistent_topk
        return lambda: pick(scores, lengths, chosen, room, TOPK, context)
    table = pages(batch, context)
    keys = torch.empty(table.numel(), PAGE * (INDEX_DIM + 4), dtype=torch.uint8, device=DEVICE)
    for some in keys.split(1 << 14):
        some[:, : PAGE * INDEX_DIM] = fp8(some.shape[0], PAGE * INDEX_DIM).view(torch.uint8)
        some[:, PAGE * INDEX_DIM :] = torch.rand(some.shape[0], PAGE, device=DEVICE).view(torch.uint8)
    cache = keys.view(-1, PAGE, 1, INDEX_DIM + 4)
    queries, weights = fp8(batch, 1, heads, INDEX_DIM), torch.rand(batch, heads, device=DEVICE)
    plan = get_paged_mqa_logits_metadata(lengths, PAGE, get_num_sms())
    return lambda: fp8_fp4_paged_mqa_logits(
        (queries, None), cache, weights, lengths, table, plan, max_model_len=context, clean_logits=False
    )


def index_prompt() -> Cases:
    grid = [(512, 8192), (2048, 2048), (2048, 8192), (2048, 32768), (2048, 131072)]
    grid += [(8192, 8192), (8192, 32768), (8192, 131072)]
    for (tokens, end), part in itertools.product(grid, ("scores", "topk")):
        shape = {"part": part, "heads": INDEX_HEADS, "tokens": tokens, "end": end}
        yield shape, lambda s=shape: _index_chunk(**s)
    for tokens, end in grid[2:5]:
        shape = {"part": "scores", "heads": INDEX_HEADS // 2, "tokens": tokens, "end": end}
        yield shape, lambda s=shape: _index_chunk(**s)


def _index_chunk(part: str, heads: int, tokens: int, end: int) -> Call:
    from vllm import _custom_ops as ops
    from vllm.utils.deep_gemm import fp8_fp4_mqa_logits

    first = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
    last = torch.arange(end - tokens + 1, end + 1, dtype=torch.int32, device=DEVICE)
    if part == "topk":
        scores = torch.randn(tokens, end, device=DEVICE)
        chosen = torch.full((tokens, TOPK), -1, dtype=torch.int32, device=DEVICE)
        return lambda: ops.top_k_per_row_prefill(
            scores, first, last, chosen, tokens, scores.stride(0), scores.stride(1), TOPK
        )
    queries, weights = fp8(tokens, heads, INDEX_DIM), torch.rand(tokens, heads, device=DEVICE)
    keys = fp8(end, INDEX_DIM), torch.rand(end, device=DEVICE)
    return lambda: fp8_fp4_mqa_logits((queries, None), keys, weights, first, last, clean_logits=False)


def sparse_decode() -> Cases:
    """Latent attention to chosen rows, scattered over contexts of 32k: FlashMLA on FP8 rows, FlashAttention on bf16."""
    for heads, batch in itertools.product((128, 16), (1, 4, 16, 64, 128, 256)):
        for kv in ("fp8", "bf16"):
            shape = {"heads": heads, "batch": batch, "rows": TOPK, "kv": kv}
            yield shape, lambda s=shape: _sparse_step(**s)
    for rows, kv in itertools.product((512, 1024), ("fp8", "bf16")):
        shape = {"heads": 128, "batch": 64, "rows": rows, "kv": kv}
        yield shape, lambda s=shape: _sparse_step(**s)


def chosen_rows(tokens: int, rows: int, total: int) -> torch.Tensor:
    """Of each token, so many rows of its own stretch of ``total`` cached ones, in a random order."""
    stride = total // rows
    offsets = torch.randint(0, stride, (tokens, rows), device=DEVICE, dtype=torch.int32)
    return (torch.randperm(rows, device=DEVICE, dtype=torch.int32) * stride)[None] + offsets


def fp8_rows(total: int) -> torch.Tensor:
    """Pages of FlashMLA's FP8 rows."""
    rows = torch.empty(total, SPARSE_ROW_BYTES, dtype=torch.uint8, device=DEVICE)
    for some in rows.split(1 << 20):
        some[:, :RANK] = fp8(some.shape[0], RANK).view(torch.uint8)
        some[:, RANK : RANK + 16] = torch.rand(some.shape[0], 4, device=DEVICE).view(torch.uint8)
        some[:, RANK + 16 :] = normal(some.shape[0], ROPE).view(torch.uint8)
    return rows.view(-1, PAGE, 1, SPARSE_ROW_BYTES)


def _sparse_step(heads: int, batch: int, rows: int, kv: str, context: int = 32768) -> Call:
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache, get_mla_metadata

    begins = torch.arange(batch, device=DEVICE, dtype=torch.int32)[:, None] * context
    indices = begins + chosen_rows(batch, rows, context)
    if kv == "bf16":
        return _flash_attention_rows(heads, indices, normal(batch * context, RANK + ROPE))
    padded = 64 if heads <= 64 else 128  # as vLLM pads
    cache, queries, plan = fp8_rows(batch * context), normal(batch, 1, padded, RANK + ROPE), get_mla_metadata()[0]
    indices = indices.view(batch, 1, rows)
    return lambda: flash_mla_with_kvcache(
        queries, cache, None, None, RANK, plan, softmax_scale=SCALE, is_fp8_kvcache=True, indices=indices
    )


def _flash_attention_rows(heads: int, indices: torch.Tensor, cache: torch.Tensor) -> Call:
    """FlashAttention 3 with pages of one row."""
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

    tokens, rows = indices.shape
    begins, seen = whole(range(tokens + 1)), torch.full((tokens,), rows, dtype=torch.int32, device=DEVICE)
    rotary, latent = normal(tokens, heads, ROPE), normal(tokens, heads, RANK)
    keys, values = cache[:, RANK:].view(-1, 1, 1, ROPE), cache[:, :RANK].view(-1, 1, 1, RANK)
    return lambda: flash_attn_varlen_func(
        q=rotary, k=keys, v=values, q_v=latent, max_seqlen_q=1, cu_seqlens_q=begins, max_seqlen_k=rows,
        seqused_k=seen, block_table=indices, softmax_scale=SCALE, causal=True, fa_version=3,
    )  # fmt: skip


def sparse_prompt() -> Cases:
    """The same for a prompt's tokens, over one context of 32k.

    vLLM unpacks FP8 rows for its 16-bit kernel, and with few heads runs the FP8 kernel of decoding instead.
    """
    for heads, tokens in itertools.product((128, 64, 16), (512, 2048, 8192)):
        for kernel in ("flashmla", "flashattention"):
            shape = {"heads": heads, "tokens": tokens, "rows": TOPK, "kernel": kernel}
            yield shape, lambda s=shape: _sparse_chunk(s["heads"], s["tokens"], s["kernel"])


def _sparse_chunk(heads: int, tokens: int, kernel: str, context: int = 32768) -> Call:
    from vllm.v1.attention.ops.flashmla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

    indices = chosen_rows(tokens, TOPK, context)
    if kernel == "flashattention":
        return _flash_attention_rows(heads, indices, normal(context, RANK + ROPE))
    if heads < 32:
        cache, queries, plan = fp8_rows(context), normal(1, tokens, 64, RANK + ROPE), get_mla_metadata()[0]
        indices = indices.view(1, tokens, TOPK)
        return lambda: flash_mla_with_kvcache(
            queries, cache, None, None, RANK, plan, softmax_scale=SCALE, is_fp8_kvcache=True, indices=indices
        )
    queries, rows = normal(tokens, heads, RANK + ROPE), normal(context, 1, RANK + ROPE)
    indices = indices.view(tokens, 1, TOPK)
    return lambda: flash_mla_sparse_fwd(queries, rows, indices, SCALE, RANK)


def mla_decode() -> Cases:
    """Latent attention to all rows, by what vLLM picks: FlashAttention 3 in 16 bits, FlashMLA in 8."""
    for heads, batch, context in itertools.product((128, 16), (1, 4, 16, 64, 256), (1024, 4096, 8192, 32768)):
        for kv in ("bf16", "fp8"):
            shape = {"heads": heads, "batch": batch, "context": context, "kv": kv}
            yield shape, lambda s=shape: _latent_step(**s)


def _latent_step(heads: int, batch: int, context: int, kv: str) -> Call:
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache_fp8, get_mla_metadata_dense_fp8
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func, get_scheduler_metadata

    table = pages(batch, context)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
    cache = torch.empty(table.numel(), PAGE, RANK + ROPE, device=DEVICE, dtype=torch.bfloat16).normal_()
    if kv == "fp8":
        small = cache.to(torch.float8_e4m3fn).unsqueeze(-2)
        queries, one = fp8(batch, 1, heads, RANK + ROPE), torch.ones(1, device=DEVICE)
        plan, splits = get_mla_metadata_dense_fp8(lengths, heads, 1)
        return lambda: flash_mla_with_kvcache_fp8(
            queries, small, table, lengths, RANK, plan, splits,
            softmax_scale=SCALE, causal=True, descale_q=one, descale_k=one,
        )  # fmt: skip
    begins, rotary, latent = whole(range(batch + 1)), normal(batch, heads, ROPE), normal(batch, heads, RANK)
    plan = get_scheduler_metadata(
        batch_size=batch, max_seqlen_q=1, max_seqlen_k=context, num_heads_q=heads, num_heads_kv=1, headdim=ROPE,
        cache_seqlens=lengths, qkv_dtype=torch.bfloat16, headdim_v=RANK, page_size=PAGE, cu_seqlens_q=begins,
        causal=True, num_splits=MOST_SPLITS,
    )  # fmt: skip
    return lambda: flash_attn_varlen_func(
        q=rotary, k=cache[..., RANK:].unsqueeze(-2), v=cache[..., :RANK].unsqueeze(-2), q_v=latent, max_seqlen_q=1,
        cu_seqlens_q=begins, max_seqlen_k=context, seqused_k=lengths, block_table=table, softmax_scale=SCALE,
        causal=True, fa_version=3, scheduler_metadata=plan, num_splits=MOST_SPLITS,
    )  # fmt: skip


MOES = {
    "deepseek-v3": {"experts": 256, "active": 8, "hidden": 7168, "intermediate": 2048, "ep": 8},
    "qwen3-30b-a3b": {"experts": 128, "active": 8, "hidden": 2048, "intermediate": 768, "ep": 1},
}


def experts() -> Cases:
    """vLLM's fused experts on the rank with most to do, of popularities that fall with a power of their order.

    By Triton; in FP8 also by DeepGEMM, which vLLM takes from 128 tokens on where it is installed.
    """
    kinds = [("deepseek-v3", "fp8", "triton"), ("qwen3-30b-a3b", "fp8", "triton"), ("qwen3-30b-a3b", "bf16", "triton")]
    kinds += [("deepseek-v3", "fp8", "deepgemm"), ("qwen3-30b-a3b", "fp8", "deepgemm")]
    for (model, weights, kernel), tokens in itertools.product(kinds, (16, 64, 256, 1024, 4096, 8192)):
        for power in (0.0, 0.5, 1.0) if kernel == "triton" or tokens >= 128 else ():
            shape = {"model": model, "weights": weights, "kernel": kernel, "tokens": tokens, "zipf": power}
            yield shape, lambda s=shape: _experts(s)


def routed(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts, and where the busiest rank holds them (-1: elsewhere)."""
    moe = MOES[shape["model"]]
    torch.manual_seed(0)
    popular = torch.arange(1, moe["experts"] + 1, device=DEVICE, dtype=torch.float32) ** -shape["zipf"]
    popular = popular[torch.randperm(moe["experts"], generator=torch.Generator().manual_seed(1))]
    drawn = popular.log() - torch.empty(shape["tokens"], moe["experts"], device=DEVICE).exponential_().log()
    chosen = drawn.topk(moe["active"]).indices.to(torch.int32)
    loads = torch.bincount(chosen.flatten(), minlength=moe["experts"]).view(moe["ep"], -1)
    busiest, local = int(loads.sum(1).argmax()), moe["experts"] // moe["ep"]
    places = torch.full((moe["experts"],), -1, dtype=torch.int32, device=DEVICE)
    places[busiest * local : (busiest + 1) * local] = torch.arange(local, dtype=torch.int32, device=DEVICE)
    shape["routed"] = int(loads[busiest].sum())
    shape["visited"] = int((loads[busiest] > 0).sum())
    return chosen, places


def block_scales(*shape: int) -> torch.Tensor:
    """Scales of matrices in blocks of 128 × 128."""
    return 0.01 * torch.rand(*shape[:-2], -(-shape[-2] // 128), shape[-1] // 128, device=DEVICE)


def _experts(shape: Shape) -> Call:
    from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG, fp8_w8a8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    moe = MOES[shape["model"]]
    hidden, inner, local = moe["hidden"], moe["intermediate"], moe["experts"] // moe["ep"]
    make = fp8 if shape["weights"] == "fp8" else normal
    up = torch.cat([make(1, 2 * inner, hidden) for _ in range(local)])
    down = torch.cat([make(1, hidden, inner) for _ in range(local)])
    config = FUSED_MOE_UNQUANTIZED_CONFIG
    if shape["weights"] == "fp8":
        scales = block_scales(local, 2 * inner, hidden), block_scales(local, hidden, inner)
        config = fp8_w8a8_moe_quant_config(*scales, block_shape=[128, 128])
    chosen, places = routed(shape)
    inputs, gates = normal(shape["tokens"], hidden), torch.rand(chosen.shape, device=DEVICE)
    where = places if moe["ep"] > 1 else None
    if shape["kernel"] == "deepgemm":
        return _deep_gemm_experts(moe, config, (inputs, up, down, gates, chosen), where)
    return lambda: fused_experts(
        inputs, up, down, gates, chosen, quant_config=config, global_num_experts=moe["experts"], expert_map=where
    )


def _deep_gemm_experts(moe: Shape, config: Any, tensors: tuple[torch.Tensor, ...], where: torch.Tensor | None) -> Call:
    from vllm.model_executor.layers.fused_moe import config as moe_config
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.deep_gemm_moe import DeepGemmExperts
    from vllm.model_executor.layers.fused_moe.utils import moe_kernel_quantize_input

    inputs, up, down, gates, chosen = tensors
    kernels = DeepGemmExperts(
        moe_config.FusedMoEConfig(
            num_experts=moe["experts"], experts_per_token=moe["active"], hidden_dim=moe["hidden"],
            intermediate_size=moe["intermediate"], num_local_experts=len(up), num_logical_experts=moe["experts"],
            activation=MoEActivation.SILU, device=DEVICE, routing_method=moe_config.RoutingMethodType.Default,
            moe_parallel_config=moe_config.FusedMoEParallelConfig.make_no_parallel(), in_dtype=torch.bfloat16,
        ),
        config,
    )  # fmt: skip
    sizes = len(inputs), up.shape[1], moe["hidden"], moe["active"], moe["experts"], len(up), None, MoEActivation.SILU
    first, second, out = (
        torch.empty(size, device=DEVICE, dtype=torch.bfloat16) for size in kernels.workspace_shapes(*sizes)
    )

    def call() -> None:
        rows, scales = moe_kernel_quantize_input(inputs, None, torch.float8_e4m3fn, False, [128, 128])
        kernels.apply(
            out, rows, up, down, gates, chosen, MoEActivation.SILU, moe["experts"], where, scales, None,
            first, second, None, False,
        )  # fmt: skip

    return call


PROMPTS = [(1, 512), (1, 2048), (1, 8192), (1, 32768), (4, 512), (4, 2048), (4, 8192), (16, 512), (16, 2048)]
BATCHES = (1, 4, 16, 64, 256)
KEY_DIM = 128


def delta_prompt() -> Cases:
    """The chunked scan of Gated DeltaNet (FLA's Triton kernels): value heads twice the key heads; and KDA's."""
    for kind, heads, prompts in (("gdn", 32, PROMPTS), ("kda", 32, PROMPTS), ("gdn", 8, PROMPTS[1:4])):
        for sequences, tokens in prompts:
            shape = {"kind": kind, "heads": heads, "sequences": sequences, "tokens": tokens}
            yield shape, lambda s=shape: _delta_scan(**s)


def _delta_scan(kind: str, heads: int, sequences: int, tokens: int) -> Call:
    from vllm.third_party.flash_linear_attention.ops import chunk_gated_delta_rule
    from vllm.third_party.flash_linear_attention.ops.kda import chunk_kda_with_fused_gate

    total, unit = sequences * tokens, torch.nn.functional.normalize
    begins = whole(range(0, total + 1, tokens))
    key_heads = heads // 2 if kind == "gdn" else heads
    query, key = (unit(normal(1, total, key_heads, KEY_DIM), dim=-1) for _ in range(2))
    value, step = normal(1, total, heads, KEY_DIM), torch.rand(1, total, heads, device=DEVICE)
    state = torch.zeros(sequences, heads, KEY_DIM, KEY_DIM, device=DEVICE)
    common = {"q": query, "k": key, "v": value, "beta": step, "initial_state": state, "output_final_state": True}
    common["cu_seqlens"] = begins
    if kind == "gdn":
        decay = -torch.rand(1, total, heads, device=DEVICE)
        return lambda: chunk_gated_delta_rule(g=decay, **common)
    gate, bias = normal(1, total, heads, KEY_DIM), torch.rand(heads * KEY_DIM, device=DEVICE)
    rate = torch.rand(1, 1, heads, 1, device=DEVICE)
    return lambda: chunk_kda_with_fused_gate(
        raw_g=gate, A_log=rate, g_bias=bias, use_qk_l2norm_in_kernel=True, **common
    )


def delta_decode() -> Cases:
    kinds = (("gdn", "fp32"), ("gdn", "bf16"), ("kda", "fp32"))
    for (kind, state), batch in itertools.product(kinds, BATCHES):
        shape = {"kind": kind, "heads": 32, "state": state, "batch": batch}
        yield shape, lambda s=shape: _delta_step(**s)


def _delta_step(kind: str, heads: int, state: str, batch: int) -> Call:
    from vllm.third_party.flash_linear_attention.ops import fused_recurrent_gated_delta_rule_packed_decode
    from vllm.third_party.flash_linear_attention.ops.kda import fused_kda_gate, fused_recurrent_kda

    dtype = torch.float32 if state == "fp32" else torch.bfloat16
    states = torch.rand(batch + 1, heads, KEY_DIM, KEY_DIM, device=DEVICE).to(dtype)
    places = whole(range(1, batch + 1))
    rate, bias = torch.rand(heads, device=DEVICE), torch.rand(heads, device=DEVICE)
    if kind == "gdn":
        mixed, decay, step = normal(batch, 2 * heads * KEY_DIM), normal(batch, heads), normal(batch, heads)
        out = normal(batch, 1, heads, KEY_DIM)
        return lambda: fused_recurrent_gated_delta_rule_packed_decode(
            mixed, decay, step, rate, bias, KEY_DIM**-0.5, states, out, places, use_qk_l2norm_in_kernel=True
        )
    query, key, value, gate = (normal(1, batch, heads, KEY_DIM) for _ in range(4))
    step, begins = torch.rand(1, batch, heads, device=DEVICE), whole(range(batch + 1))
    wide = torch.rand(heads * KEY_DIM, device=DEVICE)

    def call() -> None:
        decay = fused_kda_gate(gate.view(batch, -1), rate.view(1, 1, heads, 1), KEY_DIM, g_bias=wide).unsqueeze(0)
        fused_recurrent_kda(
            query, key, value, decay, step, initial_state=states, cu_seqlens=begins, ssm_state_indices=places
        )

    return call


MAMBA_DIM, MAMBA_STATE, MAMBA_CHUNK = 64, 128, 128


def mamba_prompt() -> Cases:
    """The chunked scan of Mamba-2 (vLLM's Triton kernels), 8 heads to a group."""
    for heads, prompts in ((64, PROMPTS), (16, PROMPTS[1:4])):
        for sequences, tokens in prompts:
            shape = {"heads": heads, "sequences": sequences, "tokens": tokens}
            yield shape, lambda s=shape: _mamba_scan(**s)


def _mamba_scan(heads: int, sequences: int, tokens: int) -> Call:
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen
    from vllm.v1.attention.backends.mamba2_attn import compute_varlen_chunk_metadata

    total = sequences * tokens
    begins = whole(range(0, total + 1, tokens))
    chunks, last, owners = compute_varlen_chunk_metadata(begins, MAMBA_CHUNK)
    inputs, out, step = (normal(total, heads, MAMBA_DIM), normal(total, heads, MAMBA_DIM), normal(total, heads))
    rate, skip, bias = torch.tensor([[-1.0], [1.0], [1.0]], device=DEVICE) * torch.rand(3, heads, device=DEVICE)
    b, c = normal(total, heads // 8, MAMBA_STATE), normal(total, heads // 8, MAMBA_STATE)
    state = torch.zeros(sequences, heads, MAMBA_DIM, MAMBA_STATE, device=DEVICE)
    return lambda: mamba_chunk_scan_combined_varlen(
        inputs, step, rate, b, c, MAMBA_CHUNK, begins, chunks, last, owners, out, D=skip, dt_bias=bias,
        initial_states=state, dt_softplus=True, state_dtype=torch.float32,
    )  # fmt: skip


def mamba_decode() -> Cases:
    for state, batch in itertools.product(("fp32", "bf16"), BATCHES):
        shape = {"heads": 64, "state": state, "batch": batch}
        yield shape, lambda s=shape: _mamba_step(**s)


def _mamba_step(heads: int, state: str, batch: int) -> Call:
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    dtype = torch.float32 if state == "fp32" else torch.bfloat16
    states = torch.rand(batch + 1, heads, MAMBA_DIM, MAMBA_STATE, device=DEVICE).to(dtype)
    inputs, out = normal(batch, heads, MAMBA_DIM), normal(batch, heads, MAMBA_DIM)
    step = normal(batch, heads)[:, :, None].expand(-1, -1, MAMBA_DIM)
    rate = (-torch.rand(heads, device=DEVICE))[:, None, None].expand(-1, MAMBA_DIM, MAMBA_STATE)
    skip, bias = (torch.rand(heads, device=DEVICE)[:, None].expand(-1, MAMBA_DIM) for _ in range(2))
    b, c = normal(batch, heads // 8, MAMBA_STATE), normal(batch, heads // 8, MAMBA_STATE)
    places = whole(range(1, batch + 1))
    return lambda: selective_state_update(
        states, inputs, step, rate, b, c, skip, bias, dt_softplus=True,
        state_batch_indices=places, dst_state_batch_indices=places, out=out,
    )  # fmt: skip


SECTIONS: dict[str, Callable[[], Cases]] = {
    section.__name__: section
    for section in (
        index_decode, index_prompt, sparse_decode, sparse_prompt, mla_decode, delta_prompt, delta_decode,
        mamba_prompt, mamba_decode, experts,
    )
}  # fmt: skip


def timed(section: str, clock: Clock | None) -> Iterator[Shape]:
    for shape, make in SECTIONS[section]():
        try:
            torch.manual_seed(0)
            call = make()
            if clock is None:
                call()
                torch.cuda.synchronize()
                continue
            yield {**shape, "us": 1e6 * clock.seconds(call)}
        except Exception as problem:  # one kernel's failure must not lose the others' times
            where = traceback.extract_tb(problem.__traceback__)[-1]
            print(f"{section} {shape}: {type(problem).__name__} {str(problem)[:300]}, {where.filename}:{where.lineno}")
        finally:
            call = None
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    import triton
    import vllm
    import vllm._custom_ops

    clock = None if options.once else Clock()
    document: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "versions": {module.__name__: module.__version__ for module in (torch, triton, vllm)},
        "command": "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    found: dict[str, list[Shape]] = {section: [] for section in options.sections.split(",")}
    for _, section in itertools.product(range(PASSES if clock else 1), found):
        begun = time.monotonic()
        found[section] += timed(section, clock)
        print(f"{section}: {time.monotonic() - begun:.0f} s", flush=True)
        document |= {name: _medians(rows) for name, rows in found.items()}
        options.out.write_text(_text(document), encoding="utf-8")


def _medians(rows: list[Shape]) -> list[Shape]:
    """One row for each shape."""
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(json.dumps({key: row[key] for key in row if key != "us"}), []).append(row["us"])
    return [{**json.loads(shape), "us": round(statistics.median(us), 2)} for shape, us in times.items()]


def _text(document: dict[str, Any]) -> str:
    """JSON with one row to a line."""
    lines = []
    for key, value in document.items():
        rows = ",\n".join(f"  {json.dumps(row)}" for row in value) if isinstance(value, list) else ""
        lines.append(f" {json.dumps(key)}: " + (f"[\n{rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
