"""Several models on one GPU or on own ones: the ways, who meets its SLOs in each, and where the choice changes."""

from collections.abc import Iterator, Sequence

from tokonomics.planner.shared_ways import Crossing, ModelHere, Way, WayRow
from tokonomics.questions.results import PlanTogether
from tokonomics.report import blocks
from tokonomics.report.wording import (
    FEWER_BITS,
    NO_VALUE,
    aged_since,
    and_slos,
    duration_text,
    percent_text,
    time_text,
    workload_text,
)
from tokonomics.units import percent, plural, usd

_NAMED = {Way.own: "each on its own GPU", Way.zero: "each on its own GPU, scaled to zero"}
_SHARED = {
    Way.shares: "all on one GPU by shares of its memory",
    Way.slices: "all on one GPU by MIG slices",
    Way.turns: "all on one GPU, one awake at a time",
}


def together_view(found: PlanTogether) -> blocks.View:
    """The ways to serve several models."""
    yield blocks.section(
        *(
            blocks.line(f"{asked.name} at {workload_text(asked.workload)}{and_slos(asked.slos)}", kind="asked")
            for asked in found.asked
        )
    )
    yield blocks.section(_headline(found), *_same_bits(found), *_crossing_line(found))
    yield _ways(found)
    yield _models(found)
    yield blocks.note(*_notes(found))


def _headline(found: PlanTogether) -> blocks.Line:
    best = found.best
    if best is None:
        return blocks.line("No way meets every SLO.", kind="worst")
    own = next((row for row in found.rows if row.way is Way.own), None)
    place = f", {_place(best)}" if best.way not in _NAMED else ""
    than = ""
    if own and best.way is not Way.own and own.meets:
        than = f": {percent(1 - best.usd_per_month / own.usd_per_month)} less than {usd(own.usd_per_month)} apart"
    way = {**_NAMED, **_SHARED}[best.way]
    return blocks.headline(f"{usd(best.usd_per_month)} a month", f", {way}{place}{than}{aged_since(best.price_date)}")


def _same_bits(found: PlanTogether) -> Iterator[blocks.Line]:
    """What own GPUs cost at the pick's precision, where theirs is higher."""
    if (at_these_bits := found.own_at_these_bits_usd_per_month) is not None:
        yield blocks.line(f"It serves fewer bits than own GPUs do; at the same bits those cost {usd(at_these_bits)}.")


def _place(row: WayRow) -> str:
    return f"{row.gpu} at {row.machine}"


def _crossing_line(found: PlanTogether) -> Iterator[blocks.Line]:
    """From which traffic on the other choice is cheaper."""
    crossed = found.crossing
    if crossed is None:
        return
    rates = [asked.workload.rate for asked in found.asked]
    if crossed.above is None:
        most = _rates(rates, crossed.below)
        said = f"One GPU for all stays the cheaper choice up to {crossed.below:.3g} times the traffic ({most})."
    elif not crossed.below:
        said = f"One GPU for all is not cheaper at less traffic either, down to {crossed.above:.2g} times it."
    else:
        said = _between(crossed, rates)
    # The crossing is between GPUs that are never switched off.
    always_on = found.best is not None and found.best.way is Way.zero
    yield blocks.line(f"Of GPUs that stay on: {said[0].lower()}{said[1:]}" if always_on else said)


def _between(crossed: Crossing, rates: list[float]) -> str:
    above = crossed.above or 0.0
    cheap = f" ({usd(crossed.together_usd_per_month)} a month)" if crossed.together_usd_per_month else ""
    own = f"own GPUs cost {usd(crossed.own_usd_per_month)}" if crossed.own_usd_per_month else "own GPUs serve it"
    other = (
        f"one for all {usd(crossed.together_above_usd_per_month)}"
        if crossed.together_above_usd_per_month
        else "no GPU below that serves all"
    )
    return (
        f"One GPU for all is the cheaper choice up to {_times(crossed.below)}{cheap}; from "
        f"{above:.3g} times on ({_rates(rates, above)}) apart is: {own}, {other}."
    )


