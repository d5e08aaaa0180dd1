"""A fingerprint holds what a server did under each probe, leaves out what it cannot do, and keeps nothing half done."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.operate.timed import TimedEngine
from tests.there import refused, there

from tokonomics.addresses import target
from tokonomics.measure.bench.client import Reply
from tokonomics.operate.fingerprint import (
    AT_ONCE,
    FEWEST_ROUNDS,
    PROBES,
    Fingerprint,
    NotTaken,
    Probe,
    ProbedServer,
    ProbeKind,
    fingerprints,
    step_s,
)
from tokonomics.operate.record import read_sealed, save_record
from tokonomics.operate.trial import server_facts

FEW = (
    Probe(kind=ProbeKind.prompt, prompt_tokens=16),
    Probe(kind=ProbeKind.prompt, prompt_tokens=256),
    Probe(kind=ProbeKind.again, prompt_tokens=512),
    Probe(kind=ProbeKind.decode, prompt_tokens=16),
    Probe(kind=ProbeKind.decode, prompt_tokens=16, users=4),
    Probe(kind=ProbeKind.beside, prompt_tokens=128),
    Probe(kind=ProbeKind.burst, prompt_tokens=128, users=4),
)
PAGE = Path(__file__).parents[1] / "measure" / "pages" / "vllm-0.32.prom"


@pytest.fixture(autouse=True)
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe is taken once a round, and there are as few of both as may be."""
    monkeypatch.setattr("tokonomics.operate.fingerprint._LONG_ENOUGH_S", 1e-9)
    monkeypatch.setattr("tokonomics.operate.fingerprint.MOST_ROUNDS", FEWEST_ROUNDS)
    monkeypatch.setattr("tokonomics.operate.fingerprint._FAR", 1e9)


def taken(*addresses: str, probes: tuple[Probe, ...] = FEW, minutes: float = 10.0) -> list[Fingerprint]:
    servers = [ProbedServer(target(address)) for address in addresses]
    return fingerprints(servers, minutes, timeout_s=30, seed=7, probes=probes)


def test_there_are_about_forty_probes_of_every_kind_each_once() -> None:
    assert len(PROBES) == len(set(PROBES)) == len({probe.name for probe in PROBES}) == 40
    assert {probe.kind for probe in PROBES} == set(ProbeKind)


def test_every_probe_has_a_time_for_each_round_and_prompts_are_of_its_length() -> None:
    with TimedEngine(token_s=1e-6).running() as address:
        (mark,) = taken(address)
    assert [each.probe for each in mark.probes] == list(FEW)
    assert {len(each.seconds) for each in mark.probes} == {FEWEST_ROUNDS}
    assert mark.skipped == {}
    assert mark.model == "timed"
    assert (mark.engine["engine"], mark.engine["version"]) == ("vllm", "0.26.0")
    for each in mark.probes:
        if each.probe.kind is not ProbeKind.beside:
            assert each.tokens == pytest.approx(each.probe.prompt_tokens, rel=0.05)


def test_no_prompt_is_sent_twice_but_those_that_are_to_be_found_again() -> None:
    engine = TimedEngine()
    with engine.running() as address:
        (mark,) = taken(address)
    texts = [body["messages"][0]["content"] for body in engine.bodies]
    twice = {text for text in texts if texts.count(text) > 1}
    assert len(twice) == FEWEST_ROUNDS + 1  # with the warm-up
    assert {round(len(text.split()), -1) for text in twice} == {510}
    again = next(each for each in mark.probes if each.probe.kind is ProbeKind.again)
    assert again.cached_share == 1


def test_two_servers_are_measured_in_turns() -> None:
    slow, quick = TimedEngine(request_s=0.05), TimedEngine()
    with slow.running() as one, quick.running() as other:
        before, after = taken(one, other, probes=FEW[:2])
    assert [len(mark.probes) for mark in (before, after)] == [2, 2]
    assert slow.asked == quick.asked
    assert min(before.probes[0].seconds) >= 0.05


def test_probes_beyond_the_context_are_left_out_and_said() -> None:
    with TimedEngine(context=200).running() as address:
        (mark,) = taken(address)
    assert mark.skipped["prompt 256"] == "longer than the 200 tokens that the server takes"
    assert "prompt 16" not in mark.skipped


def test_a_context_that_the_server_does_not_tell_is_met_and_said() -> None:
    with TimedEngine(context=1500, says_context=False).running() as address:
        (mark,) = taken(address, probes=(FEW[0], *PROBES[7:10]))
    assert "maximum context length is 1500 tokens" in mark.skipped["prompt 2048"]
    assert mark.skipped["prompt 4096"].startswith("larger than prompt 2048")


def test_more_answers_than_run_at_once_are_left_out_and_said() -> None:
    with TimedEngine(slots=2).running() as address:
        (mark,) = taken(address)
    assert mark.skipped["decode 4 × 16"] == "the server does not run 4 answers at once"
    assert mark.at_once == 2  # a prompt beside an answer


def test_probes_that_would_take_too_long_are_left_out_and_said() -> None:
    with TimedEngine(token_s=0.002).running() as address:
        (mark,) = taken(address, probes=FEW[:2], minutes=0.02)
    assert "too long for the time given" in mark.skipped["prompt 256"]


