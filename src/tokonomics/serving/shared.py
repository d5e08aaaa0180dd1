"""Simulate several engines on one GPU: side by side in slices of its time, or one awake at a time.

Each engine is the simulator's own replica (``scheduler``) with its own clock. *Side by side*, processes without MPS
take turns on the GPU (NVIDIA's MPS guide: kernels of one context at a time), in slices much shorter than a step: while
``k`` engines have work, the clock of each of them runs at ``1/k``. That is the limit of round robin with short slices
(processor sharing); context switches are assumed to cost nothing, and an engine's time on the host to slow down like
its time on the GPU. *In turns*, one engine is awake; the others' requests wait outside. It is put to sleep when it has
no work and another's requests wait, or when one of those has waited ``patience_s`` and its running requests are
answered. With one engine and a ``hold_s`` the same rule is a server that scales to zero.

The loop goes from one event (an arrival, the end of an engine's steps, a switch) to the next, so it is exact. Times of
an engine's clock map to real time linearly between changes of its pace. Between events that could change a pace, the
compiled loop of one replica runs by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.serving.blocks import empty_cache
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.loop import serve_until, served_in
from tokonomics.serving.simulator import Simulation, requests_for, rules_for, table_for
from tokonomics.serving.state import REFUSED, Floats, Served, new_world
from tokonomics.traffic.trace import Trace

_ONE = FleetSettings(replicas=1)
_LATER_S = 1e300  # on an engine's clock: a request that has not entered yet
_TO_THE_END_S = 1e299


class SharedEngine(NamedTuple):
    """One of the engines, with its own requests."""

    deployment: Deployment
    trace: Trace
    max_sequences: int | None = None


@dataclass(frozen=True)
class TurnRules:
    """How engines take turns, in seconds."""

    wake_s: tuple[float, ...]  # from being woken until it serves, by engine
    sleep_s: tuple[float, ...]  # until it has left the GPU, by engine
    patience_s: float = math.inf  # how long another's request waits before the awake engine accepts no more
    hold_s: float = math.inf  # idle time after which the last one is switched off, and nothing is paid
    starts_awake: bool = True  # whether the first engine starts awake; else nothing runs, and nothing is paid


class SharedRun(NamedTuple):
    """The result: each engine's simulation, and the seconds paid for the GPU."""

    engines: tuple[Simulation, ...]
    end_s: float
    paid_s: float
    switches: int


