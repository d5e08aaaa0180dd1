"""Find the best flags in few trials: tune, Optuna and random search on a recorded grid of flag sets of a real vLLM.

    python -m benchmarks.bench_tune ask FOLDER     # predictions, before the run; FOLDER/jobs.json for measure_flags.py
    python -m benchmarks.bench_tune keep RAW...    # adds what the client recorded (measure_flags.py: GROUP.jsonl)
    python -m benchmarks.bench_tune                # prints the tables and records them; with Optuna if it is installed

What is asked is in `flag_grid`: 24 flag sets of two models under two traces. Every set runs on one GPU, so a dollar
buys as many tokens as the highest rate at which the targets are met. The truth of a cell is that rate, from all of its
loads: each says how late it was at its rate, and lateness rises with the rate by the power that the loads of its model
and trace show (`powers_of`). The predictions were committed before the run. A trial of a tuner reads one cell of the
grid; the first is always the set closest to the defaults. Optuna's TPE and random search get the same trials.
"""

import json
import lzma
import math
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from benchmarks.bench_blind import UNIFORM
from benchmarks.flag_grid import CAPTURED, KV_BYTES, MODELS, REQUESTS, SERVERS, SLOS, rows_of, sets_of, setup_of
from benchmarks.lever_grid import Json

from tokonomics.measure.validate import spearman
from tokonomics.operate.choose import Expected, believe, next_trial
from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.replay_rate import simulated_rate
from tokonomics.physics.intervals import EIGHTY_PERCENT, interval
from tokonomics.traffic.slo import parse_slos
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_tune.json.xz"
RECORD = HERE / "results" / "tune.json"


def ask(folder: Path) -> None:
    """Write every cell's prediction to DATA, and the jobs for the servers."""
    folder.mkdir(parents=True, exist_ok=True)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    predicted: dict[str, float] = {}
    jobs: Json = {"traces": {name: _trace(name) for name in SLOS}}
    for model in MODELS:
        cells = []
        for trace in SLOS:
            guess = 20.0
            for server, flags in sets_of(model):
                rate, _ = simulated_rate(setup_of(model, trace, flags), guess, REQUESTS[trace])
                sequences, tokens = (int(flags.values[name]) for name in ("max_sequences", "max_batched_tokens"))
                name = cell_name(model, trace, server, sequences, tokens)
                predicted[name] = guess = round(rate, 4)
                cells.append({"name": name, "server": server, "sequences": sequences, "tokens": tokens,
                              "graphs": CAPTURED, "trace": trace, "rate": rate})  # fmt: skip
        times = 2 if model == "experts" else 1
        warm = [{"server": name, "times": times, "trace": "assistants", "limit_s": 40} for name in SERVERS[model]]
        jobs[model] = {"servers": [_server(model, name) for name in SERVERS[model]], "warm": warm, "cells": cells}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    _write({"engine": "vllm 0.26.0", "gpu": "H200", "asked": today().isoformat(), "commit": head.stdout.strip(),
            "predicted": predicted, "measured": {}})  # fmt: skip
    print(f"{len(predicted)} cells predicted")


def cell_name(model: str, trace: str, server: str, sequences: int, tokens: int) -> str:
    return f"{model}, {trace}: {server}, {sequences} × {tokens}"


def _trace(name: str) -> Json:
    targets = {
        slo.latency.value: {"percentile": int(slo.statistic[1:]), "s": slo.seconds} for slo in parse_slos(SLOS[name])
    }
    return {"rows": rows_of(name), "slo": targets}


def _server(model: str, name: str) -> Json:
    server = SERVERS[model][name]
    flags = ["--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", str(KV_BYTES[model]), "--max-num-seqs",
             "256", "--max-num-batched-tokens", "8192", "--max-model-len", "16384", "--max-cudagraph-capture-size",
             str(CAPTURED), *server.get("flags", [])]  # fmt: skip
    made = {"name": name, "config": server["config"], "flags": flags, "env": UNIFORM if model == "experts" else {}}
    return made | ({"draft": server["draft"]} if "draft" in server else {})


# --- the truth --------------------------------------------------------------------------------------------------------

FAR_APART = 0.05  # of two loads of a cell, in the logarithm of their rates: nearer ones say little of a power
TRUSTED = 0.1  # lateness of a load scatters by about that much from one play to the next, in its logarithm
BROKEN_OFF = 0.25  # the weight of a load that was broken off, whose lateness is a lower bound


def keep(raw: list[Path]) -> None:
    """Add what the client recorded to DATA."""
    data = read()
    loads: dict[str, list[Json]] = {}
    for path in raw:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            late = row.get("q") or row.get("about")
            if "rows" in row and late and row["broken"] != "clock" and not row["compiled"]:
                told = {name: row[name] for name in ("rate", "ttft_s", "tpot_s", "broken")}
                columns = list(zip(*row["rows"], strict=True))  # one after the other, they pack into a quarter less
                loads.setdefault(row["name"], []).append({"late": late, **told, "columns": columns})
    _write(data | {"served": today().isoformat(), "measured": loads})
    print(f"{sum(map(len, loads.values()))} loads of {len(loads)} cells")


