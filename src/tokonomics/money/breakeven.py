"""Find the volume from which self-hosting is cheaper than an API's price per token.

An API's bill is a line through zero. A fleet's is a staircase: machines are bought whole, each holds some replicas, and
a replica holds some tokens a month; of several kinds of machines the cheapest at each volume counts. On one stair the
fleet is cheaper from the volume where its cost meets the line, so every crossing is found exactly, stair by stair, up
to the volume beyond which arithmetic proves that the fleet stays cheaper.

People, on-call, upgrades and overheads that grow with the machines are extras. They are the same for all hardware, so
they change no pick. They change the full cost of a million tokens, and what share of it a saving is (``Upkeep``).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree, cost, require_positive
from tokonomics.types import Noun, Same
from tokonomics.units import HOURS_PER_MONTH, TOKENS_PER_MTOK, count, percent, usd

MOST_STAIRS = 100_000  # purchases of one kind beyond which no break-even is searched
_MOST_WINDOWS = 50
_SAME = 1e-9  # relative: a rounding error must not cost a machine

Floats = NDArray[np.float64]


class ReplicaHolds(Noun):
    """What each replica of a fleet holds; it grows with their number, because larger fleets even out bursts."""

    replicas: PositiveInt  # the smallest fleet for which this holds
    tokens_per_month: PositiveFloat  # of each


class FleetKind(Noun):
    """Machines of one kind; a fleet grows by one purchase of them at a time."""

    name: str
    gpus_per_purchase: PositiveInt
    replicas_per_purchase: PositiveInt  # the smallest number that fills whole machines
    usd_per_purchase: PositiveFloat  # a month of the machines of one purchase
    holds: tuple[ReplicaHolds, ...] = Field(min_length=1)  # by fleet size, the first from one replica on
    spare: NonNegativeInt = 0  # replicas bought beyond what the volume needs

    def capacity(self, replicas: int) -> float:
        """Return the tokens a month that these replicas hold, without spare ones."""
        holds = next(hold for hold in reversed(self.holds) if hold.replicas <= max(1, replicas))
        return max(0, replicas) * holds.tokens_per_month

    def replicas(self, tokens_per_month: float) -> int:
        """Return the fewest replicas that hold the volume, without spare ones."""
        ends = [hold.replicas - 1 for hold in self.holds[1:]]
        for hold, last in zip(self.holds, [*ends, math.inf], strict=True):
            needed = max(hold.replicas, math.ceil(tokens_per_month / hold.tokens_per_month * (1 - _SAME)))
            if needed <= last:
                return needed
        raise AssertionError("the last size has no end")

    def purchases(self, tokens_per_month: float) -> int:
        """Return the whole purchases that the volume needs, with the spare replicas."""
        return math.ceil((self.replicas(tokens_per_month) + self.spare) / self.replicas_per_purchase)

    def holding(self, replicas: int, tokens_per_month: float) -> "FleetKind":
        """Return the same machines, knowing that these replicas hold this volume: larger fleets hold as much each."""
        each = tokens_per_month / replicas
        if self.capacity(replicas) >= tokens_per_month:
            return self
        sizes = {hold.replicas: hold.tokens_per_month for hold in self.holds}
        raised = {size: held if size < replicas else max(each, held) for size, held in sizes.items()}
        return self._with({**raised, replicas: each})

    def missing(self, replicas: int, tokens_per_month: float) -> "FleetKind":
        """Return the same machines, knowing that exactly this number of replicas does not hold this volume."""
        sizes = {hold.replicas: hold.tokens_per_month for hold in self.holds}
        after = sizes.get(replicas + 1, self.capacity(replicas) / replicas)
        return self._with({**sizes, replicas: tokens_per_month / replicas * (1 - 1e-6), replicas + 1: after})

    def _with(self, sizes: Mapping[int, float]) -> "FleetKind":
        holds = (ReplicaHolds(replicas=size, tokens_per_month=sizes[size]) for size in sorted(sizes))
        return self.model_copy(update={"holds": tuple(holds)})

    def stairs(self, until: float) -> tuple[Floats, Floats]:
        """Return where each stair ends (tokens a month) and what it costs, up to the one that holds ``until``."""
        last = self.purchases(until)
        if last > MOST_STAIRS:
            raise BadInput(f"{count(until)} tokens a month take more than {MOST_STAIRS:,} purchases of {self.name}")
        bought = np.arange(self.purchases(0.0), last + 1)
        replicas = bought * self.replicas_per_purchase - self.spare
        sizes = np.array([hold.replicas for hold in self.holds])
        each_holds = np.array([hold.tokens_per_month for hold in self.holds])
        held = each_holds[np.searchsorted(sizes, np.maximum(replicas, 1), side="right") - 1]
        ends = np.maximum.accumulate(np.maximum(replicas, 0) * held)
        return ends, np.asarray(bought * self.usd_per_purchase, dtype=np.float64)

    @property
    def usd_per_mtok_full(self) -> float:
        """Return the price of one more purchase over the tokens it holds: no volume is cheaper per token."""
        most = max(hold.tokens_per_month for hold in self.holds)
        return self.usd_per_purchase / (self.replicas_per_purchase * most) * TOKENS_PER_MTOK

    def scaled(self, capacity: float = 1.0, price: float = 1.0) -> "FleetKind":
        """Return the same machines with capacity and price multiplied."""
        slower = self._with({hold.replicas: hold.tokens_per_month * capacity for hold in self.holds})
        return slower.model_copy(update={"usd_per_purchase": self.usd_per_purchase * price})


def kind_of_equation(
    name: str, usd_per_hour: float, gpus: int, tokens_per_second: float, utilization: float
) -> FleetKind:
    """Return replicas at a price per GPU-hour, whose speed and utilisation are known or assumed."""
    replica = cost(usd_per_hour, tokens_per_second, utilization, gpus)
    return FleetKind(
        name=name,
        gpus_per_purchase=gpus,
        replicas_per_purchase=1,
        usd_per_purchase=replica.usd_per_month,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=replica.tokens_per_month),),
    )


class Extra(Noun):
    """A cost of self-hosting beside the machines: a sum per month, and a share of the machines' bill."""

    name: str
    usd_per_month: NonNegativeFloat = 0.0
    share_of_machines: NonNegativeFloat = 0.0

    def line(self, machines_usd: float, unit: str, months: float = 1.0) -> CostLine:
        """Return what it adds over some months in which the machines cost ``machines_usd``."""
        price = self.usd_per_month * months + self.share_of_machines * machines_usd
        return CostLine(name=self.name, quantity=1, unit=unit, usd_per_unit=price)


