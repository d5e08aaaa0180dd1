"""Dropped files: recognised, limited, kept apart, forgotten."""

import asyncio
import gzip
import json
import shlex
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient

from tokonomics.errors import BadInput
from tokonomics.traffic.prompts import read_prompts
from tokonomics.traffic.sources import MOST_ROWS, TooManyRows
from tokonomics.web.safety import Gate
from tokonomics.web.uploads import TooMuch, TooSlow, Upload, UploadLimits, Uploads, safe_name, sweep

LOG = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{minute:02d}:00.0000000,{100 + minute},{20 + minute}\n" for minute in range(60)
)
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "head_dim": 64,
}  # fmt: skip
Command = Callable[..., subprocess.CompletedProcess[str]]


def upload(page: TestClient, name: str, content: bytes) -> dict[str, Any]:
    reply = page.post("/api/v1/uploads", params={"name": name}, content=content)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def test_a_log_is_recognised_and_its_answer_is_that_of_the_command_line(
    page: TestClient, tokonomics: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = upload(page, "log.csv", LOG.encode())
    assert (kept["kind"], kept["name"], kept["bytes"]) == ("trace", "log.csv", len(LOG))
    made = page.post("/api/v1/answers/trace", json={"file": f"upload:{kept['id']}"}).json()
    assert made["command"] == "tokonomics trace log.csv"
    (tmp_path / "log.csv").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    printed = tokonomics(*shlex.split(made["command"])[1:], "--json")
    assert made["result"] == json.loads(printed.stdout)


def test_a_models_config_is_recognised_and_can_be_asked_about(page: TestClient) -> None:
    kept = upload(page, "config.json", json.dumps(CONFIG).encode())
    assert kept["kind"] == "config"
    made = page.post("/api/v1/answers/curve", json={"model": f"upload:{kept['id']}", "gpu": "L4"})
    assert made.status_code == 200, made.text
    assert made.json()["result"]["max_sequences"] > 1


@pytest.mark.parametrize("name", ["photo.parquet", "log.csv", "a.bin"])
def test_what_is_no_table_is_said_without_a_librarys_words(page: TestClient, name: str) -> None:
    random = np.random.default_rng(3).bytes(3000)
    for content in (random, b"PAR1" + random, b"a,b\n1,2\n" + random):
        kept = upload(page, name, content)
        assert kept["kind"] == "unknown"
        assert kept["why"] in ("is not text", "cannot be read: it is no whole table") or "column" in kept["why"]
        assert "new_columns" not in kept["why"]


def test_lengths_may_come_from_an_uploaded_log(page: TestClient) -> None:
    id = upload(page, "log.csv", LOG.encode())["id"]
    load = {"rate": 1, "input": f"trace:upload:{id}", "output": 50}
    inputs = {"what": "llama-3.1-8b", "gpu": "H100", "quick": True, **load}
    made = page.post("/api/v1/answers/plan", json=inputs, params={"charts": False})
    assert made.status_code == 200, made.text
    assert "trace:log.csv" in made.json()["command"]


def test_an_unknown_table_tells_its_columns_and_first_rows(page: TestClient) -> None:
    kept = upload(
        page, "mine.csv", b"when,in,out,text\n" + b"".join(b"%d,10,5,%s\n" % (n, b"x" * 99) for n in range(9))
    )
    table = kept["table"]
    assert table["columns"] == ["when", "in", "out", "text"]
    assert [row[0] for row in table["rows"]] == ["0", "1", "2", "3", "4"]
    assert len(table["rows"][0][3]) == 40
    guesses = {field["name"]: field["guess"] for field in table["fields"] if field["required"]}
    assert guesses == {"arrival": "when", "input": "in", "output": "out"}
    assert page.get(f"/api/v1/uploads/{kept['id']}/table").json() == table
    asked = {"file": f"upload:{kept['id']}", "columns": "arrival=when,input=in,output=out"}
    assert page.post("/api/v1/answers/trace", json=asked).json()["result"]["requests"] == 9


def test_a_known_log_has_columns_to_look_at_and_a_model_has_none(page: TestClient) -> None:
    log = upload(page, "log.csv", LOG.encode())
    assert log["table"] is None
    assert "ContextTokens" in page.get(f"/api/v1/uploads/{log['id']}/table").json()["columns"]
    text = upload(page, "holiday.txt", b"not a log\n")
    assert text["table"] is None
    assert page.get(f"/api/v1/uploads/{text['id']}/table").status_code == 422
    assert page.get("/api/v1/uploads/none/table").status_code == 422


@pytest.mark.parametrize(
    "content", [b"\x00" * 999, b"PAR1" + b"\xff" * 200 + b"PAR1", b"\x1f\x8b\x08junk", b"{" * 9999]
)
def test_rubbish_is_an_unknown_file_and_breaks_nothing(page: TestClient, content: bytes) -> None:
    for name in ("x.json", "x.parquet", "x.csv.gz", "x.jsonl"):
        assert upload(page, name, content)["kind"] == "unknown"


@pytest.mark.parametrize(
    ("name", "kept"),
    [("../../etc/passwd", "passwd"), ("..\\..\\boot.ini", "boot.ini"), ("/etc/cron.d/x", "x"), (".bashrc", "bashrc"),
     ("a b\x00c\n.csv", "a_b_c_.csv"), ("...", "file"), ("-rf", "rf"), ("x" * 300 + ".jsonl", "x" * 94 + ".jsonl"),
     ("größe.csv", "gr__e.csv"), ("/", "file")],
)  # fmt: skip
def test_a_name_cannot_choose_where_a_file_lies(name: str, kept: str) -> None:
    assert safe_name(name) == kept


def test_no_reply_says_where_a_file_lies(page: TestClient, gate: Gate) -> None:
    id = upload(page, "mine.csv", b"when,in,out\n0,10,5\n")["id"]
    replies = [
        page.post("/api/v1/answers/trace", json={"file": f"upload:{id}"}),
        page.post("/api/v1/answers/curve", json={"model": f"upload:{id}", "gpu": "L4"}),
        page.post("/api/v1/answers/import", json={"files": [f"upload:{id}"]}),
        page.post("/api/v1/answers/cost", json={"tokens_per_second": 9, "gpu": "L4", "offers": f"upload:{id}"}),
    ]
    for reply in replies:
        assert reply.status_code == 422
        assert str(gate.service.uploads.root) not in reply.text


def test_an_uploaded_scenario_cannot_name_files_of_the_server(page: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text(LOG)
    scenario = f'model = "llama-3.1-8b"\ntrace = "{tmp_path}/secret.csv"\nquick = true\n'
    for name in ("scenario.toml", "x.TOML", "config.json.toml"):
        id = upload(page, name, scenario.encode())["id"]
        reply = page.post("/api/v1/answers/plan", json={"what": f"upload:{id}", "quick": True})
        assert reply.status_code == 422
        assert "secret" not in reply.text
    id = upload(page, "config.json", scenario.encode())["id"]
    assert page.post("/api/v1/answers/plan", json={"what": f"upload:{id}", "quick": True}).status_code == 422


def test_a_benchmark_that_states_a_path_as_its_model_learns_nothing(page: TestClient, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    results = json.loads((Path(__file__).parents[1] / "measure" / "results" / "vllm.json").read_text())
    replies = []
    for stated in (tmp_path / "config.json", tmp_path / "absent.json"):  # as long: lines break alike
        content = json.dumps({**results, "model_id": str(stated)}).encode()
        id = upload(page, "vllm.json", content)["id"]
        inputs = {"files": [f"upload:{id}"], "gpu": "L4"}
        reply = page.post("/api/v1/answers/import", json=inputs, params={"charts": False})
        said = reply.text.replace(stated.name, "").replace(id, "").partition('"seconds"')[0]
        replies.append((reply.status_code, said))
    assert replies[0] == replies[1]


def test_a_deleted_file_is_gone(page: TestClient, gate: Gate) -> None:
    id = upload(page, "log.csv", LOG.encode())["id"]
    assert page.post("/api/v1/answers/trace", json={"file": f"upload:{id}"}).status_code == 200
    assert page.delete(f"/api/v1/uploads/{id}").status_code == 204
    assert page.delete(f"/api/v1/uploads/{id}").status_code == 404
    assert page.post("/api/v1/answers/trace", json={"file": f"upload:{id}"}).status_code == 422
    assert not (gate.service.uploads.root / id).exists()


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Logs that are small as they arrive and have more rows than are read."""
    zeros = pl.select(pl.repeat(0, 3_000_000, dtype=pl.Int64).alias("input_tokens"))
    frame = zeros.with_columns(arrival_s=pl.col("input_tokens").cast(pl.Float64), output_tokens="input_tokens")
    file = tmp_path_factory.mktemp("bombs") / "bomb"
    frame.write_parquet(file, compression="zstd")
    text = b"arrival_s,input_tokens,output_tokens\n" + b"0,9,9\n" * 2_500_000
    return {"parquet": file.read_bytes(), "packed": gzip.compress(text, 1)}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("parquet", "bomb.parquet"), ("parquet", "bomb.PARQUET"), ("parquet", "bomb.csv"), ("parquet", "bomb"),
     ("packed", "log.csv.gz"), ("packed", "log.csv"), ("packed", "log.txt.GZ")],
)  # fmt: skip
def test_a_small_file_with_too_many_rows_is_refused_whatever_its_name(
    page: TestClient, bombs: dict[str, bytes], kind: str, name: str
) -> None:
    assert len(bombs[kind]) < 1_000_000
    reply = page.post("/api/v1/uploads", params={"name": name}, content=bombs[kind])
    assert reply.status_code == 422, reply.text
    assert ",000,000 rows" in reply.json()["error"]["what"]


def test_a_line_without_end_is_refused_wherever_it_stands(page: TestClient) -> None:
    """Small as it arrives, and more than a worker's memory when unpacked; the next file is read as if nothing was."""
    rows = b"arrival_s,input_tokens,output_tokens\n" + b"0,9,9\n" * 1000
    content = gzip.compress(rows + b"1" * 100_000_000, 1)
    assert len(content) < 1_000_000
    reply = page.post("/api/v1/uploads", params={"name": "log.csv.gz"}, content=content)
    assert reply.json()["kind"] == "unknown"
    assert "a line without end" in reply.json()["why"]
    assert upload(page, "log.csv.gz", gzip.compress(rows))["kind"] == "trace"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt"])
def test_packed_prompts_with_too_many_rows_are_refused(tmp_path: Path, ending: str) -> None:
    line = {"csv": b"x\n", "jsonl": b'{"prompt":"x"}\n', "txt": b"x\n"}[ending]
    file = tmp_path / f"prompts.{ending}.gz"
    file.write_bytes(gzip.compress((b"prompt\n" if ending == "csv" else b"") + line * 200))
    assert len(read_prompts(file)) == 200, "on the command line all are read"
    limit = MOST_ROWS.set(100)
    try:
        with pytest.raises(TooManyRows):
            read_prompts(file)
    finally:
        MOST_ROWS.reset(limit)


def test_prompts_that_unpack_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokonomics.traffic.prompts.LARGEST_DOCUMENT", 10_000)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"x" * 10_001))
    with pytest.raises(BadInput, match="unpacks to more"):
        read_prompts(tmp_path / "bomb.txt.gz")


def test_an_empty_file_and_one_announced_beyond_the_limit_are_refused(page: TestClient) -> None:
    assert page.post("/api/v1/uploads?name=x", content=b"").status_code == 422
    announced = page.post("/api/v1/uploads?name=x", content=b"x", headers={"content-length": "99999999999"})
    assert announced.status_code == 413


def test_files_that_arrive_together_do_not_pass_the_limit_together() -> None:
    uploads = Uploads(UploadLimits(file_bytes=100, all_bytes=200))

    async def all_at_once() -> list[Any]:
        begun = asyncio.Barrier(5)

        async def slowly() -> AsyncIterator[bytes]:
            yield b"x" * 50
            await begun.wait()
            yield b"x" * 50

        async def send(said: int | None) -> Any:
            try:
                return await uploads.keep("x", slowly(), said)
            except TooMuch as refused:
                await begun.wait()
                return refused

        return await asyncio.gather(*(send(100 if place % 2 else None) for place in range(5)), return_exceptions=True)

    try:
        kept = [each for each in asyncio.run(all_at_once()) if isinstance(each, Upload)]
        assert len(kept) == 2
        assert uploads.drop(kept[0].id)
        assert keep(uploads, b"x" * 100), "what was targeted and came is counted once"
    finally:
        uploads.close()


def test_a_model_is_called_after_its_config_never_after_our_handle(page: TestClient) -> None:
    for named, called in (({"_name_or_path": "acme/Tiny-1B"}, "Tiny-1B"), ({}, "llama")):
        kept = upload(page, "config.json", json.dumps({**CONFIG, **named}).encode())
        assert kept["model"] == called
        made = page.post("/api/v1/answers/curve", json={"model": f"upload:{kept['id']}", "gpu": "L4"})
        assert called in made.json()["title"]
        assert kept["id"] not in json.dumps({**made.json(), "inputs": {}})
    kept = upload(page, "my-model.json", json.dumps(CONFIG).encode())
    made = page.post("/api/v1/answers/curve", json={"model": f"upload:{kept['id']}", "gpu": "L4"})
    assert "my-model" in made.json()["title"]


def test_a_config_that_cannot_be_read_says_why(page: TestClient) -> None:
    missing = {name: value for name, value in CONFIG.items() if name != "hidden_size"}
    kept = upload(page, "config.json", json.dumps(missing).encode())
    assert kept["kind"] == "unknown"
    assert "hidden_size" in kept["why"]
    unknown = upload(page, "config.json", json.dumps({**CONFIG, "model_type": "lama"}).encode())
    assert "lama" in unknown["why"]


async def _sent(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def keep(uploads: Uploads, *parts: bytes, said: int | None = None) -> str:
    return asyncio.run(uploads.keep("log.csv", _sent(*parts), said)).id


def test_files_are_limited_in_size_lines_and_all_together_and_the_oldest_makes_room() -> None:
    uploads = Uploads(UploadLimits(file_bytes=100, all_bytes=150, files=3, rows=10))
    try:
        with pytest.raises(TooMuch):
            keep(uploads, b"x" * 60, b"x" * 60)
        with pytest.raises(TooMuch):
            keep(uploads, b"\n" * 6, b"\n" * 6)
        keep(uploads, b"x" * 90)
        with pytest.raises(TooMuch):
            keep(uploads, b"x" * 90)
        first = keep(uploads, b"x")
        keep(uploads, b"x")
        keep(uploads, b"x")
        keep(uploads, b"x")
        with pytest.raises(BadInput):
            uploads.find(first)
        assert len(list(uploads.root.iterdir())) == 4, "three files and the workers' empty folder: nothing half-written"
    finally:
        uploads.close()
    assert not uploads.root.exists()


def test_what_a_killed_server_left_is_swept_and_what_a_running_one_has_is_not(tmp_path: Path) -> None:
    left = tmp_path / "tokonomics-web-left"
    (left / "id").mkdir(parents=True)
    (left / "id" / "log.csv").write_text(LOG)
    (left / "empty").mkdir(mode=0o500)
    (tmp_path / "tokonomics-web-link").symlink_to(tmp_path)
    other = tmp_path / "another-tool"
    other.mkdir()
    running = Uploads()
    try:
        sweep(tmp_path, young_s=0.0)
        sweep(running.root.parent, young_s=0.0)
        assert not left.exists()
        assert other.exists()
        assert running.empty.exists()
    finally:
        running.close()


def test_old_files_go_without_anybody_asking() -> None:
    uploads = Uploads(UploadLimits(age_s=0.0))
    try:
        begun = set(threading.enumerate())
        id = keep(uploads, b"x")
        with pytest.raises(BadInput):
            uploads.find(id)
        for timer in set(threading.enumerate()) - begun:
            if isinstance(timer, threading.Timer):
                timer.join()
        assert not (uploads.root / id).exists()
    finally:
        uploads.close()


@pytest.mark.parametrize("limits", [UploadLimits(silence_s=0.01), UploadLimits(seconds=0.0)])
def test_a_sender_that_is_silent_or_slow_is_cut_off(limits: UploadLimits) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    uploads = Uploads(limits)
    try:
        with pytest.raises(TooSlow):
            asyncio.run(uploads.keep("x", silent(), 2))
        assert [each.name for each in uploads.root.iterdir()] == ["empty"]
    finally:
        uploads.close()


CERTIFICATE = Path(__file__).parents[1] / "golden" / "tune.json"


def test_a_certificate_is_recognised_and_checked_without_a_server(page: TestClient) -> None:
    kept = upload(page, "tune.json", CERTIFICATE.read_bytes())
    assert (kept["kind"], kept["model"]) == ("certificate", "llama-3.1-8b")
    made = page.post("/api/v1/answers/verify", json={"verify": f"upload:{kept['id']}"}).json()
    assert made["command"] == "tokonomics tune --verify tune.json"
    result = made["result"]
    measured = [trial["measured_rate"] for trial in result["tried"]]
    assert (result["wrong"], result["loads"], result["requests"]) == ([], 4, 80)
    assert result["best_set"]["name"] == "max-sequences=256"
    assert measured[1] == result["rate"] == max(rate for rate in measured if rate)
    assert result["saved_share"] == pytest.approx(1 - measured[0] / measured[1])
    assert [chart["name"] for chart in made["charts"]] == ["The search"]


def test_a_certificate_that_was_changed_is_none(page: TestClient) -> None:
    changed = CERTIFICATE.read_text().replace('"predicted": 8.2', '"predicted": 9.2')
    assert changed != CERTIFICATE.read_text()
    assert upload(page, "tune.json", changed.encode())["kind"] == "unknown"


@pytest.mark.parametrize("name", ["start", "target", "trace"])
def test_the_page_starts_no_server_and_asks_none(page: TestClient, name: str) -> None:
    kept = upload(page, "tune.json", CERTIFICATE.read_bytes())
    asked = {"verify": f"upload:{kept['id']}", name: "http://127.0.0.1:1"}
    refused = page.post("/api/v1/answers/verify", json=asked)
    assert refused.status_code == 422
    assert refused.json()["error"]["what"] == f"unknown input '{name}'"
    assert page.post("/api/v1/answers/tune", json={"start": "true {flags}"}).status_code == 404
    assert page.post("/api/v1/jobs", json={"verb": "tune", "inputs": {}}).status_code == 422
