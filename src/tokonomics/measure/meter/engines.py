"""What each serving engine calls the things that the meter counts, and readings made of them.

Names were read from released sources and, for vLLM 0.32 and llama.cpp, off running servers (docs/meter.md). Where an
engine renamed a metric, the newest name that is on the page counts. Prompt tokens include cached ones everywhere but
on llama.cpp, where the two are added. Series of data-parallel engines add up; of tensor and pipeline ranks, which all
tell of the same work, the lowest rank speaks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tokonomics.measure.meter.pages import Sample, finder
from tokonomics.measure.meter.readings import Counted, Missed, Reading

MOST_COUNTED = 2.0**53
"""A float counts every token up to here, which takes the fastest server centuries; one bad page must not spoil sums."""
_SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank")
_MODEL = ("model_name", "model")
_GIVEN_UP = ("abort", "aborted", "error", "cancelled", "timeout")


@dataclass(frozen=True)
class Pick:
    """The series of one sample name, all of them or those with one of some values of a label."""

    name: str
    label: str = ""
    among: Collection[str] = ()
    but: Collection[str] = ()

    def takes(self, labels: Mapping[str, str]) -> bool:
        if not self.label:
            return True
        value = labels.get(self.label, "")
        return value in self.among if self.among else value not in self.but


Choice = Sequence[Sequence[Pick]]  # names that mean the same, the best first; of a choice all picks are added


def _one(*names: str) -> Choice:
    return [[Pick(name)] for name in names]


@dataclass(frozen=True)
class EngineWords:
    """An engine's names."""

    name: str
    prefix: str
    paths: Sequence[str]
    switch: str  # what must be given to the server so that it counts
    counters: Mapping[Counted, Choice]
    running: Choice
    waiting: Choice
    kv_share: Choice = field(default_factory=list)
    lumpy: bool = True  # tokens count when a request ends
    moves_within: Sequence[str] = ()  # samples of work that move while a request still runs

    def picks(self) -> Iterable[Pick]:
        for choice in (*self.counters.values(), self.running, self.waiting, self.kv_share):
            for picks in choice:
                yield from picks