def engineers(number: float, usd_per_month: float) -> Extra:
    """Return the cost of the people who run it."""
    require_positive("engineers", number)
    require_positive("engineer_usd_per_month", usd_per_month)
    return Extra(name=f"{number:g} engineer{'' if number == 1 else 's'}", usd_per_month=number * usd_per_month)


class SelfHosted(Noun):
    """A fleet of one's own: at each volume the cheapest kind of machine, plus the extras."""

    kinds: tuple[FleetKind, ...] = Field(min_length=1)
    extras: tuple[Extra, ...] = ()
    not_planned_for: tuple[PositiveFloat, ...] = ()  # volumes at which bills meet, but no hardware was planned

    @property
    def fixed_usd(self) -> float:
        return math.fsum(extra.usd_per_month for extra in self.extras)

    @property
    def per_machine_usd(self) -> float:
        """Return the dollars on the bill for each dollar of machines."""
        return 1.0 + math.fsum(extra.share_of_machines for extra in self.extras)

    @property
    def usd_per_mtok_full(self) -> float:
        """Return the lowest possible price of one more token: full machines of the best kind."""
        return min(kind.usd_per_mtok_full for kind in self.kinds) * self.per_machine_usd

    def kind(self, tokens_per_month: float) -> FleetKind:
        """Return the cheapest kind at a volume."""
        return min(self.kinds, key=lambda kind: kind.purchases(tokens_per_month) * kind.usd_per_purchase)

    def usd(self, tokens_per_month: float) -> float:
        """Return the monthly bill at a volume."""
        return self.bill(tokens_per_month).usd

    def bill(self, tokens_per_month: float) -> CostTree:
        """Return the monthly bill at a volume, line by line."""
        kind = self.kind(tokens_per_month)
        hours = kind.purchases(tokens_per_month) * kind.gpus_per_purchase * HOURS_PER_MONTH
        usd_per_hour = kind.usd_per_purchase / (kind.gpus_per_purchase * HOURS_PER_MONTH)
        machines = CostLine(name=MACHINES, quantity=hours, unit="GPU-hour", usd_per_unit=usd_per_hour)
        extras = (extra.line(machines.usd, "month") for extra in self.extras)
        return CostTree(name="self-hosted, one month", lines=(machines, *extras))

    def stairs(self, until: float) -> tuple[Floats, Floats]:
        """Return where each stair of the bill ends and what it costs: the lower envelope of all kinds."""
        stairs = [kind.stairs(until) for kind in self.kinds]
        ends = np.unique(np.concatenate([own_ends for own_ends, _ in stairs] + [np.array([until])]))
        ends = ends[(ends > 0) & (ends <= until * (1 + _SAME))]
        bills = np.full(len(ends), math.inf)
        for own_ends, own_bills in stairs:
            place = np.searchsorted(own_ends, ends * (1 - _SAME), side="left")
            inside = place < len(own_ends)
            bills[inside] = np.minimum(bills[inside], own_bills[place[inside]])
        return ends, bills * self.per_machine_usd + self.fixed_usd

    def scaled(self, capacity: float = 1.0, price: float = 1.0) -> "SelfHosted":
        """Return the fleet with its machines' capacity and price multiplied; the extras do not change."""
        return self.model_copy(update={"kinds": tuple(kind.scaled(capacity, price) for kind in self.kinds)})


