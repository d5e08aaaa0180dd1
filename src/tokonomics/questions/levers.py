"""What should be changed first?"""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option
from tokonomics.questions.inputs import BatchLimits, Layout, OneGpu, OneModel, Profiled
from tokonomics.questions.lever_inputs import Runs, choices_of, setup_of
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Switch, declared
from tokonomics.questions.serving import say_if_compiling

if TYPE_CHECKING:
    from tokonomics.questions.results import LeversResult


class LeversRequest(OneModel, OneGpu, Layout, BatchLimits, Runs, Profiled):
    """
    Examples:
      tokonomics levers llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics levers llama-3.3-70b --gpu H100 --tp 4 --trace azure-conv --slo ttft_p99=2 --min-weights fp8
      tokonomics levers llama-3.1-8b --gpu H100 --trace mooncake-conversation --no-prefix-cache --chart levers.png
      tokonomics levers llama-3.1-8b --gpu H100 --rate 5 --input 1000 --output 300 --utilization
      tokonomics levers chat.toml --without spot
    """

    utilization: Switch = declared(False, "Also: the bill against batch limit, load and burstiness.")


def levers(request: LeversRequest, listener: Listener = SILENT) -> "LeversResult":
    """Every lever, the largest saving first, and all that help together."""
    from tokonomics.planner.bills import Bills
    from tokonomics.planner.levers.lever_list import all_levers
    from tokonomics.planner.levers.ranking import rank_levers, utilization_bills
    from tokonomics.planner.setup import NotServed
    from tokonomics.questions.results import LeversResult

    choices = choices_of(request)
    setup = setup_of(
        request, request.model, request.gpu, request, listener, request.max_sequences, not request.no_prefix_cache
    )
    say_if_compiling(listener)
    listener.doing("simulating")
    bills = Bills(progress=listener.doing)
    found = rank_levers(setup, all_levers(choices, bills), bills)
    if isinstance(found, NotServed):
        hardware = f"{option('gpu')}, {option('tp')}"
        raise BadInput(
            f"what runs today cannot be simulated: {found.reason}",
            fix=found.fix or f"Name the GPUs ({hardware}) and the price ({option('usd_per_hour')}) it runs on.",
        )
    return LeversResult(
        **dict(found.ranking),
        utilization=utilization_bills(setup, bills) if request.utilization else None,
        workload=setup.load.workload,
        slos=setup.slos,
        setup=setup,
    )
