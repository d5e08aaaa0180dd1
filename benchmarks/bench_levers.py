"""Predict where each lever pays, then have a real vLLM serve the same loads with and without it, then compare.

    python -m benchmarks.bench_levers ask FOLDER     # the loads and predictions, before the run; FOLDER/jobs.json
    python -m benchmarks.bench_levers keep RAW...    # adds what the client recorded (measure_levers.py: GROUP.jsonl)
    python -m benchmarks.bench_levers                # prints the tables and records them

What is asked is in `lever_grid`, how it is scored in `lever_scores`. A cell's saving is of the GPU's time for a token
of the answers, so of dollars for it at whatever the GPU costs; where a lever is about latency, of that latency. The
simulator predicts both loads, whatever else it knows of the run: flags, the memory for KV, the acceptance set. There
are two predictions: *before* the run, as `ask` wrote and committed them, which nothing touches, and *today's*. Loads of
EAGLE-3 at acceptances of 0.3, 0.5 and 0.9 were served in a second run: vLLM's sampler ignored the rate in the first.
"""

import argparse
import gzip
import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import lever_scores
from benchmarks.lever_grid import BLOCK, GROUP_OF, KV_TOKEN_BYTES, SERVER, SERVERS, Json, cells, loads, seed_of
from benchmarks.lever_scores import NOTHING, SIDES, saving
from benchmarks.measure_levers import adapter_flags, with_limits

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Scales
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics.deployment import Deployment, DraftMethod, Speculation, acceptance_for
from tokonomics.physics.memory import kv_budget_bytes, shard
from tokonomics.physics.overhead import Overhead, overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.planner.parsing import draft_named
from tokonomics.serving.shared import SharedEngine, side_by_side
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.tiers import Tier, plan_fetches
from tokonomics.traffic.trace import PrefixBlocks, Trace, Turns
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_levers.json.gz"
RECORD = HERE / "results" / "levers.json.gz"
MOST_SEQUENCES, MOST_TOKENS = 1024, 8192
GAP_S = 30.0  # between two loads of which one finds what the other left in the cache
DISK_SPEEDS = "2.7/1.6"  # GB/s read and written by dd with O_DIRECT on that machine, before the run


# --- what is predicted ------------------------------------------------------------------------------------------------


@cache
def deployment_of(name: str, acceptance: float | None = None, adapters: int = 0) -> Deployment:
    """Return what a server ran, with the memory for KV that it was given."""
    server, experts = SERVER[name], name.startswith("ernie")
    model = "ernie-4.5-21b-a3b" if experts else "llama-3.1-8b"
    weights = "fp8" if experts else server.get("weights", "bf16")
    made = stated_deployment(model, "H200", 1, 1, 1, 1, weights, server.get("kv", "bf16"), "vllm")
    changes: Json = {}
    if experts:
        changes["model"] = made.model.model_copy(update={"fp8_scales": Scales.blocks})
    if drafts := server.get("drafts"):
        changes["speculation"] = _speculation(drafts, made, acceptance)
    if adapters:
        held = server["adapters"]
        changes |= {"lora_rank": held["rank"], "lora_adapters": held["count"], "lora_in_batch": float(adapters)}
    made = made.model_copy(update=changes)
    own = made.engine.defaults_on(made.gpu)
    kept = own.reserve_bytes + kv_budget_bytes(made) - server["kv_bytes"]
    limits = own.model_copy(update={"at_least_gib": 0, "reserve_bytes": kept})
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"defaults": (limits,)})})
    assert abs(kv_budget_bytes(made) / server["kv_bytes"] - 1) < 1e-3, "another memory for KV"
    return made


def _speculation(drafts: tuple[str, int], made: Deployment, acceptance: float | None) -> Speculation:
    method, tokens = drafts
    if method == "n-gram":
        return Speculation(method=DraftMethod.ngram, tokens=tokens, acceptance=acceptance or 0.0, draft_share=0.0)
    return draft_named(method, made.model, tokens, acceptance)


