"""Small random worlds for the serving loops: tight enough that every rule of the simulator is reached.

Few blocks, tiny token budgets, prompts that share their beginnings, arrivals in bursts, deadlines, outages, scaling.
Times of one kind are multiples of one irrational number, each kind its own: events of a kind coincide often, events of
different kinds and the ends of steps never, so the answer does not hang on the rounding of a sum.
"""

import math
from itertools import accumulate, cycle
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage, Router
from tokonomics.serving.sends import with_attempts
from tokonomics.serving.state import Requests, Rules
from tokonomics.traffic.trace import Turns

STEP_S = 0.008
"""About how long a step takes in the worlds these are tried on; other times are some fraction or multiple of it."""
ARRIVALS_S, DEADLINES_S, OUTAGES_S, TICKS_S, BOOTS_S, WAITS_S, PAUSES_S, BACKOFFS_S = (
    STEP_S * math.sqrt(prime) / 4 for prime in (2, 3, 5, 7, 11, 37, 41, 43)
)
MOST_REQUESTS, MOST_INPUT, MOST_OUTPUT = 40, 60, 30
MOST_TOKENS_IN_A_STEP = 64 + MOST_REQUESTS + MOST_INPUT + MOST_OUTPUT

often = st.sampled_from([True, True, True, False])
World = tuple[Requests, Rules, FleetSettings, int]
"""What is asked, of what, and the seed of the router."""


ANSWER_S = STEP_S * math.sqrt(13) / 16


class Pace(NamedTuple):
    """What an engine's host adds: the fields of ``StepTable`` that the worlds are tried with."""

    ahead: bool
    launch_s: float = 0.0
    host_step_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    reach_s: float = 0.0
    answer_s: float = ANSWER_S


IN_TURN = Pace(ahead=False)


def paces() -> st.SearchStrategy[Pace]:
    """Hosts that work ahead or in turn, that are the slower or not; front ends that take time or none."""

    def some(prime: int) -> st.SearchStrategy[float]:
        return st.sampled_from([0.0, 0.1, 1.0, 4.0]).map(lambda share: share * STEP_S * math.sqrt(prime) / 4)

    # The time of a decode step holds its host's: here the host has less to do than those steps take.
    little = st.sampled_from([0.0, 0.0011, 0.0023])
    tokens = some(23).map(lambda whole: whole / 40)
    out = (some(19), tokens, some(29))
    ahead = st.tuples(st.just(True), some(17), little, *out)
    in_turn = st.tuples(st.just(False), some(17), some(31), *out)
    return st.one_of(ahead, in_turn).map(lambda fields: Pace(*fields)) | st.just(IN_TURN)


@st.composite
def closed_worlds(draw: st.DrawFn) -> World:
    """Users who send the next request when their last was answered, on one replica."""
    asked, rules, fleet, seed = draw(worlds())
    count = len(asked.arrival_s)
    asked = asked._replace(
        arrival_s=np.zeros(count), deadline_s=np.full(count, np.inf), prefilled=False,
        users=min(count, draw(st.integers(1, 12))),
    )  # fmt: skip
    return asked, rules, FleetSettings(router=fleet.router), seed


@st.composite
def classed_worlds(draw: st.DrawFn) -> World:
    """Classes with priorities, longest waits and queue limits of their own."""
    asked, rules, fleet, seed = draw(worlds())
    count = draw(st.integers(1, 4))
    waits = [draw(st.just(math.inf) | st.integers(1, 60).map(float)) for _ in range(count)]
    queues = [draw(st.none() | st.integers(1, 6)) for _ in range(count)]
    priorities = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    service = [draw(st.integers(0, count - 1)) for _ in asked.arrival_s]
    wait_s = [WAITS_S * waits[one] for one in service]
    most = np.iinfo(np.int32).max
    asked = asked._replace(
        urgency=np.unique([priorities[one] for one in service], return_inverse=True)[1].astype(np.int32),
        shed_s=asked.arrival_s + np.array(wait_s),
        queue_limit=np.array([most if queues[one] is None else queues[one] for one in service], np.int32),
    )
    return asked, rules, fleet, seed


