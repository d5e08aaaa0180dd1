"""A published table of GPUs and its rule of thumb, recomputed: how fast each row is, and which GPU is cheapest when.

The article ("LLM Inference Cost: Tokens/Dollar") states tokens/s without a context or, but for two rows, a batch. Here a
row is decoded at a context of 1,024 tokens (512 in, 512 out at their end): at batch 1, at the article's batch of 64 or what
memory holds, and at the batch that would make the stated figure. The reason for a difference follows from these numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from document_plan import OFFERS

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offer_choice import cheapest_offer, list_prices
from tokonomics.catalog.offers import SNAPSHOT, load_offers, read_offers
from tokonomics.errors import TokonomicsError
from tokonomics.money.cost import cost
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.planner.predict import predict
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.units import percent, usd

CONTEXT = 1024
BATCH = 64
"""What the article names for Llama-2-70B on four A100 and for Llama-2-7B on an H100."""
LARGEST = 4096
"""Of the batches tried for the stated figure, memory or not."""
PARTS = {
    "weights_s": "reading weights",
    "kv_s": "reading KV",
    "compute_s": "computing",
    "communication_s": "sending between GPUs",
    "overhead_s": "the engine",
}


@dataclass(frozen=True)
class Row:
    """A line of the article's tables, or one that they leave out (nothing stated)."""

    model: str
    weights: Precision
    gpu: str
    gpus: int
    usd_per_gpu_hour: float
    stated: int | None

    @property
    def deployment(self) -> Deployment:
        return deploy(
            find_model(self.model), find_gpu(self.gpu), find_engine("vllm"), tp=self.gpus, weights=self.weights
        )


SMALL = (
    Row("llama-2-7b", Precision.bf16, "H100-SXM", 1, 4.50, 4800),
    Row("llama-2-7b", Precision.bf16, "A100-80GB", 1, 2.21, 2900),
    Row("llama-2-7b", Precision.bf16, "A10G", 1, 1.01, 850),
    Row("llama-2-7b", Precision.bf16, "L4", 1, 0.54, 620),
    Row("llama-2-7b", Precision.bf16, "T4", 1, 0.38, 350),
)
LARGE = (
    Row("llama-2-70b", Precision.bf16, "A100-80GB", 4, 2.21, 2400),
    Row("llama-2-70b", Precision.bf16, "H100-SXM", 4, 4.50, 6200),
    Row("llama-2-70b", Precision.int4, "A100-80GB", 2, 2.21, 1800),
    Row("llama-2-70b", Precision.int4, "H100-SXM", 1, 4.50, 1500),
    Row("mixtral-8x7b", Precision.bf16, "A100-80GB", 2, 2.21, 3200),
)
LEFT_OUT = (
    Row("llama-2-70b", Precision.fp8, "H100-SXM", 2, 4.50, None),
    Row("llama-2-70b", Precision.int4, "L4", 4, 0.54, None),
    Row("mixtral-8x7b", Precision.fp8, "H100-SXM", 1, 4.50, None),
    Row("mixtral-8x7b", Precision.int4, "L4", 2, 0.54, None),
)
"""At the article's prices by the GPU: what its table of large models could have shown."""


