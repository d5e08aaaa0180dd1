"""The choice that is least wrong when demand is not known: low, middle and high traffic, one kind of hardware for all.

The number of replicas follows the demand; deployment, machine and terms do not. In each case a choice costs more than
the best one for that case by its regret; the least regret is the choice whose largest is smallest (Savage, "The theory
of statistical decision", 1951), among those that meet the SLOs in every case. Looked at is everything that the plan
of any case sized, on the cheapest machine of each size; what cannot come among the best so far is not simulated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.plan import Study
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import Kind, Placed, kind_of
from tokonomics.planner.what_if import resize
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.layouts import is_faithful, why_not
from tokonomics.sizing.refusal import NotServed
from tokonomics.sizing.screen import screen
from tokonomics.sizing.spare import machines_for, replicas_on
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun, copied


class InCase(Noun):
    """A choice in one case."""

    replicas: PositiveInt
    """Spare ones included."""
    usd_per_month: PositiveFloat
    regret: NonNegativeFloat
    """Bill ÷ the best bill of this case - 1."""


class RegretChoice(Noun):
    """One kind of hardware on one offer, whatever the demand."""

    gpu: str
    layout: str
    weights: Precision
    engine: str
    provider: str
    region: str
    instance: str
    terms: Terms
    below_checkpoint: bool
    cases: tuple[InCase, ...]
    """In the order of the demands."""
    largest_regret: NonNegativeFloat
    best_in: tuple[int, ...]
    """The cases for which it is the pick, by place."""


class Regret(Noun):
    """Choices that hold in every case, the one with the least regret first."""

    demands: tuple[Workload, ...]
    best_usd_per_month: tuple[PositiveFloat, ...]
    """Of each case, by whatever choice is best for it."""
    choices: tuple[RegretChoice, ...]
    not_everywhere: int
    """Choices left out because they miss an SLO in some case, or take more GPUs than allowed."""

    @property
    def least(self) -> RegretChoice | None:
        return self.choices[0] if self.choices else None


def least_regret(studies: Sequence[Study], rows: int = 10) -> Regret | None:
    """The choices with the least regret over studies of the same question for several demands.

    None where some demand cannot be served at all.
    """
    bests = [study.plan.best for study in studies]
    if not all(bests):
        return None
    bills = _Bills(studies, tuple(best.usd_per_month for best in bests if best))
    named: dict[str, Hosts] = {}
    for sized in (sized for study in studies for sized in study.search.sized):
        named.setdefault(sized.screened.name, sized.screened.hosts)
    candidates = list(named.values())
    hopes = sorted((bills.hope(hosts), place) for place, hosts in enumerate(candidates))
    found: dict[Kind, RegretChoice] = {}
    not_everywhere = 0
    for hope, place in hopes:
        enough = sorted(choice.largest_regret for choice in found.values())[:rows]
        if math.isinf(hope):
            not_everywhere += 1
        elif len(enough) < rows or hope <= enough[-1]:
            choice = bills.choice(candidates[place])
            if choice is None:
                not_everywhere += 1
            elif (kind := kind_of(candidates[place].deployment)) not in found or _key(choice) < _key(found[kind]):
                found[kind] = choice
    return Regret(
        demands=tuple(study.question.load.workload for study in studies),
        best_usd_per_month=bills.best,
        choices=tuple(sorted(found.values(), key=_key)[:rows]),
        not_everywhere=not_everywhere,
    )


def _key(choice: RegretChoice) -> tuple[float, float, int, int]:
    """At the same regret, the smaller sum; then more bits."""
    total = sum(case.regret for case in choice.cases)
    return round(choice.largest_regret, 9), round(total, 9), -choice.weights.bits, choice.layout.count("KV")


@dataclass
class _Bills:
    """What choices cost in each case, sized when asked for."""

    studies: Sequence[Study]
    best: tuple[float, ...]
    sized: dict[tuple[int, Deployment], Placed | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for case, study in enumerate(self.studies):
            self.sized |= {(case, sized.deployment): sized for sized in study.search.sized}

    def hope(self, hosts: Hosts) -> float:
        """The smallest regret that the closed form lets it have; infinite where it cannot serve some case."""
        worst = 0.0
        for study, best in zip(self.studies, self.best, strict=True):
            question = study.question
            if why_not(hosts.deployment, question.load.longest):
                return math.inf
            screened = screen(hosts.deployment, hosts, question.load, question.slos)
            if isinstance(screened, NotServed):
                return math.inf
            worst = max(worst, hosts.usd_per_month(screened.fewest) / best - 1)
        return worst

    def choice(self, hosts: Hosts) -> RegretChoice | None:
        """Its best machine over all cases; None where it does not hold in one."""
        counts: list[int] = []
        for case in range(len(self.studies)):
            sized = self._sized(case, hosts)
            if sized is None:
                return None
            counts.append(sized.replicas)
        choices = (self._on(hosts, machine, counts) for machine in hosts.cheapest_of_each_size)
        return min(filter(None, choices), key=_key, default=None)

    def _sized(self, case: int, hosts: Hosts) -> Placed | None:
        key = case, hosts.deployment
        if key not in self.sized:
            found = resize(self.studies[case].question, hosts)
            self.sized[key] = found if isinstance(found, Placed) else None
        return self.sized[key]

    def _on(self, hosts: Hosts, machine: Machine, counts: list[int]) -> RegretChoice | None:
        deployment, offer = hosts.deployment, machine.offer
        spare = hosts.spare
        if machines_for(deployment, offer, max(counts), spare) * offer.gpus > (hosts.max_gpus or math.inf):
            return None
        dollars = [machine.usd_per_month_of(deployment, count, spare) for count in counts]
        counts = [replicas_on(deployment, offer, count, spare) for count in counts]
        cases = tuple(
            # The best is the lowest by the search; a cent of rounding must not make a negative regret.
            InCase(replicas=count, usd_per_month=usd, regret=max(0.0, usd / best - 1))
            for count, usd, best in zip(counts, dollars, self.best, strict=True)
        )
        return RegretChoice(
            gpu=deployment.gpu.key,
            layout=layout(deployment),
            weights=deployment.weights,
            engine=deployment.engine.key,
            **copied(offer, "provider", "region", "instance"),
            terms=machine.terms,
            below_checkpoint=not is_faithful(deployment),
            cases=cases,
            largest_regret=max(case.regret for case in cases),
            best_in=tuple(place for place, case in enumerate(cases) if case.regret < 1e-9),
        )