VLLM = EngineWords(
    name="vllm",
    prefix="vllm:",
    paths=("/metrics",),
    switch="it is on unless --disable-log-stats is given",
    lumpy=False,
    counters={
        Counted.input_total: _one("vllm:prompt_tokens_total"),
        Counted.input_cached: [
            [Pick("vllm:prompt_tokens_cached_total")],
            [Pick("vllm:prompt_tokens_by_source_total", "source", ("local_cache_hit", "external_kv_transfer"))],
            [Pick("vllm:prefix_cache_hits_total")],
            [Pick("vllm:gpu_prefix_cache_hits_total")],
        ],
        Counted.output: _one("vllm:generation_tokens_total"),
        Counted.answered: [[Pick("vllm:request_success_total", "finished_reason", but=_GIVEN_UP)]],
        Counted.failed: [[Pick("vllm:request_success_total", "finished_reason", _GIVEN_UP)]],
        Counted.preempted: _one("vllm:num_preemptions_total"),
        Counted.work: _one("vllm:iteration_tokens_total_count"),
        Counted.ttft_s: _one("vllm:time_to_first_token_seconds_sum"),
        Counted.ttft_count: _one("vllm:time_to_first_token_seconds_count"),
        Counted.e2e_s: _one("vllm:e2e_request_latency_seconds_sum"),
        Counted.e2e_count: _one("vllm:e2e_request_latency_seconds_count"),
    },
    running=_one("vllm:num_requests_running"),
    waiting=_one("vllm:num_requests_waiting"),
    kv_share=_one("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    moves_within=("vllm:iteration_tokens_total_count",),
)

# SGLang's realtime counter moves while requests run but does not agree with the one that is billed (it also counts
# retracted and aborted work, and not the token that prefill makes), so it tells of work and not of tokens.
SGLANG = EngineWords(
    name="sglang",
    prefix="sglang:",
    paths=("/metrics",),
    switch="start it with --enable-metrics",
    counters={
        Counted.input_total: _one("sglang:prompt_tokens_total"),
        Counted.input_cached: _one("sglang:cached_tokens_total"),
        Counted.output: _one("sglang:generation_tokens_total"),
        Counted.answered: _one("sglang:num_requests_total"),
        Counted.failed: _one("sglang:num_aborted_requests_total"),
        Counted.preempted: _one("sglang:num_retracted_requests_total"),
        Counted.work: [
            [Pick("sglang:realtime_tokens_total"), Pick("sglang:forward_execution_seconds_total")],
            [Pick("sglang:prefill_effective_tokens_total")],
        ],
        Counted.idle_s: _one("sglang:scheduler_idle_seconds_total"),
        Counted.ttft_s: _one("sglang:time_to_first_token_seconds_sum"),
        Counted.ttft_count: _one("sglang:time_to_first_token_seconds_count"),
        Counted.e2e_s: _one("sglang:e2e_request_latency_seconds_sum"),
        Counted.e2e_count: _one("sglang:e2e_request_latency_seconds_count"),
    },
    running=_one("sglang:num_running_reqs"),
    waiting=_one("sglang:num_queue_reqs"),
    kv_share=_one("sglang:token_usage"),
    moves_within=("sglang:realtime_tokens_total", "sglang:forward_execution_seconds_total"),
)

TENSORRT_LLM = EngineWords(
    name="tensorrt-llm",
    prefix="trtllm_",
    paths=("/prometheus/metrics", "/metrics"),
    switch="give trtllm-serve return_perf_metrics: true and enable_iter_perf_stats: true in its options file",
    counters={
        Counted.input_total: _one("trtllm_prompt_tokens_total"),
        Counted.input_cached: _one("trtllm_prompt_cached_tokens_total"),
        Counted.output: _one("trtllm_generation_tokens_total"),
        Counted.answered: [[Pick("trtllm_request_success_total", "finished_reason", but=_GIVEN_UP)]],
        Counted.failed: [
            [
                Pick("trtllm_request_success_total", "finished_reason", _GIVEN_UP),
                Pick("trtllm_request_error_total"),
                Pick("trtllm_num_aborted_requests_total"),
            ]
        ],
        Counted.work: [
            [Pick("trtllm_iteration_latency_seconds_count"), Pick("trtllm_num_requests_completed_total")],
        ],
        Counted.ttft_s: _one("trtllm_time_to_first_token_seconds_sum"),
        Counted.ttft_count: _one("trtllm_time_to_first_token_seconds_count"),
        Counted.e2e_s: _one("trtllm_e2e_request_latency_seconds_sum"),
        Counted.e2e_count: _one("trtllm_e2e_request_latency_seconds_count"),
    },
    running=_one("trtllm_num_requests_running"),
    waiting=_one("trtllm_num_requests_waiting"),
    kv_share=_one("trtllm_kv_cache_utilization"),
    moves_within=("trtllm_iteration_latency_seconds_count",),
)

LLAMA_CPP = EngineWords(
    name="llama.cpp",
    prefix="llamacpp:",
    paths=("/metrics",),
    switch="start it with --metrics",
    counters={
        Counted.input_total: [[Pick("llamacpp:prompt_tokens_total"), Pick("llamacpp:prompt_tokens_cached_total")]],
        Counted.input_cached: _one("llamacpp:prompt_tokens_cached_total"),
        Counted.output: _one("llamacpp:tokens_predicted_total"),
        Counted.work: [[Pick("llamacpp:n_decode_total"), Pick("llamacpp:prompt_seconds_total")]],
    },
    running=_one("llamacpp:requests_processing"),
    waiting=_one("llamacpp:requests_deferred"),
    kv_share=_one("llamacpp:kv_cache_usage_ratio"),
    moves_within=("llamacpp:n_decode_total",),
)

TGI = EngineWords(
    name="tgi",
    prefix="tgi_",
    paths=("/metrics",),
    switch="it is always on",
    counters={
        Counted.input_total: _one("tgi_request_input_length_sum"),
        Counted.output: _one("tgi_request_generated_tokens_sum"),
        Counted.answered: _one("tgi_request_success", "tgi_request_success_total"),
        Counted.failed: _one("tgi_request_failure", "tgi_request_failure_total"),
        Counted.work: _one("tgi_batch_inference_count", "tgi_batch_inference_count_total"),
        Counted.e2e_s: _one("tgi_request_duration_sum"),
        Counted.e2e_count: _one("tgi_request_duration_count"),
    },
    running=_one("tgi_batch_current_size"),
    waiting=_one("tgi_queue_size"),
    moves_within=("tgi_batch_inference_count", "tgi_batch_inference_count_total"),
)

ENGINES = (VLLM, SGLANG, TENSORRT_LLM, LLAMA_CPP, TGI)
STARTED = "process_start_time_seconds"


def _created_name(name: str) -> str:
    """Of the sample that says when a counter was made."""
    for ending in ("_total", "_sum", "_count"):
        if name.endswith(ending):
            return f"{name.removesuffix(ending)}_created"
    return f"{name}_created"


_CREATED = {
    pick.name: _created_name(pick.name)
    for words in ENGINES
    for kind in (Counted.input_total, Counted.input_cached, Counted.output)
    for picks in words.counters.get(kind, ())
    for pick in picks
}


def created_names(names: Iterable[str]) -> set[str]:
    """Samples that say when these, and the process, began."""
    return {STARTED, *(_CREATED[name] for name in names if name in _CREATED)}


PREFERENCE = {
    pick.name: place
    for words in ENGINES
    for choice in words.counters.values()
    for place, picks in enumerate(choice)
    for pick in picks
}
"""Of sample names that mean the same: 0 for the best."""
WANTED = frozenset({STARTED, *_CREATED.values(), *(pick.name for words in ENGINES for pick in words.picks())})
"""Every sample name that any engine's reading is made of."""
FINDER = finder(WANTED)


class UnknownEngine(Missed):
    """A page of something else."""


def supported() -> str:
    return ", ".join(f"{words.name} ({words.prefix}…)" for words in ENGINES)


def engine_of(samples: Iterable[Sample], found: Sequence[str] = ()) -> EngineWords:
    """Which engine wrote them."""
    names = {sample.name for sample in samples}
    for words in ENGINES:
        if any(name.startswith(words.prefix) for name in names):
            return words
    what = f"names that start with {', '.join(found)}" if found else "no metrics"
    switches = "; ".join(f"{words.name}: {words.switch}" for words in ENGINES if "start" in words.switch)
    raise UnknownEngine(
        f"no serving engine that we know wrote this page: it has {what}",
        fix=f"Supported: {supported()}. A server may have to be told to count: {switches}.",
    )


def readings_of(
    samples: Iterable[Sample],
    target: str,
    at: float,
    labels: Mapping[str, str] | None = None,
    found: Sequence[str] = (),
) -> list[Reading]:
    """One reading for each model that the engine serves."""
    samples = list(samples)
    words = engine_of(samples, found)
    by_model: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    started = None
    for sample in samples:
        if sample.name == STARTED:
            started = sample.value
        elif sample.name.startswith(words.prefix):
            model = next((sample.labels[name] for name in _MODEL if name in sample.labels), "")
            by_model[model][sample.name].append(sample)
    if "" in by_model and len(by_model) > 1:
        # What carries no model is of the whole server: it goes with the first one, so that nothing is lost.
        unnamed = by_model.pop("")
        for name, series in unnamed.items():
            by_model[min(by_model)][name] += series
    return [_reading(words, model, by_name, target, at, started, labels or {}) for model, by_name in by_model.items()]


def _reading(
    words: EngineWords,
    model: str,
    by_name: Mapping[str, Sequence[Sample]],
    target: str,
    at: float,
    started: float | None,
    labels: Mapping[str, str],
) -> Reading:
    created: dict[str, float] = {}
    counters: dict[Counted, dict[str, float]] = {}
    for kind, choice in words.counters.items():
        series = _chosen(choice, by_name)
        if not series:
            continue
        counters[kind] = {key: sample.value for key, sample in series.items()}
        if any(value < 0 for value in counters[kind].values()):
            raise Missed(f"a counter of {kind.value} is below zero: this page cannot be trusted")
        if any(value > MOST_COUNTED for value in counters[kind].values()):
            raise Missed(f"a counter of {kind.value} is beyond any count: this page cannot be trusted")
        for key, sample in series.items():
            made = _same_labels(by_name.get(_CREATED.get(sample.name, ""), ()), sample)
            if made is not None:
                created[key] = made
    if Counted.output not in counters and any(sum(counters.get(kind, {}).values()) for kind in _ENDED):
        raise Missed(
            f"this {words.name} has answered requests but counts no tokens",
            fix=f"It is too old, or {words.switch}.",
        )
    running, waiting = (_gauge(choice, by_name) for choice in (words.running, words.waiting))
    used = [sample.value for sample in _chosen(words.kv_share, by_name).values()]
    within = any(name in by_name for name in words.moves_within)
    return Reading(
        target=target,
        engine=words.name,
        model=model,
        at=at,
        counters=counters,
        started=started,
        created=created,
        running=running,
        waiting=waiting,
        kv_share=sum(used) / len(used) if used else None,
        lumpy=words.lumpy,
        moves_within=within,
        tells_idle=not words.lumpy or running is not None or within,
        labels=dict(labels),
    )


_ENDED = (Counted.answered, Counted.e2e_count)


def _gauge(choice: Choice, by_name: Mapping[str, Sequence[Sample]]) -> float | None:
    """Requests of all series together; None where nobody says, or what is said cannot be."""
    series = _chosen(choice, by_name)
    total = sum(sample.value for sample in series.values())
    return total if series and 0 <= total <= MOST_COUNTED else None


def _chosen(choice: Choice, by_name: Mapping[str, Sequence[Sample]]) -> dict[str, Sample]:
    """The series of the first names that the page has, by what tells them apart."""
    for picks in choice:
        if not any(pick.name in by_name for pick in picks):
            continue
        chosen: dict[str, tuple[tuple[int, ...], Sample]] = {}
        for pick in picks:
            for sample in by_name.get(pick.name, ()):
                if not pick.takes(sample.labels):
                    continue
                key, rank = _key(sample), _rank(sample.labels)
                if key not in chosen or rank < chosen[key][0]:
                    chosen[key] = rank, sample
        return {key: sample for key, (_, sample) in chosen.items()}
    return {}


def _key(sample: Sample) -> str:
    kept = sorted(pair for pair in sample.labels.items() if pair[0] not in _SAME_WORK and pair[0] not in _MODEL)
    return f"{sample.name}{{{','.join(f'{name}={value}' for name, value in kept)}}}" if kept else sample.name


def _rank(labels: Mapping[str, str]) -> tuple[int, ...]:
    ranks = (labels.get(name, "") for name in _SAME_WORK)
    return tuple(int(rank[:9]) if rank.isascii() and rank.isdigit() else 0 for rank in ranks)


def _same_labels(samples: Sequence[Sample], as_of: Sample) -> float | None:
    return next((sample.value for sample in samples if sample.labels == as_of.labels), None)
