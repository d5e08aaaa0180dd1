"""A real vLLM on one GPU, without a network: fingerprints of builds that differ in one thing, and what each one holds.

    PYTHONPATH=src python benchmarks/measure_guard.py OUT start            # on a machine with a GPU and vLLM
    PYTHONPATH=src python benchmarks/measure_guard.py OUT marks LIMIT_S    # a fingerprint of each build, in turns
    PYTHONPATH=src python benchmarks/measure_guard.py OUT rates LIMIT_S    # the highest rate of each under the SLOs
    PYTHONPATH=src python benchmarks/measure_guard.py OUT alike LIMIT_S    # the base once more, as often as is asked

``start`` starts all builds of ``guard_grid`` side by side and leaves them running, as servers of their own session, so
that the other steps, and ``measure_twin``, can each be a command of its own. One server is measured at a time while the
others idle, with the product's own code: ``operate/fingerprint.py`` and ``operate/trial.py``. Every fingerprint is a
file of ``OUT``, as ``tokonomics guard`` keeps it; rates go to ``OUT/rates.json`` after each server, so that a step that
is cut short keeps what it has. ``bench_guard.py`` scores them.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from benchmarks.guard_grid import BUILDS, GUESSES, SLO, TIMES, requests
from benchmarks.measure_levers import FIRST_PORT, ROOT, start, wait

from tokonomics.addresses import target
from tokonomics.measure.bench.sessions import WORDS
from tokonomics.operate.fingerprint import ProbedServer, fingerprints
from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.record import FlagTrial, save_record
from tokonomics.operate.trial import Played, measured, server_facts
from tokonomics.traffic.slo import parse_slos

READY_S = 330.0  # five servers that load at once were ready after 130 s (benchmarks/data/vllm_h200_flags.json.gz)
MINUTES = 1.2  # for one fingerprint: its probes in five rounds take about so long
PORTS = {each["name"]: FIRST_PORT + place for place, each in enumerate(BUILDS)}


def start_all(out):
    """Start every build and wait until all answer; keep the log of one that does not."""
    begun = time.time()
    processes = {each["name"]: (start(each | {"spoken": WORDS}, PORTS[each["name"]]), PORTS[each["name"]])
                 for each in BUILDS}  # fmt: skip
    ready = wait(processes, READY_S)
    print("ready", {name: round(took) for name, took in ready.items()}, round(time.time() - begun), flush=True)
    for name in processes.keys() - ready.keys():
        text = (ROOT / f"{name}.log").read_text(errors="replace")
        (out / f"{name}.failed.txt").write_text(text[-20_000:])
        print(name, "did not come up:", text[-1500:], flush=True)
    if not ready:
        sys.exit(1)


def served(name):
    """Return where a build takes text: the tokenizer has no template for chats."""
    return target(f"http://127.0.0.1:{PORTS[name]}/v1/completions")


def up():
    """Return the names of the builds that answer."""
    return [name for name in PORTS if server_facts(served(name))]


def mark(out, names, number, minutes=MINUTES):
    """Take a fingerprint of each build, in turns, and keep it."""
    began = time.time()
    marks = fingerprints([ProbedServer(served(name), "m") for name in names], minutes, timeout_s=60, seed=number)
    for name, made in zip(names, marks, strict=True):
        save_record(made, out / f"{name}-{number}.json")
    print(f"{names} {number}: {time.time() - began:.0f} s", flush=True)


def rates(path, ends_s):
    """Measure the highest rate of each server, as long as time is left."""
    found = {}
    trace, slos = requests(), parse_slos(SLO)
    names = up()
    for each in BUILDS:
        name = each["name"]
        if name not in names:
            continue
        if ends_s - time.time() < 40:
            print("no time left for", name, flush=True)
            break
        began = time.time()
        facts = server_facts(served(name))
        trial = FlagTrial(flags=FlagSet(values={}), words=" ".join(each["flags"]), predicted=None, engine=facts)
        played = Played(served(name), "m", trace, len(trace), slos, 60.0, 3)
        done = measured(trial, played, GUESSES[name], lambda trial: None)
        loads = [[load.rate, load.late, load.failed] for load in done.loads if load.again is None]
        found[name] = {"rate": done.rate, "loads": loads, "flags": each["flags"]}
        path.write_text(json.dumps(found, indent=1))
        print(name, done.rate, loads, f"{time.time() - began:.0f} s", flush=True)


def main():
    out, step = pathlib.Path(sys.argv[1]), sys.argv[2]
    out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    ends_s = began + (float(sys.argv[3]) if len(sys.argv) > 3 else READY_S)
    if step == "start":
        start_all(out)
    elif step == "marks":
        names = up()
        mark(out, names, 1, min(MINUTES, (ends_s - began - 20) / 60 / max(1, len(names))))
    elif step == "rates":
        rates(out / "rates.json", ends_s)
    else:
        for number in range(2, TIMES + 1):
            if ends_s - time.time() > 60 * MINUTES + 10:
                mark(out, ["base"], number)


if __name__ == "__main__":
    main()
