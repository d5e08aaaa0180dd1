"""What does one's own machine do differently, and does knowing it help on held-out loads?"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.measured import Ran, check_names, paths_of, require_range
from tokonomics.questions.request import Kind, Number, Placement, Text, Texts, declared
from tokonomics.questions.serving import say_if_compiling

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import CalibrateResult


class CalibrateRequest(Ran):
    """
    Every second load teaches and the others judge: errors before and after are of loads the fit has not seen. What
    made them worse is left out, and said. What a profile replaces and what it leaves: docs/calibrate.md.

    Examples:
      tokonomics calibrate run.json --gpu H100 --out h100.json
      tokonomics calibrate h200-profile.json vllm-*.json --gpu H200 --out h200.json
      tokonomics calibrate run.json --gpu H200 --engine vllm --hold-out 0.25 --json
      tokonomics calibrate ~/.local/share/tokonomics/meter.db --gpu H100 --gpus 2 --model llama-3.1-8b --out mine.json
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --profile h100.json
    """

    files: Texts = declared(
        ...,
        "Bench results, imported formats, logs of steps, tables, probes, ledgers.",
        place=Placement.FIRST,
        kind=Kind.FILE,
        metavar="FILE…",
        example=["run.json"],
    )
    model: Text | None = declared(
        None,
        "Model, where the files name none we know.",
        without="as the files say",
        kind=Kind.MODEL,
        example="llama-3.1-8b",
    )
    engine: Text | None = declared(
        None,
        "Which of our engines stands for the one that ran.",
        without="as the files say, or vllm",
        example="vllm",
    )
    hold_out: Number = declared(0.5, "Share of the loads that judge instead of teaching, 0.1 to 0.5.")
    name: Text | None = declared(None, "Of the profile.", without="the GPU's", example="my-h100")
    out: Text | None = declared(
        None, "Save the profile (.json).", without="only shown", kind=Kind.FILE, writes=True, example="h100.json"
    )


def calibrate(request: CalibrateRequest, listener: Listener = SILENT) -> "CalibrateResult":
    """A profile of the machine from what was measured on it."""
    from tokonomics.catalog.load_models import find_model
    from tokonomics.clock import today
    from tokonomics.measure.calibrate import calibrate as fit
    from tokonomics.measure.evidence import read_evidence
    from tokonomics.measure.importers.own import check_save_path
    from tokonomics.measure.priced_run import Said
    from tokonomics.physics.calibration import using, write_profile
    from tokonomics.questions.measured_results import CalibrateResult

    require_range("hold_out", request.hold_out, 0.1, 0.5)
    out = Path(request.out) if request.out else None
    if out:
        check_save_path(out, "out")
    if request.model is not None:
        find_model(request.model)
    check_names(request)
    paths = paths_of(request.files)
    command = "tokonomics calibrate " + " ".join(path.name for path in paths)
    listener.doing("simulating the loads")
    split = (request.tp, request.pp, request.ep)
    said = Said(request.gpu, request.gpus, *split, request.engine, request.weights, request.kv, request.model)
    with using(None):
        evidence = read_evidence(paths, said, command)
        if any(row.engine for row in evidence.rows):
            say_if_compiling(listener)
        made = fit(evidence, made=today(), command=command, name=request.name or "", hold_out=request.hold_out)
    kept = bool(made.profile.corrections or made.profile.kernels)
    if out and kept:
        write_profile(made.profile, out)
    shown = made.model_copy(update={"profile": made.profile.model_copy(update={"timings": {}})})
    return CalibrateResult(**dict(shown), saved_to=str(out) if out and kept else None)