MACHINES = "machines"


class VolumeWindow(Noun):
    """Volumes at which self-hosting is cheaper; the last window has no end."""

    tokens_per_month: PositiveFloat
    until_tokens_per_month: PositiveFloat | None


class BreakEven(Noun):
    """Where the bills of a fleet and of an API meet."""

    api: str
    api_usd_per_mtok: NonNegativeFloat
    full_usd_per_mtok: PositiveFloat  # self-hosting at its best: full machines, fixed costs not counted
    first_tokens_per_month: PositiveFloat | None  # the volume at which self-hosting is first cheaper
    stays_tokens_per_month: PositiveFloat | None  # the volume from which it stays cheaper on every stair
    windows: tuple[VolumeWindow, ...]  # where it is cheaper; if there are very many, only the first ones and the last
    never: str | None  # why there is no break-even

    @property
    def volumes(self) -> tuple[float, ...]:
        """Return the first and the last volume, in tokens a month; nothing if the bills never meet."""
        both = (self.first_tokens_per_month, self.stays_tokens_per_month)
        return tuple(volume for volume in both if volume is not None)


def break_even(hosted: SelfHosted, api: str, usd_per_mtok: float) -> BreakEven:
    """Return every volume at which the cheaper side changes."""
    full = hosted.usd_per_mtok_full
    windows: list[VolumeWindow] = []
    never = None
    if usd_per_mtok <= full * (1 + _SAME):
        never = f"a full machine makes a million tokens for {usd(full)} at best, the API asks {usd(usd_per_mtok)}: "
        never += "more volume does not help"
    elif (until := _safe_from(hosted, usd_per_mtok)) is None:
        never = f"full machines come to {usd(full)} a million tokens against {usd(usd_per_mtok)}: "
        never += f"so close that it would take more than {MOST_STAIRS:,} purchases"
    else:
        # A kind whose full machines cost more than the API is never below its line and crosses nowhere.
        able = [kind for kind in hosted.kinds if kind.usd_per_mtok_full * hosted.per_machine_usd < usd_per_mtok]
        kept = tuple(kind for kind in able if kind.purchases(until) <= MOST_STAIRS)
        stairs = hosted.model_copy(update={"kinds": kept}).stairs(until)
        windows = _windows(*stairs, usd_per_mtok / TOKENS_PER_MTOK)
    return BreakEven(
        api=api,
        api_usd_per_mtok=usd_per_mtok,
        full_usd_per_mtok=full,
        first_tokens_per_month=windows[0].tokens_per_month if windows else None,
        stays_tokens_per_month=windows[-1].tokens_per_month if windows else None,
        windows=tuple(windows if len(windows) <= _MOST_WINDOWS else [*windows[: _MOST_WINDOWS - 1], windows[-1]]),
        never=never,
    )


