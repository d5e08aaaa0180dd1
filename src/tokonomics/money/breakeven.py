"""From which volume on is a fleet of one's own cheaper than an API's price per token?

An API's bill is a line through zero. A fleet's is a staircase: machines are bought whole, each holds so many replicas,
and a replica holds so many tokens a month; of several kinds of machines the cheapest at each volume counts. On one
stair the fleet is cheaper from the volume where its cost meets the line, so every crossing is found exactly, stair by
stair, up to the volume beyond which arithmetic shows that the fleet stays cheaper.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree, cost, require_positive
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, TOKENS_PER_MTOK, count, percent, usd

MOST_STAIRS = 100_000  # beyond so many purchases of one kind nobody waits for a break-even
_MOST_WINDOWS = 50
_SAME = 1e-9  # relative: the last digit of a division must not cost a machine

Floats = NDArray[np.float64]


class ReplicaHolds(Noun):
    """What each replica of a fleet holds; larger fleets even out bursts, so it grows with their number."""

    replicas: PositiveInt  # from so many on
    tokens_per_month: PositiveFloat  # of each


class FleetKind(Noun):
    """Machines of one kind that a fleet grows by, a purchase at a time."""

    name: str
    gpus_per_purchase: PositiveInt
    replicas_per_purchase: PositiveInt  # the smallest number that fills whole machines
    usd_per_purchase: PositiveFloat  # a month of the machines of one purchase
    holds: tuple[ReplicaHolds, ...] = Field(min_length=1)  # by fleet size, rising, the first from one replica on
    spare: NonNegativeInt = 0  # replicas bought beyond what the volume takes

    def capacity(self, replicas: int) -> float:
        """Tokens a month of so many replicas, spare ones not counted."""
        each = next(hold for hold in reversed(self.holds) if hold.replicas <= max(1, replicas))
        return max(0, replicas) * each.tokens_per_month

    def replicas(self, tokens_per_month: float) -> int:
        """The fewest that hold the volume, spare ones not counted."""
        ends = [hold.replicas - 1 for hold in self.holds[1:]]
        for hold, last in zip(self.holds, [*ends, math.inf], strict=True):
            needed = max(hold.replicas, math.ceil(tokens_per_month / hold.tokens_per_month * (1 - _SAME)))
            if needed <= last:
                return needed
        raise AssertionError("the last size has no end")

    def purchases(self, tokens_per_month: float) -> int:
        """Whole purchases that the volume takes, with the spare replicas."""
        return math.ceil((self.replicas(tokens_per_month) + self.spare) / self.replicas_per_purchase)

    def stairs(self, until: float) -> tuple[Floats, Floats]:
        """Where each stair ends (tokens a month) and what it costs, up to the one that holds ``until``."""
        last = self.purchases(until)
        if last > MOST_STAIRS:
            raise BadInput(f"{count(until)} tokens a month take more than {MOST_STAIRS:,} purchases of {self.name}")
        first = self.purchases(0.0)
        bought = np.arange(first, last + 1)
        replicas = bought * self.replicas_per_purchase - self.spare
        sizes = np.array([hold.replicas for hold in self.holds])
        each_holds = np.array([hold.tokens_per_month for hold in self.holds])
        held = each_holds[np.searchsorted(sizes, np.maximum(replicas, 1), side="right") - 1]
        ends: Floats = np.maximum(replicas, 0) * held
        bills: Floats = np.asarray(bought * self.usd_per_purchase, dtype=np.float64)
        return ends, bills

    @property
    def usd_per_mtok_full(self) -> float:
        """What one more purchase costs over the tokens it holds: no volume is cheaper by the token."""
        return self.usd_per_purchase / (self.replicas_per_purchase * self.holds[-1].tokens_per_month) * TOKENS_PER_MTOK

    def scaled(self, capacity: float = 1.0, price: float = 1.0) -> "FleetKind":
        """The same machines, so many times as capable and as dear."""
        holds = tuple(
            hold.model_copy(update={"tokens_per_month": hold.tokens_per_month * capacity}) for hold in self.holds
        )
        return self.model_copy(update={"holds": holds, "usd_per_purchase": self.usd_per_purchase * price})


def kind_of_equation(
    name: str, usd_per_hour: float, gpus: int, tokens_per_second: float, utilization: float
) -> FleetKind:
    """Replicas of so many GPUs at a price per GPU-hour, whose speed and utilisation are known or assumed."""
    each = cost(usd_per_hour, tokens_per_second, utilization, gpus)
    return FleetKind(
        name=name,
        gpus_per_purchase=gpus,
        replicas_per_purchase=1,
        usd_per_purchase=each.usd_per_month,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=each.tokens_per_month),),
    )


class Extra(Noun):
    """A cost of hosting oneself beside the machines: so much a month, and a share of the machines' bill."""

    name: str
    usd_per_month: NonNegativeFloat = 0.0
    share_of_machines: NonNegativeFloat = 0.0


