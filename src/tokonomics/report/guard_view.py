"""Show what a new build changes: the cause, the dollars, and every probe; or one fingerprint."""

from functools import partial

from tokonomics.errors import option
from tokonomics.operate.fingerprint import Fingerprint
from tokonomics.operate.guard import BuildChange, ProbeChange
from tokonomics.questions.guard import BuildMark, BuildPrice, GuardResult
from tokonomics.questions.requests.run import GuardRequest
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.markdown import markdown
from tokonomics.report.wording import NO_VALUE, usd_text
from tokonomics.units import count, plural, seconds, times, usd

_MOST = 12  # probes shown before the rest is folded
_MOST_TOGETHER = 3  # groups of probes; the surest come first, and others overlap them


def guard(result: GuardResult, request: GuardRequest) -> Answer:
    view = partial(_compared, result) if result.change else partial(_fingerprint, result.old)
    title = f"{result.old.name} against {result.new.name}" if result.new else f"Fingerprint of {result.old.name}"
    printed = partial(_github, result) if request.format == "github" else None
    return Answer(result, title, view, printed=printed)


def _github(result: GuardResult) -> str:
    """Write a comment with GitHub's own alert around the verdict (docs.github.com, "Alerts")."""
    alert = "TIP" if result.is_found else "WARNING"
    if result.change is None:
        return markdown(blocks.sections(_fingerprint(result.old)))
    verdict = markdown(blocks.sections([_verdict(result, result.change)]))
    said = markdown(blocks.sections(_findings(result, result.change)))
    probes = markdown(blocks.sections([_probes(result.change, shown=None)]))
    folded = f"<details><summary>{len(result.change.probes)} probes</summary>\n\n{probes}\n\n</details>"
    return "\n\n".join(part for part in (f"> [!{alert}]\n> {verdict}", said, folded) if part)


# --- two builds -----------------------------------------------------------------------------------------------------


def _compared(result: GuardResult) -> blocks.View:
    change = result.change
    assert change is not None
    yield _verdict(result, change)
    yield from _findings(result, change)
    yield _probes(change, shown=_MOST)
    yield blocks.note(*_small_print(result, change))


def _verdict(result: GuardResult, change: BuildChange) -> blocks.Line:
    typical = _percent(change.typical)
    counts = [sum(each.side(change.tolerance) == side for each in change.probes) for side in ("slower", "faster")]
    many = f"{counts[0]} slower, {counts[1]} faster of {plural(len(change.probes), 'probe')}; {typical} in the median"
    if change.verdict == "same":
        lost = f", but room is lost: {', '.join(row.name for row in result.lost)}" if result.lost else ""
        return blocks.headline("No slower" if not lost else "As fast", f"{lost}: {many}", "worst" if lost else "best")
    cause = f": {_cause(change)}" if change.terms else ""
    slower = change.verdict == "slower"
    sure = ""
    if not any(counts) and change.deciding:  # no probe is sure by itself
        first = change.deciding[0]
        sure = f"; no probe tells it alone, together they do: {first.what}, {_span(first.low, first.high)}"
    return blocks.headline("Slower" if slower else "Faster", f"{cause}{sure}; {many}", "worst" if slower else "best")


def _span(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)}"


def _cause(change: BuildChange) -> str:
    said = change.terms[0].said
    return f"the old build did as follows, the new one does not: {said}" if change.turned else said


def _findings(result: GuardResult, change: BuildChange) -> blocks.View:
    for why in (*change.unlike, *(result.price.unlike if result.price else ())):
        yield blocks.line(blocks.Span(f"Not quite alike: {why}", "warn"))
    if result.price:
        yield _price(result.price, change.tolerance)
    if change.terms:
        yield blocks.listed(
            change.terms,
            ("!term", lambda row: row.term),
            ("what was found" + (" of the old build" if change.turned else ""), lambda row: row.said),
            (">at most", lambda row: _percent(1 + row.effect)),
            (">99 % interval", lambda row: _ends(row.term, row.low, row.high)),
            title="Cause" if len(change.terms) == 1 else "Causes, the strongest first",
        )
    if change.deciding:
        yield blocks.listed(
            change.deciding,
            ("!probes with", lambda row: row.what),
            (">the most changed one", lambda row: _span(row.low, row.high)),
            title=f"What makes the build {change.verdict}, of all probes together",
            shown=_MOST_TOGETHER,
        )
    if change.told:
        yield blocks.listed(
            change.told,
            ("!what the servers say", lambda row: row.name),
            (">before", lambda row: row.before),
            (">after", lambda row: blocks.Span(row.after, "bad" if row.lost else "")),
        )


def _ends(term: str, low: float, high: float) -> str:
    if term in ("host", "launch", "graphs", "request"):
        return f"{seconds(max(0.0, low))} to {seconds(max(0.0, high))}" if high > 0 else NO_VALUE
    if term == "cache":
        return f"{low * 100:.0f} to {high * 100:.0f} %"
    return f"{low:.2f} to {times(high)}"


_AT_ONCE_S = 1.0  # fingerprints that are taken in turns are made at once, when both are complete
_SAME = 0.001  # share by which the ends of a price differ, below which there is one number to show


