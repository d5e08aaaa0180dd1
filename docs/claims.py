"""Every figure that two published articles state, recomputed with the product's own functions.

``CLAIMS`` is what ``docs/claims.md`` is made from. A claim that is arithmetic has a figure here; one that is a
property of someone's traffic says which capability measures it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from document_breakeven import DOCUMENT, OPEN_HOST, OPTIMISED, SMALL, document_break_even, half_and_half
from document_right_sizing import LARGE, right_sizing_figure, right_sizing_table, rule_figure, rule_table
from document_right_sizing import SMALL as SINGLE

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.feeds import SCARCE, find_band
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offer_choice import cheapest_offer, list_prices, select_offers
from tokonomics.catalog.offers import SNAPSHOT, load_offers
from tokonomics.fleet.cheapest import fixed_rule
from tokonomics.levers.lora import lora
from tokonomics.levers.ranking import arrival_patterns, arriving
from tokonomics.levers.semantic_cache import BYTES_PER_TOKEN, VectorIndex
from tokonomics.levers.stack import stack
from tokonomics.levers.tenancy import Pooling, Sharing, pool
from tokonomics.money.breakeven import SelfHosted, bill_at
from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR
from tokonomics.money.cost import cost, load_cost, saving
from tokonomics.money.spot_machines import spot_verdict
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.steptime import decode_step
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.buy import lost_state
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import PrefixBlocks
from tokonomics.types import today
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, count, gigabytes, percent, seconds, usd

H200_MEASURED_TOKENS_PER_S = 5155
"""Llama-2-7B in bf16, batch 64, context 1,024: whole decode steps in a CUDA graph on one H200 (2026)."""


@dataclass(frozen=True)
class Claim:
    """What a document says, what we get, and what to make of it."""

    key: str
    statement: str
    stated: str
    verdict: str
    figure: Callable[[], str]


def _per_mtok(usd_per_hour: float, tokens_per_second: float, gpus: int = 1) -> Callable[[], str]:
    return lambda: f"{usd(cost(usd_per_hour, tokens_per_second, 1.0, gpus).usd_per_mtok)} at 100 % utilisation"


def _both_bases(usd_per_hour: float, tokens_per_second: float, gpus: int = 1) -> Callable[[], str]:
    def figure() -> str:
        full = cost(usd_per_hour, tokens_per_second, 1.0, gpus).usd_per_mtok
        planned = cost(usd_per_hour, tokens_per_second, 0.7, gpus).usd_per_mtok
        return f"{usd(full)} at 100 %, {usd(planned)} at 70 % utilisation"

    return figure


def _llama_2_7b(gpu: str) -> Deployment:
    return deploy(find_model("llama-2-7b"), find_gpu(gpu), find_engine("vllm"))


def _naive_tokens_per_s(batch: int) -> float:
    """A weight read shared by the batch, 14 GB at 3.35 TB/s with an overhead of 1.2: no KV reads, no compute limit."""
    return batch / (14e9 / 3.35e12 * 1.2)


def _naive_batch_1() -> str:
    return f"{_naive_tokens_per_s(1):.1f} tok/s from the naive formula"


def _flattening() -> str:
    batches = (32, 64, 128)
    naive = " / ".join(f"{_naive_tokens_per_s(batch):,.0f}" for batch in batches)
    with_kv = " / ".join(f"{_decode_tokens_per_s('H100-SXM', batch):,.0f}" for batch in batches)
    h200 = _decode_tokens_per_s("H200", 64)
    return (
        f"{naive} tok/s from the code shown; {with_kv} with KV reads at context 1,024. "
        f"On an H200 at batch 64 the model says {h200:,.0f}, measured {H200_MEASURED_TOKENS_PER_S:,}"
    )


def _decode_tokens_per_s(gpu: str, batch: int) -> float:
    return batch / float(decode_step(_llama_2_7b(gpu), batch, 1024))


def _batching_gain() -> str:
    single = 1 / float(decode_step(_llama_2_7b("H100-SXM"), 1, 512))
    return f"{4800 / 90:.1f}×; the model gives {single:.0f} tok/s for one request, not 90"


def _kv_of_2048() -> str:
    per_token = find_model("llama-2-7b").kv_bytes_per_token(Precision.bf16)
    return f"{per_token * 2048 / 1e6:,.1f} MB ({per_token // 1024} KiB a token)"


def _document_cache() -> tuple[int, int]:
    """Prompt tokens of 10,000 requests of 2,048 + 256, and those found cached where 85 % find the first part."""
    prefix_blocks, sharing = 2048 // 16, 8500 + 1  # the first of them writes what the others find
    blocks = PrefixBlocks(
        ids=np.tile(np.arange(prefix_blocks, dtype=np.int32), sharing),
        starts=np.minimum(np.arange(10_001), sharing) * prefix_blocks,
        block_tokens=16,
        distinct=prefix_blocks,
    )
    tokens = np.full(10_000, 2048 + 256, np.int32)
    return int(tokens.sum()), int(reuse(blocks, tokens).sum())


def _prefix() -> str:
    tokens, cached = _document_cache()
    return (
        f"{tokens / 1e6:.2f} → {(tokens - cached) / 1e6:.3f} M tok/h, "
        f"{cached / tokens:.2%}, ${cached / 1e6 * 0.50:.3f}/h"
    )


def _prefix_shares() -> str:
    tokens, cached = _document_cache()
    return f"{2048 / (2048 + 256):.1%} of a request that hits; {cached / tokens:.1%} over all requests"


def _hybrid_fleet() -> str:
    rule = fixed_rule()
    lines = " + ".join(f"{line.usd:,.2f}" for line in rule.tree.lines)
    return f"{lines} = ${rule.usd_per_month:,.2f}; {rule.saved_share:.2%} below ${rule.compared_usd_per_month:,.2f}"


def _adapters() -> str:
    base = deploy(
        find_model("llama-2-70b"), find_gpu("A100-80GB"), find_engine("vllm"), tp=4, lora_rank=16, lora_adapters=50
    )
    found = lora(base, 32, 1024)
    stated, budget = 50 * 100e6, found.kv_bytes_without
    one, mixed, most = found.steps[1], found.steps[2], found.steps[-1]
    return (
        f"{gigabytes(stated)} of {gigabytes(budget)} left for KV on 4×A100: {stated / budget:.1%} less batch "
        f"({gigabytes(50 * found.bytes_each)} at rank 16 beside every product). A step of 32 takes {one.slower:.0%} longer with one adapter of rank 16, {mixed.slower:.0%} with {mixed.adapters}, the mean "
        f"mix of 50, {most.slower:.0%} with {most.adapters}; {found.most_adapters:,} fit beside it"
    )


def _ten_tenants() -> Pooling:
    """Ten equal tenants whose day is twelve times as fast, each at two fifths of an L4 of its own."""
    trace = generate(
        parse_arrivals("diurnal:1.2,peak=2"),
        parse_lengths("500", "input"),
        parse_lengths("100", "output"),
        duration_s=86_400,
        tenants=parse_tenants("10,skew=0"),
    ).faster(12)
    small = deploy(find_model("llama-3.1-8b"), find_gpu("L4"), find_engine("vllm"))
    return pool(Sharing(small, small, trace, parse_slos("ttft_p99=2,tpot_p99=200ms"), lambda replicas: 1.0))


def _pooled() -> str:
    made = _ten_tenants()
    apart, same, spread = made.apart, made.together, made.what_if[-1]
    return (
        f"simulated, 10 tenants on {apart.replicas} L4 at {percent(apart.load_share or 0)}: {percent(same.load_share or 0)} and "
        f"{apart.replicas / same.replicas:.3g}× cheaper on {same.replicas} when their days coincide, {percent(spread.load_share or 0)} and "
        f"{apart.replicas / spread.replicas:.3g}× on {spread.replicas} when their peaks are spread (`tokonomics tenants`)"
    )


def _gpt_4o() -> str:
    bill = half_and_half("openai:gpt-4o")
    return f"${bill.usd_per_mtok * 1000:,.0f} at {usd(bill.input_usd_per_mtok)}/{usd(bill.output_usd_per_mtok)}"


def _four_a100() -> str:
    return f"${SelfHosted(kinds=(DOCUMENT,)).usd(1e9):,.2f}"


def _ten_billion() -> str:
    at, capacity = bill_at(SelfHosted(kinds=(DOCUMENT,)), {}, 10e9), DOCUMENT.holds[0].tokens_per_month
    return f"${at.hosted_usd:,.2f}: one replica makes {capacity / 1e9:.3f} B a month, so {at.replicas} replicas"


def _two_a100() -> str:
    hosted = SelfHosted(kinds=(OPTIMISED,))
    return f"${hosted.usd(1e9):,.2f} / ${hosted.usd(10e9):,.2f} for the GPUs alone, at 1,800 tok/s and 70 %"


def _rule_of_thumb() -> str:
    return (
        f"70B (4×A100) against GPT-4o: {document_break_even(DOCUMENT, 'openai:gpt-4o')}, with an engineer at $200K a year "
        f"{document_break_even(DOCUMENT, 'openai:gpt-4o', 200_000)}; against {OPEN_HOST}: {document_break_even(DOCUMENT, OPEN_HOST)}. "
        f"7B (1×A100) against GPT-4o mini: {document_break_even(SMALL, 'openai:gpt-4o-mini')}, with the engineer "
        f"{document_break_even(SMALL, 'openai:gpt-4o-mini', 200_000)}. `tokonomics breakeven` for your own"
    )


def _p4d() -> str:
    offer = next(
        load_offer
        for load_offer in load_offers()
        if load_offer.instance == "p4d.24xlarge" and load_offer.region == "us-east-1"
    )
    cheapest = cheapest_offer("A100-40GB")
    return (
        f"{usd(32 / 8)}; list price on {offer.date}: {usd(offer.usd_per_gpu_hour() or 0)} ({offer.region}), "
        f"elsewhere from {usd(cheapest.usd_per_gpu_hour() or 0)} ({cheapest.provider})"
    )


def _bursty() -> str:
    burst, steady, even = (load_cost(load, 4.50, 38_000, gpus=8) for load in ("8x0.99,16x0", "24x0.7", "24x0.33"))
    return (
        f"8 h at 99 % then idle {usd(burst.usd_per_mtok)}, steady 70 % {usd(steady.usd_per_mtok)} on the same 8 GPUs. "
        f"The burst's tokens spread out (33 %) cost the same there, but need {even.gpus_for_peak} GPUs instead of "
        f"{burst.gpus_for_peak}: {usd(even.usd_per_mtok_for_peak)}"
    )


def _small_on_big() -> str:
    def price(model: str, gpu: str, usd_per_hour: float) -> float:
        curve = ReplicaCurve(deploy(find_model(model), find_gpu(gpu), find_engine("vllm")), 1000, 300)
        return cost(usd_per_hour, curve.capacity().rate * 1300).usd_per_mtok

    small, large = price("llama-3.1-8b", "H100-SXM", 4.50), price("qwen2.5-32b", "A100-80GB", 2.21)
    return f"8B on an H100 at $4.50: {usd(small)}; 32B on an A100 at $2.21: {usd(large)}"


def _conflict() -> str:
    curve = ReplicaCurve(_llama_2_7b("H100-SXM"), 1000, 300)
    points = [curve.capacity(tpot_s) for tpot_s in (0.008, 0.012, 0.020)]
    prices = [cost(4.50, point.rate * 1300).usd_per_mtok for point in points]
    return "; ".join(
        f"{usd(price)} at TPOT {point.tpot_s * 1e3:.0f} ms" for price, point in zip(prices, points, strict=True)
    )


def _semantic() -> str:
    file = Path(__file__).parent.parent / "benchmarks" / "results" / "semantic.json"
    labels = json.loads(file.read_text(encoding="utf-8"))["model"]["labels"]
    strict = next(label for label in labels if label["threshold"] == 0.95)
    return (
        f"`tokonomics cache --semantic` measures it; of Quora's question pairs at 0.95, {percent(strict['false_share'])} of the hits "
        f"are false and {percent(strict['found_share'])} of the same questions are found"
    )


def _caching_infrastructure() -> str:
    """A replica of an 8B at 70 % of its capacity: an index of a million answers, embedding, and KV in rented memory."""
    file = Path(__file__).parent.parent / "benchmarks" / "results" / "vector_index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    largest, entries, hits, price = (
        index["rows"][-1],
        10**6,
        0.2,
        partial(cheapest_offer, offers=list_prices(load_offers(SNAPSHOT))),
    )
    kept = VectorIndex(
        bytes_per_vector=find_model(ENCODER).hidden * 4,
        lookup_s=largest["lookup_cpu_s"],
        add_s=largest["add_cpu_s"],
        measured_entries=largest["entries"],
    )
    by_hour = 0.7 * _rate("llama-3.1-8b", "H100-SXM", 300) * SECONDS_PER_HOUR
    gpu, l4 = (price(name).usd_per_gpu_hour() or 0.0 for name in ("H100-SXM", "L4"))
    memory, cpu = kept.lines(entries, entries * 300 * BYTES_PER_TOKEN, by_hour, by_hour * (1 - hits))
    encoder = cost(l4, _rate(ENCODER, "L4", 1) * 1000).usd_per_mtok
    own, bought = (by_hour * 1000 / TOKENS_PER_MTOK * usd_per_mtok for usd_per_mtok in (encoder, 0.02))
    total = memory.usd + cpu.usd + own
    return (
        f"an 8B on an H100 at {usd(gpu)}/h, {by_hour / SECONDS_PER_HOUR:.3g} requests/s of 1,000 tokens: a million answers and their index take "
        f"{gigabytes(memory.quantity * 1e9)}, {usd(memory.usd)} an hour, look-ups {cpu.quantity:.0f} vCPU, {usd(cpu.usd)}, embedding every prompt "
        f"with {ENCODER} on a full L4 {usd(own)}: {percent(total / gpu)} of the GPU. By an API at $0.02/Mtok it is {usd(bought)}, {percent(bought / gpu)}. "
        f"KV in rented memory: {percent(200 * DRAM_USD_PER_GB_HOUR / gpu)} for 200 GB, 5 % for {0.05 * gpu / DRAM_USD_PER_GB_HOUR:.0f} GB "
        "(`tokonomics cache --model llama-3.1-8b --gpu H100 --trace LOG --prompts FILE --semantic MODEL --tiers dram=200@0.00314`)"
    )


def _lost_conversations() -> str:
    """What a spot loss takes from eight replicas that serve Mooncake's conversations."""
    one = deploy(find_model("llama-3.1-8b"), find_gpu("H100-SXM"), find_engine("vllm"))
    state = lost_state(one, open_trace("mooncake-conversation").read(), 8)
    assert state is not None
    calm, scarce = (
        spot_verdict(answer_s=60, cold_start_s=200, replicas=8, interruptions=risk, strict_p99=True, state=state)
        for risk in (find_band("p5.48xlarge", "us-east-1").interruptions, SCARCE)
    )
    return (
        f"Mooncake's conversations on 8 H100 (8B): a loss takes {count(state.tokens)} tokens of state that {state.requests:.0f} requests come back for, "
        f"{seconds(state.prefill_s)} of prefill. Taken back as often as AWS says of p5.48xlarge, {percent(calm.waiting_share)} of requests wait for that; "
        f"every 3.3 hours, {percent(scarce.waiting_share)} (`tokonomics fleet llama-3.1-8b --trace mooncake-conversation --slo ttft_p99=10,tpot_p99=200ms`)"
    )


