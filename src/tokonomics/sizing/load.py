"""Describe the traffic a plan is made for: its mean request for the closed form, its requests for the simulator.

A log is served as it is, or replayed faster or slower for another rate. Generated requests are drawn once at one a
second and replayed at the rate asked for, so that plans for two rates meet the same requests; there are enough that 200
lie beyond a p99 and that they last twenty times as long as an answer. The tail of their lengths is cut to the model's
context, as a service would do; longer requests of a log or of conversations are left out. A large fleet of equal
replicas is simulated as sixteen of them under their share of the rate: the bursts of a part are those of the whole or
milder. With a headroom, the same requests must also be held replayed faster by that share (``rules.pace``);
latencies and bills are of the load itself.

Sessions of a short log that are replayed at another rate all run at once and then end: the rate is never offered.
They are repeated until it is, as for the highest rate of a replica.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.serving.steady import context_spread, context_while_answering
from tokonomics.traffic.arrivals import Arrivals, parse_arrivals
from tokonomics.traffic.generate import ENOUGH_REQUESTS, USUAL_TPOT_S, Sessions, SystemPrompts, Tenants, generate
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import by_class, most_shed
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.traffic.workload import Workload, stretch_of, workload_of

_MOST_REQUESTS = 500_000  # about a second of simulation
_MOST_OF_A_CURVE = 2_000_000  # requests of a day or a week: a few seconds of simulation
_PERIODS_WITH_SILENCE = 20
_ENOUGH_REPLICAS = 16  # of a large fleet: simulating more changes a p99 by less than random requests do
_MOST_WRITTEN = 1e9
"""Tokens of all answers in one simulation, unless ``ENOUGH_REQUESTS`` need more: a few seconds. With answers of 100,000
tokens, sixteen replicas of Llama 3.1 8B get requests for 13 times the length of one answer."""
_ANSWERS_LONG = 20  # in answer lengths: a fleet starts empty, and after this long its filling no longer matters
_SESSIONS_LONG = 10  # the same in session lengths: load ramps up over the length of a session
_ROUNDS, _CLOSE_ENOUGH = 8, 0.005  # for finding how many conversations give a request rate: two or three rounds suffice


_RUSHES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Parts of all requests whose busiest stretch is looked at: from what two SLOs on a p99 may leave late, to half a day.
More of them change a bound by little."""
_ALIKE = 1.05  # prompts that differ by less are bounded together: a floor of latencies is at most this much too low
_LEAST_RATE = 1e-9  # requests a second that a ``Workload`` takes
_OF_LENGTHS = (
    "longest",
    "computed_tokens",
    "computed_mean",
    "cached_prompts",
    "context_mean",
    "held_mean",
    "sorted_lengths",
)
"""The properties of a load that do not depend on its rate; computing each looks at every request."""


class CachedPrompts(NamedTuple):
    """Prompts of which a part is in a cache, by kind."""

    computed: Floats  # tokens
    cached: Floats  # tokens
    alike: NDArray[np.int64]  # how many there are of each kind


class Rush(NamedTuple):
    """The busiest stretch that holds a part of the requests."""

    works: tuple[Floats, ...]
    """By what requests take (prompts, answers, context read, a place): what is left of the stretch without the heaviest
    one, two … of its requests, in requests of mean length."""
    share: float  # of the whole rate
    lasts_s: float
    of: float  # all requests, of the whole rate

    def work_without(self, heaviest: float) -> float:
        """Return the work of the stretch without that many of its requests, whichever they are, in mean requests."""
        place = min(math.ceil(heaviest * self.share), len(self.works[0]) - 1)
        return float(min(left[place] for left in self.works)) / self.share


