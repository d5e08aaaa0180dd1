"""A price list of five offers, and questions about it, for the tests of the planner."""

from datetime import date

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.planner.plan import Question, plan
from tokonomics.planner.plan_answer import Plan
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.traffic.slo import parse_slos

TODAY = date(2026, 11, 15)
RECENT = date(2026, 11, 1)
BF16 = (Precision.bf16,)
CHAT = load_of_shape(5, "const:1000", "const:300")
BUSY = load_of_shape(500, "const:1000", "const:300")
SLOS = parse_slos("ttft_p99=0.5,tpot_p99=0.05")


def offer(gpu: str, gpus: int, price: float, **more: object) -> Offer:
    fields = {"provider": "acme", "region": "here", "instance": f"{gpus}x{gpu}", "date": RECENT, "source": "test"}
    return Offer.model_validate(fields | {"gpu": gpu, "gpus": gpus, "usd_per_hour": price} | more)


OFFERS = (
    offer("L4", 1, 0.7),
    offer("A100-80GB", 1, 2.0),
    offer("A100-80GB", 8, 15.0),
    offer("H100-SXM", 1, 3.0, spot_usd_per_hour=1.0),
    offer("H100-SXM", 8, 22.0, network_gbit=3200),
)


def asked(
    model: str = "llama-3.1-8b", load: Load = CHAT, offers: tuple[Offer, ...] = OFFERS, **more: object
) -> Question:
    fields = {"kv": BF16, "simulate": False} | more
    return Question(find_model(model), load, offers, [find_engine("vllm")], TODAY, **fields)  # type: ignore[arg-type]


def planned(**more: object) -> Plan:
    return plan(asked(**more))  # type: ignore[arg-type]
