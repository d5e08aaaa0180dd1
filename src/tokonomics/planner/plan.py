"""Find the cheapest ways to serve a load: simulate and price every offer × layout × precision, or say why not.

The closed form gives each candidate a lower bound of its bill. In the order of these bounds, the simulator finds the
replicas that meet every SLO, until no remaining candidate could be cheaper than the pick or the runner-up: it costs
more by its bound, or the replicas that its price allows miss an SLO. So the pick is the one that simulating everything
would give. Without simulation, replicas are planned to a share of the closed form's capacity.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import STALE_AFTER_DAYS, Offer, Terms
from tokonomics.catalog.price_index import outdated
from tokonomics.money.cache_tiers import parse_tiers
from tokonomics.physics.deployment import Deployment, Speculation
from tokonomics.planner.disaggregation import disaggregated, kv_transfer_s, together_breaks
from tokonomics.planner.plan_answer import LAST_RESORT, Candidate, Catch, Limits, Plan, PrefillSide, SetAside
from tokonomics.planner.prospects import prospects, reject, rejections, takes_many_cards
from tokonomics.planner.search import TABLE_ROWS, Placed, Search, Sought
from tokonomics.serving.fleet_settings import Router, link_speed
from tokonomics.sizing.attempt import Attempts, prefill_share
from tokonomics.sizing.bill import dollars, layout_fields, served_fields, token_split
from tokonomics.sizing.hosts import Hosts, Machine, Stock, is_networked
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Spread
from tokonomics.types import Same, Speed, copied
from tokonomics.units import HOURS_PER_MONTH


@dataclass(frozen=True)
class Question:
    """Everything a plan depends on."""

    model: ModelSpec
    load: Load
    offers: Sequence[Offer]
    engines: Sequence[Engine]  # none: each GPU with the engine that runs there by default
    today: date
    slos: tuple[Slo, ...] = ()
    weights: tuple[Precision, ...] | None = None  # None: as published, and FP8
    kv: tuple[Precision, ...] = (Precision.bf16,)
    drafts: tuple[Speculation, ...] = ()  # drafts to try, besides none
    lossy: frozenset[tuple[Precision, Precision]] = frozenset()
    """Pairs of weight and KV cache precisions that together lose too much quality."""
    not_tried: Mapping[str, str] = field(default_factory=dict)
    """Precisions left out for their quality, and why."""
    terms: tuple[Terms, ...] = (Terms.on_demand,)
    limits: Limits = field(default_factory=Limits)
    simulate: bool = True
    router: Router | None = None  # None: the one that meets the SLOs on fewest replicas
    tiers: str | None = None
    """KV memory beyond the GPUs that comes with the machines; ``HOST_MEMORY``: what the hosts have left."""
    assumed_speeds: bool = True  # may pick GPUs without kernel timings, their own or a related GPU's
    assumed_networks: bool = True  # may spread pipeline stages over machines whose seller states no network
    consumer_cards: bool = True  # may spread a replica over more than two consumer cards
    disaggregate: bool = False  # may pick disaggregated prefill/decode
    catches: Mapping[Catch, Mapping[str, Any]] = field(default_factory=dict)
    """By reason to set candidates aside: the fields of this question that would let them in."""
    rows: int = TABLE_ROWS  # kinds of hardware sized for a table even if they cannot win
    near: float | None = None
    """Skip candidates that cost more than this factor times the cheapest; None sizes every row of the table."""

    def taking(self, catch: Catch) -> "Question":
        """Return the same question with the candidates that it sets aside for that reason."""
        others = {other: changes for other, changes in self.catches.items() if other != catch}
        return replace(self, **self.catches[catch], catches=others)

    def sought(self, load: Load | None = None, attempts: Attempts | None = None) -> Sought:
        """Return what candidates are sized for: its own load, or another under the same SLOs and limits."""
        made = Attempts() if attempts is None else attempts
        return Sought(self.load if load is None else load, self.slos, self.router, self.limits, made)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return every GPU on which the model may be served."""
        return tuple(dict.fromkeys(offer.gpu for offer in self.offers))

    def on(self, gpu: str) -> "Question":
        """Return the same question for one GPU."""

        def of_it(offers: Sequence[Offer]) -> tuple[Offer, ...]:
            return _by_gpu(Same(offers)).get(gpu, ())

        catches = {
            catch: {name: of_it(value) if name == "offers" else value for name, value in changes.items()}
            for catch, changes in self.catches.items()
        }
        return replace(self, offers=of_it(self.offers), catches=catches)


