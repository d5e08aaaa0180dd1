"""Split the bill of a shared fleet among its tenants, and compute what selling its tokens earns.

Every tenant pays its own GPU time (*usage*) in full batches, and a part of the unused time by its share of the load
when the fleet is fullest, but never more than a fleet of its own would cost. The unused time exists because of the
fullest hours, so it follows the load in them (coincident peak: NARUC, Electric Utility Cost Allocation Manual, January
1992, chapter 4): a tenant that comes only at night pays nothing for it. The cap is the stand-alone test (Faulhaber,
Cross-Subsidization: Pricing in Public Enterprises, American Economic Review 65(5), 1975, 966-977): a steady tenant does
not pay for the peaks of others beyond what it would pay alone, or it would leave; the others pay what the cap takes
off. Shares sum to the bill, and nobody pays more than alone as long as the pool costs no more than separate fleets.
Sharing everything by usage would break the last rule; sharing by stand-alone bills would charge small tenants for the
whole replica they would need. The Shapley value (1953), what a tenant adds on average over every order of joining, is
the check; it needs a simulation for every group of tenants.

Classes of service pay by the same rule, without the cap: the cost of a class alone is not computed.

Margin is gross margin: (revenue − cost) ÷ revenue. The price that gives a margin m is the cost of each kind of token ÷
(1 − m). A fleet is paid for whether or not it is used, so up to its capacity the bill stays the same while revenue
grows with the volume: it becomes profitable at cost ÷ revenue times the volume.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, computed_field

from tokonomics.errors import BadInput, option, shorten
from tokonomics.physics.steptime import step_model
from tokonomics.serving.counted import counted
from tokonomics.serving.outcome import full_batches
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE
from tokonomics.traffic.tenants import by_class, load_by_time
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

Floats = NDArray[np.float64]

_MOST_PLAYERS = 12  # 4,095 groups


def unused_shares(
    bill_usd: float, usage_usd: Sequence[float], at_peak: Sequence[float], alone_usd: Sequence[float]
) -> tuple[float, ...]:
    """Return what each tenant pays on top of its usage; with the usage it sums to the bill, to the last digit."""
    if min(*usage_usd, *at_peak, *alone_usd, bill_usd) < 0:
        raise BadInput("what is to be shared out is at least 0")
    weights = next((loads for loads in (at_peak, usage_usd) if math.fsum(loads) > 0), [1.0] * len(usage_usd))
    room = [max(0.0, alone - usage) for alone, usage in zip(alone_usd, usage_usd, strict=True)]
    left = bill_usd - math.fsum(usage_usd)
    if left > math.fsum(room):  # the pool costs more than separate fleets: who would leave most unused pays most
        total = math.fsum(room)
        paid = [left * (space / total if total else 1 / len(room)) for space in room]
        return _exact(paid, usage_usd, bill_usd)
    paid = [0.0] * len(room)
    open_ = {place for place, weight in enumerate(weights) if weight > 0} or set(range(len(room)))
    while open_:
        total = math.fsum(weights[place] for place in open_) or 1.0
        still = left - math.fsum(paid)
        due = {place: still * (weights[place] / total) for place in open_}
        full = {place for place in open_ if due[place] >= room[place]}
        for place in full or open_:
            paid[place] = room[place] if full else due[place]
        if not full:
            break
        open_ -= full
    # If all tenants of the peak already pay as much as alone, the others pay the rest, by their room.
    rest = left - math.fsum(paid)
    space = [there - already for there, already in zip(room, paid, strict=True)]
    if (total := math.fsum(space)) > 0:
        paid = [already + rest * (there / total) for already, there in zip(paid, space, strict=True)]
    return _exact(paid, usage_usd, bill_usd)


def _exact(shares: list[float], usage_usd: Sequence[float], bill_usd: float) -> tuple[float, ...]:
    """Add the rounding error to the largest share, so that the parts sum to the bill."""
    largest = max(range(len(shares)), key=lambda place: shares[place])
    others = [-share for place, share in enumerate(shares) if place != largest]
    shares[largest] = math.fsum([bill_usd, *others, *(-usage for usage in usage_usd)])
    return tuple(shares)


def shapley(players: int, cost_of: Callable[[frozenset[int]], float]) -> tuple[float, ...]:
    """Return what each player adds to the cost, as the mean over every order in which they could join."""
    if not 1 <= players <= _MOST_PLAYERS:
        raise BadInput(f"the Shapley value is for 1 to {_MOST_PLAYERS} tenants, got {players}")
    cost = {frozenset[int](): 0.0}
    for size in range(1, players + 1):
        for members in combinations(range(players), size):
            cost[frozenset(members)] = cost_of(frozenset(members))
    weights = [1 / (players * math.comb(players - 1, size)) for size in range(players)]
    return tuple(
        math.fsum(
            weights[len(group)] * (cost[group | {player}] - usd) for group, usd in cost.items() if player not in group
        )
        for player in range(players)
    )


def gpu_seconds(simulation: Simulation) -> tuple[Floats, Floats]:
    """Return the seconds of a replica that each request takes in full batches: for its prompt, and for its answer.

    A replica that is busy with one request could serve fifty more in the same time, so busy time would charge a lone
    request for capacity that others leave unused; with full batches a token costs the same at every hour. A prompt
    weighs what the physics gives its computed tokens after its cached ones, an answer its tokens' part of a full step
    at its own context; both are scaled to what the closed form gives a mean request (``Outcome.load_share``).
    """
    trace, served = simulation.trace, simulation.served
    done = served.status == DONE
    computed = np.maximum(trace.input_tokens - served.cached_tokens, 1)
    curve = full_batches(simulation)
    if curve is None:
        return np.zeros(len(trace)), np.zeros(len(trace))
    full = curve.capacity()
    # A fleet cannot have worked longer than was paid for, whatever the mean request says.
    total_s = min(float(done.sum()) / full.rate, counted(simulation).paid_s)
    steps = step_model(simulation.deployment).with_engine(None)
    prompts = np.where(done, steps.prefill(computed, served.cached_tokens), 0.0)
    context = trace.input_tokens + trace.output_tokens / 2
    answers = np.where(done, trace.output_tokens * steps.decode(full.batch, context), 0.0)
    prompt_share = full.prefill_share if answers.any() else 1.0
    return _scaled(prompts, total_s * prompt_share), _scaled(answers, total_s * (1 - prompt_share))


def _scaled(weights: Floats, total: float) -> Floats:
    whole = float(weights.sum())
    return weights * (total / whole) if whole > 0 else weights


FULLEST = 0.9  # share of the highest load that counts as peak, so that no single stretch decides who pays


class ClassCost(Noun):
    """One class's part of a bill; the parts sum to the bill."""

    name: str
    tokens: NonNegativeInt  # prompts and answers that were delivered
    used_usd: NonNegativeFloat
    unused_usd: float
    usd: float
    usd_per_mtok: float | None  # of delivered tokens; None if there are none