@dataclass(frozen=True, eq=False)
class Load:
    """The requests to serve, as means and one by one; two loads are equal if a fleet would be asked the same."""

    workload: Workload
    trace: Trace
    share: float = 1.0  # share of the rate that the trace carries: below 1 if whole days would be too many requests
    is_log: bool = False
    lasts_s: float = 0.0  # how long generated requests should last
    is_stationary: bool = False  # generated, with a constant rate
    bad_rows: int = 0  # of the log, left out
    too_long: int = 0  # requests of a log or of conversations that were left out because the model's context is shorter
    talks: bool = False  # generated conversations: the prompt of a turn contains those before it
    begins_evenly: bool = False  # generated conversations that begin at a constant rate
    headroom: float = 0.0  # share by which the traffic may grow with every SLO met: fleets are sized for that much more

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Load) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    @cached_property
    def content(self) -> tuple[object, ...]:
        """Return what tells loads apart; unlike the load it is small enough to keep."""
        rate, written = self.workload.rate, self.workload.output_tokens
        return self.trace.digest, rate, written, self.share, self.is_stationary, self.lasts_s, self.headroom

    @cached_property
    def longest(self) -> int:
        """Return the tokens of the longest request, prompt and answer."""
        return int((self.trace.input_tokens.astype(np.int64) + self.trace.output_tokens).max())

    @cached_property
    def computed_tokens(self) -> Floats:
        """Return, for each prompt, the tokens that even an unlimited cache does not hold."""
        inputs = self.trace.input_tokens
        if self.trace.prefix is None:
            return inputs.astype(np.float64)
        left: Floats = np.maximum(inputs - reuse(self.trace.prefix, inputs), 1).astype(np.float64)
        return left

    @cached_property
    def cached_prompts(self) -> CachedPrompts:
        """Return prompts that an unlimited cache shortens, alike ones together, each at most a little too short."""
        computed = self.computed_tokens
        sizes = np.stack([computed, self.trace.input_tokens - computed])
        steps = np.floor(np.log(np.maximum(sizes, 1.0)) / math.log(_ALIKE) + 1e-9)
        kinds, count = np.unique(np.where(sizes < 1, -1.0, steps), axis=1, return_counts=True)
        shortest = np.where(kinds < 0, 0.0, np.floor(_ALIKE**kinds + 1e-6))
        return CachedPrompts(np.maximum(shortest[0], 1.0), shortest[1], count)

    @cached_property
    def computed_mean(self) -> float:
        """Return the mean prompt tokens that are computed with an unlimited cache."""
        return float(self.computed_tokens.mean())

    @cached_property
    def context_mean(self) -> float:
        """Return the mean context of a running request, weighted by answer tokens: long answers run longer."""
        outputs = self.trace.output_tokens.astype(np.float64)
        return context_while_answering(self.trace.input_tokens.astype(np.float64), outputs)

    @cached_property
    def context_spread(self) -> float:
        """Return how much that differs between running requests: its standard deviation ÷ mean."""
        outputs = self.trace.output_tokens.astype(np.float64)
        return context_spread(self.trace.input_tokens.astype(np.float64), outputs)

    @cached_property
    def held_mean(self) -> float:
        """Return the part of that context that takes memory of its own if an unlimited cache holds shared prompts."""
        return context_while_answering(self.computed_tokens, self.trace.output_tokens.astype(np.float64))

    @cached_property
    def sorted_lengths(self) -> tuple[Floats, Floats, Floats]:
        """Return computed prompts, whole prompts and answers, each sorted by length."""
        outputs = np.maximum(self.trace.output_tokens, 1).astype(np.float64)
        inputs = self.trace.input_tokens.astype(np.float64)
        return np.sort(self.computed_tokens), np.sort(inputs), np.sort(outputs)

    @property
    def least_replicas(self) -> int:
        """Return the fewest replicas of which the simulated share is at least one."""
        return math.ceil(1 / self.share - 1e-9)

    @property
    def held_rate(self) -> float:
        """Return the request rate that a fleet must hold: the load's own, and its headroom."""
        return self.workload.rate * (1 + self.headroom)

    @property
    def grown(self) -> "Load":
        """Return the traffic that a fleet must hold, as a load without headroom."""
        return replace(self.at(self.held_rate), headroom=0.0) if self.headroom else self

    @cached_property
    def least_rate(self) -> float:
        """Return the request rate that must be answered, without what classes may turn away."""
        trace = self.trace
        if trace.service is None:
            return self.held_rate
        kept = 1 - np.array([most_shed(one) for one in trace.classes])
        return self.held_rate * float(kept[trace.service].mean())

    @cached_property
    def rushes(self) -> tuple["Rush", ...]:
        """Return the busiest stretches of traffic whose rate changes; none if requests wait for others or have classes.

        Only then is it known when each comes, and that it is not turned away.
        """
        trace = self.trace
        if self.is_stationary or trace.turns is not None or trace.service is not None:
            return ()
        answers = np.maximum(trace.output_tokens, 1).astype(np.float64)
        # Each is a part of what a request takes; a stretch takes at least what the smallest of its parts says.
        reads = answers * (trace.input_tokens + answers / 2)
        parts = [work / work.mean() for work in (self.computed_tokens, answers, reads, np.ones(len(trace)))]
        found = []
        for part in _RUSHES:
            count = round(len(trace) * part)
            if count < 2:
                continue
            first = _busiest_from(trace.arrival_s, count)
            lasts_s = float(trace.arrival_s[first + count - 1] - trace.arrival_s[first])
            lightest_first = (np.cumsum(np.sort(work[first : first + count])) for work in parts)
            works = tuple(np.append(sums[::-1], 0.0) for sums in lightest_first)
            found.append(Rush(works, self.share, lasts_s, len(trace) / self.share))
        return tuple(found)

    def owed(self, slos: tuple[Slo, ...]) -> list[tuple["Load", tuple[Slo, ...]]]:
        """Return the requests with the targets they are owed: all of them, or each class.

        A class that may turn requests away could turn away its slowest, so no target is certain for it.
        """
        if self.trace.service is None:
            return [(self, slos)]
        return [
            (part, () if one.shed else one.slos)
            for one, part in zip(self.trace.classes, self._parts, strict=True)
            if part
        ]

    @cached_property
    def _parts(self) -> list["Load | None"]:
        """Return the requests of each class."""
        places = by_class(self.trace).values()
        return [replace(self, trace=self.trace.take(at)) if len(at) else None for at in places]

    def on(self, replicas: int) -> tuple[Trace, int]:
        """Return what to simulate for this many replicas: the requests, and the replicas that serve them."""
        if not self.is_stationary:
            # Simulate whole replicas of the slice, each with the load of one in the fleet.
            served_by = max(1, int(replicas * self.share + 1e-9))
            times = served_by / (replicas * self.share)
            return self.trace if math.isclose(times, 1) else self.trace.faster(times), served_by
        served_by = min(replicas, _ENOUGH_REPLICAS)
        rate = self.workload.rate * served_by / replicas
        wanted = min(rate * self.lasts_s, _MOST_WRITTEN / max(1.0, self.workload.output_tokens))
        requests = min(len(self.trace), math.ceil(max(ENOUGH_REQUESTS, wanted)))
        part = self.trace if requests == len(self.trace) else self.trace.take(np.arange(requests))
        return part if served_by == replicas else part.faster(served_by / replicas), served_by

    def within(self, context: int) -> "Load":
        """Fit the load to the model's context: cut generated requests, leave out others that are too long.

        Generated requests whose mean is too long stay, and every candidate refuses them.
        """
        fits = self.trace.input_tokens.astype(np.int64) + self.trace.output_tokens <= context
        if fits.all():
            return self
        if not self.is_log and not self.talks:
            if self.workload.input_tokens + self.workload.output_tokens > context:
                return self
            shorter, cut = cut_to_context(self.trace, context)
            return replace(self, trace=shorter, workload=workload_of(shorter, self.workload.rate, cut))
        if not fits.any():
            shortest = int((self.trace.input_tokens.astype(np.int64) + self.trace.output_tokens).min())
            what = f"requests of {shortest:,} tokens or more exceed the model's {context:,} of context"
            raise BadInput(what, where=self.trace.source)
        kept = self.trace.take(np.flatnonzero(fits))
        workload = workload_of(kept, self.workload.rate * len(kept) / len(self.trace))
        return replace(self, trace=kept, workload=workload, too_long=self.too_long + int((~fits).sum()))

    def busiest(self, most: int) -> "Load":
        """Return the busiest window of ``most`` requests: it decides how many replicas are needed."""
        trace = self.trace
        if len(trace) <= most:
            return self
        if self.is_stationary:
            return replace(self, trace=trace.take(np.arange(most)))
        window = busiest_of(trace, most)
        return replace(self, trace=window, workload=workload_of(window, window.rate / self.share))

    def evenly(self) -> "Load":
        """Space the same requests evenly in time, as a batch is fed."""
        arrival_s = np.linspace(0.0, self.trace.duration_s, len(self.trace))
        return replace(self, trace=replace(self.trace, arrival_s=arrival_s))

    def at(self, rate: float) -> "Load":
        """Replay the same requests at another rate; keep what is known about their lengths.

        A load with a stretch in which all of it is offered keeps one: its sessions are repeated if they get too few.
        """
        factor = rate / self.workload.rate
        trace = replayed(self.trace, factor) if self.is_steady else self.trace.faster(factor)
        made = replace(self, trace=trace, workload=self.workload.model_copy(update={"rate": rate}))
        if len(trace) != len(self.trace):
            return made
        made.__dict__.update({name: self.__dict__[name] for name in _OF_LENGTHS if name in self.__dict__})
        if "rushes" in self.__dict__:
            made.__dict__["rushes"] = tuple(rush._replace(lasts_s=rush.lasts_s / factor) for rush in self.rushes)
        return made

    @cached_property
    def is_steady(self) -> bool:
        """Return whether all of the load is offered for a while; sessions that are few or long only ramp up and end."""
        return not is_linked(self.trace) or stretch_of(self.trace).ramp_s is not None

    @property
    def lasting(self) -> "Load":
        """Return the load with its sessions repeated until all of it, its headroom included, is offered for a while.

        There are then as many requests as if they were generated; one that has them all is returned as it is.
        """
        grown = 1 + self.headroom
        trace = replayed(self.trace, grown, ENOUGH_REQUESTS)
        return self if len(trace) == len(self.trace) else replace(self, trace=trace.faster(1 / grown))

    def is_drawn_alike_at(self, rate: float) -> bool:
        """Return whether generating requests at that rate would draw these same ones."""
        return self.is_stationary and len(self.trace) == _enough_at(rate, self.lasts_s)


