"""Reduces a table of published serving results to what a prediction needs, and says which rows only judge.

    python benchmarks/reduce_published.py published_more.csv.gz benchmarks/data/published_more.csv.gz

Rows of a table that has a column ``split`` keep it, but for those of ``TAUGHT`` marked ``dev``. Of others, a third of
the groups of source, model, GPU and engine only judge (``split`` is ``judge``): nothing is fitted on them, and no form
of the model is chosen by them. Which group does is the rest of a hash of its names divided by three, so that nobody
chose. The others (``calibrate``) may be fitted on and looked at. A group that judges by its hash but has rows to fit on
under another spelling, or in the first table, is only looked at (``dev``).
"""

import csv
import gzip
import hashlib
import io
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tokonomics.catalog.gpus import find_gpu
from tokonomics.errors import TokonomicsError
from tokonomics.measure.stated_setup import engine_named, model_named

FIRST = Path(__file__).parent / "data" / "published.csv.gz"

KEPT = (
    "id", "model", "gpu", "num_gpus", "tp", "pp", "ep", "precision_weights", "precision_kv", "engine", "engine_version",
    "input_len", "output_len", "length_spread", "batch_or_concurrency", "num_requests", "mode", "metric",
    "statistic", "value", "per", "draft", "accepted_length", "source_name", "source_ref", "year", "split",
)  # fmt: skip
GROUP = ("source_name", "model", "gpu", "engine")
TAUGHT = ("GPT-OSS", "H200", "tensorrt-llm")
"""Model, GPU and engine of rows that the first table marks ``dev``: no other row tells what TensorRT-LLM 1.0 takes to
launch experts in 16 bits, so they taught it."""
APART = re.compile(r"decode (\d+)x\(tp(\d+),dp(\d+),ep(\d+)\)")
"""Of disaggregated serving: how many replicas decode, and the ranks of each; the row becomes theirs."""
MEANS = re.compile(r"mean ISL~(\d+) OSL~(\d+)")
"""Lengths of requests that follow a dataset, where the source's own throughputs tell them."""
DATASETS = {
    "long-context QA mix": "9400",
    "CNN-DailyMail, OSL<=128": "778",
}
"""Mean prompt of MLPerf's datasets, in tokens, as MLCommons states it where it introduces them (Llama 3.1 405B:
mlcommons.org/2025/04/llm-inference-v5; Llama 3.1 8B: mlcommons.org/2025/09/small-llm-inference-5-1)."""
WHOLE = "request-latency/token"
"""Where a time per token is that of the whole request, with its prompt and the gateway before the server."""
REPLICAS = re.compile(r"(\d+) replicas of TP")
"""Of a static batch that the source states for each of them."""
VARIED = re.compile(r"means of actual totals|ShareGPT|mean lengths from dataset|lengths \(not fixed\)")
"""Where lengths are the means of requests of every length: drawn evenly from none to what was asked for, or a
dataset's, which spread as widely."""
MEDIAN = re.compile(r"; median$|\bmedian_t(?:tft|pot)_ms\b")
"""Where a time is the median of the requests'; sources that do not say are taken to mean the mean."""
QUEUED = {
    ("128", "128"): "30000", ("128", "2048"): "3000", ("128", "4096"): "1500", ("500", "2000"): "3000",
    ("1000", "1000"): "3000", ("1000", "2000"): "1500", ("2048", "128"): "3000", ("2048", "2048"): "1500",
    ("5000", "500"): "1500", ("20000", "2000"): "1000", ("1024", "1024"): "3000", ("8192", "1024"): "1500",
    ("1024", "8192"): "1500", ("32768", "1024"): "1000", ("1024", "32768"): "1000",
}  # fmt: skip
"""How many requests of each pair of lengths TensorRT-LLM's tables of the highest throughput queued at once (its
``perf-overview.md``, "Preparing a Dataset")."""
SHARED = "attention DP but not the value"
"""Of TensorRT-LLM 1.0's tables of mixtures of experts: their options file turns data-parallel attention on, and what is
printed as TP is the number of GPUs that share the experts (the tables of 1.2 print the same as DEP)."""
DRAFTED = "SPECULATIVE DECODING ON"
"""Of SGLang's cookbook, DeepSeek V3 at one request at a time: three tokens a round in one chain of its own module, and
an accepted length of 2.61 (DeepSeek-V3.md, section 5.1.1, in sgl-project/sgl-cookbook, commit 36c07b43)."""
REQUESTS = re.compile(r"\b(\d+) (?:ShareGPT )?(?:prompts|requests)\b")
"""How many were sent, where the notes say so."""


