"""Compute how long each operation of a deployment's layers takes, on one rank, over all layers of a kind.

This module decides which kernel an operation is, at which sizes and in which precision; ``matrix_kernels`` and
``attention_kernels`` tell how long a kernel takes. Curves of the user's ``own`` GPU replace ours. ``LeastKernels`` are
the same operations at what the datasheet allows, whatever a profile says.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tokonomics.catalog.checkpoints import fp8_scales
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import (
    CompressedAttention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    MoeMlp,
    Precision,
    RecurrentMixer,
    Scales,
    kv_bytes_per_element,
)
from tokonomics.physics.attention_kernels import (
    GEMM_SHARE,
    decode_attention_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
    seen_pairs,
    spread_inside,
    uneven_share,
)
from tokonomics.physics.calibration import Kernels
from tokonomics.physics.curves import Array, efficiency
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.layer_kernels import (
    absorbed_prompt_s,
    index_s,
    lora_adapter_s,
    lora_launched_s,
    scan_s,
    sparse_decode_s,
    state_s,
)
from tokonomics.physics.matrix_kernels import (
    BLOCKS,
    FUSED,
    TUNED,
    UNTUNED,
    all_reduce_s,
    all_to_all_s,
    distinct_experts,
    experts_s,
    fp16_sums_flops,
    gemm_s,
    throttled_s,
    unpacked_gemm_s,
)
from tokonomics.physics.memory import dense_products
from tokonomics.physics.overhead import ALWAYS_SPLIT, SPLIT_BELOW, Layers, Overhead
from tokonomics.types import Same, copied

Numbers = Array | np.float64
Attention = GroupedAttention | LatentAttention | CompressedAttention
QUANTISES = (Precision.fp8, Precision.int8, Precision.nvfp4)
"""Weights whose products take quantised activations; 4-bit integers and MXFP4 use 16-bit activations."""
SORT_S, SORTED = 5.2e-6, 4
"""Seconds of the kernels that sort a layer's tokens by expert, which vLLM runs if tokens × experts of a token are more
than a quarter of the experts (``fused_moe.py``); their start is not in the launches left at batch 1. From kernels of
four models in vLLM 0.26.0 on an H200 (``benchmarks/fit_experts.py``)."""
LATENT_COPIES = 8.0
"""How often vLLM's latent attention moves queries, keys and values of every head through memory: it expands, rotates,
joins and pads them. Fitted by ``benchmarks/fit_experts.py`` on kernels of DeepSeek-V2-Lite in vLLM 0.26.0 on an H200.
"""
_SCORE_BYTES = 4.0  # per query head and key, in 32 bits
BESIDE_TOKENS = 1024
"""In steps of fewer prompt tokens, running sequences took hardly longer than alone; in all longer ones about as much
longer (mixed steps of ``benchmarks/data/vllm_h200_experts``)."""
COOL_FROM = 16.0
"""Fewest running sequences beside which prompts were measured; what they gain beside fewer is taken in proportion."""
BARE_KERNELS = "pytorch"  # a bare step has no engine around it and runs PyTorch's kernels


def layer_share(group: LayerGroup) -> float:
    """Return the share of a full layer, which has a mixer and a feed-forward; one half if a hybrid's has only one."""
    return ((group.mixer is not None) + (group.mlp is not None)) / 2