def _times(factor: float) -> str:
    return "this traffic" if factor == 1 else f"{factor:.3g} times this traffic"


def _rates(rates: list[float], factor: float) -> str:
    return f"{' + '.join(f'{rate * factor:.3g}' for rate in rates)} requests/s"


def _ways(found: PlanTogether) -> blocks.Table:
    rows: list[Sequence[blocks.Pieces]] = [
        (
            row.way.value,
            row.gpu,
            row.machine,
            f"{row.gpus_paid:.3g}",
            usd(row.usd_per_month),
            blocks.Span("met", "good") if row.meets else blocks.Span(_missed(row), "bad"),
        )
        for row in found.rows
    ]
    rows += [(way.value, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE, why) for way, why in found.not_possible.items()]
    return blocks.table(
        ["!way", "GPU", "offer", ">GPUs paid", ">$/month", "SLOs"], rows, best=0 if found.best else None
    )


def _missed(row: WayRow) -> str:
    late = [f"{model.model}: {model.breaks}" for model in row.models if model.breaks]
    more = f"; {plural(len(late) - 1, 'other')} too" if len(late) > 1 else ""
    return f"missed: {late[0]}{more}"


def _models(found: PlanTogether) -> blocks.Table:
    """Each model in each way."""
    rows = [
        (
            row.way.value if not place else "",
            model.model,
            f"{model.weights.value}{'*' if model.below_checkpoint else ''}",
            model.place,
            percent_text(model.memory_share),
            percent_text(model.gpu_share),
            _late(time_text(model.ttft_p99_s), model, "ttft"),
            _late(time_text(model.tpot_p99_s), model, "tpot"),
            usd(model.usd_per_month),
            usd(model.usd_per_mtok),
        )
        for row in found.rows
        for place, model in enumerate(row.models)
    ]
    heads = [
        "!way",
        "!model",
        "weights",
        "place",
        ">memory",
        ">GPU time",
        ">TTFT p99",
        ">TPOT p99",
        ">$/month",
        ">$/Mtok",
    ]
    return blocks.table(heads, rows, title="Each model in each way")


def _late(text: str, model: ModelHere, latency: str) -> blocks.Span:
    return blocks.Span(text, "bad" if model.breaks and model.breaks.startswith(latency) else "")


def _notes(found: PlanTogether) -> Iterator[str]:
    ways = {row.way: row for row in found.rows}
    yield "memory: of the GPU's. GPU time: in which it works for the model. A shared bill is split by GPU time."
    if Way.shares in ways:
        yield (
            "Memory shares: processes without MPS take turns on the GPU. While k of them have work each runs at 1/k; "
            "switching is taken to be free."
        )
    if Way.slices in ways:
        yield (
            "MIG slices: each has its part of the multiprocessors, memory and bandwidth, by NVIDIA's guide; speeds are "
            "scaled. The bill is split by multiprocessors."
        )
    if (row := ways.get(Way.turns)) and row.switches_per_hour is not None:
        switches = f"{row.switches_per_hour:.3g} switches an hour"
        yield f"Sleep and wake: weights wait in the host's memory (vLLM's level 1); {switches}."
    if (row := ways.get(Way.zero)) and row.hold_s is not None:
        waits = f"nothing has come for {duration_text(row.hold_s)} at the most"
        yield f"Scaled to zero: paid by the second, from the order of a machine until {waits}."
    yield (
        "Times to load, sleep and wake: published figures in catalog/data/start_times.toml. Every way has the same "
        "choice of precisions: the most bits that fit, and on a shared GPU the fewest for all where those miss an SLO."
    )
    if any(model.below_checkpoint for row in found.rows for model in row.models):
        yield FEWER_BITS
