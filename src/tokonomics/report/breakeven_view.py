"""Hosting oneself against APIs: the break-even of each, the bills at round volumes, what moves it."""

import string
from collections.abc import Iterable
from functools import partial

from tokonomics.errors import option
from tokonomics.money.breakeven import SELF_HOSTED, BillAt, BreakEven, FleetKind
from tokonomics.planner.breakeven import SECONDS_PER_MONTH, BreakEvenReport
from tokonomics.questions.request import Request
from tokonomics.questions.results import BreakevenResult, NothingHosts
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.plan_view import nothing
from tokonomics.report.wording import OLD_PRICE, and_slos
from tokonomics.units import HOURS_PER_MONTH, count, percent, plural, seconds, usd


def breakeven(result: BreakevenResult | NothingHosts, request: Request) -> Answer:
    """The verdicts first, then the bills, then what moves the break-even."""
    if isinstance(result, BreakevenResult):
        drawn = {"Bills against volume": lambda: charts.breakeven.breakeven_chart(result)}
        return Answer(result, f"Host {result.model} or call an API", partial(_sections, result), drawn)
    study = result.study
    name = study.question.model.name
    see = f"tokonomics plan … {option('why')}"
    return Answer(result, f"Nothing hosts {name}", partial(nothing, study.plan, name, result.blame, see))


def _sections(result: BreakEvenReport) -> blocks.View:
    yield blocks.line(_asked(result), kind="asked")
    first, *others = result.found
    yield blocks.section(_verdict(first, "headline"), _figures(result, first))
    yield blocks.section(*(_verdict(other) for other in others))
    yield blocks.section(*_advice(result))
    letters = letters_for(len(result.apis))
    yield _apis(result, letters)
    yield _bills(result, letters)
    if result.hosted.extras:
        yield _lines(result)
    yield _swings(result, letters)
    yield _hardware(result)
    yield _notes(result)


