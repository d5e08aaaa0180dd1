"""How fast are the kernels of this machine's GPU?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Kind, Request, Switch, Text, declared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokonomics.questions.measured_results import ProbeResult


class ProbeRequest(Request):
    """
    Needs a CUDA GPU and PyTorch, nothing else; takes less than three minutes. Memory, matrix products by shape,
    attention by batch and context, launches, all-reduce where there are several GPUs; and whole decode steps that
    the curves are checked on. What a probe replaces and what it leaves: docs/calibrate.md.

    Examples:
      tokonomics probe --out h200.json
      tokonomics probe --quick --json
      tokonomics probe --from timings.json --gpu H200 --out h200.json
    """

    out: Text = declared("profile.json", "Where to save the profile (.json).", kind=Kind.FILE, writes=True)
    gpu: Text | None = declared(None, "Its name in our catalogue.", without="as the driver says", example="H200")
    quick: Switch = declared(False, "Fewer sizes: under a minute.")
    timings: Text | None = declared(
        None,
        "Fit timings made elsewhere (python -m tokonomics.measure.probe.timings).",
        key="from",
        kind=Kind.FILE,
        example="timings.json",
    )


def probe(request: ProbeRequest, listener: Listener = SILENT) -> "ProbeResult":
    """Time the kernels and save a profile that every prediction can use."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.measure.importers.own import check_save_path
    from tokonomics.measure.probe.fit_profile import profile_from
    from tokonomics.physics.calibration import using, write_profile
    from tokonomics.questions.measured_results import ProbeResult

    out = Path(request.out)
    timings = Path(request.timings) if request.timings else None
    check_save_path(out, "out")
    if request.gpu is not None:
        find_gpu(request.gpu)
    with using(None):
        found = read_timings(timings) if timings else _measure(request.quick, listener)
        how = f" --from {timings.name}" if timings else " --quick" * request.quick
        made = profile_from(found, f"tokonomics probe{how}", str(timings or "the probe"), request.gpu)
    write_profile(made, out)
    return ProbeResult(profile=made.model_copy(update={"timings": {}}), saved_to=str(out))


def read_timings(path: Path) -> "Mapping[str, Any]":
    """The timings of a probe that ran elsewhere."""
    import json

    from tokonomics.measure.measurements import read_text
    from tokonomics.measure.probe.fit_profile import is_timings

    where = shorten(str(path), 200)
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {shorten(str(error), 120)}", where=where) from None
    if not is_timings(found):
        raise BadInput(
            "holds no timings of a probe",
            where=where,
            fix="Make them on the machine with the GPU: python -m tokonomics.measure.probe.timings timings.json",
        )
    return found  # type: ignore[no-any-return]


def _measure(quick: bool, listener: Listener) -> "Mapping[str, Any]":
    """On this machine, saying what is being timed."""
    from tokonomics.measure.probe.timings import PROBE, SECONDS, measure, why_not

    missing = why_not()
    if missing:
        raise BadInput(
            f"this machine cannot be probed: {missing}",
            fix="Run it where the GPU is, with PyTorch installed. Timings need nothing else: there, python -m "
            f"tokonomics.measure.probe.timings timings.json; here, give {option('timings', 'timings.json')}.",
        )
    from tokonomics.measure.probe.kernels import Bench

    listener.doing("warming up")
    found = measure(
        Bench("cuda", quick),
        list(PROBE),
        SECONDS / 3 if quick else SECONDS,
        lambda done: None,
        lambda says, rows, left: listener.doing(f"{says}: {rows:,} timed, at most {left:.0f} s left"),
    )
    for section, why in found["failures"].items():
        listener.note(f"{section} failed and is left out: {why}")
    return found
