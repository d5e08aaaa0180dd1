"""Two plans side by side: as a table for a terminal, as Markdown for a pull request."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.planner.compare import Diff
from tokonomics.report.plan_view import layout_text
from tokonomics.report.tables import table
from tokonomics.units import count, percent, seconds, usd


def diff_view(made: Diff) -> RenderableType:
    """What changed, what it does, what it saves."""
    body: list[RenderableType] = [verdict(made), ""]
    body.append(
        table(
            ["!scenario", made.before.name, made.after.name],
            [(row.key, row.before or "–", row.after or "–") for row in made.changes] or [("nothing", "", "")],
        )
    )
    body += ["", table(["!plan", f">{made.before.name}", f">{made.after.name}", ">change"], _rows(made))]
    return Group(*body)


def diff_markdown(made: Diff) -> str:
    """The same for a pull request."""
    lines = [
        f"**{verdict(made).plain}**",
        "",
        f"| scenario | {made.before.name} | {made.after.name} |",
        "|---|---|---|",
    ]
    lines += [f"| `{change.key}` | {change.before or '–'} | {change.after or '–'} |" for change in made.changes]
    lines += ["", f"| plan | {made.before.name} | {made.after.name} | change |", "|---|--:|--:|--:|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(made)]
    lines += [
        "",
        f"_Prices of {made.before.plan.price_date} and {made.after.plan.price_date}; made by tokonomics diff._",
    ]
    return "\n".join(lines)


def verdict(made: Diff) -> Text:
    """The outcome in one sentence."""
    amount, share = abs(made.saved_usd_per_month), percent(abs(made.saved_share))
    if round(amount, 2) == 0:
        return Text("The bill stays the same.", style="bold")
    saves = made.saved_usd_per_month > 0
    words = f"{'Saves' if saves else 'Costs'} {usd(amount)} a month{'' if saves else ' more'} ({share})"
    same = abs(made.before.tokens_per_month / made.after.tokens_per_month - 1) < 1e-6
    per_token = "" if same else f"; by the million tokens {_signed(-made.saved_share_per_mtok)}"
    return Text(f"{words}{per_token}.", style="bold green" if saves else "bold red")


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
        ("capacity used", percent(before.utilization), percent(after.utilization), ""),
    ]
    for name, one, other in (("TTFT", before.ttft_s, after.ttft_s), ("TPOT", before.tpot_s, after.tpot_s)):
        if one.p99 is not None and other.p99 is not None:
            rows.append((f"{name} p99", *_pair(one.p99, other.p99, seconds)))
    return rows


def _pair(before: float, after: float, text: Callable[[float], str]) -> tuple[str, str, str]:
    change = "" if before == 0 else _signed(after / before - 1)
    return text(before), text(after), change


def _signed(share: float) -> str:
    if round(share, 4) == 0:
        return "same"
    return f"{'+' if share > 0 else '−'}{percent(abs(share))}"
