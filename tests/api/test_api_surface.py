"""What ``import tokonomics`` gives: a dozen names, loaded when used, typed, with the words of the command line."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tokonomics as tk
from tokonomics.api.ask import arguments, verb_of
from tokonomics.cli.argument_names import in_python
from tokonomics.cli.main import app

FUNCTIONS = [name for name in tk.__all__ if name != "TokonomicsError"]
LEFT_OUT = {
    "chart": "a result draws its chart", "html": "a notebook is the page", "json": "to_json()",
    "top": "a frame has all rows", "why": 'to_frame("rejected")', "deploy": "writes files", "deploy_to": "writes files",
    "model": "is taken by its place",
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
    assert len(tk.__all__) <= 15
    assert set(tk.__all__) <= set(dir(tk))
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = tk.plam


def test_type_checkers_see_the_names_that_are_given() -> None:
    tree = ast.parse(Path(str(tk.__file__)).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {each.name for node in guarded.body if isinstance(node, ast.ImportFrom) for each in node.names}
    assert seen == set(tk.__all__)
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
    assert 'Revealed type is "tokonomics.planner.plan.Candidate | None"' in lines[0]
    assert 'Revealed type is "float | None"' in lines[1]
    assert 'Revealed type is "float"' in lines[2]
    assert 'Argument "tp" to "fit" has incompatible type "str"' in lines[3]
    assert any('Unexpected keyword argument "gpus"' in line for line in lines[4:])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_the_flags_of_the_verb_with_the_same_defaults(name: str) -> None:
    function = getattr(tk, name)
    verb = next(each.callback for each in app.registered_commands if each.name == verb_of(function))
    assert verb is not None
    flags = inspect.signature(verb).parameters
    asked = inspect.signature(function).parameters
    renamed = {"input_text": "input", "output_text": "output"}
    by_place = {"what", "model_name", "model", "file", "match"}
    theirs = {renamed.get(each, each): parameter.default for each, parameter in flags.items() if each not in by_place}
    ours = {each: parameter.default for each, parameter in asked.items() if each not in by_place}
    ignored = {"machine_tokens_per_second", "machine_usd_per_hour", "save"} if name == "read_trace" else set()
    assert set(theirs) - set(ours) <= LEFT_OUT.keys() | ignored
    for each, default in ours.items():
        assert theirs[each] == default or (name, each) == ("breakeven", "api"), each
    assert set(arguments(function)) == set(asked)
    assert all(in_python(said.flag) == each for each, said in arguments(function).items() if said.flag)


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


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("--rate", "rate"),
        ("Such as --rate 5, or --tokens-per-month 2B.", 'Such as rate=5, or tokens_per_month="2B".'),
        ("Give --prefill-replicas as well.", "Give prefill_replicas as well."),
        ("must be later than --from", "must be later than start"),
        ("prefill--decode is no flag, nor is a -- alone", "prefill--decode is no flag, nor is a -- alone"),
        ("--slo ttft_p99=0.5", "slo ttft_p99=0.5"),
        (
            "Give --gpu; see `tokonomics fit x --gpu H100`, or --tp.",
            "Give gpu; see `tokonomics fit x --gpu H100`, or tp.",
        ),
    ],
)
def test_messages_speak_of_arguments_instead_of_flags(typed: str, written: str) -> None:
    assert in_python(typed) == written


def test_names_within_a_sentence_can_be_marked() -> None:
    said = in_python("Leave out --rate, or give --from; see `tokonomics trace --rate 2`.", mark="`")
    assert said == "Leave out `rate`, or give `start`; see `tokonomics trace --rate 2`."
    assert in_python("Such as --rate 5.", mark="`") == "Such as `rate=5`."
