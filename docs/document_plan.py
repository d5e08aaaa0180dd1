"""The plan for a published scenario, next to its right-sizing table."""

from pathlib import Path

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer, read_offers
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.types import today
from tokonomics.units import seconds, usd

OFFERS = Path(__file__).parent / "examples" / "document-offers.csv"
STATED = {
    "H100-SXM": (4800, 0.26),
    "A100-80GB": (2900, 0.21),
    "A10G": (850, 0.33),
    "L4": (620, 0.24),
    "T4": (350, 0.30),
}
"""Tokens per second and $/Mtok of its table ("LLM Inference Cost: Tokens/Dollar")."""
RATE = 50
"""Enough that whole replicas hardly matter."""
LENGTHS = ("512", "512")
"""The article names none; the shape of the traffic its throughput figures are usually quoted for."""
SLO = "ttft_p99=1,tpot_p99=50ms"


def document_table() -> str:
    """Markdown: what the article states for Llama-2-7B, what the plan finds, and why they differ."""
    lines = [
        "| GPU | $/h | stated tok/s | stated $/Mtok | ours, offline: tok/s | $/Mtok output | $/Mtok all | batch | "
        "with the SLO: $/Mtok all | TPOT p99 | what limits it |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for offer in read_offers(OFFERS):
        rate, price = STATED[offer.gpu]
        full, kept = _best(offer, ()), _best(offer, parse_slos(SLO))
        lines.append(
            f"| {offer.gpu} | ${offer.usd_per_hour:.2f} | {rate:,} | ${price:.2f} | {_offline(full)} | {_objectives(kept)} |"
        )
    return "\n".join(lines)


def _best(offer: Offer, slos: tuple[Slo, ...]) -> Candidate | None:
    question = Question(
        find_model("llama-2-7b"),
        load_of_shape(RATE, *LENGTHS, arrivals=None if slos else "constant:1"),
        [offer],
        [find_engine("vllm")],
        today(),
        slos,
        weights=(Precision.bf16,),
        kv=(Precision.bf16,),
    )
    return study(question).plan.best


def _offline(row: Candidate | None) -> str:
    if row is None:
        return "does not run | – | – | –"
    output_tokens_per_s = RATE * int(LENGTHS[1]) / row.replicas
    output = row.usd_per_month / (RATE * int(LENGTHS[1]) * 3600 * 730 / 1e6)
    return f"{output_tokens_per_s:,.0f} | {usd(output)} | {usd(row.usd_per_mtok.blended)} | {row.batch:.0f}"


def _objectives(row: Candidate | None) -> str:
    if row is None:
        return "no fleet meets it | – | –"
    return f"{usd(row.usd_per_mtok.blended)} | {seconds(row.tpot_s.p99 or 0.0)} | {row.limited_by}"