def _price(price: BuildPrice, tolerance: float) -> blocks.Facts:
    span = ""
    if price.ratio is not None and price.low is not None and price.high is not None:
        span = _percent(price.ratio)
        if price.high / price.low > 1 + _SAME:
            span += f" ({_span(price.low, price.high)} with the terms at the ends of their intervals)"
    mood: blocks.Mood = "worst" if price.is_dearer(tolerance) else "strong"
    per_mtok = f"{usd_text(price.before_usd_per_mtok)} → {usd_text(price.after_usd_per_mtok)}"
    never = min(price.before_rate, price.after_rate) <= 0
    month = f"one build meets these targets at no rate: loosen {option('slo')}" if never else ""
    if price.before_usd_per_month is not None and price.after_usd_per_month is not None:
        month = f"{usd(price.before_usd_per_month)} → {usd(price.after_usd_per_month)} a month for this traffic"
    rates = f"{count(price.before_rate)} → {count(price.after_rate)} requests/s"
    return blocks.facts(
        ("$/Mtok", blocks.Span(per_mtok, mood), span, price.after_usd_per_mtok),
        ("bill", month or NO_VALUE, "replicas as full as the targets allow", price.after_usd_per_month),
        ("one replica holds", rates, f"{price.model} on {price.gpu}; {price.slos}; {price.traffic} tokens"),
    )


def _probes(change: BuildChange, shown: int | None) -> blocks.Table:
    """Show every probe, the most changed first."""
    order = sorted(change.probes, key=lambda row: -max(row.ratio, 1 / row.ratio))
    told = any(row.explained is not None for row in order)
    return blocks.listed(
        order,
        ("!probe", lambda row: row.name),
        (">before", lambda row: seconds(row.before_s)),
        (">after", lambda row: seconds(row.after_s)),
        (">change", lambda row: _marked(row, change.tolerance)),
        (">interval", lambda row: _span(row.low, row.high)),
        (">explained", lambda row: NO_VALUE if row.explained is None else _percent(row.explained)) if told else None,
        title="Probes, the most changed first",
        shown=shown,
    )


def _marked(row: ProbeChange, tolerance: float) -> blocks.Span:
    moods: dict[str | None, blocks.Mood] = {"slower": "bad", "faster": "good", None: ""}
    return blocks.Span(_percent(row.ratio), moods[row.side(tolerance)])


def _percent(ratio: float) -> str:
    """Write a ratio as a change: +12 %; from twice on as a factor."""
    return times(ratio) if ratio >= 2 else f"{100 * (ratio - 1):+.1f} %"


def _small_print(result: GuardResult, change: BuildChange) -> list[str]:
    size = f"Changes up to {_percent(1 + change.tolerance)[1:]} are none ({option('tolerance')})"
    said = [f"{size}; of a hundred comparisons of equal builds, one raises an alarm."]
    alone, joint = _percent(change.smallest_found), change.smallest_found_together
    together = f", one that many show together of {_percent(joint)}" if joint and change.verdict == "same" else ""
    said.append(f"A change of {alone} of a typical probe alone{together} is found as often as not{_left_out(change)}.")
    said += _apart(result, change)
    if result.price:
        said += [f"Level: {result.price.calibrated}.", *(f"{line}." for line in result.price.left_out)]
        said += [f"Price: {result.price.price_from}."] if result.price.price_from else []
    else:
        names = ", ".join(option(name) for name in ("model", "gpu", "slo", "trace"))
        said.append(f"No price: give {names}, to see what it costs on your traffic.")
    return said + [_kept(side) for side in (result.old, result.new) if side and side.kept]


def _apart(result: GuardResult, change: BuildChange) -> list[str]:
    """Say that two fingerprints were not taken in turns, where a busier machine may be what was found."""
    if change.verdict == "same" or result.new is None:
        return []
    apart_s = abs((result.new.mark.made - result.old.mark.made).total_seconds())
    if apart_s < _AT_ONCE_S:
        return []
    said = f"Taken {seconds(apart_s)} apart: a machine that was busier at one of them looks like another build"
    return [f"{said}. In turns it does not: tokonomics guard http://old http://new."]


def _left_out(change: BuildChange) -> str:
    """Say how many probes are not compared, and why."""
    if not change.left_out:
        return ""
    why = "; ".join(f"{number} {reason}" for reason, number in change.left_out.items())
    return f". {plural(sum(change.left_out.values()), 'probe')} left out: {why}"


# --- one fingerprint ------------------------------------------------------------------------------------------------


def _fingerprint(side: BuildMark) -> blocks.View:
    mark = side.mark
    took = f" in {seconds(mark.took_s)}"
    yield blocks.headline(plural(len(mark.probes), "probe"), f" of {mark.model}, {_build(mark)}{took}")
    yield blocks.listed(
        mark.probes,
        ("!probe", lambda row: row.probe.name),
        (">prompt tokens", lambda row: f"{row.tokens:,.0f}"),
        (">time", lambda row: seconds(row.median_s)),
        (">from", lambda row: seconds(min(row.seconds))),
        (">to", lambda row: seconds(max(row.seconds))),
        (">rounds", lambda row: str(len(row.seconds))),
    )
    if mark.skipped:
        yield blocks.listed(
            mark.skipped.items(), ("!left out", lambda row: row[0]), ("because", lambda row: row[1]), shown=_MOST
        )
    compare = f"tokonomics guard {side.kept or side.name} http://…"
    yield blocks.note(*mark.notes, _kept(side) if side.kept else "", f"To compare a build with it: `{compare}`.")


def _build(mark: Fingerprint) -> str:
    told = mark.engine
    parts = (told.get("engine"), told.get("version") or told.get("build_info"))
    return " ".join(str(part) for part in parts if part) or "a server that does not tell its build"


def _kept(side: BuildMark) -> str:
    return f"{side.name} is kept in {side.kept}."
