"""Of a build that differs in one term, the comparison names that term and its size; of equal builds it says nothing.

Builds are those of the step model, Llama 3.1 8B on an H200 under vLLM, with one thing changed at a time.
"""

import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.operate.marks import fingerprint, time_of
from tests.operate.timed import TimedEngine
from tests.there import refused, there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import flag
from tokonomics.operate.fingerprint import PROBES, Fingerprint, Probe, ProbeKind
from tokonomics.operate.guard import BuildChange, compare
from tokonomics.operate.guard_price import held_rates, told_setup
from tokonomics.operate.record import save_record
from tokonomics.operate.replay_rate import simulated_rate
from tokonomics.physics.calibration import Correction, Profile, using
from tokonomics.physics.deployment import NO_FLAGS, Deployment, EngineFlags, deploy
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.questions.guard import guard
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.run import GuardRequest
from tokonomics.questions.traffic import traffic_of
from tokonomics.report.guard_view import guard as view
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos

ALIKE = 0.01  # deviation of a probe between two starts of one build, beside the noise of its rounds


@cache
def deployment() -> Deployment:
    return deploy(find_model("llama-3.1-8b"), find_gpu("H200"), find_engine("vllm"))


@cache
def base() -> StepModel:
    return step_model(deployment())


def corrected(**factors: float) -> StepModel:
    return base().corrected(Correction(gpu="H200", engine="vllm", loads=1, rows=1, **factors))


def flagged(**flags: Any) -> StepModel:
    return step_model(deployment().model_copy(update={"flags": EngineFlags(**flags)}))


def later(request_s: float) -> StepModel:
    own = there(base().engine)
    return base().with_engine(own.model_copy(update={"request_s": own.request_s + request_s}))


def mark(steps: StepModel, seed: int, cached: bool = True, **more: Any) -> Fingerprint:
    return fingerprint(lambda probe: time_of(steps, probe, cached), seed, **{"alike": ALIKE} | more)


def changed(steps: StepModel, seed: int = 2, cached: bool = True, before: StepModel | None = None) -> BuildChange:
    return compare(mark(before or base(), 1), mark(steps, seed, cached))


