"""Find where each lever starts and stops to pay, and how far the user's traffic is from there.

A boundary lies on an axis. Physical ones are at today's batch and context: the batch up to which a step is shorter, the
acceptance from which a draft saves time, the position in a prompt from which fetching its KV is quicker than computing
it, the share of the prompt tokens that must be found in a cache before a replica is free. They come from the step times
and the closed form behind the bills.

The boundary in dollars is a load. Of today's fleet and of the changed one it is searched by simulation what as many
replicas hold at most, and so for the numbers of replicas at either end of the boundary; others are taken to hold what a
line between those says, or in proportion outside of them. Whole replicas on whole machines then cost one amount from
step to step of the load, and the lever saves between some of those steps: from just above the first load that is told,
up to the last.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat

from tokonomics.levers.batch_work import waiting
from tokonomics.levers.lever_list import VARIES
from tokonomics.physics.deployment import Deployment, acceptance_for
from tokonomics.physics.steptime import decode_step
from tokonomics.serving.tiers import Tier, break_even_position
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.bill import CENT, Bill, Bills
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.screen import held_by_one
from tokonomics.sizing.search import changes_over_time, highest_between
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun

LOADS = (1 / 16, 4.0)  # times today's load: between them a boundary in dollars is looked for
_CLOSE = 1.03  # ratio of a rate that does not hold and one that does; chance alone changes a capacity by about 1 %
_FAR, _ROUGH = 2.0, 1.1  # so many times today's load and beyond, a tenth is close enough
_STRIDE = 1.1  # the first step of a search; each next one is its square
_MOST_REPLICAS = 512  # of which the steps of a bill are listed
_EACH = 4_096  # values of an axis up to which each is tried: steps of captured sizes and tiles make holes in a stretch
_PLACES = 200  # of a longer one so many are, before the edge between two of them is found


class Axis(StrEnum):
    """What a boundary is a value of."""

    batch = "batch"  # sequences in a decode step
    context = "context"  # tokens of a running sequence
    acceptance = "acceptance"  # of a drafted token
    found = "found_share"  # of the prompt tokens: found in a cache
    position = "position"  # in a prompt, in tokens
    busiest = "busiest_hour"  # ÷ the mean hour
    hours = "hours_share"  # of all hours: in them the machines are needed
    waiting = "waiting_share"  # of the requests: their answers may come later
    rate = "requests_per_s"  # in dollars: the load, other things equal


class Boundary(Noun):
    """The values of an axis between which a lever pays: those that are nearest to the user's own."""

    axis: Axis
    pays: bool  # somewhere on the axis
    pays_from: NonNegativeFloat | None  # None: from the lowest value that was looked at
    pays_to: NonNegativeFloat | None  # None: up to the highest
    yours: NonNegativeFloat | None = None  # None: not known
    looked_from: NonNegativeFloat | None = None  # None: over the whole axis
    looked_to: NonNegativeFloat | None = None
    frees: float | None = None
    """On the axis of the load: the replicas that today's load takes less, if replicas came in parts."""


def context_of(workload: Workload) -> float:
    """Return the mean context of a running request, with half of its answer."""
    return workload.input_tokens + workload.output_tokens / 2


# --- a boundary on an axis ------------------------------------------------------------------------------------------


