"""Speculative decoding in a plan: never unasked, by published acceptance or the user's, and only where it pays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import BF16, BUSY, CHAT, asked, planned
from tests.planner.test_market import offer
from tests.planner.test_market import planned as answered
from tests.there import there

from tokonomics.catalog.checkpoints import load_drafts
from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.deploy.job import DeployJob
from tokonomics.deploy.scripts import shell_line
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, DraftMethod, Speculation, deploy
from tokonomics.physics.memory import draft_bytes
from tokonomics.physics.steptime import step_model
from tokonomics.planner.parsing import draft_named, published_draft
from tokonomics.planner.plan_answer import Catch
from tokonomics.planner.prospects import prospects
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import SimulateRequest
from tokonomics.questions.simulate import SimulateResult
from tokonomics.questions.verbs import find_verb
from tokonomics.report.plan_view import plan as shown
from tokonomics.report.terminal import as_text
from tokonomics.sizing.load import Load
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.workload import Spread

SMALL = find_model("llama-3.1-8b")
QUICK = parse_slos("tpot_p99=0.005")


def drafting(acceptance: float | None = None) -> Speculation:
    return draft_named("eagle", SMALL, 3, acceptance)


def test_a_published_draft_yields_the_tokens_that_were_published() -> None:
    for row in load_drafts():
        model = next((model for model in all_models() if model.key == row.model), None)
        if model is not None:
            made = draft_named(row.method, model, row.tokens, None)
            assert made.tokens_per_round == pytest.approx(row.accepted_length)
            assert row.source in there(made.source)


def test_a_round_that_was_not_published_is_never_better_than_one_that_was() -> None:
    """DeepSeek V3: 1.9 with one token drafted, 2.61 with three, 3.09 with seven."""
    model = find_model("deepseek-v3")
    yields = [draft_named("mtp", model, tokens, None).tokens_per_round for tokens in (1, 2, 3, 5, 7, 12)]
    assert yields[::2] == pytest.approx([1.9, 2.61, 3.09])
    assert yields[1] < yields[2]
    assert yields[3] < yields[4] == pytest.approx(yields[5])


def test_the_users_acceptance_goes_before_the_published_one() -> None:
    made = drafting(0.5)
    assert (made.acceptance, made.source) == (0.5, None)
    assert made.tokens_per_round == 1 + 0.5 + 0.25 + 0.125


def test_a_module_goes_before_a_head_and_a_model_without_either_has_none() -> None:
    for name, method in (("deepseek-v3", DraftMethod.mtp), ("gpt-oss-120b", DraftMethod.eagle3)):
        found = there(published_draft(find_model(name)))
        assert found.method is method
    assert published_draft(find_model("opt-13b")) is None
    assert published_draft(find_model("glm-4.5")) is None  # it has a module, and nobody's figure of it was found


@pytest.mark.parametrize(
    ("name", "model", "acceptance", "said"),
    [
        ("mtp", "llama-3.1-8b", None, "no module that drafts"),
        ("eagle", "opt-13b", 0.7, "no EAGLE-3 head"),
        ("mtp", "glm-4.5", None, "no acceptance is published"),
        ("llama-3.2-1b", "llama-3.3-70b", None, "no acceptance is published"),
        ("qwen3-0.6b", "llama-3.3-70b", 0.7, "another vocabulary"),
    ],
)
def test_what_is_not_known_is_asked_for(name: str, model: str, acceptance: float | None, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        draft_named(name, find_model(model), None, acceptance)


def test_a_module_takes_its_own_weights_and_not_the_models_tables_again() -> None:
    model = find_model("deepseek-v3")
    plain = deploy(model, find_gpu("H200"), find_engine("vllm"), tp=8)
    made = plain.model_copy(update={"speculation": published_draft(model)})
    # 11.6B parameters of FP8 over eight GPUs; attention's projections down are on each, the router is in 16 bits.
    assert draft_bytes(made) == pytest.approx(11.6e9 / 8, rel=0.03)
    assert draft_bytes(plain) == 0


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 1), ("llama-3.3-70b", 4)])
def test_the_gain_of_a_dense_model_falls_with_the_batch(name: str, tp: int) -> None:
    plain = on(model=name, tp=tp)
    made = plain.model_copy(update={"speculation": published_draft(plain.model)})
    batches = np.array([1, 32, 256])
    gains = step_model(plain).decode(batches, 500) / step_model(made).decode(batches, 500)
    assert (np.diff(gains) < 0).all()
    assert gains[0] > 1.5


def test_published_speed_ups_of_deepseeks_module() -> None:
    """1.8 times at batch 1 and 1.5 at 32 on H200, TP 8 (SGLang, "DeepSeek V3", docs/references/deepseek.md)."""
    plain = on("deepseek-v3", "H200", engine="sglang", tp=8)
    made = plain.model_copy(update={"speculation": published_draft(plain.model)})
    for batch, measured in ((1, 1.8), (32, 1.5)):
        gain = float(step_model(plain).decode(batch, 1000) / step_model(made).decode(batch, 1000))
        assert gain == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("load", [CHAT, BUSY])
@pytest.mark.parametrize("slo", ["tpot_p99=0.005", "tpot_p99=0.05"])
def test_drafts_that_are_never_right_are_never_picked(load: Load, slo: str) -> None:
    wanted: dict[str, Any] = {"load": load, "slos": parse_slos(slo), "weights": BF16}
    with_them, without = planned(**wanted, drafts=(drafting(0.0),)), planned(**wanted)
    assert with_them.best is not None
    assert with_them.best.draft is None
    assert with_them.best == without.best


def test_a_plan_drafts_where_answers_must_be_quick_and_not_where_batches_are_full() -> None:
    half = drafting(0.5)
    quick, plain = (planned(slos=QUICK, weights=BF16, drafts=drafts) for drafts in ((half,), ()))
    assert quick.best is not None
    assert quick.best.draft is not None
    assert (quick.best.draft.name, quick.best.draft.acceptance) == ("eagle3:3", 0.5)
    assert quick.best.usd_per_month < there(plain.best).usd_per_month
    full = planned(load=BUSY, weights=BF16, drafts=(half,))
    assert there(full.best).draft is None


def test_nothing_drafts_over_pipeline_stages_or_on_engines_that_do_not() -> None:
    question = asked(offers=(offer("aws", "L4", 1.0, gpus=8),), drafts=(drafting(),))
    kept = prospects(question, CHAT)
    assert {host.deployment.pp > 1 for host in kept if host.deployment.speculation} == {False}
    assert {host.deployment.pp > 1 for host in kept if not host.deployment.speculation} == {False, True}


def test_drafting_is_told_of_below_the_pick_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [offer("aws", "H100", 4.0 * gpus, gpus=gpus) for gpus in (1, 2, 4, 8)]
    found = answered(tmp_path, offers, monkeypatch, slo="tpot_p99=5ms", weights="bf16")
    assert found.best is not None
    assert found.best.draft is None
    aside = {row.catch: row.candidate for row in found.study.plan.set_aside}
    assert aside[Catch.drafting].usd_per_month < found.best.usd_per_month
    made = there(aside[Catch.drafting].draft)
    assert made.tokens_per_round == pytest.approx(2.6)
    text = as_text(shown(found, PlanRequest.checked({"model": "llama-3.1-8b"})).sections())
    saved = 1 - aside[Catch.drafting].usd_per_month / found.best.usd_per_month
    assert f"{saved:.0%}".replace("%", " % less with --draft eagle3 (with drafting): from $") in " ".join(text.split())
    assert "test_acceptance_length.py" in text.replace("\n", "")
    asked_for = answered(tmp_path, offers, monkeypatch, slo="tpot_p99=5ms", weights="bf16", draft="eagle")
    assert there(asked_for.best).usd_per_month == aside[Catch.drafting].usd_per_month
    assert Catch.drafting not in {row.catch for row in asked_for.study.plan.set_aside}


@pytest.mark.parametrize(
    "more", [{"draft": "none"}, {"model": "qwen2.5-7b"}, {"slo": None}], ids=["declined", "nothing known", "no cheaper"]
)
def test_drafting_is_not_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, object]) -> None:
    offers = [offer("aws", "H100", 4.0 * gpus, gpus=gpus) for gpus in (1, 2, 4, 8)]
    found = answered(tmp_path, offers, monkeypatch, **{"slo": "tpot_p99=5ms", "weights": "bf16"} | more)
    assert Catch.drafting not in {row.catch for row in found.study.plan.set_aside}


@pytest.mark.parametrize("field", ["acceptance", "draft_tokens"])
def test_what_is_said_of_drafts_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    with pytest.raises(BadInput, match="none is named"):
        answered(tmp_path, [offer("aws", "H100", 4.0)], monkeypatch, **{field: 1})


def test_a_simulation_drafts_when_it_is_asked_to_and_says_by_whose_figure() -> None:
    said: list[str] = []
    asked_of = {"model": "llama-3.1-8b", "gpu": "H100", "rate": "1", "input": "const:500", "output": "const:100",
                "requests": 50}  # fmt: skip

    class Noting(Listener):
        def note(self, line: str) -> None:
            said.append(line)

    def tpot(**more: object) -> float:
        found = find_verb("simulate").answer(SimulateRequest.checked({**asked_of, **more}), Noting())
        assert isinstance(found, SimulateResult)
        return there(found.tpot_s.mean)

    plain = tpot()
    assert not said
    assert plain / tpot(draft="eagle") == pytest.approx(2.6, rel=0.25)
    assert "2.6 with 3 drafted" in said[0]
    assert tpot(draft="eagle", acceptance=0) > plain


def command(model: ModelSpec, engine: str, drafts: Speculation) -> str:
    deployment = deploy(model, find_gpu("H200"), find_engine(engine), tp=8).model_copy(update={"speculation": drafts})
    return shell_line(_job(deployment).command.arguments)


def _job(deployment: Deployment) -> DeployJob:
    none = Spread(p50=None, p90=None, p95=None, p99=None, mean=1.0)
    return DeployJob(deployment=deployment, replicas=1, machines=1, e2e_s=none, max_context=4096,
                     limits=deployment.limits, provenance="a test")  # fmt: skip


def test_vllm_is_told_what_drafts() -> None:
    """Such as InferenceX's recipes have it for DeepSeek-V4 (MTP) and MiniMax-M3 (EAGLE-3)."""
    own = command(find_model("deepseek-v3"), "vllm", draft_named("mtp", find_model("deepseek-v3"), 3, 0.8))
    assert """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""" in own
    head = command(SMALL, "vllm", drafting())
    checkpoint = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"
    assert f'{{"method": "eagle3", "model": "{checkpoint}", "num_speculative_tokens": 3}}' in head
    small = command(
        find_model("llama-3.3-70b"), "vllm", draft_named("llama-3.2-1b", find_model("llama-3.3-70b"), 4, 0.7)
    )
    assert '"method": "draft_model", "model": "meta-llama/Llama-3.2-1B' in small


def test_sglang_is_told_what_drafts() -> None:
    """One chain: as many steps as tokens drafted, and one token more to check (SGLang's own DeepSeek example)."""
    own = command(find_model("deepseek-v3"), "sglang", draft_named("mtp", find_model("deepseek-v3"), 3, 0.8))
    for flag in ("algorithm EAGLE ", "num-steps 3 ", "eagle-topk 1 ", "num-draft-tokens 4"):
        assert f"--speculative-{flag}" in f"{own} "
    assert "draft-model-path" not in own
    head = command(SMALL, "sglang", drafting())
    assert "--speculative-algorithm EAGLE3" in head
    assert "--speculative-draft-model-path RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3" in head
