"""Reduces a table of published serving results to what a prediction needs, and says which rows only judge.

    python benchmarks/reduce_published.py published_more.csv.gz benchmarks/data/published_more.csv.gz

A third of the groups of source, model, GPU and engine only judge (``split`` is ``judge``): nothing is fitted on them,
and no form of the model is chosen by them. Which group does is the rest of a hash of its names divided by three, so
that nobody chose. The others (``calibrate``) may be fitted on and looked at.
"""

import csv
import gzip
import hashlib
import io
import re
import sys
from pathlib import Path

KEPT = (
    "id", "model", "gpu", "num_gpus", "tp", "pp", "ep", "precision_weights", "precision_kv", "engine", "engine_version",
    "input_len", "output_len", "batch_or_concurrency", "num_requests", "mode", "metric", "value", "per", "source_name",
    "source_ref", "year", "split",
)  # fmt: skip
GROUP = ("source_name", "model", "gpu", "engine")
REQUESTS = re.compile(r"\b(\d+) (?:ShareGPT )?(?:prompts|requests)\b")
"""How many were sent, where the notes say so."""


def main(source: Path, reduced: Path) -> None:
    with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["split"] = split(row)
        found = REQUESTS.search(row["notes"])
        row["num_requests"] = found[1] if found else ""
    with (
        gzip.GzipFile(reduced, "wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        table = csv.DictWriter(text, KEPT, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    judging = sum(row["split"] == "judge" for row in rows)
    groups = {tuple(row[name] for name in GROUP): row["split"] for row in rows}
    print(
        f"{len(rows):,} rows, of which {judging:,} only judge: {list(groups.values()).count('judge')} of {len(groups)}"
    )


def split(row: dict[str, str]) -> str:
    """``judge`` for a third of the groups, ``calibrate`` for the others."""
    name = "|".join(row[part] for part in GROUP)
    return "calibrate" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 else "judge"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