# --- the cause ------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Any, str, float | None]] = {
    "decode kernels 1.3": (lambda: corrected(decode=1.3), "decode", 1.3),
    "prompt kernels 1.2": (lambda: corrected(prefill=1.2), "prefill", 1.2),
    "all kernels 1.3": (lambda: corrected(decode=1.3, prefill=1.3), "kernels", 1.3),
    "all kernels 1.08": (lambda: corrected(decode=1.08, prefill=1.08), "kernels", 1.08),
    "a request 20 ms": (lambda: later(0.020), "request", 0.020),
    "a request 3 ms": (lambda: later(0.003), "request", 0.003),
    "launches threefold": (lambda: corrected(launch=3.0), "launch", None),
    "eager": (lambda: flagged(captured_tokens=0), "graphs", None),
    "graphs to 64": (lambda: flagged(captured_tokens=64), "graphs", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_term_that_changed_is_named_alone_with_its_size(name: str) -> None:
    make, term, size = CASES[name]
    change = changed(make())
    assert change.verdict == "slower"
    assert [found.term for found in change.terms] == [term]
    (found,) = change.terms
    assert found.low <= found.size <= found.high
    assert size is None or found.low <= size <= found.high
    assert size is None or found.high - found.low < 0.5 * size


@pytest.mark.parametrize("tokens", [0, 16, 64])
def test_the_largest_graph_that_is_left_is_named(tokens: int) -> None:
    (found,) = changed(flagged(captured_tokens=tokens)).terms
    assert found.above_tokens == tokens
    launched_s = float(flagged(captured_tokens=tokens).decode(max(1, 2 * tokens), 32))
    assert found.size == pytest.approx(launched_s, rel=0.1)


def test_the_hosts_time_between_steps_is_told_from_kernels() -> None:
    """An engine that does not compose ahead: 3 ms more after every step."""
    change = changed(corrected(step_s=0.004), before=corrected(step_s=0.001))
    (found,) = change.terms
    assert found.term == "host"
    assert found.low <= 0.003 <= found.high


def test_a_prompt_that_is_computed_again_is_the_prefix_caches_doing() -> None:
    (found,) = changed(base(), cached=False).terms
    assert found.term == "cache"
    assert found.low <= 1.0 <= found.high + 0.1


def test_two_causes_are_both_named_the_stronger_first() -> None:
    own = there(base().engine)
    both = corrected(decode=1.3)
    both = both.with_engine(there(both.engine).model_copy(update={"request_s": own.request_s + 0.020}))
    change = changed(both)
    assert {found.term for found in change.terms} == {"decode", "request"}


def test_a_faster_build_is_said_to_be_faster_and_why() -> None:
    change = changed(corrected(decode=0.8))
    assert (change.verdict, change.turned) == ("faster", True)
    assert not change.is_worse
    (found,) = change.terms
    assert found.term == "decode"
    assert found.low <= 1 / 0.8 <= found.high


def test_one_odd_kernel_is_an_alarm_without_a_cause() -> None:
    """Batches of 64 take twice as long, and nothing else: no term does that."""

    def odd(probe: Probe) -> float:
        return time_of(base(), probe) * (2 if probe.kind is ProbeKind.decode and probe.users == 64 else 1)

    change = compare(mark(base(), 1), fingerprint(odd, 2))
    assert change.verdict == "slower"
    assert change.terms == ()
    assert max(change.probes, key=lambda row: row.ratio).probe.users == 64


# --- no alarm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alike", [0.0, 0.01, 0.02])
def test_equal_builds_raise_no_alarm(alike: float) -> None:
    verdicts = [
        compare(mark(base(), seed, alike=alike), mark(base(), 1000 + seed, alike=alike)).verdict for seed in range(30)
    ]
    assert verdicts.count("same") >= 29


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_widens_intervals_and_raises_no_alarm(noise: float) -> None:
    calm = changed(base())
    pairs = [(mark(base(), seed, noise=noise), mark(base(), 1000 + seed, noise=noise)) for seed in range(20)]
    changes = [compare(*pair) for pair in pairs]
    assert [change.verdict for change in changes].count("same") >= 19
    width = [math.log(row.high / row.low) for row in (calm.probes[0], changes[0].probes[0])]
    assert width[0] < width[1]


def by_kind(seed: int) -> Callable[[Probe], float]:
    """A noise for each kind of probe, from 0.2 to 30 %."""
    drawn = np.random.default_rng(seed).uniform(math.log(0.002), math.log(0.3), len(ProbeKind))
    noises = dict(zip(ProbeKind, np.exp(drawn).tolist(), strict=True))
    return lambda probe: noises[probe.kind]


@cache
def usual() -> dict[Probe, float]:
    return {probe: time_of(base(), probe) for probe in PROBES}


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.3, "by kind"])
@pytest.mark.parametrize(("alike", "drift"), [(0.0, 0.0), (0.01, 0.0), (0.014, 0.5)])
def test_one_comparison_of_equal_builds_in_a_hundred_raises_an_alarm(
    noise: float | str, alike: float, drift: float
) -> None:
    """At most: of 300, more than 9 would come once in a thousand times (binomial)."""
    alarms = 0
    for number in range(300):
        own = by_kind(number) if isinstance(noise, str) else noise
        before, after = (
            fingerprint(usual().__getitem__, seed, noise=own, alike=alike, drift=drift, rounds=5)
            for seed in (2 * number, 2 * number + 1)
        )
        alarms += compare(before, after).verdict != "same"
    assert alarms <= 9


def test_a_drift_of_all_requests_is_no_alarm_and_would_be_one_by_its_probes_noise_alone() -> None:
    """Lone prompts 6 % slower: with rounds that scatter by 10 %, twelve of them would be sure of it."""

    def drifted(probe: Probe) -> float:
        return usual()[probe] * (1.06 if probe.kind is not ProbeKind.decode else 1.0)

    before, after = (fingerprint(time, seed, noise=0.1) for time, seed in ((usual().__getitem__, 1), (drifted, 2)))
    assert compare(before, after).verdict == "same"


