"""A vLLM process whose every request is known: what it shows on its metrics page at any time, from a simulation.

It serves traffic that the twin is not told, on a server that differs from the model by factors that it is not told.
Lengths are log-normal; the prompts of a conversation share most of their tokens, others share none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tests.measure.metered import HandClock

from tokonomics.operate.expect import profile_of
from tokonomics.physics.calibration import using
from tokonomics.questions.deployment import deployment_of
from tokonomics.questions.inputs import Layout
from tokonomics.serving.state import DONE
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

Floats = NDArray[np.float64]

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
"""The bounds of vLLM 0.32 for the time to the first token."""
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)
_BLOCK = 16


def modelled(model: str = "llama-3.1-8b", gpu: str = "H200") -> Setup:
    """The set-up that the twin simulates."""
    nothing = make_trace(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    return Setup(deployment_of(Layout(), model, gpu), load_of_requests(nothing))


@dataclass(frozen=True)
class Stretch:
    """Traffic for a while, and how the server differs from its model meanwhile."""

    seconds: float
    rate: float
    input_tokens: float = 1200.0
    output_tokens: float = 200.0
    shared: float = 0.5  # of the prompts' tokens, those found in the cache
    factors: dict[str, float] = field(default_factory=dict)
    kv_cache_dtype: str = "auto"
    restarted: bool = False


def _requests(stretch: Stretch, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    number = max(2, rng.poisson(stretch.rate * stretch.seconds))
    arrival = np.sort(rng.uniform(0, stretch.seconds, number))

    def lengths(mean: float, spread: float, most: int) -> NDArray[np.int64]:
        drawn = rng.lognormal(np.log(mean) - spread**2 / 2, spread, number)
        return np.clip(np.round(drawn), 1, most).astype(np.int64)

    inputs, outputs = lengths(stretch.input_tokens, 0.6, 16_000), lengths(stretch.output_tokens, 0.5, 4000)
    # Of four in five conversations' prompts, as much is shared as gives the share of all.
    talks = rng.random(number) < 0.8
    blocks = np.where(talks, np.floor(stretch.shared / 0.8 * inputs / _BLOCK), 0).astype(np.int64)
    prefix = None
    if blocks.max() > 0:
        of = rng.integers(0, 8, number)
        longest = int(blocks.max())
        ids = np.concatenate([group * longest + np.arange(count) for group, count in zip(of, blocks, strict=True)])
        starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        prefix = PrefixBlocks(ids=ids.astype(np.int32), starts=starts, block_tokens=_BLOCK, distinct=8 * longest)
    return make_trace(arrival, inputs, outputs, prefix=prefix)


class ServedVllm:
    """The process, from a beginning on; its page states what it had counted at an instant."""

    def __init__(
        self, clock: HandClock, setup: Setup, stretches: Sequence[Stretch], seed: int = 0, *, again: bool = False
    ) -> None:
        """With ``again``, the stretches begin again and again, and the counters go on."""
        self.clock, self.up, self.began, self.again = clock, True, clock.wall(), again
        columns: list[tuple[Floats, ...]] = []
        at = 0.0
        self._processes: list[tuple[float, str]] = []
        for number, stretch in enumerate(stretches):
            trace = _requests(stretch, seed * 1000 + number)
            with using(profile_of(setup, stretch.factors)):
                made, _ = serve(replace(setup, load=load_of_requests(trace)), 1)
            served = made.served
            assert (served.status == DONE).all()
            columns.append((
                trace.arrival_s + at, served.first_token_s + at, served.finish_s + at,
                trace.input_tokens.astype(float), trace.output_tokens.astype(float), served.cached_tokens.astype(float),
            ))  # fmt: skip
            if stretch.restarted or not self._processes:
                self._processes.append((at, stretch.kv_cache_dtype))
            at += stretch.seconds
        (self.arrival, self.first, self.finish, self.inputs, self.outputs, self.cached) = (
            np.concatenate(parts) for parts in zip(*columns, strict=True)
        )
        self.seconds = at

    def page(self) -> str:
        rounds, now = divmod(self.clock.wall() - self.began, self.seconds if self.again else np.inf)
        since, dtype = [process for process in self._processes if process[0] <= now][-1]
        begun = (self.first > since) & (self.first <= now)
        ended = (self.finish > since) & (self.finish <= now)
        running = (self.arrival <= now) & (self.finish > now)
        several = ended & (self.outputs > 1)
        per_token = (self.finish - self.first) / np.maximum(self.outputs - 1, 1)
        held = float((self.inputs - self.cached + self.outputs / 2)[running].sum())
        label = 'engine="0",model_name="llama-3.1-8b"'

        def total(values: Floats, of: NDArray[np.bool_]) -> float:
            return float(values[of].sum()) + rounds * float(values.sum())

        ones: Floats = np.ones(len(self.arrival))
        lines = [
            f"process_start_time_seconds {float(self.began + since)!r}",
            f'vllm:cache_config_info{{cache_dtype="{dtype}",engine="0",num_gpu_blocks="50000"}} 1.0',
            f"vllm:prompt_tokens_total{{{label}}} {total(self.inputs, begun)}",
            f"vllm:prompt_tokens_cached_total{{{label}}} {total(self.cached, begun)}",
            f"vllm:generation_tokens_total{{{label}}} {total(self.outputs, ended)}",
            f"vllm:iteration_tokens_total_count{{{label}}} {max(0.0, now - since + rounds * self.seconds) * 50}",
            f'vllm:request_success_total{{{label},finished_reason="stop"}} {total(ones, ended)}',
            f"vllm:num_requests_running{{{label}}} {running.sum()}",
            f"vllm:num_requests_waiting{{{label}}} 0.0",
            f"vllm:kv_cache_usage_perc{{{label}}} {min(1.0, held / 800_000)}",
        ]
        for name, values, of, bounds in (
            ("time_to_first_token_seconds", self.first - self.arrival, begun, SECONDS),
            ("request_time_per_output_token_seconds", per_token, several, PER_TOKEN),
            ("request_prompt_tokens", self.inputs, ended, TOKENS),
            ("request_generation_tokens", self.outputs, ended, TOKENS),
        ):
            counted = self.outputs > 1 if of is several else ones > 0
            up_to = {f"{bound}": total((values <= bound)[counted].astype(np.float64), of[counted]) for bound in bounds}
            number = total(ones[counted], of[counted])
            lines += [f'vllm:{name}_bucket{{{label},le="{bound}"}} {count}' for bound, count in up_to.items()]
            lines += [
                f'vllm:{name}_bucket{{{label},le="+Inf"}} {number}',
                f"vllm:{name}_sum{{{label}}} {total(values[counted], of[counted])!r}",
                f"vllm:{name}_count{{{label}}} {number}",
            ]
        return "\n".join(lines) + "\n"
