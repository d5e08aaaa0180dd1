"""What a probe or a calibration found, as tables."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.calibrate import Calibrated, GroupResult
from tokonomics.physics.calibration import Correction, Fitted, HeldOut, Kernels, Profile
from tokonomics.report.tables import table
from tokonomics.units import percent, plural, seconds

_FIGURES = {
    "tpot": "time per token",
    "ttft": "time to first token",
    "throughput": "throughput",
    "step": "decode step",
    "prefill": "prompt",
}


def calibrate_view(result: Calibrated, saved_to: str | None) -> RenderableType:
    """What was learned of each server, its error on held-out loads, and what was left out."""
    body: list[RenderableType] = []
    if result.profile.kernels:
        body += [probe_view(result.profile, None), ""]
    for group in result.groups:
        body += [*_group(group), ""]
    body += [Text(note, style="yellow") for note in result.notes]
    if result.not_predicted:
        rows = [(f"{number:,}", reason) for reason, number in result.not_predicted.items()]
        body.append(table([">rows", "!not predicted"], rows))
    kept = result.profile.corrections or result.profile.kernels
    nothing = Text("nothing to keep: predictions stay as they are without a profile", style="bold")
    return Group(*body, _where(saved_to) if kept else nothing)


def probe_view(profile: Profile, saved_to: str | None) -> RenderableType:
    """Curves that were fitted, their error on shapes held out, and whole steps predicted from them."""
    kernels = profile.kernels
    if kernels is None:
        return Text("no kernels were timed")
    machine = profile.machine
    title = f"{kernels.gpu}: kernels timed on {profile.made}"
    if machine:
        parts = [
            f"torch {machine.torch}" if machine.torch else "",
            f"driver {machine.driver}" if machine.driver else "",
        ]
        title += f" ({machine.device}, {', '.join(part for part in parts if part)})"
    rows = [
        (name, f"{fit.rows:,}", f"{fit.held_out:,}", _error(fit.median_error), _error(fit.p90_error), what)
        for name, fit, what in _curves(kernels)
    ]
    body: list[RenderableType] = [
        Text(title, style="bold"),
        table(["!kernel", ">timed", ">held out", ">median off", ">p90", "takes the place of ours in"], rows),
        Text(f"copies reach {percent(kernels.memory)} of the datasheet's bandwidth", style="dim"),
    ]
    if profile.check:
        body += ["", Text("Whole steps that were timed beside them, not fitted:"), _held_out(profile.check)]
    if saved_to:
        body += ["", _where(saved_to)]
    return Group(*body)


def _curves(kernels: Kernels) -> list[tuple[str, Fitted, str]]:
    found = [("matrix products, bf16", kernels.gemm, "every step in bf16")] if kernels.gemm else []
    found += [(f"decode attention, {name}", fit, "steps without an engine") for name, fit in kernels.decode.items()]
    found += [(f"prompt attention, {name}", fit, "steps without an engine") for name, fit in kernels.prefill.items()]
    untimed = "GPUs whose all-reduce we have not timed"
    found += [(f"all-reduce over {gpus}", fit, untimed) for gpus, fit in kernels.all_reduce.items()]
    return found


def _group(group: GroupResult) -> list[RenderableType]:
    split = f"{plural(group.loads, 'load')}: {group.taught} taught, {group.judged} judged"
    body: list[RenderableType] = [Text.assemble((group.what, "bold"), f"  {split}")]
    body += [Text(f"doubtful: {doubt}", style="bold yellow") for doubt in group.doubts]
    body += [Text(f"left out: {each}", style="bold yellow") for each in group.dropped]
    if group.refused:
        body.append(Text(f"not calibrated: {group.refused}", style="bold red"))
    if group.held_out:
        body.append(_held_out(group.held_out))
    if group.correction:
        body.append(Text(f"learned on {group.taught} of {plural(group.loads, 'load')}: {_numbers(group.correction)}"))
        body.append(Text(f"holds for {_seen(group.correction)}; beyond that it extrapolates", style="dim"))
    return body


def _held_out(figures: Sequence[HeldOut]) -> RenderableType:
    rows = [
        (
            _named(figure.figure),
            f"{figure.n:,}",
            _error(figure.before),
            _error(figure.after),
            f"{_signed(figure.bias_before)} → {_signed(figure.bias_after)}",
        )
        for figure in figures
    ]
    return table(["!held out", ">n", ">off before", ">after", ">bias"], rows)


def _named(figure: str) -> str:
    """``ttft p99`` in words."""
    kind, _, statistic = figure.partition(" ")
    return f"{_FIGURES.get(kind, kind)} {statistic}".strip()


def _numbers(found: Correction) -> str:
    parts = []
    if found.decode != 1:
        parts.append(f"decode × {found.decode:.3g}")
    if found.prefill != 1:
        parts.append(f"prompts × {found.prefill:.3g}")
    if found.launch != 1:
        parts.append(f"launches × {found.launch:.3g}")
    if found.request != 1:
        parts.append(f"requests × {found.request:.3g}")
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


def _signed(size: float) -> str:
    return f"{math.expm1(size) * 100:+.1f} %"


def _where(saved_to: str | None) -> Text:
    if saved_to:
        return Text(f"profile saved to {saved_to}: use it with --profile {saved_to}", style="bold")
    return Text("nothing saved: give --out FILE.json to keep the profile", style="bold")