@st.composite
def session_worlds(draw: st.DrawFn) -> World:
    """Requests that wait for others, with joins, branches and pauses; clients that try again; or only one of both."""
    asked, rules, fleet, seed = draw(worlds() | classed_worlds())
    asked = asked._replace(prefilled=False)
    count = len(asked.arrival_s)
    session = [draw(st.integers(0, 4)) for _ in range(count)]
    sessions = np.unique(session, return_inverse=True)[1].astype(np.int32)
    asked = asked._replace(sessions=sessions)
    if draw(often):
        links = draw(st.sampled_from([st.sampled_from([0, 1]), st.just(1), st.integers(0, 3)]))
        pauses = draw(st.sampled_from([st.just(0), st.sampled_from([0, 0, 1, 9]), st.integers(0, 60)]))
        parents: list[list[int]] = []
        for index in range(count):
            before = [other for other in range(index) if session[other] == session[index]]
            latest = before[::-1][: draw(st.sampled_from([1, 4, MOST_REQUESTS]))]
            most = min(draw(links), len(latest))
            parents.append(
                draw(st.lists(st.sampled_from(latest), min_size=most, max_size=most, unique=True)) if most else []
            )
        asked = asked._replace(
            turns=Turns(
                waits_for=np.array([one for some in parents for one in some], np.int32),
                starts=np.array([0, *accumulate(len(some) for some in parents)], np.int64),
                pause_s=np.array([PAUSES_S * draw(pauses) if some else 0.0 for some in parents]),
                session=sessions,
            )
        )
    attempts, backoff = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(0, 30))
    return with_attempts(asked, attempts, BACKOFFS_S * backoff), rules, fleet, seed