@lru_cache(maxsize=16)
def _by_gpu(offers: Same[Sequence[Offer]]) -> Mapping[str, tuple[Offer, ...]]:
    """Group the offers by GPU, in their order."""
    found: dict[str, list[Offer]] = {}
    for offer in offers.value:
        found.setdefault(offer.gpu, []).append(offer)
    return {gpu: tuple(its) for gpu, its in found.items()}


class RankedRow(NamedTuple):
    """A row of a plan, with its sizing and its machine."""

    row: Candidate
    sized: Placed
    machine: Machine


@dataclass(frozen=True)
class Study:
    """A plan with everything it was made from, for further questions."""

    question: Question
    plan: Plan
    search: Search
    ranked: tuple[RankedRow, ...]
    apart: RankedRow | None = None  # the cheapest disaggregated candidate, ranked or set aside, if one was found
    hosts: tuple[Hosts, ...] = ()  # every deployment that fits, with its machines, sized or not

    def ranked_as(self, row: Candidate) -> RankedRow:
        return next(ranked for ranked in self.ranked if ranked.row == row)


def plan(question: Question) -> Plan:
    """Rank every candidate by the monthly bill for this traffic."""
    return study(question).plan


def study(
    question: Question, progress: Say = silent, *, pick_only: bool = False, attempts: Attempts | None = None
) -> Study:
    """Rank every candidate by the monthly bill for this traffic, and keep what the ranking was made from.

    With ``pick_only``, return only those that cost the same as the pick, and set nothing aside: ranking all the others
    takes longer than finding it. If nothing serves the load, candidates are taken whose speed or network is assumed, or
    which take several consumer cards (``LAST_RESORT``).
    """
    load = question.load.within(question.model.max_context)
    sought = question.sought(load, attempts)
    if pick_only:
        last = {catch: changes for catch, changes in question.catches.items() if catch in LAST_RESORT}
        question = replace(question, near=_AS_CHEAP, catches=last)
    # Where the two kinds of replicas may win, what one kind costs is no bound.
    says_bill = not (pick_only or question.disaggregate)
    question, taken, hosts, search = _first_that_serves(question, sought, progress, says_bill=says_bill)
    best_usd = min((placed.usd_per_hour for placed in search.sized), default=math.inf)
    pairs: list[Placed] = []
    if question.simulate and (question.disaggregate or Catch.disaggregated in question.catches):
        below = _WORTH_A_ROW * best_usd if question.disaggregate else best_usd
        pairs = disaggregated(sought, hosts, below, progress)
    if question.disaggregate:
        search.sized += pairs
        best_usd = min([best_usd, *(placed.usd_per_hour for placed in pairs)])
    asides = [] if pick_only else _set_aside(question, hosts, sought, best_usd, progress)
    rejected = rejections(question, load) + [reject(deployment, refusal) for deployment, refusal in search.refused]

    def rows_of(sized: Sequence[Placed]) -> list[RankedRow]:
        sized = _cheapest(sized) if pick_only else sized
        rows = [row for placed in sized for row in _rows(placed, load, question.limits, question.today, sought, hosts)]
        return sorted(rows, key=_cheapest_then_safest)

    ranked, apart = rows_of(search.sized), next(iter(rows_of(pairs)), None)
    if apart and not question.disaggregate:
        asides.append(SetAside(catch=Catch.disaggregated, candidate=apart.row))
    made = Plan(
        model=question.model.key,
        workload=load.workload,
        slos=question.slos,
        limits=question.limits,
        headroom_asked=load.headroom,
        simulations=search.sought.attempts.count,
        best=ranked[0].row if ranked else None,
        only_with=tuple(catch for catch in taken if ranked and _has(ranked[0], catch)),
        ranked=tuple(row for row, _, _ in ranked),
        set_aside=tuple(asides),
        rejected=tuple(rejected),
        not_tried=dict(question.not_tried),
    )
    return Study(replace(question, load=load), made, search, tuple(ranked), apart, tuple(hosts))


