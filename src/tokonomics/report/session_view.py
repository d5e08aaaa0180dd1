"""Conversations and jobs as answers show them: what one costs, how long it takes, what of each turn was cached."""

import math
from collections.abc import Iterable, Sequence

from tokonomics.errors import option
from tokonomics.report import blocks
from tokonomics.report.wording import percent_text, time_text, turn_text
from tokonomics.serving.session_outcome import SessionOutcome
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.session_summary import LogPace
from tokonomics.units import percent, plural, requests_a_second, usd


def job_facts(made: SessionOutcome, usd_per_job: float | None) -> Iterable[blocks.Fact]:
    """Of all sessions together."""
    if usd_per_job is not None:
        requests = f"{made.requests_per_job:.3g} requests each, the whole bill over the finished ones"
        yield blocks.fact("per job", usd(usd_per_job), requests, number=usd_per_job)
    rate = f"{made.jobs_per_s:.3g}/s" if made.jobs_per_s >= 0.01 else f"{made.jobs_per_s * 3600:.3g}/h"
    yield blocks.fact("jobs", rate, f"{made.finished:,} of {plural(made.jobs, 'session')} finished")
    if made.job_s.p99 is not None:
        waits = "" if made.server_share is None else f"; {percent(made.server_share)} of it with the server"
        of = f"of the {made.finished:,} finished: " if made.failed else ""
        said = f"{of}p50 {time_text(made.job_s.p50)}, from the first request to the last answer{waits}"
        yield blocks.fact("job p99", time_text(made.job_s.p99), said, number=made.job_s.p99)
    if made.retries:
        yield blocks.fact("retries", f"{made.retries:,}", "requests sent again after a time-out")


def short_run(made: SessionOutcome, requests: int, made_up: bool) -> blocks.Line | None:
    """How much of a short run is ramp-up and drain, and how long one would tell the steady cost."""
    times = made.short_of
    if times is None:
        return None
    digits = 10 ** max(0, len(f"{requests * times:.0f}") - 2)
    more = max(ENOUGH_REQUESTS, math.ceil(requests * times / digits) * digits)
    longer = f"{option('requests', more)} tells" if made_up else "a longer log would tell"
    starts = f"Sessions start for {time_text(made.starts_s)} and a job takes {time_text(made.job_s.p50)}"
    return blocks.hint(
        f"{starts}: ramp-up and drain are {percent(made.edges_share)} of the run; {longer} the steady cost."
    )


def turn_table(made: SessionOutcome) -> blocks.Table:
    """What of the prompts of each turn was found in a cache."""
    rows = [
        [turn_text(row.first, row.last), f"{row.requests:,}", f"{row.mean_input:,.0f}", percent_text(row.cached_share)]
        for row in made.turns_alike
    ]
    return blocks.table(["turn", ">requests", ">mean prompt", ">cached"], rows)


def turns_side_by_side(names: Sequence[str], made: Sequence[SessionOutcome]) -> blocks.Table:
    """The cached share of each turn, a row for each way to serve them."""
    found = [{turn_text(row.first, row.last): row.cached_share for row in one.turns_alike} for one in made]
    turns = list(dict.fromkeys(turn for row in found for turn in row))
    rows = [
        [name, *(percent_text(row.get(turn)) for turn in turns), time_text(one.job_s.p50), time_text(one.job_s.p99)]
        for name, row, one in zip(names, found, made, strict=True)
    ]
    heads = [f">turn {turn}" if place == 0 else f">{turn}" for place, turn in enumerate(turns)]
    return blocks.table(["!", *heads, ">job p50", ">p99"], rows)


def log_pace_note(pace: LogPace) -> blocks.Line:
    """Why a log of sessions is planned at more requests a second than it has over all its time."""
    return blocks.note(
        f"The log's sessions begin at {pace.sessions_per_s:.3g} a second, of {pace.requests_per_session:.3g} requests "
        f"each: {requests_a_second(f'{pace.requests_per_s:.3g}')} once as many end as begin, for which this is "
        "planned. From its first request to its last, while it fills and drains, it has "
        f"{pace.requests_per_s_over_all:.3g}."
    )
