"""What the work of a replica adds up to: seconds, tokens and blocks, in total and over time.

Time is kept in a fixed number of bins; when it runs past the last one, neighbours merge and bins become twice as wide.
"""

from tokonomics.serving.compiled import compiled
from tokonomics.serving.state import ANSWERS, BUSY, KV, PROMPTS, SEQUENCES, Floats, Row


@compiled
def count_busy(
    replica: Row, clock: Row, timeline: Floats, kv_blocks: int, start_s: float, end_s: float, steps: int
) -> None:
    """Enter steps of the run in flight into the totals and the timeline; none when they were lost."""
    used = kv_blocks - replica.free - replica.evictable
    answers = steps * replica.run_decodes
    prompts = replica.run_prompt_tokens if steps > 0 else 0
    replica.busy_s += end_s - start_s
    replica.kv_peak = max(replica.kv_peak, used)
    replica.answer_tokens += answers
    replica.prompt_tokens += prompts
    bins = len(timeline)
    while end_s >= clock.bin_s * bins:
        for place in range(bins):
            for column in range(timeline.shape[1]):
                merged = 0.0
                if 2 * place < bins:
                    merged = timeline[2 * place, column] + timeline[2 * place + 1, column]
                timeline[place, column] = merged
        clock.bin_s *= 2
    width = clock.bin_s
    span = end_s - start_s
    sequences = replica.run_decodes + replica.run_prompts
    place = int(start_s / width)
    while True:
        inside = min(end_s, (place + 1) * width) - max(start_s, place * width)
        share = inside / span if span > 0 else 1.0
        timeline[place, BUSY] += inside
        timeline[place, SEQUENCES] += sequences * inside
        timeline[place, KV] += used * inside
        timeline[place, ANSWERS] += answers * share
        timeline[place, PROMPTS] += prompts * share
        place += 1
        if place * width >= end_s:
            return


@compiled
def count_abandoned(replica: Row, request: Row) -> None:
    """Work done for a client that hung up; what it had been computed for before a preemption included."""
    replica.prompt_abandoned += max(0, min(request.seen, request.input_tokens) - request.cached_tokens)
    replica.answer_abandoned += max(0, request.generated - 1)
