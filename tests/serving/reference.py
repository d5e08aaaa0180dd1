"""What does a fleet of replicas do with these requests? The slow, plain answer the fast loop is held to.

One pass of the main loop goes to the next time at which anything happens: first the steps that end there, then the
events of that time in their order, then every replica that stands still composes its next step.
"""

import heapq
import math

import numpy as np
from tests.serving.reference_replica import NEVER_SERVED, OPEN, REFUSED, SHED, TIMED_OUT, EngineTimes, Job, Replica

from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.state import Requests, Rules, Served

BACK, NOTICE, DOWN, DEADLINE, WAITED, TICK, ARRIVAL = range(7)
"""Events, in the order in which those of the same time happen; a boot that is ready counts as back."""


class World:
    """The fleet and its clock: events, routing, outages, the autoscaler."""

    def __init__(self, requests: Requests, engine: EngineTimes, rules: Rules, fleet: FleetSettings, seed: int) -> None:
        self.rules, self.fleet, self.seed = rules, fleet, seed
        self.jobs = [self.job(requests, index) for index in range(len(requests.arrival_s))]
        self.requests, self.count = requests, len(self.jobs) // requests.attempts
        self.scale = scale = fleet.autoscale
        count = scale.max_replicas if scale else fleet.replicas
        up = self.planned(0.0) if scale else count
        states = ["up" if index < up else "off" for index in range(count)]
        self.replicas = [
            Replica(index, requests, rules, engine, state, self.answered) for index, state in enumerate(states)
        ]
        self.answer_s = engine.answer_s
        self.held: list[Job] = []
        self.to_arrive = self.count
        self.last_used = -1
        self.wished: list[int] = []  # replicas wished for at each tick so far
        self.events: list[tuple[float, int, int]] = []  # (time, kind, whom)
        self.sent = requests.users or self.count
        self.waits_for = [self.parents(index) for index in range(self.count)]
        self.ready_s = [-math.inf] * self.count  # when the last answer that a request waits for was heard
        self.doomed: set[int] = set()  # requests of which one they wait for failed
        self.homes: dict[int, int] = {}  # by session: the replica that was given its last request
        for job in self.jobs[: self.sent]:
            if not self.waits_for[job.index]:
                self.expect(job.arrival_s, ARRIVAL, job.index)
            if not requests.closed:
                self.wait(job, float(requests.arrival_s[job.index]))
        for outage in fleet.outages:
            self.expect(max(0.0, outage.at_s - outage.notice_s), NOTICE, outage.replica)
            self.expect(outage.at_s, DOWN, outage.replica)
            self.expect(outage.at_s + (outage.down_s or math.inf), BACK, outage.replica)
        if scale:
            self.expect(scale.interval_s, TICK, 1)

    @staticmethod
    def job(requests: Requests, i: int) -> Job:
        listed = slice(requests.unit_starts[i], requests.unit_starts[i + 1])
        return Job(
            index=i,
            arrival_s=float(requests.arrival_s[i]),
            input=int(requests.input_tokens[i]),
            output=int(requests.output_tokens[i]),
            urgency=int(requests.urgency[i]),
            units=requests.unit_ids[listed].tolist(),
            ends=requests.unit_ends[listed].tolist(),
            prefilled=bool(requests.prefilled),
            fetched=0 if requests.fetched is None or requests.prefilled else int(requests.fetched[i]),
            queue_limit=math.inf if requests.queue_limit is None else int(requests.queue_limit[i]),
        )

    # Who sends when ------------------------------------------------------------------------------------------------

    def parents(self, index: int) -> set[int]:
        turns = self.requests.turns
        if turns is None:
            return set()
        return {int(parent) for parent in turns.waits_for[turns.starts[index] : turns.starts[index + 1]]}

    def wait(self, job: Job, now: float) -> None:
        """From now on the client waits, and so does the request."""
        asked = self.requests
        job.deadline_s = max(now, now + float(asked.deadline_s[job.index] - asked.arrival_s[job.index]))
        self.expect(job.deadline_s, DEADLINE, job.index)
        if asked.shed_s is not None:
            self.expect(max(now, now + float(asked.shed_s[job.index] - asked.arrival_s[job.index])), WAITED, job.index)

    def answered(self, job: Job, at_s: float) -> None:
        """The client hears the end of an answer, by its deadline."""
        self.ended(job, min(at_s + self.answer_s, job.deadline_s), well=True)

    def try_again(self, job: Job, now: float) -> None:
        attempt = job.index // self.count
        if attempt + 1 < self.requests.attempts:
            self.to_arrive += 1
            self.expect(now + self.requests.backoff_s * 2**attempt, ARRIVAL, job.index + self.count)
        else:
            self.ended(job, now, well=False)

    def ended(self, job: Job, at_s: float, well: bool) -> None:
        if self.sent < self.count:  # a user sends the next request
            self.expect(at_s, ARRIVAL, self.sent)
            self.sent += 1
        self.release(job.index % self.count, at_s, well)

    def release(self, index: int, at_s: float, well: bool) -> None:
        """Who waits for a request that has ended is sent after a pause, or never if it or another failed."""
        turns = self.requests.turns
        for child in range(index + 1, self.count):
            if turns is None or index not in self.waits_for[child]:
                continue
            self.waits_for[child].remove(index)
            self.ready_s[child] = max(self.ready_s[child], at_s)
            if not well:
                self.doomed.add(child)
            if self.waits_for[child]:
                continue
            if child not in self.doomed:
                self.expect(self.ready_s[child] + float(turns.pause_s[child]), ARRIVAL, child)
                continue
            job = self.jobs[child]
            job.status, job.arrival_s, job.finish_s = NEVER_SERVED, self.ready_s[child], self.ready_s[child]
            self.to_arrive -= 1
            self.release(child, self.ready_s[child], well=False)

    def expect(self, time_s: float, kind: int, whom: int) -> None:
        if time_s < math.inf:
            heapq.heappush(self.events, (time_s, kind, whom))

    def run(self) -> None:
        while True:
            ends = [replica.step_end_s for replica in self.replicas if replica.step_end_s is not None]
            ends += [replica.wake_s for replica in self.replicas if replica.wake_s is not None]
            times = ends + [time_s for time_s, _, _ in self.events[:1]]
            if not times:
                break
            now = min(times)
            for replica in self.replicas:
                if replica.step_end_s == now:
                    replica.end_step(now)
            while self.events and self.events[0][0] == now:
                self.happen(now)
            for replica in self.replicas:
                if replica.step_end_s is None:
                    replica.compose(now)
        for job in self.held:
            job.status = NEVER_SERVED
            self.ended(job, job.arrival_s, well=False)

    def happen(self, now: float) -> None:
        _, kind, whom = heapq.heappop(self.events)
        if kind == BACK:
            self.back(self.replicas[whom], now)
            if self.events[:1] and self.events[0][:2] == (now, BACK):
                return  # all that come up at this time come up before the held requests choose
            self.route_held(now)
        elif kind == NOTICE:
            self.replicas[whom].noticed = True
        elif kind == DOWN:
            self.down(self.replicas[whom], now)
        elif kind == DEADLINE:
            self.leave(self.jobs[whom], TIMED_OUT, now)
        elif kind == WAITED:
            if math.isnan(self.jobs[whom].start_s):
                self.leave(self.jobs[whom], SHED, now)
        elif kind == TICK:
            self.tick(whom, now)
        else:
            self.to_arrive -= 1
            self.arrive(self.jobs[whom], now)

    def arrive(self, job: Job, now: float) -> None:
        job.arrival_s = now
        self.jobs[job.index % self.count].attempts += 1
        if self.requests.closed:
            self.wait(job, now)
        tokens_held = job.input + (job.output if self.rules.reserves else max(job.output, 1) - 1)
        blocks = math.ceil(tokens_held / self.rules.block_tokens) + self.rules.fixed_blocks
        if job.input + job.output > self.rules.max_context or blocks > self.rules.kv_blocks // self.rules.groups:
            job.status, job.finish_s = REFUSED, now
            self.ended(job, now, well=False)
        else:
            self.route(job, now)

    def leave(self, job: Job, how: int, now: float) -> None:
        if job.status != OPEN:
            return
        job.status, job.finish_s = how, now
        for line in [self.held, *(queue for replica in self.replicas for queue in replica.queues)]:
            if job in line:
                line.remove(job)
        self.try_again(job, now)

    def route_held(self, now: float) -> None:
        held, self.held = sorted(self.held, key=lambda job: job.index), []
        for job in held:
            self.route(job, now)

    # Routing -------------------------------------------------------------------------------------------------------

    def route(self, job: Job, now: float) -> None:
        choices = [replica for replica in self.replicas if replica.available()]
        if not choices:
            self.held.append(job)
            return
        ways = [self.round_robin, self.least_outstanding, self.power_of_two, self.prefix_aware, self.session_affine]
        choose = ways[self.fleet.router.code]
        replica = choose(job, choices)
        self.last_used = job.replica = replica.index
        if sum(other.urgency <= job.urgency for other in replica.waiting()) >= job.queue_limit:
            job.status, job.finish_s = SHED, now
            self.try_again(job, now)
            return
        if self.requests.sessions is not None:
            self.homes[int(self.requests.sessions[job.index % self.count])] = replica.index
        replica.enqueue(job, now)

    def round_robin(self, job: Job, choices: list[Replica]) -> Replica:
        return min(choices, key=lambda replica: (replica.index <= self.last_used, replica.index))

    def least_outstanding(self, job: Job, choices: list[Replica]) -> Replica:
        return min(choices, key=lambda replica: (replica.outstanding(), replica.index))

    def power_of_two(self, job: Job, choices: list[Replica]) -> Replica:
        if len(choices) == 1:
            return choices[0]
        draw = splitmix64((splitmix64(self.seed) + job.index) % 2**64)
        first = draw % len(choices)
        second = (draw >> 32) % (len(choices) - 1)
        second += second >= first
        return self.least_outstanding(job, [choices[first], choices[second]])

    def prefix_aware(self, job: Job, choices: list[Replica]) -> Replica:
        loads = [replica.outstanding() for replica in choices]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return self.least_outstanding(job, choices)
        longest = max(len(replica.resident_units(job)) for replica in choices)
        if job.covered_tokens(longest) < 0.3 * job.input:
            return self.least_outstanding(job, choices)
        return self.least_outstanding(job, [r for r in choices if len(r.resident_units(job)) == longest])

    def session_affine(self, job: Job, choices: list[Replica]) -> Replica:
        sessions = self.requests.sessions
        home = None if sessions is None else self.homes.get(int(sessions[job.index % self.count]))
        return self.least_outstanding(job, [replica for replica in choices if replica.index == home] or choices)

    # Replicas that come and go ---------------------------------------------------------------------------------------

    def down(self, replica: Replica, now: float) -> None:
        moved = [job for job in replica.running + replica.waiting() if job.status == OPEN]
        replica.state = "down"
        replica.tell(replica.done_s)
        replica.empty()
        for job in moved:
            job.restarts += 1
            job.forget_attempt()
            self.route(job, now)

    def back(self, replica: Replica, now: float) -> None:
        if replica.state == "down" or (replica.state == "booting" and replica.ready_s == now):
            replica.state = "up"
            replica.noticed = False

    def tick(self, count: int, now: float) -> None:
        assert self.scale is not None
        interval_s, hold_s = self.scale.interval_s, self.scale.hold_s
        outstanding = sum(replica.outstanding() for replica in self.replicas) + len(self.held)
        if not outstanding and not self.to_arrive:
            return
        self.expect((count + 1) * interval_s, TICK, count + 1)
        for replica in self.in_state("draining"):
            if replica.outstanding() == 0 and replica.step_end_s is None:
                replica.state = "off"
                replica.empty()
        by_load = 0 if self.scale.target is None else math.ceil(outstanding / self.scale.target)
        desired = max(by_load, self.planned(now))
        desired = min(desired, self.scale.max_replicas)
        self.wished.append(desired)
        current = len(self.in_state("booting")) + len(self.in_state("up"))
        recent = [wish for ago, wish in enumerate(reversed(self.wished)) if ago == 0 or ago * interval_s < hold_s]
        if desired > current:
            for replica in (self.in_state("draining") + self.in_state("off"))[: desired - current]:
                if replica.state == "draining":
                    replica.state = "up"
                else:
                    replica.state, replica.ready_s = "booting", now + self.scale.cold_start_s
                    self.expect(replica.ready_s, BACK, replica.index)
            self.route_held(now)
        elif max(recent) < current:
            leaving = self.in_state("booting")[::-1] + self.in_state("up")[::-1]
            for replica in leaving[: current - max(recent)]:
                replica.state = "off" if replica.state == "booting" else "draining"

    def planned(self, now: float) -> int:
        """The last entry of the schedule that has begun; never fewer than the least, or more than the most."""
        assert self.scale is not None
        begun = [number for since_s, number in self.scale.schedule if since_s <= now]
        return min(max([self.scale.min_replicas, *begun[-1:]]), self.scale.max_replicas)

    def in_state(self, state: str) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == state]


def splitmix64(x: int) -> int:
    """Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014."""
    word = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    return z ^ (z >> 31)


def serve(requests: Requests, engine: EngineTimes, rules: Rules, fleet: FleetSettings, seed: int = 0) -> Served:
    world = World(requests, engine, rules, fleet, seed)
    world.run()
    first = world.jobs[: world.count]
    last = [world.jobs[job.index + max(0, job.attempts - 1) * world.count] for job in first]
    columns = {name: np.array([getattr(job, name) for job in last]) for name in Served._fields}
    of_the_first = {name: np.array([getattr(job, name) for job in first]) for name in ("arrival_s", "attempts")}
    return Served(**columns | of_the_first)
