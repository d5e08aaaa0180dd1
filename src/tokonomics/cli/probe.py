"""``tokonomics probe``: measure this machine's GPU in three minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.cli.answer import Answer, give, working
from tokonomics.cli.output import Json

if TYPE_CHECKING:
    from collections.abc import Mapping


def probe(
    out: Annotated[Path, typer.Option(help="Where to save the profile (.json).")] = Path("profile.json"),
    gpu: Annotated[
        str | None, typer.Option(help="Its name in our catalogue.", show_default="as the driver says")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes: under a minute.")] = False,
    timings: Annotated[
        Path | None,
        typer.Option("--from", help="Fit timings made elsewhere (python -m tokonomics.measure.probe.timings)."),
    ] = None,
    json: Json = False,
) -> None:
    """Time the kernels of this machine's GPU and save a profile that --profile uses in every prediction.

    Needs a CUDA GPU and PyTorch, nothing else; takes less than three minutes. Memory, matrix products by shape,
    attention by batch and context, launches, all-reduce where there are several GPUs; and whole decode steps that
    the curves are checked on. What a probe replaces and what it leaves: docs/calibrate.md.

    \b
    Examples:
      tokonomics probe --out h200.json
      tokonomics probe --quick --json
      tokonomics probe --from timings.json --gpu H200 --out h200.json
    """
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.measure.bench.save import check_save_path
    from tokonomics.measure.probe.fit_profile import profile_from
    from tokonomics.physics.calibration import using, write_profile
    from tokonomics.report.calibrate_view import probe_view

    check_save_path(out, "out")
    if gpu is not None:
        find_gpu(gpu)
    with using(None):
        found = _read(timings) if timings else _measure(quick)
        command = f"tokonomics probe --from {timings.name}" if timings else f"tokonomics probe{' --quick' * quick}"
        made = profile_from(found, command, str(timings or "the probe"), gpu)
    write_profile(made, out)
    shown = made.model_copy(update={"timings": {}})
    give(Answer(shown, lambda: probe_view(made, str(out)), f"A probe of {made.gpus[0]}"), json=json)


def _read(path: Path) -> "Mapping[str, Any]":
    import json

    from tokonomics.errors import BadInput, shorten
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


def _measure(quick: bool) -> "Mapping[str, Any]":
    """On this machine, saying what is being timed."""
    from tokonomics.errors import BadInput
    from tokonomics.measure.probe.timings import PROBE, SECONDS, measure, why_not

    missing = why_not()
    if missing:
        raise BadInput(
            f"this machine cannot be probed: {missing}",
            fix="Run it where the GPU is, with PyTorch installed. Timings need nothing else: there, python -m "
            "tokonomics.measure.probe.timings timings.json; here, tokonomics probe --from timings.json.",
        )
    from tokonomics.measure.probe.kernels import Bench

    with working("warming up") as tell:
        found = measure(
            Bench("cuda", quick),
            list(PROBE),
            SECONDS / 3 if quick else SECONDS,
            lambda done: None,
            lambda says, rows, left: tell(f"{says}: {rows:,} timed, at most {left:.0f} s left"),
        )
    for section, why in found["failures"].items():
        typer.echo(f"{section} failed and is left out: {why}", err=True)
    return found
