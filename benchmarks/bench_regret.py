"""How much more the GPU that we would pick costs than the best one, by measurements of both.

    python benchmarks/bench_regret.py

A case is a source, model, engine, precision and pair of lengths measured on at least two kinds of GPU, with a target
for TPOT (20, 30, 50 or 100 ms). A setting is what was measured there: GPU, parallelism and users at once. The GPU
picked is that of the setting which is cheapest by predictions among those predicted to meet the target; where none is,
that of the lowest predicted TPOT. Then measurements judge: on each GPU the cheapest setting that met the target.

    regret = measured cost on the GPU picked ÷ measured cost on the best GPU − 1

It is infinite where no setting on the GPU picked met the target; such cases are counted and sort last. Cases whose
target no measured setting met are left out, and so are settings that we do not predict.

The cost of a token is USD per hour of the GPUs ÷ tokens per hour. The tables state no throughput for these runs, so
tokens per second follow from Little's law: users × output ÷ (TTFT + (output − 1) × TPOT), measured and predicted alike.
A run without a TTFT is taken at users ÷ TPOT. Prices: of each GPU the cheapest on-demand GPU-hour of the shipped
snapshot by the package's own rule (``cheapest_offer``); and without prices: every GPU-hour costs the same. Lambda's
bursts are left out: they hold no number of users.

A case is ``calibrate`` where one of its rows may have been fitted on, else ``dev`` where one was looked at, else
``judge``: left out of everything. The worst cases are listed for ``calibrate`` only: who reads those of ``judge``
begins to fit them.
"""

import argparse
import json
import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import NoOffer, cheapest_offer, list_prices
from tokonomics.catalog.offers import SNAPSHOT, read_offers
from tokonomics.measure.measurements import Measurement, Metric, Mode, read_measurements
from tokonomics.measure.validate import ScoredPrediction, predict
from tokonomics.types import today

HERE = Path(__file__).parent
RECORD = HERE / "results" / "regret.json"
TARGETS_S = (0.02, 0.03, 0.05, 0.1)
WANTED = "median 0 %, p90 ≤ 15 %"
LISTED = 12
SPLITS = ("judge", "dev", "calibrate")
BURST = "Lambda"

Price = Callable[[str], float | None]


class Speed(NamedTuple):
    """Of one run, measured or predicted."""

    tpot_s: float
    tokens_per_s: float


class Setting(NamedTuple):
    """GPUs under a load, with the speed measured and ours."""

    gpu: str
    gpus: int
    measured: Speed
    predicted: Speed
    split: str


class Case(NamedTuple):
    """What was picked under a target, what was best, and the regret."""

    name: str
    target_s: float
    split: str
    picked: str
    best: str
    regret: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, default=HERE / "data" / "published.csv.gz")
    parser.add_argument("--published-more", type=Path, default=HERE / "data" / "published_more.csv.gz")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    groups = settings([options.published, options.published_more])
    result: dict[str, Any] = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_regret.py",
        "target": WANTED,
        "usd_per_gpu_hour": {
            gpu: list_price(gpu) for gpu in sorted({s.gpu for group in groups.values() for s in group})
        },
    }
    print(f"regret of the GPU picked, target: {WANTED}")
    prices: dict[str, Price] = {"at list prices": list_price, "every GPU-hour alike": lambda gpu: 1.0}
    for name, price in prices.items():
        result[name] = report(name, cases(groups, price))
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def settings(tables: Iterable[Path]) -> dict[str, list[Setting]]:
    """Of each source, model, engine, precision and pair of lengths, what was measured and can be predicted."""
    groups: dict[str, list[Setting]] = defaultdict(list)
    for table in tables:
        for tpot, ttft in runs(row for row in read_measurements(table) if isinstance(row, Measurement)):
            row = tpot.measurement
            name = f"{row.source.split('(')[0].strip()}: {row.engine} {row.model} {row.weights}"
            groups[f"{name} {row.input_tokens}/{row.output_tokens}"].append(setting(tpot, ttft))
    return {name: group for name, group in groups.items() if len({setting.gpu for setting in group}) > 1}