def boundary_of(
    axis: Axis, pays: Callable[[Floats], NDArray[np.bool_]], looked: tuple[float, float], yours: float
) -> Boundary:
    """Return the nearest stretch of whole numbers on an axis in which a lever pays.

    Each number of a short axis is tried. A long one is tried on a grid of powers and next to the user's own value; then
    each end of the stretch is found by bisection.
    """
    low, high = looked
    places = np.append(np.geomspace(low, high, _PLACES), np.clip(yours, low, high))
    grid = np.arange(low, high + 1) if high - low < _EACH else np.unique(np.round(places))
    good = pays(grid)
    if not good.any():
        return _boundary(axis, None, yours, looked)
    near = int(np.argmin(np.where(good, np.abs(np.log(grid / max(yours, low))), np.inf)))
    first, last = _run(good, near)

    def edge(outside: float, inside: float) -> float:
        """Return the last number that pays on the way from one that does to one that does not."""
        while abs(inside - outside) > 1:
            middle = float(round((outside + inside) / 2))
            outside, inside = (outside, middle) if pays(np.array([middle]))[0] else (middle, inside)
        return float(inside)

    begins = None if first == 0 else edge(grid[first - 1], grid[first])
    ends = None if last + 1 == len(grid) else edge(grid[last + 1], grid[last])
    return _boundary(axis, (begins, ends), yours, looked)


def _run(good: Sequence[bool] | NDArray[np.bool_], near: int) -> tuple[int, int]:
    """Return the first and the last place of the run of good ones around a place."""
    first = last = near
    while first > 0 and good[first - 1]:
        first -= 1
    while last + 1 < len(good) and good[last + 1]:
        last += 1
    return first, last


Stretch = tuple[float | None, float | None]  # from where to where a lever pays; None: to the end of what was looked at


def _boundary(
    axis: Axis, stretch: Stretch | None, yours: float | None = None, looked: tuple[float, float] | None = None
) -> Boundary:
    (begins, ends), (low, high) = stretch or (None, None), looked or (None, None)
    where = {"pays_from": begins, "pays_to": ends, "looked_from": low, "looked_to": high}
    return Boundary(axis=axis, pays=stretch is not None, yours=yours, **where)


# --- at today's batch and context -----------------------------------------------------------------------------------


def shorter_steps(before: Deployment, after: Deployment, axis: Axis, batch: float, context: float) -> Boundary:
    """Return the batches, or the contexts, at which a decode step of ``after`` is shorter: the other stays as it is."""
    most = before.limits.max_sequences if axis is Axis.batch else before.model.max_context

    def pays(values: Floats) -> NDArray[np.bool_]:
        at = (values, context) if axis is Axis.batch else (batch, values)
        return np.asarray(decode_step(after, *at) < decode_step(before, *at) * (1 - 1e-9))

    least = 1 if axis is Axis.batch else before.engine.kv_block_tokens
    return boundary_of(axis, pays, (float(least), float(most)), batch if axis is Axis.batch else context)


def paying_acceptance(drafting: Deployment, batch: float, context: float) -> float | None:
    """Return the acceptance from which a token takes less time than without a draft; None: there is none."""
    speculation = drafting.speculation
    assert speculation is not None
    alone = float(decode_step(drafting.model_copy(update={"speculation": None}), batch, context))
    round_s = float(decode_step(drafting, batch, context)) * speculation.tokens_per_round
    return acceptance_for(round_s / alone, speculation.tokens)


def _acceptance(drafting: Deployment, batch: float, context: float) -> Boundary:
    assert drafting.speculation is not None
    least = paying_acceptance(drafting, batch, context)
    stretch = None if least is None else (least, None)
    return _boundary(Axis.acceptance, stretch, drafting.speculation.acceptance)


def quicker_to_fetch(deployment: Deployment, tier: Tier, prompt_tokens: float) -> Boundary:
    """Return the position in a prompt from which fetching KV is quicker than computing it."""
    first = break_even_position(deployment, tier)
    stretch = None if first is None else (float(first) or None, None)
    return _boundary(Axis.position, stretch, prompt_tokens)


# --- in replicas and dollars ----------------------------------------------------------------------------------------


