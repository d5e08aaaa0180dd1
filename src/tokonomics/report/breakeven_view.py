"""Hosting oneself against APIs, for a person: the break-even of each, the bills at round volumes, what moves it."""

import string
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.money.breakeven import SELF_HOSTED, BillAt, BreakEven, FleetKind
from tokonomics.planner.breakeven import SECONDS_PER_MONTH, BreakEvenReport
from tokonomics.report.tables import table
from tokonomics.report.wording import OLD_PRICE, slos_text
from tokonomics.units import HOURS_PER_MONTH, count, percent, plural, seconds, usd


def _letters(count: int) -> list[str]:
    """A to Z, then AA, BB and so on: every API has one."""
    names = string.ascii_uppercase
    return [names[place % len(names)] * (place // len(names) + 1) for place in range(count)]


def breakeven_view(found: BreakEvenReport) -> RenderableType:
    """The verdicts first, then the bills, then what moves the break-even."""
    body: list[RenderableType] = [Text(_asked(found), style="dim"), ""]
    body += [_verdict(found, each) for each in found.found]
    if found.hardware and not found.slos:
        body.append(
            Text(
                "No SLO is set: replicas are filled however long requests wait. "
                "Give --slo, such as ttft_p99=1,tpot_p99=80ms.",
                style="yellow",
            )
        )
    body += ["", _apis(found), "", _bills(found)]
    if found.hosted.extras:
        body += ["", _lines(found)]
    body += ["", _swings(found), "", _hardware(found), "", Text(_notes(found), style="dim")]
    return Group(*body)


def _asked(found: BreakEvenReport) -> str:
    targets = slos_text(found.slos)
    cached = f"; {_cached(found)}" if found.cached_share else ""
    return (
        f"{found.model}, self-hosted, against {plural(len(found.apis), 'API price')}: requests of "
        f"{count(found.input_tokens)} in / {count(found.output_tokens)} out{cached}"
        f"{f'; SLO: {targets}' if targets else ''}"
    )


def _cached(found: BreakEvenReport) -> str:
    """Which share of the prompts each side finds in its cache."""
    theirs = sorted({percent(each.cached_share) for each in found.apis})
    ours = sorted({percent(each.cached_share) for each in found.hardware}) or ["as in your speed"]
    return f"of the prompts cached: {' or '.join(theirs)} at the APIs, {' or '.join(ours)} self-hosted"


def _verdict(found: BreakEvenReport, one: BreakEven) -> Text:
    first, stays = one.first_tokens_per_month, one.stays_tokens_per_month
    if first is None or stays is None:
        return Text.assemble(f"{one.api}: ", ("never cheaper to self-host", "bold red"), f"; {one.never}.")
    kind = found.hosted.kind(stays)
    before = ""
    if first < stays:
        before = f"; at {count(first)} already, but the next machine to buy undoes it until then"
    return Text.assemble(
        f"{one.api}: self-hosting is cheaper from ",
        (f"{count(stays)} tokens a month", "bold green"),
        f" on ({stays / found.tokens_per_request / SECONDS_PER_MONTH:.2g} requests/s, "
        f"{usd(found.hosted.usd(stays))} a month, {_fleet(kind, stays)}: {kind.name}){before}.",
    )


def _fleet(kind: FleetKind, volume: float) -> str:
    replicas = kind.replicas(volume) + kind.spare
    return f"{plural(replicas, 'replica')} on {plural(kind.purchases(volume) * kind.gpus_per_purchase, 'GPU')}"


def _apis(found: BreakEvenReport) -> RenderableType:
    rows = [
        (
            letter,
            each.name,
            f"{usd(each.input_usd_per_mtok)} / {usd(each.output_usd_per_mtok)}",
            usd(each.usd_per_mtok),
            usd(meets.full_usd_per_mtok),
            _tokens(meets.first_tokens_per_month),
            _tokens(meets.stays_tokens_per_month),
            str(each.date or "–"),
        )
        for letter, each, meets in zip(_letters(len(found.apis)), found.apis, found.found, strict=True)
    ]
    columns = ["", "API", ">list in / out", ">$/Mtok", ">ours, full", ">first", ">for good", "!list of"]
    title = "$/Mtok of this mix; tokens a month from which self-hosting is cheaper: first, and for good"
    return table(columns, rows, title=title)


def _tokens(volume: float | None) -> str:
    return "never" if volume is None else count(volume)


def _bills(found: BreakEvenReport) -> RenderableType:
    """Sides of the comparison as rows, volumes as columns."""
    bills = found.bills
    rows = [(SELF_HOSTED, *(_cell(bill, SELF_HOSTED, bill.hosted_usd) for bill in bills))]
    rows.append(("  replicas / GPUs", *(f"{bill.replicas:,} / {bill.gpus:,}" for bill in bills)))
    for letter, api in zip(_letters(len(found.apis)), found.apis, strict=True):
        rows.append((f"{letter} {api.name}", *(_cell(bill, api.name, bill.api_usd[api.name]) for bill in bills)))
    heads = [f">{count(bill.tokens_per_month)}{_own(found, bill)}" for bill in bills]
    return table(["tokens a month", *heads], rows, title="Dollars a month (→ the cheapest)")


def _own(found: BreakEvenReport, each: BillAt) -> str:
    return " (yours)" if each.tokens_per_month == found.own_tokens_per_month else ""


def _cell(each: BillAt, name: str, bill: float) -> str:
    return f"{'→ ' if each.cheapest == name else ''}{usd(bill)}"


def _lines(found: BreakEvenReport) -> RenderableType:
    """The self-hosted bill line by line."""
    bills = found.bills
    rows = [
        (line.name, *(usd(bill.hosted.lines[place].usd) for bill in bills))
        for place, line in enumerate(bills[0].hosted.lines)
    ]
    rows.append(("together", *(usd(bill.hosted_usd) for bill in bills)))
    return table(["self-hosted", *(f">{count(bill.tokens_per_month)}" for bill in bills)], rows)


def _swings(found: BreakEvenReport) -> RenderableType:
    heads = [f">{letter}" for letter in _letters(len(found.apis))]
    kinds = [_plain(swing.what) for swing in found.swings[0]]
    rows = [
        (what, *(_range(row[place].found) for row in found.swings))
        for place, what in enumerate(kinds)
    ]  # fmt: skip
    now = ("as above", *(_range(each) for each in found.found))
    return table(["what if", *heads], [now, *rows], title="Tokens a month from which self-hosting stays cheaper")


def _plain(what: str) -> str:
    """Each API has an interval of its own hardware; the row stands for all."""
    if not what.startswith("speed"):
        return what
    return f"{'slower' if '−' in what else 'faster'} than modelled (80 % interval)"


def _range(each: BreakEven) -> str:
    return "never" if each.stays_tokens_per_month is None else count(each.stays_tokens_per_month)


def _hardware(found: BreakEvenReport) -> RenderableType:
    kinds = sorted(found.hosted.kinds, key=lambda each: each.usd_per_purchase)
    old = {each.kind.name for each in found.hardware if each.pick.price_stale}
    rows = [
        (
            f"{kind.name}{'†' if kind.name in old else ''}",
            usd(kind.usd_per_purchase),
            str(kind.gpus_per_purchase),
            str(kind.replicas_per_purchase),
            _holds(kind),
            usd(kind.usd_per_mtok_full),
        )
        for kind in kinds
    ]
    columns = ["bought as volume grows", ">$/month each", ">GPUs", ">replicas", ">tokens a month each", ">$/Mtok full"]
    return table(columns, rows)


def _holds(kind: FleetKind) -> str:
    first, last = kind.holds[0], kind.holds[-1]
    alone = count(first.tokens_per_month)
    if last.replicas == 1:
        return alone
    return f"{alone}; {count(last.tokens_per_month)} from {last.replicas} on"


def _notes(found: BreakEvenReport) -> str:
    lines = [
        f"Whether {found.model} is as good as the models it is compared with is for you to judge.",
        f"Machines are bought whole and run all {HOURS_PER_MONTH} hours; $/Mtok counts all tokens, in and out.",
    ]
    if not found.hosted.extras:
        lines.append("No people and no overheads are counted: --engineers, --overhead.")
    if found.hardware:
        how = "simulated" if all(each.simulated for each in found.hardware) else "closed form (--quick), filled to 70 %"
        dates = sorted(each.pick.price_date for each in found.hardware)
        held = "What replicas hold under the SLO" if found.slos else "What replicas hold, no SLO"
        lines.append(f"{held}: {how}. GPU prices of {_dates(dates)}, on these terms.")
        if any(each.pick.price_stale for each in found.hardware):
            lines.append(OLD_PRICE)
        below = sorted({each.pick.weights.value for each in found.hardware if each.pick.below_checkpoint})
        if below:
            lines.append(
                f"Some hardware holds weights or KV cache at fewer bits than published ({', '.join(below)}): check "
                "quality, or ask with --min-weights and --kv."
            )
    if found.hosted.not_planned_for:
        volumes = ", ".join(count(each) for each in found.hosted.not_planned_for)
        lines.append(f"No hardware was looked for at {volumes} tokens a month, where bills meet: compare fewer APIs.")
    lines += _kept(found)
    lines += [f"Left out: {each.name}, {each.why}." for each in found.left_out]
    lines += [f"{each.name}: {each.note}." for each in found.apis if each.note]
    return "\n".join(lines)


def _kept(found: BreakEvenReport) -> list[str]:
    """What the APIs' caches are taken to hold, and what filling them costs."""
    kept = next((each.cached_within_s for each in found.apis if each.cached_within_s), None)
    if kept is None:
        return []
    lines = [f"Cached at the APIs: what the log repeats within {seconds(kept)} at its own pace, as hosts keep prompts."]
    paid = [each.name for each in found.apis if each.written_share]
    if paid:
        lines.append(f"The rest of each prompt is written into the cache, at the price of writing: {', '.join(paid)}.")
    return lines


def _dates(dates: Sequence[object]) -> str:
    return f"{dates[0]}" if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
