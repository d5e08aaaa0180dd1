"""What the page alone shows: the meter's ledger as it grows."""

from collections.abc import Iterable, Mapping

from tokonomics.measure.meter.state import MeterTally, Statement
from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE, number_text, percent_text, usd_text
from tokonomics.units import count, percent, usd

_SUMS = (">$/Mtok", ">of output", ">while busy", ">paid", ">idle", ">idle time", ">tokens", ">tokens/s", ">batch")


def ledger(
    spans: Mapping[str, MeterTally], servers: Statement, burning: Mapping[str, float] | None, read_from: str
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