OWN_HOST_S = 5.7e-6
"""A small launch on the host that served the grid, placed so that the median of its five loads beyond their graphs
(graph sizes, 16 users and more) is as long as predicted; nothing timed it. Asynchronous scheduling had no say."""


def steps_of(server: Json, deployment: Deployment, launch_s: float | None = None) -> StepModel:
    """Return the steps of a server with its flags, on the default host or one that takes so long for a launch."""
    engine = overhead(deployment.engine)
    engine = engine.on_host(launch_s) if launch_s else engine
    changes: Json = {name: server[name] for name in ("graph_tokens", "overlapped") if name in server}
    changed: Overhead = engine.model_copy(update=changes)
    return StepModel(deployment, changed)


def trace_of(given: Sequence[Json]) -> tuple[Trace, list[tuple[int, int, Json]]]:
    """Return sessions as a trace, and the session, turn and request at each of its places."""
    rows: list[tuple[float, int, int, Json, int, list[tuple[int, int]]]] = []
    for place, session in enumerate(given):
        said: list[tuple[int, int]] = []
        for number, turn in enumerate(session["turns"]):
            new = [(seed, count) for seed, count in turn["new"]]
            prompt = said + new if session.get("carries") else new
            length = sum(count for _, count in prompt)
            said = [*prompt, (seed_of("answer", place, number, session["at"]), turn["out"])]
            rows.append((session["at"], place, number, turn, length, said if session.get("carries") else prompt))
    order = sorted(range(len(rows)), key=lambda row: (rows[row][0], rows[row][2], rows[row][1]))
    rows = [rows[row] for row in order]
    where = {(place, number): row for row, (_, place, number, *_) in enumerate(rows)}
    ids: dict[tuple[int, tuple[Any, ...]], int] = {}
    lists, waits, starts = [], [], [0]
    for _, place, number, _, _, tokens in rows:
        lists.append(_blocks(tokens, ids))
        waits += [where[place, number - 1]] if number else []
        starts.append(len(waits))
    prefix = PrefixBlocks(
        ids=np.array([each for listed in lists for each in listed], np.int32),
        starts=np.cumsum([0, *(len(listed) for listed in lists)]).astype(np.int64),
        block_tokens=BLOCK,
        distinct=len(ids),
    )
    turns = Turns(
        waits_for=np.array(waits, np.int32),
        starts=np.array(starts, np.int64),
        pause_s=np.array([row[3].get("pause", 0.0) if row[2] else 0.0 for row in rows]),
        session=np.array([row[1] for row in rows], np.int32),
    )
    priority = [row[3].get("priority", 0) for row in rows]
    trace = Trace(
        arrival_s=np.array([row[0] for row in rows]),
        input_tokens=np.array([row[4] for row in rows], np.int32),
        output_tokens=np.array([row[3]["out"] for row in rows], np.int32),
        priority=np.array(priority, np.int32) if any(priority) else None,
        prefix=prefix,
        turns=turns,
        source="the grid",
    )
    return trace, [(row[1], row[2], row[3]) for row in rows]


def _blocks(tokens: Sequence[tuple[int, int]], ids: dict[tuple[int, tuple[Any, ...]], int]) -> list[int]:
    """Return the whole blocks of a prompt: two are the same if they and all before them have the same tokens."""
    pieces = [(seed, place) for seed, count in tokens for place in range(0, count)]
    before, found = -1, []
    for start in range(0, len(pieces) - len(pieces) % BLOCK, BLOCK):
        block = pieces[start : start + BLOCK]
        key = (before, (block[0], block[-1], *(piece for piece in block if piece[1] == 0)))
        before = ids.setdefault(key, len(ids))
        found.append(before)
    return found


def _later(sessions: Sequence[Json], at_s: float, warm: bool = False) -> list[Json]:
    """Return the same sessions from then on; those of a load before the one in question (2) are not counted."""
    return [
        session
        | {"at": session["at"] + at_s}
        | {"turns": [turn | ({"warm": 2} if warm else {}) for turn in session["turns"]]}
        for session in sessions
    ]


