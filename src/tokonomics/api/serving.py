"""What arrives, what a deployment does with it request by request, and how much it holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokonomics.api.ask import Discount, Slo, Words, as_files, ask, documented, refuse
from tokonomics.api.frames import Prices, Requests
from tokonomics.api.result import Result
from tokonomics.errors import TokonomicsError
from tokonomics.money.served import ServedCost
from tokonomics.serving.capacity import HighestRate, ReplicasNeeded
from tokonomics.serving.outcome import Moment, Outcome
from tokonomics.traffic.summary import TraceSummary
from tokonomics.traffic.trace import Trace
from tokonomics.units import count, plural, seconds, usd


class SimulateResult(Result, Outcome):
    """A simulation in figures, its bill, and how it went over time."""

    SHOWN = ("usd_per_mtok", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2e_p99_s", "slo_kept",
             "slo_attainment", "requests_per_s", "output_tokens_per_s", "utilization", "load_share", "batch",
             "kv_peak_share", "preemptions", "replica_hours", "cost_usd")  # fmt: skip

    deployment: str
    usd_per_mtok: float | None
    """The whole bill over all tokens; None where no price is known."""
    cost: ServedCost | None
    timeline: tuple[Moment, ...]
    wall_s: float
    simulated_requests_per_s: float

    def headline(self) -> str:
        price = "no price" if self.usd_per_mtok is None else f"{usd(self.usd_per_mtok)} per Mtok"
        times = [(name, spread.p99) for name, spread in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))]
        latency = "".join(f", {name} p99 {seconds(value)}" for name, value in times if value is not None)
        broken = ", ".join(each.promise for each in self.slo if not each.kept)
        kept = "" if self.slo_kept is None else f"; {broken} broken" if broken else "; every promise kept"
        return f"{self.deployment}: {price}{latency}; {plural(self.requests, 'request')}{kept}"


class CapacityResult(Result):
    """The highest rate of one replica, and the replicas that a log needs."""

    ROWS = "highest_rate.trials"
    SHOWN = ("rate", "breaks", "outcome_ttft_p99_s", "outcome_tpot_p99_s", "outcome_output_tokens_per_s",
             "outcome_batch", "outcome_utilization")  # fmt: skip

    deployment: str
    rate: float
    """Requests a second that one replica holds."""
    replicas: int | None
    """For the log at its own rate; None for made-up requests."""
    usd_per_mtok: float | None
    highest_rate: HighestRate
    replicas_needed: ReplicasNeeded | None
    cost: ServedCost | None

    def headline(self) -> str:
        price = "" if self.usd_per_mtok is None else f", {usd(self.usd_per_mtok)} per Mtok"
        needed = "" if self.replicas is None else f"; this log needs {plural(self.replicas, 'replica')}"
        breaks = self.highest_rate.broken
        return f"{self.deployment}: {self.rate:.3g} requests/s a replica, then {breaks}{needed}{price}"


class TraceResult(Result, TraceSummary):
    """What traffic is like."""

    SHOWN = ("requests", "duration_s", "rate", "input_mean", "input_p99", "output_mean", "output_p99", "local_cv",
             "tokens_per_second", "peak_minute_over_mean", "bad_rows")  # fmt: skip

    def headline(self) -> str:
        span = seconds(self.duration_s)
        return (
            f"{self.source}: {plural(self.requests, 'request')} over {span}, {self.rate:.3g} a second; "
            f"{count(self.input.mean)} tokens in and {count(self.output.mean)} out in the mean"
        )


@documented
def simulate(
    model: str | Path, *, gpu: str, tp: int = 1, pp: int = 1, ep: int = 1, weights: str | None = None,
    kv: str = "bf16", engine: str = "vllm", trace: Requests | None = None, columns: str | None = None,
    strict: bool = False, start: float | str | None = None, end: float | str | None = None,
    sample: float | None = None, speed: float | None = None, rate: float | str | None = None,
    tokens_per_month: float | str | None = None, arrivals: str | None = None, requests: int | None = None,
    duration: float | str | None = None, input: int | str | None = None, output: int | str | None = None,
    system_prompts: str | None = None, sessions: str | None = None, tenants: int | str | None = None,
    servegen_model: str | None = None, servegen_scale: float | None = None, seed: int = 0, replicas: int = 1,
    router: str = "least-outstanding", autoscale: str | Mapping[str, float] | None = None,
    outage: str | Sequence[str] | None = None, prefill_replicas: int = 0, link: float | None = None,
    timeout: float | str | None = None, priority: bool = False, no_prefix_cache: bool = False,
    max_sequences: int | None = None, max_batched_tokens: int | None = None, slo: Slo | None = None,
    usd_per_hour: float | None = None, provider: Words | None = None, region: Words | None = None,
    discount: Discount | None = None, offers: Prices | None = None, save: str | Path | None = None,
    profile: str | Path | None = None,
) -> SimulateResult:  # fmt: skip
    """Serve requests on a deployment, one by one: latency, throughput, utilisation, cost.

    >>> tk.simulate("llama-3.1-8b", gpu="H100", trace="azure-conv", speed=4, slo={"ttft_p99": 0.5}, usd_per_hour=2.0)
    """
    return ask(simulate, SimulateResult, locals())


@documented
def capacity(
    model: str | Path, *, gpu: str, tp: int = 1, pp: int = 1, ep: int = 1, weights: str | None = None,
    kv: str = "bf16", engine: str = "vllm", trace: Requests | None = None, columns: str | None = None,
    strict: bool = False, start: float | str | None = None, end: float | str | None = None,
    sample: float | None = None, speed: float | None = None, rate: float | str | None = None,
    tokens_per_month: float | str | None = None, arrivals: str | None = None, requests: int | None = None,
    duration: float | str | None = None, input: int | str | None = None, output: int | str | None = None,
    system_prompts: str | None = None, sessions: str | None = None, tenants: int | str | None = None,
    servegen_model: str | None = None, servegen_scale: float | None = None, seed: int = 0,
    router: str = "least-outstanding", timeout: float | str | None = None, priority: bool = False,
    no_prefix_cache: bool = False, max_sequences: int | None = None, max_batched_tokens: int | None = None,
    slo: Slo | None = None, usd_per_hour: float | None = None, provider: Words | None = None,
    region: Words | None = None, discount: Discount | None = None, offers: Prices | None = None,
    profile: str | Path | None = None,
) -> CapacityResult:  # fmt: skip
    """The highest rate one replica holds under a promise, and the replicas a request log needs; by simulation.

    >>> tk.capacity("llama-3.1-8b", gpu="H100", input=1000, output=300, slo="ttft_p99=0.5,tpot_p99=0.05").rate
    """
    return ask(capacity, CapacityResult, locals())


@documented
def trace(
    file: Requests | None = None, *, columns: str | None = None, strict: bool = False,
    start: float | str | None = None, end: float | str | None = None, sample: float | None = None,
    speed: float | None = None, rate: float | str | None = None, tokens_per_month: float | str | None = None,
    arrivals: str | None = None, requests: int | None = None, duration: float | str | None = None,
    input: int | str | None = None, output: int | str | None = None, system_prompts: str | None = None,
    sessions: str | None = None, tenants: int | str | None = None, servegen_model: str | None = None,
    servegen_scale: float | None = None, seed: int = 0, machine_tokens_per_second: float | None = None,
    machine_usd_per_hour: float | None = None, save: str | Path | None = None,
) -> TraceResult:  # fmt: skip
    """What a request log is like: rates, bursts, lengths, shared prefixes, idle hours. Or make one up.

    >>> tk.trace("azure-conv")
    """
    return ask(trace, TraceResult, locals())


@documented
def read_trace(
    file: Requests | None = None, *, columns: str | None = None, strict: bool = False,
    start: float | str | None = None, end: float | str | None = None, sample: float | None = None,
    speed: float | None = None, rate: float | str | None = None, tokens_per_month: float | str | None = None,
    arrivals: str | None = None, requests: int | None = None, duration: float | str | None = None,
    input: int | str | None = None, output: int | str | None = None, system_prompts: str | None = None,
    sessions: str | None = None, tenants: int | str | None = None, servegen_model: str | None = None,
    servegen_scale: float | None = None, seed: int = 0,
) -> Trace:  # fmt: skip
    """The requests themselves, of a log or made up, as columns: to look at, to alter, and to give as ``trace=``.

    >>> tk.read_trace("azure-conv", speed=4)
    """
    from tokonomics.cli.groups import Traffic
    from tokonomics.cli.traffic_flags import traffic_from

    def word(value: object) -> str | None:
        return None if value is None else str(value)

    with as_files({"file": file}) as readable:
        try:
            asked = Traffic(
                columns=columns, strict=strict, start=word(start), end=word(end), sample=sample, speed=speed,
                rate=word(rate), tokens_per_month=word(tokens_per_month),
                arrivals=arrivals, requests=requests, duration=word(duration), input=word(input),
                output=word(output), system_prompts=system_prompts, sessions=sessions, tenants=word(tenants),
                servegen_model=servegen_model, servegen_scale=servegen_scale, seed=seed,
            )  # fmt: skip
            return traffic_from(word(readable["file"]), asked)
        except TokonomicsError as error:
            refuse(error)
