"""How far step times are off with and without a probed profile, on an H200; and the loop through a real engine.

    python benchmarks/bench_profile.py

First: whole steps of models, batches and contexts that the probe did not time, predicted with the curves we ship and
with those of ``results/h200-profile.json``. Then the loop: a real engine was loaded on the H200 (``end_to_end.py``),
every second load taught, the others were predicted. Prints tables and writes ``results/profile.json``; the data:
data/README.md. The profile: ``tokonomics calibrate --probe --from timings.json``, timed on the H200 on 2026-11-15.
"""

import argparse
import json
import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokonomics.errors import TokonomicsError
from tokonomics.measure.calibrate import GroupResult, calibrate, errors, held_out_loads, load_of
from tokonomics.measure.evidence import read_evidence
from tokonomics.measure.importers.recognise import read_run
from tokonomics.measure.measurements import Measurement, Metric, Mode, read_measurements
from tokonomics.measure.priced_run import GivenMachine, MeasuredMachine, measurements_of
from tokonomics.measure.validate import predict
from tokonomics.physics.calibration import Profile, read_profile, using
from tokonomics.types import today

HERE = Path(__file__).parent
PROFILE = HERE / "results" / "h200-profile.json"
STEPS = {
    "contexts of 1,000 and 3,000 tokens": HERE / "data" / "h200_held_out_steps.json",
    "contexts of 512 to 8,192, whole tiles": HERE / "data" / "h200_more_steps.json",
}
WARM, COLD, FIRST, THIRD, MORE = (
    HERE / "data" / f"h200_transformers{name}.json" for name in ("", "_cold", "_first", "_third", "_third_more")
)
RUNS = {
    "third run, all twelve loads, warmed up, whole rounds": (THIRD, MORE),
    "second run, its nine warm loads": (WARM,),
    "second run, with the three that met new shapes": (WARM, COLD),
    "first run, ten loads met cold": (FIRST,),
}
"""Loads that meet an engine's shapes for the first time wait 50 to 100 ms for each: they are no steady state."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "profile.json")
    out = parser.parse_args().out
    profile = read_profile(PROFILE)
    found: dict[str, Any] = {
        "date": today().isoformat(),
        "command": "python benchmarks/bench_profile.py",
        "python": platform.python_version(),
        "steps": {name: steps([path], profile) for name, path in STEPS.items()}
        | {"both": {name: step for name, step in steps(list(STEPS.values()), profile).items() if "all" in name}},
        "loop": {name: loop(paths) for name, paths in RUNS.items()},
    }
    show(found)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def steps(paths: Sequence[Path], profile: Profile) -> dict[str, dict[str, object]]:
    """Errors by kind and model: with the curves we ship, and with the probed ones."""
    rows = [row for path in paths for row in read_measurements(path) if isinstance(row, Measurement)]
    errors: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        kind = "prefill" if row.mode is Mode.prefill_step else "decode"
        for name, used in (("shipped", None), ("probed", profile)):
            with using(used):
                said = predict(row)
            if not isinstance(said, str):
                for model in (row.model, "all"):
                    errors[kind, model][name].append(said.error)
    return {f"{kind}, {model}": scores(kinds) for (kind, model), kinds in sorted(errors.items())}


def scores(kinds: dict[str, list[float]]) -> dict[str, object]:
    made: dict[str, object] = {"n": len(kinds["shipped"])}
    for name in ("shipped", "probed"):
        sizes = sorted(map(abs, kinds[name]))
        made[name] = {
            "median": statistics.median(sizes),
            "p90": sizes[math.ceil(0.9 * len(sizes)) - 1],
            "bias": statistics.median(kinds[name]),
        }
    return made


def loop(paths: Sequence[Path]) -> dict[str, object]:
    """Predict, calibrate on every second load, predict the others."""
    evidence = read_evidence(paths, GivenMachine(gpu="H200", engine="vllm"), "bench")
    try:
        group = calibrate(evidence, made=today(), command="bench", name="bench").groups[0]
    except TokonomicsError as error:
        return {"refused": error.what}
    made: dict[str, object] = {"loads": group.loads, "taught": group.taught, "judged": group.judged}
    made["doubts"] = list(group.doubts)
    made["dropped"] = list(group.dropped)
    made["held_out"] = [each.model_dump() for each in group.held_out]
    made["learned_on_half"] = group.correction.model_dump(mode="json", include=NUMBERS) if group.correction else None
    made["throughput_as_counted"] = as_counted(paths, group)
    return made


NUMBERS = {"decode", "prefill", "step_s", "sequence_s"}


def as_counted(paths: Sequence[Path], group: GroupResult) -> dict[str, float] | None:
    """Held-out throughput as the run's window counted it, not by Little's law."""
    if group.correction is None:
        return None
    machine = MeasuredMachine(gpu="H200", gpus=1, tp=1)
    rows = [row for path in paths for row in measurements_of(read_run(path), machine)]
    apart = held_out_loads((load_of(row) for row in rows), 0.5)
    judging = [row for row in rows if load_of(row) in apart and row.metric is Metric.output_tok_s]
    return {
        "before": statistics.median(map(abs, errors(judging, None))),
        "after": statistics.median(map(abs, errors(judging, group.correction))),
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['date']}: median size of log(predicted ÷ measured), and its median sign\n")
    print(f"{'steps on one H200':<40}{'n':>4}{'shipped':>18}{'probed':>18}{'p90':>7}")
    for name, rows in found["steps"].items():
        print(name)
        for what, score in rows.items():
            cells = [f"{score[each]['median']:.1%} ({score[each]['bias']:+.1%})" for each in ("shipped", "probed")]
            line = f"  {what:<38}{score['n']:>4}{cells[0]:>18}{cells[1]:>18}"
            print(f"{line}{score['probed']['p90']:>7.1%}")
    print("\nthe loop: transformers' continuous batching on one H200, Llama-3.1-8B, 512 in / 64 out; held-out loads")
    for name, run in found["loop"].items():
        if "refused" in run:
            print(f"  {name}: {run['refused']}")
            continue
        print(f"  {name}: {run['taught']} taught, {run['judged']} judged; learned {run['learned_on_half']}")
        for each in run["held_out"]:
            print(f"    {each['figure']:<24}{each['n']:>3}{each['before']:>10.3f} → {each['after']:.3f}")
        counted = run["throughput_as_counted"]
        if counted:
            print(f"    {'throughput as counted':<24}{'':>3}{counted['before']:>10.3f} → {counted['after']:.3f}")


if __name__ == "__main__":
    main()
