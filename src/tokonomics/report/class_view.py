"""Classes of service: what each gets and pays, who breaks first, and what one SLO for all would take."""

from tokonomics.planner.class_report import BreaksAt, ClassLoad, ClassReport, OneSlo
from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE, time_text, usd_text
from tokonomics.serving.class_outcome import ClassOutcome
from tokonomics.units import percent, plural, requests_a_second, usd

_SAME_RATE = 0.01
"""The rates of a search are known to 1 %."""


def class_sections(report: ClassReport | None, replicas: int | None = None, rate: float | None = None) -> blocks.View:
    """Two tables and what they come to; nothing without classes.

    ``replicas`` or ``rate`` are what the classes need or hold, to compare with one SLO for all.
    """
    if report is None:
        return
    said = _one_slo(report.one_slo, report, replicas, rate) if report.one_slo else None
    yield blocks.section(_classes(report), said, title="By class")
    lines = [blocks.line(text) for text in _breaks(report.breaks_at)]
    title = "Who breaks first, as the load grows on the same fleet"
    yield blocks.section(_overload(report), *lines, title=title)


def _classes(report: ClassReport) -> blocks.Table:
    heads = ["!class", ">priority", ">requests", ">TTFT p50", ">p99", ">TPOT p99", ">within", ">shed", "SLO"]
    priced = bool(report.bill)
    heads += [f">used, {report.bill_for}", ">unused", ">pays", ">$/Mtok"] if priced else []
    rows: list[list[blocks.Piece]] = [_class(found) for found in report.classes]
    if priced:
        for row, own in zip(rows, report.bill, strict=True):
            row += [usd(own.used_usd), usd(own.unused_usd), usd(own.usd), usd_text(own.usd_per_mtok)]
    return blocks.table(heads, rows)


def _class(found: ClassOutcome) -> list[blocks.Piece]:
    verdict = blocks.Span("MISSED", "bad") if found.breaks else blocks.Span("met" if found.slo else NO_VALUE, "good")
    times = [time_text(value) for value in (found.ttft_s.p50, found.ttft_s.p99, found.tpot_s.p99)]
    shares = [_share(found.within), _shed(found.shed_share)]
    return [found.name, f"{found.priority}", f"{found.requests:,}", *times, *shares, verdict]


def _share(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value * 100:.1f} %"


def _shed(share: float) -> str:
    return percent(share) if share else NO_VALUE


def _overload(report: ClassReport) -> blocks.Table:
    names = [found.name for found in report.classes]
    heads = ["load", *(f">{name} {what}" for name in names for what in ("TTFT p99", "within", "shed"))]
    rows = [[f"{row.load:g}×", *(cell for one in row.classes for cell in _cells(one))] for row in report.overload]
    return blocks.table(heads, rows)


def _cells(one: ClassLoad) -> list[blocks.Piece]:
    mood: blocks.Mood = "bad" if one.breaks else ""
    within = blocks.Span(_share(one.within), mood)
    return [blocks.Span(time_text(one.ttft_p99_s), mood), within, blocks.Span(_shed(one.shed_share), mood)]


def _breaks(found: tuple[BreaksAt, ...]) -> list[str]:
    """One sentence a class, who breaks first first."""
    said = []
    for place, one in enumerate(found):
        if one.load is None:
            said.append(f"{one.name} gets what it is owed at every load tried.")
        elif one.load == 1:
            said.append(f"{one.name} breaks as it is: {one.breaks}.")
        else:
            first = " first" if place == 0 and len(found) > 1 else ""
            said.append(f"{one.name} breaks{first} at {one.load:.2f} times the load: {one.breaks}.")
    return said


def _one_slo(one: OneSlo, report: ClassReport, replicas: int | None, rate: float | None) -> blocks.Line:
    """What classes save against the strictest SLO for all, or that they do not."""
    asks = f"One SLO for all, the strictest ({', '.join(one.slos) or 'none'})"
    if one.why_not is not None:
        return blocks.hint(f"{asks}, is met on no number of these replicas: {one.why_not}.")
    if one.rate is not None and rate is not None:
        more = rate / one.rate - 1
        change = f"classes hold {percent(more)} more" if more > 0 else f"classes hold {percent(-more)} less"
        change = "classes hold the same" if abs(more) < _SAME_RATE else change
        return blocks.hint(f"{asks}: a replica holds {requests_a_second(f'{one.rate:.3g}')}; {change}.")
    bill = sum(own.usd for own in report.bill)
    if one.usd_per_month is None or one.replicas is None or replicas is None or not bill:
        return blocks.hint(f"{asks}.")
    saved = 1 - bill / one.usd_per_month
    takes = f"{plural(one.replicas, 'replica')} instead of {replicas}, {usd(one.usd_per_month)} a month"
    change = "classes cost the same"
    if abs(saved) > 5e-4:
        change = f"classes save {percent(saved)}" if saved > 0 else f"classes cost {percent(-saved)} more"
    return blocks.hint(f"{asks}: {takes}; {change}.")