def powers_of(measured: dict[str, list[Json]]) -> dict[str, float]:
    """Return, for each model and trace, the median power of the rate by which lateness rises within a cell."""
    found: dict[str, list[float]] = {}
    for name, loads in measured.items():
        whole = [load for load in loads if not load["broken"]]
        for one, other in combinations(whole, 2):
            apart = math.log(one["rate"] / other["rate"])
            if abs(apart) >= FAR_APART:
                found.setdefault(name.split(":")[0], []).append(math.log(one["late"] / other["late"]) / apart)
    return {name: max(1.0, statistics.median(powers)) for name, powers in found.items()}


def truths(data: Json) -> dict[str, float]:
    """Return the rate that each cell holds."""
    powers, found = powers_of(data["measured"]), {}
    for name, loads in data["measured"].items():
        total = weights = 0.0
        for load in loads:
            weight = (BROKEN_OFF if load["broken"] else 1.0) / (TRUSTED**2 + math.log(load["late"]) ** 2)
            total += weight * (math.log(load["rate"]) - math.log(load["late"]) / powers[name.split(":")[0]])
            weights += weight
        found[name] = math.exp(total / weights)
    return found


def scatter_of(data: Json) -> dict[str, float]:
    """Return, for each model and trace, how much the loads of a cell differ in the rate they tell, as a deviation."""
    powers, found = powers_of(data["measured"]), dict[str, list[float]]()
    for name, loads in data["measured"].items():
        case = name.split(":")[0]
        told = [math.log(load["rate"]) - math.log(load["late"]) / powers[case] for load in loads if not load["broken"]]
        if len(told) > 1:
            mean = statistics.fmean(told)
            found.setdefault(case, []).append(sum((each - mean) ** 2 for each in told) / (len(told) - 1))
    return {case: math.sqrt(statistics.fmean(squares)) for case, squares in found.items()}


def known_by(loads: list[Json]) -> str:
    """Say how a cell's rate is known: between a rate that held and one that did not, or read off on one side."""
    late = {load["late"] > 1 for load in loads}
    return "between" if len(late) == 2 else "above" if late == {False} else "below"


# --- tuners on the recorded grid --------------------------------------------------------------------------------------

TRIALS, SEEDS = 6, 10
LOADS_OF_A_TRIAL = 2  # those between which a trial reads its rate: the chance of each is its own


def cases(data: Json) -> Iterator[tuple[str, list[FlagSet], list[float], list[float]]]:
    """Yield each model with a trace: its sets, the first nearest to the defaults, what was predicted, and the truth."""
    known = truths(data)
    for model in MODELS:
        for trace in SLOS:
            rows = []
            for server, flags in sets_of(model):
                limits = (int(flags.values[name]) for name in ("max_sequences", "max_batched_tokens"))
                name = cell_name(model, trace, server, *limits)
                if name in known:
                    rows.append((name, flags, data["predicted"][name], known[name]))
            rows.sort(key=lambda row: not row[0].endswith(": plain, 256 × 8192"))
            yield f"{model}, {trace}", [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows]


Measure = Callable[[int], float]
"""Takes the place of a set and returns what a trial measures of it: the truth with the scatter of a trial."""


def measuring(truth: list[float], scatter: float, seed: int) -> Measure:
    """Return trials whose rates scatter, each set's always by the same chance."""
    off = np.random.default_rng(seed).standard_normal(len(truth)) * scatter
    return lambda place: truth[place] * math.exp(off[place])


def tuned(sets: list[FlagSet], predicted: list[float], measure: Measure, shared: float) -> list[int]:
    """Return the places that ``tune`` tries, in order."""
    candidates = tuple(Expected(flags, flags.values, rate) for flags, rate in zip(sets, predicted, strict=True))
    measured: dict[int, float] = {0: measure(0)}
    while len(measured) < TRIALS:
        place = next_trial(candidates, measured, believe(candidates, measured, shared))
        if place is None:
            break
        measured[place] = measure(place)
    return list(measured)


def by_optuna(sets: list[FlagSet], measure: Measure, seed: int) -> list[int]:
    """Return the places that Optuna's TPE tries, told the first; a set that it asks for again costs no trial.

    It chooses a server (precisions and draft) and two limits, in octaves, so that every combination is a set.
    """
    import optuna  # type: ignore[import-not-found]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    limits = ("max_sequences", "max_batched_tokens")
    servers = [str({knob: value for knob, value in each.values.items() if knob not in limits}) for each in sets]
    steps = {knob: sorted({int(each.values[knob]) for each in sets}) for knob in limits}
    place_of = {
        (server, *(steps[knob].index(int(each.values[knob])) for knob in limits)): place
        for place, (server, each) in enumerate(zip(servers, sets, strict=True))
    }
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=2))
    first = next(key for key, place in place_of.items() if place == 0)
    study.enqueue_trial(dict(zip(("server", *limits), first, strict=True)))
    tried: list[int] = []
    for _ in range(400):
        trial = study.ask()
        server = trial.suggest_categorical("server", sorted(set(servers)))
        place = place_of[server, *(trial.suggest_int(knob, 0, len(steps[knob]) - 1) for knob in limits)]
        study.tell(trial, measure(place))
        if place not in tried:
            tried.append(place)
        if len(tried) == TRIALS:
            break
    return tried


