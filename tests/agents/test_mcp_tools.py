"""Agents ask over MCP: the tools are the requests, the answers those of the command line, and nothing ends the server.

The clients are the SDK's own: in memory, over a process's stdin and stdout, and over HTTP on this machine.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from tokonomics.errors import TokonomicsError
from tokonomics.guarded.worker import guarded_pool
from tokonomics.mcp import server
from tokonomics.mcp.server import MOST_CHARACTERS, TOOLS, Toolbox, document_of, make_server
from tokonomics.memory_budget import can_limit_memory
from tokonomics.questions.request import Kind, Request
from tokonomics.workers import Pool

Command = Callable[..., subprocess.CompletedProcess[str]]
LEDGER = Path(__file__).parents[1] / "measure" / "pages" / "week.db"
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
ENDLESS = {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:50", "requests": 20_000_000,
           "input": "lognormal:mean=500,cv=1", "output": "lognormal:mean=200,cv=1"}  # fmt: skip
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "plan": (
        {"model": "llama-3.1-8b", "rate": 1, "input": "500", "output": 100, "gpu": ["L4"], "provider": "gcp",
         "region": "us-central1", "top": 3, "quick": True},
        "plan llama-3.1-8b --rate 1 --input 500 --output 100 --gpu L4 --provider gcp --region us-central1 --top 3 "
        "--quick",
    ),
    "breakeven": (
        {"model": "llama-3.3-70b", "input": 1000, "output": 300, "quick": True, "gpu": "H100", "provider": "aws",
         "api": "groq:llama-3.3-70b-versatile"},
        "breakeven llama-3.3-70b --input 1000 --output 300 --quick --gpu H100 --provider aws "
        "--api groq:llama-3.3-70b-versatile",
    ),
    "fit": ({"model": "llama-3.1-70b", "gpu": "H100", "tp": 4}, "predict llama-3.1-70b --fit --gpu H100 --tp 4"),
    "predict": ({"model": "llama-3.1-8b", "gpu": "H200", "batch": 64}, "predict llama-3.1-8b --gpu H200 --batch 64"),
    "simulate": (
        {"model": "llama-3.1-8b", "gpu": "H100", "trace": "azure-conv", "to": "1m", "slo": {"ttft_p99": 0.5}},
        "simulate llama-3.1-8b --gpu H100 --trace azure-conv --to 1m --slo ttft_p99=0.5",
    ),
    "levers": (
        {"model": "llama-3.1-8b", "gpu": "L4", "usd_per_hour": 0.8, "rate": 5, "input": 500, "output": 100,
         "slo": "ttft_p99=1", "without": ["hardware", "speculation", "disaggregation"]},
        "levers llama-3.1-8b --gpu L4 --usd-per-hour 0.8 --rate 5 --input 500 --output 100 "
        "--slo ttft_p99=1 --without hardware --without speculation --without disaggregation",
    ),
    "meter_report": (
        {"ledger": str(LEDGER), "since": "2026-11-09", "until": "2026-11-14", "by": "model"},
        f"meter report --ledger {LEDGER} --since 2026-11-09 --until 2026-11-14 --by model",
    ),
    "models": ({"match": "qwen3", "moe": True}, "models qwen3 --moe"),
    "gpus": ({"min_memory": 100}, "gpus --min-memory 100"),
    "offers": ({"gpu": "L4", "provider": "gcp", "region": "us-central1"},
               "offers --gpu L4 --provider gcp --region us-central1"),
    "apis": ({"match": "gpt-4o", "host": "openai"}, "apis gpt-4o --host openai"),
}  # fmt: skip
"""A call of each tool, and the command that asks the same."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One worker for all tests that read files."""
    home = tmp_path_factory.mktemp("agents-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("TOKONOMICS_TODAY", "2026-11-15")
        patch.setenv("TOKONOMICS_CACHE", str(home / "prices"))
        made = guarded_pool(1, 4, None, 4 * 2**30)
    yield made
    made.close()


def asked(
    toolbox: Toolbox, pool: Pool, what: Callable[[Client], Awaitable[Any]], mode: Literal["auto", "legacy"] = "auto"
) -> Any:
    """What a client in memory is answered."""

    async def session() -> Any:
        async with Client(make_server(toolbox, lambda: pool), mode=mode) as client:
            return await what(client)

    return asyncio.run(session())


def call(pool: Pool, tool: str, arguments: dict[str, Any], toolbox: Toolbox | None = None) -> CallToolResult:
    made: CallToolResult = asked(toolbox or Toolbox(), pool, lambda client: client.call_tool(tool, arguments))
    return made


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def test_the_tools_take_what_the_requests_have_and_write_nothing(pool: Pool) -> None:
    listed = asked(Toolbox(), pool, lambda client: client.list_tools()).tools
    assert [tool.name for tool in listed] == [name.replace(" ", "_") for name in TOOLS]
    for tool in listed:
        request = Toolbox().find(tool.name).request
        files = {
            "plan": {"deploy_to", "quote"}, "simulate": {"save"}, "meter_report": {"csv"},
            "levers": {"open_", "take", "deploy_to"},
        }  # fmt: skip
        written = files.get(tool.name, set())
        assert set(tool.input_schema["properties"]) == request.model_fields.keys() - written
        needed = {name for name, field in request.model_fields.items() if field.is_required()}
        assert set(tool.input_schema["required"]) == needed
        assert tool.annotations.read_only_hint
        assert tool.annotations.open_world_hint == ("hub" in tool.input_schema["properties"])
        assert "--" not in tool.description + json.dumps(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        if tool.name in ASKED:
            jsonschema.validate(without_mappings(ASKED[tool.name][0]), tool.input_schema)


def without_mappings(arguments: dict[str, Any]) -> dict[str, Any]:
    """As the schema says them; a request takes names with values and the keys of a file as well."""
    said = {"to": "end"}
    return {said.get(name, name): value for name, value in arguments.items() if not isinstance(value, dict)}


def untimed(document: dict[str, Any]) -> dict[str, Any]:
    """Without how long it took here."""
    return {name: part for name, part in document.items() if name not in ("wall_s", "simulated_requests_per_s")}


@pytest.mark.parametrize(
    "tool", [pytest.param(tool, marks=pytest.mark.slow) if tool == "levers" else tool for tool in ASKED]
)
def test_an_answer_is_the_document_of_the_command_line(tool: str, pool: Pool, tokonomics: Command) -> None:
    arguments, command = ASKED[tool]
    result = call(pool, tool, arguments, Toolbox(whole=True))
    printed = json.loads(tokonomics(*command.split(), "--json").stdout)
    assert not result.is_error, text_of(result)
    document = printed if isinstance(printed, dict) else {"rows": printed}
    assert json.dumps(untimed(result.structured_content)) == json.dumps(untimed(document))


def test_the_text_is_the_headline(pool: Pool) -> None:
    arguments, _ = ASKED["predict"]
    result = call(pool, "predict", arguments)
    step = result.structured_content["decode_step_s"]["mid"] * 1e3
    assert f"a step takes {step:.2f} ms" in text_of(result)


def test_a_long_document_gives_the_first_entries_and_says_how_many_there_are(pool: Pool, tokonomics: Command) -> None:
    result = call(pool, "offers", {"gpu": "H100"})
    rows = json.loads(tokonomics("offers", "--gpu", "H100", "--json").stdout)
    given = result.structured_content["rows"]
    assert len(rows) > len(given) > 10
    assert given == rows[: len(given)]
    assert result.structured_content["shortened"] == {"rows": len(rows)}
    assert f"rows ({len(rows):,})" in text_of(result)
    assert "tokonomics offers --gpu H100 --json" in text_of(result)


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text(max_size=9),
        lambda part: st.lists(part, max_size=60) | st.dictionaries(st.text("abc", max_size=3), part, max_size=9),
        max_leaves=300,
    )
)
def test_a_short_document_is_left_as_it_is(document: object) -> None:
    whole = document if isinstance(document, dict) else {"rows": document}
    if len(json.dumps(whole, ensure_ascii=False)) <= MOST_CHARACTERS:
        assert document_of(document, whole=False) == whole
    assert document_of(document, whole=True) == whole


