"""``--as-code`` prints a program that gives the answer of the command."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command import Call, refusal
from tests.questions.test_requests import CASES

from tokonomics.library import function
from tokonomics.questions.scenario_text import LEFT_OUT, code_of
from tokonomics.questions.verbs import IN_PYTHON, VERBS, find_verb

COMMANDS = (
    "plan llama-3.1-8b --rate 1 --input 500 --output 100 --gpu L4 --provider gcp --slo ttft_p99=2 --quick",
    pytest.param("fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --slo ttft_p99=1 --provider aws "
                 "--gpu L40S --weights bf16 --hours 24 --no-replay", marks=pytest.mark.slow),
    "breakeven llama-3.3-70b --input 1000 --output 300 --quick --gpu H100 --provider aws "
    "--api groq:llama-3.3-70b-versatile",
    "can-run llama-3.1-8b qwen3-8b --gpu RTX3090 --gpus 2 --usd-per-kwh 0.3",
    "predict llama-3.1-70b --fit --gpu H100 --tp 4 --context 32k",
    "predict llama-3.1-8b --gpu H200 --batch 64",
    "predict llama-2-7b --curve --gpu H100 --usd-per-hour 2.5",
    "trace azure-conv --to 10m",
    "simulate llama-3.1-8b --gpu H100 --trace azure-conv --to 1m --slo ttft_p99=0.5 --no-prefix-cache",
    "simulate llama-3.1-8b --capacity --gpu H100 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=0.05",
)  # fmt: skip
MEASURED = {"wall_s", "simulated_requests_per_s", "seconds", "solve_s"}
"""How long it took here."""


def run(code: str) -> tuple[dict[str, Any], str]:
    """The names that the program leaves behind, and what it prints."""
    names: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return names, printed.getvalue()


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(part) for name, part in value.items() if name not in MEASURED}
    return [untimed(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_the_code_gives_the_document_of_the_command(command: str, tokonomics: Call) -> None:
    words = command.split()
    code = tokonomics(*words, "--json", "--as-code")
    assert (code.returncode, code.stderr) == (0, "")
    _, printed = run(code.stdout)
    answered = tokonomics(*words, "--json").stdout
    assert untimed(json.loads(printed)) == untimed(json.loads(answered))


def test_without_json_it_prints_what_the_terminal_shows(tokonomics: Call) -> None:
    words = ("predict", "--fit", "llama-3.1-8b", "--gpu", "H100")
    _, printed = run(tokonomics(*words, "--as-code").stdout)
    assert [line.rstrip() for line in printed.splitlines()] == [
        line.rstrip() for line in tokonomics(*words).stdout.splitlines()
    ]


def test_a_scenario_is_written_out(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    file.write_text('model = "llama-3.1-8b"\ngpu = "L4"\ncontext = 2048\n')
    code = tokonomics("predict", "--fit", file, "--gpu", "H100", "--as-code").stdout
    assert 'tk.fit("llama-3.1-8b", gpu="H100", context=2048)' in code


def test_what_a_terminal_shows_is_not_in_it_and_is_named(tokonomics: Call) -> None:
    asked, shown = "plan llama-3.1-8b --rate 5 --input 1000 --output 300", "--top 3 --why --chart x.svg --as-code"
    done = tokonomics(*asked.split(), *shown.split())
    assert "top" not in done.stdout
    assert done.stderr.rstrip().endswith("--top, --why, --chart")
    assert not Path("x.svg").exists()


@pytest.mark.parametrize("more", [["qwen3-8b", "--rate", "5"], ["--rate", "2:5:20"]])
def test_several_plans_are_refused(more: list[str], tokonomics: Call) -> None:
    assert "that is a plan each" in refusal(
        tokonomics, "plan", "llama-3.1-8b", *more, "--input", "1000", "--output", "300", "--as-code"
    )


def test_every_function_of_the_library_has_the_flag_and_no_other_verb(tokonomics: Call) -> None:
    for name in VERBS:
        assert ("--as-code" in tokonomics(name, "--help").stdout) == (name in IN_PYTHON), name


@pytest.mark.parametrize(("name", "values"), [case for case in CASES if case[0] in IN_PYTHON], ids=str)
def test_the_code_asks_for_the_same_request(name: str, values: dict[str, object]) -> None:
    several = name == "plan" and values["model"] == ["llama-3.1-8b", "qwen3-8b"]
    if not several:
        check(name, {key: value for key, value in values.items() if key not in LEFT_OUT})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["5", "5.0", "05", "1e3", "inf", "nan", "-1", "1_000", "'", '"', "\\", "'\"", "{x}", "# x", "9" * 30]
)


@given(model=TEXT, gpu=TEXT, weights=TEXT, tp=st.integers(1, 64), context=st.integers(1, 10**6))
def test_any_text_comes_back_as_it_was(model: str, gpu: str, weights: str, tp: int, context: int) -> None:
    if not model.lower().endswith(".toml"):
        check("fit", {"model": model, "gpu": gpu, "weights": weights, "tp": tp, "context": context})


def check(name: str, values: dict[str, object]) -> None:
    """The call that is printed makes the request that it was printed for."""
    verb = find_verb(name)
    request = verb.request.checked(values)
    code = code_of(verb, request)
    call = code.partition("result = ")[2].rpartition("\nprint(")[0]
    made = eval(call.replace(f"tk.{verb.function_name}(", "ask(", 1), {"ask": function(verb.function_name).request})
    assert made == request
