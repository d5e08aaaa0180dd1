"""Two plans side by side; the same description is Markdown for a pull request."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokonomics.planner.diff import Diff
from tokonomics.questions.diff import DiffRequest
from tokonomics.questions.results import OneNoun, layout_text
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE
from tokonomics.units import count, percent, seconds, usd


def diff(result: OneNoun, request: DiffRequest) -> Answer:
    """What changed, what it does, what it saves."""
    title = f"{Path(request.before).name} against {Path(request.after).name}"
    return Answer(result, title, partial(_sections, result.noun), as_markdown=request.markdown)


def _sections(made: Diff) -> blocks.View:
    names = made.before.name, made.after.name
    yield _verdict(made)
    changes = [(row.key, row.before or NO_VALUE, row.after or NO_VALUE) for row in made.changes]
    yield blocks.table(["!scenario", *names], changes or [("nothing", "", "")])
    yield blocks.table(["!plan", *(f">{name}" for name in names), ">change"], _rows(made))
    dates = f"Prices of {made.before.plan.price_date} and {made.after.plan.price_date}"
    yield blocks.note(f"{dates}; made by `tokonomics diff`.")


def _verdict(made: Diff) -> blocks.Line:
    """The outcome in one sentence."""
    amount, share = abs(made.saved_usd_per_month), percent(abs(made.saved_share))
    if round(amount, 2) == 0:
        return blocks.headline("The bill stays the same.", mood="strong")
    saves = made.saved_usd_per_month > 0
    words = f"{'Saves' if saves else 'Costs'} {usd(amount)} a month{'' if saves else ' more'} ({share})"
    same = abs(made.before.tokens_per_month / made.after.tokens_per_month - 1) < 1e-6
    per_token = "" if same else f"; by the million tokens {_signed(-made.saved_share_per_mtok)}"
    return blocks.headline(f"{words}{per_token}.", mood="best" if saves else "worst")


def _rows(made: Diff) -> list[tuple[str, ...]]:
    before, after = made.before.plan, made.after.plan
    rows: list[tuple[str, ...]] = [
        ("model", made.before.model, made.after.model, ""),
        ("replicas", layout_text(before), layout_text(after), ""),
        ("offer", f"{before.provider} {before.instance}", f"{after.provider} {after.instance}", ""),
        ("terms", before.terms.replace("_", " "), after.terms.replace("_", " "), ""),
        ("tokens a month", *_pair(made.before.tokens_per_month, made.after.tokens_per_month, count)),
        ("$ a month", *_pair(before.usd_per_month, after.usd_per_month, usd)),
        ("$/Mtok, whole bill", *_pair(before.usd_per_mtok.blended, after.usd_per_mtok.blended, usd)),
        ("$/Mtok input", *_pair(before.usd_per_mtok.input, after.usd_per_mtok.input, usd)),
        ("$/Mtok output", *_pair(before.usd_per_mtok.output, after.usd_per_mtok.output, usd)),
        ("load", percent(before.utilization), percent(after.utilization), ""),
    ]
    for name, first, second in (("TTFT", before.ttft_s, after.ttft_s), ("TPOT", before.tpot_s, after.tpot_s)):
        if first.p99 is not None and second.p99 is not None:
            rows.append((f"{name} p99", *_pair(first.p99, second.p99, seconds)))
    return rows


def _pair(before: float, after: float, text: Callable[[float], str]) -> tuple[str, str, str]:
    return text(before), text(after), "" if before == 0 else _signed(after / before - 1)


def _signed(share: float) -> str:
    if round(share, 4) == 0:
        return "same"
    return f"{'+' if share > 0 else '−'}{percent(abs(share))}"
