"""Tabulate step times so that a compiled loop reads one in tens of nanoseconds, within 1 % of ``physics.steptime``.

Everything but attention depends on the number of tokens: a dense table. Attention of the running sequences is a table
over batch and mean context, interpolated linearly between eight points per octave; attention inside prompts is a table
over chunk, past and prompts, linear in logarithms. Chunks of different lengths count as equal ones with as many tokens
and as many pairs of a token and one it attends to.

    step = tokens_s(tokens) + head_s(sequences) + attention_s(batch, context) + prompt_s(chunk, past, prompts)

on the GPU, ``launch_s`` on the host in parallel, and the time of a request outside any step. A run of decode steps in
which nothing changes is an arithmetic series in each piece of the table, so it is summed, not stepped.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokonomics.machine_code import Passed
from tokonomics.physics.curves import Array
from tokonomics.physics.operations import BESIDE_TOKENS, COOL_FROM
from tokonomics.physics.steptime import StepModel
from tokonomics.serving.compiled import compiled, entry

_PIECES = 8  # pieces of an octave of contexts; the first sixteen tokens are sixteen pieces
_FIRST = 16
_MANTISSA, _IN_PIECE = 52, 49  # bits of a float below its octave, and below the piece of an octave
_FIRST_OCTAVE = (
    (1023 + 4) << 3
) - _PIECES  # in the bits above: where the first octave's pieces begin, less those before it
_EVERY_BATCH, _BATCHES = 64.0, 256  # every batch is computed up to the first; beyond it, this many in all
_CHUNK_PIECES, _PAST_PIECES, _PROMPT_PIECES = 4, 4, 2
_PAST_SCALE = 8.0  # tokens of past from which its table becomes logarithmic
_NOTHING_S = 1e-15  # a negligible time that has a logarithm, for layers without attention


class StepColumns(NamedTuple):
    """The inputs of a step time."""

    tokens_s: Array  # by tokens of a pass on one rank
    shared_s: Array  # by tokens of a pass on all ranks: the experts and their communication
    head_s: Array  # by sequences of a pass: the vocabulary's product, and their LoRA adapters
    decode_s: Array  # [batch, context]: a step without prompts, including the host
    attention_s: Array  # [batch, context]: what the running sequences add to a step with prompts
    beside_s: Array  # by sequences: what they add besides if the prompts of a pass are long
    cool_s: Array  # by prompt tokens of a pass: what they gain if answers run beside them, but few
    prompt_log_s: Array  # [prompts, chunk, past]: logarithm of the seconds that prompts add
    launch_s: Array  # by tokens of a pass: the host's time to launch a step with prompts, in parallel to the GPU
    launch_prompt_s: float  # for each prompt in it
    host_step_s: float
    """The host's work on any step, and on each sequence: before it, or after one with prompts (``ahead``)."""
    host_sequence_s: float
    ahead: bool  # whether the next step is composed and launched while the GPU computes this one
    request_s: float
    """The way of a request in: the front end's own work on it, that per prompt token, and the rest."""
    token_s: float
    reach_s: float
    answer_s: float  # the way of a token out
    stages: int  # pipeline stages: each pass carries its share of the batch, and of prompts if there are several
    groups: int  # attention groups: each has its share of a pass, and of prompts if there are several
    aligned: bool  # whether prompts wait for each other: all groups have their share of them
    round_tokens: float = 1.0
    """Tokens that a round of drafts yields: it is composed once, and counts as this many steps without prompts here."""


class StepTable(StepColumns, Passed):
    """The step time of one deployment, with all its inputs."""