ENCODER = "nomic-embed-text-v1.5"


def _rate(model: str, gpu: str, output_tokens: int) -> float:
    """Requests of 1,000 tokens a second on one GPU."""
    return (
        ReplicaCurve(deploy(find_model(model), find_gpu(gpu), find_engine("vllm")), 1000, output_tokens).capacity().rate
    )


def _bursts_simulated() -> str:
    load = load_of_shape(20, "1000", "300")
    one = deploy(find_model("llama-3.1-8b"), find_gpu("A100-80GB"), find_engine("vllm"))
    setups = [
        Setup(one, arriving(load, text), load_offers(SNAPSHOT), today(), parse_slos("ttft_p99=1,tpot_p99=60ms"))
        for name, text in arrival_patterns(load).items()
        if name != "as given"
    ]
    even, _, burst = (bill for setup in setups if isinstance(bill := Bills().bill_of(setup), Bill))
    return (
        f"Simulated (8B on A100s, 20 requests/s, a SLO kept): evenly {usd(even.usd_per_mtok.blended)} on {even.replicas}, all in a "
        f"third of the time {usd(burst.usd_per_mtok.blended)} on {burst.replicas} (`tokonomics levers --utilization`)"
    )


def _stack() -> str:
    load, slos = load_of_log(open_trace("azure-conv").read()), parse_slos("ttft_p99=5,tpot_p99=80ms")
    four = deploy(find_model("llama-3.3-70b"), find_gpu("A100-80GB"), find_engine("vllm"), tp=4)
    at_aws = select_offers(load_offers(SNAPSHOT), provider="aws", terms=None)
    made = stack(Setup(four, load, at_aws, today(), slos)).waterfall
    batched = made.steps[0].bill.usd_per_mtok.blended
    steps = ", ".join(f"{step.name} −{step.saved_share * 100:.1f} %" for step in made.steps)
    return (
        f"simulated for a 70B on 4×A100 at AWS with Azure's conversations: {usd(made.naive.usd_per_mtok.blended)} → "
        f"{usd(made.end.usd_per_mtok.blended)}, −{made.saved_share * 100:.1f} % ({steps}); from the batched deployment on, "
        f"−{saving(batched, made.end.usd_per_mtok.blended) * 100:.0f} % (`tokonomics levers --from-scratch`)"
    )