def class_bills(simulation: Simulation, bill_usd: float, times: float = 1.0) -> tuple[ClassCost, ...]:
    """Split a bill among the classes of a simulation by their use; the bill pays for ``times`` such simulations."""
    trace, done = simulation.trace, simulation.served.status == DONE
    prompts_s, answers_s = gpu_seconds(simulation)
    worked_s, paid_s = prompts_s + answers_s, counted(simulation).paid_s
    places = by_class(trace)
    used = [bill_usd * float(worked_s[at].sum()) / paid_s for at in places.values()]
    # The only known cap is the whole bill.
    as_tenants = replace(trace, tenant=trace.service, tenants=tuple(one.name for one in trace.classes))
    unused = unused_shares(bill_usd, used, at_peak(as_tenants, worked_s, list(places)), [bill_usd] * len(used))
    found = []
    for (place, at), own, rest in zip(places.items(), used, unused, strict=True):
        answered = at[done[at]]
        delivered = trace.input_tokens[answered].sum(dtype="i8") + trace.output_tokens[answered].sum(dtype="i8")
        tokens = round(float(delivered) * times)
        found.append(
            ClassCost(
                name=trace.classes[place].name,
                tokens=tokens,
                used_usd=own,
                unused_usd=rest,
                usd=own + rest,
                usd_per_mtok=(own + rest) / tokens * TOKENS_PER_MTOK if tokens else None,
            )
        )
    return tuple(found)


def at_peak(trace: Trace, used_s: Floats, senders: Sequence[int]) -> list[float]:
    """Return each tenant's load in the fullest of 24 stretches of the trace: those within a tenth of the highest."""
    load = load_by_time(trace, used_s)
    total = load.sum(axis=0)
    fullest = total >= FULLEST * total.max()
    return [float(load[sender, fullest].sum()) for sender in senders]


_MOST = 1e6  # dollars per Mtok: a dollar a token is beyond any price list


class SellPrice(Noun):
    """Dollars per Mtok that customers pay."""

    input: NonNegativeFloat
    output: NonNegativeFloat
    cached: NonNegativeFloat | None = None  # of prompt tokens found in the cache; None: sold as input

    def revenue(self, input_tokens: float, output_tokens: float, cached_tokens: float = 0.0) -> float:
        """Return the dollars for these tokens; the cached ones are among the input tokens."""
        cached = self.input if self.cached is None else self.cached
        computed = self.input * (input_tokens - cached_tokens) + cached * cached_tokens
        return (computed + self.output * output_tokens) / TOKENS_PER_MTOK