def predict(load: Json, by_name: dict[str, Json], launch_s: float | None = None) -> Json:
    """Return what the simulator says of a load, on the default host or one that takes so long for a launch."""
    server = SERVER[load["server"]]
    if "level" in load:
        times = start_times()
        weights = shard(deployment_of(server["name"])).total
        gpu = find_gpu("H200")
        return {"sleep": times.sleep_s(weights, gpu), "wake": times.wake_s(weights, gpu)}
    adapters = len({turn["adapter"] for session in load["sessions"] for turn in session["turns"] if "adapter" in turn})
    acceptance = load.get("acceptance")
    if server["name"] == "n-grams" and (counted := read()["measured"].get(load["name"])):
        acceptance = acceptance_for(counted["tokens a round"], server["drafts"][1])  # how the texts repeat decides it
    deployment = deployment_of(server["name"], acceptance, adapters)
    if "beside" in load:
        return _side_by_side(load, deployment)
    sessions = load["sessions"]
    if "after" in load:  # its cache is as the load before it left it
        before = by_name[load["after"]]["sessions"]
        sessions = [*_later(before, 0.0, warm=True), *_later(sessions, GAP_S)]
    trace, rows = trace_of(sessions)
    made = _served(server, deployment, trace, launch_s)
    return _figures(made, rows) | _of_drafts(deployment)


def _served(server: Json, deployment: Deployment, trace: Trace, launch_s: float | None) -> Simulation:
    limits = {
        "max_sequences": server.get("sequences", MOST_SEQUENCES),
        "max_batched_tokens": server.get("chunk", MOST_TOKENS),
    }
    run = {"by_priority": trace.priority is not None, "steps": steps_of(server, deployment, launch_s), **limits}
    made = simulate(deployment, trace, **run)
    tiers = tiers_of(server)
    if not tiers:
        return made
    fetches, _ = plan_fetches(made, tiers)
    return simulate(deployment, trace, fetches=fetches, **run)


def tiers_of(server: Json) -> tuple[Tier, ...]:
    """Return the memories behind a server's GPU: DRAM at the speed of our table, the disk at its own."""
    from tokonomics.money.cache_tiers import parse_tiers

    if "dram_bytes" not in server:
        return ()
    known = deployment_of(server["name"])
    named = [f"dram={server['dram_bytes'] / 1e9:g}"]
    named += [f"ssd={server['disk_bytes'] / 1e9:g}:{DISK_SPEEDS}"] if "disk_bytes" in server else []
    return tuple(memory.tier for memory in parse_tiers(",".join(named), known, None))


def _of_drafts(deployment: Deployment) -> Json:
    drafts = deployment.speculation
    return {"tokens a round": drafts.tokens_per_round} if drafts else {}


def _figures(made: Simulation, rows: Sequence[tuple[int, int, Json]]) -> Json:
    places = np.arange(len(rows)) if made.sent is None else made.sent
    served = made.served
    found = [
        {"kind": turn.get("kind"), "warm": turn.get("warm", 0), "in": int(made.trace.input_tokens[place]),
         "out": turn["out"], "at": float(served.arrival_s[place]), "first": float(served.first_token_s[place]),
         "last": float(served.finish_s[place]), "found": int(served.cached_tokens[place])}
        for place, (_, _, turn) in enumerate(rows[each] for each in places)
    ]  # fmt: skip
    own = [row for row in found if row["warm"] < 2]
    share = sum(row["found"] for row in own) / sum(row["in"] for row in own)
    return figures_of(found) | {"found, with warm-up": share}


def _side_by_side(load: Json, deployment: Deployment) -> Json:
    """Return the figures of one of two servers on one GPU."""
    engines, rows = [], []
    for name, sessions in ((load["server"], load["sessions"]), (load["beside"], load["beside_sessions"])):
        trace, found = trace_of(sessions)
        engines.append(SharedEngine(deployment_of(name), replace(trace, turns=None), MOST_SEQUENCES))
        rows.append(found)
    return _figures(side_by_side(engines).engines[0], rows[0])