def test_progress_is_told_while_it_works(pool: Pool) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    arguments, _ = ASKED["plan"]
    asked(Toolbox(), pool, lambda client: client.call_tool("plan", arguments, progress_callback=hear), "legacy")
    assert [progress for progress, _ in heard] == list(range(1, len(heard) + 1))
    assert {"started", "planning"} <= {message for _, message in heard}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_stops_its_worker_and_the_next_is_answered(
    mode: Literal["auto", "legacy"], pool: Pool
) -> None:
    async def session(client: Client) -> tuple[set[int], CallToolResult]:
        began = asyncio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            began.set()

        work = asyncio.ensure_future(client.call_tool("simulate", ENDLESS, progress_callback=hear))
        await began.wait()
        busy = {worker.pid for worker in pool._workers}  # type: ignore[attr-defined]
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return busy, await client.call_tool("fit", ASKED["fit"][0])

    busy, result = asked(Toolbox(), pool, session, mode)
    assert not result.is_error
    assert busy
    assert busy.isdisjoint(worker.pid for worker in pool._workers)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("fit", {"model": "llama-3.1-8b"}, "gpu: is missing"),
        ("fit", {"model": "llama-3.1-8b", "gpu": "H1000"}, "unknown GPU 'H1000'"),
        ("fit", {"model": "llama-3.1-8b", "gpu": "H100", "gpux": 1}, "unknown input 'gpux'"),
        ("fit", {"model": {"a": [1]}, "gpu": "H100"}, "model"),
        ("fit", {"model": "llama-3.1-8b", "gpu": "H100", "tp": "many"}, "tp: must be a whole number"),
        ("plan", {"model": "llama-3.1-8b", "rate": "fast", "input": 1, "output": 1}, "rate"),
        ("simulate", {"model": "llama-3.1-8b", "gpu": "H100", "trace": "no-such.csv"}, "no-such.csv"),
        ("predict", {"model": "llama-3.1-8b", "gpu": "H100", "batch": 10**9}, "batch"),
        ("plan", {"model": "llama-3.1-8b", "deploy_to": "out"}, "unknown input 'deploy_to'"),
    ],
)
def test_a_malformed_call_is_answered_with_what_is_wrong(
    tool: str, arguments: dict[str, Any], said: str, pool: Pool
) -> None:
    result = call(pool, tool, arguments)
    assert result.is_error
    assert said in text_of(result)
    assert "Traceback" not in text_of(result)