@dataclass(frozen=True)
class RankKernels:
    """The kernels that one rank of a deployment runs, and the curves that give their times."""

    deployment: Deployment
    backend: str  # the engine whose attention kernels run
    products: str  # the engine whose matrix kernels run
    between: Layers
    own: Kernels | None  # curves timed on the user's GPU
    era: Overhead | None  # the engine's overhead, of today's era or an older one; None: bare steps

    def gemm_s(self, weights: Precision, rows: Array | float, n: float, k: float) -> Array:
        """Return the time to multiply ``rows`` tokens with a k × n matrix."""
        taken = self._timed_gemm_s(weights, rows, n, k)
        if self.era is None:
            return taken
        if self.multiplied(weights) is Precision.fp8 and self.era.fp8_time_factor != 1:
            gpu, work = self.deployment.gpu, np.asarray(rows) * n * k
            least = np.maximum(2 * work / gpu.peak_flops(Precision.fp8), n * k / gpu.bandwidth_bytes_per_s)
            taken = np.maximum(taken * self.era.fp8_time_factor, least)
        share = self.era.product_share
        if not share:
            return taken
        return np.maximum(taken, 2 * np.asarray(rows) * n * k / (self.deployment.gpu.peak_flops(weights) * share))

    def _timed_gemm_s(self, weights: Precision, rows: Array | float, n: float, k: float) -> Array:
        multiplied = self.multiplied(weights)
        own = self.own.gemm_curve(multiplied) if self.own else None
        if own:
            return gemm_s(self.deployment.gpu, weights, rows, n, k, self._gemm_engine, own, multiplied)
        how = self._gemm_engine, bool(self.era and self.era.unpacks), multiplied
        if isinstance(rows, np.ndarray) and not rows.flags.writeable:
            return _tabulated_gemm_s(self.deployment.gpu, weights, Same(rows), n, k, how)
        return _gemm_s(self.deployment.gpu, weights, rows, n, k, how)

    @cached_property
    def _gemm_engine(self) -> str:
        """Return the engine whose kernels multiply dense layers: vLLM has others for FP8 with a scale for each block.

        Beside experts they are assumed whatever the checkpoint says: what experts with a scale for each channel take
        was not timed, and with faster dense layers alone, GLM-4.5-Air FP8's TPOTs are 4 to 19 % too short instead of
        within 4 % (``bench_blind``).
        """
        deployment = self.deployment
        if self.products != FUSED:
            return self.products
        scales = fp8_scales(deployment.model, deployment.tp, deployment.expert_parts)
        return BLOCKS if scales is Scales.blocks else FUSED

    def multiplied(self, weights: Precision) -> Precision:
        """Return the precision at whose rate the engine multiplies these weights in dense layers.

        Routed experts keep the rate of their own: a prompt's few tokens for each wait for the weights.
        """
        scaled = self.deployment.engine.scales_blocks and weights is Precision.int8
        return Precision.bf16 if scaled else weights

    @property
    def stream_bytes_per_s(self) -> float:
        """Return the rate at which small operations move bytes."""
        gpu = self.deployment.gpu
        return gpu.bandwidth_bytes_per_s * (self.own.memory if self.own else efficiency(gpu).memory)

    def matrices_s(self, group: LayerGroup, tokens: Array) -> Array:
        """Return the time of a group's matrix products on one rank's tokens: projections, feed-forward, router."""
        deployment, mlp = self.deployment, group.mlp
        total = np.zeros_like(tokens)
        for n, k, weights in dense_products(group, deployment):
            total = total + self.gemm_s(weights, tokens, n, k)
        if isinstance(mlp, MoeMlp):
            total = total + self.gemm_s(Precision.bf16, tokens, mlp.experts, deployment.model.hidden)
        if deployment.lora_adapters:
            total = total + lora_launched_s(
                self._adapted(group), tokens, deployment.lora_rank, deployment.lora_adapters
            )
        return group.count * total

    def shared_s(self, tokens: Array) -> tuple[Array, Array]:
        """Return the time of all layers' routed experts, and of sending to them the tokens of all attention groups.

        Either every GPU gets all tokens and returns its sums (an all-gather and a reduce-scatter, the two halves of an
        all-reduce), or each token is sent only to the GPUs of its own experts. Several machines always do the latter.
        Within one machine engines can do both, and the faster counts.
        """
        deployment = self.deployment
        gathered = self._experts_s(tokens, sent=False)
        if not self._shared_layers:
            return gathered, np.zeros_like(tokens)
        message = tokens * deployment.model.hidden * Precision.bf16.bytes_per_weight
        summed = self._shared_layers * self._all_reduce_s(deployment.expert_gpus, message)
        if deployment.ep < deployment.expert_gpus:
            # Each expert is sliced over several GPUs, and all of them need its tokens.
            return gathered, summed
        sent, there_and_back = self._experts_s(tokens, sent=True), self._sent_s(tokens)
        if deployment.spans_machines:
            return sent, there_and_back
        gathers = gathered + summed <= sent + there_and_back
        return np.where(gathers, gathered, sent), np.where(gathers, summed, there_and_back)

    def _experts_s(self, tokens: Array, sent: bool) -> Array:
        deployment = self.deployment
        total = np.zeros_like(tokens)
        for group in deployment.model.groups:
            mlp = group.mlp
            if not isinstance(mlp, MoeMlp):
                continue
            total = total + group.count * experts_s(
                deployment.gpu,
                deployment.weights,
                tokens,
                hidden=mlp.latent or deployment.model.hidden,
                intermediate=mlp.intermediate / (deployment.expert_gpus // deployment.ep),
                active=mlp.active_experts,
                experts=deployment.pool(mlp),
                gated=mlp.gated,
                ep=deployment.ep,
                backend=self._experts_engine(mlp),
                # The experts' curve of bare steps was fitted on whole steps, launched as a graph.
                launch=1.0 if self.products == BARE_KERNELS else self.between.expert_launch,
                sent=sent,
            )
            if self.products in (FUSED, BLOCKS):
                total = total + group.count * np.where(tokens * mlp.active_experts > mlp.experts / SORTED, SORT_S, 0.0)
        return total

    def _experts_engine(self, mlp: MoeMlp) -> str:
        """Return the engine whose kernels the routed experts take; vLLM's for blocks may lack tiles of their size."""
        deployment = self.deployment
        size = mlp.experts, mlp.intermediate // deployment.expert_gpus
        in_triton = self.products == BLOCKS and deployment.gpu.architecture == "hopper" and deployment.ep == 1
        blocks = fp8_scales(deployment.model, deployment.tp, deployment.expert_parts) is Scales.blocks
        untuned = in_triton and blocks and deployment.weights is Precision.fp8
        return UNTUNED if untuned and size not in TUNED.get(deployment.gpu.key, frozenset()) else self.products

    def _sent_s(self, tokens: Array) -> Array:
        """Return the time to send each token to its experts' GPUs, quantised if possible, and sums back in 16 bits."""
        deployment, gpu, weights = self.deployment, self.deployment.gpu, self.deployment.weights
        model, gpus = deployment.model, deployment.expert_gpus
        experts = max(group.mlp.active_experts for group in model.groups if isinstance(group.mlp, MoeMlp))
        quantised = weights in QUANTISES and gpu.peak_flops(weights) > gpu.peak_flops(Precision.bf16)
        back = Precision.bf16.bytes_per_weight
        there = Precision.fp8.bytes_per_weight if quantised else back
        elements = max(group.mlp.latent or model.hidden for group in model.groups if isinstance(group.mlp, MoeMlp))
        ways = [all_to_all_s(gpu, gpus, tokens / gpus, elements * width, experts) for width in (there, back)]
        return self._shared_layers * (ways[0] + ways[1])

    def _adapted(self, group: LayerGroup) -> list[tuple[int, float]]:
        """Return of each dense product how many it packs (queries, keys and values; gate and up), and its width."""
        found: list[tuple[int, float]] = []
        for part in (group.mixer, group.mlp):
            packed = 3 if isinstance(part, GroupedAttention) else 2 if isinstance(part, DenseMlp) and part.gated else 1
            products = part.products(self.deployment.model.hidden, self.deployment.tp) if part else []
            found += [(1 if place else packed, n) for place, (n, _) in enumerate(products)]
        return found

    def head_s(self, sequences: Array) -> Array:
        """Return the time of the vocabulary's product for the last token of each sequence; an encoder has none."""
        model = self.deployment.model
        if model.is_encoder:
            return np.zeros_like(sequences)
        return self.gemm_s(Precision.bf16, sequences, model.vocab / self.deployment.tp, model.hidden)

    def adapter_s(self) -> float:
        """Return what one adapter that a step uses adds to it, over all layers."""
        deployment = self.deployment
        each = (g.count * lora_adapter_s(self._adapted(g), deployment.lora_rank) for g in deployment.model.groups)
        return sum(each)

    def tower_s(self) -> float:
        """Return the vision tower's time for one prompt's images, split over the ranks as engines do by default."""
        images, peak = self.deployment.model.images, self.deployment.gpu.peak_flops(Precision.bf16)
        return images.flops / (peak * GEMM_SHARE * self.deployment.tp) if images else 0.0

    def small_ops_s(self, group: LayerGroup, tokens: Array) -> Array:
        """Return the time of norms, rotary embedding, activation and residual: bytes through memory, and launches.

        A layer reads and writes the residual stream around two norms (eight times the hidden width), reads and writes
        queries, keys and values once each, and reads two halves of the feed-forward to write one (of experts, that of
        the shared ones). Latent attention copies its queries, keys and values more often.
        """
        tp = self.deployment.tp
        touched = 8.0 * self.deployment.model.hidden
        if isinstance(group.mixer, GroupedAttention):
            touched += 2 * (group.mixer.heads * group.mixer.head_dim + group.mixer.kv_heads * group.mixer.kv_width) / tp
        if isinstance(group.mixer, LatentAttention) and self.products in (FUSED, BLOCKS):
            rows = 2 * (group.mixer.nope_dim + group.mixer.rope_dim) + group.mixer.value_dim
            touched += LATENT_COPIES * group.mixer.heads * rows / tp
        if isinstance(group.mlp, DenseMlp):
            touched += 3 * group.mlp.intermediate / tp
        if isinstance(group.mlp, MoeMlp):
            touched += 3 * group.mlp.shared_intermediate / tp
        moved = tokens * touched * Precision.bf16.bytes_per_weight
        return group.count * (layer_share(group) * self.between.layer_s + moved / self.stream_bytes_per_s)

    def communication_s(self, tokens: Array) -> Array:
        """Return the time of two all-reduces a layer (attention, feed-forward) and of sending to the next stage."""
        deployment = self.deployment
        groups, tp, pp = deployment.model.groups, deployment.tp, deployment.pp
        message = tokens * deployment.model.hidden * Precision.bf16.bytes_per_weight
        sums = sum(group.count * 2 * layer_share(group) for group in groups) - self._shared_layers
        total = sums * self._all_reduce_s(tp, message)
        return total + (pp - 1) * message / deployment.stage_bytes_per_s if pp > 1 else total

    @property
    def _shared_layers(self) -> int:
        """Count the layers whose experts several groups of the attention share."""
        groups = self.deployment.model.groups if self.deployment.dp > 1 else ()
        return sum(group.count for group in groups if isinstance(group.mlp, MoeMlp))

    def _all_reduce_s(self, gpus: int, message: Array) -> Array:
        gpu = self.deployment.gpu
        return all_reduce_s(gpu, gpus, message, self.own.link_curve(gpu, gpus) if self.own and gpus > 1 else None)

    def decode_mixer_s(self, mixer: Mixer, batch: Numbers, context: Numbers) -> Array:
        """Return the time of one layer's attention, or recurrent state, for one new token of each sequence."""
        gpu, kv, tp = self.deployment.gpu, self.deployment.kv, self.deployment.tp
        if isinstance(mixer, RecurrentMixer):
            memory = self.own.memory if self.own else None
            return state_s(gpu, batch, state_bytes=mixer.state_bytes / tp, memory=memory)
        scored_s = self._index_s(mixer, batch, batch * context, batch * context)
        seen = np.minimum(context, mixer.topk) if mixer.topk else context
        if isinstance(mixer, CompressedAttention):
            rows = np.minimum(context, mixer.last)
            if mixer.every:
                rows = rows + np.minimum(context / mixer.every, mixer.topk or np.inf)
            shape: dict[str, Any] = {"heads": mixer.heads / tp, "kv_rank": mixer.head_dim, "rope_dim": 0}
            return scored_s + self._latent_s(mixer, batch, rows, shape)
        if isinstance(mixer, LatentAttention):
            shape = {"heads": mixer.heads / tp, **copied(mixer, "kv_rank", "rope_dim")}
            return scored_s + self._latent_s(mixer, batch, seen, shape)
        heads = self._heads(mixer)
        if self.era and self.era.head_reads:
            seen = np.minimum(seen, mixer.window) if mixer.window else seen
            read = heads["heads"] * mixer.kv_width * kv_bytes_per_element(kv)
            few, long = batch * heads["heads"] <= SPLIT_BELOW, np.asarray(context) > SPLIT_BELOW
            split = (few & long) | (np.asarray(context) > ALWAYS_SPLIT)
            shares = np.where(split, self.era.split_reads or self.era.head_reads, self.era.head_reads)
            taken = batch * seen * read / (gpu.bandwidth_bytes_per_s * shares)
            return np.asarray(np.maximum(taken, least_decode_attention_s(mixer, self.deployment, batch, context)))
        # The probe times PyTorch's kernels, which bare steps run and engines do not.
        curve = self.own.decode_curve(**heads) if self.own and self.backend == BARE_KERNELS else None
        return scored_s + decode_attention_s(gpu, kv, batch, seen, backend=self.backend, own=curve, **heads)

    def uneven_share(self, mixer: Mixer, batch: Numbers, context: Numbers, spread: float) -> Array:
        """Return the share by which that takes longer if contexts have a spread; measured for grouped heads only."""
        if not self.era or not isinstance(mixer, GroupedAttention):
            return np.zeros(np.broadcast_shapes(np.shape(batch), np.shape(context)))
        kv_heads = self._heads(mixer)["kv_heads"]
        inside = spread_inside(context, spread, mixer.window)
        return uneven_share(batch, kv_heads, inside, self.era.uneven, self.era.uneven_heads)

    @property
    def _shares_kernels(self) -> bool:
        """Tell whether prompts beside answers are modelled: they were measured on Hopper with grouped heads alone."""
        mixers = [group.mixer for group in self.deployment.model.groups if group.mixer]
        grouped = all(isinstance(mixer, GroupedAttention) and mixer.heads > mixer.kv_heads for mixer in mixers)
        return self.era is not None and grouped and self.deployment.gpu.architecture == "hopper"

    def beside_prompts_s(self, mixer: Mixer, batch: Numbers) -> Array:
        """Return what a layer takes longer for a batch in a step with long prompts; measured for grouped heads only.

        One kernel attends for both there, and the GPU is near its power limit; which of them it is, is not known.
        """
        if not self.era or not self._shares_kernels or not isinstance(mixer, GroupedAttention):
            return np.zeros(np.shape(batch))
        each_s: float = self._heads(mixer)["kv_heads"] * self.era.beside_s
        return np.asarray(each_s * batch / (1.0 + batch / self.era.beside_sequences))

    def cool_s(self, tokens: Array) -> Array:
        """Return what products of prompts gain beside few running sequences: what the power limit adds, for a while."""
        deployment, added_s = self.deployment, np.zeros_like(tokens)
        if not self.era or not self.era.cool_s or not self._shares_kernels:
            return added_s
        for group in deployment.model.groups:
            for n, k, weights in dense_products(group, deployment):
                multiplied = self.multiplied(weights)
                own = self.own.gemm_curve(multiplied) if self.own else None
                added_s += group.count * throttled_s(deployment.gpu, multiplied, tokens, n, k, self._gemm_engine, own)
        return np.minimum(added_s, self.era.cool_s)

    def _latent_s(
        self, mixer: LatentAttention | CompressedAttention, batch: Numbers, rows: Numbers, shape: Any
    ) -> Array:
        """Return the time of latent attention in a decode step, to all cached rows or to the chosen ones."""
        gpu, kv = self.deployment.gpu, self.deployment.kv
        if mixer.topk:
            return sparse_decode_s(gpu, kv, batch, rows, **shape)
        return mla_decode_s(gpu, kv, batch, rows, backend=self.backend, **shape)

    def prompt_mixer_s(self, mixer: Mixer, prompt: Array, past: Array, prompts: Array) -> Array:
        """Return the time of one layer's attention, or scan, inside ``prompts`` chunks of ``prompt`` tokens each."""
        gpu, kv, tp = self.deployment.gpu, self.deployment.kv, self.deployment.tp
        if isinstance(mixer, RecurrentMixer):
            return scan_s(gpu, mixer.recurrence, prompts, prompt, token_flops=mixer.scan_flops / tp)
        pairs, keys = prompts * seen_pairs(prompt, past, None), prompts * (past + prompt)
        scored_s = self._index_s(mixer, prompts * prompt, pairs, keys)
        chunks: dict[str, Any] = {"sequences": prompts, "backend": self.backend}
        if isinstance(mixer, CompressedAttention):
            seen = prompts * attended_pairs(mixer, prompt, past)
            shape: dict[str, Any] = {"heads": mixer.heads / tp, "kv_rank": mixer.head_dim, "rope_dim": 0}
            return scored_s + absorbed_prompt_s(gpu, kv, seen, keys, **shape)
        if isinstance(mixer, LatentAttention):
            widths = copied(mixer, "kv_rank", "rope_dim", "nope_dim", "value_dim")
            heads = mixer.heads / tp
            taken = mla_prefill_s(gpu, kv, prompt, past, heads=heads, **widths, **chunks)
            if mixer.topk is None:
                return taken
            # Up to ``topk`` tokens all are chosen and attended to unpacked. Beyond, each token has its own rows, and a
            # longer context is never faster than the longest one that is attended to as a whole.
            seen = prompts * attended_pairs(mixer, prompt, past)
            apart = absorbed_prompt_s(gpu, kv, seen, keys, heads=heads, **copied(mixer, "kv_rank", "rope_dim"))
            some = np.minimum(prompt, mixer.topk)
            whole = mla_prefill_s(gpu, kv, some, np.minimum(past, mixer.topk - some), heads=heads, **widths, **chunks)
            return np.where(past + prompt > mixer.topk, np.maximum(scored_s + apart, whole), taken)
        bare = self.own if self.backend == BARE_KERNELS else None
        curve = bare.prefill_curve(mixer.head_dim, mixer.window) if bare else None
        heads_of = self._heads(mixer)
        heads_of["window"] = mixer.window or mixer.topk
        heads_of["causal"] = not mixer.bidirectional
        taken = scored_s + prefill_attention_s(gpu, kv, prompt, past, own=curve, **heads_of, **chunks)
        if self.era and self.era.score_passes:
            seen = prompt * np.minimum(past + prompt, mixer.window or np.inf)
            moved = prompts * heads_of["heads"] * seen * _SCORE_BYTES * self.era.score_passes
            taken = taken + moved / gpu.bandwidth_bytes_per_s
        return taken

    def _index_s(self, mixer: Attention, queries: Numbers, pairs: Numbers, tokens: Numbers) -> Array:
        """Return the time to choose what ``queries`` attend to among ``tokens`` cached ones; every rank chooses."""
        indexer = mixer.indexer
        if indexer is None:
            return np.zeros(np.shape(pairs))
        key_bytes = indexer.cache.row_bytes(self.deployment.kv)
        share = 1 / indexer.every
        work = {"pair_flops": indexer.pair_flops, "key_bytes": key_bytes}
        return index_s(self.deployment.gpu, queries, pairs * share, tokens * share, **work)

    def _heads(self, mixer: GroupedAttention) -> dict[str, Any]:
        """Return one rank's share of grouped attention."""
        tp, kv_heads = self.deployment.tp, max(mixer.kv_heads / self.deployment.tp, 1)
        return {"heads": mixer.heads / tp, "kv_heads": kv_heads, "head_dim": mixer.head_dim, "window": mixer.window}


_How = tuple[
    str, bool, Precision
]  # the engine's products, whether it unpacks weights first, and the rate it multiplies at


def _gemm_s(gpu: Gpu, weights: Precision, rows: Array | float, n: float, k: float, how: _How) -> Array:
    products, unpacks, multiplied = how
    if unpacks:
        return unpacked_gemm_s(gpu, weights, rows, n, k, products)
    return gemm_s(gpu, weights, rows, n, k, products, multiplied=multiplied)


@lru_cache(maxsize=4096)
def _tabulated_gemm_s(gpu: Gpu, weights: Precision, rows: Same[Array], n: float, k: float, how: _How) -> Array:
    """Return the same at rows that never change; cached, as layouts that differ in stages or KV have the same ones."""
    found = _gemm_s(gpu, weights, rows.value, n, k, how)
    found.flags.writeable = False
    return found


@dataclass(frozen=True)
class LeastKernels(RankKernels):
    """The same operations at what the datasheet allows: bytes at full bandwidth, FLOPs at peak, nothing in between."""

    def gemm_s(self, weights: Precision, rows: Array | float, n: float, k: float) -> Array:
        gpu = self.deployment.gpu
        peak = fp16_sums_flops(gpu) if self.era and self.era.unpacks else gpu.peak_flops(weights)
        read_s = n * k * weights.bytes_per_weight / gpu.bandwidth_bytes_per_s
        return np.maximum(read_s, 2 * np.asarray(rows) * n * k / peak)

    @property
    def stream_bytes_per_s(self) -> float:
        return self.deployment.gpu.bandwidth_bytes_per_s

    def _adapted(self, group: LayerGroup) -> list[tuple[int, float]]:
        return []  # adapters are small: what they take is launches

    def shared_s(self, tokens: Array) -> tuple[Array, Array]:
        """Return the least time of all layers' routed experts, with tokens spread evenly over them, and of sending.

        Sending to whole experts may overlap with computing them, so it takes no time. The results of sliced experts
        must be summed over the GPUs, which does.
        """
        deployment, gpu, total = self.deployment, self.deployment.gpu, np.zeros_like(tokens)
        width, peak = deployment.weights.bytes_per_weight, gpu.peak_flops(deployment.weights)
        for group in deployment.model.groups:
            mlp = group.mlp
            if isinstance(mlp, MoeMlp):
                one = mlp.expert_parameters(deployment.model.hidden) / deployment.expert_gpus
                read = distinct_experts(deployment.pool(mlp), mlp.active_experts, tokens) * one * width
                flops = 2.0 * tokens * mlp.active_experts * one
                total = total + group.count * np.maximum(read / gpu.bandwidth_bytes_per_s, flops / peak)
        if not self._shared_layers or deployment.ep == deployment.expert_gpus:
            return total, np.zeros_like(tokens)
        message = tokens * deployment.model.hidden * Precision.bf16.bytes_per_weight
        return total, self._shared_layers * self._all_reduce_s(deployment.expert_gpus, message)

    def small_ops_s(self, group: LayerGroup, tokens: Array) -> Array:
        """Return zero: fused into the products around them, these operations move no bytes of their own."""
        return np.zeros_like(tokens)

    def tower_s(self) -> float:
        return super().tower_s() * GEMM_SHARE

    def _all_reduce_s(self, gpus: int, message: Array) -> Array:
        """Return the least time of an all-reduce: each GPU sends its message once, and a switch sums them."""
        return message / self.deployment.gpu.link_among(gpus) if gpus > 1 else np.zeros_like(message)

    def decode_mixer_s(self, mixer: Mixer, batch: Numbers, context: Numbers) -> Array:
        return least_decode_attention_s(mixer, self.deployment, batch, context)

    def uneven_share(self, mixer: Mixer, batch: Numbers, context: Numbers, spread: float) -> Array:
        """Return zero: however contexts differ, their bytes are the same."""
        return np.zeros(np.broadcast_shapes(np.shape(batch), np.shape(context)))

    def beside_prompts_s(self, mixer: Mixer, batch: Numbers) -> Array:
        """Return zero: tiles that are partly empty are the kernel's choice."""
        return np.zeros(np.shape(batch))

    def cool_s(self, tokens: Array) -> Array:
        """Return zero: nothing is gained on the datasheet's peak."""
        return np.zeros_like(tokens)

    def prompt_mixer_s(self, mixer: Mixer, prompt: Array, past: Array, prompts: Array) -> Array:
        """Return the least time of one layer's mixer over prompts.

        For attention it is the longer of two: multiplying every pair of attending tokens at peak FLOP/s, and reading
        each row once.
        """
        gpu, tp = self.deployment.gpu, self.deployment.tp
        if isinstance(mixer, RecurrentMixer):
            return np.asarray(prompts * prompt * mixer.scan_flops / tp / gpu.peak_flops(Precision.bf16))
        flops = prompts * attended_pairs(mixer, prompt, past) * mixer.pair_flops / tp
        read_s = _least_read_s(mixer, self.deployment, prompts, past + prompt)
        return np.maximum(read_s, flops / gpu.peak_flops(self.deployment.kv))


def attended_pairs(mixer: Attention, prompt: Array, past: Array) -> Array:
    """Count the pairs of a prompt's token and a cached row that it attends to."""
    if isinstance(mixer, CompressedAttention):
        pairs = seen_pairs(prompt, past, mixer.last)
        if mixer.every:
            pairs = pairs + seen_pairs(prompt, past, mixer.topk and mixer.topk * mixer.every) / mixer.every
        return pairs
    causal = not (isinstance(mixer, GroupedAttention) and mixer.bidirectional)
    return seen_pairs(prompt, past, mixer.window or mixer.topk, causal)


def least_decode_attention_s(mixer: Mixer, deployment: Deployment, batch: Numbers, context: Numbers) -> Array:
    """Return the least time of one layer's mixer in a decode step.

    It is the longer of two: reading the cached rows at full bandwidth, and multiplying them at peak FLOP/s. A recurrent
    state is read and written at full bandwidth.
    """
    gpu, tp = deployment.gpu, deployment.tp
    if isinstance(mixer, RecurrentMixer):  # read and written
        return np.asarray(2.0 * batch * mixer.state_bytes / tp / gpu.bandwidth_bytes_per_s)
    row_flops = mixer.pair_flops
    if isinstance(mixer, LatentAttention):  # scores and sums of latents; unpacking them would take more
        row_flops = 2.0 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
    rows = attended_pairs(mixer, np.ones(()), np.maximum(np.asarray(context, np.float64) - 1, 0.0))
    multiply_s = batch * rows * row_flops / tp / gpu.peak_flops(deployment.kv)
    return np.maximum(_least_read_s(mixer, deployment, batch, context), multiply_s)


def _least_read_s(mixer: Mixer, deployment: Deployment, sequences: Numbers, context: Numbers) -> Array:
    read = np.zeros(np.shape(context))
    for cache in mixer.caches:
        tokens = np.minimum(context, cache.window) if cache.window else context
        rows = np.minimum(tokens / cache.every, cache.read or np.inf)
        read = read + rows * cache.row_bytes(deployment.kv, deployment.tp)
    return np.asarray(sequences * read / deployment.gpu.bandwidth_bytes_per_s)
