"""Simulate what a deployment does with a trace, request by request: the simulator's interface to the package.

The trace becomes columns for the compiled loop (``loop``), the deployment its rules: token budget, sequences, and the
KV blocks that fit the remaining memory. A disaggregated fleet is two simulations (``disaggregated``).
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes, require_fit, sequence_bytes
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.disaggregated import ServingSide, chosen, serve_apart, why_not_apart
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.loop import NOBODY, Watcher, run
from tokonomics.serving.routing import wait_limits
from tokonomics.serving.sends import with_attempts
from tokonomics.serving.state import (
    DONE,
    NODE,
    OFF,
    OPEN,
    SLOT,
    Fetches,
    Requests,
    Rows,
    Rules,
    Served,
    World,
    unit_ends,
)
from tokonomics.serving.steady import context_spread
from tokonomics.serving.step_table import StepTable, compile_steps, of_fewer
from tokonomics.traffic.trace import Floats, PrefixBlocks, Trace, take_lists
from tokonomics.traffic.workload import LoadStretch, session_starts_s, stretch_of
from tokonomics.types import Same
from tokonomics.units import plural

_BYTES_PER_REQUEST = 240
"""Peak memory of a simulation of 2 million requests, including their trace, less that of one request (Linux,
ru_maxrss): 234 bytes each on 2026-11-17."""

Parts = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]
"""The shared parts of prompts, flat; where those of each request begin; and where each ends in its prompt."""
_SMALL_SHARE = 1 / 1024
"""Of a replica's KV cache: blocks that the same prompts begin with are one part up to this size. Evicting one of them
for the sake of another block then frees a thousandth of the cache too much. Where nothing is evicted, as many tokens
are found as with the blocks; where replicas thrash, up to 2.2 % fewer (six turns on four overloaded H100 or H200,
2026-11-19)."""

_PARTS_KEPT = 4  # sizes of parts of one trace at a time: a plan tries one kind of GPU after the other


@dataclass(frozen=True)
class Simulation:
    """The result: each request, what the replicas did, and its course over time."""

    deployment: Deployment
    fleet: FleetSettings
    trace: Trace
    rules: Rules
    prefill_rules: Rules | None  # of the prefill replicas, if there are any
    served: Served
    sent: NDArray[np.intp] | None
    """The index of each request in the given trace; None: the same, as no closed loop has changed the order."""
    replicas: Rows  # totals by replica, the fields of ``state.REPLICA``; prefill replicas first
    paid_s: Floats  # by replica: from its start to its end, or to the last finish
    history: Floats  # rows: time, replicas paid from then on (starting, serving, draining), and serving
    timeline: Floats  # by bin: the columns from ``state.BUSY`` on, over all replicas
    bin_s: float
    end_s: float  # when the last request was finished, and the last step had ended
    wall_s: float
    stretch: LoadStretch | None = None
    """The time of full load in the given trace; None: a closed loop of users, or a shared GPU."""

    @property
    def closed(self) -> bool:
        """Tell whether requests were sent after the answers they wait for."""
        return self.sent is not None and self.fleet.users is None

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """Tell for each request whether it was sent while the full load was offered, and so is judged."""
        return self._counts(self.trace.arrival_s)

    @cached_property
    def job_counts(self) -> NDArray[np.bool_]:
        """Tell for each request whether its session began then."""
        return self._counts(self.began_s)

    @cached_property
    def began_s(self) -> Floats:
        """Return for each request when the first of its session was sent, or itself without sessions."""
        turns, sent_s = self.trace.turns, self.trace.arrival_s
        return sent_s if turns is None or not turns.linked else session_starts_s(turns, sent_s)

    def _counts(self, sent_s: Floats) -> NDArray[np.bool_]:
        return np.ones(len(sent_s), np.bool_) if self.stretch is None else self.stretch.counts(sent_s)

    @property
    def prefill(self) -> Deployment:
        """Return the deployment that computes the prompts."""
        return self.fleet.prefill or self.deployment


def simulate(
    deployment: Deployment,
    trace: Trace,
    fleet: FleetSettings | None = None,
    *,
    timeout_s: float = math.inf,
    by_priority: bool = False,
    prefix_cache: bool = True,
    max_sequences: int | None = None,
    max_batched_tokens: int | None = None,
    seed: int = 0,
    watch: Watcher = NOBODY,
    fetches: Fetches | None = None,
    steps: StepModel | None = None,
) -> Simulation:
    """Serve a trace. Clients hang up after ``timeout_s``; priorities count ``by_priority``, those of classes always.

    If the trace has turns, a request is sent when those it waits for are answered, unless ``fleet.closed`` is False or
    the fleet is disaggregated; the trace of the simulation then has the requests in sending order. ``fetches`` says
    what slower memories give to each request (``tiers``). With ``fleet.users`` it is a closed loop, whatever the
    trace's arrivals and turns say. ``steps`` replaces the step times of today's engine, for an older or another server.
    In a disaggregated fleet ``deployment`` and ``max_sequences`` are those of the decode side. If the watcher says that
    the question is settled, the simulation ends with the requests answered by then; a closed loop of users and a
    disaggregated fleet continue to their end.
    """
    began = time.perf_counter()
    fleet, given = fleet or FleetSettings(), trace
    if seed < 0 or not timeout_s > 0 or min(max_sequences or 1, max_batched_tokens or 1) < 1 or max_sequences == 0:
        raise BadInput("a seed is at least 0, a timeout above 0, and limits are at least 1")
    _check_fleet(fleet, trace, fetches)
    by_priority = by_priority or bool(trace.classes)
    rules = rules_for(deployment, trace, prefix_cache, max_sequences, max_batched_tokens)
    paced = _in_rounds(deployment, trace, rules, seed)
    asked = partial(_requests_in_rounds, trace, paced, timeout_s=timeout_s, by_priority=by_priority)
    requests, joins = _clients(asked(rules), trace, fleet), None
    if fetches is not None:
        joins = np.argsort(trace.arrival_s + fetches.delay_s, kind="stable")
        requests = _joining(requests, joins, fetches)
    if fleet.retries and requests.may_fail:
        requests = with_attempts(requests, fleet.retries + 1, fleet.backoff_s)
    table = table_for(steps or step_model(deployment), paced, rules)
    _check_memory(requests, rules, fleet)
    at_first = fleet.autoscale.least(0.0) if fleet.autoscale else fleet.replicas + fleet.prefill_replicas
    paid_for = [(0.0, at_first, at_first)]
    prefill_rules, judge = None, None
    if fleet.prefill_replicas:
        prefill = _prefill_side(deployment, trace, fleet, prefix_cache, max_batched_tokens, steps)
        prefill_rules, decode = prefill.rules, ServingSide(deployment, rules, table)
        requests = asked(prefill_rules)
        served, worlds = serve_apart(requests, prefill, decode, fleet, seed, watch._replace(is_settled=None))
    else:
        judge = _judge(watch, requests, fetches, joins)
        watch = watch._replace(is_settled=judge)
        served, world = run(requests, table, rules, fleet, seed=seed, watch=watch, paid_for=paid_for)
        worlds = [world]
    if fetches is not None and joins is not None:
        served = _before_fetching(_taken(served, np.argsort(joins)), trace, requests, fetches)
    served, trace = _answered_so_far(served, trace) if judge and judge.settled else (served, trace)
    served, trace, sent = _as_sent(_heard(served, table.answer_s), trace, requests)
    end_s = _end_s(served, trace, worlds)
    timeline, bin_s = _one_timeline(worlds, end_s)
    return Simulation(
        deployment=deployment,
        fleet=fleet,
        trace=trace,
        rules=rules,
        prefill_rules=prefill_rules,
        served=served,
        sent=sent,
        replicas=np.concatenate([world.replicas for world in worlds]),
        paid_s=np.concatenate([_paid_s(world, fleet, end_s) for world in worlds]),
        history=np.array(paid_for),
        timeline=timeline,
        bin_s=bin_s,
        end_s=end_s,
        wall_s=time.perf_counter() - began,
        stretch=None if fleet.users else stretch_of(given),
    )


def _in_rounds(deployment: Deployment, trace: Trace, rules: Rules, seed: int) -> Trace:
    """Draw how far rounds of drafts bring each answer: the loop gives every round its mean tokens.

    An answer that took more rounds than most is simulated as a longer one: by a normal variable with the variance of a
    renewal process, tokens × variance of a round ÷ its mean. Conversations that share answers keep their lengths, as
    their blocks begin and end with these.
    """
    drafts, prefix = deployment.speculation, trace.prefix
    shared = prefix is not None and bool((np.diff(prefix.starts) * prefix.block_tokens > trace.input_tokens).any())
    if drafts is None or shared:
        return trace
    tokens = trace.output_tokens.astype(np.float64)
    sd = np.sqrt(np.maximum(tokens - 1, 0) * drafts.spread_per_round / drafts.tokens_per_round)
    drawn = np.rint(tokens + sd * np.random.default_rng(seed).standard_normal(len(trace)))
    most = np.maximum(tokens, rules.max_context - trace.input_tokens.astype(np.float64))
    return dataclasses.replace(trace, output_tokens=np.clip(drawn, np.minimum(tokens, 2), most).astype(np.int32))


def _end_s(served: Served, trace: Trace, worlds: Sequence[World]) -> float:
    """Return when all is over: the last step may continue after its last client has hung up."""
    finishes = served.finish_s[np.isfinite(served.finish_s)]
    steps_end_s = max(float(world.replicas["time_s"].max()) for world in worlds)
    return float(max(finishes.max(initial=0.0), trace.arrival_s[-1], steps_end_s))


def _requests_in_rounds(trace: Trace, paced: Trace, rules: Rules, *, timeout_s: float, by_priority: bool) -> Requests:
    """Return the requests with answers as long as rounds of drafts make them; what is shared stays as it was."""
    return requests_for(trace, rules, timeout_s, by_priority)._replace(output_tokens=paced.output_tokens)


def _prefill_side(
    deployment: Deployment,
    trace: Trace,
    fleet: FleetSettings,
    prefix_cache: bool,
    max_batched_tokens: int | None,
    steps: StepModel | None,
) -> ServingSide:
    """Return the prefill side: by default the same deployment as for decode, with the engine's limits."""
    prefill = fleet.prefill or deployment
    if reason := why_not_apart(prefill, deployment):
        raise BadInput(reason)
    limits = fleet.prefill_max_sequences, fleet.prefill_max_batched_tokens or max_batched_tokens
    rules = rules_for(prefill, trace, prefix_cache, *limits)
    own = steps if steps is not None and prefill == deployment else step_model(prefill)
    return ServingSide(prefill, rules, table_for(own, trace, rules))


