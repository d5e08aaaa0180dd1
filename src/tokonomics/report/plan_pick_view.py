"""A plan's pick: what to rent, what it costs, how it serves, why it won; and what is cheaper with a catch."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tokonomics.catalog.checkpoints import Recovery, recovery_text
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec, PromptImages
from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.catalog.places import LISTED_EVERYWHERE, Seller
from tokonomics.errors import option
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Flip, Flips
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.plan_answer import Candidate, Catch, Plan, PrefillSide, SetAside
from tokonomics.planner.why import WhyPick
from tokonomics.questions.results import PlanResult, layout_text, split_text
from tokonomics.report import blocks, charts
from tokonomics.report.wording import (
    aged,
    and_slos,
    known_text,
    machine_text,
    rented_text,
    speed_text,
    time_text,
    usd_text,
    workload_text,
)  # fmt: skip
from tokonomics.sizing.layouts import FLOOR
from tokonomics.sizing.refusal import Reason
from tokonomics.sizing.spare import ZONES, Spare
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import BYTES_PER_GB, count, percent, plural, seconds, usd

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study


def pick_blocks(row: Candidate, label: str, plan: Plan, firm: Sequence[blocks.Fact] = ()) -> list[blocks.Block]:
    """What to rent, what it costs, and how it meets the SLOs; ``firm`` are facts that this answer adds."""
    idle = row.gpus_paid - row.gpus_used
    spans = row.gpus_per_replica * row.instances > row.gpus_paid and row.prefill is None
    network = "between the machines of a replica: a card for each GPU, as HGX machines have; ask the seller"
    machines = f"{row.instances:,} × " if row.instances > 1 else ""
    where = f": {machines}{_where(row)}{aged(row.price_age_days)}"
    bill = blocks.Span(f"{usd(row.usd_per_month)} a month", "best")
    return [
        blocks.line(f"{label}: ", bill, f", {usd(row.usd_per_mtok.blended)} per Mtok", where, kind="headline"),
        blocks.line(f"{served_as(row)}{_may_fail(row, plan.limits.spare)}"),
        blocks.facts(
            *_latencies(row, plan.slos, of_slos=True),
            *_job(row),
            *firm,
            *_drafted(row),
            *_apart(row),
            ("more KV", tiers_text(row.tiers), _more_kv(row)) if row.tiers else None,
            ("unused", plural(idle, "GPU"), f"of the {row.gpus_paid} paid for") if idle else None,
            ("network", "assumed", network) if spans else None,
            ("price", f"{usd(row.instance_usd_per_hour)}/h", _price_note(row)),
            ("speed", row.speed.value, speed_text(row.speed, row.speed_from)),
        ),
    ]


def bill_facts(row: Candidate, plan: Plan) -> list[blocks.Fact]:
    """The same bill by what it goes to, the latencies without an SLO, and how full the replicas are."""
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
    """``2 replicas of 4 GPUs (TP=4, fp8, KV fp8)``; with the replicas for prompts before, where there are any."""
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
    """What a Mtok of input, of cached input and of output costs: the same bill, by the GPU's time that each takes."""
    prices = row.usd_per_mtok
    yield blocks.fact("input", usd(prices.input), "per Mtok computed: prefill's share of GPU time", number=prices.input)
    if prices.cached is not None:
        is_found = f"is found in the prefix cache, {percent(row.cached_share)} of prompts" if row.cached_share else ""
        note = f"per Mtok that {is_found or 'a prefix cache would find'}: attended to, not computed"
        yield blocks.fact("cached input", usd(prices.cached), note, number=prices.cached)
    one = "per Mtok: answers of one token take no decoding, as that token comes with its prompt's step; input pays all"
    note = "per Mtok: decoding's GPU time" if prices.output else one
    yield blocks.fact("output", usd(prices.output), note, number=prices.output)


def _apart(row: Candidate) -> Iterable[blocks.Fact]:
    """Of a disaggregated pick: why it pays, and what its KV is sent over."""
    if (side := row.prefill) is None:
        return
    where = "inside the machine" if row.instances == 1 else "between machines; ask the seller"
    speed = f"{side.link_bytes_per_s / BYTES_PER_GB:,.4g} GB/s a GPU, {where}; {seconds(side.kv_transfer_s)} a prompt"
    yield blocks.fact("KV sent over", side.link, speed)
    yield blocks.fact("together", "misses" if side.together_breaks else "holds", _why_apart(row))


