"""Read what every replica counted, and what its GPUs draw, from the Prometheus that already scrapes them.

All samples of one scrape have the same time, so samples are grouped by target and time: each group is the page that the
engine showed then, and is read as if we had scraped it ourselves. Restarts between two of our queries are seen, because
every scrape is read and not only the last; a pod that is gone has no more pages. History is read the same way, ten
minutes at a time, as far back as Prometheus keeps it.

A target is identified by its labels, and has one name in reports and in the ledger. A pod keeps its own name, whatever
address it has after a restart; engines that share a pod are distinguished by their ports. Two servers must not have one
name at the same time, nor one server two names: tokens would be lost, or counted twice.
"""

import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from tokonomics.errors import BadInput, option, shorten
from tokonomics.measure.meter.engines import IN_BUCKETS, STARTED, SUPPORTED, WANTED, Sample, readings_of
from tokonomics.measure.meter.readings import DCGM_NAMES, GpuReading, Missed, NoGpuSeen, Reading, dcgm_readings
from tokonomics.measure.meter.scrape import PrometheusApi, Series, TooManySamples

TARGET_LABELS = ("cluster", "namespace", "job", "pod", "container", "instance")
"""The labels that identify a target, by the names that Prometheus and its Kubernetes operator use."""

TargetKey = tuple[tuple[str, str], ...]
Scraped = Sequence[tuple[TargetKey, float]]  # targets and times, oldest first


def target_of(labels: Mapping[str, str]) -> TargetKey:
    return tuple((name, labels[name]) for name in TARGET_LABELS if labels.get(name))


def target_name(target: TargetKey) -> str:
    """Return a target's name for people: its pod, else its instance, with what is above it."""
    labels = dict(target)
    for names in (("cluster", "namespace", "pod"), ("cluster", "instance")):
        if names[-1] in labels:
            return "/".join(labels[name] for name in names if name in labels)
    fix = "Sums over servers hide their restarts: ask a Prometheus that keeps the label instance."
    raise BadInput("the series of engines carry neither pod nor instance", field="prometheus", fix=fix)


class TargetNames:
    """The names given to targets; a name never changes."""

    def __init__(self) -> None:
        self._names: dict[TargetKey, str] = {}
        self._parts: dict[str, set[str]] = defaultdict(set)

    def name_of(self, target: TargetKey) -> str:
        return self._names[target]

    def keep(self, target: TargetKey, name: str) -> None:
        """Remember a name from the ledger."""
        self._names[target] = name
        self._parts[target_name(target)].add(_part(target))

    def learn(self, scraped: Scraped) -> None:
        """Name new targets: by the pod alone if it has one engine."""
        new = list(dict.fromkeys(target for target, _ in scraped if target not in self._names))
        for target in new:
            self._parts[target_name(target)].add(_part(target))
        for target in new:
            name, part = target_name(target), _part(target)
            self._names[target] = f"{name}:{part}" if part and len(self._parts[name]) > 1 else name
        _refuse_at_once(scraped, self.name_of, "{} is the name of two servers, {} and {}")


def _address(target: TargetKey) -> str | None:
    """Return where a target was scraped; without a port it is a name that may be shared by several."""
    instance = dict(target).get("instance", "")
    return instance if ":" in instance else None


def _refuse_at_once(scraped: Scraped, same_for: Callable[[TargetKey], str | None], said: str) -> None:
    """Refuse two targets with the same ``same_for`` text if their periods of scrapes overlap."""
    spans: dict[tuple[str, str], dict[TargetKey, tuple[float, float]]] = defaultdict(dict)
    for target, at in scraped:
        same = same_for(target)
        if same is not None:
            targets = spans[dict(target).get("cluster", ""), same]
            targets[target] = (targets.get(target, (at, at))[0], at)
    for (_, same), targets in spans.items():
        ordered = sorted(targets.items(), key=lambda item: item[1])
        for (one, (_, end)), (other, (start, _)) in pairwise(ordered):
            if start < end:
                words = _words(one, other), _words(other, one)
                fix = f"Choose one: {option('query')} '{words[0]}'."
                raise BadInput(said.format(shorten(same, 200), *words), field="prometheus", fix=fix)