def right_sizing_table(rows: Sequence[Row] = (*LARGE, *LEFT_OUT)) -> str:
    """Markdown: stated and predicted tokens/s of each row, and why they differ."""
    lines = [
        f"| model | GPUs | stated tok/s | ours, batch 1 | batch {BATCH} (80 % interval) | sequences that fit | stated is reached at batch "
        "| stated $/Mtok at 100 % | ours | why |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: Row) -> str:
    found = row.deployment
    steps, room = step_model(found), max_sequences(found, CONTEXT)
    name = f"{found.model.name} {row.weights.value}"
    on, stated = f"{row.gpus}×{row.gpu}", "–" if row.stated is None else f"{row.stated:,}"
    reached = reaching(row.stated, steps) if row.stated is not None else None
    if not room:
        return f"| {name} | {on} | {stated} | – | – | 0 | – | {_price(row, row.stated)} | – | {why(row)} |"
    alone = 1 / float(steps.decode(1, CONTEXT))
    at = predict(found, min(BATCH, room), CONTEXT).tokens_per_s
    ours = f"{at.mid:,.0f} ({at.low:,.0f}–{at.high:,.0f}){'' if room >= BATCH else f' at {room}'}"
    return (
        f"| {name} | {on} | {stated} | {alone:,.0f} | {ours} | {room:,} | {reached or '–'} | {_price(row, row.stated)} | "
        f"{_price(row, at.mid)} | {why(row)} |"
    )


def _price(row: Row, tokens_per_s: float | None) -> str:
    if tokens_per_s is None:
        return "–"
    return usd(cost(row.usd_per_gpu_hour, tokens_per_s, 1.0, row.gpus).usd_per_mtok)


def reaching(tokens_per_s: float, steps: StepModel, context: int = CONTEXT) -> int | None:
    """The smallest batch whose decode steps make so many tokens a second, memory or not; None: none does."""
    made = (batch for batch in range(1, LARGEST + 1) if batch / float(steps.decode(batch, context)) >= tokens_per_s)
    return next(made, None)


def longest_context(tokens_per_s: float, deployment: Deployment) -> int | None:
    """The most tokens a sequence may have, in steps of 64, for memory to hold a batch that makes so many."""
    steps = step_model(deployment)

    def holds(context: int) -> bool:
        room = min(LARGEST, max_sequences(deployment, context))
        return room > 0 and room / float(steps.decode(room, context)) >= tokens_per_s

    return max((context for context in range(64, CONTEXT + 1, 64) if holds(context)), default=None)


def kv_bound(row: Row) -> float:
    """Tokens a second that memory bandwidth allows if weights cost nothing: each token reads the KV of its context."""
    found = row.deployment
    read = found.model.kv_bytes_per_token(found.kv) * CONTEXT
    return found.gpus * found.gpu.bandwidth_bytes_per_s / read


def why(row: Row) -> str:
    """The reason for the difference, from the row's own numbers."""
    found = row.deployment
    steps, room = step_model(found), max_sequences(found, CONTEXT)
    if not room:
        return f"no room: {row.weights.value} weights leave no KV for a sequence of {CONTEXT:,} tokens on {row.gpus}×{row.gpu}"
    at = predict(found, min(BATCH, room), CONTEXT)
    parts = at.parts
    assert parts is not None
    name, took_s = max(((name, getattr(parts, name)) for name in PARTS), key=lambda part: part[1])
    bound = f"{percent(took_s / parts.step_s)} of a step at {at.batch} is {PARTS[name]}"
    if row.stated is None:
        return f"not in the article; {bound}"
    reached = reaching(row.stated, steps)
    if reached is None or reached > room:
        shorter = longest_context(row.stated, found)
        only = (
            f"only contexts up to {shorter} tokens do" if shorter else f"no context from 64 to {CONTEXT:,} tokens does"
        )
        takes = "no batch makes it" if reached is None else f"it takes a batch of {reached:,}"
        if row.stated > kv_bound(row):
            takes = f"reading KV alone allows {kv_bound(row):,.0f} tok/s at any batch"
        return f"memory: {takes}, {room:,} fit; {only}; {bound}"
    if at.tokens_per_s.low <= row.stated <= at.tokens_per_s.high:
        return f"agrees: inside the interval at batch {at.batch}; {bound}"
    if reached > at.batch:
        return f"batch: {at.batch} makes {percent(at.tokens_per_s.mid / row.stated)} of it, {reached:,} of the {room:,} that fit all; {bound}"
    return (
        f"batch: {reached:,} are enough, {at.batch} make {at.tokens_per_s.mid / row.stated:.2g} times as much; {bound}"
    )


# --- which GPU is cheapest ----------------------------------------------------------------------------------------------

GPUS = ("L4", "T4", "A10G", "A100-80GB", "H100-SXM")
"""Those of the article."""
RULE = {
    "llama-3.2-1b": "L4",
    "llama-3.2-3b": "L4",
    "llama-2-7b": "A100-80GB",
    "llama-3.1-8b": "A100-80GB",
    "llama-2-13b": "A100-80GB",
    "llama-2-70b": "H100-SXM",
    "llama-3.3-70b": "H100-SXM",
}
"""The article's: L4 with INT8 below 7B, A100 for 7 to 13B, H100 from 70B on."""
PRECISIONS = (Precision.bf16, Precision.int8, Precision.fp8)
CASES = (((512, 512), None), ((512, 512), 0.05), ((2000, 200), None), ((2000, 200), 0.05))
"""Tokens in and out, and the longest time per output token: as fast as it goes, and 50 ms for someone who reads."""


def speed(model: str, gpu: str, lengths: tuple[int, int], tpot_s: float | None) -> float:
    """Tokens a second of one GPU of the fastest layout of a full replica; 0 where none runs."""
    return max((rate * sum(lengths) / tp for tp, rate in _rates(model, gpu, lengths, tpot_s)), default=0.0)


@cache
def _rates(model: str, gpu: str, lengths: tuple[int, int], tpot_s: float | None) -> tuple[tuple[int, float], ...]:
    """Of each layout that runs: its GPUs, and the requests a second that it holds."""
    found = []
    for weights, tp in product(PRECISIONS, (1, 2, 4, 8)):
        try:
            laid = deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), tp=tp, weights=weights)
            found.append((tp, ReplicaCurve(laid, *lengths).capacity(tpot_s).rate))
        except TokonomicsError:
            continue
    return tuple(found)


def article_prices() -> dict[str, float]:
    """Dollars a GPU-hour."""
    return {offer.gpu: offer.usd_per_hour for offer in read_offers(OFFERS) if offer.usd_per_hour is not None}


