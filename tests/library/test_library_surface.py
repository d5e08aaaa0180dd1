"""What ``import tokonomics`` gives: a dozen names, loaded when used, typed, with the words of the command line."""

import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import tokonomics as tk
from tokonomics.cli.commands import command_of
from tokonomics.errors import by_name
from tokonomics.library import function

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import library_stub

FUNCTIONS = [name for name in tk.__all__ if name != "TokonomicsError"]
LEFT_OUT = {
    "chart": "a result draws its chart", "html": "a notebook is the page", "as_json": "to_json()",
    "as_code": "it prints the call", "top": "a frame has all rows", "why": 'to_frame("rejected")',
    "deploy": "writes files", "deploy_to": "writes files", "quote": "writes files", "open_": "writes a branch",
    "take": "writes a branch",
}  # fmt: skip
"""Flags that are no arguments, and what stands for them."""
HEAVY = {"altair", "fastapi", "numba", "numpy", "polars", "pydantic", "rich", "scipy", "typer"}


def run(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False)


def test_importing_loads_none_of_the_heavy_parts_and_warns_of_nothing() -> None:
    said = run("import sys; import tokonomics; print(*sys.modules)", "-W", "error")
    assert (said.returncode, said.stderr) == (0, "")
    loaded = set(said.stdout.split())
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("tokonomics")} == {"tokonomics"}


def test_loading_every_name_opens_no_socket_and_warns_of_nothing() -> None:
    code = (
        "import socket\n"
        "def refuse(*args, **options): raise SystemExit('the network was reached for')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
        "import tokonomics as tk\n"
        "print(*[getattr(tk, name).__name__ for name in tk.__all__])"
    )
    said = run(code, "-W", "error")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.split() == tk.__all__


def test_the_names_are_about_a_dozen_and_completion_shows_them() -> None:
    assert len(tk.__all__) <= 16
    assert set(tk.__all__) <= set(dir(tk))
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = tk.plam  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_are_given_with_the_types_of_the_requests() -> None:
    assert library_stub.STUB.read_text(encoding="utf-8") == library_stub.stub(), "run docs/library_stub.py"
    assert Path(str(tk.__file__)).with_name("py.typed").is_file()


@pytest.mark.slow
@pytest.mark.explore
def test_a_users_code_is_checked_against_the_types(tmp_path: Path) -> None:
    """From outside of the project, all of it read anew; ``make lint`` reads the same in ``users_code.py``."""
    script = tmp_path / "notebook.py"
    script.write_text(
        "import tokonomics as tk\n"
        "reveal_type(tk.plan('m', rate=5, slo={'ttft_p99': 0.5}).best)\n"
        "reveal_type(tk.simulate('m', gpu='H100', trace={'arrival_s': [0.0]}).ttft_s.p99)\n"
        "reveal_type(tk.read_trace('azure-conv').rate)\n"
        "tk.fit('m', gpu='H100', tp='two')\n"
        "tk.fit('m', gpus='H100')\n"
    )
    flags = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    check = [sys.executable, "-m", "mypy", *flags, script.name]
    found_in = {**os.environ, "MYPYPATH": str(Path(str(tk.__file__)).parents[1])}
    said = subprocess.run(check, capture_output=True, text=True, check=False, cwd=tmp_path, env=found_in).stdout
    lines = said.splitlines()
    assert 'Revealed type is "tokonomics.planner.plan_answer.Candidate | None"' in lines[0]
    assert 'Revealed type is "float | None"' in lines[1]
    assert 'Revealed type is "float"' in lines[2]
    assert 'Argument "tp" to "fit" has incompatible type "str"' in lines[3]
    assert any('Unexpected keyword argument "gpus"' in line for line in lines[4:])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_flags_of_the_verb(name: str) -> None:
    asked = function(name)
    flags = set(inspect.signature(command_of(asked.verb)).parameters)
    assert set(inspect.signature(asked).parameters) == set(asked.arguments) <= flags
    summarised = {"machine_tokens_per_second", "machine_usd_per_hour", "save"} if name == "read_trace" else set()
    assert asked.verb.parameters.keys() - set(asked.arguments) <= LEFT_OUT.keys() | summarised


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_the_fields_of_the_request(name: str) -> None:
    asked = function(name)
    declared = asked.verb.request.model_fields
    assert {each: argument.default for each, argument in asked.arguments.items() if not argument.required} == {
        each: declared[each].default for each in asked.arguments if not declared[each].is_required()
    }
    assert all(declared[each].description == argument.help for each, argument in asked.arguments.items())


def test_what_is_no_argument_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match=r"^fit\(\): got an unexpected keyword argument 'gpus'"):
        tk.fit("llama-3.1-8b", gpus="H100")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^fit\(\): too many positional arguments"):
        tk.fit("llama-3.1-8b", "H100")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^fit\(\): multiple values for argument 'model'"):
        tk.fit("llama-3.1-8b", model="llama-3.1-8b", gpu="H100")  # type: ignore[misc]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_answers_with_an_example_and_every_argument(name: str) -> None:
    function = getattr(tk, name)
    said = inspect.getdoc(function) or ""
    assert said.splitlines()[0].endswith((".", "one up."))
    assert f">>> tk.{name}(" in said
    for each, parameter in inspect.signature(function).parameters.items():
        assert f"\n    {each}: " in said
        assert parameter.annotation is not parameter.empty
    assert "--" not in said


def test_help_shows_a_function_with_its_arguments() -> None:
    said = pydoc.render_doc(tk.fit, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "Does a model fit" in said
    assert "tp: Tensor parallelism" in said
    assert str(inspect.signature(tk.fit)).startswith("(model: 'Words', *, gpu: 'Words', context: 'int | str' = 4096")
    assert inspect.signature(tk.fit).return_annotation == "FitResult"


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("--rate", "rate"),
        ("Instead of --tokens-per-month: as many.", "Instead of tokens_per_month: as many."),
        ("Give --prefill-replicas as well.", "Give prefill_replicas as well."),
        ("prefill--decode is no flag, nor is a -- alone", "prefill--decode is no flag, nor is a -- alone"),
    ],
)
def test_help_speaks_of_arguments_instead_of_flags(typed: str, written: str) -> None:
    assert by_name(typed) == written


def test_a_package_of_the_same_name_does_not_take_a_functions_place() -> None:
    code = "import tokonomics as tk, tokonomics.fleet.design, tokonomics.levers.stack; print(tk.fleet, tk.levers)"
    assert run(code).stdout.split("\n")[0] == "<function tokonomics.fleet> <function tokonomics.levers>"