def is_linked(trace: Trace) -> bool:
    """Return whether requests wait for the answers of others."""
    return trace.turns is not None and trace.turns.linked


def replayed(trace: Trace, times: float, least: int = 1) -> Trace:
    """Replay requests that many times faster; repeat sessions until the full load is offered, of ``least`` requests."""
    once = trace.faster(times)
    longer = max(stretch_of(once).times_longer, least / len(trace)) if is_linked(trace) else 1.0
    again = min(math.ceil(longer), _MOST_REQUESTS // len(trace))
    return trace.repeated(again).faster(times) if again > 1 else once


def _busiest_from(arrival_s: Floats, count: int) -> int:
    """Return the first of ``count`` requests in a row that come in the shortest time."""
    return int(np.argmin(arrival_s[count - 1 :] - arrival_s[: len(arrival_s) - count + 1]))


def busiest_of(trace: Trace, count: int, replicas: int = 1) -> Trace:
    """Return the busiest stretch of ``count`` requests, as a trace that begins with it.

    It begins where round robin over that many ``replicas`` sends a request to the first.
    """
    first = _busiest_from(trace.arrival_s, count) // replicas * replicas
    window = trace.take(np.arange(first, first + count))
    return replace(window, arrival_s=window.arrival_s - window.arrival_s[0])


def cut_to_context(trace: Trace, context: int) -> tuple[Trace, int]:
    """Cut generated requests to the context and count the cut ones; unchanged if none fits."""
    tokens = trace.input_tokens.astype(np.int64) + trace.output_tokens
    if not len(tokens) or tokens.max() <= context or tokens.min() > context:
        return trace, 0
    if tokens.mean() > context:
        mean = f"requests of {tokens.mean():,.0f} tokens in the mean exceed the model's {context:,} tokens of context"
        raise BadInput(mean, field="input, output")
    return trace.cut_to(context), int((tokens > context).sum())


def load_of_log(trace: Trace, rate: float | None = None, bad_rows: int = 0) -> Load:
    """Return a log as a load, at its own rate or another."""
    if trace.rate <= 0:
        fix = f"Give the mean rate with {option('rate')}."
        raise BadInput("all requests arrive at once: there is no rate", where=trace.source, fix=fix)
    if rate is not None:
        trace = trace.faster(rate / trace.rate)
    return Load(workload=workload_of(trace, trace.rate), trace=trace, is_log=True, bad_rows=bad_rows)


def load_of_requests(trace: Trace, headroom: float = 0.0) -> Load:
    """Return requests as a load at their own rate; a lone request or a burst has next to none."""
    workload = workload_of(trace, max(trace.rate, _LEAST_RATE))
    return Load(workload=workload, trace=trace, is_log=True, headroom=headroom)


def load_of_shape(
    rate: float | None,
    inputs: Lengths | str,
    outputs: Lengths | str | None = None,
    *,
    arrivals: Arrivals | str | None = None,
    seed: int = 0,
    system: SystemPrompts | None = None,
    sessions: Sessions | None = None,
    tenants: Tenants | None = None,
) -> Load:
    """Generate a load: Poisson arrivals by default, at the rate given or the arrivals' own."""
    inputs = parse_lengths(inputs, "input") if isinstance(inputs, str) else inputs
    if outputs is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", field="output", fix=f"Such as {option('output', 256)}.")
    outputs = inputs if outputs is None else outputs
    outputs = parse_lengths(outputs, "output") if isinstance(outputs, str) else outputs
    process = parse_arrivals(arrivals) if isinstance(arrivals, str) else arrivals or parse_arrivals("poisson:1")
    if process.at_once is not None:
        raise BadInput("a burst has no rate to plan for", field="arrivals", fix="Such as gamma:5,cv=3.")
    if rate is None and arrivals is None:
        fix = f"Give {option('rate')} and {option('input')} and {option('output')}, or {option('trace')}."
        raise BadInput("no traffic is given", fix=fix)
    asked = extent_of(process, inputs, outputs, rate=rate, seed=seed, sessions=sessions)
    make = partial(
        generate, inputs=inputs, outputs=outputs, seed=seed, system=system, sessions=sessions, tenants=tenants
    )
    share = 1 / asked.slices
    thinned = asked.process.times(share)
    if sessions is not None:
        requests = round(asked.expected) if asked.span_s is None else None
        trace = conversations(make, thinned, asked.rate * share, sessions, requests, asked.span_s)
        workload, is_even = workload_of(trace, asked.rate), asked.span_s is None
        return Load(workload=workload, trace=trace, share=share, talks=True, begins_evenly=is_even)
    if asked.span_s is None:
        trace = make(thinned, requests=round(asked.expected))
        trace = trace.faster(asked.rate / trace.rate)
        return Load(workload=workload_of(trace, asked.rate), trace=trace, lasts_s=asked.lasts_s, is_stationary=True)
    trace = make(thinned, duration_s=asked.span_s)
    return Load(workload=workload_of(trace, asked.rate), trace=trace, share=share)


def conversations(
    make: Callable[..., Trace],
    process: Arrivals,
    rate: float,
    sessions: Sessions,
    requests: int | None,
    duration_s: float | None,
) -> Trace:
    """Generate conversations whose turns arrive at ``rate``: a number of requests, or a duration.

    ``process`` is the arrival process of all turns. A constant rate is met exactly over the time in which sessions
    begin.
    """
    starts = process.times(1 / sessions.turns)
    made = make(starts, requests=requests, duration_s=duration_s)
    for _ in range(_ROUNDS):
        if duration_s is None or not len(made) or abs(len(made) / duration_s / rate - 1) < _CLOSE_ENOUGH:
            break
        starts = starts.times(rate * duration_s / len(made))
        made = make(starts, duration_s=duration_s)
    return made.faster(rate / made.rate) if process.is_stationary and made.rate > 0 else made


@dataclass(frozen=True)
class Extent:
    """How much of an arrival process is enough to judge a fleet: requests at one rate, or whole periods of a curve."""

    process: Arrivals
    rate: float  # mean requests a second over all of it
    expected: float
    span_s: float | None  # of a curve; None if the rate is constant
    lasts_s: float  # how long requests should arrive at least

    @property
    def slices(self) -> int:
        """Return into how many slices the requests are thinned if all of them are too many to simulate."""
        return 1 if self.span_s is None else math.ceil(self.expected / _MOST_OF_A_CURVE)


def _enough_at(rate: float, lasts_s: float) -> int:
    """Return how many requests to generate at a constant rate."""
    return min(_MOST_REQUESTS, math.ceil(max(ENOUGH_REQUESTS, rate * lasts_s)))


def extent_of(
    process: Arrivals,
    inputs: Lengths,
    outputs: Lengths,
    *,
    rate: float | None = None,
    seed: int = 0,
    sessions: Sessions | None = None,
) -> Extent:
    """Decide how much of a process to generate, at the rate given or the process's own."""
    drawn = generate(process, inputs, outputs, requests=1000, seed=seed)
    lasts_s = _ANSWERS_LONG * float(drawn.output_tokens.mean()) * USUAL_TPOT_S
    if sessions is not None:
        lasts_s = max(lasts_s, _SESSIONS_LONG * sessions.seconds(float(drawn.output_tokens.mean())))
    curve, period_s = process.curve, process.curve.period_s
    if process.is_stationary:
        rate = curve.rate_after if rate is None else rate
        process = process.times(rate / curve.rate_after)
        return Extent(process, rate, _enough_at(rate, lasts_s), None, lasts_s)
    # Whole periods; or twice the time of the rate's last change.
    span_s = period_s or 2 * max(float(curve.times[-1]), lasts_s)
    own_rate = curve.by(span_s) / span_s
    rate = own_rate if rate is None else rate
    if period_s:
        periods = math.ceil(ENOUGH_REQUESTS / (rate * period_s))
        if curve.times[-1] < period_s:
            # The trace ends with its last request, so the silence after it must be a small part of the whole.
            periods = max(periods, min(_PERIODS_WITH_SILENCE, int(_MOST_OF_A_CURVE / (rate * period_s))))
        span_s *= periods
    return Extent(process.times(rate / own_rate), rate, rate * span_s, span_s, lasts_s)