def figures_of(rows: Sequence[Json]) -> Json:
    """Sum up the requests that count of a load, simulated or measured."""
    counted = [row for row in rows if not row["warm"] and row["first"] is not None]
    wall_s = max(row["last"] for row in counted) - min(row["at"] for row in counted)
    tokens = sum(row["out"] for row in counted)
    first = [row["first"] - row["at"] for row in counted]
    each = [(row["last"] - row["first"]) / (row["out"] - 1) for row in counted if row["out"] > 1]
    found: Json = {
        "n": len(counted), "wall": wall_s, "time a token": wall_s / tokens, "TTFT": float(np.percentile(first, 90)),
        "TTFT p50": float(np.percentile(first, 50)), "TPOT": float(np.percentile(each, 99)),
        "TPOT p50": float(np.percentile(each, 50)),
    }  # fmt: skip
    if all("found" in row for row in counted):
        found["found"] = sum(row["found"] for row in counted) / sum(row["in"] for row in counted)
    kinds = {row.get("kind") for row in counted}
    if kinds == {0, 5}:
        people = [row["first"] - row["at"] for row in counted if row["kind"] == 0]
        batch = [row["last"] - row["at"] for row in counted if row["kind"] == 5]
        found |= {"people's TTFT": float(np.percentile(people, 90)), "batch's time": statistics.mean(batch)}
    return found


# --- before and after the run -----------------------------------------------------------------------------------------


def ask(folder: Path) -> None:
    """Write every load's prediction to DATA, and the jobs for the servers."""
    folder.mkdir(parents=True, exist_ok=True)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    made = list(loads())
    by_name = {load["name"]: load for load in made}
    assert len(by_name) == len(made), "two loads with one name"
    named = {cell["load"] for cell in cells()} | {cell["without"] for cell in cells()} - {None}
    assert named <= set(by_name), named - set(by_name)
    jobs: Json = {group: {"servers": list(servers), "loads": []} for group, servers in SERVERS.items()}
    for load in made:
        jobs[GROUP_OF[load["server"]]]["loads"].append(load)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    predicted = {load["name"]: predict(load, by_name) for load in made if not load.get("drop")}
    _write({"engine": "vllm 0.26.0", "gpu": "H200", "asked": today().isoformat(), "commit": head.stdout.strip(),
            "predicted": predicted, "measured": {}})  # fmt: skip
    for cell in cells():
        print(f"{cell['lever']:24}{cell['at']!s:70}{_percent(saving(cell, predicted))}")
    for group, job in jobs.items():
        needs = sum(predicted[load["name"]].get("wall", 3.0) for load in job["loads"] if load["name"] in predicted)
        print(f"{group}: {len(job['loads'])} loads, some {needs:.0f} s")


def _write(data: Json) -> None:
    with gzip.GzipFile(DATA, "wb", mtime=0) as file:
        file.write(json.dumps(data, separators=(",", ":")).encode())


def read() -> Json:
    """Return what was predicted and measured."""
    with gzip.open(DATA, "rt") as file:
        found: Json = json.load(file)
    return found


def keep(files: Sequence[Path]) -> None:
    """Add the figures of what was measured, without touching what was predicted."""
    data, by_name = read(), {load["name"]: load for load in loads()}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "name" not in row or row.get("failed") or row.get("errors"):
                continue
            load = by_name[row["name"]]
            if "slept" in row:
                each = row["slept"]
                found = {figure: statistics.median(one[f"{figure}_s"] for one in each) for figure in ("sleep", "wake")}
            else:
                turns = [load["sessions"][session]["turns"][number] for session, number, *_ in row["rows"]]
                names = ("warm", "in", "out", "at", "first", "last")
                rows = [dict(zip(names, each[2:], strict=True)) | {"kind": turn.get("kind")}
                        for each, turn in zip(row["rows"], turns, strict=True)]  # fmt: skip
                assert all(each["out"] == turn["out"] for each, turn in zip(rows, turns, strict=True)), row["name"]
                found = figures_of(rows) | _counted(row["counters"], rows)
            data["measured"][row["name"]] = found
    _write(data | {"served": today().isoformat()})


