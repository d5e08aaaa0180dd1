"""No text of the page speaks of flags: inputs are marked by name, and the page calls them as its form does."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tokonomics.questions.verbs import QUESTIONS

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
NAMES = {name.replace("_", "-") for verb in QUESTIONS.values() for name in verb.parameters}
OURS = NAMES | {"from", "to", "help", "json"}
"""An engine's own flag, in a file or beside its name, is what the reader types there."""
MODEL = {"model": "llama-3.1-8b"}
TRAFFIC = {"rate": 5, "input": 1000, "output": 300}
FEW = {"gpu": ["L4"]}
"""Quicker than every GPU."""
QUICK = {**MODEL, **TRAFFIC, **FEW, "quick": True}
CURVE = {**MODEL, "gpu": "H100"}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("plan", {**MODEL, "quick": True}),
    ("plan", {**MODEL, "rate": 5, "quick": True}),
    ("plan", {**QUICK, "trace": "azure-conv"}),
    ("plan", {**MODEL, "trace": "azure-conv", "columns": "arrival=when", "quick": True}),
    ("plan", {**QUICK, "tokens_per_month": "2B"}),
    ("plan", {**QUICK, "slo": "ttft_p99"}),
    ("plan", {**QUICK, "arrivals": "poisson"}),
    ("plan", {**QUICK, "min_weights": "int3"}),
    ("plan", {**QUICK, "provider": ["nobody"]}),
    ("plan", {**QUICK, "margin": "200%"}),
    ("plan", {**QUICK, "requests": 5, "sessions": "chat"}),
    ("compare", {**MODEL, **TRAFFIC, "baseline": "H1000"}),
    ("curve", MODEL),
    ("curve", {**CURVE, "tp": 3}),
    ("curve", {**CURVE, "context": 10_000_000}),
    ("predict", {**CURVE, "batch": 10**7}),
    ("cost", {**CURVE}),
    ("own-hardware", {"gpu": "H100"}),
    ("can-run", {"gpu": "H1000"}),
    ("trace", {}),
    ("trace", {"trace": "azure-conv", "by": ["team"]}),
    ("trace", {"trace": "azure-conv", "start": "2h"}),
    ("trace", {"trace": "azure-conv", "speed": 2, "rate": 3}),
    ("breakeven", {**MODEL, "quick": True, "input": 1000}),
    ("breakeven", {**MODEL, "quick": True, "input": 1000, "output": 300, "api": ["nobody:none"]}),
]
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("plan", {**QUICK, "slo": "ttft_p99=1ms"}),
    ("plan", {**QUICK, "min_recovery": 0.99}),
    ("curve", {**CURVE, "weights": "int4"}),
    ("compare", {**MODEL, **TRAFFIC, **FEW, "slo": "ttft_p99=1ms"}),
    ("own-hardware", {"gpu": "H100", "gpus": 8, "purchase_usd": "250k", "years": 4, "usd_per_kwh": 0.12,
                      "host_watts": 4600}),
    ("trace", {"trace": "azure-conv"}),
    ("offers", {"gpu": ["H100"], "max_price": 0.01}),
]  # fmt: skip


def flags(text: Any) -> list[str]:
    return [found[0] for found in FLAG.finditer(text or "") if found[1] in OURS]


def texts(answer: dict[str, Any]) -> Iterator[str]:
    """All that the page shows of it, but for the line to type, files, and what the terminal prints."""
    yield from (answer["title"], answer["headline"], *answer["notes"])
    for section in answer["sections"]:
        yield section["title"]
        for block in section["blocks"]:
            if block["type"] != "file" and block.get("kind") != "next":
                yield from _strings(block)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def test_no_refusal_names_a_flag(page: TestClient) -> None:
    named, answered = {}, []
    for verb, inputs in REFUSED:
        reply = page.post(f"/api/v1/answers/{verb}", json=inputs, params={"charts": False})
        if reply.status_code == 200:
            answered.append((verb, inputs))
        error = reply.json().get("error", {})
        if found := [flag for part in ("what", "where", "fix") for flag in flags(error.get(part))]:
            named[f"{verb} {inputs}"] = found
    assert named == {}
    assert not answered, f"each of these is to be refused: {answered}"


@pytest.mark.parametrize(("verb", "inputs"), ANSWERED)
def test_no_answer_names_a_flag(page: TestClient, verb: str, inputs: dict[str, Any]) -> None:
    answer = page.post(f"/api/v1/answers/{verb}", json=inputs, params={"charts": False}).json()
    assert "sections" in answer, answer
    assert [text for text in texts(answer) if flags(text)] == []


@pytest.mark.parametrize(
    "content",
    [
        "when,a,b\n0,1,2\n",
        "time,created_at,prompt_tokens,completion_tokens\n0,0,1,2\n",
        "hello\n",
        '{"a": 1}\n',
        "model,client,t_s,rate_rps\nm,c,0,1\n",
    ],
)
def test_no_upload_is_told_of_flags(page: TestClient, content: str) -> None:
    kept = page.post("/api/v1/uploads", params={"name": "mine.csv"}, content=content.encode()).json()
    assert kept["kind"] == "unknown"
    assert kept["why"]
    assert flags(kept["why"]) + flags(kept["fix"]) == []
