"""Two plans side by side; the same description is Markdown for a pull request, and a comment as each forge draws it.

GitHub draws ``> [!TIP]`` as a coloured box (docs.github.com, "Alerts"), GitLab ``{+ … +}`` and ``{- … -}`` in green and
red (docs.gitlab.com, "Inline diff"); both fold what stands in ``<details>``.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tokonomics.planner.compare import Diff
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.requests.buy import DiffRequest
from tokonomics.questions.results import OneNoun, layout_text
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.markdown import markdown
from tokonomics.report.wording import FEWER_BITS, NO_VALUE, OLD_PRICE, aged, rented_text
from tokonomics.units import count, percent, seconds, usd


def diff(result: OneNoun, request: DiffRequest) -> Answer:
    """What changed, what it does, what it saves."""
    title = f"{Path(request.before).name} against {Path(request.after).name}"
    made = result.noun
    printed: dict[str | None, Callable[[], str]] = {
        "github": lambda: _github(made),
        "gitlab": lambda: _gitlab(made),
        "json": lambda: json.dumps(result.plain() | {"comment": _github(made)}, ensure_ascii=False),
    }
    if request.markdown:
        printed[None] = lambda: markdown(blocks.sections(_sections(made)))
    return Answer(result, title, partial(_sections, made), printed=printed.get(request.format))


def _github(made: Diff) -> str:
    saves = round(made.saved_usd_per_month, 2)
    alert = "TIP" if saves > 0 else "WARNING" if saves < 0 else "NOTE"
    return _comment(made, f"> [!{alert}]\n> {_drawn(_verdict(made))}", _rows(made))


def _gitlab(made: Diff) -> str:
    """What costs more is red and what saves green, where a change is one of dollars."""
    rows = []
    for name, before, after, change in _rows(made):
        if name.startswith("$") and change not in ("", "same"):
            change = f"{{- {change} -}}" if change.startswith("+") else f"{{+ {change} +}}"
        rows.append((name, before, after, change))
    return _comment(made, _drawn(_verdict(made)), rows)


def _comment(made: Diff, verdict: str, rows: Sequence[tuple[str, ...]]) -> str:
    """The outcome, what it is a plan of, and folded what was changed."""
    changed = _drawn(_changes(made), _dates(made))
    folded = f"<details><summary>{len(made.changes)} changed</summary>\n\n{changed}\n\n</details>"
    caveats = _drawn(_caveats(made))
    return "\n\n".join(filter(None, (verdict, _drawn(_plans(made, rows)), caveats, folded)))


def _drawn(*shown: blocks.Block | None) -> str:
    return markdown(blocks.sections(iter(shown)))


def _sections(made: Diff) -> blocks.View:
    yield _verdict(made)
    yield _changes(made)
    yield _plans(made, _rows(made))
    yield _caveats(made)
    yield _dates(made)


def _changes(made: Diff) -> blocks.Table:
    changes = [(row.key, row.before or NO_VALUE, row.after or NO_VALUE) for row in made.changes]
    return blocks.table(["!scenario", made.before.name, made.after.name], changes or [("nothing", "", "")])


def _plans(made: Diff, rows: Sequence[tuple[str, ...]]) -> blocks.Table:
    return blocks.table(["!plan", f">{made.before.name}", f">{made.after.name}", ">change"], rows)


def _caveats(made: Diff) -> blocks.Line | None:
    """What a reader of the dollars must know of the plans: fewer bits, latencies that nobody checked, old prices."""
    sides = (made.before, made.after)
    unchecked = " and ".join(side.name for side in sides if not side.plan.simulated)
    said = [
        FEWER_BITS if any(side.plan.below_checkpoint for side in sides) else "",
        f"Not simulated, so no SLO is checked: {unchecked}." if unchecked else "",
        OLD_PRICE if any(side.plan.price_stale for side in sides) else "",
    ]
    return blocks.note(*said) if any(said) else None


def _dates(made: Diff) -> blocks.Line:
    dates = f"Prices of {made.before.plan.price_date} and {made.after.plan.price_date}"
    return blocks.note(f"{dates}; made by `tokonomics diff`.")


def _verdict(made: Diff) -> blocks.Line:
    """The outcome in one sentence."""
    amount, share = abs(made.saved_usd_per_month), percent(abs(made.saved_share))
    old = aged(made.before.plan.price_age_days, made.after.plan.price_age_days)
    if round(amount, 2) == 0:
        return blocks.headline(f"The bill stays the same{old}.", mood="strong")
    saves = made.saved_usd_per_month > 0
    words = f"{'Saves' if saves else 'Costs'} {usd(amount)} a month{'' if saves else ' more'} ({share})"
    same = abs(made.before.tokens_per_month / made.after.tokens_per_month - 1) < 1e-6
    per_token = "" if same else f"; by the million tokens {_signed(-made.saved_share_per_mtok)}"
    return blocks.headline(f"{words}{per_token}{old}.", mood="best" if saves else "worst")


def _rows(made: Diff) -> list[tuple[str, ...]]:
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
