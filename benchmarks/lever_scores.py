"""Score predictions of the lever grid: whether a saving has the right sign, how far off it is, and where a lever turns.

A saving is a share of a figure (`lever_grid.cells`); within 2 % either way (NOTHING) it is none, as loads on two
alike servers differed by about that; a tail of few requests scatters more (CHANCE). Its **sign is right** if both
savings are none or have the same sign, or if one is none and the other within 2 points of it. A **boundary** is where
along one axis, all others fixed, a lever starts or stops to pay (to save NOTHING or more); in a series in which it pays
nowhere, where it starts or stops to cost; of several turns, the one across which savings differ most. Predicted and
measured boundaries differ by steps of the grid: 0 is the same step.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.lever_grid import Json, cells

NOTHING = 0.02
CHANCE = {"TTFT": 0.13, "TPOT": 0.06}
"""Of the p90 and p99 of 63 requests at 12/s: what chance alone makes of the difference between two such loads, one
standard error by drawing those requests again (9 and 4 % of each, on the servers of the flags)."""
FEWEST = 3  # points of a series that can turn
CLIENT = (
    "256 users at once: a token took longer with FP8 weights (20.8 ms in the median) than with 16-bit weights (18.9), "
    "three times and twice as long as with 128 users; vLLM's log has no kernel compiled then, so the one API process "
    "with the client beside it was the limit"
)
COMPILED = (
    "the first wave waited 0.98 s for its first token and the second, of the same size, 0.10 s: "
    "something was made ready once while it was served"
)
CONTROL = "a control: a server that may hold adapters, and no request uses one"
APART = {
    "plain: bits 256 × 128": CLIENT, "fp8 weights: bits 256 × 128": CLIENT, "fp8 kv: bits 256 × 128": CLIENT,
    "n-grams: 16 × 256": COMPILED, "lora 16: 96 users, none": CONTROL,
}  # fmt: skip
"""Loads whose time was not the server's GPU's: their cells are shown and not counted."""
SIDES = ("before", "today")
Row = dict[str, Any]


def saving(cell: Json, figures: Json) -> float | None:
    """Return the share of a figure that the lever saves, from predictions or measurements; None if one is missing."""
    there, without, figure = figures.get(cell["load"]), figures.get(cell["without"]), cell["figure"]
    if not there or not without:
        return None
    return float(1 - there[figure] / without[figure])


def sign(share: float, least: float = NOTHING) -> int:
    """Return 1 for a saving, -1 for a loss and 0 for none."""
    return 0 if abs(share) < least else 1 if share > 0 else -1


def is_sign_right(predicted: float, measured: float, least: float = NOTHING) -> bool:
    """Decide whether a predicted saving has the sign of the measured one."""
    signs = {sign(predicted, least), sign(measured, least)}
    return len(signs) == 1 or (0 in signs and abs(predicted - measured) <= NOTHING)


def scored_cells(measured: Json, predicted: dict[str, Json]) -> list[Row]:
    """Return a row for each cell that was served and is a saving; ``predicted`` has loads by side."""
    rows = []
    for cell in cells():
        found = saving(cell, measured)
        if found is None:
            continue
        said = {side: saving(cell, loads) for side, loads in predicted.items()}
        row = cell | {"measured": found, "apart": APART.get(cell["load"]) or APART.get(cell["without"]), **said}
        least = row["least"] = CHANCE.get(cell["figure"], NOTHING)
        row["right"] = {side: is_sign_right(said[side] or 0.0, found, least) for side in predicted}
        row["took"] = {
            "with": measured[cell["load"]][cell["figure"]],
            "without": measured[cell["without"]][cell["figure"]],
        }
        rows.append(row)
    return rows


def sums_of(rows: Sequence[Row]) -> Row:
    """Return how many signs are right, and how far off savings are in points, of the rows that count."""
    counted = [row for row in rows if not row["apart"]]
    found: Row = {"cells": len(counted), "saving": sum(row["measured"] >= row["least"] for row in counted)}
    for side in SIDES:
        off = [abs(row[side] - row["measured"]) for row in counted]
        where = [abs(row[side] - row["measured"]) for row in counted if row["measured"] >= row["least"]]
        found[side] = {
            "right": sum(row["right"][side] for row in counted),
            "off": statistics.median(off) if off else None,
            "off_where_saving": statistics.median(where) if where else None,
            "worst": max(off) if off else None,
        }
    return found


def by_lever(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the sums of each lever, and of all."""
    levers = dict.fromkeys(row["lever"] for row in rows)
    each = {lever: sums_of([row for row in rows if row["lever"] == lever]) for lever in levers}
    return each | {"all": sums_of(rows)}


