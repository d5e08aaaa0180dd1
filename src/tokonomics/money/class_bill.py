"""What each class of service pays of a fleet's bill: its GPU time, and its part of the time left unused.

The rule is that of tenants (``attribution``): used is GPU time in full batches, the unused rest follows the load when
the fleet is fullest. Nobody has searched what a class would cost alone, so no such cap applies here.
"""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.money.attribution import Floats, gpu_seconds, unused_shares
from tokonomics.serving.counted import counted
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE
from tokonomics.traffic.tenants import by_class, load_by_time
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import TOKENS_PER_MTOK

FULLEST = 0.9
"""Of the highest load: what counts as the peak, so that one lucky stretch does not decide who pays."""


class ClassCost(Noun):
    """One class's part of a bill; the parts sum to it."""

    name: str
    tokens: NonNegativeInt
    """Prompts and answers that were delivered."""
    used_usd: NonNegativeFloat
    unused_usd: float
    usd: float
    usd_per_mtok: float | None
    """Of what was delivered; None where nothing was."""


def class_bills(simulation: Simulation, bill_usd: float, times: float = 1.0) -> tuple[ClassCost, ...]:
    """A bill, split among the classes of a simulation as they used it; it pays for so many such simulations."""
    trace, done = simulation.trace, simulation.served.status == DONE
    prompts_s, answers_s = gpu_seconds(simulation)
    worked_s, paid_s = prompts_s + answers_s, counted(simulation).paid_s
    places = by_class(trace)
    used = [bill_usd * float(worked_s[at].sum()) / paid_s for at in places.values()]
    # A part of a bill is never more than all of it: no other cap is known.
    unused = unused_shares(bill_usd, used, at_peak(_as_tenants(trace), worked_s, list(places)), [bill_usd] * len(used))
    found = []
    for (place, at), own, rest in zip(places.items(), used, unused, strict=True):
        answered = at[done[at]]
        delivered = trace.input_tokens[answered].sum(dtype="i8") + trace.output_tokens[answered].sum(dtype="i8")
        tokens = round(float(delivered) * times)
        found.append(
            ClassCost(
                name=trace.classes[place].name,
                tokens=tokens,
                used_usd=own,
                unused_usd=rest,
                usd=own + rest,
                usd_per_mtok=(own + rest) / tokens * TOKENS_PER_MTOK if tokens else None,
            )
        )
    return tuple(found)


def at_peak(trace: Trace, used_s: Floats, senders: Sequence[int]) -> list[float]:
    """Each tenant's load in the fullest of 24 stretches of the trace: those within a tenth of the highest."""
    load = load_by_time(trace, used_s)
    total = load.sum(axis=0)
    fullest = total >= FULLEST * total.max()
    return [float(load[sender, fullest].sum()) for sender in senders]


def _as_tenants(trace: Trace) -> Trace:
    return replace(trace, tenant=trace.service, tenants=tuple(one.name for one in trace.classes))