def test_a_change_within_the_tolerance_is_none() -> None:
    assert changed(corrected(decode=1.02, prefill=1.02)).verdict == "same"
    wide = compare(mark(base(), 1), mark(corrected(decode=1.3), 2), tolerance=0.5)
    assert wide.verdict == "same"


# --- what the servers say -------------------------------------------------------------------------------------------


def told(old: dict[str, Any], new: dict[str, Any]) -> BuildChange:
    engine = {"engine": "vllm"}
    return compare(mark(base(), 1, engine=engine | old), mark(base(), 2, engine=engine | new))


def test_less_room_is_a_loss_and_more_is_not() -> None:
    fewer = told({"kv_tokens": 896_912}, {"kv_tokens": 448_000})
    assert (fewer.verdict, fewer.is_worse) == ("same", True)
    assert [(row.name, row.before, row.after) for row in fewer.lost] == [("KV cache, tokens", "896,912", "448,000")]
    more = told({"context": 8192}, {"context": 16_384})
    assert (more.is_worse, [row.name for row in more.told]) == (False, ["context of a request"])
    off = told({"prefix_caching": "True"}, {"prefix_caching": "False"})
    assert [row.name for row in off.lost] == ["prefix caching"]


def test_another_precision_of_the_cache_is_named() -> None:
    change = told({"kv_dtype": "auto", "kv_tokens": 800_000}, {"kv_dtype": "fp8", "kv_tokens": 1_600_000})
    assert [row.name for row in change.told] == ["KV cache, tokens", "KV precision"]
    assert not change.is_worse


def test_fewer_answers_at_once_are_a_loss() -> None:
    fewer = tuple(probe for probe in PROBES if probe.running <= 32)
    skipped = {"decode 64 × 16": "the server does not run 64 answers at once"}
    change = compare(mark(base(), 1), mark(base(), 2, probes=fewer, skipped=skipped))
    assert [(row.name, row.before, row.after) for row in change.lost] == [("answers seen at once", "256", "32")]


def test_what_was_too_long_for_one_of_two_runs_is_no_loss() -> None:
    """Beside 63 answers a prompt was answered, so 64 requests ran at once, whatever was said of 64 answers."""
    fewer = tuple(probe for probe in PROBES if probe.kind is not ProbeKind.decode or probe.users < 64)
    more = tuple(probe for probe in PROBES if probe.users <= 64)
    skipped = {"decode 64 × 16": "the server does not run 64 answers at once"}
    change = compare(mark(base(), 1, probes=more), mark(base(), 2, probes=fewer, skipped=skipped))
    assert change.lost == ()


def test_probes_left_out_are_counted_by_the_reason() -> None:
    old = {"prompt 16384": "takes 1 s, too long for the time given"}
    new = {"prompt 8192": "prompt 4096 takes 2 s already, too long for the time given",
           "decode 64 × 16": "the server does not run 64 answers at once"}  # fmt: skip
    change = compare(mark(base(), 1, skipped=old), mark(base(), 2, skipped=new))
    assert change.left_out == {"too long for the time given": 2, "more than the server runs at once": 1}


def test_the_smallest_change_that_could_be_found_grows_with_the_noise() -> None:
    calm, loud = (compare(mark(base(), 1, noise=noise), mark(base(), 2, noise=noise)) for noise in (0.01, 0.1))
    assert 1.03 < calm.smallest_found < 1.2 < loud.smallest_found
    for change in (calm, loud):
        assert 1.03 < there(change.smallest_found_together) < change.smallest_found


def test_another_tokenizer_is_told_by_the_tokens_of_a_word() -> None:
    """Prompts are as long as asked for by the server's own count, so that their tokens do not tell."""
    change = compare(mark(base(), 1, tokens_per_word=1.02), mark(base(), 2, tokens_per_word=1.31))
    assert change.unlike == ("a word has 1.31 tokens, and had 1.02: another tokenizer",)


