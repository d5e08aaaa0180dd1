"""How much more what we would pick costs than the best one, by measurements of both: GPU, layout, or everything.

    python benchmarks/bench_regret.py

A case is a group of runs that are alike but for what is picked (``QUESTIONS``), with a target for TPOT (20, 30, 50 or
100 ms). A setting is what was measured there: GPU, layout, precision and users at once. Picked is the cheapest setting
by predictions among those predicted to meet the target; where none is, that of the lowest predicted TPOT. Then
measurements judge: of each choice, the cheapest setting that met the target.

    regret = measured cost of the choice picked ÷ measured cost of the best choice − 1

- the GPU: runs of one source, model, engine, precision and pair of lengths on at least two kinds of GPU; layout and
  users are free on each.
- the layout (tensor, pipeline, expert and data parallelism): of one GPU and build of the engine as well.
- the layout at full load: rows that state throughput and no latency, of the same users if these are stated; no target.
- free choice: GPU, layout, precision and users at once, and the very setting picked has to meet the target.

A regret is infinite where no setting of the choice picked met the target; such cases are counted and sort last. Cases
whose target no measured setting met are left out, and so are settings that we do not predict.

The cost of a token is USD per hour of the GPUs ÷ answered tokens per hour. Where a source states no throughput, tokens
per second follow from Little's law: users × output ÷ (TTFT + (output − 1) × TPOT), measured and predicted alike. A run
without a TTFT is taken at users ÷ TPOT. Prices: of each GPU the cheapest on-demand GPU-hour of the shipped snapshot by
the package's own rule (``cheapest_offer``); and without prices: every GPU-hour costs the same. Lambda's bursts are left
out: they hold no number of users.

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
from itertools import chain, zip_longest
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

    source: str
    engine: str
    build: str
    model: str
    weights: str
    lengths: str
    gpu: str
    layout: str
    users: str
    gpus: int
    measured: Speed
    predicted: Speed
    split: str


class Question(NamedTuple):
    """What is picked, and what runs of a case have in common; both are names of a setting's fields."""

    picked: tuple[str, ...]
    alike: tuple[str, ...]
    target: str
    at_full_load: bool = False


ALIKE = ("source", "engine", "model", "weights", "lengths")
QUESTIONS = {
    "the GPU": Question(("gpu",), ALIKE, "median 0 %, p90 ≤ 15 %"),
    "the layout": Question(("layout",), (*ALIKE, "build", "gpu"), "picked as measured ≥ 85 %, p90 ≤ 5 %"),
    "the layout at full load": Question(
        ("layout",), (*ALIKE, "build", "gpu", "users"), "picked as measured ≥ 85 %, p90 ≤ 5 %", at_full_load=True
    ),
    "free choice": Question(
        ("gpu", "layout", "weights", "users"), ("source", "engine", "model", "lengths"), "median ≤ 5 %"
    ),
}


class Case(NamedTuple):
    """What was picked under a target, what was best, and the regret."""

    name: str
    target_s: float | None
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
    found = settings([options.published, options.published_more])
    result: dict[str, Any] = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_regret.py",
        "usd_per_gpu_hour": {gpu: list_price(gpu) for gpu in sorted({setting.gpu for setting in found})},
        "questions": {},
    }
    prices: dict[str, Price] = {"at list prices": list_price, "every GPU-hour alike": lambda gpu: 1.0}
    for name, question in QUESTIONS.items():
        print(f"{name}, target: {question.target}")
        told = prices if "gpu" in question.picked else {"of one GPU": prices["every GPU-hour alike"]}
        made = {said: report(said, cases(question, found, price)) for said, price in told.items()}
        result["questions"][name] = {"target": question.target, "by_prices": made}
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def settings(tables: Iterable[Path]) -> list[Setting]:
    """Return what was measured and can be predicted."""
    read = [row for table in tables for row in read_measurements(table) if isinstance(row, Measurement)]
    # GPUs that prefill for others are not among the row's.
    rows = [row for row in read if not row.source.startswith(BURST) and "disagg" not in (row.engine or "")]
    return [setting(run, ttft) for run, ttft in chain(runs(rows), ((run, None) for run in at_full_load(rows)))]


def at_full_load(rows: Iterable[Measurement]) -> Iterator[ScoredPrediction]:
    """Yield the throughput of queues that never empty, and of batches of a fixed size."""
    for row in rows:
        is_full = row.mode in (Mode.max_throughput, Mode.fixed_batch)
        stated = is_full and row.metric in (Metric.output_tok_s, Metric.total_tok_s)
        if stated and isinstance(scored := predict(row), ScoredPrediction):
            yield scored