def main(source: Path, reduced: Path) -> None:
    with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with gzip.open(FIRST, "rt", encoding="utf-8", newline="") as file:
        before = {same(row) for row in csv.DictReader(file) if row["split"] == "calibrate"}
    before |= {same(row) for row in rows if split(row) == "calibrate"}
    for row in rows:
        row["split"] = "dev" if split(row) == "judge" and same(row) in before else split(row)
        found = REQUESTS.search(row["notes"])
        row["num_requests"] = found[1] if found else queued(row)
        row["length_spread"] = "0.99" if VARIED.search(row["notes"]) else ""
        row["statistic"] = "median" if MEDIAN.search(row["notes"]) else ""
        row["draft"], row["accepted_length"] = ("mtp:3", "2.61") if DRAFTED in row["notes"] else ("", "")
        row.update(lengths(row), **decoding(row))
        if SHARED in row["notes"]:
            row.update(tp="1", ep=row["tp"])
        if WHOLE in row["notes"]:
            row["metric"] = "latency_per_token_ms"  # not the time between tokens: no row of it is predicted
        if (of := REPLICAS.search(row["notes"])) and row["mode"] == "fixed_batch":
            row["batch_or_concurrency"] = str(int(of[1]) * int(row["batch_or_concurrency"]))
    with (
        gzip.GzipFile(reduced, "wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        table = csv.DictWriter(text, KEPT, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    judging = sum(row["split"] == "judge" for row in rows)
    groups = {tuple(row[name] for name in GROUP): row["split"] for row in rows}
    only = f"{list(groups.values()).count('judge')} of {len(groups)} groups"
    print(f"{len(rows):,} rows; {judging:,} of them, {only}, only judge")
    for name, count in Counter(row["source_name"] for row in rows).most_common():
        print(f"{count:6,} {name}")


def lengths(row: dict[str, str]) -> dict[str, str]:
    """Of a dataset's requests, where the row states none but the notes do."""
    if row["input_len"]:
        return {}
    if told := MEANS.search(row["notes"]):
        return {"input_len": told[1], "output_len": row["output_len"] or told[2]}
    return {"input_len": next((mean for name, mean in DATASETS.items() if name in row["notes"]), "")}


def queued(row: dict[str, str]) -> str:
    """How many requests waited when a run of the highest throughput began, where the source says so."""
    if row["mode"] != "max_throughput" or "TensorRT-LLM perf-overview" not in row["source_name"]:
        return ""
    return QUEUED.get((row["input_len"].removesuffix(".0"), row["output_len"].removesuffix(".0")), "")


def decoding(row: dict[str, str]) -> dict[str, str]:
    """The GPUs that decode, of a row whose prompts others prefill; ``ep`` above ``tp`` says that ``dp`` share."""
    if not (told := APART.search(row["notes"])):
        return {}
    workers, tp, dp, ep = map(int, told.groups())
    return {"num_gpus": str(workers * tp * dp), "tp": str(tp), "ep": str(max(ep, tp * dp) if dp > 1 else ep)}


def same(row: dict[str, str]) -> tuple[str, ...]:
    """A group by our names for its model, GPU and engine, where we know them."""
    model, gpu, engine = row["model"], row["gpu"], row["engine"]
    with suppress(TokonomicsError):
        model = model_named(model).key
    with suppress(TokonomicsError):
        gpu = find_gpu(gpu).key
    with suppress(TokonomicsError):
        engine = engine_named(engine).key
    return row["source_name"], model, gpu, engine


def split(row: dict[str, str]) -> str:
    """``judge`` for a third of the groups, ``calibrate`` for the others; as the table has it, where it does."""
    model, gpu, engine = TAUGHT
    if given := row.get("split"):
        taught = row["model"].startswith(model) and row["gpu"].startswith(gpu) and row["engine"] == engine
        return "calibrate" if taught and given == "dev" else given
    name = "|".join(row[part] for part in GROUP)
    return "calibrate" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 else "judge"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
