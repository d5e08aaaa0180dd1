"""What the page alone shows: the meter's ledger as it grows, and how far predictions lie from measurements."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.state import MeterTally
from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE, number_text, percent_text, usd_text
from tokonomics.units import count, percent, plural, usd

_SUMS = (">$/Mtok", ">of output", ">while busy", ">paid", ">idle", ">idle time", ">tokens", ">tokens/s", ">batch")


def ledger(
    spans: Mapping[str, MeterTally], servers: Bill, burning: Mapping[str, float] | None, read_from: str
) -> blocks.View:
    """The price of a million tokens, what burns now, and sums by span and by server; ``spans`` is shortest first."""
    # The last five minutes are too few to speak for, unless there is nothing else.
    shortest, *longer = spans.items()
    over, best = next((row for row in longer if row[1].usd_per_mtok is not None), shortest)
    price = f"{usd_text(best.usd_per_mtok)} per million tokens"
    idle = f"; {usd_text(best.usd_per_mtok_usage)} per Mtok while busy"
    yield blocks.section(
        blocks.line(
            f"{over}: ", blocks.Span(price, "best"), f", {usd(best.usd)} for {count(best.billed_tokens)} tokens{idle}",
            kind="headline",
        ),
        _burn(spans["Today"], spans["This hour"], burning),
    )  # fmt: skip
    if (best.idle_share or 0.0) > 0.5:
        wasted = f"Idle {percent_text(best.idle_share)} of the time"
        yield blocks.hint(f"{wasted}: Fleet finds machines for the hours that need them.")
    yield _sums("over", spans.items(), "Dollars and tokens by span")
    if servers.lines:
        rows = [(" ".join(filter(None, line.group)), line.sums) for line in servers.lines]
        yield _sums("!server, model, engine", rows, "Servers today", shown=20)
    yield blocks.note(
        "$/Mtok: every paid hour, idle too, over input and output tokens; of output: over answers alone;",
        f"while busy: busy time alone. Days and hours are UTC. {read_from}",
    )


def _burn(today: MeterTally, hour: MeterTally, burning: Mapping[str, float] | None) -> blocks.Facts:
    idle = "nothing was read today" if today.idle_share is None else f"{percent(today.idle_share)} of the time"
    mood: blocks.Mood = "bad" if (today.idle_share or 0.0) > 0.5 else ""
    batch = hour.batch if hour.batch is not None else today.batch
    return blocks.facts(
        blocks.fact("idle burn today", blocks.Span(usd(today.idle_usd), mood), idle),
        blocks.fact("burning now", f"{usd(burning['usd_per_hour'])}/h", f"{count(burning['tokens_per_s'])} tokens/s")
        if burning
        else blocks.fact("burning now", NO_VALUE, "nothing was read in the last five minutes"),
        blocks.fact("batch", number_text(batch), "in the mean while busy"),
        blocks.fact("from cache", percent_text(today.cache_share), "of prompt tokens, today"),
        blocks.fact("failed", blocks.Span(count(today.failed), "bad"), f"requests; {usd(today.failed_usd)} of work")
        if today.failed
        else None,
    )


def _sums(first: str, rows: Iterable[tuple[str, MeterTally]], title: str, shown: int | None = None) -> blocks.Table:
    return blocks.table(
        [first, *_SUMS],
        [
            (
                name, *map(usd_text, (sums.usd_per_mtok, sums.usd_per_mtok_output, sums.usd_per_mtok_usage)),
                usd(sums.usd), usd(sums.idle_usd), percent_text(sums.idle_share), count(sums.billed_tokens),
                number_text(sums.tokens_per_s), number_text(sums.batch),
            )
            for name, sums in rows
        ],
        title,
        shown=shown,
    )  # fmt: skip


_ERRORS = (">rows", ">median error", ">nine of ten within", ">bias", ">inside our interval")
_WORDS = {"output_tok_s": "output tokens/s", "tpot_s": "TPOT", "ttft_s": "TTFT", "gpu": "GPU"}
_MAIN = "throughput and TPOT"
"""The public measurements of whole engines: the nearest to what a reader will run."""


def accuracy(recorded: Mapping[str, Any]) -> blocks.View:
    """Errors by source of the measurements and by kind, and what was not predicted; no row is left out silently."""
    rows: Mapping[str, Any] = recorded["rows"]
    name, main = next((row for row in rows.items() if _MAIN in row[0]), next(iter(rows.items())))
    groups = plural(recorded["spearman_groups"], "group")
    yield blocks.line(
        "Median error: ",
        blocks.Span(_share(main["median_abs_log_error"]), "best"),
        f", {name}: {plural(main['n'], 'measurement')}. "
        f"Nine of ten are within {_share(main['p90_abs_log_error'])}; the bias is {_signed(main['bias'])}. "
        f"Rank correlation of deployments: {recorded['spearman']:.2g} over {groups}. "
        "Some kinds are far worse, such as time to first token and a drained burst.",
        kind="headline",
    )
    yield blocks.hint("Compare it with your own: drop the results of a load test anywhere on this page.")
    yield blocks.table(
        ["measurements", *_ERRORS, "target"],
        [(source, *_errors(row), row["target"]) for source, row in rows.items()],
        "Predictions against measurements",
    )
    yield blocks.table(
        ["!group", "by", *_ERRORS],
        [
            (_WORDS.get(group, group), _WORDS.get(kind, kind), *_errors(row))
            for kind, found in recorded["by"].items()
            for group, row in found.items()
        ],
        "The same errors by metric, GPU, engine, model and source",
        shown=24,
    )
    left = recorded["not_predicted"]
    yield blocks.section(
        *(blocks.line(f"{reason}: {plural(number, 'row')}") for reason, number in left.items()), title="Not predicted"
    )
    yield blocks.note(f"Made {recorded['date']} on {recorded['machine']} with `{recorded['command']}`.")


def _errors(row: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (_share(row["median_abs_log_error"]), _share(row["p90_abs_log_error"]), _signed(row["bias"]))
    return f"{row['n']:,}", *errors, percent_text(row.get("inside_interval"))


def _share(log: float | None) -> str:
    """Errors are kept as logarithms of predicted over measured; people read them as a share."""
    return NO_VALUE if log is None else percent(math.expm1(log))


def _signed(log: float | None) -> str:
    return NO_VALUE if log is None else f"{math.expm1(log) * 100:+.1f} %"
