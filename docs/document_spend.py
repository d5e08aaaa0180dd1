"""Make docs/examples/spend.jsonl.gz and spend-week.db anew: LiteLLM's spend log of a made-up week, and the meter's ledger.

    python docs/document_spend.py

One server on an H100 is paid for round the clock; three teams use it by day, through LiteLLM. Some requests have no team
or no feature, and some go past LiteLLM, so that the ledger has more tokens than the log. Run it when the ledger's tables
change.
"""

import gzip
import json
import random
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan

FOLDER = Path(__file__).parent / "examples"
MONDAY = datetime(2026, 11, 9, tzinfo=UTC).timestamp()
DAYS, OPENS, CLOSES = 5, 8, 19
PER_HOUR, PAST_LITELLM = 18, 0.07
USD_PER_HOUR, STAY_S = 2.49, 20.0
Features = dict[str | None, tuple[float, float, float]]
"""The mean prompt and answer tokens of each, and the share that is cached."""
TEAMS: dict[str | None, tuple[float, str | None, Features]] = {  # share of the requests, UUID, features
    "search": (0.5, "7c0f5f34-0d3e-4a0e-8d0b-3f1f6f2f9a11", {"answers": (6000, 300, 0.6), "rewriting": (700, 60, 0.2)}),
    "support": (0.3, "2b1e9a52-98a4-4f0c-a7a4-5b7d9a6f1c22", {"drafts": (2500, 900, 0.4), None: (1500, 400, 0.0)}),
    "legal": (0.15, "91d0c7de-6f5b-44c1-9a5e-8e2f0b7d4c33", {"summaries": (14000, 700, 0.0)}),
    None: (0.05, None, {None: (900, 200, 0.0)}),
}


def requests() -> list[dict[str, object]]:
    """Return rows as LiteLLM writes them, with what the ledger needs."""
    chance, rows = random.Random(7), list[dict[str, object]]()
    for hour in (day * 24 + hour for day in range(DAYS) for hour in range(OPENS, CLOSES)):
        for _ in range(chance.randint(PER_HOUR // 2, PER_HOUR * 3 // 2)):
            team = chance.choices([*TEAMS], [share for share, _, _ in TEAMS.values()])[0]
            _, uuid, features = TEAMS[team]
            feature = chance.choice([*features])
            prompt, answer, cached = (figure * chance.uniform(0.5, 1.5) for figure in features[feature])
            rows.append(_row(hour + chance.random() * 0.99, team, uuid, feature, prompt, answer, min(cached, 0.9)))
    return sorted(rows, key=lambda row: str(row["startTime"]))


def _row(
    hour: float, team: str | None, uuid: str | None, feature: str | None, prompt: float, answer: float, cached: float
) -> dict[str, object]:
    began, ended = (datetime.fromtimestamp(MONDAY + hour * 3600 + more, UTC) for more in (0, STAY_S))
    return {
        "startTime": f"{began:%Y-%m-%dT%H:%M:%SZ}", "endTime": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
        "model": "hosted_vllm/llama-3.1-8b", "prompt_tokens": round(prompt), "completion_tokens": round(answer),
        "spend": 0.0, "status": "success", "team_id": uuid,
        "metadata": {
            "user_api_key_team_alias": team,
            "usage_object": {"prompt_tokens_details": {"cached_tokens": round(prompt * cached)}},
        },
        "request_tags": [f"feature:{feature}"] if feature else [],
    }  # fmt: skip


def hours(rows: list[dict[str, object]]) -> list[PaidTime]:
    """Return every hour of the week as the meter books it."""
    counted: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        hour = int((datetime.fromisoformat(str(row["startTime"])).timestamp() - MONDAY) // 3600)
        said: dict[str, dict[str, dict[str, int]]] = row["metadata"]  # type: ignore[assignment]
        cached = said["usage_object"]["prompt_tokens_details"]["cached_tokens"]
        counted[hour].append((int(str(row["prompt_tokens"])), cached, int(str(row["completion_tokens"]))))
    return [_hour(place, counted[place]) for place in range(DAYS * 24)]


def _hour(place: int, ended: list[tuple[int, int, int]]) -> PaidTime:
    prompts, cached, answers = (sum(figures) for figures in zip(*ended, strict=True)) if ended else (0, 0, 0)
    busy_s = min(3600.0, len(ended) * STAY_S * 0.8)
    return PaidTime(
        target="http://gpu1:8000", model="llama-3.1-8b", engine="vllm", watched=WatchedSpan.seen,
        start=MONDAY + place * 3600, seconds=3600, server_s=3600, usd_per_hour=USD_PER_HOUR, usd=USD_PER_HOUR,
        busy_s=busy_s, running_s=len(ended) * STAY_S, running_seen_s=busy_s, input_total=prompts, input_cached=cached,
        output=answers, answered=len(ended),
    )  # fmt: skip


def main(folder: Path) -> None:
    rows = requests()
    chance = random.Random(8)
    logged = "".join(f"{json.dumps(row)}\n" for row in rows if chance.random() > PAST_LITELLM)
    (folder / "spend.jsonl.gz").write_bytes(gzip.compress(logged.encode(), 9, mtime=0))
    path = folder / "spend-week.db"
    path.unlink(missing_ok=True)
    with Ledger(path) as book:
        book.record(hours(rows), [])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")  # one file, without what a writer leaves beside it
        db.execute("PRAGMA page_size = 1024")
        db.execute("VACUUM")
    Path(f"{path}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
