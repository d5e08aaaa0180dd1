"""What the meter, the page and a sweep on Ray went through in their longest runs, from the files that those runs wrote."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def meter_table() -> str:
    """A day of many failing servers against true books, from the last run of benchmarks/soak_meter.py."""
    result = _result("soak")
    happened = {
        "scrape": "pages read", "missed": "missed", "restart": "restarts", "swap": "changes of engine", "hang": "hangs",
        "bad page": "bad pages", "half a page": "half pages", "clock jump": "jumps of the clock",
        "disk full": "times a full disk", "kill": "kills of the meter",
    }  # fmt: skip
    counts = ", ".join(f"{result[name]:,} {said}" for name, said in happened.items())
    tokens = (
        ("the servers counted", "true_tokens"),
        ("in the ledger", "metered_tokens"),
        ("of them counted over gaps and absences, and said to be", "unseen_tokens"),
        ("lost with processes that died after their last page in the ledger: no scrape could see them", "lost_tokens"),
        ("lost where a new process had passed the old count, of engines that tell no start", "overtaken_tokens"),
        ("**off beyond that**", "off_tokens"),
    )
    lines = ["| tokens | |", "|---|--:|", *(f"| {said} | {result[name]:,.0f} |" for said, name in tokens)]
    true_usd = result["usd"] - result["clock_usd"]
    clock = ""
    if abs(result["clock_usd"]) >= 0.005:
        clock = ": over its absences a meter goes by the clock on the wall, which was set meanwhile"
    said = (
        f"{result['servers']} servers over {result['hours']:g} simulated hours, read every {result['every_s']:g} s: {counts}. "
        f"${result['usd']:,.2f} in the ledger, off by {result['off_usd'] * 100:.2f} cents; the true time costs "
        f"${true_usd:,.2f}{clock}. {'Every restart that lost tokens was said.' if not result['wrong'] else ''}"
    )
    return "\n".join([said, "", *lines, "", f"Made by `{result['command']}` on {result['date']}, {result['machine']}."])


def twin_line() -> str:
    """What many twins take, from the last run of benchmarks/soak_twin.py."""
    result, week = _result("soak-twin"), _result("soak-twin-long")
    last, first_day, ended = result["by_hour"][-1], week["by_hour"][23], week["by_hour"][-1]
    return (
        f"{result['servers']:,} servers read every 15 s, each with a twin: {100 * last['meter']:.1f} % of a core for the meter "
        f"and {100 * last['twins']:.1f} % for the twins, {last['memory_mb']:,} MB, of the ledger "
        f"{last['ledger_mb'] / result['hours']:.0f} MB an hour. {_made_by(result)}\n\n"
        f"Memory does not grow: {week['servers']} servers over {week['hours'] / 24:.0f} days took {first_day['memory_mb']} MB after the first day and "
        f"{ended['memory_mb']} MB at the end. {_made_by(week)}"
    )


def page_table() -> str:
    """What the page holds before, during and after many visits, from the last run of benchmarks/soak_page.py."""
    result = _result("soak_page")
    replies = {int(status): count for status, count in result["replies"].items()}
    answered = sum(count for status, count in replies.items() if 200 <= status < 300)
    others = (
        ("refused with 503 because the queue was full", replies.get(503, 0)),
        ("refused with 429", replies.get(429, 0)),
        ("left before they had their answer, as some visitors do", replies.get(0, 0)),
        ("faults of the page", sum(count for status, count in replies.items() if status >= 500 and status != 503)),
    )
    times = ("at_first", "at_half", "at_last")
    holds = (
        ("memory of the page, MB", "page_mb"),
        ("of its workers, MB", "workers_mb"),
        ("workers", "workers"),
        ("threads", "threads"),
        ("open files", "files"),
    )
    said = (
        f"{result['sessions']} visitors for {result['seconds'] / 60:g} minutes: {answered:,} requests answered, "
        f"{', '.join(f'{count:,} {what}' for what, count in others)}."
    )
    lines = ["| held when nobody is there | before | after half of the visits | after all |", "|---|--:|--:|--:|"]
    lines += [f"| {name} | {' | '.join(f'{result[time][key]:,}' for time in times)} |" for name, key in holds]
    return "\n".join([said, "", *lines, "", _made_by(result)])


def sweep_lines() -> str:
    """What a sweep on Ray survived, from the last run of benchmarks/soak_sweep.py."""
    result = _result("soak_sweep")
    same = result["equal_rows"] == result["points"] and result["counts"] == result["local_counts"]
    said = (
        f"{result['points']:,} points on two Ray nodes of one machine. One node is taken away, then the sweep is killed with "
        f"{result['done_before']:,} points written; the same command does the other "
        f"{result['points'] - result['done_before']:,} in {result['seconds_after']:,.0f} s. "
        f"{'All' if same else 'NOT all'} {result['equal_rows']:,} rows equal those of a local sweep, which takes "
        f"{result['local_seconds']:,.0f} s with two workers."
    )
    return f"{said} {_made_by(result)}"


def _made_by(result: dict[str, Any]) -> str:
    """Where figures of a soak come from."""
    on = f"{result['machine']}, beside other work (load average {result['load_average']:.1f} at the start)"
    return f"Made by `{result['command']}` on {result['date']}, {on}."


def _result(name: str) -> dict[str, Any]:
    """What a run of benchmarks/soak_*.py wrote."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found
