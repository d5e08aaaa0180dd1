"""What a vector index takes: processor time of a look-up and of an entry, and memory beyond the vectors, by its size.

    python benchmarks/bench_vector_index.py [--sizes 1000,4000,16000] [--width 384]

Random directions are the hardest case for a graph of neighbours: texts lie closer together. The index is the one of
``tokonomics cache --semantic`` (usearch, 16 links an entry). Writes ``benchmarks/results/vector_index.json``.
"""

import argparse
import datetime as dt
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from usearch.index import Index

RESULT = Path(__file__).parent / "results" / "vector_index.json"
SEARCHES = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,4000,16000")
    parser.add_argument("--width", type=int, default=384, help="of all-MiniLM-L6-v2 and other small models")
    options = parser.parse_args()
    sizes = sorted(int(size) for size in options.sizes.split(","))
    vectors = np.random.default_rng(0).normal(size=(sizes[-1] + SEARCHES, options.width)).astype(np.float32)
    index = Index(ndim=options.width, metric="cos", dtype="f32")
    rows, done = [], 0
    for size in sizes:
        began = time.process_time()
        for key in range(done, size):
            index.add(key, vectors[key])
        added_s = (time.process_time() - began) / (size - done)
        began = time.process_time()
        for vector in vectors[sizes[-1] :]:
            index.search(vector, 1)
        row = {
            "entries": size,
            "add_cpu_s": added_s,
            "lookup_cpu_s": (time.process_time() - began) / SEARCHES,
            "bytes_beyond_vector": index.serialized_length / size - options.width * 4,
            "allocated_bytes": index.memory_usage / size,
        }
        rows.append(row)
        done = size
    result = {
        "date": dt.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_vector_index.py",
        "index": f"usearch {version('usearch')}, {index.connectivity} links",
        "width": options.width,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    json.dump(result, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
