"""A measured run done again in the simulator: as many users or the same arrivals, as many requests of those lengths.

A run is finite and its users move in step, so its figures are not those of a steady state: all users of a closed loop
send their first request at once, and the last answers are written by few. Times are what clients saw.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import TokonomicsError
from tokonomics.measure.measurements import Metric, RunFacts, Statistic
from tokonomics.physics.memory import require_fit
from tokonomics.physics.steptime import StepModel
from tokonomics.serving.fleet import FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE, Served
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.types import Noun

Floats = NDArray[np.float64]

PER_USER, FEWEST, MOST, AT_A_RATE = 10, 8, 5000, 500  # requests of a run that states none; 10 a user as InferenceMAX
LEAST_SEQUENCES = 256  # benchmarks raise the engine's limit to the load they make; below this nobody lowers it
_SEED = 0


class RunLoad(Noun):
    users: int | None = None
    rate: float | None = None  # neither: arrivals as they were recorded
    input_tokens: int  # in the mean, where lengths vary; of each request, where its own are not recorded
    output_tokens: int
    spread: float = 0.0  # lengths are uniform within this share around their mean
    facts: RunFacts = RunFacts()


Figures = dict[tuple[Metric, Statistic], float]


@lru_cache(maxsize=512)
def simulated(steps: StepModel, load: RunLoad) -> Figures:
    """Every figure of the run; those of a time that no request has are left out."""
    trace = _trace(load)
    served = _serve(steps, trace, load.users, load.facts)
    warm, opened_s = load.facts.warm_up, float(served.arrival_s.min())
    counted = np.arange(len(trace))
    if warm:
        # As our own benchmark: from when every user has had an answer, in whole rounds of all users.
        opened_s = float(served.finish_s[:warm].max())
        later = np.sort(served.finish_s[served.finish_s > opened_s])
        if not len(later):
            raise TokonomicsError("all requests of the run end before its window opens")
        rounds = math.ceil((len(trace) - 2 * warm) / warm)
        closed_s = later[min(len(later), rounds * warm) - 1]
        counted = np.flatnonzero((served.finish_s > opened_s) & (served.finish_s <= closed_s))
    outputs = trace.output_tokens[counted].astype(np.float64)
    first_s, finish_s = served.first_token_s[counted], served.finish_s[counted]
    window_s = float(finish_s.max()) - opened_s
    longer = outputs > 1
    return {
        (Metric.output_tok_s, Statistic.mean): float(outputs.sum()) / window_s,
        (Metric.total_tok_s, Statistic.mean): float(outputs.sum() + trace.input_tokens[counted].sum()) / window_s,
        **_spread(Metric.ttft_s, first_s - served.arrival_s[counted]),
        **_spread(Metric.tpot_s, (finish_s - first_s)[longer] / (outputs[longer] - 1)),
    }


def _spread(metric: Metric, values: Floats) -> Figures:
    if not len(values):
        return {}
    figures = (values.mean(), *np.percentile(values, (50, 99)))
    return {(metric, statistic): float(value) for statistic, value in zip(Statistic, figures, strict=True)}


def _trace(load: RunLoad) -> Trace:
    """The run's requests; in a closed loop, in the order in which they are sent."""
    facts, around, chance = load.facts, load.facts.warm_up, np.random.default_rng(_SEED)
    count = facts.requests or (min(MOST, max(FEWEST, PER_USER * load.users)) if load.users is not None else AT_A_RATE)

    def lengths(mean: int, told: tuple[int, ...]) -> NDArray[np.int64]:
        """As recorded, or else drawn; those of requests before and after the window are never recorded."""
        least, most = max(1, round(mean * (1 - load.spread))), round(mean * (1 + load.spread))
        before = chance.integers(least, most + 1, around)
        inside = told or chance.integers(least, most + 1, count)
        return np.concatenate([before, inside, chance.integers(least, most + 1, around)])

    inputs = lengths(load.input_tokens, facts.input_tokens)
    outputs = lengths(load.output_tokens, facts.output_tokens)
    if load.users is not None:
        arrival = np.zeros(len(inputs))
    elif facts.arrival_s:
        arrival = np.array(facts.arrival_s)
    else:
        arrival = np.cumsum(chance.exponential(1 / (load.rate or 1.0), len(inputs)))
    return make_trace(arrival, inputs, outputs)


def _serve(steps: StepModel, trace: Trace, users: int | None, facts: RunFacts) -> Served:
    deployment = steps.deployment
    longest = int((trace.input_tokens.astype(np.int64) + trace.output_tokens).max())
    require_fit(deployment, longest)
    most = deployment.limits.max_sequences if users is None else max(users, LEAST_SEQUENCES)
    # What a source says ran is predicted, whatever the model was made for.
    reach = {"max_context": max(deployment.model.max_context, longest)}
    served = simulate(
        deployment.model_copy(update={"model": deployment.model.model_copy(update=reach)}),
        trace,
        FleetSettings(users=users),
        max_sequences=facts.max_sequences or most,
        max_batched_tokens=facts.max_batched_tokens,
        steps=steps,
    ).served
    if not (served.status == DONE).all():
        raise TokonomicsError(f"a request of {longest:,} tokens does not fit {deployment}")
    return served
