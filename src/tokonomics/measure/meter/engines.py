"""Turn a metrics page into readings, by each serving engine's names for what the meter counts.

The names are in ``files/engines.toml``. They were read from released sources and, for vLLM 0.32 and llama.cpp, from
running servers (docs/meter.md). If an engine renamed a metric, the newest name on the page counts. Prompt tokens
include cached ones everywhere except on llama.cpp, where the two are added. Series of data-parallel engines add up;
tensor and pipeline ranks all report the same work, so the lowest rank counts.

Frontends of engines also count, by the tokens that they pass on: the frontend of NVIDIA Dynamo
(``lib/runtime/src/metrics/prometheus_names.rs``, commit 04070c7), the endpoint picker of llm-d
(llm-d-inference-scheduler, ``pkg/epp/metrics/metrics.go``, commit 490ffc7) and that of the Gateway API Inference
Extension, whose names it kept. Triton with the TensorRT-LLM backend is an engine (TensorRT-LLM,
``triton_backend/…/custom_metrics_reporter.cc``, commit 89fd9b7). KServe lets Prometheus put ``kserve_`` before vLLM's
names (``pkg/controller/v1alpha2/llmisvc/monitoring.go``, commit 8cb87c4).

One regular expression finds the wanted names on a page in the Prometheus text format, and only those lines are read.
``prometheus_client`` parses the name and labels of each series once; later pages have the same, with other values.
Types are left out on purpose: with them the parser renames samples (``llamacpp:n_tokens_max`` becomes ``…_max_total``),
so names here are the ones on the page.
"""

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.errors import shorten
from tokonomics.measure.meter.readings import Counted, Missed, Reading

MOST_MODELS = 1000  # on one page (our choice); servers of adapters name a few hundred
MOST_COUNTED = 2.0**53  # a float counts every token up to here; a larger value is an error that must not spoil sums
_SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank")
_MODEL = ("model_name", "model")
_STATES = (
    "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_memory_bytes",
    "kv_cache_size_tokens", "kv_offloading_size", "num_gpu_blocks",
)  # fmt: skip


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float
    series: "KnownSeries | None" = None


class KnownSeries(NamedTuple):
    """What does not change of a sample from page to page, worked out once."""

    name: str
    labels: Mapping[str, str]
    key: str  # its name, and its labels without those of the model and of ranks that do the same work
    rank: tuple[int, ...]
    model: str


class Pick(NamedTuple):
    """The series of one sample name: all of them, or those with or without some values of a label."""

    name: str
    label: str = ""
    is_among: bool = False
    values: Collection[str] = ()

    def takes(self, labels: Mapping[str, str]) -> bool:
        return not self.label or (labels.get(self.label, "") in self.values) is self.is_among


Choice = Sequence[Sequence[Pick]]  # names that mean the same, the best first; all picks of a choice are added


_PICK = re.compile(r"(\w+)(?:\{(\w+)(!?=)([^}]*)\})?")


def _choice(ways: str | list[str]) -> Choice:
    """Read a choice as engines.toml writes it."""
    return [[_pick(part.strip()) for part in way.split("+")] for way in ([ways] if isinstance(ways, str) else ways)]


def _pick(text: str) -> Pick:
    found = _PICK.fullmatch(text)
    assert found is not None, text
    name, label, how, values = found.groups(default="")
    return Pick(name, label, is_among=how == "=", values=tuple(values.split("|")))


@dataclass(frozen=True)
class EngineWords:
    name: str
    title: str  # for people
    prefix: str  # of all its samples; the names below are without it
    switch: str  # the option that makes the server count
    counters: Mapping[Counted, Choice]
    running: Choice
    waiting: Choice
    kv_share: Choice
    states: str = ""  # the sample whose labels state the set-up
    build: Sequence[str] = ()  # the page and the field that state the version
    lumpy: bool = True  # tokens are counted only when a request ends
    moves_within: Sequence[str] = ()  # samples of work that change while a request runs
    frontend: bool = False  # it passes requests on to engines, which may count the same tokens

    def names(self) -> set[str]:
        """Return every sample name that a reading is made from."""
        choices = (*self.counters.values(), self.running, self.waiting, self.kv_share)
        picked = {pick.name for choice in choices for picks in choice for pick in picks}
        return {*self.created().values(), *picked, *filter(None, [self.states])}

    def created(self) -> dict[str, str]:
        """Return the samples that say when the counters of tokens were created."""
        choices = [self.counters.get(kind, ()) for kind in (Counted.input_total, Counted.input_cached, Counted.output)]
        names = (pick.name for choice in choices for picks in choice for pick in picks)
        return {name: re.sub("_(total|sum|count)$", "", name) + "_created" for name in names}