def test_another_model_gpu_or_tokenizer_is_said() -> None:
    old, new = mark(base(), 1, machine={"gpus": ["H100"]}), mark(base(), 2, model="m", machine={"gpus": ["H200"]})
    probes = tuple(each.model_copy(update={"tokens": 1.3 * each.tokens}) for each in new.probes)
    change = compare(old, new.model_copy(update={"probes": probes}))
    assert change.unlike[:2] == ("another model: llama-3.1-8b → m", "another GPUs: H100 → H200")
    assert "another tokenizer" in change.unlike[2]


def test_fingerprints_without_a_probe_in_common_are_refused() -> None:
    old, new = (mark(base(), 1, probes=probes) for probes in (PROBES[:2], PROBES[3:]))
    assert "no probe in common" in refused(compare, old, new).what


# --- the price ------------------------------------------------------------------------------------------------------

SLOS = "ttft_p90=1,tpot_p90=30ms"
REQUESTS = 200


@cache
def setup() -> Setup:
    trace = traffic_of(Traffic.checked({"trace": "azure-conv"}), SILENT)
    return Setup(deployment(), load_of_requests(trace), slos=parse_slos(SLOS))


def profile(**factors: float) -> Profile:
    correction = Correction(gpu="H200", engine="vllm", loads=1, rows=1, **factors)
    return Profile(name="truth", made="2026-11-19", command="", corrections=(correction,))


@cache
def rate_of(flags: EngineFlags = NO_FLAGS, **factors: float) -> float:
    with using(profile(**factors)):
        return simulated_rate(setup().deployed(flags=flags), 35.0, REQUESTS)[0]


@pytest.mark.parametrize("name", ["decode", "launch", "eager"])
def test_dollars_change_as_they_do_in_a_simulation_of_the_changed_engine(name: str) -> None:
    """Within 10 %: the comparison knows the probes alone, the simulation what was really changed."""
    steps, truth = {
        "decode": (corrected(decode=1.3), partial(rate_of, decode=1.3)),
        "launch": (corrected(launch=3.0), partial(rate_of, launch=3.0)),
        "eager": (flagged(captured_tokens=0), partial(rate_of, EngineFlags(captured_tokens=0))),
    }[name]
    old, new = mark(base(), 1), mark(steps, 2)
    rates = held_rates(setup(), old, new, compare(old, new), REQUESTS)
    assert rates.before == pytest.approx(rate_of(), rel=0.03)
    assert rates.after == pytest.approx(truth(), rel=0.1)
    assert rates.ends[0] <= rates.after / rates.before <= rates.ends[1]
    assert rates.ends[0] < rates.ends[1]
    assert rates.after < 0.95 * rates.before


def test_equal_builds_cost_the_same_to_the_last_bit() -> None:
    old, new = mark(base(), 1), mark(base(), 2)
    rates = held_rates(setup(), old, new, compare(old, new), REQUESTS)
    assert rates.before == rates.after
    assert rates.ends == (1, 1)


def test_a_faster_build_is_the_level_and_the_one_in_use_has_the_change() -> None:
    old, new = mark(base(), 1), mark(corrected(decode=0.8), 2)
    rates = held_rates(setup(), old, new, compare(old, new), REQUESTS)
    assert rates.before < rates.after
    assert rates.after == pytest.approx(rate_of(decode=0.8), rel=0.05)
    assert rates.before == pytest.approx(rate_of(), rel=0.05)


def test_the_simulator_is_told_what_the_server_says_of_its_cache() -> None:
    said = told_setup(setup(), mark(base(), 1, engine={"kv_dtype": "fp8_e4m3", "kv_tokens": 100_000}))
    assert said.deployment.kv is Precision.fp8
    each = 2 * 32 * 8 * 128  # keys and values of 32 layers, 8 heads of 128, a byte each
    assert there(said.deployment.flags.kv_bytes) == pytest.approx(100_000 * each, rel=0.01)
    assert said.prefix_cache
    assert not told_setup(setup(), mark(base(), 1, engine={"prefix_caching": "False"})).prefix_cache


# --- the question ---------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Fingerprints of the build in use, of the same started again, and of a slower one."""
    marks = {"old": mark(base(), 1), "same": mark(base(), 2), "slow": mark(corrected(decode=1.3), 3)}
    for name, made in marks.items():
        save_record(made, tmp_path / f"{name}.json")
    return {name: str(tmp_path / f"{name}.json") for name in marks}