def engineers(number: float, usd_per_month: float) -> Extra:
    """People who run it."""
    require_positive("engineers", number)
    require_positive("engineer_usd_per_month", usd_per_month)
    return Extra(name=f"{number:g} engineer{'' if number == 1 else 's'}", usd_per_month=number * usd_per_month)


class SelfHosted(Noun):
    """One's own fleet: at each volume the cheapest kind of machine, and what comes on top."""

    kinds: tuple[FleetKind, ...] = Field(min_length=1)
    extras: tuple[Extra, ...] = ()
    not_planned_for: tuple[PositiveFloat, ...] = ()
    """Tokens a month for which no hardware was looked for, though bills meet there: some may be cheaper."""

    @property
    def fixed_usd(self) -> float:
        return math.fsum(extra.usd_per_month for extra in self.extras)

    @property
    def per_machine_usd(self) -> float:
        """Dollars on the bill for each dollar of machines."""
        return 1.0 + math.fsum(extra.share_of_machines for extra in self.extras)

    @property
    def usd_per_mtok_full(self) -> float:
        """The lowest that one more token can come to: full machines of the best kind."""
        return min(kind.usd_per_mtok_full for kind in self.kinds) * self.per_machine_usd

    def kind(self, tokens_per_month: float) -> FleetKind:
        """The cheapest kind at a volume."""
        return min(self.kinds, key=lambda each: each.purchases(tokens_per_month) * each.usd_per_purchase)

    def usd(self, tokens_per_month: float) -> float:
        """The monthly bill at a volume."""
        return self.bill(tokens_per_month).usd

    def bill(self, tokens_per_month: float) -> CostTree:
        """The monthly bill at a volume, line by line."""
        kind = self.kind(tokens_per_month)
        bought = kind.purchases(tokens_per_month)
        hours = bought * kind.gpus_per_purchase * HOURS_PER_MONTH
        machines = CostLine(
            name=MACHINES,
            quantity=hours,
            unit="GPU-hour",
            usd_per_unit=kind.usd_per_purchase / (kind.gpus_per_purchase * HOURS_PER_MONTH),
        )
        lines = [machines]
        for extra in self.extras:
            share = extra.share_of_machines * machines.usd
            lines.append(
                CostLine(name=extra.name, quantity=1, unit="month", usd_per_unit=extra.usd_per_month + share),
            )
        return CostTree(name="self-hosted, one month", lines=tuple(lines))

    def stairs(self, until: float) -> tuple[Floats, Floats]:
        """Where each stair of the bill ends and what it costs: the lower envelope of all kinds."""
        made = [kind.stairs(until) for kind in self.kinds]
        ends = np.unique(np.concatenate([each for each, _ in made] + [np.array([until])]))
        ends = ends[(ends > 0) & (ends <= until * (1 + _SAME))]
        bills = np.full(len(ends), math.inf)
        for own_ends, own_bills in made:
            place = np.searchsorted(own_ends, ends * (1 - _SAME), side="left")
            inside = place < len(own_ends)
            bills[inside] = np.minimum(bills[inside], own_bills[place[inside]])
        return ends, bills * self.per_machine_usd + self.fixed_usd

    def scaled(self, capacity: float = 1.0, price: float = 1.0) -> "SelfHosted":
        """With machines so many times as capable and as dear; people cost what they cost."""
        return self.model_copy(update={"kinds": tuple(kind.scaled(capacity, price) for kind in self.kinds)})


