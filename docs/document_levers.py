"""The generated parts of docs/levers-measured.md, from the record of `bench_levers`; run by itself, its pictures.

    python docs/document_levers.py     # docs/img/levers-*.svg

Dollars: a saving of the GPU's time is one of dollars at whatever the GPU costs; here at the cheapest offer of an H200 that
is shipped, on demand, as of docs/as-of.txt.
"""

import gzip
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.catalog.offer_choice import cheapest_offer
from tokonomics.catalog.offers import Offer
from tokonomics.physics.overhead import host
from tokonomics.units import seconds, usd

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "results" / "levers.json.gz"
PICTURES = ROOT / "docs" / "img"
Row = dict[str, Any]
Fixed = dict[str, Any]


class Lever(NamedTuple):
    """A lever of the page: its name in the record, its picture's panels (axis, what is fixed, figure), and its axis."""

    name: str
    panels: tuple[tuple[str, Fixed, str], ...] = ()


TIME = "time a token"
LEVERS = {
    "prefix-cache": Lever("prefix cache", (
        ("share", {"batch": 4, "output": 64}, TIME), ("share", {"batch": 24, "output": 64}, TIME),
        ("working set", {"batch": 8}, TIME), ("working set", {"batch": 2}, TIME))),
    "dram": Lever("KV in DRAM", (("working set", {"batch": 8}, TIME), ("working set", {"batch": 2}, TIME))),
    "disk": Lever("KV on disk", (("working set", {"batch": 8}, TIME), ("working set", {"batch": 2}, TIME))),
    "weights": Lever("FP8 weights", (
        ("batch", {"context": 256}, TIME), ("batch", {"context": 2048}, TIME), ("context", {"batch": 8}, TIME))),
    "kv": Lever("FP8 kv", (
        ("batch", {"context": 256}, TIME), ("batch", {"context": 2048}, TIME), ("context", {"batch": 8}, TIME))),
    "eagle": Lever("drafts: EAGLE-3", tuple(("batch", {"acceptance": rate}, TIME) for rate in (0.3, 0.5, 0.7, 0.9))),
    "model": Lever("drafts: a model", tuple(("batch", {"acceptance": rate}, TIME) for rate in (0.5, 0.8))),
    "mtp": Lever("drafts: MTP", tuple(("batch", {"acceptance": rate}, TIME) for rate in (0.4, 0.8))),
    "ngrams": Lever("drafts: n-grams", (("batch", {}, TIME),)),
    "chunk": Lever("chunk size", tuple(
        ("batch", {"flag": flag, "context": 256}, TIME) for flag in ("chunk 2048", "chunk 512"))),
    "sequences": Lever("sequences", (("batch", {"flag": "sequences 32", "context": 256}, TIME),)),
    "graphs": Lever("graph sizes", (("batch", {"flag": "graphs 8", "context": 256}, TIME),)),
    "ahead": Lever("asynchronous scheduling", (("batch", {"flag": "not ahead", "context": 256}, TIME),)),
    "lora": Lever("LoRA", (
        *(("adapters", {"rank": 16, "batch": batch}, TIME) for batch in (16, 48, 96)),
        ("batch", {"rank": 64, "adapters": 16}, TIME))),
    "priorities": Lever("priorities", (("batch work", {}, "people's TTFT"), ("batch work", {}, "batch's time"))),
    "gaps": Lever("batch in the gaps"),
    "pair": Lever("two models on a GPU", (("rate of each", {}, "TTFT p50"), ("rate of each", {}, "TPOT p50"))),
}  # fmt: skip
AXES = {
    "batch": "users", "acceptance": "acceptance", "context": "prompt tokens", "share": "shared share of the prompt", "adapters": "adapters",
    "working set": "shared tokens ÷ tokens of the GPU's cache", "batch work": "batch requests a second",
    "rate of each": "requests a second to each",
}  # fmt: skip
SHOWN = {
    "batch": "{} users", "context": "{} tokens in", "output": "{} out", "share": "share {}", "acceptance": "acceptance {}",
    "rank": "rank {}", "adapters": "{} adapters", "working set": "working set {}", "flag": "{}", "sessions": "{}",
    "batch work": "{}/s of batch", "batch users": "{} batch users", "rate of each": "{}/s each", "rate": "{}/s",
}  # fmt: skip


@cache
def record() -> Row:
    """Return the last record of ``python -m benchmarks.bench_levers``."""
    found: Row = json.loads(gzip.decompress(RECORD.read_bytes()))
    return found


