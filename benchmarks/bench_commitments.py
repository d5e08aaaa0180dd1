"""Back-test commitments: decide at the end of each month with what was known then, and pay what prices did next.

    python benchmarks/bench_commitments.py --date 2026-11-18 --machine "2 cores" > benchmarks/results/commitments.json

For each GPU and each month's end since the first with a year of history: paths are drawn from lists up to that month
alone, a schedule is decided on them, and the months that followed are paid at the prices of the GPU's index (its own,
its architecture's or that of all GPUs, as ``money.price_paths`` has it). Months with fewer than three sellers are no
history, so it begins in March 2024 and holds no start with a year before it and two after. Prices are in units of the
first month's price on demand. What a one-year commitment was quoted at in the past is not in the
history, so three quotes are tried. Demand is made up, since the history has prices alone: a day that needs 10 machines
in the mean and 16 at its peak, and grows by a share a month drawn from the range that the buyer expects. Every way pays
for the same demand.
"""

import argparse
import json
from collections.abc import Iterator

import numpy as np

from tokonomics.fleet.commitments import STEP_MONTHS
from tokonomics.fleet.traffic import parse_demand
from tokonomics.money.commitments import NOTHING, Futures, Term, best_schedule, by_rule, with_foresight
from tokonomics.money.price_paths import Floats, drawn_prices, price_moves
from tokonomics.units import HOURS_PER_MONTH

GPUS = ("A100-40GB", "A100-80GB", "H100-SXM", "H200", "L4")
QUOTES = (0.55, 0.7, 0.85)  # of the price on demand, for a year
HORIZONS = (12, 15)
KNOWN = 12  # months of history before the first decision
GROWTH = (0.0, 0.02, 0.04)  # a month: low, mid, high
CURVE = "diurnal:10,peak=1.6"  # machines
PATHS = 200
TERM_MONTHS = 12


def demand(scales: Floats) -> Futures:
    """Return the machines that a growing day needs, at a price of one, by path and month."""
    machines = np.ceil(scales[:, :, None] * np.array(parse_demand(CURVE, 24).total) - 1e-9).astype(np.int64)
    return Futures(machines, np.full(24, HOURS_PER_MONTH / 24), np.ones(scales.shape))


def grown(rng: np.random.Generator, paths: int, months: int) -> Floats:
    return (1 + rng.triangular(*GROWTH, size=(paths, 1))) ** np.arange(months)


def windows(gpu: str, months: int, quote: float) -> Iterator[dict[str, float]]:
    """Yield what each way paid from each month's end on, in machine-months at the first price."""
    history = price_moves(gpu)
    term = Term(name="1 year", months=TERM_MONTHS, usd_per_hour=quote)
    for known in range(KNOWN, len(history.moves) - months + 2):
        rng = np.random.default_rng((39, known))
        before = price_moves(gpu, until=history.months[known - 1])
        need = demand(grown(rng, PATHS, months))
        paths = Futures(need.machines, need.hours, drawn_prices(before, months, PATHS, rng))
        middle = demand(np.power(1 + GROWTH[1], np.arange(months, dtype=np.float64))[None])
        actual_need = demand(grown(rng, 1, months))
        then = np.exp(np.cumsum(np.append(0.0, history.moves[known : known + months - 1])))
        actual = Futures(actual_need.machines, actual_need.hours, then[None])
        schedules = {
            "ours": best_schedule(paths, [term], step=STEP_MONTHS),
            "ours, caution 1": best_schedule(paths, [term], step=STEP_MONTHS, caution=1.0),
            "all on demand": NOTHING,
            "all reserved": by_rule(paths, [term], middle, 1.0),
            "median rule": by_rule(paths, [term], middle, 0.5),
        }
        paid = {name: float(schedule.bills(actual)[0]) for name, schedule in schedules.items()}
        yield paid | {
            "perfect foresight": float(with_foresight(actual, [term], STEP_MONTHS)[0]),
            "price": float(then[-1]),
        }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--date", required=True)
    asked.add_argument("--machine", required=True)
    arguments = asked.parse_args()
    rows = []
    for months in HORIZONS:
        for gpu in GPUS:
            for quote in QUOTES:
                found = list(windows(gpu, months, quote))
                if not found:
                    continue
                on_demand = sum(window["all on demand"] for window in found)
                ways = [name for name in found[0] if name != "price"]
                rows.append(
                    {
                        "gpu": gpu,
                        "prices_of": price_moves(gpu).of,
                        "months": months,
                        "quote": quote,
                        "windows": len(found),
                        "paid": {name: sum(window[name] for window in found) / on_demand for name in ways},
                        "dearest": {
                            name: max(window[name] / window["all on demand"] for window in found) for name in ways
                        },
                        "price_fell": int(sum(window["price"] < 1 for window in found)),
                        "price_rose": int(sum(window["price"] > 1 for window in found)),
                    }
                )
    settings = {"growth": GROWTH, "demand": CURVE, "paths": PATHS, "known": KNOWN, "step": STEP_MONTHS}
    print(
        json.dumps(
            {
                "command": "python benchmarks/bench_commitments.py",
                "date": arguments.date,
                "machine": arguments.machine,
                "settings": settings,
                "rows": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
