"""``tokonomics compare``: several models on several GPUs, side by side."""

from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, working
from tokonomics.cli.groups import Choice, Load, Market, Shown, flat, words


@flat
def compare(
    *,
    models: flags.ModelPlaces,
    load: Load,
    choice: Choice,
    market: Market,
    quality: Annotated[
        list[str] | None, typer.Option(help="Your score of each model: llama-3.1-8b=0.66,llama-3.3-70b=0.86.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Size every pair by simulation instead of the closed form; slower.")
    ] = False,
    shown: Shown,
) -> None:
    """Several models on several GPUs under the same traffic and promise: dollars per million tokens, side by side.

    \b
    Examples:
      tokonomics compare llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,A100,H100 --rate 20 --input 1000 --output 300
      tokonomics compare llama-3.1-8b qwen3-8b --rate 20 --input 1000 --output 300 --slo tpot_p99=50ms --simulate
      tokonomics compare chat.toml llama-3.1-8b llama-3.3-70b --quality llama-3.1-8b=0.66,llama-3.3-70b=0.86
      tokonomics compare chat.toml llama-3.1-8b qwen3-8b
    """
    from tokonomics.clock import today
    from tokonomics.errors import BadInput
    from tokonomics.planner.compare import compare as side_by_side
    from tokonomics.planner.compare import parse_quality
    from tokonomics.planner.scenario import Scenario, questions_of
    from tokonomics.report.compare_charts import compare_chart
    from tokonomics.report.compare_view import compare_view

    shown.check()
    asked = words(load, choice, market)
    scenario = Scenario().over({"model": tuple(models), **asked, "quick": not simulate})
    if len(scenario.cases()) > 1:
        raise BadInput("a range is for plan", where="--rate, --input, --output")
    questions = questions_of(scenario, today())
    scores = parse_quality(quality or (), [each.model.key for each in questions])
    if simulate:
        from tokonomics.cli.serving_flags import say_if_compiling

        say_if_compiling()
    with working("comparing") as say:
        found = side_by_side(questions, scores, say)
    answer = Answer(
        found,
        lambda: compare_view(found),
        "Models and GPUs side by side",
        {"Dollars per million tokens": lambda: compare_chart(found)} if found.gpus else {},
        exit_code=0 if found.gpus else 1,
    )
    shown.give(answer)
