"""Show a plan's pick: what to rent, its cost, its latencies, why it won; and cheaper candidates with a catch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokonomics.catalog.checkpoints import Recovery, recovery_text
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec, PromptImages
from tokonomics.catalog.offers import PAID_UPFRONT, UNSPECIFIED, Terms
from tokonomics.catalog.places import LISTED_EVERYWHERE, Seller
from tokonomics.errors import option
from tokonomics.planner.firmness import AtSpeed, SafeFleet, SloRoom
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.plan_answer import Candidate, Catch, Plan, PrefillSide, SetAside
from tokonomics.questions.results import PlanResult, split_text
from tokonomics.report import blocks
from tokonomics.report.wording import (
    aged,
    and_slos,
    machine_text,
    provider_text,
    rented_text,
    signed_text,
    speed_text,
    time_text,
    workload_text,
)  # fmt: skip
from tokonomics.sizing.layouts import FLOOR, Reason
from tokonomics.sizing.spare import ZONES, Spare
from tokonomics.traffic.arrivals import DemandSwing
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import BYTES_PER_GB, count, percent, plural, seconds, usd

if TYPE_CHECKING:
    pass


def pick_blocks(
    row: Candidate,
    label: str,
    plan: Plan,
    firm: Sequence[blocks.Fact] = (),
    *,
    safe: Sequence[blocks.Block] = (),
    rooms: Sequence[SloRoom] = (),
    advice: str = "",
) -> list[blocks.Block]:
    """Show what to rent, what it costs, and how it meets the SLOs; ``firm`` are further facts of this answer.

    ``safe`` says what it costs if replicas are slow, ``rooms`` how far the latencies are below their targets, and
    ``advice`` what helps if that is less than the interval.
    """
    idle = row.gpus_paid - row.gpus_used
    spans = row.gpus_per_replica * row.instances > row.gpus_paid and row.prefill is None
    network = "between the machines of a replica: "
    network += "its seller states it" if row.network == "stated" else "a card for each GPU; its seller states none: ask"
    machines = f"{row.instances:,} × " if row.instances > 1 else ""
    where = f": {machines}{_where(row)}{aged(row.price_age_days)}"
    bill = blocks.Span(f"{usd(row.usd_per_month)} a month", "best")
    return [
        blocks.line(f"{label}: ", bill, f", {usd(row.usd_per_mtok.blended)} per Mtok", where, kind="headline"),
        *safe,
        blocks.line(f"{served_as(row)}{_may_fail(row, plan.limits.spare)}"),
        blocks.facts(
            *_latencies(row, plan.slos, of_slos=True, rooms=rooms, advice=advice),
            *_job(row),
            *firm,
            *_drafted(row),
            *_apart(row),
            ("more KV", tiers_text(row.tiers), _MORE_KV) if row.tiers else None,
            ("unused", plural(idle, "GPU"), f"of the {row.gpus_paid} paid for") if idle else None,
            ("network", row.network or "assumed", network) if spans else None,
            ("price", f"{usd(row.instance_usd_per_hour)}/h", _price_note(row)),
            ("speed", row.speed.value, speed_text(row.speed, row.speed_from)),
        ),
    ]


def bill_facts(row: Candidate, plan: Plan) -> list[blocks.Fact]:
    """Show the same bill by its parts, the latencies without an SLO, and how full the replicas are."""
    prices = row.usd_per_mtok
    tokens = "all tokens, in and out" if plan.workload.writes else "the tokens read"
    router = f", {row.router} router" if row.simulated and row.replicas > 1 else ""
    spare = ", all machines up" if plan.limits.spare else ""
    bursts = "bursts and SLOs leave less to use than that"
    capacity = f"of what full batches of mean requests hold{router}{spare}; {bursts}"
    whole = f"the whole bill over {tokens}; {usd(row.usd_per_mtok_usage)} if the replicas were always full"
    return [
        blocks.fact("per Mtok", usd(prices.blended), whole, number=prices.blended),
        *(_by_kind(row) if plan.workload.writes else ()),
        *_latencies(row, plan.slos, of_slos=False),
        blocks.fact("load", percent(row.load_share), capacity, number=row.load_share, less="worse"),
        blocks.fact("price from", row.price_source, f"quoted on {row.price_date}"),
    ]


def served_as(row: Candidate) -> str:
    """Return ``2 replicas of 4 GPUs (TP=4, fp8, KV fp8)``; prefill replicas come first, if there are any."""
    kv = f"KV {row.kv}" if row.kv.is_below(Precision.bf16) else ""
    drafts = f"drafts {row.draft.name}" if row.draft else ""

    def text(side: Candidate | PrefillSide, name: str, *more: str) -> str:
        split = split_text(side) if side.gpus_per_replica > 1 else ""
        inside = ", ".join(part for part in (split, *more) if part)
        said = f"{plural(side.replicas, name)} of {plural(side.gpus_per_replica, 'GPU')}"
        return f"{said} ({inside})" if inside else said

    if row.prefill is None:
        return text(row, "replica", row.weights.value, kv, drafts)
    answers = text(row, "decode replica", row.weights.value, kv, drafts)
    return f"{text(row.prefill, 'prefill replica')} + {answers}"


def _by_kind(row: Candidate) -> Iterable[blocks.Fact]:
    """Show the price of a Mtok of input, cached input and output: the same bill, split by GPU time."""
    prices = row.usd_per_mtok
    yield blocks.fact("input", usd(prices.input), "per Mtok computed: prefill's share of GPU time", number=prices.input)
    if prices.cached is not None:
        note = f"per Mtok found in a prefix cache, here {percent(row.cached_share)} of prompts: read, not computed"
        yield blocks.fact("cached input", usd(prices.cached), note, number=prices.cached)
    note = "per Mtok: decoding's GPU time; the first token of an answer comes with its prompt"
    yield blocks.fact("output", usd(prices.output), note, number=prices.output)


def _apart(row: Candidate) -> Iterable[blocks.Fact]:
    """Say over which link a disaggregated pick sends its KV, and whether it would hold otherwise."""
    if (side := row.prefill) is None:
        return
    where = "inside the machine" if row.instances == 1 else "between machines; ask the seller"
    speed = f"{side.link_bytes_per_s / BYTES_PER_GB:,.4g} GB/s a GPU, {where}; {seconds(side.kv_transfer_s)} a prompt"
    yield blocks.fact("KV sent over", side.link, speed)
    same = f"the same {plural(row.gpus_used, 'GPU')} with prefill and decode on every replica"
    breaks = f": {side.together_breaks}" if side.together_breaks else " hold it too"
    yield blocks.fact("together", "misses" if side.together_breaks else "holds", f"{same}{breaks}")


def last_resort_line(plan: Plan) -> blocks.Line | None:
    """Say what is assumed of a pick if nothing else serves the load, and what to do about it."""
    if not plan.only_with or plan.best is None:
        return None
    whys = {
        Catch.assumed_speed: f"no kernels of {plan.best.weights} were timed on such a GPU",
        Catch.assumed_network: "its seller does not state the network between the machines of a replica",
        Catch.consumer_cards: "consumer cards reach each other through the host's memory",
    }
    reasons = "; ".join(whys[catch] for catch in plan.only_with)
    said = f"ASSUMED. Every offer that serves this is {' and '.join(plan.only_with)}: {reasons}. "
    return blocks.line(blocks.Span(said, "warn"), "Measure one machine before you buy more.")


def set_aside_lines(plan: Plan) -> Iterable[blocks.Line]:
    """Show cheaper candidates with a catch, one line each, with what to type for them."""
    for aside in plan.set_aside:
        row = aside.candidate
        only_kv = aside.catch is Catch.fewer_bits and not _has_fewer_bits(row, plan.best)
        catch = "KV cache at fewer bits" if only_kv else aside.catch.value
        rests_on = f"; {tiers_text(row.tiers)} for each replica" if row.tiers else ""
        rests_on += f"; tokens a round as published: {row.draft.source}" if row.draft and row.draft.source else ""
        saved = f"{percent(1 - row.usd_per_month / plan.best.usd_per_month)} less with " if plan.best else ""
        yield blocks.line(
            blocks.Span(f"{saved}{_asked_for(aside, plan.best)}", "strong"),
            f" ({catch}): from {usd(row.usd_per_month)} a month, {served_as(row)} at {rented_text(row)}",
            f"{aged(row.price_age_days)}{_since(aside)}{rests_on}",
        )


def _since(aside: SetAside) -> str:
    """Say what shows that an old price is out of date, and what it would be now."""
    if (since := aside.outdated) is None:
        return ""
    newer = f"{provider_text(since.newer_provider)} asked {usd(since.newer_usd_per_gpu_hour)} a GPU-hour"
    said = f"; {newer} on {since.newer_date}"
    if since.moved is None or aside.usd_per_month_if_moved is None:
        return said
    moved = f"{since.moved.gpus} at {plural(since.moved.sellers, 'seller')}: {signed_text(since.moved.ratio - 1)}"
    months = f"{since.moved.since:%Y-%m} to {since.moved.until:%Y-%m}"
    return f"{said}; {usd(aside.usd_per_month_if_moved)} had it moved with the market ({moved}, {months})"


def tiers_text(tiers: str) -> str:
    """Turn ``dram=380@0`` into ``380 GB of the machine's memory``."""
    said = []
    for part in tiers.split(","):
        name, _, rest = part.strip().partition("=")
        said.append(f"{float(rest.partition('@')[0].partition(':')[0]):,.0f} GB of {_TIERS.get(name.lower(), name)}")
    return " and ".join(said)