def _part(target: TargetKey) -> str:
    """Return what distinguishes engines of one pod: the port, or else the container."""
    labels = dict(target)
    _, colon, port = labels.get("instance", "").rpartition(":")
    return port if colon and "pod" in labels else labels.get("container", "")


def _words(labels: TargetKey, unlike: TargetKey) -> str:
    return ",".join(f'{shorten(name)}="{shorten(value, 120)}"' for name, value in labels if (name, value) not in unlike)


PLACE_LABELS = (*TARGET_LABELS, "endpoint", "service", "node", "prometheus", "prometheus_replica")
"""Labels of the scrape and not of the engine: kept with the reading, to group by."""

LATEST_WINDOW_S = 300.0  # how far back to look for the newest scrape: Prometheus's own default lookback
ENDED_WITHIN_S = 240.0  # this long after its last scrape, a target that is gone was marked, and others are still shown
PIECE_S = 600.0  # our choice: ten minutes of 300 replicas at 15 s are 230,000 samples, 10 MB of JSON
_SMALLEST_PIECE_S = 10.0
_OVERLAP_S = 60.0  # read again at each query: samples that come by remote write are some seconds late
NEWEST_WITHIN_S = 120.0  # a GPU without a newer sample is gone: exporters are scraped every 15 to 60 s


class Scrape(NamedTuple):
    """The page of one target at one time, with the samples that were asked for."""

    target: TargetKey
    at: float
    labels: dict[str, str]
    samples: list[Sample]


