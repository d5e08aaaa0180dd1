"""The examples with which views open: of the views' own defaults, small, and what the command computes now."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from page_examples import FOLDER, INPUTS, example, shipped  # noqa: E402

PAGE = FOLDER.parent
MOST_BYTES = 150_000
"""Of all examples together, unpacked as they travel: our choice."""


def defaults(*names: str) -> dict[str, str]:
    """What the fields of the page hold where nobody has changed them, by name, those left empty not among them."""
    text = (PAGE / "fields.js").read_text() + (PAGE / "views" / "fleet.js").read_text()
    found = dict(re.findall(r'name: "(\w+)",[^{}]*?fallback: "([^"]*)"', text))
    return {name: found[name] for name in names if found[name]}


@pytest.mark.parametrize("verb", INPUTS)
def test_an_example_answers_what_its_view_asks_by_default(verb: str) -> None:
    shared = ("model", "input", "output", "slo")
    own = {"levers": ("gpu", "tp", "rate"), "stack": ("gpu", "tp", "rate"), "fleet": ("demand",)}[verb]
    assert shipped(verb)["inputs"] == INPUTS[verb] == defaults(*shared, *own)


@pytest.mark.parametrize("verb", INPUTS)
def test_an_example_is_a_whole_answer_that_says_when_it_was_made(verb: str) -> None:
    made = shipped(verb)
    kinds = {block["type"] for part in made["sections"] for block in part["blocks"]}
    assert kinds <= {"line", "facts", "table", "bar", "file"}
    assert any(block.get("kind") == "headline" for part in made["sections"] for block in part["blocks"])
    assert made["charts"]
    assert made["verb"] == verb
    asked = "levers llama-3.1-8b --from-scratch" if verb == "stack" else f"{verb} llama-3.1-8b"
    assert made["command"].startswith(f"tokonomics {asked} ")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", made["version"])
    for day in (made["made"], *made["prices"]):
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", day)
    assert made["made"] == (ROOT / "docs" / "as-of.txt").read_text().strip()
    assert made["prices"] == sorted(made["prices"])


def test_an_example_is_made_as_a_worker_answers_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a quick answer: those that ship take long, and are computed anew by explorers alone."""
    quick = {"model": ["llama-3.1-8b"], "gpu": ["H100"], "rate": "5", "input": "1000", "output": "300", "quick": True}
    monkeypatch.setitem(INPUTS, "plan", quick)
    monkeypatch.setenv("TOKONOMICS_TODAY", (ROOT / "docs" / "as-of.txt").read_text().strip())
    made = example("plan")
    assert made.keys() >= shipped("fleet").keys()
    assert [chart["name"] for chart in made["charts"]][:1] == ["Frontier"]
    for part in ("result", "sections", "text", "markdown"):
        assert made[part]


def test_all_examples_together_are_small() -> None:
    files = list(FOLDER.iterdir())
    assert {file.name for file in files} == {f"{verb}.json.gz" for verb in INPUTS}
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES


def test_the_server_sends_an_example_packed_as_it_lies(page: TestClient) -> None:
    reply = page.get("/static/examples/levers.json")
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.json() == json.loads(gzip.decompress((FOLDER / "levers.json.gz").read_bytes()))
    assert page.get("/static/examples/levers.json.gz").status_code == 404


@pytest.mark.explore
@pytest.mark.parametrize("verb", INPUTS)
def test_an_example_is_what_the_command_computes_now(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", (ROOT / "docs" / "as-of.txt").read_text().strip())
    monkeypatch.setenv("COLUMNS", "140")
    now: dict[str, Any] = json.loads(json.dumps(example(verb)))
    assert now == shipped(verb), "python docs/page_examples.py makes them anew"