def _clients(requests: Requests, trace: Trace, fleet: FleetSettings) -> Requests:
    """Set when clients send: users of a closed loop all at once, sessions their first requests at their times."""
    turns = trace.turns
    if fleet.users is None:
        if turns is None:
            return requests
        # A disaggregated fleet is two simulations in a row, so it cannot wait for its own answers.
        waits = fleet.closed and turns.linked and not fleet.prefill_replicas
        return requests._replace(sessions=turns.session, turns=turns if waits else None)
    if fleet.users < 1 or fleet.replicas > 1 or fleet.autoscale or fleet.prefill_replicas or fleet.outages:
        raise BadInput("a closed loop has at least one user, and one replica that stays")
    if requests.may_fail:
        raise BadInput("users of a closed loop wait for their answers")
    count = len(requests.arrival_s)
    return requests._replace(arrival_s=np.zeros(count), users=min(fleet.users, count))


def _joining(requests: Requests, joins: NDArray[np.intp], fetches: Fetches) -> Requests:
    """Return the requests in the order in which their fetches complete and they join the queue."""
    turns = requests.turns
    if turns is not None:
        turns = dataclasses.replace(turns, pause_s=turns.pause_s + fetches.delay_s).take(joins)
    return chosen(requests, joins, requests.arrival_s + fetches.delay_s)._replace(
        fetched=fetches.tokens[joins].astype(np.int32), turns=turns
    )