@cache
def h200() -> Offer:
    """Return the cheapest offer of an H200, on demand."""
    return cheapest_offer("H200")


def dollars(took_s: float) -> float:
    """Return the dollars for a million tokens of answers, each of which takes so much of the GPU's time."""
    price = h200().usd_per_hour
    assert price is not None
    return price / h200().gpus / 3600 * took_s * 1e6


# --- parts of the page ------------------------------------------------------------------------------------------------


def opening() -> str:
    """Where each lever starts to pay, in five sentences."""
    share = [_cell("prefix cache", share=each, batch=24, output=64) for each in (0.25, 0.95)]
    outgrown = _cell("prefix cache", **{"working set": 8.19, "batch": 2})
    disk = _rows("KV on disk")
    weights, kv = _rows("FP8 weights"), _cell("FP8 kv", batch=96, context=1536)
    eagle = {rate: _turn("drafts: EAGLE-3", "batch", acceptance=rate) for rate in (0.3, 0.5, 0.7)}
    mtp = {rate: _turn("drafts: MTP", "batch", acceptance=rate) for rate in (0.4, 0.8)}
    few, many = (_cell("LoRA", rank=16, batch=96, adapters=adapters) for adapters in (1, 64))
    pair = _rows("two models on a GPU")
    people = [
        row["measured"] for row in _rows("priorities") if row["figure"] == PEOPLE and row["at"]["batch work"] >= 8
    ]
    wake = next(row for row in record()["seconds"] if row["figure"] == "wake")
    lines = (
        f"A **prefix cache** pays as soon as prompts begin alike: with a quarter of each prompt shared it saved 24 users "
        f"{_share(share[0])} of the GPU's time, with 95 % shared {_share(share[1])}; once what is shared was eight times the "
        f"cache, it saved 2 users {_share(outgrown)}.",
        f"**KV in DRAM** starts to pay where what is shared outgrows the GPU's cache ({_turn('KV in DRAM', 'working set', batch=8)} "
        f"times it with 8 users, {_turn('KV in DRAM', 'working set', batch=2)} times with 2), while **KV on disk** paid in none of "
        f"{len(disk)} cells and made tokens {_range(-row['measured'] for row in disk)} more expensive.",
        f"**FP8 weights** paid in every cell ({_range(row['measured'] for row in weights)}), and **FP8 KV** only where much is "
        f"read: {_turn('FP8 kv', 'batch', context=2048)} users of 2,048 tokens, {_turn('FP8 kv', 'context', batch=8)} tokens "
        f"with 8 users, and most ({_share(kv)}) where 16-bit KV did not fit.",
        f"**Drafts** pay with few users and a high acceptance: EAGLE-3 paid {eagle[0.3]} user at 0.3, {eagle[0.5]} users at 0.5 "
        f"and {eagle[0.7]} on the grid from 0.7, MTP {mtp[0.4]} at 0.4 and {mtp[0.8]} users at 0.8, a draft model of 1B in none "
        f"of {len(_rows('drafts: a model'))} cells, and n-grams only on the texts that suit them.",
        f"**Flags** pay by being left alone, and what shares a GPU pays in other ways than speed: LoRA on a server that may hold 64 adapters made 96 users' tokens "
        f"{_share(few, -1)} (one adapter) to {_share(many, -1)} (64) more expensive, two models on a GPU made each other's "
        f"answers {1 - max(row['measured'] for row in pair):.1f} to {1 - min(row['measured'] for row in pair):.1f} times as slow, "
        f"priorities cut people's waits for the first token by {_range(people)} {_turn('priorities', 'batch work', figure=PEOPLE)} "
        f"batch requests a second, and a "
        f"sleeping model woke in {seconds(wake['measured'])}.",
    )  # fmt: skip
    return "\n".join(f"{place}. {line}" for place, line in enumerate(lines, 1))


PEOPLE = "people's TTFT"
UPRIGHT = "uprights: where it starts or stops to pay, or in a series that never pays, to cost"


def made() -> str:
    """When and how the record was made, and the price in it."""
    found, offer = record(), h200()
    return (
        f"Asked on {found['asked']}, served by {found['engine'].replace('vllm', 'vLLM')} on one {found['gpu']} on "
        f"{found['served']}; scored by `{found['command']}` on {found['date']}, {found['machine']}. Dollars are at "
        f"{usd(offer.usd_per_hour or 0)} an hour, the cheapest {found['gpu']} of the shipped offers on demand "
        f"({offer.provider} {offer.instance}, {offer.region}, price of {offer.date}): a user's own price changes them, "
        "and no share."
    )


