"""Simulate disaggregated prefill/decode: prompts on some replicas, then answers on others once their KV has arrived.

These are two simulations in a row: the second gets each request when its KV has been sent. Every decode rank reads its
own part of the KV cache, or a copy if ranks hold copies (an MLA latent, fewer KV heads than ranks), as NIXL does (vLLM
0.32, ``nixl_connector``). All GPUs of both replicas send or receive at once, and a replica sends one prompt after the
other. With data-parallel attention a prompt's KV is on the GPUs of one group: each group has its own links, and prompts
go to groups in turn (SGLang's default, ``load_balance_method``). A prompt's KV is sent when all of it has been
computed.

The client gets the first token from the decode side, after the transfer, whichever side computed it. SGLang sends the
prefill side's token along with the KV (``disaggregation/decode.py``, ``_commit_transfer_to_req``), and so does
TensorRT-LLM (``first_gen_tokens``); under vLLM the proxy drops it and the decode side computes it again, in a step of
its own (vLLM docs, ``toy_proxy_server.py``; ``Scheduler._update_waiting_for_remote_kv`` leaves one token to compute).
Answers of one token end where their prompt was computed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import sequence_bytes
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.loop import Watcher, run
from tokonomics.serving.state import DONE, TIMED_OUT, Requests, Rules, Served, World, too_long
from tokonomics.serving.step_table import StepTable
from tokonomics.traffic.trace import Floats, take_lists

_COMPUTES_AGAIN = frozenset(("vllm",))  # engines whose decode side computes the first token itself


class ServingSide(NamedTuple):
    """The replicas of one side: their deployment, limits, and step times."""

    deployment: Deployment
    rules: Rules
    table: StepTable


def why_not_apart(prefill: Deployment, decode: Deployment) -> str | None:
    """Say why the decode side cannot use the KV of the prefill side; None if it can."""
    if prefill.model != decode.model:
        return f"the two sides serve one model, not {prefill.model.name} and {decode.model.name}"
    if prefill.kv is not decode.kv:
        return f"KV is sent as it is: {prefill.kv} on the prefill side is not {decode.kv} on the decode side"
    if prefill.speculation != decode.speculation:
        return "what drafts on the one side needs its KV from the other, which does not draft so"
    if prefill.engine.key != decode.engine.key:
        return f"KV of {prefill.engine.name} is of no use to {decode.engine.name}"
    return None


def sent_bytes(prefill: Deployment, decode: Deployment, tokens: int) -> float:
    """Return the KV bytes of a prompt through the busiest GPU: what a rank receives, or a sender's share of all.

    A sequence is on the GPUs of one attention group.
    """
    received = sequence_bytes(decode, tokens)
    return max(received, received * decode.tp * decode.pp / (prefill.tp * prefill.pp))


def serve_apart(
    requests: Requests, prefill: ServingSide, decode: ServingSide, fleet: FleetSettings, seed: int, watch: Watcher
) -> tuple[Served, list[World]]:
    """Return the outcome of each request, and what both sides did, prefill first."""
    # Refuse a request that the decode side cannot hold before computing its prompt.
    endless = np.int32(np.iinfo(np.int32).max // 2)
    first = requests._replace(
        input_tokens=np.where(too_long(requests, decode.rules), endless, requests.input_tokens),
        output_tokens=np.minimum(requests.output_tokens, 1),
    )
    computing = fleet.model_copy(update={"replicas": fleet.prefill_replicas})
    read, computed = run(first, prefill.table, prefill.rules, computing, seed=seed, watch=watch)
    goes_on = np.flatnonzero((read.status == DONE) & (requests.output_tokens > 1))
    arrives_s = _arrival_of_kv(requests, goes_on, read, prefill.deployment, decode.deployment, fleet.link_bytes_per_s)
    goes_on = goes_on[np.argsort(arrives_s[goes_on], kind="stable")]
    again = _again(decode.deployment, requests)
    handed_on = requests._replace(
        input_tokens=requests.input_tokens - again, output_tokens=requests.output_tokens + again
    )
    second = chosen(handed_on, goes_on, arrives_s)._replace(
        unit_ids=np.zeros(0, np.int32),
        unit_starts=np.zeros(len(goes_on) + 1, np.int64),
        unit_ends=np.zeros(0, np.int32),
        prefilled=True,
        # Requests here have begun, and are no longer turned away.
        shed_s=None,
        queue_limit=None,
    )
    written, answered = run(second, decode.table, decode.rules, fleet, seed=seed + 1, watch=watch)
    # An answer that timed out was for nothing: count its prompt as wasted on the replica that computed it.
    answered.replicas["prompt_abandoned"] = 0
    left = goes_on[written.status == TIMED_OUT]
    in_vain = requests.input_tokens[left] - read.cached_tokens[left]
    np.add.at(computed.replicas["prompt_abandoned"], read.replica[left].astype(np.int64), in_vain)
    read.status[goes_on] = written.status
    read.first_token_s[goes_on] = _told_s(written, again[goes_on], requests.output_tokens[goes_on])
    read.finish_s[goes_on] = written.finish_s
    read.preemptions[goes_on] += written.preemptions
    read.replica[goes_on] = np.where(written.replica >= 0, written.replica + fleet.prefill_replicas, -1)
    return read, [computed, answered]


def _arrival_of_kv(
    requests: Requests,
    goes_on: NDArray[np.intp],
    read: Served,
    prefill: Deployment,
    decode: Deployment,
    link_bytes_per_s: float,
) -> Floats:
    """Return when the KV of each prompt has arrived: a group sends prompts one after the other, as computed."""
    lengths, which = np.unique(requests.input_tokens, return_inverse=True)
    each_s = np.array([sent_bytes(prefill, decode, int(length)) for length in lengths]) / link_bytes_per_s
    takes_s, arrives_s = each_s[which], np.full(len(requests.input_tokens), np.inf)
    for replica in np.unique(read.replica[goes_on]):
        mine = goes_on[read.replica[goes_on] == replica]
        mine = mine[np.argsort(read.finish_s[mine], kind="stable")]
        for group in range(prefill.dp):
            own = mine[group :: prefill.dp]
            until = np.cumsum(takes_s[own])
            # Each starts when it is computed and the one before it is sent (Lindley).
            arrives_s[own] = until + np.maximum.accumulate(read.finish_s[own] - (until - takes_s[own]))
    return arrives_s


def _again(decode: Deployment, requests: Requests) -> NDArray[np.int32]:
    """Return 1 for each request whose last prompt token, and so its first answer token, the decode side computes."""
    if decode.engine.key not in _COMPUTES_AGAIN:
        return np.zeros(len(requests.input_tokens), np.int32)
    return (requests.input_tokens > 1).astype(np.int32)


def _told_s(written: Served, again: NDArray[np.int32], output_tokens: NDArray[np.int32]) -> Floats:
    """Return when the first token leaves the decode side: at admission, or after one more of its steps."""
    done = written.status == DONE
    step_s = np.where(done, (written.finish_s - written.start_s) / np.maximum(output_tokens, 1), 0.0)
    return np.asarray(written.start_s + again * step_s)


def chosen(requests: Requests, places: NDArray[np.intp], arrival_s: Floats) -> Requests:
    """Return some requests in the given order; ``arrival_s`` is when each of all joins the queue."""
    ids, starts = take_lists(requests.unit_ids, requests.unit_starts, places)
    ends, _ = take_lists(requests.unit_ends, requests.unit_starts, places)
    return requests._replace(
        arrival_s=arrival_s[places],
        input_tokens=requests.input_tokens[places],
        output_tokens=requests.output_tokens[places],
        urgency=requests.urgency[places],
        deadline_s=requests.deadline_s[places],
        shed_s=None if requests.shed_s is None else requests.shed_s[places],
        queue_limit=None if requests.queue_limit is None else requests.queue_limit[places],
        sessions=None if requests.sessions is None else requests.sessions[places],
        unit_ids=ids,
        unit_starts=starts,
        unit_ends=ends,
    )
