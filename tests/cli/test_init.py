"""``tokonomics init`` writes a file that works at once, in which every flag can be found; the schema agrees with it."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from tests.command import refused, run
from tests.explore import some

from tokonomics.cli.commands import as_text
from tokonomics.errors import BadInput
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import SILENT
from tokonomics.questions.scenario import known_keys, parameter_for, read_scenario_file, shared_keys, shown
from tokonomics.questions.scenario_text import groups, scenario_schema, scenario_text
from tokonomics.questions.verbs import find_verb, scenario_verbs

DOCS = Path(__file__).parents[2] / "docs"
COMMENTED = re.compile(r"^#(?=\[?[a-z_-]+(\]$| = ))", re.M)


@cache
def schema() -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator(scenario_schema())


def ask(name: str, values: dict[str, object]) -> None:
    verb = find_verb(name)
    verb.answer(verb.request.checked(values), SILENT)


def test_it_writes_a_file_once(tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    assert run("init", str(file)).exit_code == 0
    first = file.read_text()
    assert first.startswith("#:schema ./")
    file.write_text("# mine\n")
    told = refused("init", str(file))
    assert "exists already" in told
    assert "--force" in told
    assert file.read_text() == "# mine\n"
    assert run("init", str(file), "--force").exit_code == 0
    assert file.read_text() == first
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no/such/folder/x.toml",), "cannot be written"),
        (("-", "--verb", "plann"), "Did you mean plan"),
        (("-", "--schema", "--verb", "plan"), "--verb"),
        (("x.json",), "'x.json' does not end with .toml"),
        (("x.toml", "--schema"), "'x.toml' does not end with .json"),
    ],
)
def test_what_it_cannot_write_is_said_and_nothing_is_written(words: tuple[str, ...], says: str) -> None:
    assert says in refused("init", *words)
    assert not Path(words[0]).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb",
    some(["plan", "simulate", "levers", "capacity", "compare", "fit", "curve", "predict", "stack", "trace"], keep=4),
)
def test_the_file_works_at_once(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "scenario.toml"
    run("init", str(file))
    done = run(verb, str(file), "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)


def test_the_file_holds_every_key_of_every_verb() -> None:
    keys = set(re.findall(r"^#?([a-z_]+) = ", scenario_text(scenario_verbs()), re.M))
    assert keys == set(known_keys()) - {"json"}


def test_a_key_of_several_verbs_is_said_once_and_belongs_to_a_group() -> None:
    grouped = [key for keys in groups().values() for key in keys]
    assert len(grouped) == len(set(grouped))
    takers = {key: [verb for verb in scenario_verbs() if key in known_keys([verb])] for key in known_keys()}
    assert {key for key, verbs in takers.items() if len(verbs) > 1} & set(shared_keys()) == set(grouped)
    written = {"save", "deploy_to", "quote", "chart", "html", "json", "as_code", "open", "take"}
    assert set(known_keys()) - set(shared_keys()) == {*written, "utilization", "gpus"}


@pytest.mark.parametrize("verb", scenario_verbs())
def test_every_value_that_is_commented_out_is_one_that_the_verb_takes(verb: str) -> None:
    asked = find_verb(verb).request
    needed = {one.key: shown(one) for one in find_verb(verb).keys.values() if one.required}
    for key in find_verb(verb).keys.values():
        taken = asked if key.name in asked.model_fields else Shown
        request = taken.checked({**(needed if taken is asked else {}), key.key: shown(key)})
        assert getattr(request, key.name) not in (None, [], ())


@pytest.mark.parametrize("verb", scenario_verbs())
def test_the_file_uncommented_is_read_and_fits_the_schema(tmp_path: Path, verb: str) -> None:
    # A key and a table of one name (trace, tenants, offers) cannot stand in one file: the key goes.
    text = re.sub(rf"(?m)^{verb} = .*$", "", COMMENTED.sub("", scenario_text([verb])))
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    keys = {key.key for key in find_verb(verb).keys.values()}
    said_once = {"gpu", "offers"} if verb == "cost" else set()  # its price is given
    assert set(read_scenario_file(file).values_for(verb)) == keys - {"json", verb} - said_once
    schema().validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "rrate = 5", "tp = 'two'", "tp = true", "spare = -1", "[fit]\nrate = 5", "json = true",
        "gpu = [1.5, {a = 1}]", "rate = -1", "usd_per_hour = -2.5", "input = -100", "[trace]\nduration = -3600",
        "[cost]\ngpus = -4",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema().validate(tomllib.loads(text))


def test_no_number_of_a_scenario_may_be_negative_in_the_schema_nor_to_the_verb() -> None:
    """The schema says so of every number: a verb that took one would be cut off from it in editors."""
    working = {"model": "llama-3.1-8b", "gpu": "H100", "context": 100, "batch": 1}
    for verb in ("fit", "predict", "curve"):
        for each in find_verb(verb).keys.values():
            if each.type in (int, float):
                values = {key: value for key, value in working.items() if parameter_for(verb, key)}
                with pytest.raises(BadInput):
                    ask(verb, {**values, each.key: -1})


def test_the_published_schema_is_the_one_of_these_flags() -> None:
    jsonschema.Draft4Validator.check_schema(scenario_schema())
    published = (DOCS / "scenario.schema.json").read_text(encoding="utf-8")
    assert published == as_text(scenario_schema()), "run: tokonomics init docs/scenario.schema.json --schema --force"
    assert run("init", "-", "--schema").stdout == published


@pytest.mark.parametrize("file", sorted((DOCS / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_example_fits_the_schema(file: Path) -> None:
    schema().validate(tomllib.loads(file.read_text(encoding="utf-8")))
    assert file.read_text(encoding="utf-8").startswith("#:schema ../scenario.schema.json\n")
    read_scenario_file(file)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_folder_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", str(tmp_path)):
        told = refused("init", folder, *force)
        assert "is a folder" in told
        assert "--force" not in told


def test_the_names_of_verbs_are_whole_and_examples_are_their_own() -> None:
    text = scenario_text(scenario_verbs())
    listed = " ".join(text.partition("# Every key")[0].replace("\n# ", " ").split())
    assert all(re.search(rf"[ ,]{' '.join(find_verb(verb).words)}[,.]", listed) for verb in scenario_verbs())
    assert '#save = "mine.csv"' in text.partition("[own-hardware]")[2].partition("\n[")[0]
    assert '#save = "requests.parquet"' in text.partition("[trace]")[2].partition("\n[")[0]
