"""Models on GPUs for a person: a grid of dollars per million tokens, and the front of price and quality."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.planner.compare import Cell, Comparison
from tokonomics.planner.plan import Candidate
from tokonomics.questions.results import layout_text
from tokonomics.report.tables import table
from tokonomics.report.wording import quoted_text, slos_text, workload_text
from tokonomics.units import percent, usd

_MOST_GPUS = 8
"""More columns do not fit a terminal; JSON and chart hold all."""


def compare_view(found: Comparison) -> RenderableType:
    """The grid, the pick of each model, and the front where qualities were given."""
    targets = slos_text(found.slos)
    asked = f"{workload_text(found.workload)} for each model{f'; SLO: {targets}' if targets else ''}"
    body: list[RenderableType] = [Text(asked, style="dim"), ""]
    best = found.cheapest()
    if best is None:
        return Group(*body, Text("Nothing fits for any model on any of these GPUs.", style="bold red"), _why(found))
    body += [_grid(found), "", _picks(found)]
    if found.front:
        body += ["", _front(found)]
    return Group(*body, "", Text(_notes(found), style="dim"))


def _grid(found: Comparison) -> RenderableType:
    shown = found.gpus[:_MOST_GPUS]
    rows = [
        (found.cell(model, shown[0]).model_name, *(price_text(found.cell(model, gpu), found) for gpu in shown))
        for model in found.models
    ]
    return table(["!model", *(f">{gpu}" for gpu in shown)], rows, title="$/Mtok, the whole bill over all tokens")


def price_text(cell: Cell, found: Comparison) -> str:
    """The price with its marks; → where none is shown lower, so that two of one price both have it."""
    if cell.usd_per_mtok is None:
        return "–"
    cheapest = found.cheapest()
    lowest = cheapest is not None and usd(cell.usd_per_mtok) == usd(cheapest.usd_per_mtok or 0.0)
    flag = "*" if cell.pick and cell.pick.below_checkpoint else ""
    flag += "†" if cell.pick and cell.pick.price_stale else ""
    return f"{'→ ' if lowest else ''}{usd(cell.usd_per_mtok)}{flag}"


def _best(found: Comparison, model: str) -> Cell | None:
    priced = [cell for cell in found.cells if cell.model == model and cell.usd_per_mtok is not None]
    return min(priced, key=lambda each: each.usd_per_mtok or 0.0, default=None)


def _picks(found: Comparison) -> RenderableType:
    rows = []
    with_quality = any(each.quality for each in found.cells)
    for model in found.models:
        cell = _best(found, model)
        if cell is None or cell.pick is None:
            name = next(each.model_name for each in found.cells if each.model == model)
            rows.append((name, "nothing fits", *[""] * (7 if with_quality else 5)))
            continue
        pick = cell.pick
        row = (
            cell.model_name,
            f"{layout_text(pick)}{'*' if pick.below_checkpoint else ''}",
            f"{pick.provider} {pick.instance}{'†' if pick.price_stale else ''}",
            _gpus(pick),
            usd(pick.usd_per_month),
            usd(pick.usd_per_mtok.blended),
            percent(pick.utilization),
        )
        score = f"{cell.quality:g}" if cell.quality else "no score"
        weighted = usd(cell.usd_per_quality_mtok) if cell.usd_per_quality_mtok else ""
        rows.append((*row, score, weighted) if with_quality else row)
    columns = ["!model", "cheapest on", "offer", ">GPUs", ">$/month", ">$/Mtok", ">util."]
    return table([*columns, ">quality", ">$/Mtok ÷ quality"] if with_quality else columns, rows)


def _gpus(pick: Candidate) -> str:
    used = pick.replicas * pick.gpus_per_replica
    return f"{used}" if used == pick.gpus_paid else f"{used} of {pick.gpus_paid}"


def _front(found: Comparison) -> RenderableType:
    cells = [found.cell(*each) for each in found.front]
    rows = [
        (
            cell.model_name,
            cell.gpu,
            f"{cell.quality:g}",
            usd(cell.usd_per_mtok or 0.0),
            usd(cell.usd_per_quality_mtok or 0.0),
        )
        for cell in cells
    ]
    title = "Front: nothing is both better and cheaper"
    return table(["!model", "GPU", ">quality", ">$/Mtok", ">$/Mtok ÷ quality"], rows, title=title)


def _why(found: Comparison) -> RenderableType:
    rows = [(cell.model_name, cell.gpu, cell.refused or "") for cell in found.cells]
    return table(["!model", "!GPU", "because"], rows)


def _notes(found: Comparison) -> str:
    how = "sized by simulation" if found.simulated else "closed form, replicas filled to 70 % (--simulate for p99s)"
    refused = any(cell.usd_per_mtok is None and cell.gpu in found.gpus for cell in found.cells)
    why = " – nothing fits: `tokonomics plan` says why." if refused else ""
    lines = [
        f"Each pair is the cheapest offer that meets the SLO: {how}.{why}",
        "Whole machines: at little traffic a large GPU waits, and its price per token shows it. "
        "Tokenizers differ by some percent.",
    ]
    lines.append("util.: of the GPUs in use. GPUs: in use, and paid for where the machines have more.")
    picks = [cell.pick for cell in found.cells if cell.pick]
    lines.append(quoted_text([pick.price_date for pick in picks], any(pick.price_stale for pick in picks)))
    if any(cell.pick and cell.pick.below_checkpoint for cell in found.cells):
        lines.append("* weights or KV cache at fewer bits than published: check quality (--min-weights, --kv).")
    if len(found.gpus) > _MOST_GPUS:
        more = ", ".join(found.gpus[_MOST_GPUS:])
        lines.append(f"Not shown, dearer: {more} (--gpu, --json, --chart).")
    if any(cell.quality for cell in found.cells):
        unscored = dict.fromkeys(cell.model_name for cell in found.cells if not cell.quality)
        if unscored:
            lines.append(f"Not in the front, since without a score: {', '.join(unscored)} (--quality).")
        lines.append("Quality is your own score; $/Mtok ÷ quality counts a token as much as its score.")
    return "\n".join(lines)
