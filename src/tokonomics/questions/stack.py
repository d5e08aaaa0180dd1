"""What do all optimisations come to, one after the other?"""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Layout, OneEngine, OneGpu, OneModel, Parallel, Profiled
from tokonomics.questions.lever_inputs import Runs, choices_of, setup_of
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Text, declared
from tokonomics.questions.serving import say_if_compiling

if TYPE_CHECKING:
    from tokonomics.questions.results import StackResult


class StackRequest(OneModel, OneGpu, Parallel, OneEngine, Runs, Profiled):
    """
    Examples:
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics stack llama-3.3-70b --gpu A100-80GB --tp 4 --trace azure-conv --slo ttft_p99=3 --chart stack.png
      tokonomics stack llama-3.1-8b --gpu H100 --trace mooncake-conversation --provider aws --without hardware
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --order hardware,weights
      tokonomics stack chat.toml
    """

    order: Text | None = declared(
        None,
        "Steps first to last: batch,weights,kv,hardware,cache …",
        without="that",
        example="batch,weights,kv",
    )


def stack(request: StackRequest, listener: Listener = SILENT) -> "StackResult":
    """From one request at a time to the best deployment found: each step's saving, simulated."""
    from tokonomics.planner.bills import Bills
    from tokonomics.planner.levers.stack import order_from
    from tokonomics.planner.levers.stack import stack as stacked
    from tokonomics.questions.results import StackResult

    choices, steps = choices_of(request), order_from(request.order)
    layout = Layout(tp=request.tp, pp=request.pp, ep=request.ep, engine=request.engine)
    setup = setup_of(request, request.model, request.gpu, layout, listener)
    say_if_compiling(listener)
    listener.doing("simulating")
    found = stacked(setup, choices, steps, Bills(progress=listener.doing))
    return StackResult(**dict(found.waterfall), workload=setup.load.workload, slos=setup.slos, setup=setup)
