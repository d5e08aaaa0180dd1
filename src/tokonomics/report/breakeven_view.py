"""Show self-hosting against APIs: the break-even of each, the bills at round volumes, and what moves it."""

import math
import string
from collections.abc import Callable, Iterable
from functools import partial

from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.errors import option
from tokonomics.money.breakeven import SELF_HOSTED, BreakEven, CostAt, FleetKind
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.hosting import BreakEvenReport
from tokonomics.questions.breakeven import BreakevenResult, NothingHosts
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.plan_pick_view import nothing
from tokonomics.report.shared_view import API_LATENCY, api_latency_cell, api_latency_notes, list_price_cell
from tokonomics.report.wording import FEWER_BITS, aged, and_slos, machine_text, quoted_text, speed_word
from tokonomics.types import Speed, today
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_MONTH, count, percent, plural, requests_a_second, seconds, usd

_DRAWN = 6  # number of the cheapest APIs whose bills and swings are shown; the price list has all
_VOLUMES = 5  # volumes at which bills are shown


def breakeven(result: BreakevenResult | NothingHosts, request: BreakevenRequest) -> Answer:
    """Show the verdicts first, then the bills, then what moves the break-even."""
    if isinstance(result, BreakevenResult):
        drawn = {"Bills against volume": lambda: charts.bills.breakeven_chart(result)}
        if result.found[0].stays_tokens_per_month is not None:
            drawn["What moves the break-even"] = lambda: charts.bills.swings_chart(result)
        return Answer(result, f"Host {result.model} or call an API", partial(_sections, result, not request.api), drawn)
    study = result.study
    name = study.question.model.name
    see = f"tokonomics plan … {option('why')}"
    return Answer(result, f"Nothing hosts {name}", partial(nothing, study.plan, name, result.blame, see))


def _sections(result: BreakevenResult, every_host: bool) -> blocks.View:
    cached = ""
    if result.cached_share:
        theirs = " or ".join(sorted({percent(api.cached_share) for api in result.apis}))
        ours = " or ".join(sorted({percent(kind.cached_share) for kind in result.hardware})) or "as in your speed"
        cached = f"; of the prompts cached: {theirs} at the APIs, {ours} self-hosted"
    prices = plural(len(result.apis), "API price")
    none_known = 0 < len(result.apis) == len(result.perhaps_there)
    order = "the cheapest first"
    if result.perhaps_there:
        order = "none known to be in the region" if none_known else "those known to be in the region first"
    against = f"every host of it in the catalogue ({prices}, {order})" if every_host else prices
    asked = f"requests of {result.lengths}{cached}{and_slos(result.slos)}"
    yield blocks.line(f"{result.model}, self-hosted, against {against}: {asked}", kind="asked")
    first, *others = result.found
    known = " known to be in the region" if result.perhaps_there and not none_known else ""
    cheapest = f"the cheapest host{' (none is known to be in the region)' if none_known else known}, "
    most = max(result.counted, key=lambda place: result.found[place].api_usd_per_mtok)
    yield blocks.section(_verdict(result, first, "headline", cheapest if every_host else ""), _figures(result, first))
    if every_host:
        yield blocks.section(
            _verdict(result, result.found[most], of=f"the most expensive host{known}, ") if most else None
        )
    else:
        yield blocks.section(*(_verdict(result, other) for other in others))
    yield blocks.section(*_advice(result))
    letters = letters_for(len(result.apis))
    yield _apis(result, letters, _DRAWN if every_host else None)
    yield _bills(result, letters)
    if result.hosted.extras:
        yield _lines(result)
    yield _hardware(result)
    yield _notes(result, every_host)
    yield blocks.section(_swings(result, letters), title="What moves the break-even", folded=True)


