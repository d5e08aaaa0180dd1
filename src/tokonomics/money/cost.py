"""Compute what a million tokens costs on machines paid by the hour.

    usd_per_mtok = usd_per_hour × gpus ÷ (tokens_per_second × utilization × 3600) × 1e6

Utilisation is the share of full speed at which the fleet really produced tokens. There are two bases, always named:
**reservation** divides the whole bill by the tokens made (idle time is paid for); **usage** counts only the busy share,
which is what a per-second platform would charge. Compare with an API on reservation.
"""

import math

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput, shorten
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK


class Cost(Noun):
    """The cost equation solved for every form people ask for."""

    usd_per_hour: PositiveFloat  # all GPUs together
    tokens_per_second: PositiveFloat  # at full speed
    utilization: float = Field(gt=0, le=1)
    usd_per_token: PositiveFloat
    usd_per_mtok: PositiveFloat
    usd_per_mtok_usage: PositiveFloat
    tokens_per_usd: PositiveFloat
    tokens_per_month: PositiveFloat
    usd_per_month: PositiveFloat


class CostLine(Noun):
    """One component of a bill: what it is, how much of it, at what price."""

    name: str
    quantity: NonNegativeFloat
    unit: str
    usd_per_unit: NonNegativeFloat

    @property
    def usd(self) -> float:
        return self.quantity * self.usd_per_unit


class CostTree(Noun):
    """A bill as lines and branches; every total is the sum of its parts."""

    name: str
    lines: tuple[CostLine, ...] = ()
    branches: tuple["CostTree", ...] = ()

    @property
    def usd(self) -> float:
        return math.fsum([line.usd for line in self.lines] + [branch.usd for branch in self.branches])

    def line(self, name: str) -> CostLine:
        """Return the line with that name on this level."""
        return next(line for line in self.lines if line.name == name)


def replica_hour(name: str, replicas: int, usd_per_replica_hour: float, *more: CostLine) -> CostTree:
    """Return the cost of an hour of some replicas, with more lines."""
    line = CostLine(name="replicas", quantity=replicas, unit="hour", usd_per_unit=usd_per_replica_hour)
    return CostTree(name=name, lines=(line, *more))


class BeforeAfter(Noun):
    """Dollars an hour before and after a change."""

    before: CostTree
    after: CostTree

    @property
    def saved_usd(self) -> float:
        """Return the dollars saved an hour; negative if the change costs more than it saves."""
        return self.before.usd - self.after.usd

    @property
    def saved_share(self) -> float:
        return self.saved_usd / self.before.usd if self.before.usd else 0.0


class LoadStep(Noun):
    """A number of hours at a share of full speed; at zero the machine waits and is paid for."""

    hours: float = Field(gt=0, le=1e6)
    utilization: float = Field(ge=0, le=1)


def cost(usd_per_hour: float, tokens_per_second: float, utilization: float = 1.0, gpus: int = 1) -> Cost:
    """Solve the cost equation for ``gpus`` GPUs at ``usd_per_hour`` each."""
    require_positive("usd_per_hour", usd_per_hour)
    require_positive("tokens_per_second", tokens_per_second)
    require_positive("gpus", gpus)
    require_utilization(utilization)
    fleet_usd_per_hour = usd_per_hour * gpus
    tokens_per_hour = tokens_per_second * utilization * SECONDS_PER_HOUR
    usd_per_token = fleet_usd_per_hour / tokens_per_hour
    return Cost(
        usd_per_hour=fleet_usd_per_hour,
        tokens_per_second=tokens_per_second,
        utilization=utilization,
        usd_per_token=usd_per_token,
        usd_per_mtok=usd_per_token * TOKENS_PER_MTOK,
        usd_per_mtok_usage=fleet_usd_per_hour / (tokens_per_second * SECONDS_PER_HOUR) * TOKENS_PER_MTOK,
        tokens_per_usd=1 / usd_per_token,
        tokens_per_month=tokens_per_hour * HOURS_PER_MONTH,
        usd_per_month=fleet_usd_per_hour * HOURS_PER_MONTH,
    )


def parse_load(text: str) -> list[LoadStep]:
    """Read ``8x0.99,16x0``: eight hours at 99 % of full speed, then sixteen idle ones."""
    steps = []
    for part in text.split(","):
        hours, _, share = part.strip().lower().partition("x")
        try:
            steps.append(LoadStep(hours=float(hours), utilization=float(share)))
        except ValueError:
            fix = "Write such as 8x0.99,16x0: eight hours at 99 %, sixteen idle."
            raise BadInput(f"'{shorten(part)}' is not HOURSxUTILIZATION", field="load", fix=fix) from None
    return steps


class LoadCost(Noun):
    """What a load profile costs on the given fleet, and on the smallest fleet that serves its busiest hours."""

    load: str
    mean_utilization: PositiveFloat
    usd_per_mtok: PositiveFloat
    working_usd: NonNegativeFloat
    idle_usd: NonNegativeFloat
    gpus_for_peak: PositiveInt  # whole GPUs that the busiest hours need at full speed
    usd_per_mtok_for_peak: PositiveFloat