MACHINES = "machines"


class VolumeWindow(Noun):
    """Volumes at which self-hosting is cheaper; without an end from the last one."""

    tokens_per_month: PositiveFloat
    until_tokens_per_month: PositiveFloat | None


class BreakEven(Noun):
    """Where a fleet's bill and an API's meet."""

    api: str
    api_usd_per_mtok: NonNegativeFloat
    full_usd_per_mtok: PositiveFloat  # self-hosting at its best: full machines, fixed costs not counted
    first_tokens_per_month: PositiveFloat | None  # the volume at which self-hosting first is cheaper
    stays_tokens_per_month: PositiveFloat | None  # the volume from which on it stays cheaper, whatever the stair
    windows: tuple[VolumeWindow, ...]  # where it is cheaper; of very many only the first ones and the last
    never: str | None  # why there is none

    @property
    def volumes(self) -> tuple[float, ...]:
        """The first one and the last, in tokens a month; none where the bills never meet."""
        both = (self.first_tokens_per_month, self.stays_tokens_per_month)
        return tuple(each for each in both if each is not None)


def break_even(hosted: SelfHosted, api: str, usd_per_mtok: float) -> BreakEven:
    """Every volume at which the cheaper side changes."""
    full = hosted.usd_per_mtok_full
    known = {"api": api, "api_usd_per_mtok": usd_per_mtok, "full_usd_per_mtok": full}
    none = {"first_tokens_per_month": None, "stays_tokens_per_month": None, "windows": ()}
    if usd_per_mtok <= full * (1 + _SAME):
        why = (
            f"a full machine makes a million tokens for {usd(full)} at best, the API asks {usd(usd_per_mtok)}: "
            "more volume does not help"
        )
        return BreakEven.model_validate(known | none | {"never": why})
    until = _safe_from(hosted, usd_per_mtok)
    if until is None:
        why = (
            f"full machines come to {usd(full)} a million tokens against {usd(usd_per_mtok)}: so close that it would "
            f"take more than {MOST_STAIRS:,} purchases"
        )
        return BreakEven.model_validate(known | none | {"never": why})
    # A kind whose full machines are dearer than the API is never below its line, and makes no crossing.
    able = [kind for kind in hosted.kinds if kind.usd_per_mtok_full * hosted.per_machine_usd < usd_per_mtok]
    kept = tuple(each for each in able if each.purchases(until) <= MOST_STAIRS)
    stairs = hosted.model_copy(update={"kinds": kept}).stairs(until)
    windows = _windows(*stairs, usd_per_mtok / TOKENS_PER_MTOK)
    few = windows if len(windows) <= _MOST_WINDOWS else [*windows[: _MOST_WINDOWS - 1], windows[-1]]
    return BreakEven.model_validate(
        known
        | {
            "first_tokens_per_month": windows[0].tokens_per_month,
            "stays_tokens_per_month": windows[-1].tokens_per_month,
            "windows": tuple(few),
            "never": None,
        }
    )


def _safe_from(hosted: SelfHosted, usd_per_mtok: float) -> float | None:
    """A volume beyond which the fleet is cheaper on every stair; None where no one buys so much.

    On the stair of the k-th purchase of a kind (price m, holding c tokens) the bill is dearest at its start, where the
    API asks for what k − 1 purchases hold: with fixed costs F, k·m + F ≤ price·(k − 1)·c from
    k = (F + price·c) / (price·c − m) on; a spare replica holds nothing and moves the start.
    """
    price, found = usd_per_mtok / TOKENS_PER_MTOK, math.inf
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
            found = min(found, kind.capacity(bought * kind.replicas_per_purchase - kind.spare))
    return found if math.isfinite(found) else None


