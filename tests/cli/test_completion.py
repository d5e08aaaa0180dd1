"""Tab offers the names that the verbs take, in each shell's own protocol, without loading what is heavy."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_startup import HEAVY
from tests.explore import some

import tokonomics
from tokonomics.catalog.apis import list_apis
from tokonomics.catalog.engines import all_engines
from tokonomics.catalog.gpus import find_gpus
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offer_files import load_offers
from tokonomics.cli import completion
from tokonomics.questions.scenario import SWEPT_UNASKED, swept_keys
from tokonomics.questions.verbs import scenario_verbs
from tokonomics.traffic.samples import SAMPLES, TRACES

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import completion_words

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
        "bash": {
            "COMP_WORDS": (
                cut := re.sub("([:=])(?=(.?))", lambda found: f" {found[1]}{' ' if found[2] else ''}", typed)
            ),
            "COMP_CWORD": str(len(cut.split(" ")) - 1),
        },
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    assert words[0] == "tokonomics"
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, **protocol, completion.VARIABLE: f"complete_{shell}"},
        capture_output=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    said, _, loaded = done.stderr.partition("loaded")
    assert (done.returncode, said) == (0, ""), done.stderr
    if light:
        assert {name.partition(".")[0] for name in loaded.split()} & {*HEAVY, "typer", "rich", "pydantic"} == set()
    if shell == "zsh":
        lines = done.stdout.removeprefix("_arguments '*: :((").removesuffix("))'\n").splitlines()
        return [line.split('"')[1].replace("\\\\:", ":") for line in lines]
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_a_gpu(shell: str) -> None:
    assert set(asked(shell, "tokonomics predict llama-3.1-8b --gpu H2")) == {
        gpu.key for gpu in find_gpus() if gpu.key.startswith("H2")
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_a_hosted_model_across_its_colon(shell: str) -> None:
    whole = {api.key for api in list_apis(host="openai") if api.key.startswith("openai:gpt-4o")}
    offered = asked(shell, "tokonomics breakeven llama-3.1-8b --api openai:gpt-4o", light=False)
    assert len(whole) > 1
    # bash replaces only what stands after the colon, so that is all it may be given.
    assert set(offered) == ({key.removeprefix("openai:") for key in whole} if shell == "bash" else whole)


@pytest.mark.parametrize("shell", some(["bash", "zsh", "fish"], keep=1))
def test_every_shell_completes_what_is_swept(shell: str) -> None:
    assert (
        {"rate=", "router=", "region="}
        <= set(asked(shell, "tokonomics sweep chat.toml --over r"))
        <= {f"{key}=" for verb in SWEPT_UNASKED for key in swept_keys(verb) if key.startswith("r")}
    )
    assert set(asked(shell, "tokonomics sweep chat.toml --verb fit --over ")) == {
        f"{key}=" for key in swept_keys("fit")
    }
    offered = asked(shell, "tokonomics sweep chat.toml --over gpu=H100,H2")
    whole = {f"gpu=H100,{gpu.key}" for gpu in find_gpus() if gpu.key.startswith("H2")}
    assert set(offered) == ({each.removeprefix("gpu=") for each in whole} if shell == "bash" else whole)
    assert shell == "zsh" or asked(shell, "tokonomics sweep chat.toml --over rate=") == []  # zsh offers files


@pytest.mark.parametrize("verb", ["sweep chat.toml", "init"])
def test_verbs_that_take_a_scenario_are_offered(verb: str) -> None:
    assert set(asked("bash", f"tokonomics {verb} --verb c")) == {each for each in scenario_verbs() if each[0] == "c"}


def test_bash_completes_after_an_equals_sign() -> None:
    assert set(asked("bash", "tokonomics fit llama-3.1-8b --gpu=H2")) == {
        gpu.key for gpu in find_gpus() if gpu.key.startswith("H2")
    }


def test_the_script_is_of_the_command_however_it_was_started(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """``python -m tokonomics`` must not have Tab ask for it after every ``python``."""
    plain = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = tokonomics_process("--show-completion", "bash", env=plain).stdout
    assert script.rstrip().endswith("complete -o default -F _tokonomics_completion tokonomics")
    assert f" {completion.VARIABLE}=complete_bash $1" in script


def test_a_list_goes_on_after_its_comma() -> None:
    assert asked("bash", "tokonomics plan llama-3.1-8b --gpu H100,H20") == [
        f"H100,{gpu.key}" for gpu in find_gpus() if gpu.key.startswith("H20")
    ]


def test_case_does_not_matter() -> None:
    assert "L4" in asked("bash", "tokonomics fit llama-3.1-8b --gpu l")


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


def test_values_are_those_the_verbs_take() -> None:
    def names(values: list[completion.Value]) -> set[str]:
        return {name for name, _ in values}

    assert names(completion.values("models")) == {model.key for model in find_models()}
    assert names(completion.values("gpus")) == {gpu.key for gpu in find_gpus()}
    assert names(completion.values("engines")) == {engine.key for engine in all_engines()}
    assert names(completion.values("providers")) == {offer.provider for offer in load_offers()}
    assert names(completion.values("regions")) == {offer.region for offer in load_offers()}
    assert names(completion.values("traces")) == set(TRACES)
    assert names(completion.values("lengths")) == {f"sample:{name}" for name in SAMPLES}
    assert names(completion.values("hosts")) == {api.host for api in list_apis()}
    families = tomllib.loads(
        (Path(tokonomics.__file__).parent / "catalog" / "data" / "models.toml").read_text(encoding="utf-8")
    )
    assert names(completion.values("families")) == {row["family"] for row in families.values()}


def test_what_can_be_typed_is_what_the_verbs_take() -> None:
    """``words.json`` is written from the verbs; a flag that is renamed is offered by its new name, or this fails."""
    assert completion_words.WORDS.read_text(encoding="utf-8") == completion_words.words(), "run make outputs"


def test_every_name_completed_is_a_parameter_of_some_verb() -> None:
    """A flag that is renamed takes its completion along, or this fails."""
    known = completion.words()

    def parameters(verb: str, of: dict[str, Any]) -> set[tuple[str, str]]:
        own = {(verb, taken["name"]) for kind in ("options", "arguments") for taken in of[kind]}
        return own.union(*(parameters(name, below) for name, below in of.get("commands", {}).items()))

    taken = parameters("", known)
    assert ("sweep", "over") in taken
    assert completion.BY_PARAMETER.keys() <= {name for _, name in taken}
    assert completion.BY_VERB.keys() <= taken


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["plan", "--gpu", "H100"], {"--grid", "--gpu", "--gpus"}),  # a list may be given again
        (["plan", "--grid", "FR"], {"--gpu", "--gpus"}),
        (["plan", "--grid=FR", "llama-3.1-8b"], {"--gpu", "--gpus"}),
        (
            ["meter", "http://localhost:8000", "--once"],
            {"--gpu", "--gpus", "--gpu-metrics"},
        ),  # meter URL is meter watch URL
        (["meter", "files"], set()),
        (["plam"], set()),
    ],
)
def test_options_that_may_still_be_given_are_offered(typed: list[str], offered: set[str]) -> None:
    assert {name for name, _ in completion.offered(typed, "--g")} == offered


@pytest.mark.parametrize(
    ("typed", "begun", "offered"),
    [
        (["compare", "llama-3.1-8b", "--rate", "5"], "gpt-oss-2", ["gpt-oss-20b"]),  # as many models as one likes
        (["fit", "llama-3.1-8b"], "llama-3", []),  # one
        (["fit", "--gpu", "H100"], "gpt-oss-2", ["gpt-oss-20b"]),
        (["fit", "--"], "gpt-oss-2", ["gpt-oss-20b"]),
        (["plan", "llama-3.1-8b", "--rate"], "", []),
        (["meter"], "", ["watch", "report", "export", "files"]),
        (["prices"], "r", ["refresh"]),
    ],
)
def test_what_stands_by_itself_is_offered(typed: list[str], begun: str, offered: list[str]) -> None:
    assert [name for name, _ in completion.offered(typed, begun)] == offered


def test_fish_offers_files_where_there_is_nothing_to_offer(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    asks = {completion.VARIABLE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    for line, code in (("tokonomics fit --gpu H2", 0), ("tokonomics plan --rate ", 1)):
        assert tokonomics_process(env={**asks, "_TYPER_COMPLETE_ARGS": line}).returncode == code


def test_bash_that_does_not_say_which_word_means_the_last(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    asks = {completion.VARIABLE: "complete_bash", "COMP_WORDS": "tokonomics own-h", "COMP_CWORD": "x"}
    done = tokonomics_process(env=asks)
    assert (done.returncode, done.stdout, done.stderr) == (0, "own-hardware\n", "")
