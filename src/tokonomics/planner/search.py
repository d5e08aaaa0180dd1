"""Search best first: the candidate whose bill could be lowest is refined next, one step at a time.

A candidate enters with the bill of the replicas that arithmetic alone demands, returns with the closed form's, and is
then tried on that many. If it misses an SLO, it returns with the bill of one replica more, and is next tried on more of
them, in growing steps. When a bound passes the runner-up's bill, all that is left costs more, however well it serves. A
candidate tried within that bill needs one simulation if the replicas its price allows miss an SLO. So the pick and the
runner-up are those that sizing every candidate would give.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.plan_answer import Kind, Limits
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.attempt import Attempts, Sized, attempt
from tokonomics.sizing.disaggregation import served_on
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.layouts import NotServed, Reason, is_faithful
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, least_by_arithmetic, least_for, most_held, screen
from tokonomics.sizing.search import fewest
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import HOURS_PER_MONTH, percent, plural, seconds, usd

CLOSED_FORM_UTILIZATION = 0.7  # assumed if bursts are not simulated: the room that planners commonly leave for them
TABLE_ROWS = 10  # kinds of hardware sized even if they cannot win
_WORTH_A_ROW, _FEW_GPUS = 1.5, 3
"""Times the cheapest bill: a candidate that cannot win is sized for the table up to the first. Where few GPUs are to be
compared, all of them are, within reason. Our choices."""
WITHIN_REASON = 10.0  # times the cheapest bill: nobody looks at a row that costs more
_SAME = 1 + 1e-12


@dataclass
class Sought:
    """What candidates are sized for: traffic, SLOs, the user's limits, and a router if one is given."""

    load: Load
    slos: tuple[Slo, ...]
    router: Router | None = None
    limits: Limits = field(default_factory=Limits)
    attempts: Attempts = field(default_factory=Attempts)

    def setup(self, hosts: Hosts, replicas: int = 1) -> Setup:
        """Return a candidate's setup on a number of replicas."""
        tiers = hosts.tiers if self.load.trace.prefix is not None else None
        setup = Setup(hosts.deployment, self.load, slos=self.slos, router=self.router, tiers=tiers)
        return served_on(setup, hosts, replicas)

    def on(self, candidate: Screened, replicas: int) -> Sized:
        """Size the candidate on a number of replicas: it holds, or say what breaks."""
        return self.attempts.on(self.setup(candidate.hosts, replicas), replicas)

    def smallest(self, candidate: Screened, most: int = MOST_REPLICAS, least: int = 1) -> Sized:
        """Find the fewest replicas on which the candidate holds, or say what breaks."""
        return fewest(self.setup(candidate.hosts), self.attempts, least=least, most=most)

    def most_failing(self, candidate: Screened) -> int:
        """Return the most replicas that are known to miss an SLO, if fewer of them then miss it too."""
        if self.load.trace.prefix is not None:
            return 0  # behind a router that gathers prompts, fewer replicas may hold where more do not
        tried = self.attempts.tried(self.setup(candidate.hosts))
        return max((count for count, sized in tried.items() if not sized.holds), default=0)

    def as_sized(self, candidate: Screened, sized: Sized, times: float | None = None, *, whole: bool = True) -> Sized:
        """Simulate a sizing, with its router and limit, on all of this load or a multiple of it.

        Unless the ``whole`` run is wanted, it stops as soon as it is sure to miss an SLO.
        """
        setup = replace(self.setup(candidate.hosts, sized.replicas), router=sized.router)
        return attempt(setup, sized.replicas, sized.max_sequences, times, whole=whole)

    def holds_on(self, candidate: Screened, sized: Sized, replicas: int) -> bool:
        """Tell whether these replicas hold this load with the router and sequence limit of a sizing."""
        setup = replace(self.setup(candidate.hosts, replicas), router=sized.router)
        return self.attempts.once(setup, replicas, sized.max_sequences).holds


@dataclass(frozen=True)
class Placed:
    """A candidate of a plan on the replicas that it takes, without spare ones."""

    screened: Screened
    replicas: int
    trial: Sized | None = None  # None: by the closed form

    @property
    def deployment(self) -> Deployment:
        return self.screened.deployment

    @property
    def usd_per_hour(self) -> float:
        """Return the bill on the cheapest machines, with spare ones."""
        return self.screened.hosts.usd_per_hour(self.replicas)


