"""Show the user's own machine: which models it runs, how fast, for how many users, and at what cost."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import option
from tokonomics.money.own_hardware import MEAN_PUE, Purchase
from tokonomics.planner.can_run import LOADS, CanRun, RunnableModel, TooLarge
from tokonomics.questions.can_run import CanRunResult
from tokonomics.questions.requests.buy import CanRunRequest, PlanRequest
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, PROFILED, datasheet_text, known_text, slos_text, time_text
from tokonomics.types import Speed
from tokonomics.units import count, percent, plural, seconds, usd

_SHOWN = 15  # rows on a terminal: as many as the shortlist has
_NEAREST = 6  # number of too large models to name


def can_run(result: CanRunResult, request: CanRunRequest | PlanRequest) -> Answer:
    """Show the models that fit, most capable first, or every layout of named ones; then what larger ones need."""
    return Answer(result, f"What {result.gpus}×{result.gpu} can run", partial(_sections, result, request))


def _sections(result: CanRunResult, request: CanRunRequest | PlanRequest) -> blocks.View:
    machine = f"{result.gpus}×{result.gpu} ({result.gpu_memory_gb:g} GB each), {result.engine}"
    default = f" (default; {option('slo')})" if request.slo is None else ""
    asked = f"sequences of {result.context:,} tokens; {slos_text(result.slos)}{default}"
    yield blocks.line(f"{machine}: {asked}", kind="asked")
    if result.not_counted:
        left_out = ", ".join(map(option, result.not_counted))
        yield blocks.line(f"Not counted here: {left_out}; `tokonomics simulate --capacity` counts the load.")
    if not result.runs:
        only = f"{result.too_large[0].model} does not fit" if len(result.too_large) == 1 else ""
        yield blocks.section(blocks.headline(only or "None of these models fits", mood="worst"), *_besides(result))
        return
    fits = len({row.model for row in result.runs})
    of = plural(fits + len(result.too_large), "model")
    best = result.runs[0]
    if result.every_layout and fits == 1 and best.tokens_per_s:
        where = f": {best.name} at {best.weights}, {_layout(best)}"
        yield blocks.headline(f"{best.tokens_per_s.mid:,.0f} tokens/s for {plural(best.users, 'user')}", where)
    else:
        yield blocks.headline(f"{fits} of {of} {'fits' if fits == 1 else 'fit'}", _up_to(result.runs))
    rows = list(result.runs)
    if result.every_layout:
        yield from _layouts(result)
    else:
        first = list(result.shortlist or result.runs[:_SHOWN])
        rows = [*first, *(row for row in rows if row not in first)]
        yield blocks.listed(
            rows,
            ("!model", lambda row: row.model),
            (">parameters", lambda row: count(row.parameters)),
            ("!weights", lambda row: f"{_weights(row)}{_kv(row)}"),
            ("!layout", _layout),
            (">longest", lambda row: f"{row.longest_context:,}"),
            (">TTFT", lambda row: seconds(row.ttft_s.mid)),
            (">alone", lambda row: f"{row.alone_tokens_per_s.mid:,.0f}"),
            (">users", lambda row: f"{row.users:,}"),
            (">all", _together),
            ("!speed", lambda row: known_text(row.speed, row.profiled)),
            title="Output tokens/s: one user alone, and all users together",
            shown=len(first),
        )
    yield _dollars(result, rows)
    yield blocks.section(*_besides(result))
    yield _notes(result, rows[:_SHOWN], tried=_tried(result, request.weights is None) if result.every_layout else "")


def _up_to(runs: Sequence[RunnableModel]) -> str:
    """Name the largest model, and the largest that is served as published."""
    largest = runs[0]
    published = next((row for row in runs if not row.below_checkpoint), None)
    as_published = f"; as published, up to {published.name}" if published and largest.below_checkpoint else ""
    return f", up to {largest.name} at {largest.weights}{as_published}"


def _weights(row: RunnableModel) -> str:
    return f"{row.weights}{'*' if row.below_checkpoint else ''}"


def _kv(row: RunnableModel) -> str:
    return f", KV {row.kv}" if row.kv.bits < 16 else ""


def _together(row: RunnableModel) -> str:
    """Return the tokens a second of all users."""
    return f"{row.tokens_per_s.mid:,.0f}" if row.tokens_per_s else NO_VALUE


def _layouts(result: CanRunResult) -> blocks.View:
    """Show every layout, most tokens within the SLO first, then the engine flags that differ."""
    yield blocks.listed(
        result.runs,
        ("!model", lambda row: row.model),
        ("!weights", lambda row: f"{_weights(row)}{_kv(row)}"),
        ("!layout", _layout),
        (">tok/s", _together),
        (">users", lambda row: f"{row.users:,}"),
        (">TPOT", lambda row: time_text(row.tpot_s)),
        (">TTFT", lambda row: seconds(row.ttft_s.mid)),
        (">alone", lambda row: f"{row.alone_tokens_per_s.mid:,.0f}"),
        (">KV tokens", lambda row: count(row.kv_tokens)),
        ("!limited by", lambda row: row.limited_by),
        ("!speed", lambda row: row.speed.value),
        title="Every layout: output tokens/s of all users within the SLO, and of one user alone",
        best=0 if result.runs[0].users else None,
        shown=_SHOWN,
    )
    started = [row for row in result.runs if row.command is not None]
    if not started:
        return
    common = set.intersection(*(set(_flags(row)) for row in started))
    if len(started) > 1:
        yield blocks.listed(
            started,
            ("!model", lambda row: row.model),
            ("!weights", lambda row: row.weights.value),
            ("!layout", _layout),
            ("flags", lambda row: " ".join(flag for flag in _flags(row) if flag not in common)),
            title=f"Flags of {result.engine} in which they differ",
            shown=_SHOWN,
        )
    first = started[0]
    # Engines run copies of dense models behind one port; for others each replica is a separate server.
    apart = first.replicas > 1 and f"--data-parallel-size {first.replicas}" not in (first.command or "")
    several = f" in {first.replicas} processes" if apart else ""
    yield blocks.line(f"{'The first' if len(started) > 1 else 'It'} starts{several} with: {started[0].command}")
    if result.longest_request:
        longest = f"the longest request of this traffic has {result.longest_request:,} tokens"
        yield blocks.note(f"Users and speeds are at the mean of {result.context:,} tokens; {longest}.")


def _flags(row: RunnableModel) -> list[str]:
    """Split a command into its flags, ``--name value`` each."""
    return [f"--{flag.strip()}" for flag in (row.command or "").split(" --")[1:]]


def _dollars(result: CanRun, rows: Sequence[RunnableModel]) -> blocks.Table | None:
    """Tabulate $/Mtok by load, if a price of electricity is known."""
    if result.power is None:
        return None
    what = "electricity and the machine" if isinstance(result.power, Purchase) else "electricity"
    return blocks.listed(
        [(row, row.usd_per_mtok) for row in rows if row.usd_per_mtok],
        ("!model", lambda row: row[0].model),
        ("weights", lambda row: row[0].weights.value),
        ("layout", lambda row: _layout(row[0])),
        (f">load {percent(LOADS['full'])}", lambda row: usd(row[1].full)),
        (f">load {percent(LOADS['half'])}", lambda row: usd(row[1].half)),
        (f">load {percent(LOADS['tenth'])}", lambda row: usd(row[1].tenth)),
        title=f"Dollars per Mtok of output, {what}",
        shown=_SHOWN,
    )


def _layout(row: RunnableModel) -> str:
    """Write a layout: ``2 × TP=2`` is two replicas of two GPUs."""
    degrees = (("TP", row.tp), ("PP", row.pp), ("EP", row.ep), ("DP", row.dp))
    split = " ".join(f"{name}={degree}" for name, degree in degrees if degree > 1) or "1 GPU"
    return f"{row.replicas} × {split}" if row.replicas > 1 else split


def _besides(result: CanRun) -> Iterable[blocks.Line]:
    """Say how to see the models that the table leaves out, what larger ones need, and how to see dollars."""
    named = len({row.model for row in result.runs})
    if not result.every_layout and named > _SHOWN:
        yield blocks.line(
            f"The newest of each maker and size. {option('as_json')} lists all {named} that fit; name models to see "
            f"every layout: `tokonomics can-run qwen3-8b …`."
        )
    too_large = [model for model in result.too_large if model.weights]
    if too_large:
        more = len(too_large) - _NEAREST
        others = f"; {plural(more, 'larger one')}" if more > 0 else ""
        yield blocks.line(f"Too large here, and what they need: {_needs(too_large[:_NEAREST])}{others}.")
    if not_run := [model.model for model in result.too_large if not model.weights]:
        rest = f" and {len(not_run) - _NEAREST} more" if len(not_run) > _NEAREST else ""
        none = f"{result.engine} runs these on {result.gpu} at none of the precisions tried"
        yield blocks.line(f"{none}: {', '.join(not_run[:_NEAREST])}{rest}.")
    if result.power is None and result.runs:
        flags = f"{option('usd_per_kwh', 0.3)} {option('host_watts', 150)}"
        bought = f"{option('purchase_usd', 2500)} {option('years', 3)}"
        yield blocks.hint(f"What a million tokens costs: {flags} for electricity, {bought} for the machine as well.")


def _needs(too_large: Iterable[TooLarge]) -> str:
    """Group models by what they need: ``gpt-oss-120b and qwen2.5-72b 4 GPUs (TP=4) at int4``."""
    parts = []
    for (gpus, layout, weights), models in groupby(
        too_large, key=lambda model: (model.min_gpus, model.min_layout, model.weights)
    ):
        where = f"{plural(gpus, 'GPU')} ({layout}) at {weights}" if gpus else "more GPUs than are sold together"
        parts.append(f"{', '.join(model.model for model in models)}: {where}")
    return "; ".join(parts)


def _tried(result: CanRun, by_default: bool) -> str:
    """Say which precisions were tried, which the engine does not run, and how to ask for fewer bits."""
    refused = f"{' and '.join(result.not_run)}, which {result.engine} does not run on {result.gpu}"
    said = f"{', '.join(result.tried) or 'nothing'}; not {refused}" if result.not_run else ""
    if not by_default:
        return f"Tried: {said or ', '.join(result.tried)}."
    said = said or "as published, and FP8"
    if result.fewer_bits is None:
        return f"Tried: {said}."
    # Of these, only INT4 is also tried unasked.
    where = "fewer bits where neither fits, or by" if result.fewer_bits is Precision.int4 else "fewer bits by"
    return f"Tried: {said}; {where} {option('weights', result.fewer_bits)}."


def _notes(result: CanRunResult, shown: Sequence[RunnableModel], tried: str) -> blocks.Line:
    speeds = {row.speed for row in shown}
    shorter = dict.fromkeys(f"{row.model} ({row.context:,})" for row in shown if row.context < result.context)
    return blocks.note(
        f"Counted at their own context, which is shorter: {', '.join(shorter)}." if shorter else "",
        "A user is one answer being written with its context full; users are what memory holds and the SLO allows "
        f"({option('slo')}). Prompts that arrive meanwhile slow all of them: `tokonomics simulate --capacity`.",
        "0 users: even one answer is slower than the SLO." if any(not row.users for row in shown) else "",
        f"TTFT: a prompt as long as the context ({option('context')}), server idle."
        + ("" if result.every_layout else " Longest: one sequence alone."),
        "* fewer bits than published: check quality on your own task, and that such a checkpoint exists."
        if any(row.below_checkpoint for row in shown)
        else "",
        tried,
        "Speed scaled: from kernel timings of a related GPU." if Speed.scaled in speeds else "",
        "Speed assumed: this GPU family or precision was not timed. `tokonomics predict` has the ranges."
        if Speed.assumed in speeds
        else "",
        datasheet_text(find_gpu(result.gpu), Speed.assumed if Speed.assumed in speeds else Speed.scaled),
        PROFILED if result.runs[0].profiled else "",
        *_of_power(result),
    )


def _of_power(result: CanRunResult) -> Iterable[str]:
    """Say what the dollars include."""
    power = result.power
    if power is None:
        return
    curve = result.gpu_power
    gpus = f"a GPU {curve.idle_w:.0f} W idle, {curve.decoding(1):.0f} W and more busy ({curve.known})" if curve else "?"
    host = f"{power.host_watts:g} W of the host" if power.host_watts else f"no host ({option('host_watts')})"
    yield (
        f"Load: the share of the time in which all users are busy. Power: {gpus}, {host}, PUE {power.pue:g}, "
        f"{usd(power.usd_per_kwh)}/kWh."
    )
    if power.pue == 1:
        mean = f"mean of data centres in 2023, Uptime Institute: {option('pue', MEAN_PUE)}"
        yield f"PUE 1 is a desk ({mean})."
    if isinstance(power, Purchase):
        bought = f"{usd(power.purchase_usd)} over {power.years:g} years"
        yield f"With the machine, {bought}; capital, hosting and people: `tokonomics cost --purchase-usd`."
