"""How often a semantic cache answers the wrong question: labelled pairs of questions at each threshold.

    python benchmarks/bench_semantic.py PAIRS MODEL_FOLDER [--pairs 20000]

PAIRS has columns text_a, text_b and label; the result that is kept is of Quora's question pairs as GPTCache's
benchmark has them (text under Quora's terms: not shipped) and all-MiniLM-L6-v2. The questions of the pairs, in order,
are also sent through the cache. Writes ``benchmarks/results/semantic.json``. Without arguments it does nothing.
"""

import argparse
import datetime as dt
import itertools
import json
import platform
import sys
from pathlib import Path

from tokonomics.levers.semantic_cache import false_hits, semantic_hits
from tokonomics.traffic.prompts import HASHED, Prompts, embed, read_pairs

RESULT = Path(__file__).parent / "results" / "semantic.json"
REPLAYED = 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--pairs", type=int, default=20_000)
    options = parser.parse_args()
    if options.data is None or options.model is None:
        print("needs a file of labelled pairs and a model folder, neither of which is shipped: nothing done")
        return 0
    pairs = read_pairs(options.data, options.pairs)
    result: dict[str, object] = {
        "date": dt.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": f"python benchmarks/bench_semantic.py {options.data.name} {Path(options.model).name} "
        f"--pairs {options.pairs}",
        "pairs": len(pairs.first),
        "same": int(pairs.same.sum()),
    }
    texts = (*pairs.first, *pairs.second)
    for name, with_what in (("model", options.model), ("hashed", HASHED)):
        embedded = embed(texts, with_what)
        first, second = embedded.vectors[: len(pairs.first)], embedded.vectors[len(pairs.first) :]
        asked = list(itertools.chain.from_iterable(zip(pairs.first, pairs.second, strict=True)))[:REPLAYED]
        hits = semantic_hits(Prompts(tuple(asked), None, options.data.name), embed(asked, with_what))
        result[name] = {
            "how": embedded.how,
            "embed_s": embedded.seconds_per_text,
            "lookup_s": hits.lookup_s,
            "labels": [hit.model_dump() for hit in false_hits(first, second, pairs.same)],
            "replayed": len(asked),
            "hits": [point.model_dump() for point in hits.points],
        }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    json.dump(result, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
