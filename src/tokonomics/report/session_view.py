"""Conversations and jobs as answers show them: what one costs, how long it takes, what of each turn was cached."""

import math
from collections.abc import Iterable, Sequence

from tokonomics.errors import option
from tokonomics.report import blocks
from tokonomics.report.wording import percent_text, time_text, turn_text
from tokonomics.serving.outcome import Outcome
from tokonomics.serving.session_outcome import SessionOutcome
from tokonomics.traffic.sessions import LogPace
from tokonomics.units import percent, plural, requests_a_second, usd


def job_facts(made: SessionOutcome, usd_per_job: float | None) -> Iterable[blocks.Fact]:
    """Of all sessions together."""
    if usd_per_job is not None:
        requests = f"{made.requests_per_job:.3g} requests each, the paid time over the finished ones"
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


def short_run(made: Outcome, made_up: bool) -> blocks.Line | None:
    """That a run is too short to leave out its ramp-up and drain, and how long one would tell the steady cost."""
    if made.times_longer is None:
        return None
    wanted = made.requests * made.times_longer
    digits = 10 ** max(0, len(f"{wanted:.0f}") - 2)
    longer = (
        f"{option('requests', math.ceil(wanted / digits) * digits)} tells" if made_up else "a longer log would tell"
    )
    lasting = f"of the {time_text(made.duration_s)} of this run, most is ramp-up and drain"
    return blocks.hint(f"Rates and prices are of the whole run, which is short: {lasting}. {longer} the steady cost.")


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