_MORE_KV = "for each replica, at no price of its own: what the weights leave of the host's memory"
_TIERS = {"dram": "the machine's memory", "ssd": "its SSD", "remote": "memory over the network"}


def _drafted(row: Candidate) -> Iterable[blocks.Fact]:
    """Show the draft, its acceptance, and the source of that."""
    if row.draft:
        yielded, given = f"{row.draft.tokens_per_round:.2f} tokens a round", percent(row.draft.acceptance)
        said = f"published: {row.draft.source}" if row.draft.source else f"{given} of drafted ones accepted, as given"
        yield blocks.fact("drafts", row.draft.name, f"{yielded}; {said}")


def _has_fewer_bits(row: Candidate, best: Candidate | None) -> bool:
    """Tell whether the weights have fewer bits than a plan tries by default, and than the pick's."""
    return row.weights.is_below(FLOOR) and (best is None or row.weights.is_below(best.weights))


def _asked_for(aside: SetAside, best: Candidate | None) -> str:
    row = aside.candidate
    asked = {
        Catch.marketplace: option("sellers", "all"),
        Catch.uncertain_place: option("provider", row.provider),
        Catch.assumed_speed: option("gpu", row.gpu),
        Catch.old_price: option("max_age", row.price_age_days),
        Catch.drafting: option("draft", row.draft.method) if row.draft else "",
        Catch.offload: option("tiers", "host"),
        Catch.disaggregated: option("disaggregate"),
        Catch.assumed_network: f"a network_gbit in your own price list ({option('offers', 'mine.csv')})",
        Catch.consumer_cards: option("gpu", row.gpu),
    }
    if said := asked.get(aside.catch):
        return said
    fewer = [option("min_weights", row.weights)] if _has_fewer_bits(row, best) else []
    return " ".join([*fewer, *([option("kv", row.kv)] if row.kv.is_below(Precision.bf16) else [])])


