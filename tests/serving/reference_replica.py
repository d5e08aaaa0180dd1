"""One replica of the slow reference: queues, KV blocks with a prefix cache, and one engine step after another.

Every step is composed from nothing but the lists below, blocks are counted one entry at a time, and nothing is
remembered that can be counted again. ``reference.py`` puts several of these behind a router and a clock.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from tokonomics.serving.state import Requests, Rules


@dataclass(frozen=True)
class EngineTimes:
    """How long an engine takes."""

    gpu_s: Callable[[int, int, int, int, float], float]
    """For a step of (decodes, their KV tokens, prompt tokens, prompts, query-key pairs of the prompts)."""
    launch_s: Callable[[int, int, int], float] = lambda *_: 0.0
    """To launch a step of (decodes, prompt tokens, prompts)."""
    after_s: Callable[[int, int], float] = lambda *_: 0.0
    """On the host after a step of (decodes, prompt tokens)."""
    ahead: bool = False
    request_s: float = 0.0
    token_s: float = 0.0
    reach_s: float = 0.0
    answer_s: float = 0.0


OPEN, REFUSED, DONE, TIMED_OUT, NEVER_SERVED, SHED = -1, 0, 1, 2, 3, 4


@dataclass(eq=False)
class Job:
    """A request on its way: what it asks, how far its current attempt is, what will be reported of it."""

    index: int
    arrival_s: float
    input: int
    output: int
    urgency: int
    units: list[int]
    ends: list[int]
    prefilled: bool
    fetched: int = 0
    queue_limit: float = math.inf
    deadline_s: float = math.inf

    target: int = 0
    computed: int = 0
    generated: int = 0
    chunk: int = 0
    blocks: int = 0
    queued_s: float = math.nan
    referenced: list[int] = field(default_factory=list)
    admitted: bool = False

    status: int = OPEN
    start_s: float = math.nan
    first_token_s: float = math.nan
    finish_s: float = math.nan
    cached_tokens: int = 0
    preemptions: int = 0
    restarts: int = 0
    replica: int = -1
    attempts: int = 0

    def forget_attempt(self) -> None:
        self.target = self.computed = self.generated = self.chunk = self.blocks = 0
        self.referenced = []
        self.admitted = False
        self.first_token_s = math.nan

    def covered_tokens(self, units: int) -> int:
        return self.ends[units - 1] if units else 0

    def prompt_units(self) -> list[int]:
        """The units of its prompt; a list that goes beyond it has whole units only, the others are its answer's."""
        return [unit for unit, end in zip(self.units, self.ends, strict=True) if end <= self.input]


class Cache:
    """The KV blocks of one replica: free, evictable (least recently used first), or held by running requests."""

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.size: dict[int, int] = {}  # blocks of each resident unit
        self.references: dict[int, int] = {}  # how many running requests refer to each resident unit
        self.evictable: list[tuple[int | None, int]] = []  # (unit or None for anonymous blocks, blocks)

    def leading_resident(self, units: list[int]) -> list[int]:
        return list(takewhile(self.size.__contains__, units))

    def available(self, without: list[int] | None = None) -> int:
        """Blocks that can be had, if the units `without` must stay."""
        return self.free + sum(blocks for unit, blocks in self.evictable if unit is None or unit not in (without or []))

    def take(self, blocks: int) -> None:
        while self.free < blocks:
            unit, held = self.evictable.pop(0)
            if unit is None:
                eaten = min(held, blocks - self.free)
                self.free += eaten
                if held > eaten:
                    self.evictable.insert(0, (None, held - eaten))
            else:
                self.free += held
                del self.size[unit], self.references[unit]
        self.free -= blocks

    def refer(self, unit: int) -> None:
        self.references[unit] += 1
        self.evictable = [entry for entry in self.evictable if entry[0] != unit]

    def release(self, job: Job, keeps: bool) -> None:
        private = job.blocks - sum(self.size[unit] for unit in job.referenced)
        if not keeps:
            self.free += private
        elif private:
            self.evictable.append((None, private))
        for unit in reversed(job.referenced):
            self.references[unit] -= 1
            if self.references[unit] == 0:
                self.evictable.append((unit, self.size[unit]))
        job.blocks = 0
        job.referenced = []


