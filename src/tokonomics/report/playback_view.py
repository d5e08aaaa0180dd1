"""A run to play: the lanes and counters that the page draws, with their texts, and who missed the SLO, in words."""

import math
from collections.abc import Sequence
from typing import Any

from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE
from tokonomics.serving.outcome import Outcome
from tokonomics.serving.playback import MissCause, MissedRequest, MissMark, Playback
from tokonomics.traffic.slo import Latency
from tokonomics.units import TOKENS_PER_MTOK, count, percent, plural, seconds, usd

_CAUSES = {
    MissCause.queue: "it waited in the queue",
    MissCause.prefill: "its prompt took long",
    MissCause.preemption: "it lost its place in memory and was computed again",
    MissCause.decode: "its answer was written slowly",
    MissCause.outage: "it began again when its replica failed",
    MissCause.session: "its job as a whole took too long",
    MissCause.limits: "it was turned away by the limits of its class",
    MissCause.refused: "it is longer than the context or the memory",
    MissCause.unserved: "it never had a replica, or was never sent",
}
_ABOUT = (
    "At each moment, all replicas together: running counts requests that have begun and are not done; memory is the "
    "mean since the moment before; tokens are those of finished requests, prompts included."
)
_LATENCIES = {Latency.ttft: "TTFT", Latency.tpot: "TPOT", Latency.e2e: "e2e", Latency.job: "job"}


def player(made: Outcome, found: Playback) -> dict[str, Any]:
    """What the page plays: texts of every counter at every moment, values of the lanes, and marks with their words."""
    missed = "missed the SLO" if _is_judged(made, found) else "failed"
    counters = [
        ("arrived", _counts(found.arrived)),
        ("waiting", _counts(found.waiting)),
        ("running", _counts(found.running)),
        ("finished", _counts(found.finished)),
        *([("failed", _counts(found.failed))] if found.failed[-1] else []),
        *([("missed SLO", _counts(found.missed))] if _is_judged(made, found) else []),
        *([("replicas", _counts(found.replicas))] if found.replicas else []),
        ("tokens", [count(tokens) for tokens in found.tokens]),
    ]
    if found.usd is not None:
        pairs = zip(found.usd, found.tokens, strict=True)
        prices = [usd(paid / tokens * TOKENS_PER_MTOK) if tokens else NO_VALUE for paid, tokens in pairs]
        counters += [("paid", [usd(paid) for paid in found.usd]), ("$/Mtok so far", prices)]
    lanes = [
        _lane("Waiting requests", found.waiting, _counts(found.waiting)),
        _lane("Running requests", found.running, _counts(found.running)),
        _lane("KV memory in use", found.kv_share, [percent(share) for share in found.kv_share], full=1.0),
    ]
    return {
        "about": _ABOUT,
        "end_s": found.at_s[-1],
        "at_s": list(found.at_s),
        "times": [seconds(at_s) for at_s in found.at_s],
        "counters": [{"name": name, "texts": texts} for name, texts in counters],
        "lanes": lanes,
        "missed": _told(made, found),
        "marks": [_mark(mark, missed) for mark in found.marks],
    }


def missed_sections(made: Outcome, found: Playback | None) -> blocks.View:
    """Why requests missed the SLO, and the worst of them; nothing where none did."""
    if found is None or not found.marks:
        return
    rows = [(_CAUSES[row.cause], f"{row.requests:,}", percent(row.requests / found.missed[-1])) for row in found.causes]
    worst = sorted((request for mark in found.marks for request in mark.worst), key=_how_late, reverse=True)
    yield blocks.section(
        blocks.line(_told(made, found)),
        blocks.table(["why", ">requests", ">share"], rows),
        *(blocks.line(f"{seconds(request.at_s)}: {who(request)}") for request in worst[:5]),
        title="Who missed the SLO, and why" if _is_judged(made, found) else "What failed, and why",
    )


