"""The page's answers are those of the command line."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.web.page_events import events_of

from tokonomics.web.verbs import catalogue_json, prices_as_of, verbs

CURVE = {"model": "llama-3.1-8b", "gpu": "H100"}
SCENARIOS: list[tuple[str, dict[str, Any]]] = [
    ("curve", CURVE),
    ("curve", {"model": "mixtral-8x7b", "gpu": "H200", "tp": 2, "weights": "fp8", "kv": "fp8", "context": 8000}),
    ("predict", {**CURVE, "batch": 64, "context": 2048}),
    ("plan", {"what": "llama-3.1-8b", "rate": 2, "input": 500, "output": 100, "quick": True, "gpu": ["L4"]}),
    ("trace", {"file": "azure-code"}),
    ("compare", {"models": ["llama-3.1-8b"], "gpu": ["L4,H100"], "rate": "5", "input": "500", "output": "100"}),
    ("cost", {"tokens_per_second": 2900, "gpu": "A100-80GB", "utilization": 0.5, "target": 0.2}),
    ("fit", {"model": "llama-3.1-70b", "gpu": "H100", "tp": 4}),
    (
        "own-hardware",
        {"gpu": "H100", "gpus": 8, "purchase_usd": "250k", "years": 4, "usd_per_kwh": 0.12, "host_watts": 4600},
    ),
    ("can-run", {"model": ["llama-3.1-8b"], "gpu": "RTX3090", "gpus": 2, "usd_per_kwh": 0.3, "context": 8192}),
    ("breakeven", {"model": "llama-3.1-8b", "input": "900", "output": "99", "gpu": ["L4"], "quick": True}),
    ("trace", {"arrivals": "gamma:2,cv=3", "requests": 500, "input": "sample:sharegpt", "seed": 7}),
]
FEW = {"without": ["hardware", "speculation", "disaggregation", "spot"]}
LONG: list[tuple[str, dict[str, Any]]] = [
    ("simulate", {**CURVE, "trace": "azure-conv", "requests": 300, "slo": "ttft_p99=0.5", "start": "10"}),
    ("cache", {**CURVE, "trace": "mooncake-conversation", "requests": 200}),
    ("levers", {**CURVE, "rate": "2", "input": "200", "output": "9", "slo": "ttft_p99=1", **FEW}),
    ("capacity", {**CURVE, "input": "500", "output": "50", "requests": 200, "slo": "ttft_p99=1"}),
]
_CLOCKS = {"wall_s", "simulated_requests_per_s"}
"""How fast this machine was; everything else is equal to the last digit."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def asked(page: TestClient, verb: str, inputs: dict[str, Any], charts: bool = True) -> dict[str, Any]:
    reply = page.post(f"/api/v1/answers/{verb}", json=inputs, params={"charts": charts})
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in _CLOCKS}


@pytest.mark.parametrize(("verb", "inputs"), SCENARIOS)
def test_the_result_is_what_json_prints_for_the_command_it_names(
    page: TestClient, tokonomics: Command, verb: str, inputs: dict[str, Any]
) -> None:
    made = asked(page, verb, inputs, charts=False)
    printed = tokonomics(*shlex.split(made["command"])[1:], "--json")
    assert printed.stdout, printed.stderr
    assert made["result"] == json.loads(printed.stdout)
    assert made["found"] == (printed.returncode == 0)


@pytest.mark.parametrize(("verb", "inputs"), LONG)
def test_the_result_of_a_job_is_what_json_prints(
    page: TestClient, tokonomics: Command, verb: str, inputs: dict[str, Any]
) -> None:
    started = page.post("/api/v1/jobs", json={"verb": verb, "inputs": inputs}).json()
    *progress, (last, made) = events_of(page, started["id"])
    assert {name for name, _ in progress} <= {"progress"}
    assert last == "answer"
    printed = json.loads(tokonomics(*shlex.split(made["command"])[1:], "--json").stdout)
    assert without_clocks(made["result"]) == without_clocks(printed)


