"""Compute what a setup costs a month and its latencies: its replicas simulated, bought on whole machines, and billed.

``Bill`` is the one bill: plans, levers and their steps consist of it, and every dollar in them comes from ``dollars``.
Setups that differ only in how they are bought are simulated once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import is_stale
from tokonomics.errors import option
from tokonomics.money.cache_tiers import TierPrice
from tokonomics.money.cost import CostLine, CostTree, TokenPrices, split_by_gpu_time, with_cached
from tokonomics.physics.calibration import Coverage, profiled
from tokonomics.physics.deployment import Deployment, DraftMethod
from tokonomics.physics.intervals import known_speed, speed_from
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import Outcome, SloOutcome
from tokonomics.sizing.attempt import Attempts, Sized, attempt, cached_share, prefill_share
from tokonomics.sizing.buy import Bought, buy, hosts_for
from tokonomics.sizing.disaggregation import Pair, pair_of
from tokonomics.sizing.hosts import HOST_MEMORY, UNUSED, Hosts, left_gb
from tokonomics.sizing.layouts import NotServed, Reason, is_faithful
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import held_by_one
from tokonomics.sizing.search import cannot_serve, size
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.traffic.workload import Spread, Workload
from tokonomics.types import Noun, Same, Speed, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

Found = TypeVar("Found")
DECODING = "decode"  # the line of a bill with the GPU-hours that write answers
CENT = 0.005  # per month: bills that differ by less count as equal


class DraftUse(Noun):
    """How a layout uses a draft."""

    method: DraftMethod
    name: str  # such as ``mtp:3``
    tokens: int  # drafted in a round
    acceptance: float  # of a drafted token
    tokens_per_round: float
    checkpoint: str | None  # where the draft is found, if it is not in the model's own checkpoint
    source: str | None  # who published the acceptance; None: the user gave it


class JobCost(Noun):
    """The cost and the duration of one session of the traffic."""

    requests: float  # mean requests per session
    per_s: float  # sessions that start in a second
    usd: float  # its share of the whole bill
    job_s: Spread | None  # from the first request to the last answer; None if nothing was simulated
    server_share: float | None  # share of that time at the server; the rest are pauses
    cached_share: float | None  # of the prompt tokens


class Bill(Noun):
    """What a setup costs a month, and the latencies of its requests."""

    model: str
    deployment: str  # the model and its layout, such as ``llama-3.1-8b bf16 on 2×H100``
    gpu: str
    gpus_per_replica: int
    tp: int
    pp: int
    ep: int
    dp: int
    weights: Precision
    kv: Precision
    engine: str
    draft: DraftUse | None  # None: nothing drafts
    below_checkpoint: bool  # weights or KV cache have fewer bits than the published checkpoint: check quality
    speed: Speed
    """Whether the kernels behind the speed were timed on this GPU, or are another's scaled by the datasheet."""
    speed_from: tuple[str, ...]  # those other GPUs
    profiled: Coverage | None  # whether the profile in use was measured on this layout; None without a profile
    replicas: PositiveInt  # at most, spare ones included; in a disaggregated setup, those that answer
    prefill_replicas: NonNegativeInt  # those that only compute prompts, in addition
    mean_replicas: PositiveFloat  # of both kinds, over time, spare ones included
    max_sequences: PositiveInt  # at a time on a replica: the engine's own limit, or a lower one that meets the SLOs
    router: Router  # how requests find their replica
    tiers: str | None = None
    """Memories for KV behind the GPUs', per replica, as asked for or as the hosts have left."""
    memories: tuple[TierPrice, ...] = ()  # the same with their sizes and prices
    memory_assumed: bool = False
    """Their size is an assumption about the host memory left, not what was asked for."""
    price_date: date  # the oldest of the prices in it
    price_stale: bool
    gpus_paid: float  # in the mean over time
    simulated: bool = True  # otherwise the closed form's means
    batch: NonNegativeFloat  # mean sequences running on a replica
    ttft_s: Spread  # of simulated requests; only the mean if it is from the closed form
    tpot_s: Spread
    e2e_s: Spread
    slo: tuple[SloOutcome, ...] = ()  # of simulated requests
    load_share: float | None
    """Share of what the replicas hold, for mean requests, under the SLO on time per token. None: not known."""
    cached_share: NonNegativeFloat  # of the prompt tokens: found in the prefix cache
    usd_per_month: PositiveFloat
    usd_per_mtok: TokenPrices  # reservation basis: the whole bill
    usd_per_mtok_usage: float  # blended, usage basis: only for the share of the paid capacity that the traffic uses
    job: JobCost | None  # of traffic in sessions
    bill: CostTree

    @property
    def bought(self) -> str:
        """Describe the machines."""
        return self.bill.name

    @property
    def all_replicas(self) -> int:
        """Count decode and prefill replicas together."""
        return self.replicas + self.prefill_replicas


