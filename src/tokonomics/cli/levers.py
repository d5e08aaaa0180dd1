"""``tokonomics levers`` and ``tokonomics stack``: what to change first, and what all of it comes to."""

from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, below_each_other, check_files, give, working
from tokonomics.cli.lever_flags import (
    Acceptance,
    ArrivalsText,
    ColumnsText,
    Discount,
    Draft,
    DraftShare,
    DraftTokens,
    End,
    GpuNow,
    Input,
    MinWeights,
    ModelName,
    OffersFile,
    Offline,
    Output,
    Provider,
    Rate,
    Region,
    SeedNumber,
    Slo,
    Spare,
    Start,
    Tiers,
    TokensPerMonth,
    TraceName,
    UsdPerHour,
    Without,
)
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.cli.serving_flags import EngineName, Kv, MaxSequences, NoPrefixCache, Pp, Tp, Weights


def levers(
    model: ModelName,
    gpu: GpuNow,
    tp: Tp = 1,
    pp: Pp = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    max_sequences: MaxSequences = None,
    no_prefix_cache: NoPrefixCache = False,
    rate: Rate = None,
    tokens_per_month: TokensPerMonth = None,
    input: Input = None,
    output: Output = None,
    arrivals: ArrivalsText = None,
    trace: TraceName = None,
    columns: ColumnsText = None,
    start: Start = None,
    end: End = None,
    seed: SeedNumber = None,
    slo: Slo = None,
    offline: Offline = False,
    provider: Provider = None,
    region: Region = None,
    discount: Discount = None,
    offers: OffersFile = None,
    usd_per_hour: UsdPerHour = None,
    spare: Spare = 0,
    draft: Draft = None,
    draft_share: DraftShare = None,
    draft_tokens: DraftTokens = None,
    acceptance: Acceptance = None,
    tiers: Tiers = None,
    min_weights: MinWeights = None,
    without: Without = None,
    utilization: Annotated[
        bool, typer.Option("--utilization", help="Also: the bill against batch limit, load and burstiness.")
    ] = False,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """What to change first: every lever on your traffic, its saving simulated, alone and together.

    \b
    Examples:
      tokonomics levers llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics levers llama-3.3-70b --gpu H100 --tp 4 --trace azure-conv --slo ttft_p99=2 --min-weights fp8
      tokonomics levers llama-3.1-8b --gpu H100 --trace mooncake-conversation --no-prefix-cache --chart levers.png
      tokonomics levers llama-3.1-8b --gpu H100 --rate 5 --input 1000 --output 300 --utilization
    """
    from tokonomics.cli.lever_flags import check_tiers, choices_from, say_if_long, setup_from
    from tokonomics.cli.serving_flags import say_if_compiling
    from tokonomics.errors import BadInput
    from tokonomics.planner.lever_list import all_levers
    from tokonomics.planner.levers import rank_levers
    from tokonomics.planner.setup import Bills, NotServed
    from tokonomics.planner.utilization import utilization_bills
    from tokonomics.report.levers_charts import levers_chart
    from tokonomics.report.levers_view import levers_view, utilization_view

    check_files(chart, html)
    traffic = {
        "rate": rate, "tokens_per_month": tokens_per_month, "input": input, "output": output, "arrivals": arrivals,
        "trace": trace, "columns": columns, "start": start, "end": end, "seed": seed, "slo": slo, "offline": offline,
        "provider": provider, "region": region, "discount": discount, "offers": None if offers is None else str(offers),
    }  # fmt: skip
    choices = choices_from(draft, draft_share, draft_tokens, acceptance, tiers, min_weights, without)
    setup = setup_from(
        model, gpu, traffic, tp=tp, pp=pp, weights=weights, kv=kv, engine=engine, usd_per_hour=usd_per_hour,
        spare=spare, max_sequences=max_sequences, prefix_cache=not no_prefix_cache,
    )  # fmt: skip
    check_tiers(tiers, setup)
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
    shown = found.ranking.model_dump(mode="json") | {
        "utilization": used.model_dump(mode="json") if used else None,
        "workload": setup.load.workload.model_dump(mode="json"),
        "promises": [each.model_dump(mode="json") for each in setup.promises],
    }
    views = [levers_view(found.ranking, setup)]
    if used:
        views += ["", utilization_view(used)]
    charts = {"What each lever saves": lambda: levers_chart(found.ranking, setup)}
    title = f"What to change first for {setup.deployment.model.name}"
    give(Answer(shown, lambda: below_each_other(views), title, charts), json=json, chart=chart, html=html)


def stack(
    model: ModelName,
    gpu: GpuNow,
    tp: Tp = 1,
    pp: Pp = 1,
    engine: EngineName = "vllm",
    rate: Rate = None,
    tokens_per_month: TokensPerMonth = None,
    input: Input = None,
    output: Output = None,
    arrivals: ArrivalsText = None,
    trace: TraceName = None,
    columns: ColumnsText = None,
    start: Start = None,
    end: End = None,
    seed: SeedNumber = None,
    slo: Slo = None,
    offline: Offline = False,
    provider: Provider = None,
    region: Region = None,
    discount: Discount = None,
    offers: OffersFile = None,
    usd_per_hour: UsdPerHour = None,
    spare: Spare = 0,
    draft: Draft = None,
    draft_share: DraftShare = None,
    draft_tokens: DraftTokens = None,
    acceptance: Acceptance = None,
    tiers: Tiers = None,
    min_weights: MinWeights = None,
    without: Without = None,
    order: Annotated[
        str | None, typer.Option(help="Steps first to last: batch,weights,kv,hardware,cache …", show_default="that")
    ] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """From one request at a time on the GPU you name to the best deployment found: each step's saving, simulated.

    \b
    Examples:
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=60ms
      tokonomics stack llama-3.3-70b --gpu A100-80GB --tp 4 --trace azure-conv --slo ttft_p99=3 --chart stack.png
      tokonomics stack llama-3.1-8b --gpu H100 --trace mooncake-conversation --provider aws --without hardware
      tokonomics stack llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --order hardware,weights
    """
    from tokonomics.cli.lever_flags import check_tiers, choices_from, say_if_long, setup_from
    from tokonomics.cli.serving_flags import say_if_compiling
    from tokonomics.planner.setup import Bills
    from tokonomics.planner.stack import order_from
    from tokonomics.planner.stack import stack as stacked
    from tokonomics.report.levers_charts import stack_chart
    from tokonomics.report.levers_view import stack_view

    check_files(chart, html)
    traffic = {
        "rate": rate, "tokens_per_month": tokens_per_month, "input": input, "output": output, "arrivals": arrivals,
        "trace": trace, "columns": columns, "start": start, "end": end, "seed": seed, "slo": slo, "offline": offline,
        "provider": provider, "region": region, "discount": discount, "offers": None if offers is None else str(offers),
    }  # fmt: skip
    choices = choices_from(draft, draft_share, draft_tokens, acceptance, tiers, min_weights, without)
    steps = order_from(order)
    setup = setup_from(
        model,
        gpu,
        traffic,
        tp=tp,
        pp=pp,
        weights=None,
        kv="bf16",
        engine=engine,
        usd_per_hour=usd_per_hour,
        spare=spare,
    )
    check_tiers(tiers, setup)
    say_if_compiling()
    say_if_long(setup)
    with working("simulating") as say:
        found = stacked(setup, choices, steps, Bills(progress=say))
    shown = found.waterfall.model_dump(mode="json") | {
        "workload": setup.load.workload.model_dump(mode="json"),
        "promises": [each.model_dump(mode="json") for each in setup.promises],
    }
    charts = {"From naive to best": lambda: stack_chart(found.waterfall, setup)}
    title = f"All optimisations of {setup.deployment.model.name}, in order"
    answer = Answer(shown, lambda: stack_view(found.waterfall, setup), title, charts)
    give(answer, json=json, chart=chart, html=html)