def at_random(sets: list[FlagSet], seed: int) -> list[int]:
    """Return places drawn without regard to anything, after the first."""
    return [0, *(1 + np.random.default_rng(seed).permutation(len(sets) - 1)[: TRIALS - 1]).tolist()]


def lost(truth: list[float], tried: list[int], measure: Measure) -> float:
    """Return by how much a million tokens costs more than with the best set, with that which the trials say is best."""
    return max(truth) / truth[max(tried, key=measure)] - 1


def _write(data: Json) -> None:
    DATA.write_bytes(lzma.compress(json.dumps(data, separators=(",", ":")).encode(), preset=9))


def read() -> Json:
    found: Json = json.loads(lzma.decompress(DATA.read_bytes()))
    return found


def scored(data: Json) -> Iterator[Json]:
    """Yield, for each model and trace, how well the sets were predicted, and what each tuner finds in its trials."""
    scatters = scatter_of(data)
    for name, sets, predicted, truth in cases(data):
        model, trace = name.split(", ")
        unsure = interval(1.0, "throughput", setup_of(model, trace, sets[0]).deployment)
        shared = math.log(unsure.high / unsure.low) / 2 / EIGHTY_PERCENT
        off = [math.log(one / other) for one, other in zip(predicted, truth, strict=True)]
        bias = statistics.median(off)
        scatter = scatters[name] / math.sqrt(LOADS_OF_A_TRIAL)
        exact, seeds = measuring(truth, 0.0, 0), range(SEEDS)
        chances = [measuring(truth, scatter, seed) for seed in seeds]
        ours = tuned(sets, predicted, exact, shared)
        each = [tuned(sets, predicted, chance, shared) for chance in chances]
        known = [known_by(data["measured"][cell]) for cell in data["measured"] if cell.split(":")[0] == name]
        row: Json = {
            "case": name, "sets": len(sets), "rank": spearman(predicted, truth), "scatter": scatter,
            "off": statistics.median(map(abs, off)), "bias": bias,
            "apart": statistics.median(abs(value - bias) for value in off),
            "known": {how: known.count(how) for how in ("between", "above", "below")},
            "best": sets[truth.index(max(truth))].text, "found": sets[max(ours, key=exact)].text,
            "as_started": lost(truth, [0], exact),
            "first_ranked": max(truth) / truth[predicted.index(max(predicted))] - 1,
            "trials": len(ours), "exact": lost(truth, ours, exact),
            "tune_trials": [len(tried) for tried in each],
            "tune": [lost(truth, tried, chance) for tried, chance in zip(each, chances, strict=True)],
            "random": [lost(truth, at_random(sets, seed), chance) for seed, chance in zip(seeds, chances, strict=True)],
            "optuna": [lost(truth, by_optuna(sets, chance, seed), chance)
                       for seed, chance in zip(seeds, chances, strict=True)],
        }  # fmt: skip
        yield row


def main() -> None:
    data = read()
    rows = list(scored(data))
    loads = [load for found in data["measured"].values() for load in found]
    record = {
        "date": today().isoformat(), "machine": f"{platform.system()} {platform.machine()}",
        "command": "python -m benchmarks.bench_tune",
        **{name: data[name] for name in ("engine", "gpu", "asked", "served")},
        "cells": len(data["measured"]), "loads": len(loads), "cases": rows, "powers": powers_of(data["measured"]),
        "truth": truths(data), "predicted": data["predicted"],
    }  # fmt: skip
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['cells']} cells, {record['loads']} loads, served {record['served']}, predicted {record['asked']}")
    for row in rows:
        print(
            f"{row['case']}: rank correlation {row['rank']:.2f}, off {row['off']:.1%} (bias {row['bias']:+.1%}, "
            f"without it {row['apart']:.1%}); as started {row['as_started']:.1%} dearer; "
            f"trials scatter {row['scatter']:.1%}; cells known {row['known']}"
        )
        print(f"  tune, exact trials: {row['exact']:.1%} after {row['trials']} ({row['found']}; best {row['best']})")
        for name in ("tune", "optuna", "random"):
            print(
                f"  {name}: {statistics.mean(row[name]):.1%} on average, {max(row[name]):.1%} at worst, "
                f"{sum(share > 0.03 for share in row[name])} of {SEEDS} beyond 3 %"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["keep"]:
        keep([Path(name) for name in sys.argv[2:]])
    else:
        main()