def _before_fetching(served: Served, trace: Trace, requests: Requests, fetches: Fetches) -> Served:
    """Restore the time of sending, before the fetch; a request that was never sent has none."""
    if requests.turns is None:
        return served._replace(arrival_s=trace.arrival_s)
    return served._replace(arrival_s=served.arrival_s - np.where(served.attempts > 0, fetches.delay_s, 0.0))


def _as_sent(served: Served, trace: Trace, requests: Requests) -> tuple[Served, Trace, NDArray[np.intp] | None]:
    """Return a closed loop in the order of sending, and the places of the requests in the trace."""
    if not requests.users and requests.turns is None:
        return served, trace, None
    sent = np.argsort(served.arrival_s, kind="stable")
    return _taken(served, sent), dataclasses.replace(trace, arrival_s=served.arrival_s).take(sent), sent


def _taken(served: Served, places: NDArray[np.intp]) -> Served:
    return Served(**{name: column[places] for name, column in served._asdict().items()})


@dataclass
class _Judge:
    """Ask whether a simulation is settled, and remember the answer."""

    is_settled: Callable[[Rows], bool]
    settled: bool = False

    def __call__(self, rows: Rows) -> bool:
        self.settled = self.is_settled(rows)
        return self.settled


def _judge(
    watch: Watcher, requests: Requests, fetches: Fetches | None, joins: NDArray[np.intp] | None
) -> _Judge | None:
    """Return who says whether a simulation is settled; None if nobody asks, or in a closed loop of users."""
    if watch.is_settled is None or requests.users:
        return None
    if fetches is None or joins is None:
        return _Judge(watch.is_settled)
    return _Judge(_as_given(watch.is_settled, joins, fetches.delay_s))