def test_a_call_that_takes_too_long_is_stopped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONG_S", 0.5)
    result = call(pool, "simulate", ENDLESS)
    assert result.is_error
    assert "took longer than 0.5 seconds" in text_of(result)


@pytest.mark.skipif(not can_limit_memory(), reason="this system limits no process's memory")
def test_a_call_that_needs_too_much_memory_is_refused() -> None:
    small = guarded_pool(1, 1, None, 150_000_000)
    result = call(small, "simulate", {**ENDLESS, "requests": 100_000_000})
    small.close()
    assert result.is_error
    assert "memory" in text_of(result)


def test_an_unknown_tool_is_an_error_of_the_protocol(pool: Pool) -> None:
    async def session(client: Client) -> None:
        with pytest.raises(MCPError, match="unknown tool 'plans'"):
            await client.call_tool("plans", {})

    asked(Toolbox(), pool, session)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=5,
)


@given(data=st.data(), fenced=st.booleans())
def test_any_arguments_are_a_request_or_a_refusal(data: st.DataObject, fenced: bool) -> None:
    toolbox = Toolbox(fenced=fenced)
    verb = toolbox.find(data.draw(st.sampled_from(sorted(toolbox.verbs()))))
    names = st.sampled_from(sorted(toolbox.inputs(verb))) | st.text(max_size=9)
    try:
        assert isinstance(toolbox.asked(verb, data.draw(st.dictionaries(names, JSON, max_size=4))), Request)
    except TokonomicsError as refused:
        said = str(refused)
        assert said


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.json", "chat.toml", "~/log.csv", "upload:x"])
def test_behind_a_fence_no_tool_takes_a_file(path: str) -> None:
    toolbox, tried = Toolbox(fenced=True), 0
    for verb in toolbox.verbs().values():
        for name, parameter in toolbox.inputs(verb).items():
            assert parameter.kind is not Kind.FILE
            if parameter.kind in (Kind.MODEL, Kind.TRACE):
                tried += 1
                with pytest.raises(TokonomicsError):
                    toolbox.asked(verb, {name: [path] if parameter.is_list else path})
    assert tried > 6


