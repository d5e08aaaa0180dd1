"""A day of many servers in seconds: true books of what they did, a meter that is killed, and what no scrape could see.

Time is moved by hand and pages come from memory, but they are read by the meter's own source, parser and ledger. The
oracle follows each process: what it counted, and what of it stood on a page that was read and written to the book.
What a process counted after that and before it died is lost to anybody who scrapes; all else must be metered, exactly.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aiohttp
from tests.measure.metered import BEGIN, DiesAt, HandClock, Killed

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.scrape import EngineSource
from tokonomics.measure.meter.spans import WatchedSpan
from tokonomics.measure.meter.state import MeterState
from tokonomics.measure.meter.watch import LONG_S, STARTED_AGAIN

USD_PER_HOUR = 3.6
DAY_S = 86_400.0
UNREADABLE = ("garbage", "html", "cut", "error", "empty", "nan", "twice", "broken off")
WORDS = {
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:realtime_tokens_total"),
    "tgi": ("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum", "tgi_batch_inference_count"),
    "llama.cpp": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total"),
}
"""Input, output and work. vLLM alone says when its process started, and the last two do not name their model."""
SAYS_START, NAMES_MODEL = frozenset({"vllm"}), frozenset({"vllm", "sglang"})


@dataclass(frozen=True)
class Rates:
    """How often things happen, each in a day: of one server, and of the one meter and its machine."""

    restarts: float = 4.0
    swaps: float = 2.0
    hangs: float = 4.0
    bad_pages: float = 20.0
    half_pages: float = 10.0
    kills: float = 24.0
    jumps: float = 12.0
    full_disks: float = 12.0


@dataclass(eq=False)
class Launched:
    """One process of an engine: what it has counted, series by series."""

    engine: str
    model: str
    started: float
    counts: dict[str, float]

    @classmethod
    def at(cls, engine: str, model: str, started: float) -> "Launched":
        ranks = ("0", "1") if engine == "vllm" else ("",)
        return cls(engine, model, started, {f"{word}|{rank}": 0.0 for rank in ranks for word in WORDS[engine]})

    def work(self, dice: random.Random) -> None:
        rank = "" if self.engine != "vllm" else "01"[dice.random() < 0.5]
        tokens_in, tokens_out, work = WORDS[self.engine]
        self.counts[f"{tokens_in}|{rank}"] += int(2000 * dice.random())
        self.counts[f"{tokens_out}|{rank}"] += int(500 * dice.random())
        self.counts[f"{work}|{rank}"] += 1

    def lines(self) -> Iterator[tuple[str, str]]:
        """Each sample of the page, with the series that it is of; "" of none."""
        if self.engine in SAYS_START:
            yield "", f"process_start_time_seconds {self.started!r}\n"
        for series, value in self.counts.items():
            name, _, rank = series.partition("|")
            labels = [f'model_name="{self.model}"'] if self.engine in NAMES_MODEL else []
            labels += [f'engine="{rank}"'] if rank else []
            yield series, f"{name}{{{','.join(labels)}}} {value!r}\n" if labels else f"{name} {value!r}\n"

    def tokens(self, counts: dict[str, float] | None = None) -> float:
        """Input and output, of all that it has counted or of what was read."""
        work = WORDS[self.engine][2]
        read = self.counts if counts is None else counts
        return sum(value for series, value in read.items() if not series.startswith(work))


@dataclass
class KnownOf:
    """What a meter can know of a server from pages; a copy of it is in the book."""

    last: dict[tuple[str, str], tuple[Launched, dict[str, float]]] = field(default_factory=dict)
    read: dict[Launched, dict[str, float]] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    tokens: float = 0.0
    unseen: float = 0.0
    overtaken: float = 0.0
    paid_s: float = 0.0
    until: float | None = None  # by the meter's clock

    def copy(self) -> "KnownOf":
        return replace(self, last=dict(self.last), read=dict(self.read), started=dict(self.started))


class Server:
    """An address: processes come and go behind it, and its page may fail."""

    def __init__(self, name: str, model: str, clock: HandClock, dice: random.Random) -> None:
        self.name, self.model, self.clock, self.dice = name, model, clock, dice
        self.process = Launched.at(dice.choice([*WORDS]), model, BEGIN)
        self.all = [self.process]
        self.up_at = self.hung_until = 0.0
        self.fault = ""
        self.ours, self.booked = KnownOf(), KnownOf()
        self.missing = True

    def launch(self, engine: str) -> None:
        """Another process takes the address; another engine may serve another model."""
        if engine != self.process.engine and self.dice.random() < 0.5:
            self.model = f"m{self.dice.randrange(7)}"
        self.process = Launched.at(engine, self.model, BEGIN + self.clock.passed)
        self.all.append(self.process)

    def page(self) -> tuple[str, dict[str, float]]:
        """The text as it is served, and the series on it."""
        lines = list(self.process.lines())
        if self.fault == "half":
            lines = lines[: (len(lines) + 1) // 2]
        return "".join(line for _, line in lines), {
            series: self.process.counts[series] for series, _ in lines if series
        }

    @property
    def answers(self) -> bool:
        return self.clock.passed >= max(self.up_at, self.hung_until) and self.fault in ("", "half")

    def lost_unsaid(self, said: str) -> bool:
        """Whether tokens were lost with processes before this one, where it can be known, and the meter is silent."""
        if self.process in self.ours.read or not self.ours.read or STARTED_AGAIN in said:
            return False
        last = next(process for process in reversed(self.all) if process in self.ours.read)
        own = last.model, last.engine, last.engine in SAYS_START
        if own == (self.process.model, self.process.engine, False):
            read = self.ours.read[last]
            fell = any(value < read.get(series, 0.0) for series, value in self.page()[1].items())
            return fell and last.tokens() > last.tokens(read)
        return last.tokens() > last.tokens(self.ours.read[last])

    def saw(self, seen: bool) -> None:
        """The oracle's entry for a page that the meter has read. ``seen``: it was watching all the while."""
        process, ours, (_, shown) = self.process, self.ours, self.page()
        key = process.model, process.engine
        if process.engine in SAYS_START:
            if ours.started.get(process.model, process.started) < process.started:
                # It tells that it is a later process: nothing of before can be taken for its own.
                ours.last = {other: last for other, last in ours.last.items() if other[0] != process.model}
            ours.started[process.model] = process.started
        before, values = ours.last.get(key, (process, {}))
        more = 0.0
        for series, value in shown.items():
            if series.startswith(WORDS[process.engine][2]):
                continue
            old = values.get(series, 0.0)
            if before is not process and value < old:
                old = 0.0
            elif before is not process:
                ours.overtaken += old
            more += value - old
        ours.last[key] = process, {**values, **shown}
        ours.read[process] = {**ours.read.get(process, {}), **shown}
        ours.tokens += more
        ours.unseen += 0.0 if seen else more