def _as_given(is_settled: Callable[[Rows], bool], joins: NDArray[np.intp], delay_s: Floats) -> Callable[[Rows], bool]:
    """Show a judge requests that waited for a fetch in the order of the trace, and when their clients sent them.

    Those that have not joined yet are still open, as those that the clock has not reached.
    """

    def judged(rows: Rows) -> bool:
        given = np.zeros(int(joins[: len(rows)].max(initial=-1)) + 1, rows.dtype)
        given["status"] = OPEN
        given[joins[: len(rows)]] = rows
        given["arrival_s"] -= delay_s[: len(given)]
        return is_settled(given)

    return judged


def _answered_so_far(served: Served, trace: Trace) -> tuple[Served, Trace]:
    """Drop the requests that were running or still to come when a simulation ended early."""
    answered = np.flatnonzero(served.status == DONE)
    return _taken(served, answered), trace.take(answered)


def _heard(served: Served, answer_s: float) -> Served:
    """Return times as clients see them: a token takes a moment from its step to them.

    An answer that was complete before its client hung up arrives by then.
    """
    done = served.status == DONE
    return served._replace(
        first_token_s=np.minimum(served.first_token_s + answer_s, served.deadline_s),
        finish_s=np.where(done, np.minimum(served.finish_s + answer_s, served.deadline_s), served.finish_s),
    )


