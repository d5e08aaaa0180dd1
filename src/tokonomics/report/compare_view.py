"""Show models on GPUs side by side, and two plans before and after a change, also as a pull request comment."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from tokonomics.errors import option
from tokonomics.planner.compare import Cell, Comparison, Diff
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.request import Request
from tokonomics.questions.requests.buy import DiffRequest
from tokonomics.questions.results import CompareResult, OneNoun, layout_text
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.markdown import markdown
from tokonomics.report.plan_pick_view import served_as
from tokonomics.report.plan_table_view import ranking
from tokonomics.report.shared_view import (
    API_LATENCY,
    api_fact,
    api_latency_cell,
    api_latency_notes,
    api_lines,
    api_table,
    list_price_cell,
)
from tokonomics.report.wording import (
    FEWER_BITS,
    NO_VALUE,
    OLD_PRICE,
    aged,
    and_slos,
    price_text,
    quoted_text,
    rented_text,
    speed_text,
    workload_text,
)
from tokonomics.units import count, percent, seconds, usd

_MOST_GPUS = 8  # more columns do not fit a terminal; the table of every pair, JSON and the chart have all


def compare(result: CompareResult, request: Request) -> Answer:
    """Show the cheapest pair, the grid, the pick of each model, and the front if qualities were given."""
    drawn = {"Dollars per million tokens": lambda: charts.plan.compare_chart(result)} if result.gpus else {}
    return Answer(result, "Models and GPUs side by side", partial(_sections, result), drawn)


def _sections(result: CompareResult) -> blocks.View:
    yield blocks.line(f"{workload_text(result.workload)} for each model{and_slos(result.slos)}", kind="asked")
    picks = sorted(
        ((cell, cell.pick) for cell in result.cells if cell.pick), key=lambda pair: pair[1].usd_per_mtok.blended
    )
    left_out = [
        (cell.model_name, blocks.Span(cell.gpu, opens=_plan_of(cell)), cell.refused or "")
        for cell in result.cells
        if not cell.pick
    ]
    why = blocks.table(["!model", "!GPU", "because"], left_out)
    if not picks:
        yield blocks.section(
            blocks.line("No offer meets these constraints for any model on any of these GPUs.", kind="worst"), why
        )
        yield blocks.hint(f"Loosen the SLO ({option('slo')}), or allow lower precisions.")
        names = {cell.model: cell.model_name for cell in result.cells}
        yield api_table({names.get(model, model): api for model, api in result.api_beside.items()}, "model")
        return
    yield blocks.section(*_headline(result, picks))
    yield _grid(result)
    cells = {(pick.model, pick.gpu): cell for cell, pick in picks}
    named = lambda pick: cells[pick.model, pick.gpu].model_name  # noqa: E731
    opened = lambda pick: _plan_of(cells[pick.model, pick.gpu])  # noqa: E731
    cheapest: dict[str, Candidate] = {}
    for _, pick in picks:
        cheapest.setdefault(pick.model, pick)
    yield ranking(list(cheapest.values()), None, named, opened)
    if result.front:
        yield _front(result, cheapest.values())
    if result.apis:
        yield _apis(result)
    yield _notes(result)
    every = ranking([pick for _, pick in picks], None, named, opened, full=True)
    yield blocks.section(every, title="Every pair, at its cheapest offer", folded=True)
    if left_out:
        yield blocks.section(why, title="Left out, with the reason", folded=True)


def _headline(result: CompareResult, picks: list[tuple[Cell, Candidate]]) -> Iterable[blocks.Block]:
    (cell, best), (other, last) = picks[0], picks[-1]
    price = best.usd_per_mtok.blended
    where = f", {cell.model_name} on {rented_text(best)}, {served_as(best)}{aged(best.price_age_days)}"
    beside = result.api_beside.get(best.model)
    fleet = "Cheapest fleet: " if beside and beside.cheaper else "Cheapest: "
    yield blocks.line(fleet, blocks.Span(f"{usd(price)} per Mtok", "best"), where, kind="headline")
    yield from api_lines(beside)
    times = f"{other.model_name} on {last.gpu} costs {last.usd_per_mtok.blended / price:.2g} times as much"
    worst = times if len(picks) > 1 else ""
    yield blocks.facts(
        blocks.fact("per Mtok", usd(price), f"{count(1e6 / price)} tokens a dollar", number=price),
        blocks.fact("bill", f"{usd(best.usd_per_month)}/month", "", number=best.usd_per_month),
        ("GPUs in use", f"{best.gpus_used} of {best.gpus_paid}") if best.gpus_used < best.gpus_paid else None,
        api_fact(beside),
        blocks.fact("speed", best.speed.value, speed_text(best.speed, best.speed_from)),
        blocks.fact("pairs that serve", f"{len(picks)}", worst, number=len(picks), less="worse"),
    )
    if result.slos and not result.simulated:
        yield blocks.hint(
            f"Latencies are means: check the SLO's percentiles by {option('simulate')} or tokonomics plan."
        )


def _grid(result: Comparison) -> blocks.Table:
    shown = result.gpus[:_MOST_GPUS]
    rows: list[tuple[blocks.Pieces, ...]] = [
        (cells[0].model_name, *(blocks.Span(price_text(cell, result), opens=_plan_of(cell)) for cell in cells))
        for cells in ([result.cell(model, gpu) for gpu in shown] for model in result.models)
    ]
    return blocks.table(["!model", *(f">{gpu}" for gpu in shown)], rows, "$/Mtok, the whole bill over all tokens")


def _plan_of(cell: Cell) -> str:
    """Return the inputs with which ``plan`` tells more about a pair."""
    return urlencode({"model": cell.model, "gpu": cell.gpu})


def _apis(result: CompareResult) -> blocks.Section:
    """Show what hosts of the same models charge for the same requests, and how fast they answer."""
    names = {cell.model: cell.model_name for cell in result.cells}
    rows = [(names[model], api) for model, bills in result.apis.items() for api in bills]
    cached = max(api.cached_share for _, api in rows)
    where = f"{percent(cached)} of the prompts read from their caches where they have one"
    table = blocks.listed(
        rows,
        ("!model", lambda row: row[0]),
        ("!API", lambda row: row[1].name),
        (">list in / out", lambda row: list_price_cell(row[1])),
        (">$/Mtok", lambda row: usd(row[1].usd_per_mtok)),
        (API_LATENCY, lambda row: api_latency_cell(result.latencies.get(row[1].name))),
        ("!price of", lambda row: str(row[1].date or "?")),
        title=f"The same requests by API, {where if cached else 'nothing cached'}: the cheapest hosts",
    )
    shown = [api.name for _, api in rows]
    return blocks.section(table, blocks.note(*api_latency_notes(result.latencies.values(), shown)))


def _front(result: Comparison, cheapest: Iterable[Candidate]) -> blocks.Table:
    """Show the front of price and quality, and the cheapest pair of each model that is not on it."""
    pairs = dict.fromkeys([*result.front, *((pick.model, pick.gpu) for pick in cheapest)])
    return blocks.listed(
        [result.cell(*pair) for pair in pairs],
        ("!model", lambda cell: cell.model_name),
        ("GPU", lambda cell: cell.gpu),
        (">quality", lambda cell: f"{cell.quality:g}" if cell.quality else "no score"),
        (">$/Mtok", lambda cell: usd(cell.usd_per_mtok or 0)),
        (">$/Mtok ÷ quality", lambda cell: usd(cell.usd_per_quality_mtok) if cell.usd_per_quality_mtok else ""),
        ("", lambda cell: "front" if (cell.model, cell.gpu) in result.front else ""),
        title="Price and quality (front: none is better and cheaper)",
    )


def _notes(result: Comparison) -> blocks.Line:
    filled = f"closed form, replicas filled to 70 % ({option('simulate')} for p99s)"
    how = "sized by simulation" if result.simulated else filled
    refused = any(cell.usd_per_mtok is None and cell.gpu in result.gpus for cell in result.cells)
    picks = [cell.pick for cell in result.cells if cell.pick]
    none = [model for model in result.models if not any(cell.pick for cell in result.cells if cell.model == model)]
    scored = any(cell.quality for cell in result.cells)
    unscored = ", ".join(dict.fromkeys(cell.model_name for cell in result.cells if not cell.quality)) if scored else ""
    more = ", ".join(result.gpus[_MOST_GPUS:])
    return blocks.note(
        f"Each pair is the cheapest offer{' that meets the SLO' if result.slos else ''}: {how}.",
        "–: no offer meets these constraints; `tokonomics plan` says why." if refused else "",
        f"On none of these GPUs: {', '.join(none)}." if none else "",
        "Whole machines: at little traffic a large GPU waits, and its price per token shows it. "
        "Tokenizers differ by some percent.",
        quoted_text([pick.price_date for pick in picks], any(pick.price_stale for pick in picks)),
        FEWER_BITS if any(pick.below_checkpoint for pick in picks) else "",
        f"More expensive, not in the grid: {more} ({option('gpu')})." if more else "",
        f"Not in the front, since without a score: {unscored} ({option('quality')})." if unscored else "",
        "Quality is your own score; $/Mtok ÷ quality counts a token as much as its score." if scored else "",
    )


# --- two plans side by side ------------------------------------------------------------------------------------------

# GitHub draws ``> [!TIP]`` as a coloured box (docs.github.com, "Alerts"), GitLab ``{+ … +}`` and ``{- … -}`` in green
# and red (docs.gitlab.com, "Inline diff"); both fold the content of ``<details>``.


def diff(result: OneNoun, request: DiffRequest) -> Answer:
    """Show what changed, its effect, and its saving."""
    title = f"{Path(request.model).name} against {Path(request.against).name}"
    made = result.noun
    printed: dict[str | None, Callable[[], str]] = {
        "github": lambda: _github(made),
        "gitlab": lambda: _gitlab(made),
        "json": lambda: json.dumps(result.plain() | {"comment": _github(made)}, ensure_ascii=False),
    }
    if request.markdown:
        printed[None] = lambda: markdown(blocks.sections(_diff_sections(made)))
    return Answer(result, title, partial(_diff_sections, made), printed=printed.get(request.format))


def _github(made: Diff) -> str:
    saves = round(made.saved_usd_per_month, 2)
    alert = "TIP" if saves > 0 else "WARNING" if saves < 0 else "NOTE"
    return _comment(made, f"> [!{alert}]\n> {_drawn(_verdict(made))}", _diff_rows(made))


def _gitlab(made: Diff) -> str:
    """Colour changes in dollars: red if they cost more, green if they save."""
    rows = []
    for name, before, after, change in _diff_rows(made):
        if name.startswith("$") and change not in ("", "same"):
            change = f"{{- {change} -}}" if change.startswith("+") else f"{{+ {change} +}}"
        rows.append((name, before, after, change))
    return _comment(made, _drawn(_verdict(made)), rows)


def _comment(made: Diff, verdict: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Show the outcome and what was planned, with the changes folded."""
    changed = _drawn(_changes(made), _dates(made))
    folded = f"<details><summary>{len(made.changes)} changed</summary>\n\n{changed}\n\n</details>"
    caveats = _drawn(_caveats(made))
    return "\n\n".join(filter(None, (verdict, _drawn(_plans(made, rows)), caveats, folded)))