def _safe_from(hosted: SelfHosted, usd_per_mtok: float) -> float | None:
    """Return a volume beyond which the fleet is cheaper on every stair; None if nobody buys that much.

    On the stair of the k-th purchase of a kind (price m, holding c tokens) the bill is highest at its start, where the
    API costs what k − 1 purchases hold: with fixed costs F, k·m + F ≤ price·(k − 1)·c from k = (F + price·c) / (price·c
    − m) on; a spare replica holds nothing and moves the start.
    """
    price, nearest = usd_per_mtok / TOKENS_PER_MTOK, math.inf
    for kind in hosted.kinds:
        tail = kind.holds[-1]
        revenue = price * kind.replicas_per_purchase * tail.tokens_per_month
        gain = revenue - kind.usd_per_purchase * hosted.per_machine_usd
        if gain <= revenue * _SAME:
            continue
        lost = revenue + price * kind.spare * tail.tokens_per_month
        enough = math.ceil((hosted.fixed_usd + lost) / gain) + 1
        measured = math.ceil((tail.replicas + kind.spare) / kind.replicas_per_purchase) + 1
        bought = max(enough, measured)
        if bought <= MOST_STAIRS:
            nearest = min(nearest, kind.capacity(bought * kind.replicas_per_purchase - kind.spare))
    return nearest if math.isfinite(nearest) else None


def _windows(ends: Floats, bills: Floats, usd_per_token: float) -> list[VolumeWindow]:
    """Return the stretches in which the line is above the stairs; the last has no end."""
    cheaper_from = np.maximum(np.concatenate([[0.0], ends[:-1]]), bills / usd_per_token)
    merged: list[list[float]] = []
    for begins, ends_at in zip(cheaper_from.tolist(), ends.tolist(), strict=True):
        if begins >= ends_at:
            continue
        if merged and begins <= merged[-1][1] * (1 + _SAME):
            merged[-1][1] = ends_at
        else:
            merged.append([begins, ends_at])
    until = [*(end for _, end in merged[:-1]), None]
    pairs = zip(merged, until, strict=True)
    return [VolumeWindow(tokens_per_month=begin, until_tokens_per_month=end) for (begin, _), end in pairs]


FILL, SPEED, MACHINE_PRICE, API = "how full machines are", "speed", "price of the machines", "price of the API"


class Swing(Noun):
    """The break-even if one assumption were different."""

    what: str
    found: BreakEven
    assumption: str = ""  # what is changed; empty in documents of older versions
    factor: float = 1.0  # factor on what is assumed


FILLED = (0.7, 0.5, 0.3)  # shares of what the SLO allows that real traffic may fill
PRICED = (0.5, 0.8, 1.25, 2.0)


@lru_cache(maxsize=64)
def _scaled(hosted: Same[SelfHosted], capacity: float, price: float) -> SelfHosted:
    """Scale a fleet; cached, because every API is compared with the same fleets."""
    return hosted.value.scaled(capacity, price)