def _why_apart(row: Candidate) -> str:
    """What disaggregation gains: prompts no longer stall the tokens of others."""
    side, same = row.prefill, f"the same {plural(row.gpus_used, 'GPU')} with prefill and decode on every replica"
    if side and side.together_breaks:
        return f"{same}: {side.together_breaks}; apart, no prompt stalls the tokens of others"
    return f"{same} hold it too"


def set_aside_lines(plan: Plan) -> Iterable[blocks.Line]:
    """Cheaper ways with a catch, one line each, with what to type for them."""
    for aside in plan.set_aside:
        row = aside.candidate
        only_kv = aside.catch is Catch.fewer_bits and not _has_fewer_bits(row, plan.best)
        catch = "KV cache at fewer bits" if only_kv else aside.catch.value
        why = f"; {_why_apart(row)}" if row.prefill and row.prefill.together_breaks else ""
        saved = percent(1 - row.usd_per_month / plan.best.usd_per_month) if plan.best else None
        yield blocks.line(
            blocks.Span(
                f"{saved} less with {_asked_for(aside, plan.best)}" if saved else _asked_for(aside, None), "strong"
            ),
            f" ({catch}): from {usd(row.usd_per_month)} a month, {served_as(row)} at {rented_text(row)}",
            f"{aged(row.price_age_days)}{why}{_rests_on(row)}",
        )


