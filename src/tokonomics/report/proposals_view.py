"""Show what was metered of a model's servers, and the changes that save more than the twin of them is off."""

from collections.abc import Iterable

from tokonomics.errors import option
from tokonomics.levers.lever_list import API
from tokonomics.operate.pull_request import OpenedChange
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.metered import TOGETHER, MeteredToday, Proposal
from tokonomics.report import blocks
from tokonomics.report.shared_view import folded_reasons, levers_question, quality_sources
from tokonomics.report.wording import NO_VALUE, time_text
from tokonomics.units import DAY_S, percent, plural, usd

_SHOWN = 5e-4  # a smaller share would show 0.0 %
_CURVES = {168: "by the hour of the week", 24: "by the hour of the day"}
_MANY = 0.05  # servers in the mean beside those of now; fewer would show as the same number


def proposals(result: LeversResult, metered: MeteredToday) -> blocks.View:
    """Show each proposal with the twin's own error beside its saving."""
    yield levers_question(result.setup)
    yield blocks.section(_first(metered), blocks.facts(*_facts(metered)))
    has_twin = metered.errors is not None
    if metered.proposals:
        yield blocks.listed(
            metered.proposals,
            (
                "change",
                lambda one: f"{one.name}: {one.becomes}" if one.knob in ("hardware", API, TOGETHER) else one.name,
            ),
            (">saves", lambda one: percent(one.saved_share)),
            (">twin's error", _error) if has_twin else (">80 % of its class", _likely),
            (">$/month", lambda one: usd(one.usd_per_month)),
            (">replicas", lambda one: str(one.replicas or NO_VALUE)),
            (">TTFT p99", lambda one: time_text(one.ttft_p99_s)),
            (">TPOT p99", lambda one: time_text(one.tpot_p99_s)),
        )
        efforts = [(one.name, one.effort, one.risk) for one in metered.proposals]
        yield blocks.table(["!change", "effort", "risk"], efforts)
    if metered.smaller:
        yield blocks.section(blocks.line(_smaller(metered)))
    told = {one.name for one in (*metered.proposals, *metered.smaller)}
    without = [
        (lever.name, lever.reason.marked if lever.reason else "it saves nothing")
        for lever in result.levers
        if lever.name not in told
    ]
    yield folded_reasons(without)
    yield _notes(result, metered)
    if result.opened:
        yield blocks.section(*_opened(result.opened))


def _first(metered: MeteredToday) -> blocks.Line:
    if not metered.proposals:
        said = " saves more than the twin's own error." if metered.smaller else " lowers the bill."
        return blocks.line(blocks.Span("No change", "alert"), said, kind="headline")
    best = metered.proposals[0]
    saved = blocks.Span(f"{usd(best.saved_usd_per_month)} a month less", "best")
    share = f"{percent(best.saved_share)} of the metered {usd(metered.usd_per_month)}"
    return blocks.line(saved, f", {share}, with {best.name}", kind="headline")


def _facts(metered: MeteredToday) -> Iterable[blocks.Fact | tuple[str, str, str]]:
    servers, traffic = metered.servers, metered.servers.traffic
    days = (servers.until - servers.since) / DAY_S
    mean = "" if abs(servers.mean_servers - servers.servers) < _MANY else f", {servers.mean_servers:.1f} in the mean"
    runs = f"{plural(servers.servers, 'server')} now{mean}; {usd(servers.server_usd_per_hour)} an hour each"
    yield blocks.fact("metered", f"{usd(metered.usd_per_month)}/month", runs, number=metered.usd_per_month)
    curve = _CURVES.get(len(servers.by_hour), "one mean rate")
    found = f"{percent(traffic.hit_share)} of prompt tokens found in caches"
    yield ("traffic", f"{traffic.requests_per_s:.3g}/s", f"{curve}, over {days:.1f} days; {found}")
    apart = metered.modelled_share
    side = "above" if apart > 0 else "below"
    bill = "as metered" if abs(apart) < _SHOWN else f"{percent(abs(apart))} {side} the metered bill"
    same = f"the same set-up on {plural(servers.servers, 'server')}: {bill}"
    times = [
        f"{name} {time_text(modelled)}, metered {time_text(counted)}"
        for name, modelled, counted in (
            ("a token takes", metered.modelled_tpot_s, servers.tpot_s),
            ("a first token", metered.modelled_ttft_s, servers.ttft_s),
        )
        if counted is not None
    ]
    yield ("modelled", f"{usd(metered.modelled_usd_per_month)}/month", "; ".join([same, *times]))
    if metered.needed > servers.servers:
        missed = "to meet the SLO by the model: today's servers miss it"
        yield ("needed", plural(metered.needed, "replica"), missed)
    if errors := metered.errors:
        said = [f"of the time per token, over {plural(errors.windows, 'window')}"]
        said += [] if errors.traffic is None else [f"{percent(errors.traffic)} of the traffic's forecast"]
        learned = ", ".join(f"{term} {factor:.2f} ×" for term, factor in metered.factors.items())
        said += [f"learned last, and used here: {learned}"] if learned else []
        yield ("twin's error", percent(errors.speed), "; ".join(said))


def _error(one: Proposal) -> str:
    return NO_VALUE if one.error_share is None else percent(one.error_share)


def _likely(one: Proposal) -> str:
    if one.likely is None:
        return NO_VALUE
    return f"−{percent(1 - one.likely.low)} to +{percent(one.likely.high - 1)}"


def _smaller(metered: MeteredToday) -> str:
    number, most = len(metered.smaller), max(one.error_share or 0.0 for one in metered.smaller)
    return f"{number} more would save less than the twin's own error of {percent(most)}."


def _notes(result: LeversResult, metered: MeteredToday) -> blocks.Line:
    shown = {one.name for one in metered.proposals}
    pulled = [lever for lever in result.levers if lever.name in shown]
    sure = (
        "twin's error: a share of the metered bill, on another GPU with the general error of predictions there; a "
        "change that saves less is not proposed."
        if metered.errors
        else "80 % of its class: how far off the time per token was in four of five predictions like it. No twin has "
        f"scored these servers; with one (`tokonomics twin`), {option('start', 'twin')} shows its own error."
    )
    opens = f"On a branch of the checkout here: {option('open_', 'pr')}."
    beside = "saves: a share of the metered bill, beside what fewer replicas save; $/month: with both."
    return blocks.note(
        *([beside] if metered.needed < metered.servers.mean_servers else []),
        sure,
        *quality_sources((lever.name, lever.kept) for lever in pulled),
        *(f"{lever.name}: {lever.quality}" for lever in pulled if lever.knob in ("weights", "kv", API)),
        "Every bill but the metered one is of a simulated fleet: the fewest replicas that meet every SLO.",
        *([opens] if metered.proposals and not result.opened else []),
    )


def _opened(change: OpenedChange) -> Iterable[blocks.Block | None]:
    where = f"branch {change.branch}" if change.branch else "a patch, without a branch"
    yield blocks.facts(
        ("proposed", change.title, where),
        ("files", ", ".join(change.files), ""),
        ("opened", change.url, "") if change.url else None,
        ("patch", change.patch, f"its text: {change.body_file}") if change.patch else None,
    )
    if change.patch:
        why = f"No request was opened: {change.said}. " if change.said else ""
        yield blocks.hint(f"{why}To use the patch on a branch of yours: git am {change.patch}.")