def widened(question: Question) -> Iterator[tuple[Question, tuple[Catch, ...]]]:
    """Yield the question, then with each catch of the last resort let in, one after the other, and which were."""
    taken: tuple[Catch, ...] = ()
    yield question, taken
    for catch in LAST_RESORT:
        if catch in question.catches:
            question, taken = question.taking(catch), (*taken, catch)
            yield question, taken


class _Serving(NamedTuple):
    """What serves a load: the question that allows it, the catches this took, where it runs, and how it was sized."""

    question: Question
    taken: tuple[Catch, ...]
    hosts: tuple[Hosts, ...]
    search: Search


def _first_that_serves(question: Question, sought: Sought, progress: Say, *, says_bill: bool) -> _Serving:
    """Size the candidates; if none serves the load, also those of the last resort, as few kinds of them as do.

    If nothing serves it at all, return the first that leaves anything to choose from, as it says what is to blame.
    """
    tried: list[_Serving] = []
    for asked, taken in widened(question):
        hosts = prospects(asked, sought.load)
        if tried and len(hosts) == len(tried[-1].hosts):
            continue
        same = asked.sought(sought.load, sought.attempts)
        search = Search(same, asked.simulate, None, asked.near, asked.rows, progress, says_bill)
        search.run(hosts)
        tried.append(_Serving(asked, taken, hosts, search))
        if tried[-1].search.sized:
            return tried[-1]
    return next((one for one in tried if one.hosts), tried[0])


def _has(ranked: RankedRow, catch: Catch) -> bool:
    """Tell whether a row has a catch of the last resort."""
    if catch is Catch.assumed_speed:
        return ranked.row.speed is Speed.assumed
    if catch is Catch.assumed_network:
        return ranked.row.network == "assumed"
    return takes_many_cards(ranked.sized.deployment)


_AS_CHEAP = 1.01  # times the lowest bill: above all that cost the same to the cent (``_CLOSE_USD``)
_WORTH_A_ROW = 2.0  # times the pick's bill: up to this a requested disaggregated candidate is ranked


def searched(
    question: Question, sought: Sought, hosts: Iterable[Hosts], below: float | None = None, progress: Say = silent
) -> Search:
    """Size the candidates that could win with this load and these SLOs, and refuse the others."""
    search = Search(sought, question.simulate, below, question.near, question.rows, progress)
    search.run(hosts)
    return search


def _set_aside(
    question: Question, hosts: tuple[Hosts, ...], sought: Sought, usd_per_hour: float, progress: Say
) -> list[SetAside]:
    """Return the cheapest candidate with each catch, if it is below the pick's bill."""
    found: list[SetAside] = []
    for catch in question.catches:
        if catch is Catch.disaggregated or (catch in LAST_RESORT and math.isinf(usd_per_hour)):
            continue  # Without a pick, the last resort has been tried.
        wider = question.taking(catch)
        also = wider.sought(sought.load, sought.attempts)
        new = _only_new(Same(prospects(wider, sought.load, usd_per_hour)), Same(hosts))
        sized = searched(wider, also, new, usd_per_hour, progress).sized
        rows = [
            row
            for placed in sized
            if placed.usd_per_hour < usd_per_hour
            for row in _rows(placed, sought.load, wider.limits, wider.today, also)
        ]
        if rows:
            cheapest = min(rows, key=_cheapest_then_safest)
            found.append(
                _at_old_price(cheapest, question.offers)
                if catch is Catch.old_price
                else SetAside(catch=catch, candidate=cheapest.row)
            )
    return found


def _at_old_price(cheapest: RankedRow, offers: Sequence[Offer]) -> SetAside:
    """Return a candidate at an old price, with what shows that it is old."""
    since = outdated(cheapest.machine.offer, offers, cheapest.machine.terms)
    moved = since.moved if since else None
    return SetAside(
        catch=Catch.old_price,
        candidate=cheapest.row,
        outdated=since,
        usd_per_month_if_moved=cheapest.row.usd_per_month * moved.ratio if moved else None,
    )