def _where(row: Candidate) -> str:
    """Return ``AWS p5.48xlarge, 8× H100, us-east-1 or 3 other regions``."""
    machine = machine_text(row.provider, row.instance, row.gpu, row.gpus_paid // row.instances, row.region)
    if row.region == UNSPECIFIED:
        return machine
    more = len(row.regions) - 1
    others = f" or {plural(more, 'other region')}" if more else ""
    return f"{machine}{others}{' (listed for every region: ask)' if row.provider in LISTED_EVERYWHERE else ''}"


def _may_fail(row: Candidate, spare: Spare) -> str:
    """Say what may fail and why; or that nothing may, if all is on one machine."""
    if not spare:
        alone = "one machine" if row.instances == 1 else f"one replica on {plural(row.instances, 'machine')}"
        return f"; {alone}: no redundancy" if row.lacks_redundancy else ""
    zones = min(ZONES, row.instances, row.replicas)
    assumed = spare.assumed(row.instance, row.region, zones)
    return f"; {spare} may fail{assumed and f', {assumed}'}"


def _job(row: Candidate) -> Iterable[blocks.Fact]:
    """Show what a session costs and how long it takes, and what its turns found in the cache."""
    if (job := row.job) is None:
        return
    rate = f"{job.per_s:.3g} a second" if job.per_s >= 0.01 else f"{job.per_s * 3600:.3g} an hour"
    found = "" if job.cached_share is None else f"; {percent(job.cached_share)} of prompt tokens cached"
    yield blocks.fact("per job", usd(job.usd), f"{job.requests:.3g} requests each, {rate}{found}", number=job.usd)


def safe_lines(pick: Candidate, slow: AtSpeed, safe: SafeFleet | None) -> Iterable[blocks.Line]:
    """Show what it costs to be safe at the slow end of the interval; first of all, if the pick cannot be."""
    if slow.usd_per_month is None:
        slower = f"Inside its 80 % interval ({percent(1 - slow.speed)} slower)"
        yield blocks.line(f"{slower} no number of these replicas meets the SLO.", kind="worst")
    label = "To be safe at 80 %: "
    if safe is None:
        yield blocks.line(f"{label}nothing that these limits allow meets the SLO at the slow end of its interval")
        return
    row = safe.candidate
    bill = blocks.Span(f"{usd(row.usd_per_month)} a month", "strong")
    if row == pick:
        yield blocks.line(label, bill, f", this fleet: {percent(1 - safe.speed)} slower, it still meets every target")
    else:
        old = "" if row.price_age_days == pick.price_age_days else aged(row.price_age_days)
        yield blocks.line(label, bill, f", {served_as(row)} at {rented_text(row)}{old}")


def _room(room: SloRoom, advice: str) -> str:
    """Return ``met by 6.8 %``, and whether a doubt about the speed takes that away."""
    doubt = f", within the interval{advice and f': {advice}'}" if room.within_interval else ""
    return f"met by {percent(room.room)}{doubt}"


def _latencies(
    row: Candidate, slos: Sequence[Slo], *, of_slos: bool, rooms: Sequence[SloRoom] = (), advice: str = ""
) -> Iterable[blocks.Fact]:
    """Show the latencies with SLOs (TTFT and TPOT without any), or the others; means if nothing was simulated."""
    asked = {slo.latency for slo in slos} or {Latency.ttft, Latency.tpot}
    for name, latency, spread in (
        ("TTFT", Latency.ttft, row.ttft_s), ("TPOT", Latency.tpot, row.tpot_s), ("end to end", Latency.e2e, row.e2e_s),
        ("job", Latency.job, row.job.job_s if row.job else None),
    ):  # fmt: skip
        if spread is None or (latency in asked) is not of_slos:
            continue
        targets = {slo.statistic: slo.seconds for slo in slos if slo.latency is latency}
        if latency is Latency.e2e and row.tpot_s.mean is None and not targets:
            continue  # for an encoder it equals the TTFT
        for statistic in (list(targets) or ["p99"]) if row.simulated else ["mean"]:
            value, target = getattr(spread, statistic), targets.get(statistic)
            if value is None:
                continue
            met = target is not None and value <= target
            room = next((room for room in rooms if room.slo == f"{latency}_{statistic}"), None)
            state = "missed" if not met else _room(room, advice) if room else "met"
            said = [f"SLO {seconds(target)} {state}"] if target is not None else []
            said += [f"p50 {time_text(spread.p50)}"] if row.simulated else ["not simulated"]
            mood: blocks.Mood = "" if target is None else "good" if met else "bad"
            yield blocks.fact(f"{name} {statistic}", blocks.Span(seconds(value), mood), "; ".join(said), number=value)


_TERMS = {
    Terms.on_demand: "on demand",
    Terms.spot: "spot: may be taken back at any time (see `tokonomics fleet`)",
    Terms.reserved: "reserved",
}


def _price_note(row: Candidate) -> str:
    """Name the terms, the seller's machine, and the date of the price."""
    upfront = ", paid upfront" if PAID_UPFRONT in row.price_source else ""  # others do not say when they are paid
    years = f" for {plural(row.commitment_years, 'year')}{upfront}" if row.commitment_years else ""
    machines = f" × {plural(row.instances, 'machine')}" if row.instances > 1 else ""
    market = " on a marketplace" if row.seller is Seller.marketplace else ""
    return f"{_TERMS[row.terms]}{years}{machines}{market}, quoted {row.price_date}: {row.instance}"


def asked_text(
    plan: Plan, model_name: str, images: PromptImages | None = None, swing: DemandSwing | None = None
) -> str:
    """Return the question in one line."""
    seen = f", {images.tokens:,} of every prompt for images ({images.text})" if images else ""
    asked = f"{model_name} at {workload_text(plan.workload, swing)}{seen}{and_slos(plan.slos)}"
    more = f"; sized for {percent(plan.headroom_asked)} more" if plan.headroom_asked else ""
    return f"{asked}; {count(plan.workload.tokens_per_month)} tokens a month{more}"


def nothing(
    plan: Plan,
    model_name: str,
    blames: Sequence[Blame],
    see: str = "",
    images: PromptImages | None = None,
    swing: DemandSwing | None = None,
) -> blocks.View:
    """Show which constraint prevents a plan, the nearest value that works, and how many each reason excluded."""
    yield blocks.line(asked_text(plan, model_name, images, swing), kind="asked")
    kinds: Counter[Reason] = Counter()
    for rejection in plan.rejected:
        kinds[rejection.kind] += rejection.offers
    counts = "; ".join(f"{kind.value}: {number:,}" for kind, number in kinds.most_common())
    yield blocks.section(
        blocks.line("No offer meets these constraints.", kind="worst"),
        *(
            blocks.line(
                blocks.Span(f"  {blame.constraint.marked}: ", "strong"), f"{blame.why.marked}; {blame.nearest.marked}."
            )
            for blame in blames
        ),
        blocks.note(f"{plural(kinds.total(), 'candidate')} rejected: {counts}. See {see or option('why')}.")
        if kinds
        else None,
        not_tried(plan),
    )


# --- what is left of its quality at fewer bits -----------------------------------------------------------------------


def quality_facts(result: PlanResult, model: ModelSpec) -> list[blocks.Fact]:
    """Show what the pick's fewer bits cost in quality, and the checkpoint to load."""
    row, facts = result.best, list[blocks.Fact]()
    if row is None:
        return facts
    if row.weights.is_below(model.served):
        facts.append(_quality("quality", model, row.weights, result.recovery))
    if row.kv.is_below(model.kv_served):
        facts.append(_quality("KV quality", model, row.kv, result.kv_recovery))
    return facts if row.weights is model.served else [*facts, _checkpoint(result)]


def at_checkpoint_line(row: Candidate) -> blocks.Line:
    """Show the cheapest way to serve the model as published, in one line."""
    bill = f"{usd(row.usd_per_month)} a month, {usd(row.usd_per_mtok.blended)} per Mtok"
    where = f"{served_as(row)} at {rented_text(row)}{aged(row.price_age_days)}"
    return blocks.line("At the published precision: ", blocks.Span(bill, "strong"), f", {where}")


def published_checkpoint(model: ModelSpec) -> blocks.Fact:
    return blocks.fact("checkpoint", "published", model.repository or "your own")


def not_tried(plan: Plan) -> blocks.Line | None:
    """List the precisions left out for their quality, each with the reason."""
    if not plan.not_tried:
        return None
    reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.not_tried.items())
    return blocks.hint(f"Not tried, for {option('min_recovery')}: {reasons}.")


def _quality(name: str, model: ModelSpec, precision: Precision, found: Recovery | None) -> blocks.Fact:
    if found is None:
        measure = f"measure it on your own task (`tokonomics import` with {option('baseline')})"
        return blocks.fact(name, "no score", f"of {precision} is published for {model.name} or its family: {measure}")
    value, _, rest = recovery_text(found, model).partition(" of ")
    return blocks.fact(name, value, f"of {rest}", number=found.recovery, less="worse")


def _checkpoint(result: PlanResult) -> blocks.Fact:
    found = result.checkpoint
    if found is None:
        return blocks.fact("checkpoint", "none listed", result.how_to_make or "")
    where = "" if found.source.endswith(found.repository) else f" in the {found.source}"
    return blocks.fact("checkpoint", "exists", f"{found.repository}, seen{where} on {found.read}")