def layout_fields(deployment: Deployment) -> dict[str, Any]:
    """Return the fields of a bill that describe a layout."""
    drafts = deployment.speculation
    names = ("method", "name", "tokens", "acceptance", "tokens_per_round", "checkpoint", "source")
    return {
        "model": deployment.model.key,
        "deployment": str(deployment),
        "gpu": deployment.gpu.key,
        "gpus_per_replica": deployment.gpus,
        **copied(deployment, "tp", "pp", "ep", "dp", "weights", "kv"),
        "engine": deployment.engine.key,
        "draft": DraftUse(**copied(drafts, *names)) if drafts else None,
        "below_checkpoint": not is_faithful(deployment),
        "speed": known_speed(deployment),
        "speed_from": speed_from(deployment),
        "profiled": profiled(deployment),
    }


def served_fields(made: Outcome) -> dict[str, Any]:
    """Return the fields of a bill that describe simulated latencies."""
    return {"simulated": True, **copied(made, "batch", "ttft_s", "tpot_s", "e2e_s", "slo")}


# --- dollars --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenSplit:
    """How prompts and answers, computed and cached tokens share a bill, on any machines.

    Prompts pay for prefill's share of the busy time, answers for the rest (``money.cost.split_by_gpu_time``). Of
    prefill's share, tokens that are found in the prefix cache pay for the time that attending to them adds
    (``money.cost.with_cached``): the meter uses the same rule (``measure.meter.bill``). If no prompt of the traffic
    repeats another, the price is what a cached token would cost.
    """

    workload: Workload
    prefill_share: float  # of the busy time of GPUs
    cached_share: float  # of the prompt tokens
    attending: float | None
    """The time that one cached token adds to computing the rest of its prompt; None if no prefix is kept."""

    def prices(self, usd_per_month: float) -> TokenPrices:
        """Return the token prices of a setup that costs this much."""
        rate, lengths = self.workload.rate, (self.workload.input_tokens, self.workload.output_tokens)
        prices = split_by_gpu_time(usd_per_month / SECONDS_PER_MONTH, rate, *lengths, self.prefill_share)
        if self.attending is None:
            return prices
        return with_cached(prices, lengths[0], self.cached_share * lengths[0], self.attending)


def token_split(prompts: Deployment, load: Load, prefill_share: float, made: Outcome | None) -> TokenSplit:
    """Return how the tokens of a load share a bill if ``prompts`` computes the prompts.

    The cached share is that of the simulation ``made``; without one, what an unlimited cache would find.
    """
    tokens, found_share = load.workload.input_tokens, 0.0
    if made:
        found_share = cached_share(made)
    elif load.trace.prefix is not None and prompts.reuses_prefixes:
        found_share = max(0.0, 1 - load.computed_mean / tokens)
    found = found_share * tokens
    added = attending(prompts, tokens - found, found) if prompts.reuses_prefixes else None
    return TokenSplit(load.workload, 1.0 if prompts.model.is_encoder else prefill_share, found_share, added)


def attending(deployment: Deployment, computed_tokens: float, found_tokens: float) -> float:
    """Return what one cached token adds to computing the rest of its prompt, as a share of that time.

    If nothing is cached: what a cached token would add if half of the prompt were, as a share of the whole prompt's
    time. A cached token never costs more than a computed one.
    """
    computed, past, whole = max(1.0, computed_tokens), found_tokens, max(1.0, computed_tokens)
    if found_tokens < 1:
        computed = past = max(1.0, whole / 2)
    steps = step_model(deployment).with_engine(None)
    alone_s, after_s, whole_s = steps.prefill(np.array([computed, computed, whole]), np.array([0.0, past, 0.0]))
    return min(1 / whole, max(0.0, float((after_s - alone_s) / whole_s)) / past)


