"""What a simulation costs: the paid time of its replicas, split by what they did with it.

On **reservation** the whole bill is divided by the tokens that were delivered; on **usage** only the share of it that
full batches would have needed for them, as a platform that fills its machines with others' requests would charge.
Tokens are those of completed requests, prompts (cached ones included) and answers.
"""

from collections.abc import Sequence

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.money.cost import CostLine, CostTree
from tokonomics.serving.outcome import Outcome, SideOutcome
from tokonomics.types import Noun
from tokonomics.units import TOKENS_PER_MTOK


class ServedCost(Noun):
    """The bill of a simulation."""

    usd_per_replica_hour: PositiveFloat  # in the mean over both sides of a disaggregated fleet
    price_from: str
    usd: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat | None  # prompts and answers alike, on reservation; None where none was delivered
    usd_per_mtok_output: NonNegativeFloat | None  # the whole bill over the answers alone
    usd_per_mtok_usage: NonNegativeFloat | None
    tree: CostTree


def served_cost(outcome: Outcome, usd_per_replica_hour: float, price_from: str) -> ServedCost:
    """Price the paid hours of a simulation."""
    hours, shares = outcome.replica_hours, outcome.shares
    parts = (
        ("prefill", shares.prefill),
        ("decode", shares.decode),
        ("recomputed", shares.recomputed),
        ("abandoned", shares.abandoned),
        ("idle", shares.idle),
    )
    tree = CostTree(
        name="replicas",
        lines=tuple(
            CostLine(name=name, quantity=hours * share, unit="replica-hour", usd_per_unit=usd_per_replica_hour)
            for name, share in parts
        ),
    )
    return _cost(outcome, tree, usd_per_replica_hour, price_from)


def served_cost_apart(
    outcome: Outcome, sides: Sequence[SideOutcome], usd_per_replica_hour: Sequence[float], price_from: str
) -> ServedCost:
    """Price the paid hours of the two sides of a disaggregated fleet, each at its own price."""
    lines = []
    for side, usd in zip(sides, usd_per_replica_hour, strict=True):
        for what, share in (("busy", side.busy_share), ("idle", 1 - side.busy_share)):
            hours = side.replica_hours * share
            lines.append(CostLine(name=f"{side.does} {what}", quantity=hours, unit="replica-hour", usd_per_unit=usd))
    tree = CostTree(name="replicas", lines=tuple(lines))
    return _cost(outcome, tree, tree.usd / outcome.replica_hours, price_from)


def _cost(outcome: Outcome, tree: CostTree, usd_per_replica_hour: float, price_from: str) -> ServedCost:
    tokens, load = outcome.input_tokens + outcome.output_tokens, outcome.load_share
    return ServedCost(
        usd_per_replica_hour=usd_per_replica_hour,
        price_from=price_from,
        usd=tree.usd,
        usd_per_mtok=_per_mtok(tree.usd, tokens),
        usd_per_mtok_output=_per_mtok(tree.usd, outcome.output_tokens),
        usd_per_mtok_usage=None if load is None else _per_mtok(tree.usd * min(1.0, load), tokens),
        tree=tree,
    )


def _per_mtok(usd: float, tokens: int) -> float | None:
    return usd / tokens * TOKENS_PER_MTOK if tokens else None