def runs(rows: Iterable[Measurement]) -> Iterator[tuple[ScoredPrediction, ScoredPrediction | None]]:
    """TPOT and TTFT of each run at a fixed number of users; runs alike are paired in the table's order."""
    alike: dict[tuple[object, ...], dict[Metric, list[ScoredPrediction]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        apart = "disagg" in (row.engine or "")  # the GPUs that prefill are not among the row's
        if row.batch is None or row.mode is not Mode.fixed_concurrency or row.source.startswith(BURST) or apart:
            continue
        if row.metric in (Metric.tpot_s, Metric.ttft_s) and isinstance(scored := predict(row), ScoredPrediction):
            run = row.model_dump(exclude={"key", "metric", "value"}, mode="json")
            alike[*(str(part) for part in run.values())][row.metric].append(scored)
    for found in alike.values():
        ttfts = found[Metric.ttft_s] if len(found[Metric.ttft_s]) == len(found[Metric.tpot_s]) else []
        yield from zip_longest(found[Metric.tpot_s], ttfts)


def setting(tpot: ScoredPrediction, ttft: ScoredPrediction | None) -> Setting:
    row = tpot.measurement
    measured = speed(row, row.value, ttft.measurement.value if ttft else None)
    predicted = speed(row, tpot.interval.mid, ttft.interval.mid if ttft else None)
    # Users, and so tokens, are those of one replica.
    return Setting(find_gpu(row.gpu).key, row.tp * row.pp * row.dp, measured, predicted, row.split)


def speed(row: Measurement, tpot_s: float, ttft_s: float | None) -> Speed:
    output = row.output_tokens * row.length_share
    request_s = output * tpot_s if ttft_s is None else ttft_s + (output - 1) * tpot_s
    return Speed(tpot_s, (row.batch or 1) * output / request_s)


@cache
def list_price(gpu: str) -> float | None:
    """USD per hour of one GPU; None where nobody lists it."""
    try:
        return cheapest_offer(gpu, offers=list_prices(read_offers(SNAPSHOT))).usd_per_gpu_hour()
    except NoOffer:
        return None


def cases(groups: dict[str, list[Setting]], price: Price) -> list[Case]:
    found = (
        case(name, [setting for setting in group if price(setting.gpu) is not None], target, price)
        for name, group in groups.items()
        for target in TARGETS_S
    )
    return [case for case in found if case is not None]


def case(name: str, group: Sequence[Setting], target_s: float, price: Price) -> Case | None:
    """None where one kind of GPU is left, or no measured setting met the target."""
    measured = cheapest(group, target_s, price, lambda setting: setting.measured)
    if not measured or len({setting.gpu for setting in group}) < 2:
        return None
    predicted = cheapest(group, target_s, price, lambda setting: setting.predicted)
    fastest = min(group, key=lambda setting: setting.predicted.tpot_s).gpu
    picked = min(predicted, key=predicted.__getitem__) if predicted else fastest
    best = min(measured, key=measured.__getitem__)
    regret = measured.get(picked, math.inf) / measured[best] - 1
    split = next(split for split in reversed(SPLITS) if any(setting.split == split for setting in group))
    return Case(name, target_s, split, picked, best, regret)


def cheapest(
    group: Iterable[Setting], target_s: float, price: Price, speed: Callable[[Setting], Speed]
) -> dict[str, float]:
    """USD per million tokens of the cheapest setting of each GPU that meets the target."""
    found: dict[str, float] = {}
    for setting in group:
        tpot_s, tokens_per_s = speed(setting)
        if tpot_s <= target_s:
            usd = (price(setting.gpu) or math.inf) * setting.gpus / (tokens_per_s * 3600 / 1e6)
            found[setting.gpu] = min(usd, found.get(setting.gpu, math.inf))
    return found


def report(name: str, found: Sequence[Case]) -> dict[str, Any]:
    sets = {split: [case for case in found if case.split == split] for split in SPLITS} | {"all": list(found)}
    print(f"{name}:")
    print(f"  {'':18} {'cases':>5} {'median':>7} {'p90':>7}  right GPU  target missed")
    summaries = {kind: summed(group) for kind, group in sets.items() if group}
    for kind, figures in summaries.items():
        median, p90 = (f"{figures[part]:.0%}" for part in ("median", "p90"))
        print(f"  {kind:18} {figures['cases']:>5} {median:>7} {p90:>7} {figures['right']:>10} {figures['missed']:>14}")
    worst = [case for case in sorted(sets["calibrate"], key=lambda case: -case.regret)[:LISTED] if case.regret > 0]
    for case in worst:
        told = f"{case.picked} picked, {case.best} best: {case.regret:+.0%}"
        print(f"    {case.name}, {case.target_s * 1000:.0f} ms: {told}")
    listed = [case._asdict() | {"regret": finite(case.regret)} for case in worst]
    kept = {kind: {part: finite(figure) for part, figure in parts.items()} for kind, parts in summaries.items()}
    return {"summary": kept, "worst_of_calibrate": listed}


def summed(found: Sequence[Case]) -> dict[str, float]:
    regrets = sorted(case.regret for case in found)
    return {
        "cases": len(regrets),
        "median": statistics.median_low(regrets),
        "p90": regrets[math.ceil(0.9 * len(regrets)) - 1],
        "right": sum(case.picked == case.best for case in found),
        "missed": sum(math.isinf(regret) for regret in regrets),
    }


def finite(figure: float) -> float | str:
    """JSON has no infinity."""
    return figure if math.isfinite(figure) else "infinite"


if __name__ == "__main__":
    main()
