"""What ``doctor`` saw: a line for each thing, and what to do about it below."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.installation import Installation
from tokonomics.report.tables import table
from tokonomics.units import plural

_MARKS = {"ok": Text("ok", style="green"), "note": Text("note", style="yellow"), "broken": Text("BROKEN", style="red")}


def doctor_view(found: Installation) -> RenderableType:
    """Broken things last, where they are read first."""
    rows = [
        (check.name, _MARKS[check.state], Text(check.seen + (f"\n{check.fix}" if check.fix else "")))
        for check in found.checks
    ]
    broken = [check.name for check in found.checks if check.state == "broken"]
    if found.works:
        verdict = Text("All that is needed works.", style="bold green")
    else:
        verdict = Text(f"{plural(len(broken), 'thing')} broken: {', '.join(broken)}", style="bold red")
    return Group(table(["!what", "!state", "seen, and what to do"], rows), "", verdict)