def _how_late(request: MissedRequest) -> float:
    judged = request.delivered_s is not None and request.objective_s
    return (request.delivered_s or 0.0) / (request.objective_s or 1.0) if judged else math.inf


def _is_judged(made: Outcome, found: Playback) -> bool:
    """There is an SLO, of all requests or of a class."""
    return bool(made.slo) or found.missed != found.failed


def _told(made: Outcome, found: Playback) -> str:
    """How many missed it."""
    missed = found.missed[-1]
    judged = _is_judged(made, found)
    if not missed:
        return "No request missed the SLO." if judged else "No request failed."
    share = f"{missed:,} of {plural(made.requests, 'request')} ({percent(missed / made.requests)})"
    return f"{share} {'were not answered within every SLO' if judged else 'were not answered'}."


def _counts(values: Sequence[int]) -> list[str]:
    return [f"{value:,}" for value in values]


def _lane(name: str, values: Sequence[float], texts: list[str], full: float | None = None) -> dict[str, Any]:
    """One band of the figure, from 0 to its highest value; of what can be full, to that where it was half full."""
    peak = max(range(len(values)), key=lambda place: values[place])
    top = full if full is not None and values[peak] > full / 2 else values[peak] or 1.0
    most = f"{texts[peak]} at the highest moment"
    return {"name": name, "values": list(values), "top": top, "most": most, "texts": texts}


def _mark(mark: MissMark, missed: str) -> dict[str, Any]:
    span = seconds(mark.from_s)
    if seconds(mark.to_s) != span:
        span = f"{span} to {seconds(mark.to_s)}"
    others = mark.missed - len(mark.worst)
    return {
        "moment": mark.moment,
        "from_s": mark.from_s,
        "to_s": mark.to_s,
        "missed": mark.missed,
        "title": f"{span}: {plural(mark.missed, 'request')} {missed}",
        "who": [who(request) for request in mark.worst],
        "others": f"and {plural(others, 'other')}" if others else "",
    }


def who(request: MissedRequest) -> str:
    """Who missed it, by how much, and what it waited for, in a sentence."""
    session = None if request.session is None else f"{request.session + 1:,}"
    owners = {"tenant": request.tenant, "class": request.service, "session": session}
    owner = ", ".join(f"{kind} {name}" for kind, name in owners.items() if name is not None)
    named = f"request {request.request:,}{f' ({owner})' if owner else ''}"
    asked = f"{plural(request.input_tokens, 'prompt token')}, {plural(request.output_tokens, 'answer token')}"
    late = f"{request.status} after {seconds(request.queue_s + request.prefill_s + request.decode_s)}"
    if request.latency is not None and request.delivered_s is not None and request.objective_s is not None:
        target = seconds(request.objective_s)
        late = f"{_LATENCIES[request.latency]} {seconds(request.delivered_s)}, SLO {target}"
    if request.cause in (MissCause.refused, MissCause.unserved, MissCause.limits):
        late = request.status
    return f"{named}: {late}; {asked}; {_why(request)}"


def _why(request: MissedRequest) -> str:
    behind = f" behind {plural(request.ahead, 'other')}" if request.ahead else ""
    beside = f" beside {plural(request.beside, 'other')}" if request.beside else ""
    cached = f", {plural(request.cached_tokens, 'token')} of it cached," if request.cached_tokens else ""
    match request.cause:
        case MissCause.queue:
            return f"it waited {seconds(request.queue_s)} in the queue{behind}"
        case MissCause.prefill:
            waited = f" after {seconds(request.queue_s)} in the queue{behind}" if request.queue_s else ""
            return f"its prompt{cached} took {seconds(request.prefill_s)}{beside}{waited}"
        case MissCause.preemption:
            again = plural(request.preemptions, "time")
            return f"it lost its place in memory {again}, and its answer took {seconds(request.decode_s)}"
        case MissCause.decode:
            return f"its answer took {seconds(request.decode_s)}{beside} in the batch"
        case _:
            return _CAUSES[request.cause]
