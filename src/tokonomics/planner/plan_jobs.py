"""What a session of the planned traffic costs and takes on a candidate."""

from tokonomics.planner.plan_answer import CandidateJob
from tokonomics.planner.search import Placed
from tokonomics.sizing.attempt import cached_share
from tokonomics.sizing.load import Load


def job_of(load: Load, sized: Placed, usd_per_second: float) -> CandidateJob | None:
    """A session's share of the bill, and how long it takes; None where the traffic has no sessions."""
    turns = load.trace.turns
    if turns is None or not turns.sessions:
        return None
    requests = len(load.trace) / turns.sessions
    per_s = load.workload.rate / requests
    made = sized.trial.outcome if sized.trial else None
    seen = made.sessions if made else None
    return CandidateJob(
        requests=requests,
        per_s=per_s,
        usd=usd_per_second / per_s,
        job_s=seen.job_s if seen else None,
        server_share=seen.server_share if seen else None,
        cached_share=cached_share(made) if made else None,
    )
