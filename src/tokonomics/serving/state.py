"""Define what the simulator is given, keeps while it runs, and returns: rows of plain numbers, no objects.

A replica's running sequences sit in slots. While a sequence writes its answer it computes one token in every decode
step of its replica, so neither its length nor its end is stored step by step: both follow from the replica's count of
decode steps (``steps``). A sequence that holds ``base + steps`` tokens ends at a step known when it begins.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.machine_code import Passed
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.step_table import StepTable
from tokonomics.traffic.trace import Turns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = NDArray[np.int32]
Shorts = NDArray[np.int16]
Bytes = NDArray[np.int8]
Row = Any  # one row of a table below: its fields are read and set by name
Rows = Any

REFUSED, DONE, TIMED_OUT, UNSERVED, SHED = range(5)
"""How a request ended: too long for the replica, answered, given up by its client, never given a replica, or turned
away because too many waited or it had waited too long."""
OPEN = -1  # it has not ended yet
NOWHERE, HELD, QUEUED, PROMPT, ANSWER, ENDED = range(6)
"""Where a request is: not arrived, waiting for a replica, in a queue, its prompt or its answer being computed, gone."""
OFF, BOOTING, UP, DRAINING = range(4)  # states of a replica: only one that is up gets new requests
NONE = -1
HEAD, TAIL = 0, 1  # the two ends of a queue


class Requests(NamedTuple):
    """The requests, sorted by arrival."""

    arrival_s: Floats
    input_tokens: Counts
    output_tokens: Counts
    urgency: Counts  # dense classes, 0 first
    deadline_s: Floats  # when the client hangs up; infinite for never
    unit_ids: Counts  # shared parts of the prompts, flat: those of request i begin at ``unit_starts[i]``
    unit_starts: Ints
    unit_ends: Counts
    """Tokens of the prompt up to the end of each of those, a multiple of the replica's KV block. The last part of a
    prompt may be partly filled and end with it; a list that goes beyond its prompt has only whole parts and names
    those of the answer, with which the next turn begins (``unit_ends``)."""
    prefilled: bool
    """Whether they come with their prompt computed and one token written: the decode side of a disaggregated fleet."""
    fetched: Counts | None = None
    """Leading tokens of each prompt that were brought from a slower memory when it arrives; None: of no prompt."""
    shed_s: Floats | None = None
    """When each is turned away if no step has worked on it by then; infinite for never. None: none ever is."""
    queue_limit: Counts | None = None
    """Each is turned away if this many, as urgent or more, wait at its replica. None: never."""
    users: int = 0
    """A closed loop: this many requests arrive at their times, each later one when another is answered. 0: no such
    loop."""
    turns: Turns | None = None  # a closed loop: which request waits for which answers
    sessions: Counts | None = None  # the conversation or job of each request, for routers that use it
    attempts: int = 1
    """How often a client sends a request that times out or is turned away: its number of rows in the columns above
    (``sends``)."""
    backoff_s: float = 0.0  # from the first time-out to the second attempt; then twice as long, and so on

    @property
    def closed(self) -> bool:
        """Tell whether the sending of some requests depends on the outcome of others."""
        return self.turns is not None or self.users > 0 or self.attempts > 1

    @property
    def may_fail(self) -> bool:
        """Tell whether some may time out or be turned away."""
        limited = self.shed_s is not None or self.queue_limit is not None
        return limited or bool(np.isfinite(self.deadline_s).any())


class Fetches(NamedTuple):
    """What slower memories give, by request of a trace."""

    tokens: Counts
    """Leading tokens of the prompt that are there when it joins the queue, including those in the GPU's own cache."""
    delay_s: Floats  # from its arrival until they are there, when it joins the queue


class Rules(NamedTuple):
    """The rules of one replica.

    Limits are for all its attention groups together. A request lives in one group: no prompt takes more of a step than
    one group's tokens, and none is longer than one group's blocks. Otherwise groups are assumed to be balanced: their
    slots, tokens and blocks are one pool.
    """

    max_sequences: int
    max_batched_tokens: int
    mixes: bool  # whether prompt chunks join decode steps; otherwise a step holds prompts or answers
    chunks: bool  # whether prompts may be split over steps
    reserves: bool  # whether memory for the whole answer is reserved at admission
    block_tokens: int
    kv_blocks: int
    fixed_blocks: int  # held by each sequence of any length: windows, recurrent state
    caches: bool
    max_context: int
    groups: int = 1  # attention groups