def _counted(counters: Json, rows: Sequence[Json]) -> Json:
    """Return shares of prompt tokens found and tokens a round, as the server counted them over a whole load.

    Prompts that wait for a look-up are asked for again and again, and each time counted among vLLM's queries and hits.
    """
    said = {name.removeprefix("vllm:").removesuffix("_total"): value for name, value in counters.items()}
    found: Json = {}
    if said.get("prefix_cache_queries"):
        asked = sum(row["in"] for row in rows)
        loaded = said.get("kv_offload_load_bytes", 0.0)
        found |= {
            "found": said["prompt_tokens_cached"] / asked,
            "found behind": loaded / KV_TOKEN_BYTES / asked,
            "with warm-up": any(row["warm"] for row in rows),
        }
        if loaded:
            found["loaded bytes/s"] = loaded / said["kv_offload_load_time"]
    if rounds := said.get("spec_decode_num_drafts"):
        found["tokens a round"] = 1 + said["spec_decode_num_accepted_tokens"] / rounds
    return found


def _percent(share: float | None) -> str:
    return "     –" if share is None else f"{share:+6.1%}"


# --- the score --------------------------------------------------------------------------------------------------------


def score() -> None:
    """Print both predictions against what was measured, and record them."""
    data, made = read(), list(loads())
    by_name, measured = {load["name"]: load for load in made}, data["measured"]
    predicted = {"before": data["predicted"], "today": {name: predict(by_name[name], by_name) for name in measured}}
    rows = [row | {"sent": _sent(by_name[row["load"]])} for row in lever_scores.scored_cells(measured, predicted)]
    sums, turns = lever_scores.by_lever(rows), lever_scores.boundaries(rows)
    own = {name: predict(by_name[name], by_name, OWN_HOST_S) for name in measured}
    on_own = lever_scores.by_lever(lever_scores.scored_cells(measured, {"before": own, "today": own}))
    drafts = lever_scores.draft_errors(rows, measured, predicted)
    hits = lever_scores.hit_shares(rows, measured, predicted)
    unscored = [cell for cell in cells() if saving(cell, measured) is None]
    seconds = [
        {"lever": cell["lever"], "figure": cell["figure"], "measured": measured[cell["load"]][cell["figure"]],
         **{side: predicted[side][cell["load"]][cell["figure"]] for side in SIDES}}
        for cell in unscored if not cell["without"]
    ]  # fmt: skip
    record = {
        "date": today().isoformat(), "machine": f"{platform.system()} {platform.machine()}",
        "command": "python -m benchmarks.bench_levers",
        **{name: data[name] for name in ("engine", "gpu", "asked", "commit", "served")}, "nothing": NOTHING,
        "sums": sums, "own_host_us": OWN_HOST_S * 1e6,
        "own_host": {lever: found["today"] for lever, found in on_own.items()},
        "boundary_sums": lever_scores.sums_of_boundaries(turns),
        "draft_sums": lever_scores.sums_of_drafts(drafts), "hit_sums": lever_scores.sums_of_hits(hits),
        "servers": [_said(server) for server in SERVER.values()],
        "seconds": seconds, "not_served": [cell["load"] for cell in unscored if cell["without"]],
        "boundaries": turns, "drafts": drafts, "hits": hits, "cells": rows,
    }  # fmt: skip
    _print(record)
    lines = [f"{json.dumps(name)}: {_rows(value)}" for name, value in record.items()]
    RECORD.write_bytes(gzip.compress(("{\n" + ",\n".join(lines) + "\n}\n").encode(), 9, mtime=0))