@lru_cache(maxsize=64)
def compile_steps(steps: StepModel, most_sequences: int, most_tokens: int, most_context: int) -> StepTable:
    """Tabulate a step model, for steps up to those sizes."""
    contexts = context_points(most_context)
    batches = np.arange(most_sequences + 1, dtype=np.float64)[:, None]
    passing = steps.passing(np.maximum(batches, 1))
    on_gpu = np.where(batches > 0, _attention(steps, passing, contexts), 0.0)
    sequences = np.arange(2 * most_sequences + 2, dtype=np.float64)
    gpu_s = steps.tokens_s(passing) + steps.shared_s(steps.together(np.maximum(batches, 1))) + on_gpu
    gpu_s = gpu_s + steps.head_s(passing) + steps.adapters_s(passing)
    prompts, chunks, past = prompt_axes(most_sequences, most_tokens, most_context)
    axes = chunks[:, None], past, prompts[:, None, None]
    host = steps.engine
    decode_s = steps.with_host(gpu_s, passing)
    drafts = steps.deployment.speculation
    if drafts:
        # Steps with prompts do not draft, as their batch of tokens is full. But the draft reads the prompts too.
        decode_s = steps.decode(np.maximum(batches, 1), contexts)
    both = steps.prompt_steps()
    attended = (share * model.prompt_attention_s(*axes) for share, model in both)
    inside = np.broadcast_to(sum(attended, np.zeros(1)), (len(prompts), len(chunks), len(past)))
    running = on_gpu + sum((share * _attention(model, passing, contexts) for share, model in both[1:]), np.zeros(1))
    beside = sum((share * model.beside_prompts_s(passing[:, 0]) for share, model in both), np.zeros(1))
    return StepTable(
        **_by_tokens(steps, most_sequences, most_tokens),
        head_s=steps.head_s(np.maximum(sequences, 1.0)) + steps.adapters_s(sequences),
        decode_s=np.where(batches > 0, decode_s, 0.0),
        attention_s=np.where(batches > 0, running, 0.0),
        beside_s=np.where(batches[:, 0] > 0, beside, 0.0),
        prompt_log_s=np.log(np.maximum(inside, _NOTHING_S)),
        launch_prompt_s=0.0,
        host_step_s=host.step_s if host else 0.0,
        host_sequence_s=host.sequence_s if host else 0.0,
        ahead=host.overlapped if host else False,
        request_s=host.request_s if host else 0.0,
        token_s=host.token_s if host else 0.0,
        reach_s=host.reach_s if host else 0.0,
        answer_s=host.answer_s if host else 0.0,
        stages=steps.deployment.pp,
        groups=steps.deployment.dp,
        aligned=steps.aligned,
        round_tokens=drafts.tokens_per_round if drafts else 1.0,
    )


def of_fewer(table: StepTable, steps: StepModel, most_sequences: int, most_tokens: int) -> StepTable:
    """Return the table of the same steps on a server that may hold fewer sequences than it has (``holding``)."""
    few = _by_tokens(steps, most_sequences, most_tokens)
    return table._replace(tokens_s=few["tokens_s"], shared_s=few["shared_s"], launch_s=few["launch_s"])


@lru_cache(maxsize=64)
def _by_tokens(steps: StepModel, most_sequences: int, most_tokens: int) -> dict[str, Array]:
    """Tabulate what depends on the tokens of a step with prompts: the columns that captured graphs decide, too."""
    tokens = np.maximum(np.arange(most_tokens + most_sequences + 2, dtype=np.float64), 1.0)
    # A step that counts as its share of an aligned one has the tokens of that one.
    wide = steps.deployment.dp if steps.aligned else 1
    everything = np.maximum(np.arange(wide * most_tokens + most_sequences + 2, dtype=np.float64), 1.0)
    both = steps.prompt_steps()
    return {
        "tokens_s": sum((share * model.tokens_s(tokens) for share, model in both), np.zeros(1)),
        "shared_s": sum((share * model.shared_s(everything) for share, model in both), np.zeros(1)),
        "cool_s": sum((share * model.cool_s(tokens) for share, model in both), np.zeros(1)),
        "launch_s": steps.launch_s(tokens),
    }


