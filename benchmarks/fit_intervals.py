"""How far predictions are off, by class: learns physics/data/intervals.toml from published rows and real loads.

    DATA=benchmarks/data
    python -m benchmarks.fit_intervals --published $DATA/published*.csv.gz \\
        --steps $DATA/h200_{steps,more_steps,held_out_steps}.json

Published rows teach if they are marked ``calibrate``, but for sweeps that the datasheet rules out as they are labelled
(``validate.impossible_rows``). Rows of one combination of source, engine and model are not independent, and a new
measurement comes from a new one: a combination weighs as the square root of its rows. A class is as wide as what it has
not seen needs: its ends are the percentiles between which four of five errors lie of a source, a GPU or an era of an
engine that is left out, in turn, of those that the percentiles are taken of (conformal prediction over groups). A class
of fewer than ``LEAST_SOURCES``, or of which too few are inside, is left to the one of timed and scaled speeds together,
and none is narrower than one that is known better. The eras of engines were fitted on these rows with two figures each,
so that errors are a little small: rows marked ``judge`` show what is left of that (``bench_accuracy.py``).
An era of an engine with enough rows has a class of its own. Its few models and GPUs say little of the next one, so
errors of all eras of that class are mixed in, as much as ``BORROWED`` combinations weigh; its ends are again those
between which four of five errors lie of a model or a GPU that is left out of it in turn. The loads of a real vLLM
(``bench_vllm.py``, ``bench_headroom.py``, ``bench_blind.py``) teach its era so, a model at a time.
What a GPU without timings adds, where no rows of such GPUs make a class, is seen in those that have them: the error of
predicting a timed GPU from another family's curves; for a relative's curves, halfway (in logarithms) between that and
what giving twins each other's curves changes, as a smaller sibling is more than a twin apart.
"""

import argparse
import itertools
import json
import lzma
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks import bench_blind
from benchmarks.bench_experts import score
from benchmarks.bench_headroom import predicted_today, served_loads
from benchmarks.bench_headroom import read as read_loads
from benchmarks.bench_vllm import comparable, rows_of

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import TokonomicsError
from tokonomics.measure.measurements import Measurement, read_measurements
from tokonomics.measure.stated_setup import deployment_of, stated_deployment, steps_of
from tokonomics.measure.validate import impossible_rows, kind_of, value_of
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import EIGHTY_PERCENT, KNOWN, Kind, error_class, situation, weakest_badge
from tokonomics.physics.overhead import Overhead, overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.types import Badge, Speed