def series_of(rows: Iterable[Row]) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield each series that differs along one axis alone: the axis, what is fixed, and its rows in order."""
    found: dict[tuple[str, str, str, tuple[tuple[str, Any], ...]], list[Row]] = {}
    for row in rows:
        if row["apart"]:
            continue
        for axis, place in row["at"].items():
            if not isinstance(place, str):
                fixed = tuple((name, value) for name, value in row["at"].items() if name != axis)
                found.setdefault((row["lever"], row["figure"], axis, fixed), []).append(row)
    for (_, _, axis, fixed), alike in found.items():
        if len(alike) >= FEWEST:
            yield axis, dict(fixed), sorted(alike, key=lambda row: float(row["at"][axis]))


def boundary(measured: Sequence[float], *predicted: Sequence[float]) -> Row:
    """Return where the measured savings of a series turn, where each row of predicted ones does, and the steps off.

    A place is the number of the first point beyond the turn: 0 if a lever that starts to pay does so from the first
    point on (or one that stops pays nowhere), and the number of points if it never turns.
    """
    rows = [measured, *predicted]
    what = "pays" if any(share >= NOTHING for row in rows for share in row) else "costs"
    does = [[share >= NOTHING if what == "pays" else share <= -NOTHING for share in row] for row in rows]
    turning = next((row for row in range(len(rows)) if _turns(does[row])), None)
    starts = turning is not None and does[turning][_sharpest(rows[turning], _turns(does[turning]))]
    places = []
    for row, each in zip(rows, does, strict=True):
        alike = [place for place in _turns(each) if each[place] == starts]
        places.append(_sharpest(row, alike) if alike else 0 if each[0] == starts else len(row))
    return {
        "what": what, "turns": "starts" if starts else "stops", "points": len(measured), "measured": places[0],
        "predicted": places[1:], "steps": [abs(place - places[0]) for place in places[1:]],
        "again": len(_turns(does[0])) > 1,
    }  # fmt: skip


def _turns(does: Sequence[bool]) -> list[int]:
    return [place for place in range(1, len(does)) if does[place] != does[place - 1]]


def _sharpest(shares: Sequence[float], places: Sequence[int]) -> int:
    return max(places, key=lambda place: abs(shares[place] - shares[place - 1]))


def place_text(found: Row, place: int, points: Sequence[Any]) -> str:
    """Return where a lever pays by one boundary: ``from 4``, ``up to 48``, ``everywhere`` or ``nowhere``."""
    starts = found["turns"] == "starts"
    if place in (0, len(points)):
        return "everywhere" if starts == (place == 0) else "nowhere"
    return f"from {points[place]:,g}" if starts else f"up to {points[place - 1]:,g}"


def boundaries(rows: Iterable[Row]) -> list[Row]:
    """Return the boundary of each series, with its points."""
    made = []
    for axis, fixed, alike in series_of(rows):
        found = boundary(*([row[name] for row in alike] for name in ("measured", *SIDES)))
        points = [row["at"][axis] for row in alike]
        texts = [place_text(found, place, points) for place in (found["measured"], *found["predicted"])]
        made.append({
            "lever": alike[0]["lever"], "figure": alike[0]["figure"], "axis": axis, "fixed": fixed, "at": points,
            **found, "text": dict(zip(("measured", *SIDES), texts, strict=True)),
        })  # fmt: skip
    return made


def sums_of_boundaries(made: Sequence[Row]) -> Row:
    """Return how many series turn, measured or predicted, or pay on one side alone; and how near the turns are."""
    turning = [
        row for row in made
        if any(row["steps"]) or any(0 < place < row["points"] for place in (row["measured"], *row["predicted"]))
    ]  # fmt: skip
    found: Row = {"series": len(made), "turning": len(turning), "measured_to_turn": 0}
    found["measured_to_turn"] = sum(0 < row["measured"] < row["points"] for row in turning)
    for place, side in enumerate(SIDES):
        steps = [row["steps"][place] for row in turning]
        found[side] = {
            "same": sum(step == 0 for step in steps),
            "within_one": sum(step <= 1 for step in steps),
            "worst": max(steps, default=0),
            "same_of_all": sum(row["steps"][place] == 0 for row in made),
        }
    return found


def draft_errors(rows: Iterable[Row], measured: Json, predicted: dict[str, Json]) -> list[Row]:
    """Return tokens a round and speed-up of each draft's cell that counts, and the relative errors of both."""
    made = []
    for row in rows:
        tokens = measured[row["load"]].get("tokens a round")
        if tokens is None or row["apart"]:
            continue
        speedup = 1 / (1 - row["measured"])
        found: Row = {"lever": row["lever"], "at": row["at"], "tokens": tokens, "speedup": speedup}
        for side, loads in predicted.items():
            found[side] = {
                "tokens": loads[row["load"]]["tokens a round"] / tokens - 1,
                "speedup": 1 / (1 - row[side]) / speedup - 1,
            }
        made.append(found)
    return made


def sums_of_drafts(made: Sequence[Row]) -> dict[str, Row]:
    """Return the median relative errors of each kind of draft, without their signs, and the worst."""
    found: dict[str, Row] = {}
    for lever in dict.fromkeys(row["lever"] for row in made):
        alike = [row for row in made if row["lever"] == lever]
        found[lever] = {"cells": len(alike)}
        for side in SIDES:
            errors = {name: [abs(row[side][name]) for row in alike] for name in ("tokens", "speedup")}
            found[lever][side] = {
                name: {"median": statistics.median(each), "worst": max(each)} for name, each in errors.items()
            }
    return found


def hit_shares(rows: Iterable[Row], measured: Json, predicted: dict[str, Json]) -> list[Row]:
    """Return the shares of prompt tokens found in a cache, of every load of caches' cells where both count alike.

    The server counts a whole load. Where some of its requests only warmed the cache, the prediction of the requests
    after them is another share, and only ``found, with warm-up`` compares, where a prediction has it.
    """
    caches = {"prefix cache", "KV in DRAM", "KV on disk"}
    named = dict.fromkeys(name for row in rows if row["lever"] in caches for name in (row["load"], row["without"]))
    made = []
    for name in named:
        counted, warm = measured[name]["found"], measured[name]["with warm-up"]
        figure = "found, with warm-up" if warm else "found"
        said = {side: loads[name][figure] for side, loads in predicted.items() if figure in loads[name]}
        if said and (counted > 0 or any(said.values())):
            made.append({"load": name, "warm": warm, "measured": counted, **said})
    return made


def sums_of_hits(made: Sequence[Row]) -> Row:
    """Return the median and the worst difference of shares in points, by side."""
    found: Row = {}
    for side in SIDES:
        off = [abs(row[side] - row["measured"]) for row in made if side in row]
        if off:
            found[side] = {"loads": len(off), "median": statistics.median(off), "worst": max(off)}
    return found
