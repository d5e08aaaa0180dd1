"""What a Mtok of input, of cached input and of output costs on a candidate: its bill, split by the GPU's time.

Prompts pay for prefill's share of the busy time, answers for the rest (``money.cost.split_by_gpu_time``). Of prefill's
share, tokens that are found in the prefix cache pay for what attending to them adds (``money.cost.with_cached``): the
rule by which the meter charges them (``measure.meter.bill``). Where no prompt of the traffic repeats another,
the price is that of a token that would be found.
"""

import numpy as np

from tokonomics.money.cost import TokenPrices, split_by_gpu_time, with_cached
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.planner.search import Placed
from tokonomics.sizing.attempt import cached_share, prefill_share
from tokonomics.sizing.load import Load


class PromptSplit:
    """How prompts and answers, computed and cached tokens share the bill of a candidate, on whatever machines."""

    def __init__(self, sized: Placed, load: Load) -> None:
        hosts, capacity = sized.screened.hosts, sized.screened.capacity
        together = sized.trial if sized.trial and not hosts.prefill else None
        share = prefill_share(together.outcome) if together else capacity.prefill_share
        self.workload = load.workload
        self.prefill_share = 1.0 if sized.deployment.model.is_encoder else share
        self.cached_share = _found_share(sized, load)
        prompts = hosts.prefill.deployment if hosts.prefill else sized.deployment
        tokens, found = self.workload.input_tokens, self.cached_share * self.workload.input_tokens
        self.attending = attending(prompts, tokens - found, found) if prompts.reuses_prefixes else None

    def prices(self, usd_per_second: float) -> TokenPrices:
        """Of the candidate, where its machines cost this much."""
        lengths = self.workload.input_tokens, self.workload.output_tokens
        prices = split_by_gpu_time(usd_per_second, self.workload.rate, *lengths, self.prefill_share)
        if self.attending is None:
            return prices
        return with_cached(prices, lengths[0], self.cached_share * lengths[0], self.attending)


def _found_share(sized: Placed, load: Load) -> float:
    """Of the prompt tokens, found in the cache: as simulated, or by the closed form in one without end."""
    if sized.trial:
        return cached_share(sized.trial.outcome)
    if load.trace.prefix is None or not sized.deployment.reuses_prefixes:
        return 0.0
    return max(0.0, 1 - load.computed_mean / load.workload.input_tokens)


def attending(deployment: Deployment, computed_tokens: float, found_tokens: float) -> float:
    """What one found token adds to the time of computing the rest of its prompt, as a share of that time.

    Attention over what is already there grows evenly with it; where nothing is found, one is as long as the prompt.
    """
    computed = max(1.0, computed_tokens)
    past = found_tokens if found_tokens >= 1 else computed
    alone_s, after_s = step_model(deployment).with_engine(None).prefill(np.full(2, computed), np.array([0.0, past]))
    return max(0.0, float(after_s / alone_s) - 1) / past