class _Side:
    """One engine while it runs: its world, its clock, and the requests still outside."""

    def __init__(self, engine: SharedEngine) -> None:
        self.engine = engine
        self.rules = rules_for(engine.deployment, engine.trace, max_sequences=engine.max_sequences)
        table = table_for(step_model(engine.deployment), engine.trace, self.rules)
        self.world = new_world(requests_for(engine.trace, self.rules), table, self.rules, _ONE, 0)
        self.arrival_s = engine.trace.arrival_s
        self.let_in_s = self.world.requests["arrival_s"]
        self.let_in_s[:] = _LATER_S
        self.clock_s, self.taken = 0.0, 0
        rows = self.world.replicas
        self._outstanding, self._steps = rows["outstanding"], rows["run_steps"]
        self._ends_s, self._time_s = rows["run_end_s"], rows["time_s"]
        # Cached, as the loop reads them far more often than they change.
        self.has_work, self._due_s = False, -math.inf
        self.coming_s = float(self.arrival_s.item(0))
        """When the next request arrives, in real time."""

    @property
    def next_s(self) -> float:
        """Return when the steps in flight end, or the next may begin, on its clock."""
        return max(self._due_s, self.clock_s)

    @property
    def idle_since_s(self) -> float:
        """Return when its last step ended, on its clock."""
        return float(self._time_s.item(0))

    def let_in(self, before_s: float, at_s: float | None = None) -> None:
        """Let in requests that arrive before then: all ``at_s`` on its clock, or as they arrive if it is real time."""
        last = int(np.searchsorted(self.arrival_s, before_s, side="left"))
        came_s = self.arrival_s[self.taken : last] if at_s is None else at_s
        self.let_in_s[self.taken : last] = came_s
        self._take(last)

    def let_in_from(self, real_s: float, before_s: float) -> None:
        """Do the same as they arrive, if its clock continues from this real time at full pace."""
        last = int(np.searchsorted(self.arrival_s, before_s, side="left"))
        self.let_in_s[self.taken : last] = self.clock_s + (self.arrival_s[self.taken : last] - real_s)
        self._take(last)

    def _take(self, last: int) -> None:
        self.taken = max(self.taken, last)
        self.coming_s = float(self.arrival_s.item(self.taken)) if self.taken < len(self.arrival_s) else math.inf

    def serve(self, until_s: float) -> None:
        """Work up to a time of its clock."""
        serve_until(self.world, len(self.let_in_s), min(until_s, _TO_THE_END_S), False)
        in_flight = self._steps.item(0) > 0
        self.has_work = bool(in_flight or self._outstanding.item(0) > 0)
        self._due_s = float((self._ends_s if in_flight else self._time_s).item(0))

    def sleep(self) -> None:
        """Leave the GPU: its weights may be kept, its KV cache is not (vLLM's level 1)."""
        empty_cache(self.world, 0)

    def simulated(self, clock: Floats, real_s: Floats, paid_s: float) -> Simulation:
        """Return what it did, in real time, as for a replica that is alone."""
        served = self._served(clock, real_s)
        finishes = served.finish_s[np.isfinite(served.finish_s)]
        return Simulation(
            deployment=self.engine.deployment,
            fleet=_ONE,
            trace=self.engine.trace,
            rules=self.rules,
            prefill_rules=None,
            served=served,
            sent=None,
            replicas=self.world.replicas,
            paid_s=np.array([paid_s]),
            history=np.array([(0.0, 1, 1)]),
            timeline=self.world.timeline,
            bin_s=float(self.world.clock["bin_s"][0]),
            end_s=float(max(finishes.max(initial=0.0), self.arrival_s[-1])),
            wall_s=0.0,
        )

    def _served(self, clock: Floats, real_s: Floats) -> Served:
        """Return the outcome of each request, as its client saw it; sending a token to the client is not GPU work."""
        served, answer_s = served_in(self.world), self.world.table.answer_s
        real = {
            name: np.where(np.isnan(times), np.nan, np.interp(times, clock, real_s) + later_s)
            for name, times, later_s in (
                ("start_s", served.start_s, 0.0),
                ("first_token_s", served.first_token_s, answer_s),
                ("finish_s", served.finish_s, answer_s),
            )
        }
        real["finish_s"] = np.where(served.status == REFUSED, self.arrival_s, real["finish_s"])
        return served._replace(arrival_s=self.arrival_s, **real)


def side_by_side(engines: Sequence[SharedEngine]) -> SharedRun:
    """Serve all engines' requests on one GPU that divides its time among those with work."""
    sides = [_Side(engine) for engine in engines]
    now, at = 0.0, [(0.0, *(0.0 for _ in sides))]
    while True:
        busy = [side for side in sides if side.has_work]
        # Run at full pace until another gets work: meanwhile it affects nobody.
        alone = busy[0] if len(busy) == 1 else None
        event_s, who = min(((side.coming_s, place) for place, side in enumerate(sides) if side is not alone),
                           default=(math.inf, 0))  # fmt: skip
        ends = False
        for place, side in enumerate(sides if len(busy) > 1 else ()):
            if side.has_work and (end_s := now + (side.next_s - side.clock_s) * len(busy)) <= event_s:
                event_s, who, ends = end_s, place, True
        if alone is not None:
            alone.let_in_from(now, event_s)
            alone.serve(alone.clock_s + (event_s - now))
            if event_s == math.inf:
                break
        elif event_s == math.inf:
            break
        for side in sides:
            side.clock_s += (event_s - now) / (len(busy) if side in busy else 1)
        now, side = event_s, sides[who]
        if ends:
            side.clock_s = max(side.clock_s, side.next_s)
        else:
            side.let_in(math.nextafter(now, math.inf), side.clock_s)
        at.append((now, *(other.clock_s for other in sides)))
        side.serve(math.nextafter(side.clock_s, math.inf))
    last_s = max(side.idle_since_s - side.clock_s for side in sides) + 1.0
    at.append((now + last_s, *(side.clock_s + last_s for side in sides)))
    times = np.array(at)
    end_s = float(now + last_s - 1.0)
    made = (side.simulated(times[:, place + 1], times[:, 0], end_s) for place, side in enumerate(sides))
    return SharedRun(tuple(made), end_s, end_s, 0)


