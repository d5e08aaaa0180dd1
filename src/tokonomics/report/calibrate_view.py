"""What a probe or a calibration found."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from tokonomics.errors import option
from tokonomics.measure.calibrate import GroupResult
from tokonomics.physics.calibration import Correction, Fitted, HeldOut, Kernels, Profile
from tokonomics.questions.measured_results import CalibrateResult, ProbeResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import signed_text
from tokonomics.units import percent, plural, seconds

_FIGURES = {
    "tpot": "time per token", "ttft": "time to first token", "throughput": "throughput", "step": "decode step",
    "prefill": "prompt",
}  # fmt: skip


def calibrate(result: CalibrateResult, request: Request) -> Answer:
    """What was learned of each server, its error on held-out loads, and what was left out."""
    return Answer(result, "A calibration", partial(_calibration, result))


def probe(result: ProbeResult, request: Request) -> Answer:
    """Curves that were fitted, their error on shapes held out, and whole steps predicted from them."""
    profile, saved_to = result.profile, result.saved_to
    sections = lambda: [*_probe(profile), _where(saved_to) if saved_to else None]  # noqa: E731
    return Answer(result, f"A probe of {profile.gpus[0]}", sections)


def _calibration(result: CalibrateResult) -> blocks.View:
    profile = result.profile
    yield _learned(result)
    if profile.kernels:
        yield from _probe(profile)
    yield from (blocks.section(*_group(group)) for group in result.groups)
    yield blocks.section(*map(blocks.hint, result.notes))
    if result.not_predicted:
        rows = [(f"{number:,}", reason) for reason, number in result.not_predicted.items()]
        yield blocks.table([">rows", "!not predicted"], rows)
    if profile.corrections or profile.kernels:
        yield _where(result.saved_to)


def _learned(result: CalibrateResult) -> blocks.Line:
    """How far predictions are off now, where it was judged."""
    judged = [group for group in result.groups if group.correction and group.held_out]
    if judged:
        group, figure = judged[0], judged[0].held_out[0]
        off = f"{_named(figure.figure).capitalize()} off by {_error(figure.after)}"
        more = f", and {plural(len(judged) - 1, 'server')} more" if len(judged) > 1 else ""
        return blocks.headline(off, f" on held-out loads, {_error(figure.before)} before: {group.what}{more}")
    if result.profile.corrections or result.profile.kernels:
        learned = plural(len(result.profile.corrections), "correction")
        return blocks.headline(learned, " learned; no load was left to judge them")
    return blocks.headline("Nothing to keep", ": predictions stay as they are, and no profile is saved", "alert")


def _probe(profile: Profile) -> blocks.View:
    kernels, machine = profile.kernels, profile.machine
    if kernels is None:
        yield blocks.headline("No kernels were timed", mood="alert")
        return
    device = ""
    if machine:
        versions = [f"torch {machine.torch}" * bool(machine.torch), f"driver {machine.driver}" * bool(machine.driver)]
        device = f" ({machine.device}, {', '.join(filter(None, versions))})"
    curves = list(_curves(kernels))
    rows = [
        (name, f"{fit.rows:,}", f"{fit.held_out:,}", _error(fit.median_error), _error(fit.p90_error), what)
        for name, fit, what in curves
    ]
    columns = ["!kernel", ">timed", ">held out", ">median off", ">p90", "takes the place of ours in"]
    yield blocks.section(
        blocks.headline(f"{kernels.gpu}: {plural(len(curves), 'kernel')} timed", f" on {profile.made}{device}"),
        blocks.table(columns, rows),
        blocks.note(f"copies reach {percent(kernels.memory)} of the datasheet's bandwidth"),
    )
    if profile.check:
        whole = blocks.line("Whole steps that were timed beside them, not fitted:")
        yield blocks.section(whole, _held_out(profile.check))


def _curves(kernels: Kernels) -> Iterable[tuple[str, Fitted, str]]:
    if kernels.gemm:
        yield "matrix products, bf16", kernels.gemm, "every step in bf16"
    for kind, curves in (("decode", kernels.decode), ("prompt", kernels.prefill)):
        yield from ((f"{kind} attention, {name}", fit, "steps without an engine") for name, fit in curves.items())
    untimed = "GPUs whose all-reduce we have not timed"
    yield from ((f"all-reduce over {gpus}", fit, untimed) for gpus, fit in kernels.all_reduce.items())


def _group(group: GroupResult) -> Iterable[blocks.Block]:
    loads = plural(group.loads, "load")
    yield blocks.line(blocks.Span(group.what, "strong"), f"  {loads}: {group.taught} taught, {group.judged} judged")
    yield from (blocks.line(blocks.Span(f"doubtful: {doubt}", "alert")) for doubt in group.doubts)
    yield from (blocks.line(blocks.Span(f"left out: {load}", "alert")) for load in group.dropped)
    if group.refused:
        yield blocks.line(f"not calibrated: {group.refused}", kind="worst")
    if group.held_out:
        yield _held_out(group.held_out)
    if group.correction:
        yield blocks.line(f"learned on {group.taught} of {loads}: {_numbers(group.correction)}")
        yield blocks.note(
            f"holds for {_seen(group.correction)}; beyond that it extrapolates.",
            "Other layouts of the model are corrected as this one where that makes them slower.",
        )


def _held_out(figures: Sequence[HeldOut]) -> blocks.Table:
    rows = []
    for figure in figures:
        bias = " → ".join(signed_text(math.expm1(size)) for size in (figure.bias_before, figure.bias_after))
        rows.append((_named(figure.figure), f"{figure.n:,}", _error(figure.before), _error(figure.after), bias))
    return blocks.table(["!held out", ">n", ">off before", ">after", ">bias"], rows)


def _named(figure: str) -> str:
    """``ttft p99`` in words."""
    kind, _, statistic = figure.partition(" ")
    return f"{_FIGURES.get(kind, kind)} {statistic}".strip()


def _numbers(found: Correction) -> str:
    factors = {
        "decode": found.decode, "prompts": found.prefill, "launches": found.launch, "requests": found.request,
    }  # fmt: skip
    parts = [f"{name} × {factor:.3g}" for name, factor in factors.items() if factor != 1]
    if found.step_s is not None:
        parts.append(f"host {_or_none(found.step_s)} a step + {_or_none(found.sequence_s or 0.0)} a sequence")
    return ", ".join(parts)


def _or_none(time_s: float) -> str:
    """A time that rounds away beside any step is none."""
    return seconds(time_s) if time_s > 1e-8 else "0 ms"


def _seen(found: Correction) -> str:
    names = {"batch": "at once", "rate": "requests/s", "input_tokens": "tokens in", "output_tokens": "tokens out"}
    parts = []
    for name, unit in names.items():
        known = found.seen.get(name)
        if known and (name, known.high) != ("output_tokens", 1):  # steps have no answers
            many = f"{known.low:,.4g}" if known.low == known.high else f"{known.low:,.4g} to {known.high:,.4g}"
            parts.append(f"{many} {unit}")
    return ", ".join(parts)


def _error(size: float | None) -> str:
    """An error of x is a factor of 1 + x, up or down."""
    if size is None:
        return ""
    return percent(math.expm1(size)) if size < math.log(3) else f"{math.exp(size):.1f} ×"


def _where(saved_to: str | None) -> blocks.Line:
    if saved_to:
        return blocks.hint(f"Profile saved to {saved_to}: use it with {option('profile', saved_to)}.")
    return blocks.hint(f"Nothing saved: give {option('out', 'FILE.json')} to keep the profile.")