def _drawn(*shown: blocks.Block | None) -> str:
    return markdown(blocks.sections(iter(shown)))


def _diff_sections(made: Diff) -> blocks.View:
    yield _verdict(made)
    yield _changes(made)
    yield _plans(made, _diff_rows(made))
    yield _caveats(made)
    yield _dates(made)


def _changes(made: Diff) -> blocks.Table:
    changes = [(row.key, row.before or NO_VALUE, row.after or NO_VALUE) for row in made.changes]
    return blocks.table(["!scenario", made.before.name, made.after.name], changes or [("nothing", "", "")])


def _plans(made: Diff, rows: Sequence[tuple[str, ...]]) -> blocks.Table:
    return blocks.table(["!plan", f">{made.before.name}", f">{made.after.name}", ">change"], rows)


def _caveats(made: Diff) -> blocks.Line | None:
    """Warn about the plans behind the dollars: fewer bits, unchecked latencies, old prices."""
    sides = (made.before, made.after)
    unchecked = " and ".join(side.name for side in sides if not side.plan.simulated)
    said = [
        FEWER_BITS if any(side.plan.below_checkpoint for side in sides) else "",
        f"Not simulated, so no SLO is checked: {unchecked}." if unchecked else "",
        OLD_PRICE if any(side.plan.price_stale for side in sides) else "",
        *(
            f"{side.name}: an API is {percent(side.api.saved_share)} cheaper than its fleet; SLO {side.api.slo.value}."
            for side in sides
            if side.api and side.api.cheaper and side.api.saved_share is not None
        ),
    ]
    return blocks.note(*said) if any(said) else None