@dataclass
class Fleet:
    """What a setup takes and costs at any load: replicas by the rate that they hold, on whole machines."""

    rate: float  # today's load
    replicas: int  # the fewest that hold it
    hosts: Hosts
    known: dict[int, float]  # the highest rate that so many replicas hold, as simulated; of today's it is known
    search: Callable[[int, float], float]  # simulates such a rate, from a guess
    usd_per_replica: float = 0.0  # a month, beside the machines
    usd_shared: float = 0.0  # a month, for memories that all replicas share

    @property
    def needs(self) -> float:
        """Return the replicas that today's load would take if replicas came in parts."""
        return self.replicas * self.rate / self.known[self.replicas]

    def held_by(self, replicas: int) -> float:
        """Return the highest rate of so many replicas: on a line between the known numbers beside them.

        Fewer than all that are known hold in proportion to the smallest of those, more in proportion to the largest.
        Fewer than today's do not hold today's load.
        """
        counts = sorted(self.known)
        nearest = min(max(replicas, counts[0]), counts[-1])
        held = replicas / nearest * float(np.interp(nearest, counts, [self.known[count] for count in counts]))
        return min(held, self.rate * (1 - 1e-9)) if replicas < self.replicas else held

    def learn(self, replicas: int) -> bool:
        """Simulate what so many replicas hold; return whether that was not known yet.

        Fewer replicas do not hold more, though chance may have it so.
        """
        if replicas in self.known:
            return False
        found = self.search(replicas, self.held_by(replicas))
        least = [rate for count, rate in self.known.items() if count < replicas]
        most = [rate for count, rate in self.known.items() if count > replicas]
        most += [self.rate * (1 - 1e-9)] if replicas < self.replicas else []
        self.known[replicas] = min(max(found, *least, 0.0), *most, math.inf)
        return True

    def replicas_at(self, rate: float) -> int:
        """Return the fewest replicas for a load."""
        return bisect_left(range(1, 2 * _MOST_REPLICAS), rate, key=self.held_by) + 1

    def usd(self, replicas: int) -> float:
        """Return the bill of so many replicas, a month."""
        return self.hosts.usd_per_month(replicas) + replicas * self.usd_per_replica + self.usd_shared

    def usd_at(self, rate: float) -> float:
        return self.usd(self.replicas_at(rate))

    @property
    def cheaper(self) -> int | None:
        """Return the most replicas that cost less than today's; None if there are none."""
        bill = self.usd(self.replicas) - CENT
        return next((count for count in range(self.replicas - 1, 0, -1) if self.usd(count) < bill), None)

    @property
    def looked(self) -> tuple[float, float]:
        """Return the loads between which the bill is compared."""
        return LOADS[0] * self.rate, min(LOADS[1] * self.rate, self.held_by(max(_MOST_REPLICAS, self.replicas)))

    def steps(self) -> list[float]:
        """Return the loads above which one replica more is needed."""
        low, high = self.looked
        counts = range(1, self.replicas_at(high) + 1)
        return [rate for count in counts if low < (rate := self.held_by(count)) < high]


def fleet_of(setup: Setup, bill: Bill, bills: Bills) -> Fleet | None:
    """Return what a setup takes at other loads.

    None if replicas come and go, are of two kinds, or are not rented on demand.
    """
    if setup.autoscale or setup.disaggregated or setup.commit or setup.spot:
        return None
    setup = replace(setup, tiers=bill.tiers if isinstance(setup.tiers, str) else setup.tiers)
    served = bills.served(setup)
    if isinstance(served, NotServed) or served[0].replicas > _MOST_REPLICAS:
        return None
    sized = served[0]
    hosts, _ = setup.hosts()
    shared = math.fsum(bill.bill.line(price.tier.name).usd for price in bill.memories if price.tier.shared)
    beside = (bill.usd_per_month - hosts.usd_per_month(sized.replicas) - shared) / sized.replicas
    search = partial(_held_by, setup, sized, bills)

    def todays() -> dict[int, float]:
        return {sized.replicas: search(sized.replicas, setup.load.workload.rate)}

    # Shared, so that what one lever asks of today's fleet is known to the next.
    known = bills.once(("held", setup.as_fixed_fleet), todays)
    return Fleet(setup.load.workload.rate, sized.replicas, hosts, known, search, beside, shared)