def market_prices() -> dict[str, float]:
    """The cheapest of the shipped price list."""
    offers = {gpu: cheapest_offer(gpu, offers=list_prices(load_offers(SNAPSHOT))) for gpu in GPUS}
    return {gpu: offer.usd_per_gpu_hour() or 0.0 for gpu, offer in offers.items()}


def cheapest_gpu(model: str, prices: Mapping[str, float], case: tuple[tuple[int, int], float | None]) -> str:
    """By the token, on machines that are always full."""
    return max(prices, key=lambda gpu: speed(model, gpu, *case) / prices[gpu])


def holds(model: str, prices: Mapping[str, float]) -> int:
    """In how many of the cases the article's GPU is the cheapest."""
    return sum(cheapest_gpu(model, prices, case) == RULE[model] for case in CASES)


def small_traffic(model: str, prices: Mapping[str, float]) -> float:
    """Requests a second of 512 in and 512 out, within 50 ms a token, up to which whole L4 cost less than one H100."""
    at_most = math.ceil(prices["H100-SXM"] / prices["L4"]) - 1  # whole L4 for less than an H100
    return max((at_most // tp * rate for tp, rate in _rates(model, "L4", *CASES[1])), default=0.0)


def rule_table() -> str:
    """Markdown: the cheapest GPU by model, traffic and price list."""
    heads = [
        f"{given:,} in, {written:,} out{'' if tpot_s is None else f', {tpot_s * 1e3:.0f} ms a token'}"
        for (given, written), tpot_s in CASES
    ]
    lines = [
        f"| model | the rule | {' | '.join(heads)} | at today's prices, all four | H100 ÷ A100, tokens/s | L4 below one H100 up to |",
        f"|---|---|{'---|' * len(CASES)}---|--:|--:|",
    ]
    article, market = article_prices(), market_prices()
    for model, rule in RULE.items():
        named = [cheapest_gpu(model, article, case) for case in CASES]
        today = dict.fromkeys(cheapest_gpu(model, market, case) for case in CASES)
        faster = sorted(speed(model, "H100-SXM", *case) / speed(model, "A100-80GB", *case) for case in CASES)
        few = small_traffic(model, market)
        cells = [f"**{gpu}**" if gpu == rule else gpu for gpu in named]
        lines.append(
            f"| {find_model(model).name} | {rule} | {' | '.join(cells)} | {' or '.join(today)} | {faster[0]:.1f}–{faster[-1]:.1f} | "
            f"{f'{few:.2g} requests/s' if few else 'never'} |"
        )
    paid = "; ".join(f"{gpu} {usd(article[gpu])} and {usd(market[gpu])}" for gpu in GPUS)
    return "\n".join(
        [
            *lines,
            "",
            f"Dollars a GPU-hour, the article's and the cheapest of the shipped list: {paid}. Bold: as the rule says.",
        ]
    )


def rule_figure() -> str:
    """One line for the table of claims."""
    article, market = article_prices(), market_prices()
    bands = {"L4 below 7B": "L4", "A100 for 7–13B": "A100-80GB", "H100 for 70B": "H100-SXM"}
    said = []
    for name, gpu in bands.items():
        models = [model for model, rule in RULE.items() if rule == gpu]
        at, now = (sum(holds(model, prices) for model in models) for prices in (article, market))
        said.append(f"{name}: cheapest in {at} of {len(models) * len(CASES)} cases at its prices, {now} at today's")
    mid = [model for model, rule in RULE.items() if rule == "A100-80GB"]
    faster = sorted(
        speed(model, "H100-SXM", *case) / speed(model, "A100-80GB", *case) for model in mid for case in CASES
    )
    few = small_traffic("llama-3.2-3b", market)
    return (
        f"{'; '.join(said)}. An A100 wins at 7–13B where an H100 costs {faster[0]:.1f} to {faster[-1]:.1f} times as much "
        f"({article['H100-SXM'] / article['A100-80GB']:.2f} in the article, {market['H100-SXM'] / market['A100-80GB']:.2f} today); "
        f"an L4 where one is enough: a 3B up to {few:.2g} requests/s "
        "(`tokonomics plan --by-gpu llama-3.2-3b llama-3.1-8b llama-2-70b --gpu L4,A100,H100 --rate 2 --input 512 --output 512`)"
    )


def right_sizing_figure() -> str:
    """One line for the table of claims: how many rows agree, and what the others lack."""
    reasons = [why(row).partition(":")[0] for row in (*SMALL, *LARGE)]
    counted = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    words = {
        "agrees": f"inside our 80 % interval at batch {BATCH}",
        "batch": "reached at another batch that fits",
        "memory": f"not reachable at {CONTEXT:,} tokens of context, since memory holds too few sequences",
        "no room": "without room for one sequence",
    }
    said = ", ".join(f"{number} {words[reason]}" for reason, number in counted.items())
    return f"{said}; row by row below (`tokonomics predict --curve llama-2-70b --gpu A100-80GB --tp 4 --context {CONTEXT}`)"