def test_the_text_is_what_the_terminal_shows(page: TestClient, tokonomics: Command) -> None:
    made = asked(page, "curve", CURVE)
    assert made["text"] == tokonomics(*shlex.split(made["command"])[1:]).stdout.rstrip()


def test_charts_are_the_ones_the_command_line_saves(page: TestClient, tokonomics: Command, tmp_path: Any) -> None:
    made = asked(page, "curve", CURVE)
    tokonomics("curve", "llama-3.1-8b", "--gpu", "H100", "--chart", tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text())
    (chart,) = made["charts"]
    assert chart["spec"]["$schema"] == saved["$schema"]
    assert list(chart["spec"]["datasets"].values()) == list(saved["datasets"].values())
    assert asked(page, "curve", CURVE, charts=False)["charts"] == []


def test_what_nothing_satisfies_is_an_answer_that_says_so(page: TestClient) -> None:
    one = {"gpus": "1", "gpu": "T4", "weights": "bf16", "quick": True}
    made = asked(page, "plan", {"what": "llama-3.1-8b", "rate": 1, "input": 99, "output": 9, **one}, charts=False)
    assert not made["found"]
    assert made["result"]["blame"]


@pytest.mark.parametrize(
    ("verb", "inputs", "where"),
    [
        ("curve", {"modle": "llama-3.1-8b", "gpu": "H100"}, "modle"),
        ("curve", {"model": "llama-3.1-8b"}, "gpu"),
        ("predict", {**CURVE, "batch": 0}, "batch"),
        ("plan", {"what": "llama-3.1-8b", "rate": 1, "input": 9, "output": 9}, "plan"),  # takes long: a job
    ],
)
def test_a_wrong_input_is_named(page: TestClient, verb: str, inputs: dict[str, Any], where: str) -> None:
    reply = page.post(f"/api/v1/answers/{verb}", json=inputs)
    assert (reply.status_code, reply.json()["error"]["where"]) == (422, where)


def test_a_wrong_name_gets_the_nearest_right_one(page: TestClient) -> None:
    wrong = page.post("/api/v1/answers/curve", json={"model": "llama-3.1-8", "gpu": "H100"})
    assert wrong.status_code == 422
    assert "llama-3.1-8b" in wrong.json()["error"]["fix"]


def test_every_parameter_of_a_verb_is_documented(page: TestClient) -> None:
    listed = {verb["name"]: verb for verb in page.get("/api/v1/verbs").json()}
    document = page.get("/api/v1/openapi.json").json()
    assert set(listed) == set(verbs())
    for verb in verbs().values():
        names = [each["name"] for each in listed[verb.name]["parameters"]]
        assert names == list(verb.inputs.model_fields)
        assert all(each["help"] for each in listed[verb.name]["parameters"]), verb.name
        if verb.quick_when is not False:
            assert f"/api/v1/answers/{verb.name}" in document["paths"]


def test_the_catalogue_has_what_the_command_line_lists(page: TestClient, tokonomics: Command) -> None:
    known = page.get("/api/v1/catalog").json()
    listed = json.loads(tokonomics("models", "--json").stdout)
    assert [each["key"] for each in known["models"]] == [each["key"] for each in listed]
    assert {"H100-SXM", "H200", "L4"} <= {each["key"] for each in known["gpus"]}
    assert known["today"] == "2026-11-15"


@pytest.mark.slow
@pytest.mark.parametrize("place", range(5))
def test_every_preset_is_a_scenario_that_has_an_answer(page: TestClient, place: int) -> None:
    """On one GPU of many already."""
    preset = page.get("/api/v1/catalog").json()["presets"][place]
    inputs = dict(preset["inputs"])
    assert asked(page, "plan", {**inputs, "quick": True, "gpu": "H100"}, charts=False)["found"], preset["name"]


def test_a_report_is_one_file_without_foreign_addresses(page: TestClient) -> None:
    reply = page.post("/api/v1/report", json={"verb": "predict", "inputs": CURVE})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "attachment" in reply.headers["content-disposition"]
    assert "tokonomics predict llama-3.1-8b --gpu H100" in reply.text
    assert 'src="http' not in reply.text