def _engines() -> tuple[EngineWords, ...]:
    rows: dict[str, dict[str, Any]] = {}
    for row in tomllib.loads(Path(__file__).with_name("files").joinpath("engines.toml").read_text("utf-8"))["engine"]:
        rows[row["prefix"]] = rows[row.pop("like")] | row if "like" in row else row
    words = []
    for row in rows.values():
        counters = {Counted[kind]: _choice(ways) for kind, ways in row["counters"].items()}
        gauges = {name: _choice(row.get(name, [])) for name in ("running", "waiting", "kv_share")}
        words.append(EngineWords(**{**row, **gauges, "counters": counters}))
    return tuple(words)


ENGINES = _engines()
SUPPORTED = ", ".join(f"{words.name} ({words.prefix}…)" for words in ENGINES)
FRONTENDS = frozenset(words.name for words in ENGINES if words.frontend)
STARTED = "process_start_time_seconds"
PREFERENCE = {
    f"{words.prefix}{pick.name}": place
    for words in ENGINES
    for choice in words.counters.values()
    for place, picks in enumerate(choice)
    for pick in picks
}
"""Rank of sample names that mean the same; 0 is the best."""


def wanted_names(engines: Iterable[EngineWords]) -> frozenset[str]:
    """Return every sample name that readings of these engines need, and the one with their start time."""
    return frozenset({STARTED, *(f"{words.prefix}{name}" for words in engines for name in words.names())})


