"""What the simulator is given, what it keeps while it runs, and what it returns: rows of plain numbers, no objects.

A replica's running sequences sit in slots. While a sequence writes its answer it computes one token in every decode
step of its replica, so neither its length nor its end is stored step by step: both follow from the replica's count of
decode steps (``steps``). A sequence that holds ``base + steps`` tokens ends at a step known when it begins.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.serving.step_table import StepTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = NDArray[np.int32]
Shorts = NDArray[np.int16]
Bytes = NDArray[np.int8]
Row = Any
"""One row of a table below: its fields are read and set by name."""
Rows = Any

REFUSED, DONE, TIMED_OUT, UNSERVED = 0, 1, 2, 3
"""How a request ended: too long for the replica, answered, given up by its client, or never given a replica."""
OPEN = -1
"""It has not ended yet."""
NOWHERE, HELD, QUEUED, PROMPT, ANSWER, ENDED = 0, 1, 2, 3, 4, 5
"""Where a request is: not arrived, waiting for a replica, in a queue, its prompt or its answer being computed, gone."""
OFF, BOOTING, UP, DRAINING = 0, 1, 2, 3
"""A replica: only one that is up is given new requests."""
NONE = -1
HEAD, TAIL = 0, 1
"""The two ends of a queue."""


class Requests(NamedTuple):
    """What arrives, sorted by arrival."""

    arrival_s: Floats
    input_tokens: Counts
    output_tokens: Counts
    urgency: Counts
    """Dense classes, 0 first."""
    deadline_s: Floats
    """When the client hangs up; infinite for never."""
    unit_ids: Counts
    """Shared parts of the prompts, flat: those of request i begin at ``unit_starts[i]``."""
    unit_starts: Ints
    unit_tokens: int
    """Of one shared part: a multiple of the replica's KV block. The last part of a prompt may be partly filled; a list
    that goes beyond its prompt has whole parts only and names those of the answer, which the next turn begins with."""
    prefilled: bool
    """They come with their prompt computed and one token written: the decode side of a disaggregated fleet."""
    fetched: Counts | None = None
    """Leading tokens of each prompt that have been brought from a slower memory when it arrives; None: of no prompt."""
    users: int = 0
    """A closed loop: so many requests arrive at their times, each later one when another has been answered. 0: none."""


class Fetches(NamedTuple):
    """What slower memories give, by request of a trace."""

    tokens: Counts
    """Leading tokens of the prompt that are there when it joins the queue, those in the GPU's own cache included."""
    delay_s: Floats
    """From its arrival until they are there: only then does it join the queue."""


class Rules(NamedTuple):
    """What one replica does by itself."""

    max_sequences: int
    max_batched_tokens: int
    mixes: bool
    """Prompt chunks ride in decode steps; otherwise a step holds prompts or answers."""
    chunks: bool
    """Prompts may be split over steps."""
    reserves: bool
    """Room for the whole answer is taken at admission."""
    block_tokens: int
    kv_blocks: int
    fixed_blocks: int
    """Held by each sequence whatever its length: windows, recurrent state."""
    caches: bool
    max_context: int


class Fleet(NamedTuple):
    """Replicas, how requests find them, and what happens to them."""

    replicas: int
    router: int
    seed: int
    outages: Floats
    """Rows of replica, notice, down, back (s), by time of going down."""
    autoscale: Floats
    """Least, most, target outstanding, interval, cold start and hold (s); empty for a fixed fleet."""


class Served(NamedTuple):
    """What became of each request."""

    status: Bytes
    arrival_s: Floats
    start_s: Floats
    first_token_s: Floats
    finish_s: Floats
    cached_tokens: Counts
    preemptions: Shorts
    restarts: Shorts
    replica: Shorts


REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),
        ("queued_s", "f8"),  # when its replica's engine has it; infinite while it waits for the front end
        ("deadline_s", "f8"),
        ("start_s", "f8"),
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("first_unit", "i8"),
        ("units", "i4"),
        ("prompt_units", "i4"),  # of those, how many lie in the prompt; the others name its answer too
        ("input_tokens", "i4"),
        ("output_tokens", "i4"),
        ("urgency", "i4"),
        ("computed", "i4"),  # tokens whose KV is there, while the prompt is computed
        ("generated", "i4"),
        ("fellow", "i4"),  # the next of those that wait for its replica's front end
        ("seen", "i4"),  # most tokens ever computed: what is computed below it is computed again
        ("target", "i4"),  # tokens that count as prompt: with those written before a preemption
        ("blocks", "i4"),  # KV blocks held, shared ones included
        ("shared_blocks", "i4"),  # of those, blocks of shared units
        ("slot", "i4"),
        ("following", "i4"),  # the next in the list it waits in
        ("cached_tokens", "i4"),
        ("fetched", "i4"),  # leading tokens brought from a slower memory
        ("preemptions", "i2"),
        ("restarts", "i2"),
        ("replica", "i2"),
        ("place", "i1"),
        ("status", "i1"),
    ]
)
REPLICA = np.dtype(
    [
        ("time_s", "f8"),  # when the next step may begin
        ("run_start_s", "f8"),
        ("run_end_s", "f8"),
        ("composed_s", "f8"),  # when the host composes the next step: who came later waits for the one after it
        ("run_composed_s", "f8"),  # when it composed the step in flight
        ("run_launch_s", "f8"),  # what it needs to launch that step
        ("told_s", "f8"),  # when the last step was done, of which clients are yet to hear
        ("front_end_s", "f8"),  # when its front end has done the requests in hand
        ("run_prompt_s", "f8"),  # what its prompts add to the step in flight
        ("ready_s", "f8"),
        ("paid_from_s", "f8"),
        ("run_steps", "i8"),  # of the run in flight: 1 for a step with prompts, 0 when nothing is in flight
        ("run_prompt_tokens", "i8"),
        ("steps", "i8"),  # decode steps done
        ("base_tokens", "i8"),  # sum of the slots' bases: the answers hold this + decoding × steps tokens
        ("free", "i8"),
        ("evictable", "i8"),
        ("admitted", "i8"),  # count of admissions: the order of the running sequences
        ("run_decodes", "i4"),
        ("run_prompts", "i4"),
        ("running", "i4"),
        ("decoding", "i4"),
        ("partial", "i4"),  # slot whose prompt is not complete
        ("outstanding", "i4"),
        ("front_first", "i4"),  # first of the requests that wait for the front end, and last
        ("front_last", "i4"),
        ("told", "i4"),  # requests that the last step gave a first or a last token
        ("leaving", "i4"),  # first of the running requests whose client hung up
        ("mode", "i4"),
        # what its work adds up to
        ("busy_s", "f8"),
        ("prompt_busy_s", "f8"),
        ("lost_s", "f8"),  # of steps that a failure cut short
        ("paid_s", "f8"),
        ("kv_peak", "i8"),
        ("prompt_tokens", "i8"),
        ("prompt_again", "i8"),  # computed again after a preemption or a failure
        ("answer_tokens", "i8"),  # in decode steps: the first of each answer comes from its prompt
        ("answer_lost", "i8"),  # written before a failure, and again after it
        ("prompt_abandoned", "i8"),  # for clients that hung up
        ("answer_abandoned", "i8"),
    ]
)
SLOT = np.dtype(
    [
        ("order", "i8"),
        ("base", "i8"),
        ("end", "i8"),  # the decode step after which its answer is complete
        ("request", "i4"),
        ("chunk", "i4"),
        ("heap_place", "i4"),
        # lists of slots that are as long as there are slots
        ("free", "i4"),
        ("chunked", "i4"),
        ("heap", "i4"),
        ("told", "i4"),  # a request that got its last token; -1 less it: its first
    ]
)
NODE = np.dtype([("next", "i4"), ("previous", "i4"), ("size", "i4"), ("references", "i4")])
"""Of the prefix cache: first the shared units, then what each request had to itself, last both ends of the list."""
CLOCK = np.dtype(
    [
        ("arrivals", "i8"),
        ("deadlines", "i8"),
        ("ticks", "i8"),
        ("released", "i8"),  # requests of a closed loop that have been sent
        ("last_routed", "i8"),
        ("held_first", "i8"),
        ("held_last", "i8"),
        ("held", "i8"),
        ("held_latest", "i8"),  # the one put into the list last
        ("bin_s", "f8"),
    ]
)
"""How many events of each kind are past, and what belongs to no replica."""
SETTINGS = np.dtype(
    [
        *((name, "i8") for name in Rules._fields),
        ("grows", "i8"),  # answers take blocks while they are written
        ("units", "i8"),  # distinct shared units, 0 without a cache
        ("unit_tokens", "i8"),
        ("prefilled", "i8"),
        ("users", "i8"),
        ("router", "i8"),
        ("seed", "u8"),
        ("least", "i8"),
        ("most", "i8"),
        ("target", "f8"),
        ("interval_s", "f8"),
        ("cold_start_s", "f8"),
    ]
)
BUSY, SEQUENCES, KV, ANSWERS, PROMPTS = 0, 1, 2, 3, 4
"""Columns of the timeline: busy seconds, sequences × seconds, blocks × seconds, tokens written and read."""
BINS = 512
"""Of the timeline; when time runs past them, neighbours are merged."""


