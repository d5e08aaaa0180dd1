"""What a setup costs a month and how its requests fare: its replicas simulated, then bought.

Simulations are kept, so that setups that differ only in how they are bought are simulated once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.offers import is_stale
from tokonomics.errors import option
from tokonomics.money.cache_tiers import TierPrice
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.planner.machines import UNUSED, gpu_hour_lines, left_gb
from tokonomics.planner.purchase import Bought, buy
from tokonomics.planner.setup import HOST_MEMORY, Memo, NotServed, Setup
from tokonomics.planner.sizing import size
from tokonomics.planner.trials import Sized, better, cached_share
from tokonomics.serving.fleet import Router
from tokonomics.serving.outcome import Kept, Shares, Spread
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

IN_VAIN = "done in vain"
"""Work done again after a preemption, or for clients that hung up."""
SPARE = "spare replicas"


class SetupBill(Noun):
    """What a setup costs, and how its requests fare."""

    deployment: str
    replicas: PositiveInt
    """At the most; with those for prompts, without spare ones."""
    prefill_replicas: NonNegativeInt
    mean_replicas: PositiveFloat
    """Paid for, over time."""
    max_sequences: PositiveInt
    router: Router
    bought: str
    price_date: date
    """The oldest of the prices in it."""
    price_stale: bool
    gpus_paid: PositiveFloat
    """In the mean over time."""
    usd_per_month: PositiveFloat
    usd_per_mtok: PositiveFloat
    """The whole bill over all tokens, prompt and answer."""
    requests_per_s: PositiveFloat
    batch: NonNegativeFloat
    load_share: float | None
    """Requests finished over those that full batches would finish: what is left is room to grow. None: not known."""
    cached_share: NonNegativeFloat
    """Of the prompt tokens."""
    memories: tuple[TierPrice, ...]
    """For KV, behind the GPU's."""
    memory_assumed: bool
    """Their size is what the machine's memory is taken to have left, not what was asked for."""
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    shares: Shares
    slo: tuple[Kept, ...]
    bill: CostTree


@dataclass
class Bills:
    """Makes bills; the simulations of setups that differ only in how they are bought are made once."""

    progress: Callable[[str], None] = lambda what: None
    memo: Memo = field(default_factory=Memo)
    """Simulations and searches made on the way, for whoever asks the same again."""

    def holds(self, setup: Setup, replicas: int) -> bool:
        """Whether a fixed fleet of so many meets the SLOs."""
        return self.memo.once(
            ("holds", setup.as_fixed_fleet, replicas), setup.load, lambda: better(setup, replicas).holds
        )

    def of(self, setup: Setup) -> SetupBill | NotServed:
        """The bill of a setup, or why it has none."""
        if setup.tiers == HOST_MEMORY:
            return self._in_host_memory(setup)
        served = self._served(setup)
        return served if isinstance(served, NotServed) else self._bill(setup, *served)

    def _served(self, setup: Setup) -> tuple[Sized, Bought] | NotServed:
        def made() -> Sized | NotServed:
            self.progress(str(setup.deployment))
            return size(setup, self.memo)

        key = "sized", setup.as_fixed_fleet, setup.disaggregated, setup.autoscale
        sized = self.memo.once(key, setup.load, made)
        if isinstance(sized, NotServed):
            return sized
        bought = buy(setup, sized)
        return bought if isinstance(bought, NotServed) else (sized, bought)

    def _in_host_memory(self, setup: Setup) -> SetupBill | NotServed:
        """With the memory that the machines it is bought on have left.

        Which machines, and how many replicas share one, is known only once it is served: it begins with those of the
        setup without the tier, and takes less where those it ends on have less.
        """
        wished = replace(setup, tiers=None)
        served, gb = self._served(wished), math.inf
        while not isinstance(served, NotServed):
            left = [left_gb(setup.deployment, offer) for offer in served[1].offers]
            known = [room for room in left if room is not None]
            if len(known) < len(left):
                return NotServed(
                    "the memory of its machine is not known", f"Say how much is free: {option('tiers', 'dram=200@0')}."
                )
            if (room := math.floor(min(known))) < 1:
                return NotServed(
                    "weights and processes leave none of the host's memory", f"Give {option('tiers', 'ssd=1000')}."
                )
            if room >= gb:
                return self._bill(wished, *served).model_copy(update={"memory_assumed": True})
            gb = room
            wished = replace(setup, tiers=f"dram={gb}@0")
            served = self._served(wished)
        return served

    def _bill(self, setup: Setup, sized: Sized, bought: Bought) -> SetupBill:
        made, deployment, memories = sized.outcome, setup.deployment, setup.memories()
        tiers = tuple(
            CostLine(
                name=line.name, quantity=line.quantity * HOURS_PER_MONTH, unit=line.unit, usd_per_unit=line.usd_per_unit
            )
            for line in (tier.line(sized.replicas + setup.spare) for tier in memories)
        )
        price_date = min([bought.price_date, *(tier.price_date for tier in memories if tier.price_date)])
        per_gpu_hour = bought.usd_per_month / (bought.gpus_paid * HOURS_PER_MONTH)
        serving = sized.mean_replicas * deployment.gpus * HOURS_PER_MONTH
        spare = setup.spare * deployment.gpus * HOURS_PER_MONTH
        hours = {
            "prefill": serving * made.shares.prefill,
            "decode": serving * made.shares.decode,
            IN_VAIN: serving * (made.shares.recomputed + made.shares.abandoned),
            "idle": serving * made.shares.idle,
            SPARE: spare,
            UNUSED: max(0.0, bought.gpus_paid * HOURS_PER_MONTH - serving - spare),
        }
        tree = CostTree(name=bought.what, lines=(*gpu_hour_lines(hours, per_gpu_hour), *tiers))
        # Not the sum of its parts, whose last digit differs between equal bills.
        usd_per_month = bought.usd_per_month + math.fsum(line.usd for line in tiers)
        workload = setup.load.workload
        mtok = workload.rate * (workload.input_tokens + workload.output_tokens) / TOKENS_PER_MTOK
        mtok_per_month = mtok * SECONDS_PER_HOUR * HOURS_PER_MONTH
        return SetupBill(
            deployment=str(deployment),
            replicas=sized.replicas,
            prefill_replicas=sized.prefill_replicas,
            mean_replicas=sized.mean_replicas,
            max_sequences=sized.max_sequences or deployment.limits.max_sequences,
            router=sized.router,
            bought=bought.what,
            price_date=price_date,
            price_stale=is_stale(price_date, setup.today) or any(tier.price_stale for tier in memories),
            gpus_paid=bought.gpus_paid,
            usd_per_month=usd_per_month,
            usd_per_mtok=usd_per_month / mtok_per_month,
            requests_per_s=workload.rate,
            batch=made.batch,
            load_share=made.load_share,
            cached_share=cached_share(made),
            memories=memories,
            memory_assumed=False,
            ttft_s=made.ttft_s,
            tpot_s=made.tpot_s,
            e2e_s=made.e2e_s,
            shares=made.shares,
            slo=made.slo,
            bill=tree,
        )