def dollars(
    load: Load,
    split: TokenSplit,
    what: str,
    usd_per_month: float,
    gpus: tuple[float, float],
    full_share: float,
    made: Outcome | None = None,
    memories: Sequence[CostLine] = (),
) -> dict[str, Any]:
    """Return the money of a bill: a month of machines split by what their GPUs do, by token and by job.

    ``gpus`` are those that replicas run on, and all that are paid. Prompts and answers are charged for the time they
    take at full load, which is ``full_share`` of what the replicas hold; what a smaller batch wastes is idle capacity.
    """
    used, paid = gpus
    working = used * min(1.0, full_share)
    hours = {
        "prefill": working * split.prefill_share,
        DECODING: working * (1 - split.prefill_share),
        "idle": used - working,
        UNUSED: paid - used,
    }
    each = usd_per_month / (paid * HOURS_PER_MONTH)
    lines = [
        CostLine(name=name, quantity=number * HOURS_PER_MONTH, unit="GPU-hour", usd_per_unit=each)
        for name, number in hours.items()
        if number > 1e-9
    ]
    # Not the sum of its parts, whose last digit may differ between equal bills.
    total = usd_per_month + math.fsum(line.usd for line in memories)
    prices = split.prices(total)
    return {
        "gpus_paid": paid,
        "usd_per_month": total,
        "usd_per_mtok": prices,
        "usd_per_mtok_usage": prices.blended * working / paid,
        "cached_share": split.cached_share,
        "job": job_cost(load, made, total),
        "bill": CostTree(name=what, lines=(*lines, *memories)),
    }


def job_cost(load: Load, made: Outcome | None, usd_per_month: float) -> JobCost | None:
    """Return a session's share of the bill and its duration; None if the traffic has no sessions."""
    turns = load.trace.turns
    if turns is None or not turns.sessions:
        return None
    requests = len(load.trace) / turns.sessions
    per_s = load.workload.rate / requests
    seen = made.sessions if made else None
    return JobCost(
        requests=requests,
        per_s=per_s,
        usd=usd_per_month / SECONDS_PER_MONTH / per_s,
        job_s=seen.job_s if seen else None,
        server_share=seen.server_share if seen else None,
        cached_share=cached_share(made) if made else None,
    )


def _held_by_one(setup: Setup, hosts: Hosts, sized: Sized) -> tuple[float | None, float | None]:
    """Return the closed form's request rate of one replica and, if disaggregated, prefill's share of all GPU time."""
    pair = pair_of(setup, hosts) if setup.disaggregated else None
    if not isinstance(pair, Pair):
        return held_by_one(setup), None
    capacity = pair.split(sized.prefill_replicas, sized.replicas - sized.prefill_replicas).capacity
    return capacity.rate, capacity.prefill_share


# --- bills of setups ------------------------------------------------------------------------------------------------