def _check_memory(requests: Requests, rules: Rules, fleet: FleetSettings) -> None:
    """Refuse what does not fit this machine: requests, and for every replica its slots and all units of its cache."""
    replicas = fleet.autoscale.max_replicas if fleet.autoscale else fleet.replicas + fleet.prefill_replicas
    needed = len(requests.arrival_s) * _BYTES_PER_REQUEST + replicas * rules.max_sequences * SLOT.itemsize
    if rules.caches and len(requests.unit_ids):
        needed += replicas * (int(requests.unit_ids.max()) + 1 + len(requests.arrival_s)) * NODE.itemsize
    check_room(
        needed,
        f"to simulate {plural(len(requests.arrival_s), 'request')} on {plural(replicas, 'replica')}",
        fix=f"Use fewer requests ({option('requests')}, {option('sample')}, {option('start')}, {option('end')}), "
        f"replicas or sequences, or {option('no_prefix_cache')}.",
    )


def rules_for(
    deployment: Deployment,
    trace: Trace,
    prefix_cache: bool = True,
    max_sequences: int | None = None,
    max_batched_tokens: int | None = None,
) -> Rules:
    """Return the engine's rules and the blocks that fit the memory left by the weights.

    Every sequence holds a sliding window or a recurrent state whole, at the size for the longest request.
    """
    require_fit(deployment, 1)
    engine, limits = deployment.engine, deployment.limits
    block = engine.kv_block_tokens
    accepted = trace.input_tokens.astype(np.int64) + trace.output_tokens
    accepted = accepted[accepted <= deployment.model.max_context]
    longest = int(accepted.max(initial=block))
    windows = [group.mixer.window or 0 for group in deployment.model.groups if group.mixer]
    beyond = math.ceil(max([longest, *windows]) / block) * block
    block_bytes = sequence_bytes(deployment, beyond + block) - sequence_bytes(deployment, beyond)
    budget = max(0, kv_budget_bytes(deployment)) * deployment.dp
    fixed_blocks = 0
    if block_bytes <= 0:
        # Nothing grows with the context: a sequence of any length is one block.
        block, block_bytes = longest + 1, sequence_bytes(deployment, longest)
    else:
        fixed_bytes = sequence_bytes(deployment, longest) - math.ceil(longest / block) * block_bytes
        fixed_blocks = max(0, math.ceil(fixed_bytes / block_bytes))
    return Rules(
        max_sequences=max_sequences or limits.max_sequences,
        max_batched_tokens=max_batched_tokens or limits.max_batched_tokens,
        mixes=engine.mixes_prefill_with_decode,
        chunks=deployment.chunks_prompts,
        reserves=engine.reserves_answers,
        block_tokens=block,
        kv_blocks=budget // max(1, block_bytes),
        fixed_blocks=fixed_blocks,
        caches=prefix_cache and deployment.reuses_prefixes and trace.prefix is not None,
        max_context=deployment.model.max_context,
        groups=deployment.dp,
    )


def requests_for(trace: Trace, rules: Rules, timeout_s: float = math.inf, by_priority: bool = False) -> Requests:
    """Return the trace as the compiled loop reads it."""
    count = len(trace)
    urgency = np.zeros(count, np.int32)
    if by_priority:
        if trace.priority is None:
            fix = f"Name the column: {option('columns', 'priority=…')}"
            raise BadInput("the requests have no priorities", field="priority", fix=fix)
        urgency = np.unique(trace.priority, return_inverse=True)[1].astype(np.int32)
    patience = np.full(count, np.inf) if trace.patience_s is None else trace.patience_s
    ids, starts, ends = _units(trace, rules)
    limits = wait_limits(trace)
    return Requests(
        arrival_s=trace.arrival_s,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        urgency=urgency,
        deadline_s=trace.arrival_s + np.minimum(patience, timeout_s),
        unit_ids=ids,
        unit_starts=starts,
        unit_ends=ends,
        prefilled=False,
        shed_s=limits.shed_s,
        queue_limit=limits.queue_limit,
    )