def _attention(steps: StepModel, passing: Array, contexts: Array) -> Array:
    """Return the attention of every batch at every context, computed for few batches as it is nearly linear between."""
    own = passing[:, 0]
    few = np.unique(np.concatenate([own[own <= _EVERY_BATCH], own[:: max(1, len(own) // _BATCHES)], own[-1:]]))
    looked_at = steps.decode_attention_s(few[:, None], contexts)
    after = np.clip(np.searchsorted(few, own), 1, max(1, len(few) - 1))
    if len(few) == 1:
        return np.broadcast_to(looked_at, (len(own), len(contexts)))
    share = ((own - few[after - 1]) / (few[after] - few[after - 1]))[:, None]
    return np.asarray(looked_at[after - 1] * (1 - share) + looked_at[after] * share)


def context_points(most: float) -> Array:
    """Return the contexts at which attention is tabulated: from 0 to ``most`` or more, and two for the last piece."""
    points = np.arange(0, _FIRST, _FIRST / _PIECES).tolist()
    octave = float(_FIRST)
    while points[-2] <= most:
        points += [octave * (1 + piece / _PIECES) for piece in range(_PIECES)]
        octave *= 2
    return np.array([*points, octave])


def prompt_axes(most_prompts: int, most_tokens: int, most_context: int) -> tuple[Array, Array, Array]:
    """Return the prompts, chunks and pasts at which attention inside prompts is tabulated."""
    prompts = np.exp2(np.arange(_PROMPT_PIECES * math.log2(most_prompts + 1) + 2) / _PROMPT_PIECES)
    chunks = np.exp2(np.arange(_CHUNK_PIECES * math.log2(most_tokens + 1) + 2) / _CHUNK_PIECES)
    last = _PAST_PIECES * math.log2(1 + most_context / _PAST_SCALE)
    past = _PAST_SCALE * (np.exp2(np.arange(last + 2) / _PAST_PIECES) - 1)
    return prompts, chunks, past


@entry
def step_s(table: StepTable, decodes: int, kv_tokens: float, prompt_tokens: int, prompts: int, pairs: float) -> float:
    """Return the seconds of one step that is composed when the one before it is done."""
    on_gpu = gpu_s(table, decodes, kv_tokens, prompt_tokens, prompts, pairs)
    return max(on_gpu, launching_s(table, decodes, prompt_tokens, prompts)) + after_s(table, decodes, prompt_tokens)


@entry
def launching_s(table: StepTable, decodes: int, prompt_tokens: int, prompts: int) -> float:
    """Return the seconds that the host needs from composing a step until it is launched."""
    batch = _passing(table, decodes)
    without = (table.host_step_s + table.host_sequence_s * batch) / table.round_tokens if table.ahead else 0.0
    if prompt_tokens == 0:
        return without
    share = _share_of_aligned(table, prompts)
    own = prompts / share / min(prompts / share, table.groups)
    on_sequences = table.host_sequence_s * (batch + own) if table.ahead else 0.0
    passes = min(prompts / share, table.stages * table.groups)
    launch_s = _between(table.launch_s, prompt_tokens / share / passes + batch)
    return share * (launch_s + on_sequences + table.launch_prompt_s * own) + (1 - share) * without


@entry
def after_s(table: StepTable, decodes: int, prompt_tokens: int) -> float:
    """Return the seconds of the host's work after a step with prompts, if it is not parallel to the next."""
    if prompt_tokens == 0 or table.ahead:
        return 0.0
    return table.host_step_s + table.host_sequence_s * _passing(table, decodes)


@entry
def gpu_s(table: StepTable, decodes: int, kv_tokens: float, prompt_tokens: int, prompts: int, pairs: float) -> float:
    """Return the seconds of one step on the GPU; of one without prompts, including the host.

    ``decodes`` sequences attend to ``kv_tokens`` tokens together; ``prompts`` chunks have ``prompt_tokens`` tokens and
    ``pairs`` pairs of a token and one it attends to.
    """
    if prompt_tokens == 0:
        return _at_context(table.decode_s[decodes], kv_tokens / decodes)
    share = _share_of_aligned(table, prompts)
    some, tokens = prompts / share, prompt_tokens / share
    passes = min(some, table.stages * table.groups)
    batch = _passing(table, decodes)
    total = _between(table.tokens_s, tokens / passes + batch) + _between(table.head_s, some / passes + batch)
    total += _between(table.shared_s, tokens / min(some, table.stages) + max(decodes / table.stages, min(decodes, 1.0)))
    chunk = tokens / some
    past = max(0.0, pairs / prompt_tokens - 0.5 * (chunk + 1))
    total += _prompt_s(table.prompt_log_s, some / passes, chunk, past)
    if decodes > 0:
        total -= _between(table.cool_s, tokens / passes) * min(1.0, batch / COOL_FROM)
        total += _at_context(table.attention_s[decodes], kv_tokens / decodes)
        total += float(table.beside_s[decodes]) * min(1.0, (tokens - some) / passes / BESIDE_TOKENS)
        if share < 1.0:
            return share * total + (1 - share) * _at_context(table.decode_s[decodes], kv_tokens / decodes)
    return share * total


@compiled
def _share_of_aligned(table: StepTable, prompts: int) -> float:
    """Return the share of an aligned step that a step with fewer prompts than groups counts for."""
    return min(1.0, prompts / table.groups) if table.aligned else 1.0


@compiled
def _passing(table: StepTable, decodes: int) -> float:
    """Return the same as ``StepModel.passing``."""
    return max(decodes / (table.stages * table.groups), min(decodes, 1.0))


@entry
def run_s(table: StepTable, decodes: int, kv_tokens: float, steps: int) -> float:
    """Return the seconds of ``steps`` decode steps in a row, each adding a token to every sequence."""
    context = kv_tokens / decodes
    total = 0.0
    left = steps
    while left > 0:
        piece, start, width = context_piece(context)
        inside = min(left, max(1, math.ceil(start + width - context)))
        low = table.decode_s[decodes, piece]
        slope = (table.decode_s[decodes, piece + 1] - low) / width
        total += inside * (low + slope * (context - start + 0.5 * (inside - 1)))
        context += inside
        left -= inside
    return total


@entry
def steps_until(table: StepTable, decodes: int, kv_tokens: float, most: int, span_s: float) -> int:
    """Return how many decode steps, from one to ``most``, it takes until ``span_s`` seconds have passed."""
    context = kv_tokens / decodes
    total = 0.0
    done = 0
    while done < most:
        piece, start, width = context_piece(context)
        inside = min(most - done, max(1, math.ceil(start + width - context)))
        low = table.decode_s[decodes, piece]
        slope = (table.decode_s[decodes, piece + 1] - low) / width
        first = low + slope * (context - start)
        if total + inside * (first + slope * 0.5 * (inside - 1)) >= span_s:
            few = 1
            many = inside
            while few < many:
                middle = (few + many) // 2
                if total + middle * (first + slope * 0.5 * (middle - 1)) >= span_s:
                    many = middle
                else:
                    few = middle + 1
            return done + few
        total += inside * (first + slope * 0.5 * (inside - 1))
        context += inside
        done += inside
    return most


@compiled
def context_piece(context: float) -> tuple[int, float, float]:
    """Return the piece of the context table that holds a value: its index, start and width."""
    if context < _FIRST:
        width = _FIRST / _PIECES
        piece = int(context / width)
        return piece, piece * width, width
    # The bits of a float are its octave, then the mantissa, whose first three bits are one of eight pieces.
    bits = np.float64(context).view(np.int64)
    octave = np.int64(bits >> _MANTISSA << _MANTISSA).view(np.float64)
    start = np.int64(bits >> _IN_PIECE << _IN_PIECE).view(np.float64)
    return int((bits >> _IN_PIECE) - _FIRST_OCTAVE), float(start), float(octave / _PIECES)


@compiled
def _at_context(values: Array, context: float) -> float:
    piece, start, width = context_piece(context)
    return float(values[piece] + (values[piece + 1] - values[piece]) * (context - start) / width)


@compiled
def _between(values: Array, place: float) -> float:
    low = int(place)
    return float(values[low] + (values[low + 1] - values[low]) * (place - low))


@compiled
def _prompt_s(log_s: Array, prompts: float, chunk: float, past: float) -> float:
    """Interpolate trilinearly in logarithms."""
    x = math.log2(prompts) * _PROMPT_PIECES
    y = math.log2(chunk) * _CHUNK_PIECES
    z = math.log2(1 + past / _PAST_SCALE) * _PAST_PIECES
    i, j, k = int(x), int(y), int(z)
    x -= i
    y -= j
    z -= k
    near = (1 - y) * ((1 - z) * log_s[i, j, k] + z * log_s[i, j, k + 1])
    near += y * ((1 - z) * log_s[i, j + 1, k] + z * log_s[i, j + 1, k + 1])
    if x == 0.0:
        return math.exp(near)
    far = (1 - y) * ((1 - z) * log_s[i + 1, j, k] + z * log_s[i + 1, j, k + 1])
    far += y * ((1 - z) * log_s[i + 1, j + 1, k] + z * log_s[i + 1, j + 1, k + 1])
    return math.exp((1 - x) * near + x * far)