TWINS = (("H100-SXM", "H200"), ("B200", "B300"), ("B200", "GB200"))
"""Timed GPUs of one family; near twins, so a smaller sibling is taken to differ halfway to another family."""
SHORTEST_PREFILL = 512
"""Shorter prompts measure the launching host, not the GPU."""
LEAST_ROWS = 40
"""For percentiles that are not of one or two rows."""
LEAST_ROWS_OF_ERA = 30
LEAST_SOURCES = 4
"""For an error of one more source to be like theirs."""
COVERED = 0.8
BORROWED = 2.0
"""Combinations' worth of other eras in a situation: of 1, 2, 4 and 8, the one at which most situations cover 75 to 88 %
of what is left out of them."""
LEVELS = (0.3, 0.25, 0.2, 0.17, 0.15, 0.13, 0.12, 0.11, 0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
TIMED = ("A100-80GB", "H100-SXM", "L40S", "B200", "RTXPRO6000")
REAL = "a real vLLM on an H200"
NO_HOST = Overhead(
    since_version="0.0", since_year=0, step_s=0, sequence_s=0, overlapped=True, badge=Badge.assumed, source="none"
)
LOADS = tuple(itertools.product((1, 8, 64, 256), (512, 4096)))


class Ends(NamedTuple):
    """Of log(measured ÷ predicted) in a class."""

    low: float
    high: float
    n: int
    gpus: tuple[str, ...] = ()  # of a situation: what taught it


class Seen(NamedTuple):
    """An error, the combination it comes from, and what may be left out with it: its source, GPU and era."""

    error: float
    group: tuple[object, ...]
    left_out: tuple[object, ...]
    situation: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, nargs="+", required=True)
    parser.add_argument("--steps", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "src/tokonomics/physics/data/intervals.toml"
    )
    options = parser.parse_args()
    read = [row for path in options.published for row in read_measurements(path)]
    published = [row for row in read if isinstance(row, Measurement) and row.split == "calibrate"]
    impossible = impossible_rows(published)
    print(f"{len(impossible)} rows of sweeps that are faster than the datasheet allows teach nothing")
    rows = [(row, False) for row in published if row.key not in impossible]
    for path in options.steps:
        bare = [row for row in read_measurements(path) if isinstance(row, Measurement)]
        long = [row for row in bare if row.mode != "prefill_step" or row.input_tokens >= SHORTEST_PREFILL]
        rows += [(row, path == options.steps[0]) for row in long]
    rows += [(row, False) for row in real_loads()]
    classes: dict[str, list[Seen]] = defaultdict(list)
    for row, taught in rows:
        deployment = deployment_of(row)
        if deployment is None:
            continue
        # PyTorch's attention curve was fitted on the first file's steps: an engine's kernels judge them instead.
        steps = StepModel(deployment, NO_HOST) if taught else steps_of(row)
        badge = weakest_badge(deployment, steps.engine)
        name = error_class(kind_of(row), deployment, badge)
        try:
            error = math.log(row.value / value_of(row, steps))
        except TokonomicsError:  # does not fit, by our count
            continue
        era = (row.engine, (steps.engine.since_version, steps.engine.since_year) if steps.engine else ())
        group = (row.source, row.engine, row.year, row.model)
        named = situation(kind_of(row), deployment, badge, steps.engine) if steps.engine else ""
        classes[name].append(Seen(error, group, (row.source, deployment.gpu.key, era), named))
    for seen in served():
        classes[seen.situation.partition(" on ")[0]].append(seen)
    for name in list(classes):
        if (together := name.rpartition("-")[0]) and not name.endswith("assumed"):
            classes[together] += classes[name]
    text = ["# Made by benchmarks/fit_intervals.py; do not edit.", ""]
    sources = sorted({row.source for row, _ in rows})
    twins, strangers = _swapped(TWINS), _other_families()
    print(f"twins {twins:.3f}, families {strangers:.3f}")
    text += [
        f'source = "{"; ".join(sources)}"',
        f"scaled = {math.sqrt(twins * strangers):.3f}",
        f"assumed = {strangers:.3f}",
    ]
    ends = {name: found for name in ("step", "prefill") if (found := _ends(name, classes[name]))}
    for kind, family in itertools.product(("throughput", "tpot", "ttft"), ("dense", "moe")):
        ends |= _by_badge(f"{kind}-{family}", classes, strangers)
        ends |= _by_era(f"{kind}-{family}", classes, ends)
    for name, found in ends.items():
        text += ["", f'[classes."{name}"]', f"low = {found.low:.3f}", f"high = {found.high:.3f}", f"n = {found.n}"]
        text += [f"gpus = {json.dumps(found.gpus)}"] if found.gpus else []
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")


def real_loads() -> list[Measurement]:
    """Every figure of the loads of a real vLLM, each model a combination of its own.

    At a rate the throughput is the rate, and tells nothing of an error.
    """
    with lzma.open(Path(__file__).parent / "data" / "vllm_h200.json.xz", "rt") as file:
        sessions = {session["name"]: session for session in json.load(file)["sessions"]}
    rows = [
        row
        for name, session in sessions.items()
        for load in session["loads"]
        if comparable(name, load)
        for row in rows_of(name, session, load)
        if not (load["asked"]["rate"] and kind_of(row) == "throughput")
    ]
    return [row.model_copy(update={"source": REAL}) for row in rows]


def served() -> Iterator[Seen]:
    """Yield the errors of latencies of real vLLMs under the loads of ``bench_headroom`` and ``bench_blind``."""
    loads = [
        (
            stated_deployment(load.model, "H200", 1, 1, 1, 1, load.weights, None, "vllm"),
            load.measured,
            predicted_today(load),
        )
        for load in served_loads(read_loads())
    ]
    loads += [(load.deployment, load.measured, score(load)["predicted"]) for _, load, _ in bench_blind.served_loads()]
    for deployment, measured, predicted in loads:
        own = overhead(deployment.engine)
        badge = weakest_badge(deployment, own)
        era = (deployment.engine.key, (own.since_version, own.since_year))
        for figure, value in measured.items():
            kind: Kind = "ttft" if figure.startswith("TTFT") else "tpot"
            error = math.log(value / predicted[figure])
            group = (REAL, "rates", deployment.model.key)
            yield Seen(error, group, (REAL, "H200", era), situation(kind, deployment, badge, own))