class Replica:
    """One engine: its queues, its running requests in order of admission, its blocks, the step in flight."""

    def __init__(
        self,
        index: int,
        requests: Requests,
        rules: Rules,
        engine: EngineTimes,
        state: str,
        answered: Callable[[Job, float], None],
    ) -> None:
        self.index, self.rules, self.engine, self.state = index, rules, engine, state
        self.answered = answered
        self.keeps = bool(rules.caches) and len(requests.unit_ids) > 0
        self.classes = 1 + max((int(urgency) for urgency in requests.urgency), default=0)
        self.noticed = False
        self.ready_s = math.inf
        self.empty()

    def empty(self) -> None:
        self.queues: list[list[Job]] = [[] for _ in range(self.classes)]
        self.running: list[Job] = []
        self.decoding: list[Job] = []
        self.cache = Cache(int(self.rules.kv_blocks))
        self.step_end_s: float | None = None
        self.wake_s: float | None = None
        self.composes_next_s = -math.inf  # when the host composes the step after the one in flight
        self.seen_s = -math.inf  # requests that came later are not in the step being composed
        self.done_s = -math.inf
        self.front_end_s = 0.0
        self.at_front: list[Job] = []
        self.untold: list[Job] = []
        self.first_told: list[Job] = []  # of those, who got their first token

    def enqueue(self, job: Job, now: float) -> None:
        """A request comes: to the front end, unless its prompt was computed elsewhere."""
        job.queued_s = now
        if not job.prefilled:
            self.take_in_hand(now)
            job.queued_s = math.inf
            self.at_front.append(job)
            if self.front_end_s <= now:
                self.hand_on(now)
        self.queues[job.urgency].append(job)

    def take_in_hand(self, now: float) -> None:
        while self.at_front and self.front_end_s <= now:
            self.hand_on(self.front_end_s)

    def hand_on(self, begins: float) -> None:
        """Those that wait are worked on one after the other, and go on to the engine together."""
        taken, self.at_front = self.at_front[:256], self.at_front[256:]
        longest = max(job.input for job in taken)
        self.front_end_s = begins + len(taken) * self.engine.request_s + self.engine.token_s * longest
        for job in taken:
            job.queued_s = self.front_end_s + self.engine.reach_s

    def available(self) -> bool:
        return self.state == "up" and not self.noticed

    def waiting(self) -> list[Job]:
        return [job for queue in self.queues for job in queue]

    def there(self) -> list[Job]:
        """The first of each class that came in time for the step being composed, most urgent first."""
        return [queue[0] for queue in self.queues if queue and queue[0].queued_s <= self.seen_s]

    def outstanding(self) -> int:
        return len(self.waiting()) + sum(job.status == OPEN for job in self.running)

    def blocks_of(self, tokens: int) -> int:
        return math.ceil(tokens / self.rules.block_tokens)

    def resident_units(self, job: Job) -> list[int]:
        return self.cache.leading_resident(job.prompt_units()) if self.rules.caches else []

    # One step ------------------------------------------------------------------------------------------------------

    def compose(self, now: float) -> None:
        self.let_leave()
        self.take_in_hand(now)
        self.wake_s = None
        ahead = [self.composes_next_s] if self.engine.ahead and self.composes_next_s < now else []
        for self.seen_s in [*ahead, now]:
            while self.compose_once(now) and not self.in_step():
                pass
            if self.in_step():
                break
            self.tell(self.done_s)
        else:
            self.tell(self.done_s)
            coming = [queue[0].queued_s for queue in self.queues if queue and queue[0].queued_s > now]
            self.wake_s = min([*coming, self.front_end_s] if math.inf in coming else coming, default=None)
            return
        prompts = [job for job in self.running if job.chunk]
        kv_tokens = sum(job.computed + 1 for job in self.decoding)
        tokens = sum(job.chunk for job in prompts)
        pairs = sum(job.chunk * (job.computed + (job.chunk + 1) / 2) for job in prompts)
        on_gpu = self.engine.gpu_s(len(self.decoding), kv_tokens, tokens, len(prompts), pairs)
        launched_s = self.seen_s + self.engine.launch_s(len(self.decoding), tokens, len(prompts))
        self.tell(max(self.done_s, launched_s) if self.engine.ahead else self.done_s)
        self.step_end_s = max(now + on_gpu, launched_s) + self.engine.after_s(len(self.decoding), tokens)
        self.composes_next_s = max(now, launched_s)

    def in_step(self) -> bool:
        return bool(self.decoding or any(job.chunk for job in self.running))

    def tell(self, at_s: float) -> None:
        """Clients hear of the last step."""
        for job in self.untold:
            if job in self.first_told:
                job.first_token_s = at_s
            if job.finish_s == self.done_s:
                job.finish_s = at_s
                self.answered(job, at_s)
        self.untold, self.first_told = [], []

    def compose_once(self, now: float) -> bool:
        """Choose who decodes and which prompt tokens are computed; whether anyone was admitted or preempted."""
        budget = int(self.rules.max_batched_tokens)
        self.of_one_group = budget
        self.decoding = []
        preempted = False
        while self.head_is_computed() and self.has_room_for_head(budget):
            self.admit(self.there()[0], budget, now)
        if self.rules.mixes:
            preempted = self.decode()
            budget = max(0, budget - len(self.decoding))
        elif not self.partial() and not self.can_admit_head(budget):
            return self.decode()
        self.of_one_group = math.ceil(budget / self.rules.groups)
        for job in self.partial():
            self.schedule(job, min(job.target - job.computed, budget, self.of_one_group))
            budget -= job.chunk
        admitted = False
        while not preempted and self.can_admit_head(budget):
            budget -= min(self.admit(self.there()[0], budget, now), self.of_one_group)
            admitted = True
        return preempted or admitted

    def partial(self) -> list[Job]:
        return [job for job in self.running if job.computed < job.target and not job.chunk]

    def decode(self) -> bool:
        """Every complete prompt writes a token; whether others had to make room for their blocks."""
        preempted = False
        while True:
            self.decoding = [job for job in self.running if job.computed >= job.target]
            growing = [job for job in self.decoding if job.computed % self.rules.block_tokens == 0]
            if self.rules.reserves or len(growing) <= self.cache.available():
                break
            self.preempt(max(self.running, key=lambda job: (job.urgency, self.running.index(job))))
            preempted = True
        if not self.rules.reserves:
            for job in growing:
                self.cache.take(1)
                job.blocks += 1
        return preempted

    def preempt(self, job: Job) -> None:
        self.leave(job)
        job.computed = 0
        job.preemptions += 1
        self.queues[job.urgency].insert(0, job)

    def leave(self, job: Job) -> None:
        self.running.remove(job)
        self.cache.release(job, self.keeps)

    # Admission -----------------------------------------------------------------------------------------------------

    def plan(self, job: Job) -> tuple[int, int, list[int], int]:
        """What admitting a request now would mean: (target, tokens cached, units referenced, blocks to take)."""
        arrives_computed = job.prefilled and job.generated == 0
        target = job.input + job.generated
        units = [] if arrives_computed else self.resident_units(job)
        hit = job.covered_tokens(len(units))
        if not job.admitted:
            hit = max(hit, job.fetched)
        whole_blocks = (target - 1) // self.rules.block_tokens * self.rules.block_tokens
        cached = target if arrives_computed else min(hit, whole_blocks)
        tokens_held = job.input + job.output if self.rules.reserves else target
        shared = sum(self.cache.size[unit] for unit in units)
        return target, cached, units, max(0, self.blocks_of(tokens_held) + int(self.rules.fixed_blocks) - shared)

    def head_is_computed(self) -> bool:
        """The next in the queue comes with its prompt computed: it needs no prompt tokens, only a place."""
        return bool(self.there() and self.there()[0].prefilled and self.there()[0].generated == 0)

    def can_admit_head(self, budget: int) -> bool:
        return budget > 0 and not self.head_is_computed() and self.has_room_for_head(budget)

    def has_room_for_head(self, budget: int) -> bool:
        if not self.there() or len(self.running) >= self.rules.max_sequences:
            return False
        target, cached, units, need = self.plan(self.there()[0])
        if need > self.cache.available(without=units):
            return False
        first_prompt = not any(job.chunk for job in self.running)
        return bool(self.rules.chunks) or first_prompt or min(target - cached, self.of_one_group) <= budget

    def admit(self, job: Job, budget: int, now: float) -> int:
        """Move the head of the queue into the batch; the prompt tokens it takes from the step's budget."""
        target, cached, units, need = self.plan(job)
        for unit in units:
            self.cache.refer(unit)
        self.cache.take(need)
        job.referenced = units
        job.blocks = need + sum(self.cache.size[unit] for unit in units)
        job.target, job.computed = target, cached
        if math.isnan(job.start_s):
            job.start_s = now
        self.queues[job.urgency].remove(job)
        self.running.append(job)
        computed_elsewhere = job.prefilled and job.generated == 0
        if not job.admitted:
            job.cached_tokens = 0 if computed_elsewhere else cached
            self.publish(job, 0, job.cached_tokens)
        job.admitted = True
        if computed_elsewhere:
            job.generated = 1
            job.first_token_s = job.arrival_s
            self.finish_if_complete(job, now)
            return 0
        rest = target - cached
        self.schedule(job, min(rest, budget, self.of_one_group) if self.rules.chunks else rest)
        return job.chunk

    def schedule(self, job: Job, chunk: int) -> None:
        """Give a request prompt tokens in this step."""
        job.chunk = chunk
        self.publish(job, job.computed, job.computed + chunk)

    def publish(self, job: Job, past: int, computed: int) -> None:
        """Units that these tokens complete become resident if nobody's are."""
        for place, unit in enumerate(job.prompt_units() if self.rules.caches else []):
            before = job.covered_tokens(place)
            last = job.covered_tokens(place + 1)
            newly_covered = past < last <= computed
            if newly_covered and unit not in job.referenced and unit not in self.cache.size:
                self.cache.size[unit] = self.blocks_of(last - before)
                self.cache.references[unit] = 1
                job.referenced.append(unit)

    def let_leave(self) -> None:
        """Requests whose clients hung up go before others finish, in the order of their deadlines."""
        gone = [job for job in self.running if job.status == TIMED_OUT]
        for job in sorted(gone, key=lambda job: (job.finish_s, job.index)):
            self.leave(job)

    def end_step(self, now: float) -> None:
        self.step_end_s = None
        self.done_s = now
        self.let_leave()
        for job in list(self.running):
            writes = job in self.decoding
            if job.chunk:
                job.computed += job.chunk
                writes = job.computed == job.target
                job.chunk = 0
            elif writes:
                job.computed += 1
            if not writes:
                continue
            if job.output > 0:
                job.generated += 1
            if math.isnan(job.first_token_s):
                job.first_token_s = now
                self.first_told.append(job)
            self.finish_if_complete(job, now)
            self.untold.append(job)
        self.decoding = []

    def publish_answer(self, job: Job) -> None:
        """The next turn of a conversation finds the units that the answer completes, but for its last token."""
        for place, unit in enumerate(job.units if self.rules.caches else []):
            written = place >= len(job.prompt_units())
            complete = job.ends[place] <= job.input + max(job.output, 1) - 1
            if written and complete and unit not in self.cache.size:
                self.cache.size[unit] = self.blocks_of(job.ends[place] - job.covered_tokens(place))
                self.cache.references[unit] = 1
                job.referenced.append(unit)

    def finish_if_complete(self, job: Job, now: float) -> None:
        if job.generated >= job.output:
            job.status, job.finish_s = DONE, now
            self.publish_answer(job)
            self.leave(job)
