"""Show simulations: what was paid for and got, the rate that holds, and a run to play, naming who missed its SLO."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tokonomics.errors import option
from tokonomics.money.trace_bills import ServedCost
from tokonomics.questions.request import Request
from tokonomics.questions.serving import AS_GIVEN
from tokonomics.questions.simulate import CapacityResult, SimulateResult
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.shared_view import class_sections, job_facts, short_run, turn_table
from tokonomics.report.wording import (
    ENCODER_SPEED,
    NO_VALUE,
    TOWER_SPEED,
    duration_text,
    marked_old,
    percent_text,
    thinking_facts,
    time_text,
)
from tokonomics.serving.outcome import Outcome, SloOutcome
from tokonomics.serving.playback import MissCause, MissedRequest, MissMark, Playback
from tokonomics.serving.simulator import Simulation
from tokonomics.traffic.slo import Latency
from tokonomics.units import BYTES_PER_GB, TOKENS_PER_MTOK, count, percent, plural, requests_a_second, seconds, usd

if TYPE_CHECKING:
    from tokonomics.sizing.search import Trial

_COLOURS: dict[str, blocks.Colour] = {
    "prefill": "blue", "decode": "green", "recomputed": "yellow", "abandoned": "red", "idle": "grey",
}  # fmt: skip
_SIDE_COLOURS: dict[str, blocks.Colour] = {
    "prefill busy": "blue", "prefill idle": "grey", "decode busy": "green", "decode idle": "grey",
}  # fmt: skip
"""Colours for the bill of a disaggregated fleet, whose sides have a price each."""


def simulate(result: SimulateResult, request: Request) -> Answer:
    """Show latency, throughput, where the time went, and what failed."""
    log, served = result.log, what_serves(result.simulation)
    subtitle = f"{log.source}: {plural(result.requests, 'request')}, {log.rate:.3g} a second"
    drawn = {"What happens over time": lambda: charts.traffic.simulate_chart(result, result.timeline, served, subtitle)}
    view = partial(_simulation, result, getattr(request, "trace", None) is None)
    plays = partial(player, result, result.playback) if result.playback else None
    return Answer(result, f"{served} under {log.source}", view, drawn, plays=plays)


def capacity(result: CapacityResult, request: Request) -> Answer:
    """Show the rate that holds, what is missed beyond it, and the fleet that a log needs."""
    best, log = result.highest_rate, result.log
    points = [(trial.rate, trial.outcome) for trial in best.trials]
    chart = lambda: charts.traffic.capacity_chart(points, result.deployment, log.source, best.rate)  # noqa: E731
    title = f"What {result.deployment} holds"
    given = (getattr(request, name, None) for name in ("trace", "arrivals", "sessions"))
    shown = f"{log.source}: " if any(value is not None for value in given) else ""
    return Answer(result, title, partial(_capacity, result, shown), {"Latency as the rate grows": chart})


def _simulation(made: SimulateResult, made_up: bool) -> blocks.View:
    simulation, cost = made.simulation, made.cost
    model = simulation.deployment.model
    value = f"{made.output_tokens_per_s:,.0f} output tokens/s"
    if model.is_encoder:
        value = f"{made.total_tokens_per_s:,.0f} tokens/s"
    if cost and cost.usd_per_mtok is not None:
        value = f"{usd(cost.usd_per_mtok)} per million tokens"
    missed = ", ".join(slo.slo for slo in made.slo if not slo.met)
    said = f"{value}, {missed} missed" if missed else value
    old = marked_old(cost.price_from) if cost else ""
    yield blocks.headline(said, f": {what_serves(simulation)}{old}", "worst" if missed else "best")
    yield _latencies(made, model.is_encoder)
    yield blocks.section(*_slos(made))
    yield from class_sections(made.classes)
    yield from missed_sections(made, made.playback)
    yield blocks.section(*_shares(made, cost))
    yield _figures(made)
    if made.sessions:
        yield blocks.facts(*job_facts(made.sessions, made.usd_per_job))
        yield turn_table(made.sessions.turns_alike)
    yield short_run(made, made_up)
    yield _hint(made, made_up)
    yield blocks.note(
        f"Traffic: {simulation.trace.source}, {_offered(made)}: {made.lengths}.",
        _price_text(cost, simulation.fleet.prefill is None) if cost else "",
        f"Every prompt has {model.images.tokens:,} tokens of images, of a vision tower {TOWER_SPEED}."
        if model.images
        else "",
        f"An encoder's speed: {ENCODER_SPEED}." if model.is_encoder else "",
        "Latencies are of answered requests; step times are modelled: tokonomics predict shows how sure they are.",
    )


def _offered(made: SimulateResult) -> str:
    """Say how many requests there are, and in which time they arrive, or sessions begin."""
    requests, whole = plural(made.requests, "request"), duration_text(made.simulation.trace.duration_s)
    if not made.sessions:
        return f"{requests} over {whole}"
    begin = f"{plural(made.sessions.jobs, 'session')} that begin within {duration_text(made.sessions.starts_s)}"
    return f"{requests} of {begin} ({requests_a_second(f'{made.log.rate:.3g}')} offered), the last sent after {whole}"


def _price_text(cost: ServedCost, alike: bool) -> str:
    """Name the price and its source; if replicas are alike and it was looked up, say how it was chosen."""
    usual = ", the cheapest on demand by the rules of a plan" if alike and cost.price_from != AS_GIVEN else ""
    return f"Price: {usd(cost.usd_per_replica_hour)} an hour for a replica{usual} ({cost.price_from})."


def what_serves(simulation: Simulation) -> str:
    """Describe the deployment, its engine and its replicas."""
    fleet = simulation.fleet
    replicas = plural(fleet.autoscale.max_replicas if fleet.autoscale else fleet.replicas, "replica")
    if fleet.autoscale:
        replicas = f"up to {replicas}"
    if fleet.prefill_replicas:
        replicas = f"{fleet.prefill_replicas:,} prefill + {fleet.replicas:,} decode replicas"
    deployment, engine = simulation.deployment, simulation.deployment.engine.key
    if fleet.prefill:
        return f"{fleet.prefill_replicas:,} × ({fleet.prefill}) prefill + {fleet.replicas:,} × ({deployment}), {engine}"
    return f"{deployment}, {engine}, {replicas}"


def _latencies(made: Outcome, encoder: bool) -> blocks.Table:
    times = {} if encoder else {"first token (TTFT)": made.ttft_s, "per token after (TPOT)": made.tpot_s}
    times |= {"whole request (e2e)" if encoder else "whole answer (e2e)": made.e2e_s, "of that, waiting": made.queue_s}
    names = ("p50", "p90", "p95", "p99", "mean")
    rows = [(what, *(time_text(getattr(spread, name)) for name in names)) for what, spread in times.items()]
    return blocks.table(["latency", *(f">{name}" for name in names)], rows)


def _slos(made: Outcome) -> Iterable[blocks.Block]:
    for slo in made.slo:
        mark = blocks.Span("met   ", "best") if slo.met else blocks.Span("MISSED", "worst")
        delivered = "" if slo.delivered_s is None else f" {seconds(slo.delivered_s)}"
        why = f": {made.never_answered(slo)}" if slo.delivered_s is None else ""
        yield blocks.line(mark, f"  {slo.slo}{delivered}, SLO {seconds(slo.objective_s)}{why}")
    if made.slo:
        attained = percent(made.slo_attainment or 0.0)
        good = requests_a_second(f"{made.goodput_per_s:.3g}")
        yield blocks.line(f"{attained} of all requests answered within every SLO: {good}")


def _shares(made: Outcome, cost: ServedCost | None) -> Iterable[blocks.Block]:
    bill = cost.usd if cost else None
    paid = f", {usd(bill)}" if bill else ""
    yield blocks.line(f"{made.replica_hours:.3g} replica-hours paid for{paid}", kind="heading")
    named = [(name, getattr(made.shares, name), colour) for name, colour in _COLOURS.items()]
    if cost and bill and cost.tree.lines[0].name in _SIDE_COLOURS:
        named = [(line.name, line.usd / bill, _SIDE_COLOURS[line.name]) for line in cost.tree.lines]
    yield blocks.bar(named, lambda size: percent(size) + (f" {usd(size * bill)}" if bill else ""), least=0.0005)


def _figures(made: SimulateResult) -> blocks.Facts:
    simulation, cost = made.simulation, made.cost
    rules, encoder = simulation.rules, simulation.deployment.model.is_encoder
    # Windows and recurrent states take blocks for any number of tokens, so a token count would mislead.
    room = "" if rules.fixed_blocks else f", of {count(rules.kv_blocks * rules.block_tokens)} tokens"
    unsent = made.sessions.unsent if made.sessions else 0
    lost = (
        ("preemptions", made.preemptions, "requests lost their place and were computed again"),
        ("restarts", made.restarts, "requests began again when their replica failed"),
        ("refused", made.refused, f"longer than the context of {rules.max_context:,} tokens or a replica's memory"),
        ("timed out", made.timed_out, "clients hung up"),
        ("never sent", unsent, "an earlier request of their session failed"),
        ("unserved", made.unserved - unsent, "no replica was up"),
        ("shed", made.shed, "turned away by the limits of their class"),
    )
    rate = made.total_tokens_per_s if encoder else made.output_tokens_per_s
    written = "" if encoder else f"{made.total_tokens_per_s:,.0f} with prompts"
    replicas = f"paid for in the mean, {made.peak_replicas} at the most"
    return blocks.facts(
        blocks.fact("read" if encoder else "output", f"{rate:,.0f} tok/s", written, number=rate, less="worse"),
        ("requests", f"{made.requests_per_s:,.3g}/s", f"{made.completed:,} of {made.requests:,} answered"),
        ("busy", percent(made.busy_share), f"of the paid time; {percent(made.useful_share)} computing what was used"),
        ("load", percent_text(made.load_share), "of the requests that full batches would finish"),
        ("batch", f"{made.batch:,.1f}", f"sequences in a step, in the mean; at most {rules.max_sequences:,}"),
        None if encoder else ("KV cache", percent(made.kv_peak_share), f"full at the most{room}"),
        ("replicas", f"{made.mean_replicas:.3g}", replicas) if simulation.fleet.autoscale else None,
        *_pools(made),
        ("cached", percent(made.cached_tokens / made.input_tokens), "of prompt tokens came from the cache")
        if made.cached_tokens
        else None,
        *(blocks.fact(name, f"{number:,}", why) for name, number, why in lost if number),
        ("output alone", usd(cost.usd_per_mtok_output), "the whole bill per million output tokens")
        if cost and cost.usd_per_mtok_output is not None
        else None,
        *thinking_facts(made.thinking),
    )


def _pools(made: SimulateResult) -> list[blocks.Fact]:
    """Show how busy the two sides of a disaggregated fleet are: the fuller one needs replicas."""
    fleet = made.simulation.fleet
    if not fleet.prefill_replicas:
        return []
    link = f"; KV sent over {fleet.link_bytes_per_s / BYTES_PER_GB:,.4g} GB/s a GPU"
    return [
        blocks.fact(
            f"{side.does} side",
            percent(side.busy_share),
            f"busy, {plural(side.replicas, 'replica')}; KV cache {percent(side.kv_peak_share)} full at the most"
            f"{link if side.does == 'prefill' else ''}",
        )
        for side in made.sides
    ]


def _hint(made: SimulateResult, made_up: bool) -> blocks.Line | None:
    """Say what to do next if something stands out: the first hint that applies."""
    fleet, rules = made.simulation.fleet, made.simulation.rules
    waits, missed = (made.queue_s.p50 or 0.0) > 1.0, made.slo_met is False
    full = made.batch > 0.8 * rules.max_sequences * made.mean_replicas
    replicas, most, context = option("replicas"), option("max_sequences"), f"{rules.max_context:,} tokens of context"
    limit = "requests beyond it are refused, which ends their session"
    if made_up:
        limit = f"sessions end before that with limit={rules.max_context} in {option('sessions')}"
    bits, kv = f"{option('weights')}, {option('kv')}", option("kv", "fp8")
    hopeless = f"{made.hopeless.reason}. {made.hopeless.what_to_do}" if made.hopeless else ""
    advice = (
        (made.sessions and made.too_long, f"Sessions grow longer than the model's {context}: {limit}."),
        (made.refused == made.requests, f"Nothing fits: take a larger GPU, more of them ({option('tp')}), or {bits}."),
        (waits and made.kv_peak_share < 0.5 and full,
         f"Requests wait although memory is free: the engine runs {rules.max_sequences:,} at once ({most})."),
        (fleet.prefill_replicas and (waits or missed),
         f"Add to the busier side: {option('prefill_replicas')} for first tokens, {replicas} for the others."),
        (fleet.autoscale and (waits or missed),
         "The fleet follows too slowly: a lower target, a shorter cold start, or more replicas at least (min=)."),
        (made.hopeless, f"An SLO is missed: {hopeless}"),
        (missed, f"An SLO is missed: add {replicas}, or ask tokonomics simulate --capacity how many it takes."),
        (waits, f"Requests queue for seconds: add {replicas}, or ask tokonomics simulate --capacity."),
        (made.preemptions > made.requests / 10,
         f"The KV cache is too small for this batch: lower {most}, use {kv}, or a larger GPU."),
        (made.batch < 4 and made.busy_share < 0.5,
         "The replica mostly waits: a smaller GPU or fewer replicas would do (tokonomics plan)."),
    )  # fmt: skip
    said = next((text for applies, text in advice if applies), "")
    return blocks.hint(said) if said else None


def _capacity(result: CapacityResult, source: str) -> blocks.View:
    best, log, needed, cost = result.highest_rate, result.log, result.replicas_needed, result.cost
    made = best.outcome
    old = marked_old(cost.price_from) if cost else ""
    yield blocks.headline(requests_a_second(f"{best.rate:,.3g}"), f" on one replica: {result.placed}{old}")
    # Enough digits to tell the rate that holds from the next that does not.
    digits = next((number for number in range(3, 10) if f"{best.rate:.{number}g}" != f"{best.at_most:.{number}g}"), 3)
    encoder = result.placed.model.is_encoder
    output = f"{made.output_tokens_per_s or made.total_tokens_per_s:,.0f} {'' if encoder else 'output '}tokens a second"
    paid = f"per million tokens {'of this log' if needed else 'at that rate'}, prompts included"
    price = cost.usd_per_mtok if cost else None
    traffic = f"{log.source}, {requests_a_second(f'{log.rate:.3g}')}"
    if needed and needed.router and needed.replicas > 1:
        traffic += f"; {option('router', needed.router)}"
    if needed and needed.max_sequences:
        traffic += f"; {option('max_sequences', needed.max_sequences)}"
    yield blocks.facts(
        blocks.fact("holds", f"{best.rate:,.{digits}g}/s", output, number=best.rate, less="worse"),
        ("fails at", f"{best.at_most:,.{digits}g}/s", best.breaks),
        ("batch", f"{made.batch:,.1f}", "sequences in a step at that rate"),
        _at_once(result),
        ("batch limit", f"{best.max_sequences:,}", f"{option('max_sequences')}: with more at once an SLO is missed")
        if best.max_sequences
        else None,
        ("log needs", plural(needed.replicas, "replica"), traffic) if needed else None,
        ("costs", usd(price), paid, price) if price is not None else None,
    )
    judged = needed.outcome if needed else made
    if judged.sessions:
        if needed:
            replicas = plural(needed.replicas, "replica")
            yield blocks.line(f"The log at its own rate, {requests_a_second(f'{log.rate:.3g}')}, on {replicas}:")
        yield blocks.facts(*job_facts(judged.sessions, result.usd_per_job, at_once=needed is not None))
    yield short_run(judged, needed is None)
    limited, limits = any(trial.max_sequences for trial in best.trials), result.placed.limits
    yield blocks.listed(
        best.trials,
        (">requests/s", lambda trial: f"{trial.rate:,.{digits}g}"),
        (">batch limit", lambda trial: f"{trial.max_sequences or limits.max_sequences:,}") if limited else None,
        *((f">{slo.slo}", partial(_of_trial, place)) for place, slo in enumerate(made.slo or _tails(made))),
        (">tok/s", lambda trial: f"{trial.outcome.total_tokens_per_s:,.0f}")
        if encoder
        else (">tok/s out", lambda trial: f"{trial.outcome.output_tokens_per_s:,.0f}"),
        ("", lambda trial: blocks.Span("holds", "good") if trial.holds else blocks.Span("does not", "bad")),
    )
    yield from class_sections(result.classes, rate=best.rate)
    requests = best.trials[0].outcome.requests
    again = f"the {len(log):,} requests again and again, " if len(log) < requests else ""
    yield blocks.note(
        f"{source}{result.lengths}; {again}{requests:,} requests in each of {len(best.trials)} simulations; "
        "the two rates are 1 % apart.",
        "Replicas behind one router share their bursts: n of them hold more than n times this rate, so "
        "`tokonomics plan` may need fewer.",
        _price_text(cost, True) if cost else "",
    )


def _at_once(result: CapacityResult) -> blocks.Fact | None:
    """Show how many jobs are under way at a time, on average: on a replica, and by GPU, machine and dollar."""
    found, gpu = result.at_once, result.placed.gpu
    if found is None:
        return None
    each = [f"under way at that rate, on average: {found.gpu:,.3g} on each GPU"]
    if found.machine is not None and gpu.gpus_per_node > 1:
        each.append(f"{found.machine:,.3g} on a machine of {gpu.gpus_per_node}")
    if found.usd_per_hour is not None:
        each.append(f"{found.usd_per_hour:,.3g} for each dollar an hour")
    return blocks.fact("at once", f"{found.replica:,.3g} jobs", "; ".join(each), number=found.replica)


def _of_trial(place: int, trial: "Trial") -> blocks.Span:
    """Show the value of one SLO in a trial."""
    slo = (trial.outcome.slo or _tails(trial.outcome))[place]
    return blocks.Span(time_text(slo.delivered_s), "" if slo.met else "bad")


def _tails(made: Outcome) -> tuple[SloOutcome, ...]:
    """Return what to show if no SLO is set."""
    tails = (("ttft_p99", made.ttft_s.p99), ("tpot_p99", made.tpot_s.p99))
    shown = [(name, value) for name, value in tails if name != "tpot_p99" or made.output_tokens]
    return tuple(SloOutcome(slo=name, objective_s=0.0, delivered_s=value, met=True) for name, value in shown)


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
    """Return what the page plays: texts of every counter at every moment, values of the lanes, and labelled marks."""
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
    """Show why requests missed the SLO, and the worst of them; empty if none did."""
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
    """Tell whether there is an SLO, for all requests or for a class."""
    return bool(made.slo) or found.missed != found.failed


def _told(made: Outcome, found: Playback) -> str:
    missed = found.missed[-1]
    judged = _is_judged(made, found)
    if not missed:
        return "No request missed the SLO." if judged else "No request failed."
    share = f"{missed:,} of {plural(made.requests, 'request')} ({percent(missed / made.requests)})"
    return f"{share} {'were not answered within every SLO' if judged else 'were not answered'}."


def _counts(values: Sequence[int]) -> list[str]:
    return [f"{value:,}" for value in values]


def _lane(name: str, values: Sequence[float], texts: list[str], full: float | None = None) -> dict[str, Any]:
    """Return one band of the figure, from 0 to its highest value, or to ``full`` if it was half full."""
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
    """Say which request missed it, by how much, and what it waited for."""
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