def _by_badge(name: str, classes: dict[str, list[Seen]], strangers: float) -> dict[str, Ends]:
    """The ends of timed, scaled and assumed speeds: none narrower than one that is known better."""
    both = _ends(name, classes[name])
    assert both is not None
    timed, scaled, assumed = (_ends(f"{name}-{known}", classes[f"{name}-{known}"]) for known in KNOWN.values())
    timed, scaled = timed or both, scaled or both
    if timed.high - timed.low > scaled.high - scaled.low:
        timed = scaled = both
    if assumed is None:
        more = EIGHTY_PERCENT * strangers
        assumed = Ends(-math.hypot(both.low, more), math.hypot(both.high, more), both.n)
    scaled = Ends(min(timed.low, scaled.low), max(timed.high, scaled.high), scaled.n)
    assumed = Ends(min(scaled.low, assumed.low), max(scaled.high, assumed.high), assumed.n)
    return {f"{name}-timed": timed, f"{name}-scaled": scaled, f"{name}-assumed": assumed}


def _by_era(name: str, classes: dict[str, list[Seen]], generic: dict[str, Ends]) -> dict[str, Ends]:
    """The ends of each era of an engine with enough rows: none narrower than where it is known better.

    Nor is one wider than its class: then a few odd rows decide, and the class says more.
    """
    found: dict[str, Ends] = {}
    pools = {known: classes[name if known != Speed.assumed else f"{name}-{known}"] for known in KNOWN.values()}
    eras = sorted({each.situation.partition(" on ")[2] for pool in pools.values() for each in pool if each.situation})
    for era in eras:
        better: Ends | None = None
        for known, pool in pools.items():
            ends = generic[f"{name}-{known}"]
            own = [each for each in pool if each.situation == f"{name}-{known} on {era}"]
            if len(own) >= LEAST_ROWS_OF_ERA:
                narrow = _of_era(own, [each for each in pool if each.situation != own[0].situation])
                ends = narrow if narrow.high - narrow.low <= ends.high - ends.low else ends
            if better:
                ends = Ends(min(better.low, ends.low), max(better.high, ends.high), ends.n, ends.gpus)
            if ends != generic[f"{name}-{known}"]:
                found[f"{name}-{known} on {era}"] = better = ends
    return found


def _of_era(own: Sequence[Seen], others: Sequence[Seen]) -> Ends:
    """The ends of a situation: between them lie four of five errors of a model or a GPU left out of it."""
    parts = {each.group for each in own} | {each.left_out[1] for each in own}
    level, inside = LEVELS[-1], 0.0
    for level in LEVELS:
        held, weighed = 0.0, 0.0
        for part in parts:
            out = [each for each in own if part in (each.group, each.left_out[1])]
            kept = [each for each in own if part not in (each.group, each.left_out[1])]
            low, high = _mixed(kept, others, level)
            weights = _weights(out)
            held += sum(weight for each, weight in zip(out, weights, strict=True) if low <= each.error <= high)
            weighed += sum(weights)
        inside = held / weighed
        if inside >= COVERED:
            break
    print(f"{own[0].situation:48} n {len(own):5}: {level:.0%} beyond each end; of parts left out {inside:.0%} inside")
    return Ends(*_mixed(own, others, level), len(own), tuple(sorted({str(each.left_out[1]) for each in own})))


def _mixed(own: Sequence[Seen], others: Sequence[Seen], level: float) -> tuple[float, float]:
    """The percentiles of a situation's errors, with others that weigh as much as ``BORROWED`` of its combinations."""
    mine, borrowed = _weights(own), _weights(others)
    mean = sum(mine) / len({each.group for each in own}) if own else 1.0
    scale = BORROWED * mean / sum(borrowed) if others else 0.0
    return _percentiles([*own, *others], [*mine, *(scale * weight for weight in borrowed)], level)