def _rows(value: Any) -> str:
    """Return JSON with a line for each row of a list."""
    short = json.loads(json.dumps(value), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    if not isinstance(short, list):
        return json.dumps(short, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in short) + "\n]"


def _sent(load: Json) -> Json:
    """Return how many sessions and requests a load has, and the least and most tokens of prompts and answers."""
    turns = [turn for session in load["sessions"] for turn in session["turns"] if not turn.get("warm")]
    trace, rows = trace_of(load["sessions"])
    lengths = trace.input_tokens.tolist()
    prompts = [length for length, (*_, turn) in zip(lengths, rows, strict=True) if not turn.get("warm")]
    answers = [turn["out"] for turn in turns]
    sessions = [session for session in load["sessions"] if any(not turn.get("warm") for turn in session["turns"])]
    return {"sessions": len(sessions), "requests": len(turns),
            "in": [min(prompts), max(prompts)], "out": [min(answers), max(answers)]}  # fmt: skip


def _said(server: Json) -> Json:
    """Return what a server is started with."""
    adapters = server.get("adapters")
    flags = [*server["flags"], *(adapter_flags(**adapters, folder="{adapter}") if adapters else [])]
    named = "ernie-4.5-21b-a3b" if server["name"].startswith("ernie") else "llama-3.1-8b"
    return {"name": server["name"], "group": GROUP_OF[server["name"]], "model": named, "env": server.get("env", {}),
            "quantised": "quantization_config" in server["config"], "flags": with_limits(flags)}  # fmt: skip


def _print(record: Json) -> None:
    print(f"{'lever':24}{'figure':14}{'at':58}measured  before   today")
    for row in record["cells"]:
        shown = "".join(f"{_percent(row[name])}{' ' if row['right'].get(name, True) else '!'} " for name in
                        ("measured", *SIDES))  # fmt: skip
        at = ", ".join(f"{name} {place}" for name, place in row["at"].items())
        print(f"{row['lever']:24}{row['figure']:14}{at:58}{shown}{'  apart' if row['apart'] else ''}")
    print(
        f"\n! a wrong sign. Apart: {'; '.join(dict.fromkeys(row['apart'] for row in record['cells'] if row['apart']))}"
    )
    print(f"not served: {', '.join(record['not_served']) or 'none'}\n")
    print(
        "lever                   cells  saving | before, today: signs right, median points off where it saves, of all"
    )
    for lever, sums in record["sums"].items():
        shown = " | ".join(
            f"{sums[side]['right']:4} {_points(sums[side]['off_where_saving'])} {_points(sums[side]['off'])}"
            for side in SIDES
        )
        own = record["own_host"][lever]
        shown += f" | on its host {own['right']:4} {_points(own['off_where_saving'])} {_points(own['off'])}"
        print(f"{lever:24}{sums['cells']:5}{sums['saving']:8} | {shown}")
    print("\nwhere it turns: measured, before, today (steps of the grid off)")
    for row in record["boundaries"]:
        fixed = ", ".join(f"{name} {place}" for name, place in row["fixed"].items())
        said = "".join(
            f"{row['text'][side]} ({steps})".ljust(20) for side, steps in zip(SIDES, row["steps"], strict=True)
        )
        series = f"{row['lever']}, {row['figure']}, {fixed}, along {row['axis']}"
        print(f"{series:76}{row['what']:6}{row['text']['measured']:14}{said}{' turns again' if row['again'] else ''}")
    print(f"\nboundaries: {record['boundary_sums']}")
    print(f"drafts, relative errors: {json.dumps(record['draft_sums'])}")
    print(f"shares of prompts found, off in points: {json.dumps(record['hit_sums'])}")
    for row in record["seconds"]:
        print(f"{row['lever']}, {row['figure']}: {row['measured']:.2f} s measured, {row['before']:.2f} before, "
              f"{row['today']:.2f} today")  # fmt: skip


def _points(share: float | None) -> str:
    return "    –" if share is None else f"{share * 100:5.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["ask", "keep", "score"], default="score")
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.what == "ask":
        ask(asked.files[0])
    elif asked.what == "keep":
        keep(asked.files)
    else:
        score()