@lru_cache(maxsize=64)
def _only_new(hosts: Same[tuple[Hosts, ...]], known: Same[tuple[Hosts, ...]]) -> tuple[Hosts, ...]:
    """Leave out the machines already known for each deployment: their bills were computed before."""
    before = {(one.deployment, one.tiers): one.machines for one in known.value}
    left: dict[tuple[int, int], Stock] = {}  # by two lists of machines, which many deployments share
    new = []
    for one in hosts.value:
        old = before.get((one.deployment, one.tiers), ())
        lists = id(one.machines), id(old)
        if lists not in left:
            seen = {(id(machine.offer), machine.terms) for machine in old}
            left[lists] = Stock(machine for machine in one.machines if (id(machine.offer), machine.terms) not in seen)
        if left[lists]:
            new.append(replace(one, machines=left[lists]))
    return tuple(new)


def cheapest_row(placed: Placed, question: Question, sought: Sought, together: Sequence[Hosts]) -> Candidate:
    """Return a sized candidate on the machine where it costs least; ``together`` as for every row of a plan."""
    rows = _rows(placed, sought.load, question.limits, question.today, sought, together)
    return min(rows, key=_cheapest_then_safest).row


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(
    sized: Placed, load: Load, limits: Limits, today: date, sought: Sought, together: Sequence[Hosts] = ()
) -> Iterator[RankedRow]:
    """Yield the candidate on each machine it can run on, within the allowed GPUs.

    A disaggregated one is compared with ``together``, in which every replica does both.
    """
    deployment, capacity, hosts = sized.deployment, sized.screened.capacity, sized.screened.hosts
    made = sized.trial.outcome if sized.trial else None
    breaks = together_breaks(sought, sized, together) if hosts.prefill else None
    share = prefill_share(made) if made and not hosts.prefill else capacity.prefill_share
    split = token_split(hosts.prefill.deployment if hosts.prefill else deployment, load, share, made)
    same: dict[str, Any] = layout_fields(deployment) | {
        **(served_fields(made) if made else _in_the_mean(sized, load)),
        "tiers": hosts.tiers,
        "memories": parse_tiers(hosts.tiers, deployment, on=today) if hosts.tiers else (),
        "max_sequences": (sized.trial and sized.trial.max_sequences) or deployment.limits.max_sequences,
        "router": sized.trial.router if sized.trial else Router.round_robin,
        "capacity_requests_per_s": capacity.rate,
        "limited_by": capacity.limited_by,
    }
    for machine, regions in _places(hosts.machines):
        offer = machine.offer
        number = hosts.machines_on(offer, sized.replicas)
        if math.isinf(number) or number * offer.gpus > (limits.max_gpus or math.inf):
            continue
        instances = int(number)
        first, replicas = hosts.counts_on(offer, sized.replicas)
        side = _prefill_side(hosts, sized.replicas, first, breaks, load)
        gpus = replicas * deployment.gpus + (first * side.gpus_per_replica if side else 0), instances * offer.gpus
        load_share = load.workload.rate / ((first + replicas) * capacity.rate)
        what, usd = f"{instances}× {offer.provider} {offer.instance}", machine.usd_per_month(instances)
        row = Candidate(
            **same,
            **dollars(load, split, what, usd, gpus, load_share, made),
            **copied(offer, "provider", "instance", "seller"),
            region=regions[0],
            regions=regions,
            **copied(machine, "terms", "commitment_years"),
            instance_usd_per_hour=machine.usd_per_hour,
            price_date=offer.date,
            price_age_days=offer.age_days(today),
            price_stale=offer.is_stale(today),
            price_source=offer.source,
            network=_network(deployment, offer) if side is None else None,
            replicas=replicas,
            prefill_replicas=first,
            mean_replicas=first + replicas,
            prefill=side,
            load_share=load_share,
            instances=instances,
        )
        yield RankedRow(row, sized, machine)