@st.composite
def worlds(draw: st.DrawFn) -> World:
    block_tokens = draw(st.sampled_from([1, 2, 4, 16]))
    sizes = st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3)
    asked = draw(requests([block_tokens * size for size in draw(sizes)]))
    largest = max(
        math.ceil((i + o) / block_tokens) for i, o in zip(asked.input_tokens, asked.output_tokens, strict=True)
    )
    fixed_blocks = draw(st.sampled_from([0, 0, 0, 1, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    rules = Rules(
        max_sequences=draw(st.sampled_from([1, 2, 3, 4, 8, MOST_REQUESTS])),
        max_batched_tokens=draw(st.sampled_from([2, 3, 5, 8, 13, 20, 32, 64])),
        mixes=draw(st.booleans()),
        chunks=draw(often),
        reserves=not draw(often),
        block_tokens=block_tokens,
        # From "the largest are refused" over "hardly two at a time" to "nobody ever waits for a block".
        kv_blocks=max(1, groups * (largest + fixed_blocks - 1) + draw(st.integers(0, 4) | st.integers(0, 3 * largest))),
        fixed_blocks=fixed_blocks,
        caches=draw(often),
        max_context=draw(st.sampled_from([1000, 1000, 1000, 50])),
        groups=groups,
    )
    return asked, rules, draw(st.one_of(fixed_fleets(), failing_fleets(), scaled_fleets())), draw(seeds)


@st.composite
def requests(draw: st.DrawFn, sizes: list[int]) -> Requests:
    """Requests whose shared units have these sizes in turn."""
    shortest_prompt = draw(st.sampled_from([1, 1, 1, 30]))
    patience = draw(st.sampled_from([st.none(), st.one_of(st.none(), st.integers(1, 120))]))
    urgencies = st.integers(0, draw(st.sampled_from([0, 0, 2])))
    gaps = draw(st.sampled_from([st.just(0), st.sampled_from([0, 0, 1, 2]), st.integers(0, 20), st.integers(0, 120)]))
    ask = st.tuples(
        gaps, st.integers(shortest_prompt, MOST_INPUT), st.integers(0, MOST_OUTPUT), urgencies, patience, beginnings()
    )
    asks = draw(st.lists(ask, min_size=1, max_size=MOST_REQUESTS))
    arrivals = [ARRIVALS_S * ticks for ticks in accumulate(gap for gap, *_ in asks)]
    with_units = draw(often)
    names = talk if draw(st.booleans()) else units
    prompts = [names(begins, tokens, answer, sizes) if with_units else [] for _, tokens, answer, _, _, begins in asks]
    fetched = [draw(st.integers(0, ask[1])) for ask in asks] if not draw(often) else None
    dense: dict[Any, int] = {}
    ids = [dense.setdefault(unit, len(dense)) for prompt in prompts for unit in prompt]
    return Requests(
        arrival_s=np.array(arrivals, np.float64),
        input_tokens=np.array([ask[1] for ask in asks], np.int32),
        output_tokens=np.array([ask[2] for ask in asks], np.int32),
        urgency=np.array([ask[3] for ask in asks], np.int32),
        deadline_s=np.array(
            [at + DEADLINES_S * ask[4] if ask[4] else math.inf for at, ask in zip(arrivals, asks, strict=True)],
            np.float64,
        ),
        unit_ids=np.array(ids, np.int32),
        unit_starts=np.array([0, *accumulate(len(prompt) for prompt in prompts)], np.int64),
        unit_ends=np.array([unit[-1] for prompt in prompts for unit in prompt], np.int32),
        prefilled=not draw(often) and draw(st.booleans()),
        fetched=None if fetched is None else np.array(fetched, np.int32),
    )


Beginning = tuple[int, int, int, int]


def beginnings() -> st.SearchStrategy[Beginning]:
    """(family, tokens it shares with its family, which branch it takes then, tokens it names units for)."""
    shared = st.sampled_from([0, 2, 5, 9, 16, 24, 33, 48, 60])
    return st.tuples(st.integers(0, 1), shared, st.integers(0, 2), st.sampled_from([60, 60, 60, 30, 8, 0]))


def ends_of(sizes: list[int], tokens: int) -> list[int]:
    """Where units of these sizes, again and again, end: up to the first that reaches so many tokens."""
    ends = [0]
    for size in cycle(sizes):
        if ends[-1] >= tokens:
            return ends[1:]
        ends.append(ends[-1] + size)
    raise AssertionError


def units(begins: Beginning, tokens: int, _answer: int, sizes: list[int]) -> list[Any]:
    """Names of the units of a prompt: the same for two prompts as long as all tokens up to the unit's end are."""
    family, shared, branch, named = begins
    whole_or_last = [min(end, tokens) for end in ends_of(sizes, min(tokens, named))]
    return [(family, end) if end <= shared else (family, shared, branch, end) for end in whole_or_last]


def talk(begins: Beginning, tokens: int, answer: int, sizes: list[int]) -> list[Any]:
    """Names of the whole units of a prompt and its answer, as the turns of a conversation have them."""
    family, shared, branch, _ = begins
    ends = [end for end in ends_of(sizes, tokens + answer) if end <= tokens + answer]
    return [(family, end) if end <= shared else (family, shared, branch, end) for end in ends]


routers = st.sampled_from(Router)
seeds = st.integers(0, 2**31)


def fixed_fleets() -> st.SearchStrategy[FleetSettings]:
    return st.builds(FleetSettings, replicas=st.integers(1, 4), router=routers)


@st.composite
def failing_fleets(draw: st.DrawFn) -> FleetSettings:
    """Outages of one replica follow each other; those of different replicas overlap as they like."""
    replicas = draw(st.integers(1, 4))
    lengths = st.tuples(st.integers(1, 80), st.sampled_from([0, 0, 1, 20]), st.integers(1, 60))
    outages = []
    for replica in range(replicas):
        back = 0
        for calm, warned, broken in draw(st.lists(lengths, max_size=3)):
            down = back + calm + warned
            back = down + broken
            times_s = {"at_s": down, "notice_s": warned, "down_s": broken}
            outages.append(Outage(replica=replica, **{name: OUTAGES_S * times for name, times in times_s.items()}))
        if back and draw(st.booleans()):
            outages[-1] = outages[-1].model_copy(update={"down_s": None})
    return FleetSettings(replicas=replicas, router=draw(routers), outages=tuple(outages))


@st.composite
def schedules(draw: st.DrawFn, interval_s: float) -> tuple[tuple[float, int], ...]:
    """Some that change on a tick, some between two."""
    halves = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
    return tuple((half * interval_s / 2, draw(st.integers(0, 5))) for half in halves)


@st.composite
def scaled_fleets(draw: st.DrawFn) -> FleetSettings:
    target = draw(st.sampled_from([None, 0.5, 1.0, 1.5, 2.0, 5.0]))
    # Without a target, a schedule that ends with none would never serve what waits.
    least = draw(st.integers(0 if target else 1, 2))
    most = max(1, least + draw(st.integers(0, 3)))
    # Binary fractions, so that a tick is exactly as long ago as the hold says; or anything else, so that none is.
    exactly = draw(st.booleans())
    interval_s = draw(st.integers(1, 30)) * (2.0**-8 if exactly else TICKS_S)
    hold_s = (draw(st.integers(0, 5)) + (0.0 if exactly else 0.5)) * interval_s
    cold_start_s = BOOTS_S * draw(st.integers(0, 40))
    # Unchecked: nobody may ask for intervals as short as these.
    scaling = Autoscale.model_construct(
        min_replicas=least, max_replicas=most, target=target, interval_s=interval_s, cold_start_s=cold_start_s,
        hold_s=hold_s, schedule=draw(st.one_of(st.just(()), schedules(interval_s))),
    )  # fmt: skip
    return FleetSettings.model_construct(router=draw(routers), autoscale=scaling)