def load_cost(load: str, usd_per_hour: float, tokens_per_second: float, gpus: int = 1) -> LoadCost:
    """Price a load profile such as ``8x0.99,16x0``: the bill is for all hours, the tokens for the busy ones."""
    profile = parse_load(load)
    hours = math.fsum(step.hours for step in profile)
    busy = math.fsum(step.hours * step.utilization for step in profile)
    if busy <= 0:
        raise BadInput("the load profile never does any work: no tokens to divide the bill by", field="load")
    total = cost(usd_per_hour, tokens_per_second, busy / hours, gpus)
    needed = max(1, math.ceil(gpus * max(step.utilization for step in profile) - 1e-9))
    return LoadCost(
        load=load,
        mean_utilization=total.utilization,
        usd_per_mtok=total.usd_per_mtok,
        working_usd=busy * total.usd_per_hour,
        idle_usd=max(0.0, hours - busy) * total.usd_per_hour,
        gpus_for_peak=needed,
        usd_per_mtok_for_peak=total.usd_per_mtok * needed / gpus,
    )


class Needed(Noun):
    """The value that each term of the equation needs to reach a price, with the others unchanged."""

    usd_per_mtok: PositiveFloat
    tokens_per_second: PositiveFloat
    utilization: PositiveFloat  # above 1 the price is out of reach at this speed
    usd_per_hour: PositiveFloat  # one GPU


def needed_for(
    usd_per_mtok: float, usd_per_hour: float, tokens_per_second: float, utilization: float = 1.0, gpus: int = 1
) -> Needed:
    """Solve the cost equation backwards, for each of its terms."""
    require_positive("target", usd_per_mtok)
    now = cost(usd_per_hour, tokens_per_second, utilization, gpus)
    factor = now.usd_per_mtok / usd_per_mtok
    return Needed(
        usd_per_mtok=usd_per_mtok,
        tokens_per_second=tokens_per_second * factor,
        utilization=utilization * factor,
        usd_per_hour=usd_per_hour / factor,
    )


def usd_per_request(usd_per_mtok: float, input_tokens: float, output_tokens: float) -> float:
    """Return the price of a request at a blended price: every token, prompt or answer, costs the same."""
    return usd_per_mtok / TOKENS_PER_MTOK * (input_tokens + output_tokens)


class TokenPrices(Noun):
    """Dollars per Mtok by kind of token; each times its tokens, they sum to the bill."""

    input: NonNegativeFloat  # for computed prompt tokens
    output: NonNegativeFloat
    blended: NonNegativeFloat
    cached: NonNegativeFloat | None = None
    """For prompt tokens found in the prefix cache; None: there is no cache, or nobody asked."""


def split_by_gpu_time(
    usd_per_second: float, rate: float, input_tokens: float, output_tokens: float, prefill_share: float
) -> TokenPrices:
    """Charge prompt tokens for prefill's share of the busy time and answer tokens for the rest.

    ``rate`` requests a second of the given lengths cost ``usd_per_second``. Idle time follows the same shares, so input
    × input price + output × output price is the bill.
    """
    per_request = usd_per_second / rate
    return TokenPrices(
        input=per_request * prefill_share / input_tokens * TOKENS_PER_MTOK,
        output=per_request * (1 - prefill_share) / output_tokens * TOKENS_PER_MTOK,
        blended=per_request / (input_tokens + output_tokens) * TOKENS_PER_MTOK,
    )


def with_cached(prices: TokenPrices, input_tokens: float, cached_tokens: float, attending: float) -> TokenPrices:
    """Return prices that charge cached prompt tokens separately from computed ones.

    A prompt has ``input_tokens``, of which ``cached_tokens`` are found in the cache. A cached token is not computed,
    but the computed ones attend to it: ``attending`` is what one cached token adds to the time of computing them, as a
    share of it. With m tokens computed and c cached, the prompts' dollars are split

        computed : cached = 1 : attending × c

    so with c = 0 the price of input stays the same; the caller then decides what a cached token would cost with
    ``attending`` (``sizing.bill`` uses a prompt of which half is cached). Answers attend to computed and cached tokens
    alike, and output pays for both. KV that waits for its next prompt has no price of its own: it uses memory that
    running requests leave free.
    """
    prompts = prices.input * input_tokens
    computing = prompts / (1 + attending * cached_tokens)
    computed_tokens = max(input_tokens - cached_tokens, 1.0)
    return prices.model_copy(update={"input": computing / computed_tokens, "cached": computing * attending})


def saving(before: float, after: float) -> float:
    """Return the share of the old bill that the new one saves; negative if it is more expensive."""
    if not _TINIEST <= before <= _ABSURD:
        raise BadInput(f"the bill compared with must be a positive number, got {before}")
    return 1 - after / before


def require_positive(field: str, value: float) -> float:
    """Return an input that is positive and below any real machine's; refuse others."""
    if value > _ABSURD:
        raise BadInput(f"is beyond any machine: the largest accepted is {_ABSURD:.0e}", field=field)
    if not value >= _TINIEST:
        raise BadInput(f"must be a positive number, got {value}", field=field)
    return value


def require_share(field: str, value: float) -> float:
    """Return an input from 0 to 1; refuse others."""
    if not 0 <= value <= 1:
        raise BadInput(f"must be a share from 0 to 1, got {value:g}", field=field)
    return value


def require_utilization(value: float) -> float:
    if not _TINIEST <= value <= 1:
        raise BadInput(
            f"must be above 0 and at most 1, got {value}",
            field="utilization",
            fix=f"For {value:g} % write {value / 100:g}." if 1 < value <= 100 else None,
        )
    return value


_ABSURD = 1e18
_TINIEST = 1e-18
"""Inputs outside this range are typing errors: every figure of a real fleet is many orders of magnitude inside."""
