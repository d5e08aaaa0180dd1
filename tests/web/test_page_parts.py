"""An answer is solved once and told in parts: figures first, charts and downloads when they are wanted."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tokonomics.guarded import worker
from tokonomics.guarded.worker import KEPT, WHOLE, answer
from tokonomics.questions.verbs import Verb
from tokonomics.report.answer import Answer, describe

CURVE = {"model": "llama-3.1-8b", "gpu": "H100"}
PLAN = {"model": ["llama-3.1-8b"], "rate": "5", "input": "1000", "output": "300", "quick": True, "gpu": ["L4"]}
TOLD = [part for part in WHOLE if part != "plays"]
"""Parts of these answers: a run that can be played is a simulation's."""
Solves = list[str]


def request_of(verb: str, call: dict[str, Any], *parts: str, key: str | None) -> dict[str, Any]:
    return {"verb": verb, "call": call, "inputs": {}, "command": "", "parts": list(parts), "key": key}


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> Solves:
    """The verbs that were solved, in their order; nothing is kept before."""
    found: Solves = []

    def described(verb: Verb, *rest: Any) -> Answer:
        found.append(verb.name)
        return describe(verb, *rest)

    monkeypatch.setattr("tokonomics.guarded.worker.describe", described)
    worker._kept.clear()
    return found


def sent(made: dict[str, Any]) -> set[str]:
    """The parts that an answer came with; without charts it has none."""
    return {part for part in WHOLE if made.get(part)}


def silent(line: str) -> None:
    """Nobody hears what is being done."""


def test_numbers_charts_downloads_and_report_are_solved_once(solves: Solves) -> None:
    for part in ("sections", "charts", "result", "text", "markdown"):
        assert part in answer(request_of("plan", PLAN, part, key="a"), silent)
    made = worker.report(request_of("plan", PLAN, "result", "sections", "charts", key="a"), silent)
    assert made["html"].startswith("<!doctype html>")
    assert solves == ["plan"]


@pytest.mark.parametrize(("verb", "call"), [("plan", PLAN), ("curve", CURVE)])
def test_parts_of_a_kept_answer_are_those_of_one_asked_anew(solves: Solves, verb: str, call: dict[str, Any]) -> None:
    anew = answer(request_of(verb, call, *WHOLE, key=None), silent)
    answer(request_of(verb, call, "sections", key="b"), silent)
    assert anew["plays"] is None
    for part in TOLD:
        kept = answer(request_of(verb, call, part, key="b"), silent)
        assert kept[part] == anew[part], part
        assert sent(kept) == {part}
    assert len(anew["charts"]) > 0
    assert solves == [verb, verb]


def test_a_worker_keeps_the_latest_answers(solves: Solves) -> None:
    for place in range(KEPT + 1):
        answer(request_of("curve", {**CURVE, "context": 1000 + place}, key=str(place)), silent)
    answer(request_of("curve", {**CURVE, "context": 1001}, key="1"), silent)
    assert len(solves) == KEPT + 1
    answer(request_of("curve", {**CURVE, "context": 1000}, key="0"), silent)
    assert len(solves) == KEPT + 2, "the oldest was forgotten"
    assert len(worker._kept) == KEPT


def test_the_page_gets_what_it_asks_for_and_the_whole_answer_in_the_end(page: TestClient) -> None:
    def asked(**params: Any) -> dict[str, Any]:
        reply = page.post("/api/v1/answers/curve", json=CURVE, params=params)
        assert reply.status_code == 200, reply.text
        made: dict[str, Any] = reply.json()
        return made

    figures, charts = asked(part="sections"), asked(part="charts")
    assert sent(figures) == {"sections"}
    assert sent(charts) == {"charts"}
    assert figures["seconds"] == charts["seconds"], "it was solved once"
    whole = asked()
    assert figures["sections"] == whole["sections"]
    assert charts["charts"] == whole["charts"]
    assert sent(asked(charts=False)) == set(TOLD) - {"charts"}
    taken = asked(part=["result", "text", "markdown"])
    assert {part: taken[part] for part in ("result", "text", "markdown")} == {
        part: whole[part] for part in ("result", "text", "markdown")
    }
    assert page.post("/api/v1/answers/curve", json=CURVE, params={"part": "wrong"}).status_code == 422


def test_the_apis_come_apart_from_the_catalogue(page: TestClient) -> None:
    catalogue, apis = page.get("/api/v1/catalog"), page.get("/api/v1/catalog/apis")
    assert "apis" not in catalogue.json()
    assert {"key", "host", "model", "input_usd_per_mtok", "output_usd_per_mtok"} == set(apis.json()[0])
    assert "groq:llama-3.1-8b-instant" in {api["key"] for api in apis.json()}