def _later(capability: str) -> Callable[[], str]:
    return lambda: f"not arithmetic: {capability}"


CLAIMS = (
    Claim("C01", "Llama-2-70B on 4×A100: $2.21/GPU-h, 2,400 tok/s, 70 % utilisation", "$1.46/Mtok", "holds", lambda: f"${cost(2.21, 2400, 0.7, 4).usd_per_mtok:.4f}/Mtok"),
    Claim("C02", "7B on H100 SXM: $4.50/h, 4,800 tok/s", "$0.26", "holds; the table silently assumes 100 %", _per_mtok(4.50, 4800)),
    Claim("C03", "7B on A100-80: $2.21/h, 2,900 tok/s", "$0.21", "holds at 100 %", _per_mtok(2.21, 2900)),
    Claim("C04", "7B on A10G: $1.01/h, 850 tok/s", "$0.33", "holds at 100 %", _per_mtok(1.01, 850)),
    Claim("C05", "7B on L4: $0.54/h, 620 tok/s", "$0.24", "holds at 100 %", _per_mtok(0.54, 620)),
    Claim("C06", "7B on T4: $0.38/h, 350 tok/s", "$0.30", "holds at 100 %; 16-bit weights leave next to no room for KV in 16 GB (`tokonomics predict --fit llama-2-7b --gpu T4`)", _per_mtok(0.38, 350)),
    Claim("C07", "70B FP16 on 4×A100: $8.84/h, 2,400 tok/s", "$1.46", "**inconsistent**: the only row of its table that uses 70 % utilisation; the others use 100 %", _both_bases(2.21, 2400, 4)),
    Claim("C08", "70B FP16 on 4×H100: $18/h, 6,200 tok/s", "$0.81", "holds at 100 %", _both_bases(4.50, 6200, 4)),
    Claim("C09", "70B INT4 on 2×A100: $4.42/h, 1,800 tok/s", "$0.68", "holds at 100 %", _both_bases(2.21, 1800, 2)),
    Claim("C10", "70B INT4 on 1×H100: $4.50/h, 1,500 tok/s", "$0.83", "holds at 100 %", _both_bases(4.50, 1500)),
    Claim("C11", "Mixtral 8×7B on 2×A100: $4.42/h, 3,200 tok/s", "$0.38", "holds at 100 %", _both_bases(2.21, 3200, 2)),
    Claim("C12", "naive decode model, batch 1: 14 GB, 3.35 TB/s, overhead 1.2", "~200 tok/s", "holds", _naive_batch_1),
    Claim("C13", "naive decode model, batch 32 / 64 / 128", "3,800 / 4,800 / 5,100 tok/s", "**wrong**: the code shown does not give its own numbers; it leaves out KV reads, which are what flattens the curve", _flattening),
    Claim("C14", "continuous batching: 90 → 4,800 tok/s", "53×", "holds as arithmetic; 90 tok/s is far below what the bandwidth allows, so most of the gain is engine overhead removed", _batching_gain),
    Claim("C15", "KV cache of one 2,048-token sequence of a 7B model", "~800 MB", "**wrong**: 2 × 32 layers × 4,096 × 2 bytes a token", _kv_of_2048),
    Claim("C16", "low utilisation: H100 at $4.50/h, 400 tok/s", "$3.13", "holds", lambda: f"${cost(4.50, 400).usd_per_mtok:.3f}"),
    Claim("C17", "high utilisation: H100 at $4.50/h, 3,800 tok/s", "$0.33", "holds", lambda: f"${cost(4.50, 3800).usd_per_mtok:.4f}"),
    Claim("C18", "prefix caching: 2,048 + 256 tokens, 10,000 requests/h, 85 % hits, $0.50/M", "23.04 → 5.632 M tok/h, 75.6 %, $8.70/h", "holds", _prefix),
    Claim("C19", "a prefix hit saves ~85 % of a request's prefill", "85 %", "loose: two shares are mixed up", _prefix_shares),
    Claim("C20", "semantic caching hits 10–30 % at cosine ≥ 0.95", "10–30 %", "a property of the workload", _semantic),
    Claim("C21", "prefix and semantic caching together", "40–60 % lower cost", "a property of the workload", _later("`tokonomics cache` replays the user's trace and prompts")),
    Claim("C22", "hybrid fleet: 4 on demand at $2.21 + 4 spot at $0.73 for 60 % of the time", "$7,731 a month, 20.1 % saved", "holds; the 30–40 % of its text is not what its example shows", _hybrid_fleet),
    Claim("C23", "spot discount: $0.73 against $2.21", "67 %", "holds", lambda: f"{saving(2.21, 0.73):.2%}"),
    Claim("C24", "50 LoRA adapters of 100 MB on one 70B base", "1–3 % overhead", "the memory holds; the overhead is larger than stated when a batch mixes adapters", _adapters),
    Claim("C25", "10 tenants at 40 % pool to 85–90 %", "2× cheaper", "not a law: depends on correlation and tail", _pooled),
    Claim("C26", "multi-tenant bill: $15K against $40K", "62 %", "holds", lambda: f"{saving(40_000, 15_000):.1%}"),
    Claim("C27", "API bill for 1 B tokens, GPT-4o, half input, half output", "$6,250", "holds for a 50:50 mix: the mix is an input", _gpt_4o),
    Claim("C28", "self-hosted bill for 1 B tokens: 4×A100, 730 h", "$6,453", "holds", _four_a100),
    Claim("C29", "self-hosted bill for 10 B tokens, same fleet", "$6,453", "**wrong**: one fleet cannot serve it; fleet cost is a step function of volume", _ten_billion),
    Claim("C30", "optimised self-hosting: INT4 on 2×A100 with caching", "$3,024 / $4,966", "**not reproducible** from what is given", _two_a100),
    Claim("C31", "break-even volume: 70B / 7B", "2–5 B / 0.5 B tokens a month", "a rule of thumb: depends on the host's price and on engineers", _rule_of_thumb),
    Claim("C32", "optimisation stack from $3.00/Mtok", "93 % (80–85 % realistic)", "incomplete: the steps are not given; computed, almost all of it is batching, which nobody goes without", _stack),
    Claim("C33", "A100 at $10/h and 1,000 tok/s", "$0.00000278 a token", "holds", lambda: f"${cost(10, 1000).usd_per_token:.3e} a token"),
    Claim("C34", "smaller model at 2,000 tok/s", "$0.00000139 a token", "holds", lambda: f"${cost(10, 2000).usd_per_token:.3e} a token"),
    Claim("C35", "p4d.24xlarge: $32/h ÷ 8", "~$4 per A100", "holds as a division; the other document uses $2.21: always name offer and date", _p4d),
    Claim("C36", "burst then idle costs more per token than steady 70 %", "qualitative", "holds twice: its mean is lower, and at the same mean it needs the GPUs of its peak", lambda: f"{_bursty()}. {_bursts_simulated()}"),
    Claim("C37", "a small model on a big GPU can be cheaper per token than a large one on a cheap GPU", "qualitative", "holds for many pairs", _small_on_big),
    Claim("C38", "latency and throughput conflict", "qualitative", "holds: the same H100, a looser SLO, a lower price", _conflict),
    Claim("C39", "tokens/s of its two right-sizing tables, ten rows", "350–6,200 tok/s", "holds where a batch above 64 fits (70B, Mixtral); the 7B rows need contexts well below 1,024 tokens, which the table does not say", right_sizing_figure),
    Claim("C40", "A100 best for 7–13B, H100 for 70B+, L4 with INT8 below 7B", "qualitative", "H100 for 70B holds everywhere; the A100 at an H100 of twice its price and more; the L4 by the token never, by the machine where traffic is small", rule_figure),
    Claim("C41", "caching infrastructure costs < 5 % of GPU costs", "< 5 %", "holds for the index itself; with embedding it depends on who embeds, and KV in rented memory costs more", _caching_infrastructure),
    Claim("C42", "long multi-turn conversations are spot-hostile (state loss)", "qualitative", "the state is computed again within seconds; hostile where machines go so often that 1 % of requests wait for it under a p99 SLO", _lost_conversations),
)  # fmt: skip