def runs(rows: Iterable[Measurement]) -> Iterator[tuple[ScoredPrediction, ScoredPrediction | None]]:
    """TPOT and TTFT of each run at a fixed number of users; runs alike are paired in the table's order."""
    alike: dict[tuple[object, ...], dict[Metric, list[ScoredPrediction]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.batch is None or row.mode is not Mode.fixed_concurrency:
            continue
        if row.metric in (Metric.tpot_s, Metric.ttft_s) and isinstance(scored := predict(row), ScoredPrediction):
            run = row.model_dump(exclude={"key", "metric", "value"}, mode="json")
            alike[*(str(part) for part in run.values())][row.metric].append(scored)
    for found in alike.values():
        ttfts = found[Metric.ttft_s] if len(found[Metric.ttft_s]) == len(found[Metric.tpot_s]) else []
        yield from zip_longest(found[Metric.tpot_s], ttfts)


def setting(run: ScoredPrediction, ttft: ScoredPrediction | None) -> Setting:
    row = run.measurement
    measured = speed(row, row.value, ttft.measurement.value if ttft else None)
    predicted = speed(row, run.interval.mid, ttft.interval.mid if ttft else None)
    source, lengths = row.source.split("(")[0].strip(), f"{row.input_tokens}/{row.output_tokens}"
    layout = " ".join(f"{name}={getattr(row, name)}" for name in ("tp", "pp", "dp", "ep") if getattr(row, name) > 1)
    # Users, and so tokens, are those of one replica.
    return Setting(
        source, row.engine or "", row.engine_version or "", row.model, row.weights, lengths, find_gpu(row.gpu).key,
        layout or "one GPU", f"{row.batch or 'any'}", row.tp * row.pp * row.dp, measured, predicted, row.split,
    )  # fmt: skip


def speed(row: Measurement, figure: float, ttft_s: float | None) -> Speed:
    """Return the speed of a run by its TPOT and TTFT, or by its throughput: then its TPOT does not count."""
    if row.metric is Metric.output_tok_s:
        return Speed(0.0, figure)
    if row.metric is Metric.total_tok_s:
        return Speed(0.0, figure * row.output_tokens / (row.input_tokens + row.output_tokens))
    output = row.output_tokens * row.length_share
    request_s = output * figure if ttft_s is None else ttft_s + (output - 1) * figure
    return Speed(figure, (row.batch or 1) * output / request_s)


@cache
def list_price(gpu: str) -> float | None:
    """USD per hour of one GPU; None where nobody lists it."""
    try:
        return cheapest_offer(gpu, offers=list_prices(read_offers(SNAPSHOT))).usd_per_gpu_hour()
    except NoOffer:
        return None


def cases(question: Question, found: Iterable[Setting], price: Price) -> list[Case]:
    groups: dict[str, list[Setting]] = defaultdict(list)
    for setting in found:
        if price(setting.gpu) is not None and bool(setting.measured.tpot_s) is not question.at_full_load:
            groups[named(setting, question.alike)].append(setting)
    targets_s = (None,) if question.at_full_load else TARGETS_S
    made = (case(name, group, question, target_s, price) for name, group in groups.items() for target_s in targets_s)
    return [case for case in made if case is not None]


def named(setting: Setting, fields: Sequence[str]) -> str:
    return " ".join(getattr(setting, field) or "?" for field in fields)


def case(name: str, group: Sequence[Setting], question: Question, target_s: float | None, price: Price) -> Case | None:
    """Return what was picked and what was best; None where there is no choice, or no setting met the target."""
    choices = [(named(setting, question.picked), setting) for setting in group]
    limit_s = math.inf if target_s is None else target_s
    measured = cheapest(choices, limit_s, price, lambda setting: setting.measured)
    if not measured or len({choice for choice, _ in choices}) < 2:
        return None
    predicted = cheapest(choices, limit_s, price, lambda setting: setting.predicted)
    fastest, _ = min(choices, key=lambda choice: choice[1].predicted.tpot_s)
    picked = min(predicted, key=predicted.__getitem__) if predicted else fastest
    best = min(measured, key=measured.__getitem__)
    regret = measured.get(picked, math.inf) / measured[best] - 1
    split = next(split for split in reversed(SPLITS) if any(setting.split == split for setting in group))
    return Case(name, target_s, split, picked, best, regret)


def cheapest(
    choices: Iterable[tuple[str, Setting]], limit_s: float, price: Price, speed: Callable[[Setting], Speed]
) -> dict[str, float]:
    """Return USD per million tokens of the cheapest setting of each choice that meets the target."""
    found: dict[str, float] = {}
    for choice, setting in choices:
        tpot_s, tokens_per_s = speed(setting)
        if tpot_s <= limit_s:
            usd = (price(setting.gpu) or math.inf) * setting.gpus / (tokens_per_s * 3600 / 1e6)
            found[choice] = min(usd, found.get(choice, math.inf))
    return found


def report(name: str, found: Sequence[Case]) -> dict[str, Any]:
    sets = {split: [case for case in found if case.split == split] for split in SPLITS} | {"all": list(found)}
    print(f"  {name:20} {'cases':>5} {'median':>7} {'p90':>7}  as measured  target missed")
    summaries = {kind: summed(group) for kind, group in sets.items() if group}
    for kind, figures in summaries.items():
        median, p90 = (
            f"{figures[part]:.0%}" if math.isfinite(figures[part]) else "missed" for part in ("median", "p90")
        )
        right = f"{figures['right']} ({figures['right'] / figures['cases']:.0%})"
        print(f"  {kind:20} {figures['cases']:>5} {median:>7} {p90:>7} {right:>12} {figures['missed']:>14}")
    worst = [case for case in sorted(sets["calibrate"], key=lambda case: -case.regret)[:LISTED] if case.regret > 0]
    for case in worst:
        told = f"{case.picked} picked, {case.best} best: "
        told += f"{case.regret:+.0%}" if math.isfinite(case.regret) else "misses the target"
        target = f"{case.target_s * 1e3:.0f} ms" if case.target_s else "no target"
        print(f"    {case.name}, {target}: {told}")
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