class World(NamedTuple):
    """All that the loop reads and changes."""

    requests: Rows
    replicas: Rows
    slots: Rows
    """By replica and slot."""
    queues: Counts
    """First and last request by replica and urgency."""
    phases: Counts
    """By replica: decoding sequences by the step, modulo the block, at which they need another block."""
    nodes: Rows
    """By replica: the prefix cache."""
    units: Counts
    held: Bytes
    """By place in ``units``: the request holds a reference to that unit."""
    settings: Rows
    clock: Rows
    wanted: Counts
    """What the autoscaler wanted at its last ticks."""
    timeline: Floats
    impatient: Ints
    """Requests with a deadline, by deadline."""
    table: StepTable


def too_long(requests: Requests, rules: Rules) -> NDArray[np.bool_]:
    """Requests that no replica could ever hold."""
    inputs, outputs = requests.input_tokens.astype(np.int64), requests.output_tokens.astype(np.int64)
    # The KV of an answer's last token is never computed.
    held = inputs + outputs if rules.reserves else inputs + np.maximum(outputs, 1) - 1
    blocks = -(-held // rules.block_tokens) + rules.fixed_blocks
    return np.asarray((inputs + outputs > rules.max_context) | (blocks > rules.kv_blocks))


def new_world(requests: Requests, table: StepTable, rules: Rules, fleet: Fleet) -> World:
    """Empty replicas, nothing arrived."""
    replicas, slots = fleet.replicas, rules.max_sequences
    classes = int(requests.urgency.max()) + 1 if len(requests.urgency) else 1
    settings = _settings(requests, rules, fleet)
    impatient = np.flatnonzero(np.isfinite(requests.deadline_s))
    scaled = len(fleet.autoscale) > 0
    ticks = int(np.ceil(fleet.autoscale[5] / fleet.autoscale[3])) if scaled else 1
    return World(
        requests=_request_rows(requests, too_long(requests, rules)),
        replicas=_replica_rows(replicas, rules, int(fleet.autoscale[0]) if scaled else replicas),
        slots=_slot_rows(replicas, slots),
        queues=np.full((replicas, classes, 2), NONE, np.int32),
        phases=np.zeros((replicas, rules.block_tokens if settings["grows"][0] else 1), np.int32),
        nodes=_node_rows(replicas, int(settings["units"][0]), len(requests.arrival_s)),
        units=requests.unit_ids,
        held=np.zeros(len(requests.unit_ids), np.int8),
        settings=settings,
        clock=_clock(requests),
        wanted=np.zeros(max(1, ticks), np.int32),
        timeline=np.zeros((BINS, 5)),
        impatient=impatient[np.argsort(requests.deadline_s[impatient], kind="stable")].astype(np.int64),
        table=table,
    )


def served_by(world: World) -> Served:
    """The requests' results as columns."""
    return Served(**{name: np.ascontiguousarray(world.requests[name]) for name in Served._fields})


def _settings(requests: Requests, rules: Rules, fleet: Fleet) -> Rows:
    made = np.zeros(1, SETTINGS)
    for name, value in rules._asdict().items():
        made[name] = value
    made["grows"] = not rules.reserves
    if rules.caches and len(requests.unit_ids):
        made["units"] = requests.unit_ids.max() + 1
    made["unit_tokens"] = requests.unit_tokens
    made["prefilled"] = requests.prefilled
    made["users"] = requests.users
    made["router"] = fleet.router
    made["seed"] = fleet.seed
    if len(fleet.autoscale):
        names = ("least", "most", "target", "interval_s", "cold_start_s")
        for name, value in zip(names, fleet.autoscale, strict=False):
            made[name] = value
    return made


def _request_rows(requests: Requests, refused: NDArray[np.bool_]) -> Rows:
    made = np.zeros(len(requests.arrival_s), REQUEST)
    for name in ("arrival_s", "deadline_s", "input_tokens", "output_tokens", "urgency"):
        made[name] = getattr(requests, name)
    if requests.fetched is not None:
        made["fetched"] = requests.fetched
    made["first_unit"] = requests.unit_starts[:-1]
    listed = np.diff(requests.unit_starts)
    in_prompt = requests.input_tokens / requests.unit_tokens
    made["units"] = listed
    made["prompt_units"] = np.where(listed <= np.ceil(in_prompt), listed, np.floor(in_prompt))
    for name in ("start_s", "first_token_s", "finish_s"):
        made[name] = np.nan
    for name in ("slot", "following", "replica"):
        made[name] = NONE
    if requests.users:
        made["arrival_s"][requests.users :] = np.inf
    made["status"] = np.where(refused, REFUSED, OPEN)
    made["place"] = np.where(refused, ENDED, NOWHERE)
    made["finish_s"][refused] = requests.arrival_s[refused]
    return made


def _replica_rows(count: int, rules: Rules, up: int) -> Rows:
    made = np.zeros(count, REPLICA)
    made["ready_s"] = np.inf
    made["free"] = rules.kv_blocks
    made["partial"] = NONE
    made["leaving"] = NONE
    made["front_first"] = NONE
    made["mode"] = OFF
    made["mode"][:up] = UP
    return made


def _slot_rows(replicas: int, slots: int) -> Rows:
    made = np.zeros((replicas, slots), SLOT)
    made["request"] = NONE
    made["free"] = np.arange(slots)[::-1]
    return made


def _node_rows(replicas: int, units: int, count: int) -> Rows:
    made = np.zeros((replicas, units + count + 1 if units else 1), NODE)
    made["references"] = NONE
    # The list's two ends meet in its last node: an empty list points to itself.
    made["next"][:, -1] = made["previous"][:, -1] = made.shape[1] - 1
    return made


def _clock(requests: Requests) -> Rows:
    made = np.zeros(1, CLOCK)
    for name in ("last_routed", "held_first", "held_last", "held_latest"):
        made[name] = NONE
    made["released"] = requests.users
    # The arrivals fill at least half of the bins, whose width is a power of two of a second.
    span = float(requests.arrival_s[-1]) if len(requests.arrival_s) else 0.0
    made["bin_s"] = 2.0 ** np.ceil(np.log2(max(span, 1e-3) / BINS))
    return made