class Answer:
    """What a session's ``get`` gives, as far as the meter uses it."""

    def __init__(self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.status, self.content_type, self.content, self._body = status, content_type, self, body
        self.headers = headers or {}

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        yield self._body


class Network:
    """All servers, by the address that a page is asked for."""

    def __init__(self, servers: dict[str, Server]) -> None:
        self._servers = servers
        self.asked = 0

    def get(self, page: str, **_: Any) -> Answer:
        self.asked += 1
        address, path = page.removeprefix("http://").split("/", 1)
        server = self._servers[f"http://{address}"]
        if server.clock.passed < server.up_at:
            raise aiohttp.ServerDisconnectedError
        if server.clock.passed < server.hung_until:
            raise TimeoutError
        if path == "v1/models":
            return Answer(200, "application/json", b'{"data": [{"id": "%s"}]}' % server.process.model.encode())
        text, _ = server.page()
        last = text.splitlines()[-1].rsplit(" ", 1)[0]
        bad = {
            "garbage": Answer(200, "text/plain", bytes(range(256))),
            "html": Answer(200, "text/html", b"<h1>Sign in</h1>"),
            "error": Answer(500, "text/plain", b"out of memory"),
            "empty": Answer(200, "text/plain", b""),
            "cut": Answer(200, "text/plain", text[:-3].encode()),
            "nan": Answer(200, "text/plain", re.sub(r" \S+$", " NaN", text, flags=re.MULTILINE).encode()),
            "twice": Answer(200, "text/plain", f"{text}{last} 7e9\n".encode()),
        }
        if server.fault == "broken off":
            raise aiohttp.ClientPayloadError("the answer was cut short")
        if server.fault in bad:
            return bad[server.fault]
        # By the server's own clock, which nobody sets here.
        date = {"Date": formatdate(BEGIN + server.clock.passed, usegmt=True)}
        return Answer(200, "text/plain", text.encode(), date)


@dataclass
class Soak:
    """A run: its world, its meter and its oracle."""

    folder: Path
    servers: int = 200
    hours: float = 24.0
    every_s: float = 15.0
    seed: int = 0
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        self.dice, self.clock = random.Random(self.seed), HandClock()
        names = [f"http://s{place}:8000" for place in range(self.servers)]
        self.world = {name: Server(name, f"m{place % 7}", self.clock, self.dice) for place, name in enumerate(names)}
        self.network = Network(self.world)
        self.happened: Counter[str] = Counter()
        self.full_until = 0.0
        self.unstated: list[str] = []
        self.begin()

    def begin(self) -> None:
        """A new meter on the same book."""
        self.book = Ledger(self.folder / "meter.db")
        sources = [EngineSource(name, self.network, self.clock) for name in self.world]  # type: ignore[arg-type]
        self.meter = Meter(sources, self.book, self.clock, MeterSettings(USD_PER_HOUR, every_s=self.every_s))
        self._ticked: float | None = None
        for server in self.world.values():
            server.ours, server.missing = server.booked.copy(), True

    def run(self) -> MeterState:
        return asyncio.run(self._run())

    async def _run(self) -> MeterState:
        await self._tick()
        while self.clock.passed < self.hours * 3600:
            self._pass(self.every_s)
            if self._chance(self.rates.jumps):
                self._jump()
            if self._chance(self.rates.full_disks):
                self.happened["disk full"] += 1
                self.full_until = self.clock.passed + 1800 * self.dice.random()
            if self._chance(self.rates.kills):
                await self._kill()
            else:
                await self._tick()
        self.full_until = 0.0
        self._pass(self.every_s, calm=True)
        for server in self.world.values():
            server.up_at = server.hung_until = 0.0
            server.fault = ""
        state = await self._tick()
        self.book.close()
        return state

    def _chance(self, a_day: float) -> bool:
        return self.dice.random() < a_day * self.every_s / DAY_S

    def _pass(self, seconds: float, calm: bool = False) -> None:
        """So much time of the world; what happens to a server happens in the middle of it."""
        half = seconds / 2
        self.clock.passed += half
        for server in self.world.values():
            server.fault = ""
            if self.clock.passed >= server.up_at and self.dice.random() < 0.7:
                server.process.work(self.dice)
            if not calm:
                self._befall(server)
            if self.clock.passed >= server.up_at and self.dice.random() < 0.7:
                server.process.work(self.dice)
        self.clock.passed += half

    def _befall(self, server: Server) -> None:
        rates, dice, now = self.rates, self.dice, self.clock.passed
        kinds = ("restart", "swap", "hang", "bad page", "half a page")
        weights = (rates.restarts, rates.swaps, rates.hangs, rates.bad_pages, rates.half_pages)
        if dice.random() > sum(weights) * (self.every_s / DAY_S):
            return
        (what,) = dice.choices(kinds, weights)
        self.happened[what] += 1
        if what == "restart":
            server.launch(server.process.engine)
            server.up_at = now + dice.choice([0.0, 0.0, 5.0, 60.0, 300.0]) * dice.random()
        elif what == "swap":
            server.launch(dice.choice([engine for engine in WORDS if engine != server.process.engine]))
            server.up_at = now + 120.0 * dice.random()
        elif what == "hang":
            server.hung_until = now + 600.0 * dice.random()
        else:
            server.fault = "half" if what == "half a page" else dice.choice(UNREADABLE)

    def _jump(self) -> None:
        self.happened["clock jump"] += 1
        back = self.clock.offset != BEGIN and self.dice.random() < 0.5
        self.clock.offset = BEGIN if back else self.clock.offset + self.dice.uniform(-3600, 3600)

    async def _kill(self) -> None:
        """At any moment: between two ticks, with pages read, or within a transaction; another meter starts later."""
        self.happened["kill"] += 1
        self._fill()
        real = self.book._db
        how = self.dice.randrange(3)
        if how == 1:
            await self._dies(self.meter.tick(self._die))
        elif how == 2:
            self.book._db = DiesAt(real, self.dice.randrange(self.servers))  # type: ignore[assignment]
            await self._dies(self.meter.tick())
        self.book._db = real
        self.book.close()
        for _ in range(self.dice.choice([0, 1, 4, 40, 120])):
            self._pass(self.every_s)
            if self._chance(self.rates.jumps):
                self._jump()
        self.begin()

    async def _dies(self, tick: Awaitable[MeterState]) -> None:
        """In the tick, or after one that the full disk did not take."""
        with suppress(Killed):
            state = await tick
            assert state.held_spans > 0

    def _die(self) -> None:
        raise Killed

    def _fill(self) -> None:
        """No room but what there is, while the disk is full: SQLite itself says so."""
        full = self.clock.passed < self.full_until
        pages = self.book._db.execute("PRAGMA page_count").fetchone()[0] if full else 1_000_000_000
        self.book._db.execute(f"PRAGMA max_page_count = {pages}")

    async def _tick(self) -> MeterState:
        self._fill()
        state = await self.meter.tick()
        self.happened["tick"] += 1
        now, wall = self.clock.passed, self.clock.wall()
        said = {group.target: group.said or "" for group in state.groups}
        for server in self.world.values():
            ours = server.ours
            # While a meter runs, a steady clock counts; over its absence there is only the one on the wall.
            away_s = max(0.0, wall - (ours.until if ours.until is not None else wall))
            passed_s = now - self._ticked if self._ticked is not None else away_s
            ours.paid_s += passed_s
            ours.until = wall
            if server.answers:
                if server.lost_unsaid(said[server.name]):
                    self.unstated.append(f"{server.name} at {now:.0f} s: {said[server.name]!r}")
                server.saw(seen=not server.missing and passed_s <= max(LONG_S, 3 * self.every_s))
                self.happened["scrape"] += 1
            else:
                self.happened["missed"] += 1
            server.missing = not server.answers
        self._ticked = now
        if state.held_spans == 0:
            for server in self.world.values():
                server.booked = server.ours.copy()
        else:
            self.happened["tick unwritten"] += 1
        return state


@dataclass(frozen=True)
class SoakSummary:
    """A run in figures: what happened, what was true, and what the ledger has."""

    servers: int
    hours: float
    every_s: float
    seed: int
    happened: dict[str, int]
    true_tokens: float
    metered_tokens: float
    lost_tokens: float  # counted by a process after its last page that came into the book
    overtaken_tokens: float  # of engines that do not tell their start: a new process had passed the old one's count
    unseen_tokens: float  # metered, over gaps and absences
    off_tokens: float  # must be 0
    usd: float
    off_usd: float  # must be 0
    clock_usd: float  # of ``usd``: more than the true time costs, where the clock was set while no meter ran
    wrong: tuple[str, ...]  # servers whose figures are not the oracle's, and losses that were not said


def summary(soak: Soak) -> SoakSummary:
    """What the ledger has against what the oracle has, server by server."""
    metered: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    usd: Counter[str] = Counter()
    with Ledger(soak.folder / "meter.db", read_only=True) as book:
        for span in book.spans():
            tokens = span.input_total + span.output
            metered[span.target] += tokens  # type: ignore[assignment]
            usd[span.target] += span.usd  # type: ignore[assignment]
            unseen[span.target] += 0.0 if span.watched is WatchedSpan.seen else tokens  # type: ignore[assignment]
    wrong = list(soak.unstated)
    true = lost = overtaken = off_usd = off_tokens = 0.0
    for name, server in soak.world.items():
        ours = server.ours
        own_true = sum(process.tokens() for process in server.all)
        own_lost = own_true - sum(process.tokens(read) for process, read in ours.read.items())
        true, lost, overtaken = true + own_true, lost + own_lost, overtaken + ours.overtaken
        paid = ours.paid_s * USD_PER_HOUR / 3600
        off_tokens += abs(own_true - own_lost - ours.overtaken - metered[name])
        off_usd += abs(usd[name] - paid)
        same = metered[name] == ours.tokens and unseen[name] == ours.unseen and abs(usd[name] - paid) < 1e-6
        if not same:
            wrong.append(f"{name}: {metered[name]}/{unseen[name]}/{usd[name]} in the ledger; {ours}")
    return SoakSummary(
        soak.servers, soak.hours, soak.every_s, soak.seed, dict(soak.happened), true, sum(metered.values()), lost,
        overtaken, sum(unseen.values()), off_tokens, sum(usd.values()), off_usd,
        sum(usd.values()) - soak.servers * soak.clock.passed * USD_PER_HOUR / 3600, tuple(wrong),
    )  # fmt: skip