def test_behind_a_fence_no_tool_asks_the_hub(pool: Pool) -> None:
    assert "hub" in Toolbox().schema(Toolbox().find("fit"))["properties"]
    listed = asked(Toolbox(fenced=True), pool, lambda client: client.list_tools()).tools
    assert not any("hub" in tool.input_schema["properties"] for tool in listed)
    assert not any(tool.annotations.open_world_hint for tool in listed)
    refused = call(pool, "fit", {"model": "org/model", "gpu": "H100", "hub": True}, Toolbox(fenced=True))
    assert refused.is_error
    assert "unknown input 'hub'" in text_of(refused)


def test_behind_a_fence_the_ledger_is_the_one_that_was_named(pool: Pool) -> None:
    assert "meter_report" not in Toolbox(fenced=True).verbs()
    toolbox = Toolbox(fenced=True, ledger=LEDGER)
    named = {"since": "2026-11-09", "until": "2026-11-14", "by": "model"}
    result = call(pool, "meter_report", named, toolbox)
    assert result.structured_content == call(pool, "meter_report", {**named, "ledger": str(LEDGER)}).structured_content
    assert call(pool, "meter_report", {**named, "ledger": str(LEDGER)}, toolbox).is_error


def test_over_stdio_an_agent_names_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "chat.toml").write_text('model = "llama-3.1-8b"\ngpu = "L4"\n')
    env = {**os.environ, "PYTHONPATH": str(Path(server.__file__).parents[2])}  # the client hands on none unasked
    started = StdioServerParameters(command=sys.executable, args=["-m", "tokonomics", "mcp"], cwd=tmp_path, env=env)

    async def session() -> list[CallToolResult]:
        async with Client(started) as client:
            named = await client.call_tool("fit", {"model": "config.json", "gpu": "H100"})
            return [named, await client.call_tool("fit", {"model": "chat.toml", "gpu": "L40S", "context": 2048})]

    named, scenario = asyncio.run(session())
    assert not named.is_error, text_of(named)
    assert named.structured_content["fits"]
    assert (scenario.structured_content["gpu"], scenario.structured_content["context"]) == ("L40S", 2048)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of ``tokonomics mcp --http``."""
    command = [sys.executable, "-u", "-m", "tokonomics", "mcp", "--http", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", process.stdout.readline())
        assert found
        yield found[0]
        process.terminate()


def test_over_http_the_same_is_answered_and_no_file_read(address: str, tokonomics: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    async def session() -> list[CallToolResult]:
        async with Client(address) as client:
            assert "meter_report" not in [tool.name for tool in (await client.list_tools()).tools]
            found = await client.call_tool("fit", ASKED["fit"][0])
            return [found, await client.call_tool("fit", {"model": str(tmp_path / "config.json"), "gpu": "H100"})]

    found, refused = asyncio.run(session())
    printed = tokonomics(*ASKED["fit"][1].split(), "--json").stdout
    assert found.structured_content == json.loads(printed)
    assert refused.is_error
    assert "unknown model" in text_of(refused)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 400),
    ],
)
def test_another_sites_page_is_turned_away(address: str, headers: dict[str, str], status: int) -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(address, ping, {**usual, **headers})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == status


def test_without_the_sdk_it_says_how_to_get_it(tokonomics: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tokonomics.mcp.server")
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    done = tokonomics("mcp")
    assert done.returncode == 2
    assert "pip install '.[mcp]'" in done.stderr
