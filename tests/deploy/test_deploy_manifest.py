"""Manifests of deploy files: values are set in what was read, and nothing in a value is read again."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.deploy.job import Target
from tokonomics.deploy.manifest import fill, manifest, yaml_text


def told(**values: Any) -> dict[str, Any]:
    return {"parts": {"port": {"number": "$port"}}, "sides": [{"side": "a"}, {"side": "b"}], "port": 8000, **values}


@given(st.text())
def test_a_value_stays_a_value_whatever_it_says(text: str) -> None:
    template = {"name": "$name", "args": ["--model=$name", "$name"]}
    filled = fill(template, told(name=text))
    assert filled == {"name": text, "args": [f"--model={text}", text]}
    assert yaml.safe_load(yaml_text(filled)) == filled


@pytest.mark.parametrize("text", ["$port", "$(port)", "a: b", "- $side: x", "x\n---\nkind: Pod", "${port}", "# no"])
def test_a_value_is_not_read_as_a_manifest(text: str) -> None:
    assert fill(["$name", "is $name"], told(name=text)) == [text, f"is {text}"]


def test_a_value_keeps_its_type_alone_and_is_text_in_brackets_or_in_a_text() -> None:
    assert fill(["$port", "$(port)", "port $port."], told()) == [8000, "8000", "port 8000."]


def test_what_has_no_value_is_left_out_and_what_is_unknown_is_an_error() -> None:
    assert fill({"a": "$no", "b": ["x $no", "y"], "c": {}}, told(no=None)) == {"b": ["y"], "c": {}}
    with pytest.raises(KeyError):
        fill("$nobody", told())


def test_parts_are_used_chosen_and_repeated() -> None:
    template = [{"$use": "port"}, {"$if": "no", "$then": 1, "$else": [2, 3]}, {"$side": "for $side"}]
    assert fill(template, told(no=None)) == [{"number": 8000}, 2, 3, "for a", "for b"]
    assert fill({"text": {"$yaml": {"$use": "port"}}}, told()) == {"text": "number: 8000\n"}


@pytest.mark.parametrize("target", Target)
def test_every_target_has_a_manifest_with_files(target: Target) -> None:
    assert manifest("script" if target in ("vllm", "sglang") else target.value)["files"]