class SellTerms(Noun):
    """A price that is asked, or the margin that the price must give."""

    price: SellPrice | None = None
    margin: float | None = Field(default=None, ge=0, lt=1)

    def price_over(self, input: float, output: float, cached: float | None = None) -> SellPrice:
        """Return the price if a Mtok of input, of output and of cached input costs this much."""
        if self.price is not None:
            return self.price
        keeps = 1 - (self.margin or 0.0)
        return SellPrice(input=input / keeps, output=output / keeps, cached=None if cached is None else cached / keeps)


def sell_terms(sell: str | None, margin: float | None) -> SellTerms | None:
    """Read ``0.20/0.80`` (input/output), one price for both, or a third for cached input; or a margin; None: none."""
    if sell is not None and margin is not None:
        raise BadInput(f"the price is given twice: {option('sell')} and {option('margin')}", field="sell")
    if margin is not None:
        return SellTerms(margin=margin)
    if sell is None:
        return None
    parts = sell.split("/")
    try:
        dollars = [float(part) for part in parts]
    except ValueError:
        dollars = []
    if len(dollars) not in (1, 2, 3) or not all(0 <= price <= _MOST for price in dollars) or not any(dollars):
        fix = (
            "Write dollars per million input and output tokens, such as 0.20/0.80, or with cached input 0.20/0.80/0.05."
        )
        raise BadInput(f"'{shorten(sell)}' is not a price", field="sell", fix=fix)
    input, output, cached = (*dollars, None)[:3] if len(dollars) > 1 else (*dollars, *dollars, None)
    return SellTerms(price=SellPrice(input=input, output=output, cached=cached))


class Sale(Noun):
    """Revenue and cost over the same time."""

    revenue_usd: NonNegativeFloat
    cost_usd: NonNegativeFloat

    @computed_field  # type: ignore[prop-decorator]
    @property
    def margin_usd(self) -> float:
        return self.revenue_usd - self.cost_usd

    @computed_field  # type: ignore[prop-decorator]
    @property
    def margin_share(self) -> float | None:
        """Return the margin as a share of the revenue; None if nothing is earned."""
        return self.margin_usd / self.revenue_usd if self.revenue_usd > 0 else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def break_even_share(self) -> float | None:
        """Return the share of this volume at which revenue equals cost; None if nothing is earned."""
        return self.cost_usd / self.revenue_usd if self.revenue_usd > 0 else None


def break_even(sale: Sale, tokens_per_s: float, load: float | None) -> tuple[float | None, float | None]:
    """Return the tokens a day and the share of the capacity at which a sale pays, from its current volume and load.

    Each is None if nothing is earned; the share also if the load is not known.
    """
    share = sale.break_even_share
    if share is None:
        return None, None
    return share * tokens_per_s * DAY_S, None if load is None else share * load


class FleetSale(Noun):
    """What a planned fleet earns in a month, and the volume from which it is profitable."""

    model: str
    usd_per_mtok: SellPrice
    month: Sale
    mtok: Sale  # of a million tokens, prompts and answers together
    break_even_requests_per_s: NonNegativeFloat | None
    break_even_tokens_per_day: NonNegativeFloat | None  # prompts and answers
    break_even_load: NonNegativeFloat | None  # share of the fleet's capacity; above 1 it loses money however full it is


def fleet_sale(
    model: str,
    price: SellPrice,
    usd_per_month: float,
    rate: float,
    lengths: tuple[float, float],
    load: float,
    cached_tokens: float = 0.0,
) -> FleetSale:
    """Return the sale of ``rate`` requests a second of these lengths, which are ``load`` of the fleet's capacity.

    ``cached_tokens`` of the input tokens are found in the cache.
    """
    seconds = HOURS_PER_MONTH * SECONDS_PER_HOUR
    month = Sale(revenue_usd=price.revenue(*lengths, cached_tokens) * rate * seconds, cost_usd=usd_per_month)
    mtok = rate * sum(lengths) * seconds / TOKENS_PER_MTOK
    share = month.break_even_share
    tokens_per_day, at_load = break_even(month, rate * sum(lengths), load)
    return FleetSale(
        model=model,
        usd_per_mtok=price,
        month=month,
        mtok=Sale(revenue_usd=month.revenue_usd / mtok, cost_usd=month.cost_usd / mtok),
        break_even_requests_per_s=None if share is None else share * rate,
        break_even_tokens_per_day=tokens_per_day,
        break_even_load=at_load,
    )