def _network(deployment: Deployment, offer: Offer) -> Literal["stated", "assumed"] | None:
    """Say whether the seller states the network that a replica on several machines needs; None if it is on one."""
    if deployment.gpus <= offer.gpus:
        return None
    return "stated" if is_networked(deployment.gpu, offer) else "assumed"


_CLOSE_USD = 0.02  # a month: bills are ranked by the cent, so the pick is among bills that differ by less


def _cheapest(sized: Sequence[Placed]) -> list[Placed]:
    """Return the candidates and machines that contain the pick, by their bills alone."""
    bills = [placed.usd_per_hour * HOURS_PER_MONTH for placed in sized]
    most, near = min(bills, default=0.0) + _CLOSE_USD, list[Placed]()
    for placed, bill in zip(sized, bills, strict=True):
        hosts, replicas = placed.screened.hosts, placed.replicas
        if bill > most or hosts.prefill:
            near += [placed] if bill <= most else []
            continue
        machines = tuple(
            machine
            for machine in hosts.machines
            if machine.usd_per_month(hosts.machines_on(machine.offer, replicas)) <= most
        )
        near.append(replace(placed, screened=replace(placed.screened, hosts=replace(hosts, machines=machines))))
    return near


def _prefill_side(hosts: Hosts, replicas: int, count: int, breaks: str | None, load: Load) -> PrefillSide | None:
    """Describe the prefill replicas of a disaggregated candidate, with spare ones."""
    if hosts.prefill is None:
        return None
    deployment, link = hosts.prefill.deployment, hosts.link(replicas)
    return PrefillSide(
        replicas=count,
        gpus_per_replica=deployment.gpus,
        **copied(deployment, "tp", "pp", "ep", "dp"),
        max_batched_tokens=deployment.limits.max_batched_tokens,
        link=link,
        link_bytes_per_s=link_speed(link, deployment.gpu),
        kv_transfer_s=kv_transfer_s(hosts, replicas, load),
        together_breaks=breaks,
    )


def _places(machines: Iterable[Machine]) -> Iterator[tuple[Machine, tuple[str, ...]]]:
    """Yield each machine at a price once, with every region that has it at that price."""
    alike: dict[object, list[Machine]] = {}
    for machine in machines:
        offer = machine.offer
        sold = offer.provider, offer.instance, offer.gpus, offer.memory_gb, offer.date, offer.source
        alike.setdefault((*sold, machine.terms, machine.commitment_years, machine.usd_per_hour), []).append(machine)
    for group in alike.values():
        group.sort(key=lambda machine: machine.offer.region)
        yield group[0], tuple(machine.offer.region for machine in group)


def _in_the_mean(sized: Placed, load: Load) -> dict[str, object]:
    """Return the closed form's mean latencies."""
    steady = sized.screened.steady(load.workload.rate / sized.replicas)
    e2e_s = steady.ttft_s + max(0.0, load.workload.output_tokens - 1) * steady.tpot_s
    tpot_s = steady.tpot_s if load.workload.output_tokens > 1 else None
    means = {"ttft_s": steady.ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s}
    only_mean = {name: Spread(p50=None, p90=None, p95=None, p99=None, mean=mean) for name, mean in means.items()}
    return {"simulated": False, "batch": steady.batch, **only_mean}


def _cheapest_then_safest(ranked: RankedRow) -> tuple[Any, ...]:
    """Order by bill, to the cent; then by more bits, one kind of replica, several machines; then by what is surer.

    That is a recent price, a timed speed, room, quick answers, a newer price. More bits of the KV cache than the
    checkpoint's own are no gain.
    """
    row = ranked.row
    bits = -row.weights.bits, -min(row.kv.bits, ranked.sized.deployment.model.kv_served.bits)
    sure = row.price_age_days > STALE_AFTER_DAYS, tuple(Speed).index(row.speed)
    room = row.usd_per_mtok_usage, row.e2e_s.mean or 0.0, row.price_age_days
    place = row.provider, row.instance, row.region
    return round(row.usd_per_month, 2), *bits, row.prefill is not None, row.lacks_redundancy, *sure, *room, *place
