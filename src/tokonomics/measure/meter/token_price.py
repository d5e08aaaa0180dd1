"""What a Mtok of input, of cached input and of output cost on metered servers; together they are the bill.

Prompts are charged with prefill's share of the GPU's busy time and answers with the rest, idle time following the same
shares: the rule of ``plan`` and ``import`` (``money.cost.split_by_gpu_time``). A meter sees no such shares, so they are
modelled, at the metered batch and lengths, which needs a GPU and a model we know. Of prefill's time, cached tokens take
what attending to them adds: ``money.attribution`` weighs prompts so. Answers attend to the whole prompt, its cached
tokens included. Where no GPU is known, every token costs the same, as in the meter's own $/Mtok.
"""

from collections import defaultdict

from pydantic import NonNegativeFloat, ValidationError

from tokonomics.errors import TokonomicsError
from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.state import MeterTally, usd_per_mtok_of
from tokonomics.measure.priced_run import MeasuredMachine, PromptTime, prompt_time
from tokonomics.types import Noun

ALIKE = "every token alike"


class TokenCost(Noun):
    """Dollars per Mtok of one model; each times its tokens, they sum to the bill."""

    model: str
    engine: str
    input: NonNegativeFloat
    """Of prompt tokens that were computed."""
    cached: NonNegativeFloat
    output: NonNegativeFloat
    blended: NonNegativeFloat
    split: str
    """How dollars were shared out among the kinds."""
    why_alike: str | None = None
    """Why there is one price for all, where a GPU was named."""


class MeteredGpu(Noun):
    """What stands behind each address."""

    gpu: str
    gpus: int = 1


def token_costs(of: Bill, on: MeteredGpu | None = None) -> tuple[TokenCost, ...]:
    """Of a bill by model and engine, every model once; a model on two engines is charged as on the one with more."""
    sums: dict[str, MeterTally] = defaultdict(MeterTally)
    dollars: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in of.lines:
        model, engine = line.group[-2:]
        sums[model] = sums[model] + line.sums
        dollars[model][engine] += line.sums.usd
    costs = [
        token_cost(model, max(dollars[model], key=lambda engine: (dollars[model][engine], engine)), tally, on)
        for model, tally in sums.items()
    ]
    return tuple(cost for cost in costs if cost is not None)


def token_cost(model: str, engine: str, sums: MeterTally, on: MeteredGpu | None = None) -> TokenCost | None:
    """None while there is no token to charge."""
    blended = sums.usd_per_mtok
    if blended is None:
        return None
    said = {"model": model, "engine": engine, "blended": blended}
    time = prompt_time_of(model, engine, sums, on) if on else None
    if on is None or not isinstance(time, PromptTime):
        return TokenCost(**said, input=blended, cached=blended, output=blended, split=ALIKE, why_alike=time)
    prompts = sums.usd * time.share
    cached = prompts * time.cached_share
    return TokenCost(
        **said,
        input=usd_per_mtok_of(prompts - cached, sums.input_computed) or 0.0,
        cached=usd_per_mtok_of(cached, sums.input_cached) or 0.0,
        output=usd_per_mtok_of(sums.usd - prompts, sums.output) or 0.0,
        split=f"GPU time, modelled for {on.gpus}×{on.gpu}",
    )


def prompt_time_of(model: str, engine: str, sums: MeterTally, on: MeteredGpu) -> PromptTime | str:
    """Of one busy server at the metered batch and lengths; or why it is not known."""
    if sums.answered <= 0 or sums.busy_s <= 0 or sums.output <= 0 or sums.input_total <= 0:
        return "no request was seen from end to end"
    if sums.input_computed <= 0:
        return "every prompt token came from the cache, so that no prompt's time can be modelled"
    try:
        point = LoadPoint(
            concurrency=max(1, round(sums.batch)) if sums.batch else None,
            rate=None if sums.batch else sums.answered / sums.busy_s,
            requests_per_s=sums.answered / sums.busy_s,
            input_tokens_per_s=sums.input_computed / sums.busy_s,
            output_tokens_per_s=sums.output / sums.busy_s,
            mean_input_tokens=sums.input_computed / sums.answered,
            mean_output_tokens=sums.output / sums.answered,
        )
        machine = MeasuredMachine(gpu=on.gpu, gpus=on.gpus, tp=on.gpus, engine=engine or "vllm")
        return prompt_time(model, machine, point, sums.input_cached / sums.answered)
    except ValidationError:
        return "its requests are longer, or more, than any that we model"
    except TokonomicsError as error:
        return str(error)