class PrometheusSource:
    """Reads engines through a Prometheus; remembers the last scrape of each target, so that each is counted once.

    ``match`` are the user's own label matchers; ``keep_labels`` are further labels to group by, such as team or tenant.
    ``known`` are the last readings of targets in the ledger: with them, finding nothing now is not an error.
    """

    discovers = True
    labels: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        url: str,
        match: str | None = None,
        keep_labels: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.time,
        known: Iterable[Reading] = (),
        in_buckets: bool = False,
    ) -> None:
        self.api = PrometheusApi(url)
        self.name, self.match = self.api.shown, matchers(match)
        self.warnings: Sequence[str] = ()  # from the server at the last read, such as stores that did not answer
        self._keep = (*PLACE_LABELS, *keep_labels)
        self._clock = clock
        self._without = frozenset[str]() if in_buckets else IN_BUCKETS  # five times as many samples
        self._jobs: set[str] = set()
        self._keeps_up = False
        self._names = TargetNames()
        self._newest: dict[TargetKey, Sequence[Reading]] = {}
        self._seen_until: dict[TargetKey, float] = {}
        self._read_until_s: float | None = None
        self._knows_any = False
        for reading in known:
            target = target_of(reading.labels)
            self._knows_any = True
            self._jobs.add(reading.labels.get("job", ""))
            self._names.keep(target, reading.target)
            self._newest[target] = [*self._newest.get(target, ()), reading]
            self._seen_until[target] = max(reading.at, self._seen_until.get(target, 0.0))

    async def read(self) -> Sequence[Reading]:
        """Return every scrape since the last call, oldest first; at the first call only the newest of each target.

        A target that is still there but was not scraped again is reported as it was, with the same time.
        """
        now_s = self._clock()
        since_s = now_s - LATEST_WINDOW_S if self._read_until_s is None else self._read_until_s - _OVERLAP_S
        try:
            async with self.api:
                pieces = [piece async for _, piece in self._pieces(since_s, now_s)]
                scrapes = [scrape for piece in pieces for scrape in piece]
                if not scrapes and not self._knows_any:
                    raise self._nothing(LATEST_WINDOW_S)
                living = await self._living(now_s)
        except BadInput as error:
            if self._read_until_s is None:
                raise
            # It worked before: do not end a meter because of a proxy's error page.
            raise Missed(error.what, where=error.where, field=error.field, fix=error.fix) from None
        if self._read_until_s is None:
            scrapes = sorted({scrape.target: scrape for scrape in scrapes}.values(), key=lambda scrape: scrape.at)
        self._read_until_s = now_s
        return self._reported(scrapes, living, now_s)

    async def history(self, since_s: float, until_s: float) -> AsyncIterator[tuple[float, Sequence[Reading]]]:
        """Yield every scrape of a past period, as ``read`` would have given them, piece by piece, each with its time.

        If a piece has no scrape of an engine, there was none, as in a fleet that is scaled to zero at night; or
        Prometheus was down: then it is unknown, and the engines that were there are reported again.
        """
        found, at_s = self._knows_any, since_s
        async with self.api:
            async for end_s, scrapes in self._pieces(since_s, until_s):
                newest_s = max([*self._seen_until.values(), *(scrape.at for scrape in scrapes[-1:])], default=0.0)
                # Only this long after the last scrape can ended targets be told from unseen ones.
                tells_s = newest_s + ENDED_WITHIN_S
                at_s = tells_s if at_s < tells_s < end_s else end_s
                yield at_s, self._reported(scrapes, await self._living(at_s), at_s)
                found = found or bool(scrapes)
        self._read_until_s = until_s
        if not found:
            raise self._nothing(until_s - since_s)

    async def _pieces(self, since_s: float, until_s: float) -> AsyncIterator[tuple[float, list[Scrape]]]:
        """Yield scrapes oldest first, in pieces small enough for the server and for us, each with its end."""
        piece_s, start_s = PIECE_S, since_s
        while start_s < until_s:
            end_s = min(start_s + piece_s, until_s)
            try:
                scrapes = await self._scrapes(end_s - start_s, end_s)
            except TooManySamples as error:
                if piece_s / 2 < _SMALLEST_PIECE_S:
                    fix = f"Choose fewer targets: {option('query')}."
                    raise BadInput(error.what, where=error.where, fix=fix) from None
                piece_s /= 2
                continue
            yield end_s, scrapes
            start_s = end_s

    def _reported(self, scrapes: Iterable[Scrape], living: Container[TargetKey] | None, at_s: float) -> list[Reading]:
        """Return what is new, after the unchanged readings of what is still there."""
        new = self._unseen(scrapes)
        came = {(reading.target, reading.model) for reading in new}
        if living is None:
            # Samples that Prometheus would still show, and does not, have ended. Older ones also end if it was down, so
            # their targets may still be there. In a store that keeps no ``up``, targets are there as long as it would
            # show them.
            within_s = ENDED_WITHIN_S if self._keeps_up else LATEST_WINDOW_S
            lately = {target for target, at in self._seen_until.items() if at >= at_s - within_s}
            living = self._seen_until.keys() - lately if self._keeps_up else lately
        # Do not report targets that are gone; keep their times while the overlap can bring them back.
        self._newest = {target: last for target, last in self._newest.items() if target in living}
        kept_from = at_s - _OVERLAP_S
        self._seen_until = {key: at for key, at in self._seen_until.items() if key in living or at >= kept_from}
        last = [reading for readings in self._newest.values() for reading in readings]
        return [*(reading for reading in last if (reading.target, reading.model) not in came), *new]

    async def _scrapes(self, window_s: float, until_s: float) -> list[Scrape]:
        """Return the pages of the engines.

        ``up`` has only the labels of a target, so it separates them from the engine's own. It is queried for the
        engines' jobs only, because everything that is scraped has it.
        """
        names = WANTED - {STARTED} - self._without
        engines = await self.api.raw_samples(_selector(names, self.match), window_s, until_s)
        self.warnings = engines.warnings
        if not engines.series:
            return []
        jobs = {series.labels.get("job", "") for series in engines.series}
        self._jobs |= jobs
        self._knows_any = True
        targets = await self.api.raw_samples(_selector((STARTED, "up"), _among(jobs)), window_s, until_s)
        scrapes = scrapes_of(engines.series, targets.series, self._keep)
        self._names.learn([(scrape.target, scrape.at) for scrape in scrapes])
        return scrapes

    async def _living(self, at_s: float) -> Collection[TargetKey] | None:
        """Return the targets that Prometheus still knows, whether they answer or not; None if it scraped nothing."""
        selector = _selector(("up",), _among(self._jobs))
        up = await self.api.living(selector, at_s) if self._jobs else ()
        if not up and not await self.api.living("count(up)", at_s):
            return None
        self._keeps_up = True
        return {target_of(labels) for labels in up}

    def _unseen(self, scrapes: Iterable[Scrape]) -> list[Reading]:
        readings: list[Reading] = []
        for scrape in scrapes:
            if scrape.at <= self._seen_until.get(scrape.target, 0.0):
                continue
            self._seen_until[scrape.target] = scrape.at
            name = self._names.name_of(scrape.target)
            try:
                page = readings_of(scrape.samples, name, scrape.at, scrape.labels)
            except Missed as error:
                # A server that cannot be read must not hide the others.
                self.warnings = [*self.warnings, f"{name}: {error.what}"]
                continue
            self._newest[scrape.target] = page
            readings += page
        return readings

    def _nothing(self, window_s: float) -> BadInput:
        match = f" with {self.match}" if self.match else ""
        looked_for = ", ".join(sorted(name for name in WANTED if re.search("generat.*total$|predicted_total$", name)))
        said = f"has no sample of an engine in {window_s:,.0f} s{match}; looked for {looked_for}"
        fix = f"Is the engine scraped, and told to count? Supported: {SUPPORTED}."
        return BadInput(said, where=self.api.shown, fix=fix)


