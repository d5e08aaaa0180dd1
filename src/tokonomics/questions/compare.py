"""Several models on several GPUs: which is cheapest per token?"""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput
from tokonomics.questions.inputs import Profiled, SeveralModels
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.load import PlanInputs, cases_of, questions_of
from tokonomics.questions.request import Switch, Texts, declared
from tokonomics.questions.serving import say_if_compiling

if TYPE_CHECKING:
    from tokonomics.questions.results import CompareResult


class CompareRequest(SeveralModels, PlanInputs, Profiled):
    """
    Examples:
      tokonomics compare llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,A100,H100 --rate 20 --input 1000 --output 300
      tokonomics compare llama-3.1-8b qwen3-8b --rate 20 --input 1000 --output 300 --slo tpot_p99=50ms --simulate
      tokonomics compare chat.toml llama-3.1-8b llama-3.3-70b --quality llama-3.1-8b=0.66,llama-3.3-70b=0.86
      tokonomics compare chat.toml llama-3.1-8b qwen3-8b
    """

    quality: Texts | None = declared(
        None,
        "Your score of each model: llama-3.1-8b=0.66,llama-3.3-70b=0.86.",
        example=["llama-3.1-8b=0.66"],
    )
    simulate: Switch = declared(False, "Size every pair by simulation instead of the closed form; slower.")


def compare(request: CompareRequest, listener: Listener = SILENT) -> "CompareResult":
    """Dollars per million tokens of every pair, side by side."""
    from tokonomics.planner.compare import compare as side_by_side
    from tokonomics.planner.compare import parse_quality
    from tokonomics.questions.results import CompareResult

    if len(cases_of(request)) > 1:
        raise BadInput("a range is for plan", field="rate, input, output")
    questions = questions_of(request, request.model, quick=not request.simulate)
    scores = parse_quality(request.quality or (), [question.model.key for question in questions])
    if request.simulate:
        say_if_compiling(listener)
    listener.doing("comparing")
    return CompareResult(**dict(side_by_side(questions, scores, listener.doing)))