def test_the_accuracy_shown_is_the_one_the_benchmark_recorded(page: TestClient) -> None:
    recorded = Path(__file__).parents[2] / "src" / "tokonomics" / "measure" / "data" / "accuracy.json"
    shown = page.get("/api/v1/accuracy").json()
    assert shown | json.loads(recorded.read_text("utf-8")) == shown
    assert shown["sections"]


def test_the_real_engine_leads_the_accuracy_table_then_what_no_fit_saw_and_its_rows_are_drawn(page: TestClient) -> None:
    """As docs/accuracy.md has them."""
    shown = page.get("/api/v1/accuracy?metric=TPOT&fit=left+out").json()
    blocks = [block for section in shown["sections"] for block in section["blocks"] if block["type"] == "table"]
    names = ["".join(span["text"] for span in row[0]) for row in blocks[0]["rows"]]
    errors = ["".join(span["text"] for span in row[2]) for row in blocks[0]["rows"]]
    guide = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text("utf-8")
    first = next(line for line in guide.splitlines() if line.startswith("| a real vLLM"))
    assert [names[0], f"{errors[0]} for either model"] == [cell.strip() for cell in first.split("|")][1:4:2]
    seen = next(at for at, name in enumerate(names) if "fitted on these" in name)
    assert all(at < seen for at, name in enumerate(names) if "left out of everything" in name)
    spec = shown["charts"][0]["spec"]
    drawn = [row for rows in spec["datasets"].values() for row in rows if row.get("served")]
    assert {row["what"].split(";")[0] for row in drawn} == {
        f"{model} bf16 on 1×H200, vllm 0.26.0 of 2026" for model in ("Qwen3 4B", "Qwen3 32B")
    }
    titles = {layer["encoding"]["x"].get("title") for layer in spec["layer"]}
    assert titles == {"measured"}  # its ticks say ms and s


@pytest.mark.parametrize("name", sorted(verbs()))
def test_a_command_uses_the_flags_that_the_command_line_knows(name: str) -> None:
    """Such as --input, whatever the function behind it calls its parameter."""
    import typer.main

    from tokonomics.cli.main import application

    made: Any = typer.main.get_command(application(name))
    taken = {flag for param in made.commands[name].params for flag in (*param.opts, *param.secondary_opts)}
    assert {parameter.flag for parameter in verbs()[name].parameters.values() if parameter.flag} <= taken


def test_the_command_of_a_plan_does_not_ask_for_the_files_that_the_page_adds() -> None:
    asked = {"model": ["llama-3.1-8b"], "rate": "5", "input": "1000", "output": "300"}
    plain = "tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300"
    assert verbs()["plan"].command({**asked, "deploy": ["vllm", "kubernetes", "skypilot"]}) == plain


def test_the_files_of_a_plan_name_the_command_that_the_page_shows(page: TestClient) -> None:
    """Not that of the process which answers: it names folders of the server."""
    asked = {"what": ["llama-3.1-8b"], "gpu": ["L4"], "rate": "1", "input": "100", "output": "100", "quick": True}
    made = page.post("/api/v1/answers/plan", json={**asked, "deploy": ["vllm"]}).json()
    assert f"Made by `{made['command']}`" in made["result"]["deploy"][0]["text"]


def test_the_menus_follow_the_users_own_catalogue(
    page: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "catalog.toml"
    monkeypatch.setattr("tokonomics.web.verbs.user_path", lambda: mine)
    before = prices_as_of()
    mine.write_text("")
    assert prices_as_of() != before
    made: list[int] = []

    def counted() -> dict[str, Any]:
        made.append(len(made))
        return {}

    monkeypatch.setattr("tokonomics.web.verbs.catalogue", counted)
    for stamp in (1, 1, 2):
        os.utime(mine, ns=(stamp, stamp))
        assert page.get("/api/v1/catalog").status_code == 200
    catalogue_json.cache_clear()
    assert len(made) == 2