def finder(names: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that finds the lines of these samples."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"^(?:{'|'.join(map(re.escape, longest_first))})[{{ \t].*$", re.MULTILINE)


WANTED = wanted_names(ENGINES)
IN_BUCKETS = frozenset(name for name in WANTED if name.endswith("_bucket"))
FINDER = finder(WANTED)


class UnknownEngine(Missed):
    """Raised if the page is not that of a known engine."""


def samples_of(page: str, wanted: re.Pattern[str]) -> list[Sample]:
    """Return the wanted samples, in the page's order, without invalid numbers."""
    if page and not page.endswith("\n"):
        # The format ends with a line feed: without one the last number may be cut, and would look like a restart.
        raise Missed("the page is cut off")
    try:
        found = [_sample(match.group()) for match in wanted.finditer(page)]
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise Missed(f"the page is not in the Prometheus text format: {shorten(str(error), 100)}") from None
    return [sample for sample in found if math.isfinite(sample.value)]


_LINE = re.compile(r"(\w[^\s{]*(?:\{.*\})?)[ \t]+([^\s}]+)(?:[ \t]+[-+\d.eE]+)?\s*")  # series, value, maybe a time
_KNOWN_SERIES = 1 << 14  # our choice: at 2.4 KB each; a vLLM has some hundred, the same on every server of a model


def _sample(line: str) -> Sample:
    """Read a line; a series stands on every page again, so that only its first line goes to the parser."""
    parts = _LINE.fullmatch(line)
    if parts is None or " # " in line:  # what follows is an exemplar, with a value of its own
        return _parsed(line)
    series = _series(parts[1])
    return Sample(series.name, series.labels, float(parts[2]), series)


@lru_cache(maxsize=_KNOWN_SERIES)
def _series(text: str) -> KnownSeries:
    return _series_of(_parsed(f"{text} 0"))


def _series_of(sample: Sample) -> KnownSeries:
    if sample.series is not None:
        return sample.series
    name, labels = sample.name, sample.labels
    kept = sorted(pair for pair in labels.items() if pair[0] not in _SAME_WORK and pair[0] not in _MODEL)
    told = (labels.get(rank, "") for rank in _SAME_WORK)
    return KnownSeries(
        name, labels,
        key=f"{name}{{{','.join(f'{label}={value}' for label, value in kept)}}}" if kept else name,
        rank=tuple(int(text[:9]) if text.isascii() and text.isdigit() else 0 for text in told),
        model=next((labels[label] for label in _MODEL if label in labels), ""),
    )  # fmt: skip


def _parsed(line: str) -> Sample:
    from prometheus_client.parser import text_string_to_metric_families

    (family,) = text_string_to_metric_families(f"{line}\n")
    (sample,) = family.samples
    return Sample(sample.name, sample.labels, sample.value)


def prefixes_of(page: str) -> list[str]:
    """Return the first words of the names on a page, for messages."""
    matches = re.finditer(r"^([a-zA-Z]+)[_:a-zA-Z0-9]*[{ ]", page, re.MULTILINE)
    return list(dict.fromkeys(match.group(1) for match in matches))[:8]


def engine_of(samples: Iterable[Sample], found: Sequence[str] = ()) -> EngineWords:
    """Return the engine that wrote a page; ``found`` are the prefixes on it, for the error message."""
    names = {sample.name for sample in samples}
    for words in ENGINES:
        if any(name.startswith(words.prefix) for name in names):
            return words
    what = f"names that start with {', '.join(found)}" if found else "no metrics"
    switches = "; ".join(f"{words.name}: {words.switch}" for words in ENGINES if "start" in words.switch)
    raise UnknownEngine(
        f"no serving engine that we know wrote this page: it has {what}",
        fix=f"Supported: {SUPPORTED}. A server may have to be told to count: {switches}.",
    )


def readings_of(
    samples: Iterable[Sample],
    target: str,
    at: float,
    labels: Mapping[str, str] | None = None,
    found: Sequence[str] = (),
) -> list[Reading]:
    """Return one reading for each model that the engine serves."""
    samples = list(samples)
    words = engine_of(samples, found)
    by_model: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    started = None
    values: dict[tuple[str, str, tuple[int, ...]], float] = {}
    for sample in samples:
        series = _series_of(sample)
        if values.setdefault((series.key, series.model, series.rank), sample.value) != sample.value:
            raise Missed(f"{sample.name} stands twice on the page, with two values: it cannot be trusted")
        if sample.name == STARTED:
            started = sample.value
        elif sample.name.startswith(words.prefix):
            by_model[series.model][sample.name.removeprefix(words.prefix)].append(sample)
    if len(by_model) > MOST_MODELS:
        raise Missed(f"the page names {len(by_model):,} models: more than {MOST_MODELS:,} cannot be told apart")
    if "" in by_model and len(by_model) > 1:
        # Samples without a model belong to the whole server: add them to the first model, so that nothing is lost.
        unnamed = by_model.pop("")
        for name, listed in unnamed.items():
            by_model[min(by_model)][name] += listed
    of_server = {"target": target, "at": at, "started": started, "labels": dict(labels or {})}
    return [_reading(words, by_name, **of_server, model=model) for model, by_name in by_model.items()]


def _reading(words: EngineWords, by_name: Mapping[str, Sequence[Sample]], **of_server: Any) -> Reading:
    created: dict[str, float] = {}
    counters: dict[Counted, dict[str, float]] = {}
    created_names = words.created()
    for kind, choice in words.counters.items():
        series = _chosen(choice, by_name)
        if not series:
            continue
        counters[kind] = {key: sample.value for key, sample in series.items()}
        if not all(0 <= value <= MOST_COUNTED for value in counters[kind].values()):
            odd = "below zero" if min(counters[kind].values()) < 0 else "beyond any count"
            raise Missed(f"a counter of {kind.value} is {odd}: this page cannot be trusted")
        for key, sample in series.items():
            for start in by_name.get(created_names.get(sample.name.removeprefix(words.prefix), ""), ()):
                if start.labels == sample.labels:
                    created.setdefault(key, start.value)
    ended = (Counted.answered, Counted.e2e_count)
    if Counted.output not in counters and any(sum(counters.get(kind, {}).values()) for kind in ended):
        said = f"this {words.name} has answered requests but counts no tokens"
        raise Missed(said, fix=f"It is too old, or {words.switch}.")
    running, waiting = (_gauge(choice, by_name) for choice in (words.running, words.waiting))
    used = [sample.value for sample in _chosen(words.kv_share, by_name).values()]
    within = any(name in by_name for name in words.moves_within)
    stated = next(iter(by_name.get(words.states, ())), None)
    states = {name: stated.labels[name] for name in _STATES if name in stated.labels} if stated else {}
    return Reading(
        **of_server, engine=words.name, counters=counters, created=created, running=running, waiting=waiting,
        kv_share=sum(used) / len(used) if used else None, states=states, lumpy=words.lumpy, moves_within=within,
        tells_idle=not words.lumpy or running is not None or within,
    )  # fmt: skip


def _gauge(choice: Choice, by_name: Mapping[str, Sequence[Sample]]) -> float | None:
    """Return the requests of all series together; None if the page does not say, or the value is invalid."""
    series = _chosen(choice, by_name)
    total = sum(sample.value for sample in series.values())
    return total if series and 0 <= total <= MOST_COUNTED else None


def _chosen(choice: Choice, by_name: Mapping[str, Sequence[Sample]]) -> dict[str, Sample]:
    """Return the series of the first names that the page has, by key; of ranks that do the same work, the lowest."""
    picks = next((picks for picks in choice if any(pick.name in by_name for pick in picks)), ())
    chosen: dict[str, tuple[tuple[int, ...], Sample]] = {}
    for pick in picks:
        for sample in by_name.get(pick.name, ()):
            if pick.takes(sample.labels):
                series = _series_of(sample)
                if series.key not in chosen or series.rank < chosen[series.key][0]:
                    chosen[series.key] = series.rank, sample
    return {key: sample for key, (_, sample) in chosen.items()}
