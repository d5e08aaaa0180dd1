"""What ``doctor`` saw: a row for each thing, and what to do about it below."""

from functools import partial

from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.questions.doctor import DoctorResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.units import plural

_MARKS = {"ok": blocks.Span("ok", "good"), "note": blocks.Span("note", "warn"), "broken": blocks.Span("BROKEN", "bad")}


def doctor(result: DoctorResult, request: Request) -> Answer:
    """What is installed, and what is broken."""
    return Answer(result, "Doctor", partial(_sections, result))


def _sections(result: DoctorResult) -> blocks.View:
    broken = [check.name for check in result.checks if check.state == "broken"]
    verdict = blocks.headline("All that is needed works", f"{_old_prices(result)}.")
    if not result.works:
        verdict = blocks.headline(f"{plural(len(broken), 'thing')} broken", f": {', '.join(broken)}", "worst")
    yield verdict
    rows = [(check.name, _MARKS[check.state], check.seen) for check in result.checks]
    yield blocks.table(["!what", "!state", "seen"], rows)
    yield blocks.section(*(blocks.hint(f"{check.name}: {check.fix}") for check in result.checks if check.fix))


def _old_prices(result: DoctorResult) -> str:
    """Behind the verdict, where no GPU price is recent."""
    days = next((check.facts["newest_days"] for check in result.checks if "newest_days" in check.facts), None)
    old = isinstance(days, int) and days > STALE_AFTER_DAYS
    return f", but even the newest GPU price is {days} days old" if old else ""