def _windows(ends: Floats, bills: Floats, usd_per_token: float) -> list[VolumeWindow]:
    """Stretches in which the line is above the stairs; the last has no end."""
    starts = np.concatenate([[0.0], ends[:-1]])
    meets = bills / usd_per_token
    cheaper_from = np.maximum(starts, meets)
    stretches = [(float(a), float(b)) for a, b in zip(cheaper_from, ends, strict=True) if a < b]
    merged: list[list[float]] = []
    for begins, ends_at in stretches:
        if merged and begins <= merged[-1][1] * (1 + _SAME):
            merged[-1][1] = ends_at
        else:
            merged.append([begins, ends_at])
    made = [VolumeWindow(tokens_per_month=a, until_tokens_per_month=b) for a, b in merged]
    return [*made[:-1], made[-1].model_copy(update={"until_tokens_per_month": None})]


# --- what moves it --------------------------------------------------------------------------------------------------


class Swing(Noun):
    """The break-even if one assumption were otherwise."""

    what: str
    found: BreakEven


FILLED = (0.7, 0.5, 0.3)
"""Shares of what the SLO allows that real traffic may fill: 0.7 is the documents' own planning figure."""
PRICED = (0.5, 0.8, 1.25, 2.0)


def swings(
    hosted: SelfHosted, api: str, usd_per_mtok: float, speeds: Sequence[float] = (), filled: Sequence[float] = FILLED
) -> list[Swing]:
    """The break-even with fleets that are filled less, machines and tokens at other prices, or other speeds."""

    def at(what: str, capacity: float = 1.0, price: float = 1.0, token: float = 1.0) -> Swing:
        return Swing(what=what, found=break_even(hosted.scaled(capacity, price), api, usd_per_mtok * token))

    made = [at(f"machines filled to {percent(share)} of what they hold", capacity=share) for share in filled]
    made += [at(f"speed {_off(speed)} (80 % interval)", capacity=speed) for speed in speeds]
    made += [at(f"machines at {each:g}× the price", price=each) for each in PRICED]
    made += [at(f"the API at {each:g}× the price", token=each) for each in PRICED]
    return made


def _off(factor: float) -> str:
    return f"{'−' if factor < 1 else '+'}{percent(abs(factor - 1))}"


class BillAt(Noun):
    """Both sides of the comparison at one volume."""

    tokens_per_month: PositiveFloat
    machines: str
    gpus: PositiveInt
    replicas: PositiveInt  # spare ones included
    hosted: CostTree
    hosted_usd: PositiveFloat
    api_usd: dict[str, NonNegativeFloat]
    cheapest: str  # the API's name, or ``self-hosted``


SELF_HOSTED = "self-hosted"


def bill_at(hosted: SelfHosted, apis: dict[str, float], tokens_per_month: float) -> BillAt:
    """The bill of each side; ``apis`` are dollars per million tokens by name."""
    require_positive("tokens_per_month", tokens_per_month)
    kind, tree = hosted.kind(tokens_per_month), hosted.bill(tokens_per_month)
    asked = {name: price * tokens_per_month / TOKENS_PER_MTOK for name, price in apis.items()}
    return BillAt(
        tokens_per_month=tokens_per_month,
        machines=kind.name,
        gpus=kind.purchases(tokens_per_month) * kind.gpus_per_purchase,
        replicas=kind.replicas(tokens_per_month) + kind.spare,
        hosted=tree,
        hosted_usd=tree.usd,
        api_usd=asked,
        cheapest=min({**asked, SELF_HOSTED: tree.usd}.items(), key=lambda each: each[1])[0],
    )


def rising(found: Sequence[tuple[int, float]]) -> tuple[ReplicaHolds, ...]:
    """Measured sizes (replicas, tokens a month of each) without the dips of chance: more replicas never hold less."""
    best, made = 0.0, []
    for replicas, tokens in sorted(found):
        best = max(best, tokens)
        made.append(ReplicaHolds(replicas=replicas, tokens_per_month=best))
    kept = [made[0]] + [after for before, after in pairwise(made) if after.tokens_per_month > before.tokens_per_month]
    return tuple(kept)