def _ends(name: str, seen: Sequence[Seen]) -> Ends | None:
    """Of a class; None where it has too few rows or sources, or errors of what is left out are too often outside."""
    sources = {each.left_out[0] for each in seen}
    own = name.endswith(tuple(KNOWN.values()))
    if len(seen) < LEAST_ROWS or (own and len(sources) < LEAST_SOURCES):
        print(f"{name:28} n {len(seen):5}, sources {len(sources)}: too few")
        return None
    level, inside = _level(seen)
    print(f"{name:28} n {len(seen):5}: {level:.0%} beyond each end; of groups left out {inside:.0%} inside")
    return None if own and inside < COVERED else Ends(*_bounds(seen, level), len(seen))


def _level(seen: Sequence[Seen]) -> tuple[float, float]:
    """The share to leave beyond each end so that four of five errors of what is left out are inside; and how many."""
    inside = 0.0
    for level in LEVELS:
        held, weighed = 0.0, 0.0
        for kind in range(len(seen[0].left_out)):
            for part in {each.left_out[kind] for each in seen}:
                others = [each for each in seen if each.left_out[kind] != part]
                if len(others) < LEAST_ROWS:
                    continue
                low, high = _bounds(others, level)
                own = [each for each in seen if each.left_out[kind] == part]
                weights = _weights(own)
                held += sum(weight for each, weight in zip(own, weights, strict=True) if low <= each.error <= high)
                weighed += sum(weights)
        inside = held / weighed if weighed else 0.0
        if inside >= COVERED:
            return level, inside
        if not weighed:  # all of one source, GPU and era: its own four of five
            return (1 - COVERED) / 2, inside
    return LEVELS[-1], inside


def _bounds(seen: Sequence[Seen], level: float) -> tuple[float, float]:
    """The percentiles of the errors that leave so much beyond each end."""
    return _percentiles(seen, _weights(seen), level)


def _percentiles(seen: Sequence[Seen], weights: Sequence[float], level: float) -> tuple[float, float]:
    order = sorted(zip((each.error for each in seen), weights, strict=True))
    reached = np.cumsum([weight for _, weight in order])
    ends = [int(np.searchsorted(reached, share * reached[-1])) for share in (level, 1 - level)]
    low, high = (order[min(end, len(order) - 1)][0] for end in ends)
    return low, high


def _weights(seen: Sequence[Seen]) -> list[float]:
    """A group weighs as the root of its size."""
    sizes = Counter(each.group for each in seen)
    return [sizes[each.group] ** -0.5 for each in seen]


def _swapped(pairs: Sequence[tuple[str, str]]) -> float:
    """Spread of the step time when a GPU runs on its twin's curves, scaled by its own datasheet."""
    return _rms(
        _errors(find_gpu(own), find_gpu(own).model_copy(update={"key": find_gpu(other).key}))
        for pair in pairs
        for own, other in (pair, pair[::-1])
    )


def _other_families() -> float:
    """Spread of the step time when a timed GPU is predicted from another family, as an untimed one would be."""
    return _rms(
        _errors(gpu, gpu.model_copy(update={"key": "nobody-timed-it", "architecture": other.architecture}))
        for gpu, other in itertools.permutations((find_gpu(key) for key in TIMED), 2)
        if gpu.architecture != other.architecture
    )


def _errors(gpu: Gpu, stranger: Gpu) -> list[float]:
    found: list[float] = []
    for model in ("llama-3.1-8b", "llama-3.2-1b"):
        mine, theirs = (
            StepModel(
                Deployment(
                    model=find_model(model),
                    gpu=each,
                    engine=find_engine("vllm"),
                    weights=Precision.bf16,
                    kv=Precision.bf16,
                ),
                NO_HOST,
            )
            for each in (gpu, stranger)
        )
        found += [math.log(float(theirs.decode(*load)) / float(mine.decode(*load))) for load in LOADS]
        found += [math.log(float(theirs.prefill(n)) / float(mine.prefill(n))) for n in (512, 2048, 8192)]
    return found


def _rms(groups: Iterable[list[float]]) -> float:
    return math.sqrt(statistics.fmean(error**2 for group in groups for error in group))


if __name__ == "__main__":
    main()
