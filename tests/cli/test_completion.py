"""Tab offers verbs, options and the names that they take, in each shell's own protocol, loading nothing heavy."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import typer.main
from tests.cli.test_startup import HEAVY

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.engines import all_engines
from tokonomics.catalog.gpus import find_gpus
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offers import load_offers
from tokonomics.cli import commands
from tokonomics.cli.main import application
from tokonomics.questions.scenario import SWEPT_UNASKED, swept_keys
from tokonomics.questions.verbs import VERBS, scenario_verbs
from tokonomics.traffic.formats import SAMPLES, TRACES

VARIABLE = "_TOKONOMICS_COMPLETE"
ASK = """
import sys
sys.argv = ["tokonomics"]
from tokonomics.__main__ import main
try:
    main()
finally:
    print("loaded", *sys.modules, file=sys.stderr)
"""


def asked(shell: str, typed: str, *, light: bool = True) -> list[str]:
    """What the shell is told for this line, its last word unfinished."""
    words = typed.split(" ")
    protocol = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    assert words[0] == "tokonomics"
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, **protocol, VARIABLE: f"complete_{shell}"},
        capture_output=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    said, _, loaded = done.stderr.partition("loaded")
    assert (done.returncode, said) == (0, ""), done.stderr
    if light:
        assert {name.partition(".")[0] for name in loaded.split()} & HEAVY == set()
    if shell == "zsh":
        lines = done.stdout.removeprefix("_arguments '*: :((").removesuffix("))'\n").splitlines()
        return [line.split('"')[1].replace("\\\\:", ":") for line in lines]
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_a_verb_an_option_and_a_gpu(shell: str) -> None:
    assert set(asked(shell, "tokonomics c")) == {verb for verb in VERBS if verb.startswith("c")}
    assert set(asked(shell, "tokonomics plan --g")) == {"--gpu", "--gpus"}
    assert set(asked(shell, "tokonomics predict llama-3.1-8b --gpu H2")) == {
        gpu.key for gpu in find_gpus() if gpu.key.startswith("H2")
    }


@pytest.mark.parametrize("shell", ["zsh", "fish"])  # bash ends a word at the colon
def test_a_hosted_model_is_completed_across_its_colon(shell: str) -> None:
    whole = {api.key for api in list_apis(host="openai") if api.key.startswith("openai:gpt-4o")}
    offered = asked(shell, "tokonomics breakeven llama-3.1-8b --api openai:gpt-4o", light=False)
    assert len(whole) > 1
    assert set(offered) == whole


def test_what_is_swept_is_offered() -> None:
    unasked = {f"{key}=" for verb in SWEPT_UNASKED for key in swept_keys(verb) if key.startswith("r")}
    assert {"rate=", "router=", "region="} <= set(asked("fish", "tokonomics sweep chat.toml --over r")) == unasked
    offered = asked("fish", "tokonomics sweep chat.toml --verb fit --over ")
    assert set(offered) == {f"{key}=" for key in swept_keys("fit")}


@pytest.mark.parametrize("verb", ["sweep chat.toml", "init"])
def test_verbs_that_take_a_scenario_are_offered(verb: str) -> None:
    assert set(asked("bash", f"tokonomics {verb} --verb c")) == {each for each in scenario_verbs() if each[0] == "c"}


def test_the_script_is_of_the_command_however_it_was_started(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """``python -m tokonomics`` must not have Tab ask for it after every ``python``."""
    plain = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = tokonomics_process("--show-completion", "bash", env=plain).stdout
    assert script.rstrip().endswith("complete -o default -F _tokonomics_completion tokonomics")
    assert f" {VARIABLE}=complete_bash $1" in script


def test_a_list_goes_on_after_its_comma() -> None:
    assert asked("bash", "tokonomics plan llama-3.1-8b --gpu H100,H20") == [
        f"H100,{gpu.key}" for gpu in find_gpus() if gpu.key.startswith("H20")
    ]


def test_the_first_word_after_a_verb_is_a_model() -> None:
    offered = asked("fish", "tokonomics plan llama-3.1")
    assert set(offered) == {model.key for model in find_models() if model.key.startswith("llama-3.1")}


def test_a_model_of_ones_own_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "catalog.toml"
    own.write_text('[models.zebra-1b]\nconfig = "config.json"\n', encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(own))
    assert asked("bash", "tokonomics plan zeb") == ["zebra-1b"]
    own.write_text("[models", encoding="utf-8")
    assert asked("bash", "tokonomics plan zeb") == []


@pytest.mark.parametrize(
    ("verb", "parameter", "names"),
    [
        ("plan", "model", (model.key for model in find_models())),
        ("models", "match", (model.key for model in find_models())),
        ("models", "family", (model.family for model in find_models())),
        ("plan", "gpu", (gpu.key for gpu in find_gpus())),
        ("gpus", "architecture", (gpu.architecture for gpu in find_gpus())),
        ("plan", "engine", (engine.key for engine in all_engines())),
        ("plan", "provider", (offer.provider for offer in load_offers())),
        ("plan", "region", (offer.region for offer in load_offers())),
        ("simulate", "trace", TRACES),
        ("plan", "input", (f"sample:{name}" for name in SAMPLES)),
        ("apis", "host", (api.host for api in list_apis())),
        ("plan", "terms", ("on_demand", "spot", "reserved")),
        ("plan", "weights", ("fp32", "bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4")),
    ],
)
def test_values_are_those_the_verbs_take(verb: str, parameter: str, names: Iterable[str]) -> None:
    command = typer.main.get_command(application(verb)).commands[verb]  # type: ignore[attr-defined]
    offered = commands.names_of(parameter)(typer.Context(command, info_name=verb), "")
    assert sorted(offered) == sorted(set(names))


def test_every_name_completed_is_a_parameter_of_some_verb() -> None:
    """A flag that is renamed takes its completion along, or this fails."""
    taken = {name for verb in VERBS.values() for name in verb.parameters}
    taken |= {f"{verb.name} {name}" for verb in VERBS.values() for name in verb.parameters}
    assert commands._LISTS.keys() <= taken


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("plan --gpu H100 --g", {"--gpu", "--gpus"}),  # a list may be given again
        ("plan --gpus 2 --g", {"--gpu"}),
        ("plan --gpus=2 llama-3.1-8b --g", {"--gpu"}),
        (
            "meter http://localhost:8000 --once --g",
            {"--gpu", "--gpus", "--gpu-metrics"},
        ),  # meter URL is meter watch URL
        ("meter files --g", set()),
        ("plam --g", set()),
        ("plan llama-3.1-8b --by-gpu --rate 5 gpt-oss-2", {"gpt-oss-20b"}),  # as many models as one likes
        ("predict --fit llama-3.1-8b llama-3", set()),  # one
        ("predict --gpu H100 gpt-oss-2", {"gpt-oss-20b"}),
        ("plan llama-3.1-8b --rate ", set()),
        ("meter ", {"watch", "report", "export", "files"}),
    ],
)
def test_what_may_still_be_given_is_offered(typed: str, offered: set[str]) -> None:
    assert set(asked("fish", f"tokonomics {typed}")) == offered


def test_fish_offers_files_where_there_is_nothing_to_offer(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    asks = {VARIABLE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    for line, code in (("tokonomics predict --gpu H2", 0), ("tokonomics plan --rate ", 1)):
        assert tokonomics_process(env={**asks, "_TYPER_COMPLETE_ARGS": line}).returncode == code
