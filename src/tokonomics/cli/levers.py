"""``tokonomics levers`` and ``tokonomics stack``: what to change first, and what all of it comes to."""

from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, below_each_other, working
from tokonomics.cli.groups import Layout, Load, Market, Shown, flat
from tokonomics.cli.lever_flags import Changes


@flat
def levers(
    *,
    model: flags.ModelPlace,
    gpu: flags.GpuName,
    layout: Layout,
    max_sequences: flags.MaxSequences = None,
    no_prefix_cache: flags.NoPrefixCache = False,
    load: Load,
    market: Market,
    usd_per_hour: flags.UsdPerHour = None,
    changes: Changes,
    utilization: Annotated[
        bool, typer.Option("--utilization", help="Also: the bill against batch limit, load and burstiness.")
    ] = False,
    shown: Shown,
) -> None:
    """What to change first: every lever on your traffic, its saving simulated, alone and together.

    \b
    Examples:
      tokonomics levers llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics levers llama-3.3-70b --gpu H100 --tp 4 --trace azure-conv --slo ttft_p99=2 --min-weights fp8
      tokonomics levers llama-3.1-8b --gpu H100 --trace mooncake-conversation --no-prefix-cache --chart levers.png
      tokonomics levers llama-3.1-8b --gpu H100 --rate 5 --input 1000 --output 300 --utilization
      tokonomics levers chat.toml --without spot
    """
    from tokonomics.cli.lever_flags import check_tiers, choices_from, say_if_long, setup_from
    from tokonomics.cli.serving_flags import say_if_compiling
    from tokonomics.errors import BadInput
    from tokonomics.planner.bills import Bills
    from tokonomics.planner.levers.lever_list import all_levers
    from tokonomics.planner.levers.ranking import rank_levers
    from tokonomics.planner.setup import NotServed
    from tokonomics.planner.utilization import utilization_bills
    from tokonomics.report.levers_charts import levers_chart
    from tokonomics.report.levers_view import levers_view, utilization_view

    shown.check()
    choices = choices_from(changes)
    setup = setup_from(
        model, gpu, layout, load, market, changes,
        usd_per_hour=usd_per_hour, max_sequences=max_sequences, prefix_cache=not no_prefix_cache,
    )  # fmt: skip
    check_tiers(changes.tiers, setup)
    say_if_compiling()
    say_if_long(setup)
    with working("simulating") as say:
        bills = Bills(progress=say)
        found = rank_levers(setup, all_levers(choices, bills), bills)
        if isinstance(found, NotServed):
            raise BadInput(
                f"what runs today cannot be simulated: {found.reason}",
                fix=found.fix or "Name the GPUs (--gpu, --tp) and the price (--usd-per-hour) it runs on.",
            )
        used = utilization_bills(setup, bills) if utilization else None
    result = found.ranking.model_dump(mode="json") | {
        "utilization": used.model_dump(mode="json") if used else None,
        "workload": setup.load.workload.model_dump(mode="json"),
        "promises": [each.model_dump(mode="json") for each in setup.promises],
    }
    views = [levers_view(found.ranking, setup)]
    if used:
        views += ["", utilization_view(used)]
    charts = {"What each lever saves": lambda: levers_chart(found.ranking, setup)}
    title = f"What to change first for {setup.deployment.model.name}"
    shown.give(Answer(result, lambda: below_each_other(views), title, charts))


@flat
def stack(
    *,
    model: flags.ModelPlace,
    gpu: flags.GpuName,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    ep: flags.Ep = 1,
    engine: flags.EngineName = "vllm",
    load: Load,
    market: Market,
    usd_per_hour: flags.UsdPerHour = None,
    changes: Changes,
    order: Annotated[
        str | None, typer.Option(help="Steps first to last: batch,weights,kv,hardware,cache …", show_default="that")
    ] = None,
    shown: Shown,
) -> None:
    """From one request at a time on the GPU you name to the best deployment found: each step's saving, simulated.

    \b
    Examples:
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics stack llama-3.3-70b --gpu A100-80GB --tp 4 --trace azure-conv --slo ttft_p99=3 --chart stack.png
      tokonomics stack llama-3.1-8b --gpu H100 --trace mooncake-conversation --provider aws --without hardware
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --order hardware,weights
      tokonomics stack chat.toml
    """
    from tokonomics.cli.lever_flags import check_tiers, choices_from, say_if_long, setup_from
    from tokonomics.cli.serving_flags import say_if_compiling
    from tokonomics.planner.bills import Bills
    from tokonomics.planner.levers.stack import order_from
    from tokonomics.planner.levers.stack import stack as stacked
    from tokonomics.report.levers_charts import stack_chart
    from tokonomics.report.levers_view import stack_view

    shown.check()
    choices, steps = choices_from(changes), order_from(order)
    layout = Layout(tp=tp, pp=pp, ep=ep, engine=engine)
    setup = setup_from(model, gpu, layout, load, market, changes, usd_per_hour=usd_per_hour)
    check_tiers(changes.tiers, setup)
    say_if_compiling()
    say_if_long(setup)
    with working("simulating") as say:
        found = stacked(setup, choices, steps, Bills(progress=say))
    result = found.waterfall.model_dump(mode="json") | {
        "workload": setup.load.workload.model_dump(mode="json"),
        "promises": [each.model_dump(mode="json") for each in setup.promises],
    }
    charts = {"From naive to best": lambda: stack_chart(found.waterfall, setup)}
    title = f"All optimisations of {setup.deployment.model.name}, in order"
    answer = Answer(result, lambda: stack_view(found.waterfall, setup), title, charts)
    shown.give(answer)