def test_a_slower_build_exits_with_one_and_an_equal_one_with_none(files: dict[str, str]) -> None:
    worse = guard(GuardRequest.checked({"old": files["old"], "new": files["slow"]}))
    same = guard(GuardRequest.checked({"old": files["old"], "new": files["same"]}))
    assert (worse.is_found, same.is_found) == (False, True)
    assert worse.headline().startswith("slower: steps of few tokens take 1.3")
    assert same.price is None


def test_a_price_has_dollars_before_and_after(files: dict[str, str]) -> None:
    asked = {
        "old": files["old"], "new": files["slow"], "model": "llama-3.1-8b", "gpu": "H200", "slo": SLOS,
        "trace": "azure-conv", "requests": REQUESTS, "usd_per_hour": 3.6,
    }  # fmt: skip
    result = guard(GuardRequest.checked(asked))
    price = there(result.price)
    trace = traffic_of(Traffic.checked({"trace": "azure-conv", "requests": REQUESTS}), SILENT)
    tokens = float((trace.input_tokens + trace.output_tokens).mean())
    assert there(price.before_usd_per_mtok) == pytest.approx(3.6 / 3600 / price.before_rate / tokens * 1e6)
    assert there(price.after_usd_per_mtok) / there(price.before_usd_per_mtok) == pytest.approx(there(price.ratio))
    month = there(price.before_usd_per_mtok) * trace.rate * tokens * 730 * 3600 / 1e6
    assert there(price.before_usd_per_month) == pytest.approx(month)
    assert price.is_dearer(0.03)


def test_another_model_or_engine_than_was_measured_is_said_beside_the_price(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("old.json", "new.json")]
    for seed, (path, model) in enumerate(zip(paths, ("qwen2.5-32b", "the model"), strict=True)):
        save_record(mark(base(), seed, model=model, engine={"engine": "sglang"}), Path(path))
    asked = {
        "old": paths[0], "new": paths[1], "model": "llama-3.1-8b", "gpu": "H200", "slo": SLOS, "engine": "vllm",
        "trace": "azure-conv", "requests": 50,
    }  # fmt: skip
    request = GuardRequest.checked(asked)
    result = guard(request)
    assert there(result.price).unlike == (
        "qwen2.5-32b was measured, and llama-3.1-8b is priced",
        "'the model' was measured, and llama-3.1-8b is priced: is it the same model?",
        "sglang was measured, and vllm is priced",
    )
    assert "Not quite alike: sglang was measured, and vllm is priced" in view(result, request).text()


def test_what_decides_is_shown_where_no_probe_is_sure_alone(tmp_path: Path) -> None:
    """Noise of 10 %: kernels that take 1.15 times as long are seen by no probe, and by all together."""
    paths = [tmp_path / name for name in ("old.json", "new.json")]
    for path, steps, seed in zip(paths, (base(), corrected(decode=1.15, prefill=1.15)), (1, 2), strict=True):
        save_record(mark(steps, seed, noise=0.1), path)
    request = GuardRequest.checked({"old": str(paths[0]), "new": str(paths[1])})
    result = guard(request)
    change = there(result.change)
    assert {row.side(0.03) for row in change.probes} == {None}
    assert change.verdict == "slower"
    first = change.deciding[0]
    assert first.low > 1.03
    shown = view(result, request).text()
    assert "no probe tells it alone, together they do: " + first.what in " ".join(shown.split())