def test_a_server_that_refuses_ignore_eos_is_measured_all_the_same() -> None:
    with TimedEngine(takes_ignore_eos=False).running() as address:
        (mark,) = taken(address, probes=FEW[:2])
    assert mark.notes == ("The server refuses ignore_eos: answers may be shorter than asked for.",)


@pytest.mark.parametrize("after", [0, 2, 9, 20])
def test_a_server_that_fails_is_named_with_the_probe_and_nothing_is_kept(after: int) -> None:
    with TimedEngine(fails_after=after).running() as address:
        problem = refused(taken, address)
    assert "HTTP 500: out of memory" in problem.what
    assert address in (problem.where or "")


def test_an_address_without_a_server_is_refused() -> None:
    problem = refused(taken, "http://127.0.0.1:9")
    assert "the server lists no model" in problem.what


def test_a_fingerprint_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    with TimedEngine().running() as address:
        (mark,) = taken(address, probes=FEW[:2])
    path = tmp_path / "a.json"
    save_record(mark, path)
    read = read_sealed(path, Fingerprint, "old")
    assert read.model_copy(update={"digest": ""}) == mark
    document = json.loads(path.read_text())
    document["probes"][0]["seconds"][0] *= 2
    path.write_text(json.dumps(document))
    assert "was changed after it was written" in refused(read_sealed, path, Fingerprint, "old").what


def test_vllm_says_the_size_and_precision_of_its_cache() -> None:
    with TimedEngine(metrics=PAGE.read_text()).running() as address:
        facts = server_facts(target(address))
    told = {"kv_tokens": 1_048_576, "kv_dtype": "auto", "prefix_caching": "True", "memory_share": 0.92}
    assert told.items() <= facts.items()


def reply(first_s: float, gaps_s: list[float], tokens: int, pieces: list[int] | None = None) -> Reply:
    return Reply(
        0.0, first_s=first_s, gaps_s=gaps_s, pieces=pieces or [1] * len(gaps_s), output_tokens=tokens, end_s=9.0
    )


def test_a_step_is_timed_while_all_answers_run() -> None:
    """The second begins eight steps late; what the first did before was another batch."""
    early = reply(0.0, [0.010] * 8 + [0.020] * 24, 33)
    late = reply(0.080, [0.020] * 24 + [0.010] * 8, 33)
    assert step_s([early, late]) == pytest.approx(0.020)


def test_tokens_that_came_together_count_each() -> None:
    assert step_s([reply(0.0, [0.020] * 16, 33, [2] * 16)]) == pytest.approx(0.020)
    assert step_s([reply(0.0, [0.040] * 16, 33)]) == pytest.approx(0.020)  # a chunk of two tokens each


def test_answers_that_run_together_for_a_moment_only_are_too_short_not_too_many() -> None:
    """The second begins as 22 of 32 steps of the first are over: the server has room for both."""
    early, late = reply(0.0, [0.01] * 32, 33), reply(0.22, [0.01] * 32, 33)
    with pytest.raises(NotTaken, match="2 answers began too far apart") as refusal:
        step_s([early, late])
    assert AT_ONCE not in str(refusal.value)


@pytest.mark.parametrize("others", [0, 10])
def test_fingerprints_of_one_server_agree_on_the_tokens_of_a_word(others: int) -> None:
    """Words differ in tokens: whatever is sent besides, and with which seed, the same words are counted."""
    with TimedEngine(letters_per_token=4).running() as address:
        servers = [ProbedServer(target(address))]
        marks = [fingerprints(servers, 0.1, timeout_s=30, seed=seed, probes=FEW[:1])[0] for seed in (7, 8 + others)]
    assert marks[0].tokens_per_word == marks[1].tokens_per_word
    with TimedEngine(letters_per_token=3).running() as address:
        other = fingerprints([ProbedServer(target(address))], 0.1, timeout_s=30, seed=7, probes=FEW[:1])[0]
    assert there(other.tokens_per_word) / there(marks[0].tokens_per_word) == pytest.approx(4 / 3, rel=0.02)
    assert [each.tokens for each in other.probes] == pytest.approx([16], abs=4)


def test_answers_after_each_other_are_no_batch() -> None:
    with pytest.raises(NotTaken, match="does not run 2 answers at once"):
        step_s([reply(0.0, [0.01] * 32, 33), reply(0.4, [0.01] * 32, 33)])


def test_a_value_far_above_the_others_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third counted prompt waits as if a kernel were compiled; the one that takes its place does not."""
    engine, usual = TimedEngine(), TimedEngine._answer

    async def slow_once(self: TimedEngine, request: Any) -> Any:
        self.request_s = 2.0 if self.asked == WAITS_AT else 0.02
        return await usual(self, request)

    monkeypatch.setattr(TimedEngine, "_answer", slow_once)
    monkeypatch.setattr("tokonomics.operate.fingerprint._FAR", 10.0)
    with engine.running() as address:
        (mark,) = taken(address, probes=FEW[:1])
    assert engine.asked > WAITS_AT
    assert max(mark.probes[0].seconds) < 2.0


WAITS_AT = 7  # four to learn how it counts and for the warm-up, then rounds