def scores() -> str:
    """How many signs are right and how far off savings are, lever by lever."""
    lines = [
        "| lever | cells | it pays in | right sign, before | today | off in points where it pays, before | today "
        "| off in points, all, before | today |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for lever, sums in record()["sums"].items():
        sides = [sums[side] for side in ("before", "today")]
        cells = [str(sums["cells"]), str(sums["saving"]), *(str(side["right"]) for side in sides)]
        cells += [_points(side[name]) for name in ("off_where_saving", "off") for side in sides]
        shown = [f"**{cell}**" for cell in (lever, *cells)] if lever == "all" else [_named(lever), *cells]
        lines.append(f"| {' | '.join(shown)} |")
    own, sums = record()["own_host"], record()["sums"]
    told = ", ".join(
        f"{lever} {_points(sums[lever]['today']['off'])} → {_points(own[lever]['off'])}"
        for lever in ("graph sizes", "asynchronous scheduling", "drafts: MTP", "all")
    )
    return "\n".join([
        *lines, "",
        "Today's predictions are for our default host. This one was faster: placed by its loads beyond their graphs, a "
        f"small launch takes it {record()['own_host_us']:.1f} µs instead of {host().launch_s * 1e6:.1f} "
        f"(`calibrate --probe` times yours). Told so, points off of all cells become: {told}.",
    ])  # fmt: skip


def turns() -> str:
    """Where levers turn along one axis: measured and predicted."""
    rows = [row for row in record()["boundaries"] if len(set(row["text"].values())) > 1 or _turned(row)]
    sums, n = record()["boundary_sums"], len(record()["boundaries"])
    lines = [
        "| lever | along | it | measured | there, a Mtok | before the run (steps off) | today (steps off) |",
        "|---|---|---|---|--:|---|---|",
    ]
    for row in rows:
        fixed = ", ".join([*_places(row["fixed"]), *([row["figure"]] if row["figure"] != TIME else [])])
        along = f"{AXES[row['axis']]}{f' ({fixed})' if fixed else ''}"
        said = [f"{row['text'][side]} ({steps})" for side, steps in zip(("before", "today"), row["steps"], strict=True)]
        again = ", and turns again" if row["again"] else ""
        lines.append(
            f"| {_named(row['lever'])} | {along} | {row['what']} | {row['text']['measured']}{again} | {_there(row)} | {' | '.join(said)} |"
        )
    told = ", ".join(
        f"{name} {sums[side]['same']} at the same step and {sums[side]['within_one']} within one step (worst "
        f"{sums[side]['worst']})"
        for side, name in (("before", "before the run"), ("today", "today"))
    )
    return "\n".join([
        *lines, "", f"Of {n} series {sums['turning']} turn, measured or predicted: {told}. The {n - len(rows)} series that are "
        "not listed turn nowhere, in either.",
    ])  # fmt: skip


def _there(row: Row) -> str:
    """Return the dollars of a million tokens without and with a lever at the last point measured on its side of a turn."""
    if not _is_turn(row, row["measured"]) or row["figure"] != TIME:
        return "–"
    point = row["measured"] - (row["turns"] == "stops")
    took = _series(row["lever"], row["axis"], row["fixed"], TIME)[point]["took"]
    return f"{usd(dollars(took['without']))} → {usd(dollars(took['with']))}"


def drafts_and_hits() -> str:
    """Errors of drafts' tokens a round and speed-ups, and of shares of prompts found."""
    lines = [
        "| drafts | cells | tokens a round off, before | today | speed-up off, before | today |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for lever, sums in record()["draft_sums"].items():
        cells = [f"{sums[side][name]['median']:.1%}" for name in ("tokens", "speedup") for side in ("before", "today")]
        lines.append(f"| {lever.removeprefix('drafts: ')} | {sums['cells']} | {' | '.join(cells)} |")
    hits = [
        f"{name} {sums['median'] * 100:.1f} points off in the median of {sums['loads']} loads, at worst "
        f"{sums['worst'] * 100:.0f}"
        for side, name in (("before", "before the run"), ("today", "today"))
        if (sums := record()["hit_sums"].get(side))
    ]
    return "\n".join([*lines, "", f"Shares of prompt tokens found in a cache: {'; '.join(hits)}."])


def lever_part(key: str) -> str:
    """A lever's picture, what it saves in dollars, and its cells."""
    lever = LEVERS[key]
    rows = _rows(lever.name, apart=True)
    parts = []
    if lever.panels:
        parts += [f"![{_heading(lever.name)}: measured and predicted savings](img/levers-{key}.svg)", ""]
    parts += [_paid(rows), "", *_table(rows)]
    reasons = dict.fromkeys(row["apart"] for row in rows if row["apart"])
    parts += [f"\n† Not counted: {reason}." for reason in reasons]
    return "\n".join(parts)


def _paid(rows: Sequence[Row]) -> str:
    timed = [row for row in rows if row["figure"] == TIME and not row["apart"]]
    pays = [row for row in timed if row["measured"] >= record()["nothing"]]
    costs = [row for row in timed if row["measured"] <= -record()["nothing"]]
    if not timed:
        return "Its figures are latencies, not dollars."
    said = f"By time a token it paid in {len(pays)} of {len(timed)} cells and cost in {len(costs)}"
    for best, verb in ((max(pays, key=_saved, default=None), "saved"), (min(costs, key=_saved, default=None), "lost")):
        if best:
            said += (
                f"; most dollars {verb}: {usd(abs(_saved(best)))} a Mtok of answers ({', '.join(_places(best['at']))})"
            )
    return f"{said}."


def _saved(row: Row) -> float:
    return dollars(row["took"]["without"]) - dollars(row["took"]["with"])


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| cell | requests | tokens in | out | saved: measured | before the run | today | without → with |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        timed, sent = row["figure"] == TIME, row["sent"]
        name = ", ".join([*_places(row["at"]), *([] if timed else [row["figure"]])]) + ("†" if row["apart"] else "")
        said = [f"{_signed(row[side])}{'' if row['right'][side] else ' ✗'}" for side in ("before", "today")]
        took = [row["took"]["without"], row["took"]["with"]]
        ends = " → ".join(usd(dollars(each)) if timed else seconds(each) for each in took)
        lengths = [_span(sent["in"]), _span(sent["out"])]
        cells = [name, f"{sent['requests']}", *lengths, _signed(row["measured"]), *said, ends]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def asleep() -> str:
    """Seconds to put a model to sleep and to wake it."""
    lines = ["| | measured | before the run | today |", "|---|--:|--:|--:|"]
    for row in record()["seconds"]:
        cells = [seconds(row[side]) for side in ("measured", "before", "today")]
        lines += [f"| {row['figure']} | {' | '.join(cells)} |"]
    return "\n".join(lines)


def servers() -> str:
    """Each server's model and flags."""
    lines = ["| server | group | model | flags of `vllm serve` |", "|---|---|---|---|"]
    for server in record()["servers"]:
        flags = re.sub(
            r"a0=\S+ .*(a\d+=\S+)", r"a0={adapter} … \1", " ".join(_quoted(word) for word in server["flags"])
        )
        env = "".join(f"`{name}={value}` " for name, value in server["env"].items())
        model = f"{server['model']}{', FP8' if server['quantised'] else ''}"
        lines.append(f"| {server['name']} | `{server['group']}` | {model} | {env}`{flags}` |")
    return "\n".join(lines)


def _heading(name: str) -> str:
    return name[0].upper() + _named(name)[1:]


def _named(lever: str) -> str:
    return lever.replace("kv", "KV")


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word or "{" in word[:1] else word


def _rows(lever: str, apart: bool = False) -> list[Row]:
    return [row for row in record()["cells"] if row["lever"] == lever and (apart or not row["apart"])]


def _cell(lever: str, **at: Any) -> Row:
    found = [row for row in _rows(lever) if row["at"] == at and row["figure"] == TIME]
    assert len(found) == 1, (lever, at)
    return found[0]


def _turn(lever: str, axis: str, figure: str = TIME, **fixed: Any) -> str:
    found = [
        row for row in record()["boundaries"]
        if (row["lever"], row["axis"], row["figure"], row["fixed"]) == (lever, axis, figure, fixed)
    ]  # fmt: skip
    assert len(found) == 1, (lever, axis, fixed)
    assert found[0]["what"] == "pays" or found[0]["text"]["measured"] == "nowhere"
    return str(found[0]["text"]["measured"])


def _turned(row: Row) -> bool:
    return any(_is_turn(row, place) for place in (row["measured"], *row["predicted"]))


def _is_turn(row: Row, place: int) -> bool:
    return 0 < place < int(row["points"])


def _places(at: Fixed) -> list[str]:
    shown = (SHOWN[name].format(place if isinstance(place, str) else f"{place:,g}") for name, place in at.items())
    return [re.sub(r"^1 (user|adapter)s$", r"1 \1", place) for place in shown]


def _span(ends: Sequence[int]) -> str:
    least, most = ends
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"


def _share(row: Row, times: int = 1) -> str:
    return f"{row['measured'] * times * 100:.0f} %"


def _range(shares: Iterable[float]) -> str:
    listed = list(shares)
    return f"{min(listed) * 100:.0f}–{max(listed) * 100:.0f} %"


def _signed(share: float) -> str:
    return f"{share * 100:+z.1f} %"


def _points(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw() -> None:
    """Save the picture of each lever that has panels."""
    import altair as alt
    from pictures import slim

    from tokonomics.report.charts import save_chart, style

    palette = {"measured": style.BLUE, "predicted before the run": style.GREY, "predicted today": style.GREEN}
    dashes = {"measured": style.SOLID, "predicted before the run": style.DOTTED, "predicted today": style.DASHED}
    sides = dict(zip(palette, ("measured", "before", "today"), strict=True))
    for key, lever in LEVERS.items():
        series = [_series(lever.name, *panel) for panel in lever.panels]
        if not series:
            continue
        shares = [row[side] for rows in series for row in rows for side in sides.values()]
        low, high = min(0.0, *shares), max(0.05, *shares)
        room = (high - low) * 0.06
        panels = []
        for place, ((axis, fixed, figure), rows) in enumerate(zip(lever.panels, series, strict=True)):
            names = json.dumps([f"{row['at'][axis]:,g}" for row in rows])
            x = style.across("step", AXES[axis], style.linear(-0.3, len(rows) - 0.7), values=list(range(len(rows))),
                             labelExpr=f"{names}[datum.value]", grid=False)  # fmt: skip
            y = style.upwards("saved", f"saved of {'the GPU time a token' if figure == TIME else figure}" if not place or
                              figure != TIME else None, style.linear(low - room, high + room), format="%", tickCount=6)  # fmt: skip
            points = [
                {"step": step, "saved": row[side], "what": name}
                for name, side in sides.items() for step, row in enumerate(rows)
            ]  # fmt: skip
            colour, dash = style.colours("what", palette), style.dashes("what", dashes)
            lines = style.plot(points).mark_line().encode(x=x, y=y, color=colour, strokeDash=dash)
            dots = style.plot(points[: len(rows)]).mark_point(filled=True, opacity=1, size=45, color=style.BLUE)
            none = style.plot([{"saved": 0.0}]).mark_rule(color=style.INK).encode(y=y)
            edges = [
                {"step": edge - 0.5 + shift, "what": name}
                for name, edge, shift in _edges(lever.name, axis, fixed, figure, sides)
            ]
            rules = style.plot(edges).mark_rule(strokeWidth=1.5, opacity=0.8).encode(x=x, color=colour, strokeDash=dash)
            title = ", ".join([*_places(fixed), *([figure] if figure != TIME else [])])
            marks = [none, *([rules] if edges else []), lines, dots.encode(x=x, y=y)]
            panels.append(style.panel(*marks, width=210, height=190, title=title))
        chart: Any = style.whole(alt.hconcat(*panels, spacing=16), _heading(lever.name), UPRIGHT)
        path = PICTURES / f"levers-{key}.svg"
        save_chart(chart, path)
        slim(path)


def _series(lever: str, axis: str, fixed: Fixed, figure: str) -> list[Row]:
    found = [
        row for row in _rows(lever)
        if row["figure"] == figure and axis in row["at"]
        and {name: place for name, place in row["at"].items() if name != axis} == fixed
    ]  # fmt: skip
    assert found, (lever, axis, fixed)
    return sorted(found, key=lambda row: float(row["at"][axis]))


def _edges(lever: str, axis: str, fixed: Fixed, figure: str, sides: dict[str, str]) -> list[tuple[str, int, float]]:
    """Return where a series turns: the name of each side that turns, the place, and a shift that keeps them apart."""
    for row in record()["boundaries"]:
        if (row["lever"], row["axis"], row["figure"], row["fixed"]) == (lever, axis, figure, fixed):
            places = dict(zip(sides, (row["measured"], *row["predicted"]), strict=True))
            return [
                (name, place, 0.05 * (number - 1))
                for number, (name, place) in enumerate(places.items()) if _is_turn(row, place)
            ]  # fmt: skip
    return []


if __name__ == "__main__":
    os.environ["TOKONOMICS_TODAY"] = (ROOT / "docs" / "as-of.txt").read_text(encoding="utf-8").strip()
    draw()
