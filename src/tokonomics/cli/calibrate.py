"""``tokonomics calibrate``: teach predictions your own machine, and show on held-out loads that it helped."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, give, working
from tokonomics.cli.imports import Ep, Gpu, Gpus, Kv, Pp, Tp, Weights
from tokonomics.cli.output import Json


def calibrate(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Bench results, imported formats, logs of steps, tables, probes, ledgers.", metavar="FILE…"
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Save the profile (.json).", show_default="only shown")] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    model: Annotated[
        str | None, typer.Option(help="Model, where the files name none we know.", show_default="as the files say")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Which of our engines stands for the one that ran.", show_default="as the files say, or vllm"
        ),
    ] = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    weights: Weights = None,
    kv: Kv = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of the loads that judge instead of teaching, 0.1 to 0.5.")
    ] = 0.5,
    name: Annotated[str | None, typer.Option(help="Of the profile.", show_default="the GPU's")] = None,
    json: Json = False,
) -> None:
    """Make a profile of your machine from what you measured on it; --profile uses it in every prediction.

    Every second load teaches and the others judge: errors before and after are of loads the fit has not seen. What
    made them worse is left out, and said. What a profile replaces and what it leaves: docs/calibrate.md.

    \b
    Examples:
      tokonomics calibrate run.json --gpu H100 --out h100.json
      tokonomics calibrate h200-profile.json vllm-*.json --gpu H200 --out h200.json
      tokonomics calibrate run.json --gpu H200 --engine vllm --hold-out 0.25 --json
      tokonomics calibrate ~/.local/share/tokonomics/meter.db --gpu H100 --gpus 2 --model llama-3.1-8b --out mine.json
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --profile h100.json
    """
    from tokonomics.catalog.load_models import find_model
    from tokonomics.cli.imports import check_names
    from tokonomics.cli.serving_flags import say_if_compiling
    from tokonomics.clock import today
    from tokonomics.errors import BadInput
    from tokonomics.measure.bench.save import check_save_path
    from tokonomics.measure.calibrate import calibrate as make
    from tokonomics.measure.evidence import Said, read_evidence
    from tokonomics.physics.calibration import using, write_profile
    from tokonomics.report.calibrate_view import calibrate_view

    if not 0.1 <= hold_out <= 0.5:
        raise BadInput(f"must be from 0.1 to 0.5, got {hold_out:g}", where="--hold-out")
    if out:
        check_save_path(out, "out")
    if model is not None:
        find_model(model)
    check_names(gpu, weights, kv, engine)
    command = "tokonomics calibrate " + " ".join(path.name for path in files)
    with using(None), working("simulating the loads"):
        evidence = read_evidence(files, Said(gpu, gpus, tp, pp, ep, engine, weights, kv, model), command)
        if any(row.engine for row in evidence.rows):
            say_if_compiling()
        made = make(evidence, made=today(), command=command, name=name or "", hold_out=hold_out)
    kept = bool(made.profile.corrections or made.profile.kernels)
    if out and kept:
        write_profile(made.profile, out)
    shown = made.model_copy(update={"profile": made.profile.model_copy(update={"timings": {}})})
    give(Answer(shown, lambda: calibrate_view(made, str(out) if out and kept else None), "A calibration"), json=json)