@dataclass(frozen=True)
class Failing:
    """A candidate that misses an SLO on as many replicas as were tried so far."""

    screened: Screened
    tries: int  # numbers of replicas tried

    @property
    def deployment(self) -> Deployment:
        return self.screened.deployment


Prospect = Hosts | Screened | Failing


def cheapest_machine(hosts: Hosts, replicas: int) -> Machine | None:
    """Return the machine on which these replicas cost least, within the allowed GPUs; None if none holds them."""

    def bill(machine: Machine) -> float:
        number = hosts.machines_on(machine.offer, replicas)
        allowed = number * machine.offer.gpus <= (hosts.max_gpus or math.inf)
        return number * machine.usd_per_hour if allowed else math.inf

    found = min(hosts.cheapest_of_each_size, key=bill, default=None)
    return found if found and math.isfinite(bill(found)) else None


@dataclass
class Search:
    """Size the candidates that could win, and say why the others cannot."""

    sought: Sought
    simulate: bool = True
    below: float | None = None
    """Dollars an hour: look only for the cheapest below this bill; None: for the pick, the runner-up and a table."""
    near: float | None = None  # times the cheapest bill: above this nothing is sized, not even for a table
    rows: int = TABLE_ROWS  # kinds of hardware sized for a table even if they cannot win
    progress: Say = silent
    says_bill: bool = False  # whether progress tells what is known of the cheapest bill
    sized: list[Placed] = field(default_factory=list)
    screened: list[Screened] = field(default_factory=list)
    refused: list[tuple[Deployment, NotServed]] = field(default_factory=list)
    _kinds: set[Kind] = field(default_factory=set)
    _bills: dict[str, float] = field(default_factory=dict)  # lowest bill an hour by GPU
    _published: float = math.inf
    _left: Counter[str] = field(default_factory=Counter)  # candidates left by GPU
    _worth_a_row: float = _WORTH_A_ROW

    def run(self, prospects: Iterable[Hosts]) -> None:
        """Refine the prospect with the lowest bound; one with a better bound gets its turn again later."""
        queue: list[tuple[float, int, Prospect, bool]] = []
        for hosts in prospects:
            bound = hosts.usd_per_hour(least_by_arithmetic(hosts.deployment, self.sought.load, self.sought.slos))
            if self.below is None or bound <= self.below:  # for the others nobody asks for a reason
                queue.append((bound, len(queue), hosts, False))
                self._left[hosts.deployment.gpu.key] += 1
        self._worth_a_row = WITHIN_REASON if len(self._left) <= _FEW_GPUS else _WORTH_A_ROW
        heapq.heapify(queue)
        while queue:
            bound, place, prospect, is_bounded = heapq.heappop(queue)
            if closer := self._look(bound, prospect, is_bounded):
                heapq.heappush(queue, (closer[0], place, closer[1], True))

    def _look(self, bound: float, prospect: Prospect, is_bounded: bool) -> tuple[float, Prospect] | None:
        """Return a better bound of a prospect that may matter; finish one that does not, or that is sized.

        ``is_bounded`` means that its largest possible capacity is in its bound already.
        """
        deployment = prospect.deployment
        if isinstance(prospect, Hosts) and self._matters(deployment, bound):
            if not is_bounded and self._wants_cheapest:
                held = most_held(deployment, self.sought.load, self.sought.slos)
                least = max(least_for(self.sought.load, held, deployment, self.sought.slos), self._fewest_allowed(held))
                return max(bound, prospect.usd_per_hour(least)), prospect
            found = screen(deployment, prospect, self.sought.load, self.sought.slos)
            if isinstance(found, Screened):
                self.screened.append(found)
                return prospect.usd_per_hour(self.at_least(found)), found
            self.refused.append((deployment, found))
        elif isinstance(prospect, Hosts):
            self._refuse_as_expensive(deployment, bound)
        self._left[deployment.gpu.key] -= 1
        if not isinstance(prospect, Hosts) and (failing := self._size_if_it_matters(prospect, bound)):
            self._left[deployment.gpu.key] += 1
            return failing
        return None

    def at_least(self, candidate: Screened) -> int:
        """Return the fewest replicas by the closed form and by the user's limits."""
        return max(candidate.fewest, self._fewest_allowed(candidate.capacity.rate))

    @property
    def _wants_cheapest(self) -> bool:
        """Tell whether only the cheapest by the closed form is wanted, so that a check of latencies is cheap."""
        return not self.simulate and (self.below is not None or self.near is not None)

    def _fewest_allowed(self, held: float) -> int:
        """Return the fewest replicas loaded to the user's share of this capacity, or to 70 % without simulation."""
        share = self.sought.limits.max_utilization or (None if self.simulate else CLOSED_FORM_UTILIZATION)
        # A rounding error must not cost a replica.
        return 1 if share is None else max(1, math.ceil(self.sought.load.held_rate / (held * share) - 1e-9))

    def _is_leader(self, deployment: Deployment) -> bool:
        """Tell whether a table would show it at any price, within reason."""
        return self.below is None and kind_of(deployment) not in self._kinds and len(self._kinds) < self.rows

    def _matters(self, deployment: Deployment, bound: float) -> bool:
        """Tell whether it could be the pick or the runner-up, or a table would show it."""
        could_win = bound <= self._threshold(deployment) * _SAME
        could_win |= self._is_leader(deployment) and bound <= self._row_usd() * _SAME
        return math.isfinite(bound) and could_win and bound <= self._nearest() * _SAME

    def _row_usd(self) -> float:
        """Return the bill above which a table's row is not worth a simulation."""
        return self._worth_a_row * min(self._bills.values(), default=math.inf)

    def _nearest(self) -> float:
        """Return the bill above which nothing is worth a simulation."""
        return math.inf if self.near is None else self.near * min(self._bills.values(), default=math.inf)

    def _threshold(self, deployment: Deployment) -> float:
        """Return the bill to beat: the runner-up's, or the lowest that serves the model as published."""
        bills = sorted(self._bills.values())
        if self.below is not None:
            return min([self.below / _SAME**2, *bills])
        if len(bills) == 1 and not any(left for gpu, left in self._left.items() if gpu not in self._bills):
            # No other GPU can be the runner-up.
            bills *= 2
        runner_up = bills[1] if len(bills) > 1 else math.inf
        return max(self._published, runner_up) if is_faithful(deployment) else runner_up

    def _refuse(self, deployment: Deployment, kind: Reason, reason: str) -> None:
        self.refused.append((deployment, NotServed(kind, reason)))

    def _refuse_as_expensive(self, deployment: Deployment, bound: float) -> None:
        if math.isinf(bound):
            self._refuse(deployment, Reason.too_many_gpus, "takes more GPUs than allowed")
        else:
            above = percent(bound / min([*self._bills.values(), self.below or math.inf]) - 1)
            self._refuse(deployment, Reason.more_expensive, f"at least {above} more expensive")

    def _size_if_it_matters(self, prospect: Screened | Failing, bound: float) -> tuple[float, Failing] | None:
        """Try a candidate that may matter; return it with its bound if it fails and more replicas may matter later."""
        candidate, tries = (prospect.screened, prospect.tries) if isinstance(prospect, Failing) else (prospect, 0)
        deployment, least, most = candidate.deployment, self.at_least(candidate), MOST_REPLICAS
        if not self._matters(deployment, bound):
            self._refuse_as_expensive(deployment, bound)
        elif not self.simulate:
            self._plan_for_share(candidate)
        elif least > most:
            reason = f"takes {least:,} replicas at least; at most {most:,} are looked at"
            self._refuse(deployment, Reason.too_many_gpus, reason)
        else:
            is_leader = self._is_leader(deployment)
            threshold = self._threshold(deployment)
            threshold = min(max(threshold, self._row_usd()) if is_leader else threshold, self._nearest())
            if math.isfinite(threshold):
                most = max(least, candidate.hosts.most_replicas(threshold, MOST_REPLICAS))
            # A bill to beat leaves one number of replicas to try. Without one, or for a table, it goes up from the
            # closed form's in growing steps, and others that may be cheaper get their turn between two of them.
            beats = not is_leader and most < MOST_REPLICAS
            self.progress(f"{deployment}{self._bill_so_far(bound) if self.says_bill else ''}")
            return self._size(Failing(candidate, tries), most if beats else min(least + 2**tries - 1, most), most)
        return None

    def _bill_so_far(self, bound: float) -> str:
        """Say what is known of the cheapest bill: all that are left cost ``bound`` or more.

        Behind a router that gathers shared prompts fewer replicas may hold where more do not: then nothing is certain.
        """
        lowest = min(self._bills.values(), default=math.inf)
        if self.sought.load.trace.prefix is not None:
            found = math.isfinite(lowest)
            return f"; the cheapest so far costs {usd(lowest * HOURS_PER_MONTH)} a month" if found else ""
        at_least = usd(min(bound, lowest) * HOURS_PER_MONTH)
        if bound >= lowest:
            return f"; the cheapest fleet costs {at_least} a month"
        if math.isinf(lowest):
            return f"; the cheapest fleet costs {at_least} a month or more"
        return f"; the cheapest fleet costs between {at_least} and {usd(lowest * HOURS_PER_MONTH)} a month"

    def _size(self, failing: Failing, count: int, most: int) -> tuple[float, Failing] | None:
        """Size it if ``count`` replicas hold; a bill above that of the ``most`` is not worth more simulations."""
        candidate, deployment = failing.screened, failing.deployment
        known = self.sought.most_failing(candidate)
        if count == most < MOST_REPLICAS and not (trial := self.sought.on(candidate, max(most, known))).holds:
            number = plural(max(most, known), "replica")
            reason = f"more expensive: on the {number} that could compete, {trial.breaks}"
            self._refuse(deployment, Reason.more_expensive, reason)
            return None
        trial = self.sought.smallest(candidate, count, self._fewest_allowed(candidate.capacity.rate))
        if not trial.holds and not trial.is_lone and trial.replicas == count < most:
            return candidate.hosts.usd_per_hour(count + 1), replace(failing, tries=failing.tries + 1)
        if not trial.holds:
            self._refuse(deployment, Reason.too_slow, missed_text(trial))
        elif math.isinf(candidate.hosts.usd_per_hour(trial.replicas)):
            reason = f"takes {trial.replicas * deployment.gpus} GPUs; at most {candidate.hosts.max_gpus} allowed"
            self._refuse(deployment, Reason.too_many_gpus, reason)
        else:
            self._keep(candidate, trial.replicas, trial)
        return None

    def _plan_for_share(self, candidate: Screened) -> None:
        """Plan replicas by the closed form: loaded to a share of capacity, with a mean first token in time."""
        rate, replicas = self.sought.load.held_rate, self.at_least(candidate)
        late = late_in_the_mean(candidate, rate / replicas, self.sought.slos)
        while late and replicas < 4 * candidate.fewest + 4:
            replicas += 1
            late = late_in_the_mean(candidate, rate / replicas, self.sought.slos)
        if late:
            self._refuse(candidate.deployment, Reason.too_slow, late)
        else:
            self._keep(candidate, replicas)

    def _keep(self, candidate: Screened, replicas: int, trial: Sized | None = None) -> None:
        deployment = candidate.deployment
        self._kinds.add(kind_of(deployment))
        usd, gpu = candidate.hosts.usd_per_hour(replicas), deployment.gpu.key
        self._bills[gpu] = min(self._bills.get(gpu, math.inf), usd)
        if is_faithful(deployment):
            self._published = min(self._published, usd)
        self.sized.append(Placed(candidate, replicas, trial))


def missed_text(trial: Sized) -> str:
    """Say what is missed on any number of replicas."""
    number = "a lone request" if trial.is_lone else plural(trial.replicas, "replica")
    return f"misses the SLO even with {number}: {trial.breaks}"


def kind_of(deployment: Deployment) -> Kind:
    """Return what a table shows one row for: GPU, GPUs of a replica, weights, and GPUs of a prefill replica."""
    return deployment.gpu.key, deployment.gpus, deployment.weights, 0


def late_in_the_mean(candidate: Screened, rate: float, slos: Sequence[Slo]) -> str | None:
    """Name the SLO that even the closed form's mean misses at a rate; None if all may be met."""
    steady = candidate.steady(rate)
    e2e_s = steady.ttft_s + (candidate.curve.output_tokens - 1) * steady.tpot_s
    means = {Latency.ttft: steady.ttft_s, Latency.tpot: steady.tpot_s, Latency.e2e: e2e_s}
    for slo in slos:
        if slo.latency in means and slo.statistic != "p50" and means[slo.latency] > slo.seconds:
            late = percent(means[slo.latency] / slo.seconds - 1)
            return f"even the mean, {seconds(means[slo.latency])}, misses {slo.label} by {late}"
    return None