class Served(NamedTuple):
    """The outcome of each request: the fate and the times of its last attempt, and when it was first sent."""

    status: Bytes
    arrival_s: Floats  # when it was first sent; if it was never sent in a closed loop, when that became clear
    start_s: Floats
    first_token_s: Floats
    finish_s: Floats
    cached_tokens: Counts
    preemptions: Shorts
    restarts: Shorts
    replica: Shorts
    deadline_s: Floats  # when the client of the last attempt hangs up
    attempts: Shorts  # how often it was sent: once, and again after each retried time-out; 0: never


def _fields(kind: str, names: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


# 128 bytes, two cache lines: one more field costs every simulation a twentieth of its speed.
REQUEST = np.dtype(
    [
        *_fields("f8", "arrival_s deadline_s start_s first_token_s finish_s"),
        ("queued_s", "f8"),  # when its replica's engine has it; infinite while it waits for the front end
        ("first_unit", "i8"),
        ("units", "i4"),
        ("prompt_units", "i4"),  # how many of those are in the prompt; the others also name its answer
        *_fields("i4", "input_tokens output_tokens urgency generated slot cached_tokens"),
        ("computed", "i4"),  # tokens with KV, while the prompt is computed
        ("fellow", "i4"),  # the next request that waits for its replica's front end
        ("seen", "i4"),  # most tokens ever computed: below it, tokens are computed again
        ("target", "i4"),  # tokens that count as prompt, including those written before a preemption
        ("blocks", "i4"),  # KV blocks held, shared ones included
        ("shared_blocks", "i4"),  # of those, blocks of shared units
        ("following", "i4"),  # the next in the list it waits in
        ("fetched", "i4"),  # leading tokens brought from a slower memory
        *_fields("i2", "preemptions restarts replica"),
        *_fields("i1", "place status"),
    ]
)
REPLICA = np.dtype(
    [
        ("time_s", "f8"),  # when the next step may begin
        *_fields("f8", "run_start_s run_end_s ready_s paid_from_s"),
        ("composed_s", "f8"),  # when the host composes the next step: later requests wait for the one after it
        ("run_composed_s", "f8"),  # when it composed the step in flight
        ("run_launch_s", "f8"),  # time to launch that step
        ("told_s", "f8"),  # when the last step was done, whose tokens are not yet sent to clients
        ("front_end_s", "f8"),  # when its front end has finished its current requests
        ("run_prompt_s", "f8"),  # what its prompts add to the step in flight
        ("run_steps", "i8"),  # of the run in flight: 1 for a step with prompts, 0 when nothing is in flight
        ("steps", "i8"),  # decode steps done
        ("base_tokens", "i8"),  # sum of the slots' bases: the answers hold this + decoding × steps tokens
        ("admitted", "i8"),  # count of admissions: the order of the running sequences
        *_fields("i8", "run_prompt_tokens free evictable"),
        *_fields("i4", "run_decodes run_prompts running decoding outstanding mode"),
        ("partials", "i4"),  # unfinished prompts: at most one for each attention group
        *_fields("i4", "front_first front_last"),  # ends of the list of requests that wait for the front end
        ("told", "i4"),  # requests that got a first or a last token in the last step
        ("leaving", "i4"),  # the first running request whose client hung up
        # totals of its work
        *_fields("f8", "busy_s prompt_busy_s paid_s"),
        ("lost_s", "f8"),  # in steps that a failure cut short
        *_fields("i8", "kv_peak prompt_tokens"),
        ("prompt_again", "i8"),  # computed again after a preemption or a failure
        ("answer_tokens", "i8"),  # in decode steps: the first of each answer comes from its prompt
        ("answer_lost", "i8"),  # written before a failure, and again after it
        *_fields("i8", "prompt_abandoned answer_abandoned"),  # for clients that hung up
    ]
)
SLOT = np.dtype(
    [
        *_fields("i8", "order base"),
        ("end", "i8"),  # the decode step after which its answer is complete
        *_fields("i4", "request chunk heap_place"),
        *_fields("i4", "free chunked heap partial"),  # lists with one place per slot
        ("told", "i4"),  # a request that got its last token; -1 - request: its first
    ]
)
NODE = np.dtype(_fields("i4", "next previous size references"))
"""A node of the prefix cache: first the shared units, then the private blocks of each request, then the two list
ends."""
TURN = np.dtype(
    [
        ("pause_s", "f8"),
        ("patience_s", "f8"),  # from sending until its client hangs up
        ("longest_wait_s", "f8"),  # from sending until it is turned away
        ("ready_s", "f8"),  # when the latest answer so far that it waits for arrived
        ("first_child", "i8"),  # the first that waits for it, in ``World.children``
        *_fields("i4", "children session following"),
        ("waits", "i4"),  # number of unfinished requests it waits for
        ("attempts", "i2"),  # how often it was sent
        ("planned", "i1"),  # whether it waits for no other
        ("doomed", "i1"),  # whether one that it waits for failed
    ]
)
"""A request in a closed loop, or in a session."""
EVENT = np.dtype([("time_s", "f8"), ("row", "i8")])
SENDS, DEADLINES = 0, 1  # the two heaps of events of a closed loop
CLOCK = np.dtype(
    [
        ("came", "i8"),  # requests sent, counting each attempt
        ("arrivals", "i8"),  # the next in the trace to be sent at its time
        ("deadlines", "i8"),  # passed ones; in a closed loop: those in their heap
        *_fields("i8", "ticks last_routed"),
        ("sends", "i8"),  # in their heap
        ("waiting", "i8"),  # requests not sent until another is answered
        ("released", "i8"),  # requests that were sent or waited for a user
        ("held_first", "i8"),  # no request before it waits for a replica
        ("held", "i8"),  # how many wait for a replica
        ("bin_s", "f8"),
    ]
)
"""Counts of past events of each kind, and what belongs to no replica."""
SETTINGS = np.dtype(
    [
        *_fields("i8", " ".join(Rules._fields)),
        ("grows", "i8"),  # whether answers take blocks while they are written
        ("units", "i8"),  # distinct shared units, 0 without a cache
        *_fields("i8", "prefilled users closed attempts sessions router"),
        ("backoff_s", "f8"),
        ("seed", "u8"),
    ]
)
BUSY, SEQUENCES, KV, ANSWERS, PROMPTS = range(5)
"""Columns of the timeline: busy seconds, sequences × seconds, blocks × seconds, tokens written and read."""
_ROWS_IN_CACHE = 4096  # rows of requests, half a megabyte: a processor's second cache has one or two
BINS = 512  # of the timeline; when time runs past them, neighbours are merged


class WorldColumns(NamedTuple):
    """Everything that the loop reads and changes."""

    requests: Rows
    replicas: Rows
    slots: Rows  # by replica and slot
    queues: Counts  # first and last request by replica and urgency
    waiting: Counts  # how many are in each of those queues
    queue_limit: Counts  # by request: turned away if this many wait before it; empty if none ever is
    phases: Counts  # by replica: number of decoding sequences by the step, modulo the block, at which they need a block
    nodes: Rows  # by replica: the prefix cache
    units: Counts
    unit_ends: Counts
    held: Bytes  # by index in ``units``: whether the request holds a reference to that unit
    settings: Rows
    clock: Rows
    wanted: Counts  # what the autoscaler wanted at its last ticks
    timeline: Floats
    impatient: Ints  # requests whose client hangs up, or -1 - request for those shed; by time
    due_s: Floats  # when; both empty in a closed loop, in which they are not known before
    turns: Rows  # by request, not by attempt; empty where none is needed
    children: Counts  # requests that wait for each request, one list after the other
    events: Rows  # two heaps
    homes: Counts  # by session: the replica that got its last request
    table: StepTable


class World(WorldColumns, Passed):
    """Everything that the loop reads and changes, as compiled code takes it."""


def too_long(requests: Requests, rules: Rules) -> NDArray[np.bool_]:
    """Tell which requests no replica could ever hold: longer than the model allows, or than one group's blocks."""
    inputs, outputs = requests.input_tokens.astype(np.int64), requests.output_tokens.astype(np.int64)
    # The KV of an answer's last token is never computed.
    held = inputs + outputs if rules.reserves else inputs + np.maximum(outputs, 1) - 1
    blocks = -(-held // rules.block_tokens) + rules.fixed_blocks
    return np.asarray((inputs + outputs > rules.max_context) | (blocks > rules.kv_blocks // rules.groups))


def new_world(requests: Requests, table: StepTable, rules: Rules, fleet: FleetSettings, seed: int) -> World:
    """Return empty replicas before the first arrival."""
    count, scale = len(requests.arrival_s), fleet.autoscale
    replicas, up = (scale.max_replicas, scale.least(0.0)) if scale else (fleet.replicas, fleet.replicas)
    units = int(requests.unit_ids.max()) + 1 if rules.caches and len(requests.unit_ids) else 0
    nodes = _table((replicas, units + count + 1 if units else 1), NODE, references=NONE)
    # The list's two ends meet in its last node, so an empty list points to itself.
    nodes["next"][:, -1] = nodes["previous"][:, -1] = nodes.shape[1] - 1
    impatient, due_s = _impatient(requests)
    turns, children = _turn_rows(requests)
    sessions = int(turns["session"].max(initial=-1)) + 1 if requests.sessions is not None else 0
    # The arrivals fill at least half of the bins, whose width is a power of two of a second.
    span = float(requests.arrival_s[-1]) if count else 0.0
    bin_s = 2.0 ** np.ceil(np.log2(max(span, 1e-3) / BINS))
    return World(
        requests=_request_rows(requests, too_long(requests, rules)),
        replicas=_table(
            replicas,
            REPLICA,
            **dict.fromkeys(("leaving", "front_first"), NONE),
            ready_s=np.inf,
            free=rules.kv_blocks,
            mode=np.where(np.arange(replicas) < up, UP, OFF),
        ),
        slots=_table((replicas, rules.max_sequences), SLOT, request=NONE, free=np.arange(rules.max_sequences)[::-1]),
        queues=np.full((replicas, int(requests.urgency.max(initial=0)) + 1, 2), NONE, np.int32),
        waiting=np.zeros((replicas, int(requests.urgency.max(initial=0)) + 1), np.int32),
        queue_limit=np.ascontiguousarray(() if requests.queue_limit is None else requests.queue_limit, np.int32),
        phases=np.zeros((replicas, 1 if rules.reserves else rules.block_tokens), np.int32),
        nodes=nodes,
        units=np.ascontiguousarray(requests.unit_ids, np.int32),
        unit_ends=np.ascontiguousarray(requests.unit_ends, np.int32),
        held=np.zeros(len(requests.unit_ids), np.int8),
        settings=_table(
            1,
            SETTINGS,
            **rules._asdict(),
            grows=not rules.reserves,
            units=units,
            prefilled=requests.prefilled,
            users=requests.users,
            closed=requests.closed,
            attempts=requests.attempts,
            backoff_s=requests.backoff_s,
            sessions=sessions,
            router=fleet.router.code,
            seed=seed,
        ),
        clock=_table(
            1,
            CLOCK,
            last_routed=NONE,
            held_first=NONE,
            waiting=np.count_nonzero(turns["planned"] == 0) if requests.closed else 0,
            released=requests.users,
            bin_s=bin_s,
        ),
        wanted=np.zeros(max(1, math.ceil(scale.hold_s / scale.interval_s)) if scale else 1, np.int32),
        timeline=np.zeros((BINS, 5)),
        impatient=impatient,
        due_s=due_s,
        turns=turns,
        children=np.ascontiguousarray(children, np.int32),
        events=np.zeros((2, 2 * count + 1 if requests.closed else 1), EVENT),
        homes=np.full(max(1, sessions), NONE, np.int32),
        table=table,
    )


def _impatient(requests: Requests) -> tuple[Ints, Floats]:
    """Return who hangs up and who is shed (-1 - request), with the times, in order; those who hang up come first."""
    if requests.closed:
        return np.zeros(0, np.int64), np.zeros(0)
    leaves = np.flatnonzero(np.isfinite(requests.deadline_s))
    shed_s = np.full(len(requests.arrival_s), np.inf) if requests.shed_s is None else requests.shed_s
    shed = np.flatnonzero(np.isfinite(shed_s))
    whom, due_s = np.concatenate([leaves, -1 - shed]), np.concatenate([requests.deadline_s[leaves], shed_s[shed]])
    order = np.argsort(due_s, kind="stable")
    return whom[order].astype(np.int64), np.ascontiguousarray(due_s[order])


def _table(shape: int | tuple[int, int], kind: np.dtype[np.void], **columns: Any) -> Rows:
    """Return rows of zeros except for the given columns."""
    rows: Rows = np.zeros(shape, kind)
    for name, value in columns.items():
        rows[name] = value
    return rows


def _request_rows(requests: Requests, refused: NDArray[np.bool_]) -> Rows:
    """Copy one row for every request, then set the few columns that differ."""
    alike = _table(
        1,
        REQUEST,
        **dict.fromkeys(("start_s", "first_token_s", "finish_s"), np.nan),
        **dict.fromkeys(("slot", "following", "replica"), NONE),
        deadline_s=np.inf,
        status=OPEN,
        place=NOWHERE,
    )
    rows: Rows = np.empty(len(refused), REQUEST)
    whole = np.dtype((np.void, REQUEST.itemsize))
    rows.view(whole)[:] = alike.view(whole)
    columns = {name: getattr(requests, name) for name in ("arrival_s", "deadline_s", "input_tokens", "output_tokens")}
    if not np.isfinite(columns["deadline_s"]).any():
        del columns["deadline_s"]
    if requests.urgency.any():
        columns["urgency"] = requests.urgency
    if requests.fetched is not None:
        columns["fetched"] = requests.fetched
    if len(requests.unit_ids):
        starts, listed = requests.unit_starts, np.diff(requests.unit_starts)
        columns["first_unit"], columns["units"] = starts[:-1], listed
        in_prompt = np.cumsum(requests.unit_ends <= np.repeat(requests.input_tokens, listed))
        columns["prompt_units"] = np.diff(np.concatenate([[0], in_prompt])[starts])
    for some in in_cache(len(rows)):
        for name, column in columns.items():
            rows[name][some] = column[some]
    turned_away = np.flatnonzero(refused)
    rows["finish_s"][turned_away] = requests.arrival_s[turned_away]
    rows["status"][turned_away], rows["place"][turned_away] = REFUSED, ENDED
    return rows


def unit_ends(starts: Ints, unit_tokens: int, input_tokens: Counts) -> Counts:
    """Return where units of one length end in their prompts; the last of a prompt ends with it."""
    listed = np.diff(starts)
    ends = (np.arange(starts[-1]) - np.repeat(starts[:-1], listed) + 1) * unit_tokens
    inside = (listed - 1) * unit_tokens < input_tokens  # the others name the answer too
    longest = np.where(inside, input_tokens, np.iinfo(np.int32).max)
    found: Counts = np.minimum(ends, np.repeat(longest, listed)).astype(np.int32)
    return found


def in_cache(count: int) -> Iterator[slice]:
    """Yield parts of ``count`` rows, so that setting one column after the other stays in the processor's cache."""
    return (slice(first, first + _ROWS_IN_CACHE) for first in range(0, count, _ROWS_IN_CACHE))


def _turn_rows(requests: Requests) -> tuple[Rows, Counts]:
    """Return what each request waits for and who waits for it; empty if no request waits and none has a session."""
    count = len(requests.arrival_s) // requests.attempts
    none = np.zeros(0, np.int32)
    if not requests.closed and requests.sessions is None:
        return _table(0, TURN), none
    patience_s = requests.deadline_s[:count] - requests.arrival_s[:count]
    rows = _table(count, TURN, planned=1, patience_s=patience_s, longest_wait_s=np.inf, ready_s=-np.inf)
    if requests.shed_s is not None:
        rows["longest_wait_s"] = requests.shed_s[:count] - requests.arrival_s[:count]
    if requests.sessions is not None:
        rows["session"] = requests.sessions
    if requests.users:
        rows["planned"] = np.arange(count) < requests.users
    if requests.turns is None:
        return rows, none
    children, starts = requests.turns.children
    rows["first_child"], rows["children"] = starts[:-1], np.diff(starts)
    rows["waits"], rows["pause_s"] = np.diff(requests.turns.starts), requests.turns.pause_s
    rows["planned"] = requests.turns.roots
    return rows, children