def _held_by(setup: Setup, sized: Sized, bills: Bills, replicas: int, guess: float) -> float:
    """Return the highest rate, to 3 % if near today's, that so many replicas hold; today's hold at least their load.

    It is searched behind the router that holds today's load; behind others only what this one does not hold is tried.
    """
    rate = setup.load.workload.rate
    least, most = (rate if replicas >= sized.replicas else LOADS[0] * rate), LOADS[1] * rate * replicas / sized.replicas

    def holds(routed: Setup, at: float) -> bool:
        bills.say(f"up to which load {replicas} hold")
        return bills.attempts.holds_at_once(replace(routed, load=setup.load.at(at)), replicas)

    todays, low, high = partial(holds, replace(setup, router=sized.router)), guess, guess
    step = _STRIDE if sized.replicas > 1 else _STRIDE**4
    if guess > least and not todays(guess):
        while high > least and not todays(low := max(least, high / step)):
            high, step = low, step**2
    else:
        while low < most and todays(high := min(most, low * step)):
            low, step = high, step**2
    if low >= high:
        return low
    low, high = highest_between(todays, low, high, _CLOSE if high < _FAR * rate else _ROUGH)
    while setup.router is None and replicas > 1 and high < most and holds(setup, high):
        low, high = high, high * _CLOSE
    return low


def lower_bill(now: Fleet, other: Fleet) -> Boundary:
    """Return the nearest loads at which another fleet costs less than today's.

    The numbers of replicas whose capacity decides where they begin and end are simulated.
    """
    while True:
        found = cheaper_loads(now, other.usd_at, other.steps())
        ends = [rate for rate in (found.pays_from, found.pays_to) if rate is not None]
        at_ends = [(fleet, fleet.replicas_at(rate), rate) for rate in ends for fleet in (now, other)]
        learned = [fleet.learn(count) for fleet, count, rate in at_ends if math.isclose(fleet.held_by(count), rate)]
        if not any(learned):
            return found


def cheaper_loads(now: Fleet, usd_at: Callable[[float], float], steps: Sequence[float]) -> Boundary:
    """Return the nearest loads at which a bill is lower than today's way of serving them.

    ``usd_at`` gives that bill, whose comparison with today's changes only at ``steps`` and at those of today's fleet.
    """
    low, high = now.looked
    edges = sorted({low, high, *now.steps(), *(rate for rate in steps if low < rate < high)})
    spans = list(pairwise(edges))

    def saves(span: tuple[float, float]) -> bool:
        rate = now.rate if span[0] < now.rate <= span[1] else math.sqrt(span[0] * span[1])
        return usd_at(rate) < now.usd_at(rate) - CENT

    good = [saves(span) for span in spans]
    if not any(good):
        return _boundary(Axis.rate, None, now.rate, (low, high))

    def away(place: int) -> float:
        begins, ends = spans[place]
        return max(0.0, math.log(begins / now.rate), math.log(now.rate / ends))

    here = next(place for place, (begins, ends) in enumerate(spans) if begins < now.rate <= ends)
    near = here if good[here] else min((place for place, fits in enumerate(good) if fits), key=away)
    first, last = _run(good, near)
    begins = None if first == 0 else spans[first][0]
    ends = None if last + 1 == len(spans) else spans[last][1]
    return _boundary(Axis.rate, (begins, ends), now.rate, (low, high))


def cheaper_api_loads(now: Fleet, usd_per_month: float) -> Boundary:
    """Return the nearest loads at which an API that charges by the token is cheaper than today's fleet."""
    per_rate = usd_per_month / now.rate
    edges = [*now.steps(), now.looked[1]]
    # Between two steps the fleet costs one amount, and the API as much at one load.
    return cheaper_loads(now, lambda rate: per_rate * rate, [now.usd_at(edge) / per_rate for edge in edges])