def swings(
    hosted: SelfHosted, api: str, usd_per_mtok: float, speeds: Sequence[float] = (), filled: Sequence[float] = FILLED
) -> list[Swing]:
    """Return the break-even with less filled fleets, other prices of machines and tokens, or other speeds."""

    def at(assumption: str, factor: float, what: str, **scaled: float) -> Swing:
        capacity, price, token = (scaled.get(name, 1.0) for name in ("capacity", "price", "token"))
        found = break_even(_scaled(Same(hosted), capacity, price), api, usd_per_mtok * token)
        return Swing(what=what, found=found, assumption=assumption, factor=factor)

    def off(factor: float) -> str:
        return f"{'−' if factor < 1 else '+'}{percent(abs(factor - 1))}"

    full = "of what they hold"
    return [
        *(at(FILL, share, f"machines filled to {percent(share)} {full}", capacity=share) for share in filled),
        *(at(SPEED, speed, f"speed {off(speed)} (80 % interval)", capacity=speed) for speed in speeds),
        *(at(MACHINE_PRICE, factor, f"machines at {factor:g}× the price", price=factor) for factor in PRICED),
        *(at(API, factor, f"the API at {factor:g}× the price", token=factor) for factor in PRICED),
    ]


class CostAt(Noun):
    """Both sides of the comparison at one volume."""

    tokens_per_month: PositiveFloat
    machines: str
    gpus: PositiveInt
    replicas: PositiveInt  # spare ones included
    hosted: CostTree
    hosted_usd: PositiveFloat
    api_usd: dict[str, NonNegativeFloat]
    cheapest: str  # the API's name, or ``self-hosted``; one perhaps in the region if none is known there


SELF_HOSTED = "self-hosted"


def bill_at(
    hosted: SelfHosted, apis: dict[str, float], tokens_per_month: float, perhaps_there: Collection[str] = ()
) -> CostAt:
    """Return the bill of each side; ``apis`` are dollars per million tokens by name.

    Those that are only perhaps in the region asked for have a bill, but are not the cheapest unless all are like that.
    """
    require_positive("tokens_per_month", tokens_per_month)
    kind, tree = hosted.kind(tokens_per_month), hosted.bill(tokens_per_month)
    asked = {name: price * tokens_per_month / TOKENS_PER_MTOK for name, price in apis.items()}
    counted = {name: dollars for name, dollars in asked.items() if name not in perhaps_there} or asked
    return CostAt(
        tokens_per_month=tokens_per_month,
        machines=kind.name,
        gpus=kind.purchases(tokens_per_month) * kind.gpus_per_purchase,
        replicas=kind.replicas(tokens_per_month) + kind.spare,
        hosted=tree,
        hosted_usd=tree.usd,
        api_usd=asked,
        cheapest=min({**counted, SELF_HOSTED: tree.usd}.items(), key=lambda bill: bill[1])[0],
    )


def rising(found: Sequence[tuple[int, float]]) -> tuple[ReplicaHolds, ...]:
    """Return measured sizes (replicas, tokens a month of each) without random dips: more replicas never hold less."""
    kept: list[ReplicaHolds] = []
    for replicas, tokens in sorted(found):
        if not kept or tokens > kept[-1].tokens_per_month:
            kept.append(ReplicaHolds(replicas=replicas, tokens_per_month=tokens))
    return tuple(kept)


class Upkeep(Noun):
    """A bill of machines with people and overheads, over the same time."""

    lines: CostTree  # the extras
    usd: NonNegativeFloat
    machines_usd: NonNegativeFloat
    total_usd: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat | None  # the whole bill over all tokens; None if there are none
    usd_per_mtok_machines: NonNegativeFloat | None

    @property
    def share(self) -> float:
        """Return the extras' share of the whole bill."""
        return self.usd / self.total_usd if self.total_usd else 0.0


def upkeep(extras: Sequence[Extra], machines_usd: float, tokens: float, months: float = 1.0) -> Upkeep | None:
    """Return people and overheads over the months in which machines cost ``machines_usd``; None if none are named."""
    if not extras:
        return None
    lines = CostTree(
        name="people and overheads", lines=tuple(extra.line(machines_usd, "bill", months) for extra in extras)
    )
    total = machines_usd + lines.usd
    return Upkeep(
        lines=lines,
        usd=lines.usd,
        machines_usd=machines_usd,
        total_usd=total,
        usd_per_mtok=total / tokens * TOKENS_PER_MTOK if tokens > 0 else None,
        usd_per_mtok_machines=machines_usd / tokens * TOKENS_PER_MTOK if tokens > 0 else None,
    )