def table_for(steps: StepModel, trace: Trace, rules: Rules) -> StepTable:
    """Return step times for every step these requests can make."""
    longest = int(min(int(trace.input_tokens.max()) + int(trace.output_tokens.max()), rules.max_context))
    tokens = rules.max_batched_tokens
    if not rules.chunks:  # a step holds a prompt longer than its share of the tokens whole, in each group
        tokens = rules.groups * max(math.ceil(tokens / rules.groups), longest)
    # A sequence has at least one block of its own. Round to powers of two, so that similar traces share a table.
    at_once = min(rules.max_sequences, len(trace), rules.kv_blocks // (rules.fixed_blocks + 1))
    sequences, context = (1 << math.ceil(math.log2(max(most, 2))) for most in (at_once, longest))
    lengths = trace.input_tokens.astype(np.float64), trace.output_tokens.astype(np.float64)
    steps = steps.with_spread(context_spread(*lengths))
    table, few = compile_steps(steps, sequences, tokens, context), steps.holding(rules.max_sequences)
    # Steps without prompts have at most half the tokens that are captured: they are the same.
    return table if few is steps else of_fewer(table, few, sequences, tokens)


def _units(trace: Trace, rules: Rules) -> Parts:
    """Return the shared parts of the prompts, where each request's begin, and where they end in its prompt."""
    if trace.prefix is None or not rules.caches:
        return np.zeros(0, np.int32), np.zeros(len(trace) + 1, np.int64), np.zeros(0, np.int32)
    most = max(1, int(rules.kv_blocks * rules.block_tokens * _SMALL_SHARE))
    # A power of two, so that similar deployments share the parts.
    return _parts(trace, rules.block_tokens, 1 << int(math.log2(most)))


def _parts(trace: Trace, block: int, most: int) -> Parts:
    """Return the parts of a trace's prompts; worked out once for the same requests, in whatever order they come."""
    assert trace.prefix is not None
    key = block, most, Same(trace.input_tokens), Same(trace.output_tokens)
    known: dict[object, Parts] = trace.prefix.worked_out
    if key not in known:
        given, places = trace.first_order
        if given is trace:
            made = _made_parts(trace, trace.prefix, block, most)
        else:
            ids, starts, ends = _parts(given, block, most)
            (ids, taken), (ends, _) = (take_lists(values, starts, places) for values in (ids, ends))
            made = ids, taken, ends
        if len(known) >= _PARTS_KEPT:
            del known[next(iter(known))]
        known[key] = made
    return known[key]


def _made_parts(trace: Trace, prefix: PrefixBlocks, block: int, most: int) -> Parts:
    """Return the shared blocks in whole KV blocks; those that the same requests begin with are one part.

    A part has ``most`` tokens at the most, unless one block has more, and none goes beyond the prompt of its request
    into the answer, or to the answer's last token, whose KV is never computed. All of a part is cached, found and
    evicted together.
    """
    input_tokens = trace.input_tokens.astype(np.int64)
    # An id stands for its block and all before it, so the last of a group names the group.
    together = math.lcm(prefix.block_tokens, block) // prefix.block_tokens
    unit, ids, starts = prefix.block_tokens * together, prefix.ids, prefix.starts
    if together > 1:
        place = np.arange(len(ids)) - np.repeat(starts[:-1], np.diff(starts))
        ids = ids[place % together == together - 1]
        starts = np.concatenate([[0], np.cumsum(np.diff(starts) // together)]).astype(np.int64)
    several, listed = most // unit, np.diff(starts)
    if several < 2 or not len(ids):
        return ids, starts, unit_ends(starts, unit, trace.input_tokens)
    places = np.arange(len(ids), dtype=np.int32) - np.repeat(starts[:-1].astype(np.int32), listed)
    begins = places % several == 0
    uses = np.bincount(ids)[ids]
    begins[1:] |= uses[1:] != uses[:-1]
    names_answer = (listed - 1) * unit >= input_tokens
    is_first = np.zeros(int(ids.max()) + 1, np.bool_)
    is_first[ids[(starts[:-1] + input_tokens // unit)[names_answer]]] = True
    never_whole = names_answer & (listed * unit >= input_tokens + np.maximum(trace.output_tokens, 1))
    is_first[ids[starts[1:][never_whole] - 1]] = True
    begins |= is_first[ids]
    last = np.flatnonzero(np.append(begins[1:], True))
    first = np.searchsorted(last, starts)
    longest = np.where(names_answer, np.iinfo(np.int32).max, input_tokens)
    part_ends = np.minimum((places[last].astype(np.int64) + 1) * unit, np.repeat(longest, np.diff(first)))
    _, dense = np.unique(ids[last], return_inverse=True)
    return dense.astype(np.int32), first.astype(np.int64), part_ends.astype(np.int32)


def _check_fleet(fleet: FleetSettings, trace: Trace, fetches: Fetches | None) -> None:
    """Refuse settings that contradict each other or the traffic."""
    if not len(trace):
        raise BadInput("there is no request to serve", where=trace.source)
    if fetches is not None and fleet.prefill_replicas:
        raise BadInput("a disaggregated fleet has no slower memories for its KV here")
    if fleet.router is Router.session_affine and trace.turns is None:
        raise BadInput("the requests have no sessions to route by", field="router", where=trace.source)
    if fleet.autoscale and fleet.replicas > 1:
        fix = f"Give {option('autoscale')} or {option('replicas')}."
        raise BadInput("an autoscaled fleet has no fixed number of replicas", fix=fix)
    if fleet.outages and fleet.autoscale:
        raise BadInput("an autoscaled fleet replaces what fails: give outages or autoscaling, not both")
    if fleet.prefill_replicas and (fleet.outages or fleet.autoscale):
        raise BadInput("a disaggregated fleet has a fixed number of replicas here, and none fails")
    if fleet.prefill_replicas and fleet.retries:
        raise BadInput("clients of a disaggregated fleet do not try again here", field="retries")
    beyond = [outage.replica for outage in fleet.outages if outage.replica >= fleet.replicas]
    if beyond:
        numbered = f"they are numbered from 0 to {fleet.replicas - 1}"
        raise BadInput(f"there is no replica {beyond[0]}: {numbered}", field="outage")
    for before, after in pairwise(sorted(fleet.outages, key=lambda outage: (outage.replica, outage.at_s))):
        if before.replica == after.replica and after.at_s - after.notice_s <= before.back_s:
            raise BadInput(f"replica {after.replica} fails again before it is back from its outage")


def _paid_s(world: World, fleet: FleetSettings, end_s: float) -> Floats:
    """Return the paid seconds of each replica, without those that a spot market took back."""
    rows = world.replicas
    if fleet.autoscale:
        on_s = np.where(rows["mode"] == OFF, 0.0, end_s - rows["paid_from_s"])
        return np.asarray(rows["paid_s"] + on_s, np.float64)
    paid = np.full(len(rows), end_s)
    for outage in fleet.outages:
        if outage.reclaimed:
            paid[outage.replica] -= max(0.0, min(outage.back_s, end_s) - min(outage.at_s, end_s))
    return paid


def _one_timeline(worlds: list[World], end_s: float) -> tuple[Floats, float]:
    """Return the timelines of several fleets in bins of the same width: the widest."""
    bin_s = max(float(world.clock["bin_s"][0]) for world in worlds)
    total = np.zeros_like(worlds[0].timeline)
    for world in worlds:
        merged = round(bin_s / float(world.clock["bin_s"][0]))
        part = np.add.reduceat(world.timeline, np.arange(0, len(world.timeline), merged))
        total[: len(part)] += part
    return total[: min(len(total), int(end_s / bin_s) + 1)], bin_s