def found_share_that_frees(setup: Setup, now: Fleet, found: float, yours: float | None) -> Boundary | None:
    """Return the share of the prompt tokens that a cache must find before fewer replicas cost less; None if none do.

    The closed form says how much more a replica holds if less of each prompt is computed; ``found`` is found today.
    """
    today, fewer = held_by_one(setup, found), now.cheaper
    if today is None or fewer is None:
        return None
    wanted = today * now.rate / now.held_by(fewer)

    def enough(hundredths: int) -> bool:
        return (held_by_one(setup, hundredths / 100) or 0.0) >= wanted

    low, high = math.floor(found * 100), 100
    if not enough(high):
        return _boundary(Axis.found, None, yours)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _boundary(Axis.found, (high / 100, None), yours)


# --- of a lever -----------------------------------------------------------------------------------------------------


def boundaries(
    knob: str, setup: Setup, changed: Setup | NotServed, now: Bill, bill: Bill | None, bills: Bills
) -> tuple[Boundary, ...]:
    """Return the boundaries of a lever: at today's batch and context first, then in replicas and dollars.

    Some are known of a lever that does not apply: how far the traffic is from them says what it would take.
    """
    after = changed if isinstance(changed, Setup) else None
    found = [] if after is None else _at_todays_batch(knob, setup, after, now, bill)
    fleet = fleet_of(setup, now, bills)
    if fleet is None:
        return tuple(found)
    if knob in ("cache", "tiers") and (after or setup.load.trace.prefix is None):
        share = found_share_that_frees(setup, fleet, now.cached_share, bill.cached_share if bill else None)
        found += [share] if share else []
    if fleet.cheaper is not None:
        fits, busiest = fleet.held_by(fleet.cheaper) / fleet.rate, changes_over_time(setup.load)
        if knob == "autoscale":
            found.append(_boundary(Axis.busiest, (max(VARIES, 1 / fits), None), busiest))
        if knob == "waiting" and 1 / busiest <= fits:  # else there is no quiet hour to move requests to
            waits = None if after is None else float(waiting(after.load.trace).mean())
            found.append(_boundary(Axis.waiting, (1 - fits, None), waits))
    is_routed = knob != "router" or fleet.replicas > 1  # one replica gets all requests behind any router
    changed_fleet = fleet_of(after, bill, bills) if after and bill and is_routed else None
    if changed_fleet:
        frees = fleet.needs - changed_fleet.needs if _replicas_alike(setup.deployment, changed_fleet) else None
        loads = lower_bill(fleet, changed_fleet)
        found.append(loads.model_copy(update={"frees": frees}))
    return tuple(found)


def _replicas_alike(deployment: Deployment, fleet: Fleet) -> bool:
    """Return whether a replica of another fleet has the same GPUs, so that their numbers can be compared."""
    other = fleet.hosts.deployment
    return (other.gpu.key, other.gpus) == (deployment.gpu.key, deployment.gpus)


def _at_todays_batch(knob: str, setup: Setup, after: Setup, now: Bill, bill: Bill | None) -> list[Boundary]:
    before, changed = setup.deployment, after.deployment
    batch, workload = max(1.0, now.batch), setup.load.workload
    context = context_of(workload)
    if before.model.is_encoder:
        return []
    if knob in ("weights", "speculation"):
        found = [shorter_steps(before, changed, Axis.batch, batch, context)]
        return [*found, _acceptance(changed, batch, context)] if knob == "speculation" else found
    if knob == "kv":
        return [shorter_steps(before, changed, axis, batch, context) for axis in (Axis.batch, Axis.context)]
    if knob == "tiers" and bill and bill.memories:
        fastest = max((memory.tier for memory in bill.memories), key=lambda tier: tier.bytes_per_s)
        return [quicker_to_fetch(changed, fastest, workload.input_tokens)]
    if knob == "commit" and bill:
        # On demand, hours in which no machine is needed cost nothing; a commitment is paid in all of them.
        share = bill.usd_per_month / now.usd_per_month
        return [_boundary(Axis.hours, (share, None), now.mean_replicas / now.all_replicas)]
    return []