def _dates(made: Diff) -> blocks.Line:
    dates = f"Prices of {made.before.plan.price_date} and {made.after.plan.price_date}"
    return blocks.note(f"{dates}; made by `tokonomics plan --against`.")


def _verdict(made: Diff) -> blocks.Line:
    amount, share = abs(made.saved_usd_per_month), percent(abs(made.saved_share))
    old = aged(made.before.plan.price_age_days, made.after.plan.price_age_days)
    if round(amount, 2) == 0:
        return blocks.headline(f"The bill stays the same{old}.", mood="strong")
    saves = made.saved_usd_per_month > 0
    words = f"{'Saves' if saves else 'Costs'} {usd(amount)} a month{'' if saves else ' more'} ({share})"
    same = abs(made.before.tokens_per_month / made.after.tokens_per_month - 1) < 1e-6
    per_token = "" if same else f"; by the million tokens {_signed(-made.saved_share_per_mtok)}"
    return blocks.headline(f"{words}{per_token}{old}.", mood="best" if saves else "worst")


def _diff_rows(made: Diff) -> list[tuple[str, ...]]:
    before, after = made.before.plan, made.after.plan
    rows: list[tuple[str, ...]] = [
        ("model", made.before.model, made.after.model, ""),
        ("replicas", _layout(before), _layout(after), ""),
        ("offer", _offer(before), _offer(after), ""),
        ("terms", before.terms.replace("_", " "), after.terms.replace("_", " "), ""),
        ("tokens a month", *_pair(made.before.tokens_per_month, made.after.tokens_per_month, count)),
        ("$ a month", *_pair(before.usd_per_month, after.usd_per_month, usd)),
        ("$/Mtok, whole bill", *_pair(before.usd_per_mtok.blended, after.usd_per_mtok.blended, usd)),
        ("$/Mtok input", *_pair(before.usd_per_mtok.input, after.usd_per_mtok.input, usd)),
        ("$/Mtok output", *_pair(before.usd_per_mtok.output, after.usd_per_mtok.output, usd)),
        ("load", percent(before.load_share), percent(after.load_share), ""),
    ]
    apis = made.before.api, made.after.api
    if any(apis):
        named = (f"{usd(api.usd_per_month)}, {api.api.name}" if api else NO_VALUE for api in apis)
        rows.append(("cheapest API", *named, "cheaper than the fleet" if apis[1] and apis[1].cheaper else ""))
    for name, first, second in (("TTFT", before.ttft_s, after.ttft_s), ("TPOT", before.tpot_s, after.tpot_s)):
        if first.p99 is not None and second.p99 is not None:
            rows.append((f"{name} p99", *_pair(first.p99, second.p99, seconds)))
    return rows


def _offer(row: Candidate) -> str:
    return f"{rented_text(row)}{'†' if row.price_stale else ''}"


def _layout(row: Candidate) -> str:
    return f"{layout_text(row)}{'*' if row.below_checkpoint else ''}"


def _pair(before: float, after: float, text: Callable[[float], str]) -> tuple[str, str, str]:
    return text(before), text(after), "" if before == 0 else _signed(after / before - 1)


def _signed(share: float) -> str:
    if round(share, 4) == 0:
        return "same"
    return f"{'+' if share > 0 else '−'}{percent(abs(share))}"