async def prometheus_gpus(api: PrometheusApi, match: str | None = None) -> list[GpuReading]:
    """Return the GPUs of a fleet whose DCGM exporters a Prometheus scrapes: the newest sample of each series."""
    async with api:
        answer = await api.raw_samples(_selector(DCGM_NAMES, matchers(match)), NEWEST_WITHIN_S, time.time())
    newest = [(series.labels, series.samples[-1]) for series in answer.series if series.samples]
    if not newest:
        raise NoGpuSeen(f"no GPU of a DCGM exporter in the last {NEWEST_WITHIN_S:g} s", where=api.shown)
    at = max(sample_at for _, (sample_at, _) in newest)
    return dcgm_readings(((labels.get("__name__", ""), labels, value) for labels, (_, value) in newest), at)


def scrapes_of(
    engines: Iterable[Series], targets: Iterable[Series], keep_labels: Sequence[str] = PLACE_LABELS
) -> list[Scrape]:
    """Return pages put back together, oldest first; refuse a server that two jobs scrape, which would count twice."""
    of_targets: dict[TargetKey, set[str]] = defaultdict(set)
    started: dict[tuple[TargetKey, float], float] = {}
    for labels, samples in targets:
        of_targets[target_of(labels)] |= labels.keys()
        if labels.get("__name__") == STARTED:
            started |= {(target_of(labels), at): value for at, value in samples}
    pages: dict[tuple[TargetKey, float], Scrape] = {}
    for labels, samples in engines:
        target, name = target_of(labels), labels.get("__name__", "")
        # A target's label may change while its process runs: in a series' name it would start a new series.
        dropped = {"__name__", *PLACE_LABELS, *of_targets.get(target, ())}
        own = {label: value for label, value in labels.items() if label not in dropped}
        kept = {label: labels[label] for label in keep_labels if labels.get(label)}
        for at, value in samples:
            page = pages.setdefault((target, at), Scrape(target, at, kept, []))
            page.samples.append(Sample(name, own, value))
    for key, page in pages.items():
        if key in started:
            page.samples.append(Sample(STARTED, {}, started[key]))
    scrapes = sorted(pages.values(), key=lambda scrape: scrape.at)
    scraped = [(scrape.target, scrape.at) for scrape in scrapes]
    _refuse_at_once(scraped, _address, "{} is scraped twice, as {} and as {}: its tokens would count twice")
    return scrapes


def _selector(names: Iterable[str], match: str) -> str:
    wanted = f'__name__=~"{"|".join(sorted(names))}"'
    return f"{{{wanted},{match}}}" if match else f"{{{wanted}}}"


def _among(jobs: Iterable[str]) -> str:
    """Return a matcher for exactly these jobs, whatever characters they contain."""
    literal = "|".join(re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", job) for job in sorted(jobs))
    return 'job=~"' + literal.replace("\\", "\\\\").replace('"', '\\"') + '"'


def matchers(match: str | None) -> str:
    """Return the user's matchers such as ``namespace="prod", job=~"vllm.*"``, checked, without braces."""
    bare = (match or "").strip().removeprefix("{").removesuffix("}").strip().strip(",")
    before_values = bare.split('"')[0].split("'")[0]
    if bare and (not any(sign in before_values for sign in ("=", "!~")) or set(before_values) & set("[](){}")):
        fix = 'Write such as namespace="prod",job=~"vllm.*"; which metrics are read is decided here.'
        raise BadInput("is not a list of label matchers", field="query", fix=fix)
    return bare
