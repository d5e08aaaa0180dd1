"""Reduces what is known of agents' jobs to ``src/tokonomics/traffic/data/agents.json``.

    python benchmarks/reduce_agents.py RAW_FOLDER

RAW_FOLDER holds ``lmcache_agent_sessions.jsonl.gz`` (LMCache/lmcache-agent-trace, Apache-2.0): sessions of agents with
the text of every call and its time. Of its three sets only ``miniswe`` is used (20 jobs of mini-SWE-agent on
SWE-bench): ``magagent`` is a team of agents whose prompts do not grow (44 % of them begin with the one before), and
``taubench`` leaves out the text of tool calls. The log keeps the prompts without the agent's own answers, so what a
prompt grows by is what the tool gave. Tokens are characters ÷ 4 (OpenAI's rule for English text,
help.openai.com/en/articles/4936856, read 2026-11-17). A gap is from one call to the next: it holds the answer's own
time.

The figures of ``coding`` are published ones, typed in below with where each stands.
"""

import gzip
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "src/tokonomics/traffic/data/agents.json"
RANKS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
CHARACTERS_PER_TOKEN = 4
TRACELAB = (
    "TraceLab (arXiv 2606.30560, uw-syfi/TraceLab, CC-BY-4.0): 4,265 sessions of Claude Code and Codex, to 2026-06"
)
WEKA = "semianalysisai/cc-traces-weka-042026 (Hugging Face): sessions of Claude Code, first rows"
CODING: dict[str, Any] = {
    "source": f"{TRACELAB}; system prompt and first message: {WEKA}; read 2026-11-17",
    "what": "one request to a coding agent, from a fresh context",
    # Tools 12,439–12,974 and system prompt 2,771–4,243 tokens (WEKA).
    "head_tokens": 16_000,
    # Steps of one request (session_internal_counts): 0.9 by the user and 7.8 by tools; p25 0, p50 1, p90 20, p99 86.
    "calls": {"mean": 8.7, "quantiles": [[0, 1], [0.25, 1], [0.5, 2], [0.9, 21], [0.99, 87], [1, 87]]},
    # First prompt less tools and system prompt: 488, 819, 1,771 (WEKA, fresh sessions).
    "first": {"mean": 1000, "quantiles": [[0, 490], [0.5, 820], [1, 1770]]},
    # Fresh input of a step behind 64–128k tokens (append_by_prefix_bin): of 33,571 and 72,996 steps, mean 1.6k and
    # 2.7k, p50 793 and 796, p90 3.7k and 6.1k, p99 12.8k and 31.3k; less the answer before it, which is in it.
    "added": {"mean": 1830, "quantiles": [[0, 20], [0.5, 272], [0.9, 4800], [0.99, 25_000], [1, 25_000]]},
    # 186.9M output tokens over 357,161 steps; no quantiles are published: spread as those of miniswe.
    "answer": {"mean": 523},
    # Tool execution of a step (session_timing_distribution); the longest is what the mean leaves for the last percent.
    "pause_s": {"mean": 16.8, "quantiles": [[0, 0.01], [0.5, 0.1], [0.9, 10], [0.99, 192], [1, 3060]]},
}


def jobs(raw: Path) -> list[list[dict[str, Any]]]:
    """The calls of each job of mini-SWE-agent, in order."""
    found = defaultdict(list)
    with gzip.open(raw / "lmcache_agent_sessions.jsonl.gz", "rt") as lines:
        for call in map(json.loads, lines):
            if call["set"] == "miniswe":
                found[call.get("session_id") or call["file"]].append(call)
    return [sorted(calls, key=lambda call: call["timestamp"]) for calls in found.values()]


def table(values: list[float]) -> dict[str, Any]:
    cuts = np.quantile(values, RANKS)
    pairs = [[rank, round(float(cut), 2)] for rank, cut in zip(RANKS, cuts, strict=True)]
    return {"mean": round(float(np.mean(values)), 2), "quantiles": pairs}


def tokens(text: str) -> float:
    return len(text) / CHARACTERS_PER_TOKEN


def swe(found: list[list[dict[str, Any]]]) -> dict[str, Any]:
    steps = [pair for calls in found for pair in pairwise(calls)]
    return {
        "source": "LMCache/lmcache-agent-trace (Apache-2.0), miniswe: 20 jobs, 402 calls, 2025-10; "
        "tokens are characters ÷ 4",
        "what": "one issue of SWE-bench by mini-SWE-agent, at most 30 calls; pauses include the answers",
        "head_tokens": 0,  # the task stands before the instructions: two jobs share their first 14 tokens
        "calls": table([len(calls) for calls in found]),
        "first": table([tokens(calls[0]["input"]) for calls in found]),
        "added": table([tokens(after["input"]) - tokens(before["input"]) for before, after in steps]),
        "answer": table([tokens(call["output"]) for calls in found for call in calls]),
        "pause_s": table([(after["timestamp"] - before["timestamp"]) / 1e6 for before, after in steps]),
    }


def main() -> None:
    measured = swe(jobs(Path(sys.argv[1])))
    spread = [[rank, value] for rank, value in measured["answer"]["quantiles"]]
    coding = CODING | {"answer": {"mean": CODING["answer"]["mean"], "quantiles": spread}}
    OUT.write_text(json.dumps({"coding": coding, "swe": measured}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