def letters_for(apis: int) -> list[str]:
    """Return A to Z, then AA, BB and so on: one for every API."""
    names = string.ascii_uppercase
    return [names[place % len(names)] * (place // len(names) + 1) for place in range(apis)]


def _verdict(result: BreakEvenReport, meets: BreakEven, kind: blocks.Kind = "", of: str = "") -> blocks.Line:
    """Say which side is cheaper from which volume on, and the precision if it is not the published one."""
    stays, bits = meets.stays_tokens_per_month, result.fewer_bits(meets)
    hosting = f"self-hosting with {bits}, fewer bits than published, is" if bits else "self-hosting is"
    estimated = "" if all(kind.simulated for kind in result.hardware) else "; an estimate, not simulated"
    assumed = "; its speed is assumed" if any(one.pick.speed is Speed.assumed for one in result.hardware) else ""
    old = estimated + assumed + _aged(result, stays) if kind == "headline" else ""
    if stays is None:
        never = blocks.Span("never cheaper", "worst")
        return blocks.line(f"S{hosting[1:]} ", never, f" than {of}{meets.api}: {meets.never}{old}.", kind=kind)
    volume = blocks.Span(f"{count(stays)} tokens a month", "best")
    return blocks.line("From ", volume, f" on, {hosting} cheaper than {of}{meets.api}{old}.", kind=kind)


def _aged(result: BreakEvenReport, stays: float | None) -> str:
    """Say how old the GPU price at the break-even is; without a break-even, the GPU prices of all compared."""
    runs = None if stays is None else result.hosted.kind(stays).name
    ages = (kind.pick.price_age_days for kind in result.hardware if runs in (None, kind.kind.name))
    return aged(*ages, what="GPU price")


def _figures(result: BreakEvenReport, meets: BreakEven) -> blocks.Facts:
    """Show what runs at the break-even with the first API, and both prices."""
    first, stays, own = meets.first_tokens_per_month, meets.stays_tokens_per_month, result.own_tokens_per_month
    rows = []
    if first is not None and stays is not None:
        fleet = result.hosted.kind(stays)
        replicas = plural(fleet.replicas(stays) + fleet.spare, "replica")
        gpus = plural(fleet.purchases(stays) * fleet.gpus_per_purchase, "GPU")
        a_second = requests_a_second(f"{stays / result.tokens_per_request / SECONDS_PER_MONTH:.2g}")
        rate = f"tokens a month: {a_second}"
        rows.append(blocks.fact("break-even", count(stays), rate, number=stays))
        hosted = result.hosted.usd(stays)
        named = _machines(result).get(fleet.name, fleet.name)
        rows.append(blocks.fact("bill there", f"{usd(hosted)}/month", f"{replicas} on {gpus}: {named}"))
        if first < stays:
            undone = "tokens a month already, but the next machine to buy undoes it until the break-even"
            rows.append(blocks.fact("first cheaper", count(first), undone))
    api, full = meets.api_usd_per_mtok, meets.full_usd_per_mtok
    rows.append(blocks.fact("API", usd(api), f"per Mtok of this mix, {meets.api}", number=api))
    rows.append(blocks.fact("self-hosted", usd(full), "per Mtok on full machines", number=full))
    for bill in result.bills:
        if own is not None and bill.tokens_per_month == own:
            cheaper = "self-host" if bill.cheapest == SELF_HOSTED else f"call {bill.cheapest}"
            perhaps = ", perhaps not in the region" if bill.cheapest in result.perhaps_there else ""
            rows.append(blocks.fact("your volume", count(own), f"tokens a month: cheaper to {cheaper}{perhaps}"))
    return blocks.facts(*rows)


def _advice(result: BreakEvenReport) -> Iterable[blocks.Line]:
    perhaps = [api for api in result.apis if api.name in result.perhaps_there]
    asks = min(perhaps, key=lambda api: api.usd_per_mtok, default=None)
    if asks and asks.usd_per_mtok <= result.apis[0].usd_per_mtok:
        price = f"{usd(asks.usd_per_mtok)} per Mtok"
        yield blocks.hint(f"Perhaps in the region: {asks.name} at {price}. It does not say where it computes: ask.")
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


def _apis(result: BreakevenResult, letters: list[str], shown: int | None) -> blocks.Table:
    def quoted(api: ApiCost) -> str:
        return f"{api.date or '?'}{'†' if (_days(api) or 0) > STALE_AFTER_DAYS else ''}"

    return blocks.listed(
        zip(letters, result.apis, result.found, strict=True),
        ("", lambda row: row[0]),
        ("!API", lambda row: row[1].name),
        (">list in / out", lambda row: list_price_cell(row[1])),
        (">$/Mtok", lambda row: usd(row[1].usd_per_mtok)),
        (API_LATENCY, lambda row: api_latency_cell(result.latencies.get(row[1].name))) if result.latencies else None,
        (">first", lambda row: _tokens(row[2].first_tokens_per_month)),
        (">for good", lambda row: _tokens(row[2].stays_tokens_per_month)),
        ("!price of", lambda row: quoted(row[1])),
        ("computes in", lambda row: _computes_in(result, row[1])) if _has_places(result) else None,
        title="$/Mtok of this mix; break-even in tokens a month: first, and for good",
        shown=shown,
    )


def _has_places(result: BreakEvenReport) -> bool:
    return bool(result.perhaps_there) or any(api.areas for api in result.apis)


def _computes_in(result: BreakEvenReport, api: ApiCost) -> str:
    """Return where its host says that it computes; ? if that does not say whether it is in the region."""
    mark = " ?" if api.areas and api.name in result.perhaps_there else ""
    return f"{', '.join(api.areas) or '?'}{mark}"


def _letter(result: BreakEvenReport, letters: list[str], place: int) -> str:
    """Return the heading of an API's column, with ? if it is only perhaps in the region."""
    return f">{letters[place]}{' ?' if result.apis[place].name in result.perhaps_there else ''}"


def _days(api: ApiCost) -> int | None:
    return None if api.date is None else max(0, (today() - api.date).days)


def _tokens(volume: float | None) -> str:
    return "never" if volume is None else count(volume)


def _bills(result: BreakEvenReport, letters: list[str]) -> blocks.Table:
    """Show the bill of each side at a few volumes around the user's own, or around the break-even."""
    own = result.own_tokens_per_month

    only = len(result.counted) < len(result.apis)
    marked = f"{' known to be in the region' if only else ''}; ? perhaps not in the region" * bool(result.perhaps_there)

    def asked(name: str) -> Callable[[CostAt], blocks.Piece]:
        return lambda bill: _dollars(bill, name, bill.api_usd[name])

    return blocks.listed(
        _about(result),
        (
            "!tokens a month",
            lambda bill: f"{count(bill.tokens_per_month)}{' (yours)' * (bill.tokens_per_month == own)}",
        ),
        (f">{SELF_HOSTED}", lambda bill: _dollars(bill, SELF_HOSTED, bill.hosted_usd)),
        (">replicas / GPUs", lambda bill: f"{bill.replicas:,} / {bill.gpus:,}"),
        *((_letter(result, letters, place), asked(result.apis[place].name)) for place in result.cheapest(_DRAWN)),
        title=f"Dollars a month (→ the cheapest{marked})",
    )


def _about(result: BreakEvenReport) -> list[CostAt]:
    """Return the bills at the volumes nearest to the user's own, or to the break-even, in order."""
    pivot = result.own_tokens_per_month or result.found[0].stays_tokens_per_month or result.bills[-1].tokens_per_month
    near = sorted(result.bills, key=lambda bill: abs(math.log(bill.tokens_per_month / pivot)))[:_VOLUMES]
    return sorted(near, key=lambda bill: bill.tokens_per_month)


def _dollars(bill: CostAt, name: str, amount: float) -> blocks.Piece:
    return blocks.Span(f"→ {usd(amount)}", "good") if bill.cheapest == name else usd(amount)


def _lines(result: BreakEvenReport) -> blocks.Table:
    """Show the self-hosted bill line by line."""
    bills = _about(result)
    rows = [
        (line.name, *(usd(bill.hosted.lines[place].usd) for bill in bills))
        for place, line in enumerate(bills[0].hosted.lines)
    ]
    rows.append(("together", *(usd(bill.hosted_usd) for bill in bills)))
    return blocks.table(["self-hosted", *(f">{count(bill.tokens_per_month)}" for bill in bills)], rows)


def _swings(result: BreakEvenReport, letters: list[str]) -> blocks.Table:
    shown = result.cheapest(_DRAWN)
    rows = [
        (swing.what, *(_tokens(result.swings[api][place].found.stays_tokens_per_month) for api in shown))
        for place, swing in enumerate(result.swings[0])
    ]
    now = ("as above", *(_tokens(result.found[api].stays_tokens_per_month) for api in shown))
    heads = ["what if", *(_letter(result, letters, api) for api in shown)]
    return blocks.table(heads, [now, *rows], "Break-even for good, tokens a month")


def _machines(result: BreakEvenReport) -> dict[str, str]:
    """Describe each kind of hardware by name: ``RunPod, 2× H100 (TP=2 fp8)``."""
    picks = {hosted.kind.name: hosted.pick for hosted in result.hardware}
    return {
        name: f"{machine_text(pick.provider, pick.instance, pick.gpu, pick.gpus_paid // pick.instances)} "
        f"({name.partition(' at ')[0].partition(' ')[2]})"
        for name, pick in picks.items()
    }


def _hardware(result: BreakEvenReport) -> blocks.Table:
    picks = {hosted.kind.name: hosted.pick for hosted in result.hardware}
    named = _machines(result)
    old = {name for name, pick in picks.items() if pick.price_stale}
    speeds = {name: speed_word(pick.speed, pick.speed_from) for name, pick in picks.items()}
    return blocks.listed(
        sorted(result.hosted.kinds, key=lambda kind: kind.usd_per_purchase),
        ("bought as volume grows", lambda kind: f"{named.get(kind.name, kind.name)}{'†' if kind.name in old else ''}"),
        (">$/month a machine", lambda kind: usd(kind.usd_per_purchase)),
        (">tokens a month a replica", _holds),
        (">$/Mtok full", lambda kind: usd(kind.usd_per_mtok_full)),
        ("speed", lambda kind: speeds.get(kind.name, "as given")),
    )


def _holds(kind: FleetKind) -> str:
    first, last = kind.holds[0], kind.holds[-1]
    alone = count(first.tokens_per_month)
    return alone if last.replicas == 1 else f"{alone}; {count(last.tokens_per_month)} from {last.replicas} on"


def _notes(result: BreakevenResult, every_host: bool) -> blocks.Line:
    volumes = ", ".join(count(volume) for volume in result.hosted.not_planned_for)
    same = "Hosts may serve it at fewer bits or with a shorter context than you would: ask them."
    other = f"Whether {result.model} is as good as the models it is compared with is for you to judge."
    return blocks.note(
        same if every_host else other,
        *api_latency_notes(result.latencies.values(), [api.name for api in result.apis]),
        _ages(result),
        "computes in: as its host says; ? where none says." if _has_places(result) else "",
        f"Machines are bought whole and run all {HOURS_PER_MONTH} hours; $/Mtok counts all tokens, in and out.",
        *_of_hardware(result),
        f"No hardware was looked for at {volumes} tokens a month, where bills meet: compare fewer APIs."
        if volumes
        else "",
        *_of_caches(result),
        *(f"Left out: {api.name}, {api.why}." for api in result.left_out),
        *(f"{api.name}: {api.note}." for api in result.apis if api.note),
        f"What moves the break-even (machine and API prices, speed, load): {option('html')} or {option('chart')}.",
    )


def _ages(result: BreakEvenReport) -> str:
    """Say how old the prices of the APIs are."""
    days = sorted({age for api in result.apis if (age := _days(api)) is not None})
    if not days:
        return ""
    span = " to ".join(str(age) for age in dict.fromkeys((days[0], days[-1])))
    mark = f" †: more than {STALE_AFTER_DAYS}." if days[-1] > STALE_AFTER_DAYS else ""
    return f"API prices are {span} days old.{mark}"


def _of_hardware(result: BreakEvenReport) -> Iterable[str]:
    picks = [hosted.pick for hosted in result.hardware]
    if not picks:
        return
    simulated = all(hosted.simulated for hosted in result.hardware)
    how = "simulated" if simulated else f"closed form ({option('quick')}), filled to 70 %"
    yield f"What replicas hold{' under the SLO' if result.slos else ', no SLO'}: {how}."
    quoted = quoted_text([pick.price_date for pick in picks], any(pick.price_stale for pick in picks))
    yield f"GPU p{quoted.removeprefix('P')}"
    if any(pick.below_checkpoint for pick in picks):
        yield FEWER_BITS.removeprefix("* ").capitalize()


def _of_caches(result: BreakEvenReport) -> Iterable[str]:
    """Say what the APIs' caches are assumed to hold, and what filling them costs."""
    kept = next((api.cached_within_s for api in result.apis if api.cached_within_s), None)
    if kept is None:
        return
    yield f"Cached at the APIs: what the log repeats within {seconds(kept)} at its own pace, as hosts keep prompts."
    paid = ", ".join(api.name for api in result.apis if api.written_share)
    if paid:
        yield f"The rest of each prompt is written into the cache, at the price of writing: {paid}."