def _more_kv(row: Candidate) -> str:
    """What it is for, and how a machine of that size comes by it: every replica that it has GPUs for gets a share."""
    gpus = row.gpus_paid // row.instances
    here = plural(max(1, gpus // row.gpus_per_replica), "replica")
    shared = f"; a machine of {plural(gpus, 'GPU')} has what weights leave of its memory for {here}"
    return f"for each replica, holds what the GPUs have no room for, at no price of its own{shared}"


def _rests_on(row: Candidate) -> str:
    """What a way with a catch takes for granted: published drafts, memory that the machine has left."""
    drafts = f"; tokens a round as published: {row.draft.source}" if row.draft and row.draft.source else ""
    return f"{drafts}; {tiers_text(row.tiers)} for each replica" if row.tiers else drafts


def tiers_text(tiers: str) -> str:
    """``dram=380@0`` → ``380 GB of the machine's memory``."""
    said = []
    for part in tiers.split(","):
        name, _, rest = part.strip().partition("=")
        said.append(f"{float(rest.partition('@')[0]):,.0f} GB of {_TIERS.get(name.lower(), name)}")
    return " and ".join(said)


_TIERS = {"dram": "the machine's memory", "ssd": "its SSD", "remote": "memory over the network"}


def _drafted(row: Candidate) -> Iterable[blocks.Fact]:
    """What drafts, how much of it is accepted, and who says so."""
    if row.draft:
        yielded, given = f"{row.draft.tokens_per_round:.2f} tokens a round", percent(row.draft.acceptance)
        said = f"published: {row.draft.source}" if row.draft.source else f"{given} of drafted ones accepted, as given"
        yield blocks.fact("drafts", row.draft.name, f"{yielded}; {said}")


def _has_fewer_bits(row: Candidate, best: Candidate | None) -> bool:
    """Of the weights, and not because the model is published so."""
    return row.weights.is_below(FLOOR) and (best is None or row.weights.is_below(best.weights))


def _asked_for(aside: SetAside, best: Candidate | None) -> str:
    row = aside.candidate
    asked = {
        Catch.marketplace: option("sellers", "all"),
        Catch.assumed_speed: option("gpu", row.gpu),
        Catch.old_price: option("max_age", row.price_age_days),
        Catch.drafting: option("draft", row.draft.method) if row.draft else "",
        Catch.offload: option("tiers", "host"),
        Catch.disaggregated: option("disaggregate"),
    }
    if said := asked.get(aside.catch):
        return said
    fewer = [option("min_weights", row.weights)] if _has_fewer_bits(row, best) else []
    return " ".join([*fewer, *([option("kv", row.kv)] if row.kv.is_below(Precision.bf16) else [])])


def _where(row: Candidate) -> str:
    """``AWS p5.48xlarge, 8× H100, us-east-1 or 3 other regions``."""
    machine = machine_text(row.provider, row.instance, row.gpu, row.gpus_paid // row.instances, row.region)
    if row.region == UNSPECIFIED:
        return machine
    more = len(row.regions) - 1
    others = f" or {plural(more, 'other region')}" if more else ""
    return f"{machine}{others}{' (listed for every region: ask)' if row.provider in LISTED_EVERYWHERE else ''}"


def _may_fail(row: Candidate, spare: Spare) -> str:
    """What may fail, and what that rests on; or that nothing may, where all is on one machine."""
    if not spare:
        alone = "one machine" if row.instances == 1 else f"one replica on {plural(row.instances, 'machine')}"
        return f"; {alone}: no redundancy" if row.lacks_redundancy else ""
    zones = min(ZONES, row.instances, row.replicas)
    assumed = spare.assumed(row.instance, row.region, zones)
    return f"; {spare} may fail{assumed and f', {assumed}'}"


def _job(row: Candidate) -> Iterable[blocks.Fact]:
    """What a session costs and takes; beside it what its turns found."""
    if (job := row.job) is None:
        return
    rate = f"{job.per_s:.3g} a second" if job.per_s >= 0.01 else f"{job.per_s * 3600:.3g} an hour"
    found = "" if job.cached_share is None else f"; {percent(job.cached_share)} of prompt tokens cached"
    yield blocks.fact("per job", usd(job.usd), f"{job.requests:.3g} requests each, {rate}{found}", number=job.usd)


def _latencies(row: Candidate, slos: Sequence[Slo], *, of_slos: bool) -> Iterable[blocks.Fact]:
    """The latencies that SLOs are about (TTFT and TPOT without any), or the others; means where none is simulated."""
    asked = {slo.latency for slo in slos} or {Latency.ttft, Latency.tpot}
    for name, latency, spread in (
        ("TTFT", Latency.ttft, row.ttft_s), ("TPOT", Latency.tpot, row.tpot_s), ("end to end", Latency.e2e, row.e2e_s),
        ("job", Latency.job, row.job.job_s if row.job else None),
    ):  # fmt: skip
        if spread is None or (latency in asked) is not of_slos:
            continue
        targets = {slo.statistic: slo.seconds for slo in slos if slo.latency is latency}
        if latency is Latency.e2e and row.tpot_s.mean is None and not targets:
            continue  # of an encoder it is the TTFT again
        for statistic in (list(targets) or ["p99"]) if row.simulated else ["mean"]:
            value, target = getattr(spread, statistic), targets.get(statistic)
            if value is None:
                continue
            met = target is not None and value <= target
            said = [f"SLO {seconds(target)} {'met' if met else 'missed'}"] if target is not None else []
            said += [f"p50 {time_text(spread.p50)}"] if row.simulated else ["not simulated"]
            mood: blocks.Mood = "" if target is None else "good" if met else "bad"
            yield blocks.fact(f"{name} {statistic}", blocks.Span(seconds(value), mood), "; ".join(said), number=value)


_TERMS = {
    Terms.on_demand: "on demand",
    Terms.spot: "spot: may be taken back at any time (see `tokonomics fleet`)",
    Terms.reserved: "reserved",
}


def _price_note(row: Candidate) -> str:
    """On which terms, and when the price was quoted for which of the seller's machines."""
    years = f" for {plural(row.commitment_years, 'year')}, paid upfront" if row.commitment_years else ""
    machines = f" × {plural(row.instances, 'machine')}" if row.instances > 1 else ""
    market = " on a marketplace" if row.seller is Seller.marketplace else ""
    return f"{_TERMS[row.terms]}{years}{machines}{market}, quoted {row.price_date}: {row.instance}"


def asked_text(plan: Plan, model_name: str, images: PromptImages | None = None) -> str:
    """The question in one line."""
    seen = f", {images.tokens:,} of every prompt for images ({images.text})" if images else ""
    asked = f"{model_name} at {workload_text(plan.workload)}{seen}{and_slos(plan.slos)}"
    return f"{asked}; {count(plan.workload.tokens_per_month)} tokens a month"


def nothing(
    plan: Plan, model_name: str, blames: Sequence[Blame], see: str = "", images: PromptImages | None = None
) -> blocks.View:
    """Which constraint stands in the way, the nearest value that would do, and how many each reason took."""
    yield blocks.line(asked_text(plan, model_name, images), kind="asked")
    kinds: Counter[Reason] = Counter()
    for rejection in plan.rejected:
        kinds[rejection.kind] += rejection.offers
    counts = "; ".join(f"{kind.value}: {number:,}" for kind, number in kinds.most_common())
    yield blocks.section(
        blocks.line("No offer meets these constraints.", kind="worst"),
        *(
            blocks.line(
                blocks.Span(f"  {blame.constraint.marked}: ", "strong"),
                f"{blame.why.marked}; {blame.nearest.marked}.",
            )
            for blame in blames
        ),
        blocks.note(f"{plural(kinds.total(), 'candidate')} rejected: {counts}. See {see or option('why')}.")
        if kinds
        else None,
        not_tried(plan),
    )


def ranking(
    rows: Sequence[Candidate],
    shown: int | None,
    model: Callable[[Candidate], str] | None = None,
    opens: Callable[[Candidate], str] = lambda _: "",
    full: bool = False,
) -> blocks.Table:
    """Candidates, the pick first; with the name of the model of each where there are several.

    ``opens`` gives, for each, what to ask for more of it; ``full`` adds the columns that a terminal has no room for.
    """
    late = "p99" if any(row.simulated for row in rows) else "mean"
    some_old = not all(row.price_stale for row in rows)
    writes = any(row.tpot_s.mean is not None for row in rows)  # an encoder does not, and keeps no KV
    some_kv = writes and (full or any(row.kv.is_below(Precision.bf16) for row in rows[:shown]))
    return blocks.listed(
        rows,
        ("!model", model) if model else None,
        ("rent", lambda row: blocks.Span(rented_text(row), opens=opens(row))),
        ("!replicas", replicas_text),
        ("weights", lambda row: f"{row.weights}{'*' if row.below_checkpoint else ''}"),
        ("KV", lambda row: row.kv.value) if some_kv else None,
        ("drafts", lambda row: row.draft.name if row.draft else "–") if any(row.draft for row in rows) else None,
        (">$/month", lambda row: f"{'†' if row.price_stale and some_old else ''}{usd(row.usd_per_month)}"),
        (">$/Mtok", lambda row: usd(row.usd_per_mtok.blended)),
        (">load", lambda row: percent(row.load_share)) if full else None,
        (f">TTFT {late}", lambda row: time_text(getattr(row.ttft_s, late))),
        (f">TPOT {late}", lambda row: time_text(getattr(row.tpot_s, late))) if writes else None,
        ("speed", lambda row: known_text(row.speed, row.profiled)),
        ("instance", lambda row: f"{row.instance}, {row.region}") if full else None,
        best=0,
        shown=shown,
        numbered=True,
    )


# --- why it won, what would make another win, how prefill and decode are best split ----------------------------------


_SPLITS = {
    "TP": "GPUs that share every layer",
    "PP": "stages of layers",
    "EP": "GPUs that share the experts",
    "DP": "groups of GPUs, each with its own sequences",
}


def why_line(why: WhyPick) -> blocks.Line:
    """The nearest other kind of way, in a clause; ``explain`` has the whole sentence."""
    return blocks.line(blocks.Span("Why this one: ", "strong"), f"{why.text.partition('; ')[0].removesuffix('.')}.")


def why_blocks(why: WhyPick) -> Iterable[blocks.Block]:
    """The nearest way of each other kind beside the pick: what a request takes of GPUs, by what it goes to."""
    rows = []
    for row in (why.pick, *why.others):
        way, layout = "the pick" if row is why.pick else row.kind.value, f"{row.replicas:,} × {row.layout} {row.gpu}"
        bill = f"{'≥ ' if row.at_least else ''}{usd(row.usd_per_month)}"
        used = usd(row.usd_per_gpu_hour), percent(row.in_use), f"{row.gpu_s.total:.3g}"
        parts = (f"{part:.2g}" for part in row.gpu_s.by_part.values())
        rows.append((way, layout, bill, *used, *parts, f"{row.batch:,}", row.limited_by))
    heads = ["way", "!layout", ">$/month", ">$/GPU-h", ">in use", ">GPU-s a request", ">prompts", ">weights", ">KV"]
    title = "The nearest way of each other kind"
    yield blocks.table([*heads, ">compute", ">comm.", ">overhead", ">batch", "limited by"], rows, title, best=0)
    yield blocks.note(
        why.text,
        "bill = requests a second × GPU-seconds a request (at full batches) × $/GPU-h ÷ share in use.",
        "≥: not sized by simulation, as it costs more even so." if any(row.at_least for row in why.others) else "",
    )


def split_legend(rows: Sequence[Candidate]) -> str:
    """What the letters in these rows mean."""
    shown = " ".join(replicas_text(row) for row in rows)
    said = [f"{name} = {meaning}" for name, meaning in _SPLITS.items() if f"{name}=" in shown]
    if any(row.prefill for row in rows):
        said.append("a + b = replicas that compute prompts and replicas that answer")
    return f"replicas: {'; '.join(said)}." if said else ""


def replicas_text(row: Candidate) -> str:
    """``2 × TP=4``, ``3`` of one GPU each; ``1 × TP=2 + 2 × TP=4`` where one computes prompts and two answer."""

    def text(side: Candidate | PrefillSide) -> str:
        return f"{side.replicas:,} × {split_text(side)}" if side.gpus_per_replica > 1 else f"{side.replicas:,}"

    return f"{text(row.prefill)} + {text(row)}" if row.prefill else text(row)


def flip_lines(plan: Plan, rival: Candidate | None, found: Flips) -> Iterable[blocks.Line]:
    """The runner-up, and what would make another GPU the cheapest."""
    if rival and found.other_gpu:
        more, less = percent(found.other_gpu.pick_may_rise), percent(found.other_gpu.rival_must_fall)
        how = (
            f"{more} more expensive; wins if its price falls by {less}, or the pick's GPU becomes {more} more expensive"
        )
        same = found.other_gpu.pick_may_rise < 0.005
        yield blocks.line(
            "Runner-up, the cheapest on another GPU: ",
            blocks.Span(f"{usd(rival.usd_per_month)} a month", "strong"),
            f", {served_as(rival)} at {rented_text(rival)}: ",
            "the same bill" if same else f"{how} everywhere",
        )
    yield from (blocks.line(f"  {_flip(flip)}") for flip in found.traffic)
    if found.steady:
        yield blocks.note(f"  no flip up to: {', '.join(found.steady)}")


def _flip(flip: Flip) -> str:
    way = "from" if flip.factor > 1 else "down to"
    rival, pick = (
        "no way" if bill is None else usd(bill)
        for bill in (flip.after.rival_usd_per_month, flip.after.pick_usd_per_month)
    )
    value = f"{count(flip.after.value)} {flip.what}"
    return f"{way} {value} ({flip.factor:.3g}×): {flip.gpu} {flip.rival}, {rival} against {pick}"


def ratio_blocks(study: "Study", points: Sequence[RatioPoint]) -> Iterable[blocks.Block]:
    """What the GPUs of the disaggregated way hold by how they are split."""
    assert study.apart is not None
    most = max(point.requests_per_s for point in points) or 1.0
    yield blocks.listed(
        points,
        ("!prefill : decode", lambda point: charts.plan.split_name(point)),
        (">requests/s", lambda point: f"{point.requests_per_s:,.3g}" if point.requests_per_s else "–"),
        (">$/Mtok", lambda point: usd_text(point.usd_per_mtok)),
        (">of the most", lambda point: percent(point.requests_per_s / most)),
        (">KV of a prompt", lambda point: time_text(point.kv_transfer_s)),
        ("", lambda point: blocks.Span(charts.plan.mark_of(point), "good" if point.is_planned else "strong")),
        title=f"The same GPUs split otherwise ({layout_text(study.apart.row)})",
    )
    link = study.apart.row.prefill.link if study.apart.row.prefill else ""
    yield blocks.note(
        "Requests a second that meet every SLO, by short simulations: a few percent are chance.",
        f"KV of a prompt: what one of mean length takes to the side that answers, over {link} for the cheapest split.",
    )


# --- what is left of its quality at fewer bits -----------------------------------------------------------------------


def quality_facts(result: PlanResult, model: ModelSpec) -> list[blocks.Fact]:
    """What the pick's fewer bits cost in quality, and the checkpoint to load."""
    row, facts = result.best, list[blocks.Fact]()
    if row is None:
        return facts
    if row.weights.is_below(model.served):
        facts.append(_quality("quality", model, row.weights, result.recovery))
    if row.kv.is_below(Precision.bf16):
        facts.append(_quality("KV quality", model, row.kv, result.kv_recovery))
    return facts if row.weights is model.served else [*facts, _checkpoint(result)]


def at_checkpoint_line(row: Candidate) -> blocks.Line:
    """The cheapest way to serve the model as it was published, in a line."""
    bill = f"{usd(row.usd_per_month)} a month, {usd(row.usd_per_mtok.blended)} per Mtok"
    where = f"{served_as(row)} at {rented_text(row)}{aged(row.price_age_days)}"
    return blocks.line("At the published precision: ", blocks.Span(bill, "strong"), f", {where}")


def published_checkpoint(model: ModelSpec) -> blocks.Fact:
    """The model's own."""
    return blocks.fact("checkpoint", "published", model.repository or "your own")


def not_tried(plan: Plan) -> blocks.Line | None:
    """Precisions that were left out for their quality, each with the reason."""
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
