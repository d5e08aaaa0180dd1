"""A real vLLM on one GPU, without a network: fingerprints of builds that differ in one thing, and what each one holds.

    PYTHONPATH=src python benchmarks/measure_guard.py OUT GROUP LIMIT_S      # on a machine with a GPU and vLLM

All servers of a group are started together, as ``measure_levers`` starts them, with little KV each so that they fit;
they are fingerprinted in turns (``operate/fingerprint.py``, the product's own), twice those that repeat, and then the
highest rate of the same requests that meets the SLOs is measured on each, one after another (``operate/trial.py``).
Every fingerprint is a file of ``OUT``, as ``tokonomics guard`` keeps it; rates go to ``OUT/GROUP-rates.json`` after
each server, so that a run that is cut short keeps what it has. ``bench_guard.py`` scores them.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from benchmarks.guard_grid import GROUPS, SLO, requests
from benchmarks.measure_levers import FIRST_PORT, start, wait

from tokonomics.addresses import target
from tokonomics.operate.fingerprint import ProbedServer, fingerprints
from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.record import FlagTrial, save_record
from tokonomics.operate.trial import Played, measured, server_facts
from tokonomics.traffic.slo import parse_slos

READY_S = 240.0  # five servers that load at once were ready after 130 s (benchmarks/data/vllm_h200_flags.json.gz)
ROUNDS_S = 45.0  # a server's share of the time for one fingerprint: its probes in six rounds take about so long
GUESS = 17.5  # requests a second at which the same model served such requests (shared/reference/vllm-measured.md)


def main():
    out, group, limit_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    ends_s = time.time() + limit_s
    out.mkdir(parents=True, exist_ok=True)
    servers = GROUPS[group]
    processes = {each["name"]: (start(each, FIRST_PORT + at), FIRST_PORT + at) for at, each in enumerate(servers)}
    try:
        ready = wait(processes, READY_S)
        print("ready", ready, flush=True)
        here = [each for each in servers if each["name"] in ready]
        for each in here:
            port = processes[each["name"]][1]
            each["target"] = target(f"http://127.0.0.1:{port}")
        for turn in range(max(each.get("times", 1) for each in here)):
            turns = [each for each in here if turn < each.get("times", 1)]
            fingerprint(out, turns, turn)
        rates(out / f"{group}-rates.json", here, ends_s)
    finally:
        for process, _ in processes.values():
            os.killpg(process.pid, signal.SIGTERM)


def fingerprint(out, servers, turn):
    """Take one fingerprint of each server, in turns, and keep it."""
    began = time.time()
    marks = fingerprints(
        [ProbedServer(each["target"], "m") for each in servers],
        ROUNDS_S * 2 / 60,
        timeout_s=60,
        seed=turn + 1,
        doing=lambda line: None,
    )
    for each, mark in zip(servers, marks, strict=True):
        save_record(mark, out / f"{each['name']}-{turn + 1}.json")
    print(f"{[each['name'] for each in servers]}: {time.time() - began:.0f} s", flush=True)


def rates(path, servers, ends_s):
    """Measure the highest rate of each server, as long as time is left."""
    found = {}
    trace, slos = requests(), parse_slos(SLO)
    for each in servers:
        if ends_s - time.time() < 60:
            print("no time left for", each["name"], flush=True)
            break
        facts = server_facts(each["target"])
        trial = FlagTrial(flags=FlagSet(values={}), words=" ".join(each["flags"]), predicted=None, engine=facts)
        played = Played(each["target"], "m", trace, len(trace), slos, 60.0, 3, doing=lambda line: None)
        done = measured(trial, played, each.get("guess", GUESS), lambda trial: None)
        found[each["name"]] = {
            "rate": done.rate,
            "loads": [[load.rate, load.late] for load in done.loads if load.again is None],
            "flags": each["flags"],
        }
        path.write_text(json.dumps(found, indent=1))
        print(each["name"], done.rate, flush=True)


if __name__ == "__main__":
    main()
