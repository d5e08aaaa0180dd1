"""``tokonomics plan --deploy``: the files that start the pick."""

import json
import math
import shlex
from pathlib import Path

import pytest
from tests.command import Call, answer, refusal
from tests.deployed import on

from tokonomics.deploy.job import longest_context
from tokonomics.physics.memory import max_sequences

PLAN = (
    "plan", "llama-3.1-8b", "--rate", "5", "--input", "1000", "--output", "300", "--min-weights", "bf16",
    "--top", "1", "--quick",
)  # fmt: skip


def test_the_vllm_line_says_what_the_plan_decided(tokonomics: Call) -> None:
    made = answer(tokonomics, *PLAN, "--deploy", "vllm")
    best, text = made["best"], made["deploy"][0]["text"]
    line = next(
        each for each in text.replace("\\\n", " ").splitlines() if each.lstrip().startswith(("vllm", "exec vllm"))
    )
    words = shlex.split(line)
    assert words[words.index("--tensor-parallel-size") + 1] == str(best["tp"])
    assert words[words.index("--max-num-seqs") + 1] == str(best["max_sequences"])
    assert best["price_date"] in text


def test_several_files_are_printed_after_the_plan(tokonomics: Call) -> None:
    out = tokonomics(*PLAN, "--deploy", "skypilot,kubernetes").stdout
    assert out.index("Cheapest") < out.index("resources:") < out.index("kind: HorizontalPodAutoscaler")


def test_no_printed_line_of_a_file_is_broken(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment in two lines is half a comment: the shell would run the rest."""
    monkeypatch.setenv("COLUMNS", "120")
    (file,) = answer(tokonomics, *PLAN, "--deploy", "kubernetes")["deploy"]
    text = file["text"].replace(" --json", "")
    assert max(map(len, text.splitlines())) > 120
    assert text in tokonomics(*PLAN, "--deploy", "kubernetes").stdout


def test_files_are_saved_where_asked(tokonomics: Call, tmp_path: Path) -> None:
    done = tokonomics(*PLAN, "--deploy", "vllm", "--deploy-to", tmp_path / "new")
    saved = list((tmp_path / "new").iterdir())
    assert done.returncode == 0
    assert [each.suffix for each in saved] == [".sh"]
    assert "vllm serve" in saved[0].read_text(encoding="utf-8")
    assert "vllm serve" not in done.stdout
    assert saved[0].name in done.stderr


def test_a_stack_may_have_several_files(tokonomics: Call, tmp_path: Path) -> None:
    done = tokonomics(*PLAN, "--deploy", "llm-d,dstack", "--deploy-to", tmp_path)
    assert done.returncode == 0
    endings = {each.name.removeprefix("llm-llama-3-1-8b-") for each in tmp_path.iterdir()}
    assert endings == {"llm-d.yaml", "llm-d-router.yaml", "dstack.yaml", "dstack-fleet.yaml"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--deploy", "vlm"), "Did you mean vllm?"),
        (("--deploy", "helm"), "production-stack, dstack, compose"),
        (("--deploy", ""), "--deploy: is empty"),
        (("--deploy-to", "here"), "Give --deploy vllm as well."),
    ],
)
def test_a_slip_is_told(tokonomics: Call, flags: tuple[str, ...], message: str) -> None:
    assert message in refusal(tokonomics, *PLAN, *flags)


def test_the_context_is_the_models_own_or_the_longest_that_fits() -> None:
    roomy = on(gpu="H200")
    assert longest_context(roomy) == roomy.model.max_context
    tight = on(gpu="L4")
    longest = longest_context(tight)
    assert longest < tight.model.max_context
    assert max_sequences(tight, longest) >= 1
    # A tenth of what fits is kept back.
    assert max_sequences(tight, math.floor(longest / 0.9)) >= 1
    assert max_sequences(tight, math.ceil(longest / 0.9) + tight.engine.kv_block_tokens) == 0


def test_a_packet_is_saved_and_what_comes_back_is_ranked(tokonomics: Call, tmp_path: Path) -> None:
    offers = f"--offers={Path(__file__).parents[1] / 'golden' / 'offers.csv'}"
    asked = ("plan", "llama-3.1-8b", "--rate=5", "--input=1000", "--output=300", "--slo=ttft_p99=1", "--gpu=H100")
    done = tokonomics(*asked, "--quick", offers, f"--quote={tmp_path / 'ask'}")
    assert done.returncode == 0
    assert {path.name for path in (tmp_path / "ask").iterdir()} == {
        "README.md", "load.sh", "quote.toml", "requests.csv"
    }  # fmt: skip
    quote = (tmp_path / "ask" / "quote.toml").read_text()
    filled = quote.replace('gpu = ""', 'gpu = "H100"').replace("gpus = 0", "gpus = 1")
    result = Path(__file__).parents[1] / "measure" / "results" / "vllm.json"
    for name, usd in (("one", 3.0), ("two", 2.0)):
        own = filled.replace("usd_per_gpu_hour = 0.0", f"usd_per_gpu_hour = {usd}").replace(
            'vendor = ""', f'vendor = "{name}"'
        )
        (tmp_path / f"{name}.toml").write_text(own)
        (tmp_path / f"{name}.json").write_text(result.read_text())
    done = tokonomics("import", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    ranked = json.loads(done.stdout)["quotes"]
    assert [row["quote"]["vendor"] for row in ranked] == ["two", "one"]
