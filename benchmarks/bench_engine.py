"""How far the simulator is from a real engine: prints the table and records it under benchmarks/results/.

    python benchmarks/bench_engine.py [LOG.json ...]

Step times are fitted on the closed runs and poisson-16 of data/h200_engine.json.gz (benchmarks/data/README.md); the
other runs of that log are predicted from their arrivals and lengths, and every run of the logs named, of the same
engine.
"""

import argparse
import json
import platform
from pathlib import Path

from tokonomics.measure.engine_log import read_engine_log
from tokonomics.measure.replay import Figure, Replay, replay
from tokonomics.report.validate_view import LABELS, replayed
from tokonomics.types import today

HERE = Path(__file__).parent
TARGETS = {Figure.output_tok_s: 0.03, Figure.tpot_p50_s: 0.10, Figure.ttft_p50_s: 0.20, Figure.ttft_p99_s: 0.20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path, help="more logs of the same engine")
    parser.add_argument("--steps-from", type=Path, default=HERE / "data" / "h200_engine.json.gz")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    options = parser.parse_args()
    fitted = read_engine_log(options.steps_from)
    results: dict[str, Replay] = {options.steps_from.name: replay(fitted, str(options.steps_from))}
    for path in options.logs:
        log = read_engine_log(path)
        results[path.name] = replay(log, str(path), source=fitted, of=str(options.steps_from))
    print(f"{'run':24} {'figure':16} {'measured':>10} {'predicted':>10} {'error':>8}  target")
    for result in results.values():
        for run in result.runs:
            for figure, pair in run.figures.items():
                if pair:
                    measured, predicted, error = replayed(figure, pair)
                    target = f"± {TARGETS[figure] * 100:.0f} %" if figure in TARGETS else "reported"
                    print(f"{run.run:24} {LABELS[figure]:16} {measured:>10} {predicted:>10} {error:>8}  {target}")
    record = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "make bench",
        "logs": {name: result.model_dump(mode="json") for name, result in results.items()},
    }
    if not options.logs:
        options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
