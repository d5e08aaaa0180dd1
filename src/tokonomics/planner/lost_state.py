"""What a spot machine that is taken back costs conversations: prefixes in its memory, computed again elsewhere.

The tokens that wait in a cache for their next use are known from the log (``traffic.prefix_reuse.waiting_state``); each
replica holds its share of them, as far as its memory goes.
"""

from tokonomics.money.spot_verdict import LostState
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.traffic.prefix_reuse import waiting_state
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_HOUR


def lost_state(deployment: Deployment, trace: Trace | None, replicas: int, share: float = 1.0) -> LostState | None:
    """What goes with one of so many replicas, None where nothing is shared; ``share``: of the rate in the trace."""
    if trace is None or not deployment.reuses_prefixes:
        return None
    tokens, requests = (number / share / replicas for number in waiting_state(trace))
    if not tokens:
        return None
    block = deployment.engine.kv_block_tokens
    kept = min(1.0, max_sequences(deployment, block) * block / tokens)
    each = max(1, round(tokens / requests))
    return LostState(
        tokens=tokens * kept,
        requests=requests * kept,
        prefill_s=requests * kept * float(step_model(deployment).prefill(each)),
        requests_per_hour=len(trace) / trace.duration_s * SECONDS_PER_HOUR / share / replicas,
    )