@dataclass
class Bills:
    """Make bills; setups that differ only in how they are bought share their simulations."""

    progress: Say = silent
    attempts: Attempts = field(default_factory=Attempts)
    found: dict[object, Any] = field(default_factory=dict)
    """Results of earlier searches, for callers that ask the same again."""
    part: str = ""  # the part of the work being done: ``4 of 14 levers: FP8 KV cache``

    def begin(self, part: str) -> None:
        """Report which part of the work begins."""
        self.part = part
        self.progress(part)

    def say(self, what: str) -> None:
        """Report what is being done, after the name of the current part of the work."""
        self.progress(f"{self.part} ({what})" if self.part else what)

    def once(self, key: object, search: Callable[[], Found]) -> Found:
        """Return what a search finds for this key; it runs once."""
        if key not in self.found:
            self.found[key] = search()
        found: Found = self.found[key]
        return found

    def bill_of(self, setup: Setup) -> Bill | NotServed:
        """Return the bill of a setup, or why it has none."""
        if setup.tiers == HOST_MEMORY:
            return self._in_host_memory(setup)
        served = self.served(setup)
        return served if isinstance(served, NotServed) else self._bill(setup, *served)

    def bill_on(self, setup: Setup, replicas: int) -> Bill | NotServed:
        """Return the bill of a setup on exactly this many replicas, whether or not they meet its SLOs."""
        if refusal := cannot_serve(replace(setup, slos=())):
            return refusal
        sized = attempt(setup, replicas, setup.max_sequences, 1.0)
        bought = buy(setup, sized)
        return bought if isinstance(bought, NotServed) else self._bill(setup, sized, bought)

    def served(self, setup: Setup) -> tuple[Sized, Bought] | NotServed:
        """Return a setup on the fewest replicas that meet its SLOs, and the machines bought for them."""

        def search() -> Sized | NotServed:
            self.say(str(setup.deployment))
            return size(setup, self.attempts)

        # The split into prefill and decode replicas depends on the cost of machines.
        market = (Same(setup.offers), setup.spare) if setup.disaggregated else None
        sized = self.once((setup.as_fixed_fleet, market, setup.autoscale), search)
        if isinstance(sized, NotServed):
            return sized
        bought = buy(setup, sized)
        return bought if isinstance(bought, NotServed) else (sized, bought)

    def _in_host_memory(self, setup: Setup) -> Bill | NotServed:
        """Return the bill with KV kept in the host memory that its machines have left.

        Which machines it runs on is known only after sizing: start from those of the setup without the tier, and take
        less memory if the final machines have less.
        """
        with_memory = replace(setup, tiers=None)
        served, gb = self.served(with_memory), math.inf
        while not isinstance(served, NotServed):
            left = [left_gb(setup.deployment, offer) for offer in served[1].offers]
            known = [room for room in left if room is not None]
            if len(known) < len(left):
                fix = f"Say how much is free: {option('tiers', 'dram=200@0')}."
                return NotServed(Reason.host_too_small, "the memory of its machine is not known", fix)
            if (room := math.floor(min(known))) < 1:
                fix = f"Give {option('tiers', 'ssd=1000')}."
                return NotServed(Reason.host_too_small, "weights and processes leave none of the host's memory", fix)
            if room >= gb:
                return self._bill(with_memory, *served).model_copy(update={"memory_assumed": True})
            gb = room
            with_memory = replace(setup, tiers=f"dram={gb}@0")
            served = self.served(with_memory)
        return served

    def _bill(self, setup: Setup, sized: Sized, bought: Bought) -> Bill:
        made, deployment, memories = sized.outcome, setup.deployment, setup.memories()
        hosts, _ = hosts_for(setup, sized)

        def with_spare(replicas: int) -> tuple[int, int]:
            return max((hosts.counts_on(offer, replicas) for offer in bought.offers), key=sum)

        prompts, answers = with_spare(sized.replicas)
        running = sized.mean_over_time(lambda replicas: sum(with_spare(replicas)))
        machine_gb = max(0.0, min(left_gb(deployment, offer) or 0.0 for offer in bought.offers))
        tiers = tuple(
            line.model_copy(update={"quantity": line.quantity * HOURS_PER_MONTH})
            for line in (tier.line(running, machine_gb) for tier in memories)
        )
        price_date = min([bought.price_date, *(tier.price_date for tier in memories if tier.price_date)])
        held, share = _held_by_one(setup, hosts, sized)
        load_share = setup.load.workload.rate / (held * running) if held else None
        first = setup.prefill or deployment
        gpus = running * deployment.gpus + prompts * (first.gpus - deployment.gpus), bought.gpus_paid
        full_share = 1 - made.shares.idle if load_share is None else load_share
        split = token_split(first, setup.load, prefill_share(made) if share is None else share, made)
        return Bill(
            **layout_fields(deployment),
            **served_fields(made),
            **dollars(setup.load, split, bought.what, bought.usd_per_month, gpus, full_share, made, tiers),
            replicas=answers,
            prefill_replicas=prompts,
            router=sized.router,
            mean_replicas=running,
            max_sequences=sized.max_sequences or deployment.limits.max_sequences,
            tiers=setup.tiers if isinstance(setup.tiers, str) else None,
            memories=memories,
            price_date=price_date,
            price_stale=is_stale(price_date, setup.today) or any(tier.price_stale for tier in memories),
            load_share=load_share,
        )