RIGHT_SIZING = """The article names neither contexts nor, but for two rows, a batch. Here every sequence has 1,024 tokens and vLLM only decodes
(prompts would take time from it): one row is `tokonomics predict --curve llama-2-70b --gpu A100-80GB --tp 4 --context 1024`, one cell
`tokonomics predict llama-2-70b --gpu A100-80GB --tp 4 --batch 64 --context 1024`."""

CHEAPEST = """By the token, on machines that are always full, in 16 or 8 bits (INT8, or FP8 where the GPU computes it), in the layout that suits
each GPU best. `tokonomics plan --by-gpu llama-3.2-3b llama-3.1-8b llama-2-70b --gpu L4,A100,H100 --rate 2 --input 512 --output 512`
buys whole machines for a rate instead: at little traffic the cheapest machine wins, not the cheapest token."""


def claims_page() -> str:
    """docs/claims.md: statement, our figure, verdict."""
    lines = [
        "# Published figures, recomputed",
        "",
        'The product starts from two articles on the cost of LLM tokens ("LLM Inference Cost: Tokens/Dollar" and one on GPU cost per',
        "token). This page recomputes every figure they state",
        "with the product's own functions. Utilisation is named wherever it matters: most disagreements are about it.",
        "",
        "| | statement | stated | ours | verdict |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {claim.key} | {claim.statement} | {claim.stated} | {claim.figure()} | {claim.verdict} |" for claim in CLAIMS
    ]
    lines += ["", "## The right-sizing tables, row by row", "", RIGHT_SIZING, "", right_sizing_table((*SINGLE, *LARGE))]
    lines += ["", "## Which GPU is cheapest", "", CHEAPEST, "", rule_table()]
    return "\n".join(lines) + "\n"