def letters_for(apis: int) -> list[str]:
    """A to Z, then AA, BB and so on: every API has one."""
    names = string.ascii_uppercase
    return [names[place % len(names)] * (place // len(names) + 1) for place in range(apis)]


def _asked(result: BreakEvenReport) -> str:
    cached = f"; {_cached(result)}" if result.cached_share else ""
    return (
        f"{result.model}, self-hosted, against {plural(len(result.apis), 'API price')}: requests of "
        f"{result.lengths}{cached}"
        f"{and_slos(result.slos)}"
    )


def _cached(result: BreakEvenReport) -> str:
    """Which share of the prompts each side finds in its cache."""
    theirs = sorted({percent(api.cached_share) for api in result.apis})
    ours = sorted({percent(kind.cached_share) for kind in result.hardware}) or ["as in your speed"]
    return f"of the prompts cached: {' or '.join(theirs)} at the APIs, {' or '.join(ours)} self-hosted"


def _verdict(meets: BreakEven, kind: blocks.Kind = "") -> blocks.Line:
    stays = meets.stays_tokens_per_month
    if stays is None:
        never = blocks.Span("never cheaper", "worst")
        return blocks.line("Self-hosting is ", never, f" than {meets.api}: {meets.never}.", kind=kind)
    volume = blocks.Span(f"{count(stays)} tokens a month", "best")
    return blocks.line(f"Self-hosting is cheaper than {meets.api} from ", volume, " on.", kind=kind)


def _figures(result: BreakEvenReport, meets: BreakEven) -> blocks.Facts:
    """Of the first API: what runs at the break-even, and both prices."""
    first, stays, own = meets.first_tokens_per_month, meets.stays_tokens_per_month, result.own_tokens_per_month
    rows = []
    if first is not None and stays is not None:
        fleet = result.hosted.kind(stays)
        replicas = plural(fleet.replicas(stays) + fleet.spare, "replica")
        gpus = plural(fleet.purchases(stays) * fleet.gpus_per_purchase, "GPU")
        rate = f"tokens a month: {stays / result.tokens_per_request / SECONDS_PER_MONTH:.2g} requests/s"
        rows.append(blocks.fact("break-even", count(stays), rate, number=stays))
        hosted = result.hosted.usd(stays)
        rows.append(blocks.fact("bill there", f"{usd(hosted)}/month", f"{replicas} on {gpus}: {fleet.name}"))
        if first < stays:
            undone = "tokens a month already, but the next machine to buy undoes it until the break-even"
            rows.append(blocks.fact("first cheaper", count(first), undone))
    api, full = meets.api_usd_per_mtok, meets.full_usd_per_mtok
    rows.append(blocks.fact("API", usd(api), f"per Mtok of this mix, {meets.api}", number=api))
    rows.append(blocks.fact("self-hosted", usd(full), "per Mtok on full machines", number=full))
    for bill in result.bills:
        if own is not None and bill.tokens_per_month == own:
            cheaper = "self-host" if bill.cheapest == SELF_HOSTED else f"call {bill.cheapest}"
            rows.append(blocks.fact("your volume", count(own), f"tokens a month: cheaper to {cheaper}"))
    return blocks.facts(*rows)


def _advice(result: BreakEvenReport) -> Iterable[blocks.Line]:
    if result.hardware and not result.slos:
        slo = option("slo", "ttft_p99=1,tpot_p99=80ms")
        yield blocks.hint(f"No SLO is set: replicas are filled however long requests wait. Give {slo}.")
    if result.found[0].stays_tokens_per_month is None:
        yield blocks.hint("A smaller model, a cheaper GPU or a more expensive API moves it.")
    elif not result.hosted.extras:
        people = f"{option('engineers')}, {option('overhead')}"
        yield blocks.hint(
            f"No people and no overheads are counted ({people}): they often weigh more than the machines."
        )


def _apis(result: BreakEvenReport, letters: list[str]) -> blocks.Table:
    rows = []
    for letter, api, meets in zip(letters, result.apis, result.found, strict=True):
        listed = f"{usd(api.input_usd_per_mtok)} / {usd(api.output_usd_per_mtok)}"
        volumes = map(_tokens, (meets.first_tokens_per_month, meets.stays_tokens_per_month))
        prices = map(usd, (api.usd_per_mtok, meets.full_usd_per_mtok))
        rows.append((letter, api.name, listed, *prices, *volumes, str(api.date or "–")))
    columns = ["", "API", ">list in / out", ">$/Mtok", ">ours, full", ">first", ">for good", "!list of"]
    return blocks.table(columns, rows, "$/Mtok of this mix; break-even in tokens a month: first, and for good")


def _tokens(volume: float | None) -> str:
    return "never" if volume is None else count(volume)


def _bills(result: BreakEvenReport, letters: list[str]) -> blocks.Table:
    """Sides of the comparison as rows, volumes as columns."""
    bills, own = result.bills, result.own_tokens_per_month

    def row(label: str, name: str, dollars: Iterable[float]) -> list[blocks.Piece]:
        return [label, *(_dollars(bill, name, amount) for bill, amount in zip(bills, dollars, strict=True))]

    rows: list[list[blocks.Piece]] = [
        row(SELF_HOSTED, SELF_HOSTED, (bill.hosted_usd for bill in bills)),
        ["  replicas / GPUs", *(f"{bill.replicas:,} / {bill.gpus:,}" for bill in bills)],
        *(
            row(f"{letter} {api.name}", api.name, (bill.api_usd[api.name] for bill in bills))
            for letter, api in zip(letters, result.apis, strict=True)
        ),
    ]
    volumes = [bill.tokens_per_month for bill in bills]
    heads = [f">{count(volume)}{' (yours)' if volume == own else ''}" for volume in volumes]
    return blocks.table(["tokens a month", *heads], rows, "Dollars a month (→ the cheapest)")


def _dollars(bill: BillAt, name: str, amount: float) -> blocks.Piece:
    return blocks.Span(f"→ {usd(amount)}", "good") if bill.cheapest == name else usd(amount)


def _lines(result: BreakEvenReport) -> blocks.Table:
    """The self-hosted bill line by line."""
    bills = result.bills
    rows = [
        (line.name, *(usd(bill.hosted.lines[place].usd) for bill in bills))
        for place, line in enumerate(bills[0].hosted.lines)
    ]
    rows.append(("together", *(usd(bill.hosted_usd) for bill in bills)))
    return blocks.table(["self-hosted", *(f">{count(bill.tokens_per_month)}" for bill in bills)], rows)


def _swings(result: BreakEvenReport, letters: list[str]) -> blocks.Table:
    rows = [
        (_plain(swing.what), *(_tokens(row[place].found.stays_tokens_per_month) for row in result.swings))
        for place, swing in enumerate(result.swings[0])
    ]
    now = ("as above", *(_tokens(meets.stays_tokens_per_month) for meets in result.found))
    heads = ["what if", *(f">{letter}" for letter in letters)]
    return blocks.table(heads, [now, *rows], "Break-even for good, tokens a month")


def _plain(what: str) -> str:
    """Each API has an interval of its own hardware; the row stands for all."""
    if not what.startswith("speed"):
        return what
    return f"{'slower' if '−' in what else 'faster'} than modelled (80 % interval)"


def _hardware(result: BreakEvenReport) -> blocks.Table:
    old = {hosted.kind.name for hosted in result.hardware if hosted.pick.price_stale}
    rows = []
    for kind in sorted(result.hosted.kinds, key=lambda kind: kind.usd_per_purchase):
        name = f"{kind.name}{'†' if kind.name in old else ''}"
        sizes = kind.gpus_per_purchase, kind.replicas_per_purchase
        rows.append((name, usd(kind.usd_per_purchase), *map(str, sizes), _holds(kind), usd(kind.usd_per_mtok_full)))
    columns = ["bought as volume grows", ">$/month each", ">GPUs", ">replicas", ">tokens a month each", ">$/Mtok full"]
    return blocks.table(columns, rows)


def _holds(kind: FleetKind) -> str:
    first, last = kind.holds[0], kind.holds[-1]
    alone = count(first.tokens_per_month)
    return alone if last.replicas == 1 else f"{alone}; {count(last.tokens_per_month)} from {last.replicas} on"


def _notes(result: BreakEvenReport) -> blocks.Line:
    volumes = ", ".join(count(volume) for volume in result.hosted.not_planned_for)
    return blocks.note(
        f"Whether {result.model} is as good as the models it is compared with is for you to judge.",
        f"Machines are bought whole and run all {HOURS_PER_MONTH} hours; $/Mtok counts all tokens, in and out.",
        *_of_hardware(result),
        f"No hardware was looked for at {volumes} tokens a month, where bills meet: compare fewer APIs."
        if volumes
        else "",
        *_of_caches(result),
        *(f"Left out: {api.name}, {api.why}." for api in result.left_out),
        *(f"{api.name}: {api.note}." for api in result.apis if api.note),
    )


def _of_hardware(result: BreakEvenReport) -> Iterable[str]:
    picks = [hosted.pick for hosted in result.hardware]
    if not picks:
        return
    simulated = all(hosted.simulated for hosted in result.hardware)
    how = "simulated" if simulated else f"closed form ({option('quick')}), filled to 70 %"
    dates = sorted({pick.price_date for pick in picks})
    held = "What replicas hold under the SLO" if result.slos else "What replicas hold, no SLO"
    yield f"{held}: {how}. GPU prices of {' to '.join(map(str, dict.fromkeys((dates[0], dates[-1]))))}, on these terms."
    if any(pick.price_stale for pick in picks):
        yield OLD_PRICE
    below = sorted({pick.weights.value for pick in picks if pick.below_checkpoint})
    if below:
        bits = f"Some hardware holds weights or KV cache at fewer bits than published ({', '.join(below)})"
        yield f"{bits}: check quality, or ask with {option('min_weights')} and {option('kv')}."


def _of_caches(result: BreakEvenReport) -> Iterable[str]:
    """What the APIs' caches are taken to hold, and what filling them costs."""
    kept = next((api.cached_within_s for api in result.apis if api.cached_within_s), None)
    if kept is None:
        return
    yield f"Cached at the APIs: what the log repeats within {seconds(kept)} at its own pace, as hosts keep prompts."
    paid = ", ".join(api.name for api in result.apis if api.written_share)
    if paid:
        yield f"The rest of each prompt is written into the cache, at the price of writing: {paid}."