def test_a_huge_factor_is_written_in_words(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old.json", "new.json")]
    save_record(fingerprint(usual().__getitem__, 1, took_s=117.0), paths[0])
    save_record(fingerprint(lambda probe: 170_000 * usual()[probe], 2, took_s=117.0), paths[1])
    for asked in ({"old": str(paths[0]), "new": str(paths[1])}, {"old": str(paths[0])}):
        request = GuardRequest.checked(asked)
        shown = view(guard(request), request).text()
        assert "e+" not in shown
    assert "in 117 s" in shown


@pytest.mark.parametrize("left_out", ["model", "gpu", "slo"])
def test_half_a_price_is_refused(files: dict[str, str], left_out: str) -> None:
    asked = {
        "old": files["old"],
        "new": files["same"],
        "model": "llama-3.1-8b",
        "gpu": "H200",
        "slo": SLOS,
        "rate": "5",
    }
    del asked[left_out]
    assert refused(guard, GuardRequest.checked(asked)).field == left_out


def test_two_servers_are_measured_and_both_fingerprints_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokonomics.questions.guard.PROBES", PROBES[:3])
    out = tmp_path / "new.json"
    with TimedEngine().running() as one, TimedEngine().running() as other:
        result = guard(GuardRequest.checked({"old": one, "new": other, "out": str(out), "minutes": 0.1}))
    assert [side and side.kept for side in (result.old, result.new)] == [str(tmp_path / "new-old.json"), str(out)]
    again = guard(GuardRequest.checked({"old": str(tmp_path / "new-old.json"), "new": str(out)}))
    assert there(again.change).probes == there(result.change).probes


def test_a_server_is_asked_only_what_the_other_fingerprint_has(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    save_record(mark(base(), 1, probes=PROBES[:2]), path)
    engine = TimedEngine()
    with engine.running() as address:
        result = guard(GuardRequest.checked({"old": str(path), "new": address, "minutes": 0.1}))
    assert [each.probe for each in there(result.new).mark.probes] == list(PROBES[:2])
    assert max(body["max_tokens"] for body in engine.bodies) == 2  # to learn how it counts


def test_a_server_that_dies_midway_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    with TimedEngine(fails_after=9).running() as address:
        refused(guard, GuardRequest.checked({"old": address, "out": str(out)}))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_missing_is_named_without_flags_that_nobody_typed(files: dict[str, str]) -> None:
    for asked in ({"old": "nope.json"}, {"old": files["old"], "new": "nope.json"}):
        problem = refused(guard, GuardRequest.checked(asked))
        assert problem.message(flag).splitlines()[0] == "nope.json: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"old": "http://127.0.0.1:9"}, "the fingerprint would be lost"),
        ({"old": "llama-3.1-8b"}, "neither a fingerprint nor the address"),
        ({"old": "nowhere.json"}, "cannot be read"),
        ({"old": "pyproject.toml"}, "neither a fingerprint"),
        ({"old": "{old}", "out": "b.json"}, "both sides are files"),
        ({"old": "{old}", "new": "{same}", "format": "gitlab"}, "unknown format"),
    ],
)
def test_what_cannot_be_compared_is_refused(files: dict[str, str], asked: dict[str, str], said: str) -> None:
    values = {name: value.format(**files) for name, value in asked.items()}
    with pytest.raises(Exception, match=said):
        guard(GuardRequest.checked(values))


def test_a_pull_request_shows_the_verdict_as_an_alert(files: dict[str, str]) -> None:
    request = GuardRequest.checked({"old": files["old"], "new": files["slow"], "format": "github"})
    shown = view(guard(request), request).text()
    assert shown.startswith("> [!WARNING]\n> **Slower**: steps of few tokens take")
    assert "<details><summary>40 probes</summary>" in shown
    fine = GuardRequest.checked({"old": files["old"], "new": files["same"], "format": "github"})
    assert view(guard(fine), fine).text().startswith("> [!TIP]\n> **No slower**")


def test_the_document_holds_every_figure(files: dict[str, str]) -> None:
    result = guard(GuardRequest.checked({"old": files["old"], "new": files["slow"]}))
    document = json.loads(result.to_json())
    assert document["change"]["verdict"] == "slower"
    assert len(document["change"]["probes"]) == 40
    assert len(result.to_frame()) == 40


def test_one_round_of_each_probe_finds_nothing_and_is_compared() -> None:
    once, twice = (fingerprint(usual().__getitem__, seed, rounds=1) for seed in (1, 2))
    change = compare(once, twice)
    assert change.verdict == "same"
    assert min(row.high / row.low for row in change.probes) > 100