def in_turns(engines: Sequence[SharedEngine], turns: TurnRules) -> SharedRun:
    """Serve all engines' requests on one GPU with one of them awake at a time."""
    if not len(engines) == len(turns.wake_s) == len(turns.sleep_s):
        raise BadInput("every engine has a time to wake and one to sleep")
    sides = [_Side(engine) for engine in engines]
    awake: int | None = 0 if turns.starts_awake else None
    now = started_s = paid_s = 0.0
    switches = 0
    while True:
        other_s, other = min(
            ((side.coming_s, place) for place, side in enumerate(sides) if place != awake), default=(math.inf, 0)
        )
        if awake is None:
            if other_s == math.inf:
                break
            started_s = now = max(now, other_s)
            awake, now, switches = other, _woken(sides[other], now + turns.wake_s[other]), switches + 1
            continue
        side = sides[awake]
        now = _worked(side, now, other_s, turns)
        coming_s, off_s = min(side.coming_s, other_s), side.idle_since_s + turns.hold_s
        if side.has_work:
            continue
        if other_s <= now:
            side.sleep()
            now = _woken(sides[other], now + turns.sleep_s[awake] + turns.wake_s[other])
            awake, switches = other, switches + 1
        elif off_s < coming_s:
            side.sleep()
            paid_s += off_s - started_s
            awake, now = None, max(now, off_s)
        elif coming_s == math.inf:
            break
        else:
            now = max(now, coming_s)
            side.let_in(math.nextafter(now, math.inf) if coming_s == side.coming_s else 0.0)
            side.serve(math.nextafter(now, math.inf))
    if awake is not None:
        paid_s += now - started_s
    same = np.array([0.0, now + 1.0])  # one works at a time, so its clock is the real one
    return SharedRun(tuple(side.simulated(same, same, paid_s) for side in sides), now, paid_s, switches)


def _woken(side: _Side, now: float) -> float:
    """Let an engine serve from now on: it takes all requests that waited for it at once."""
    side.let_in(math.nextafter(now, math.inf), now)
    side.serve(math.nextafter(now, math.inf))
    return now


def _worked(side: _Side, now: float, other_s: float, turns: TurnRules) -> float:
    """Let the awake engine work on until its next request, or until it has none; return the time then."""
    if not side.has_work:
        return now
    own_s = side.coming_s
    if turns.hold_s == math.inf and own_s < other_s < math.inf:
        # No other engine has work before: serve all its own requests at once, with the pauses between them.
        side.let_in(other_s)
        side.serve(other_s)
        return other_s if side.has_work else max(now, side.idle_since_s)
    closes_s = other_s + turns.patience_s
    if own_s < closes_s:
        side.serve(own_s)
        if side.has_work:
            side.let_in(math.nextafter(own_s, math.inf))
            side.serve(math.nextafter(own_s, math.inf))
            return own_s
    else:
        side.serve(_TO_THE_END_S)
    return max(now, side.idle_since_s)
