"""Answer agents: choose which questions are tools, describe what each takes, and let a worker answer each call.

A tool takes the fields of the verb's request, except those that name a file to write: no tool changes anything. Behind
a fence (HTTP), it reads no file and asks no hub either, like the page, and sees only the ledger named at the start. An
agent pays for every character it reads, so a document longer than ``MOST_CHARACTERS`` has its lists cut to their first
entries, and says so.

A call that is cancelled, or whose client has gone, loses its worker, which stops the work; a fresh one takes its place.
The MCP SDK is imported only here and in ``serve``.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    Annotations,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tokonomics import __version__
from tokonomics.errors import BadInput, TokonomicsError, UnknownName, by_name, did_you_mean, shorten
from tokonomics.guarded.inputs import checked_inputs
from tokonomics.guarded.worker import LONG_S, home_in_texts, ours
from tokonomics.questions.request import Kind, Parameters, Request
from tokonomics.questions.scenario import request_of
from tokonomics.questions.scenario_text import command_of, inputs_schema
from tokonomics.questions.verbs import METER_REPORT, Verb, find_verb
from tokonomics.workers import Broken, Pool, Task

TOOLS = (
    "plan", "breakeven", "fit", "predict", "simulate", "levers", METER_REPORT.name, "models", "gpus", "offers", "apis",
)  # fmt: skip
INSTRUCTIONS = """\
What a million LLM tokens costs on rented or owned GPUs, and what to change: computed here, so do not guess.
plan: the cheapest ways to serve a model under latency targets; quick=true answers by a closed form, in seconds.
fit: does it fit a GPU. predict: how long a step takes. simulate: a deployment under traffic. levers: what to change
first. breakeven: host it or call an API. meter_report: what was spent. models, gpus, offers, apis: names and prices.
Keys name their unit: ttft_s is in seconds, usd_per_mtok in US dollars for a million tokens, rate in requests a second.
Where a list was too long to read, "shortened" says how many entries it has; the first ones are given."""
MOST_CHARACTERS = 40_000
"""Limit of a document. A choice: figures are about three characters a token, and Claude Code warns of an answer
above 10,000 tokens and refuses one above 25,000 (MAX_MCP_OUTPUT_TOKENS, its MCP page)."""
_ENTRIES = (1000, 500, 200, 100, 50, 20, 10, 5, 2)  # entries of every list to try; the first that fits is used
_HUB = "hub"  # the only input that makes a tool ask another machine, beside a Prometheus that is named
_SHORTER = 10  # short entries, such as regions, that count as one entry with parts


@dataclass(frozen=True)
class Toolbox:
    """The tools of one server."""

    fenced: bool = False  # whether the ledger is the only file read
    ledger: Path | None = None  # the meter's ledger; None: the user's own, unless fenced
    whole: bool = False  # whether long documents are not cut

    def verbs(self) -> dict[str, Verb]:
        """Return the verbs by the name of their tool."""
        shown = [name for name in TOOLS if name != METER_REPORT.name or self.ledger or not self.fenced]
        return {verb.function_name: verb for verb in map(find_verb, shown)}

    def find(self, tool: str) -> Verb:
        verbs = self.verbs()
        if tool not in verbs:
            raise UnknownName("tool", tool, verbs)
        return verbs[tool]

    def inputs(self, verb: Verb) -> Parameters:
        taken = {name: parameter for name, parameter in verb.parameters.items() if not parameter.writes}
        if not self.fenced:
            return taken
        if verb.name == "models":
            taken["match"] = replace(taken["match"], kind=Kind.PLAIN)  # part of a name, not a file
        return {
            name: parameter for name, parameter in taken.items() if parameter.kind is not Kind.FILE and name != _HUB
        }

    def schema(self, verb: Verb) -> dict[str, Any]:
        return inputs_schema(verb.request, self.inputs(verb))

    def asked(self, verb: Verb, arguments: Mapping[str, Any]) -> Request:
        inputs = self.inputs(verb)
        known = {name: name for name in inputs} | {parameter.key: name for name, parameter in inputs.items()}
        for name in arguments:
            if name not in known:
                fix = did_you_mean(name, known) or f"It takes {', '.join(inputs)}."
                raise BadInput(f"unknown input '{shorten(name)}'", where=verb.function_name, fix=fix)
        given = {known[name]: value for name, value in arguments.items() if value is not None}
        if self.fenced:
            given = checked_inputs(inputs, given, None)
        if verb is METER_REPORT and self.ledger:
            given.setdefault("ledger", str(self.ledger))
        return verb.request.checked(given) if self.fenced else request_of(verb, given)


def described(verb: Verb) -> str:
    about = (verb.request.__doc__ or "").partition("Examples:")[0]
    return by_name(" ".join([verb.summary, *about.split()]))


def work_of(verb: Verb, request: Request) -> dict[str, Any]:
    """Return the work for a worker."""
    command = command_of(verb, request)
    asked = {"verb": verb.name, "call": request.given(), "inputs": {}, "command": command}
    return {"work": "answer", **asked, "parts": ("result", "markdown")}


def document_of(result: Any, whole: bool) -> dict[str, Any]:
    """Return the document that ``--json`` prints, with a list as ``rows``, cut to a readable length."""
    document: dict[str, Any] = result if isinstance(result, dict) else {"rows": result}
    if whole or _length(document) <= MOST_CHARACTERS:
        return document
    for most in _ENTRIES:
        counts: dict[str, int] = {}
        cut: dict[str, Any] = _cut(document, most, "", counts)
        if _length(cut) <= MOST_CHARACTERS:
            break
    return {**cut, "shortened": counts}


def headline(answer: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return the result in one line, and the notes that the reader should see with it."""
    lines = [answer["headline"], *answer["notes"]]
    if counts := document.get("shortened"):
        cut = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
        lines.append(f"Only the first entries are given of: {cut}. All of them: {answer['command']} --json")
    return "\n".join(lines)


def _length(document: object) -> int:
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _cut(value: Any, most: int, at: str, counts: dict[str, int]) -> Any:
    """Cut lists to at most ``most`` entries; ``counts`` receives the full length of those that were cut."""
    if isinstance(value, dict):
        return {key: _cut(part, most, f"{at}.{key}" if at else key, counts) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if not any(isinstance(part, dict | list) for part in value):
        most *= _SHORTER
    if len(value) > most:
        counts[at] = max(len(value), counts.get(at, 0))
    return [_cut(part, most, at, counts) for part in value[:most]]


Heard = Callable[[int, str], Any]  # called with the number of lines so far and the last line; awaited


def make_server(toolbox: Toolbox, pool: Callable[[], Pool]) -> Server[Any]:
    """Return a server of these tools; ``pool`` returns the workers, which start at the first call."""
    home = home_in_texts()

    def refusal(problem: TokonomicsError) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=home.sub("~", str(problem)))], is_error=True)

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(
                    name=name,
                    description=described(verb),
                    input_schema=toolbox.schema(verb),
                    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=_HUB in toolbox.inputs(verb)),
                )
                for name, verb in toolbox.verbs().items()
            ]
        )

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        async def heard(count: int, line: str) -> None:
            await context.session.report_progress(count, message=line)

        try:
            verb = toolbox.find(params.name)
        except TokonomicsError as unknown:
            raise MCPError(INVALID_PARAMS, str(unknown)) from None
        try:
            request = toolbox.asked(verb, params.arguments or {})
            answer = json.loads(await _answered(pool(), work_of(verb, request), heard))
        except TokonomicsError as problem:
            return refusal(problem)
        except Broken as fault:
            return refusal(ours(str(fault)))
        return _result(answer, toolbox.whole)

    return Server(
        "tokonomics", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def _answered(pool: Pool, work: dict[str, Any], heard: Heard) -> bytes:
    """Return a worker's answer; ``heard`` receives its progress. Cancelling ends the work."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def put(line: str | None) -> None:
        with suppress(RuntimeError):  # the server has ended, and with it the loop
            loop.call_soon_threadsafe(lines.put_nowait, line)

    task = Task(work, LONG_S, put)
    task.done.add_done_callback(lambda _: put(None))
    pool.submit(task)
    try:
        count = 0
        while (line := await lines.get()) is not None:
            count += 1
            await heard(count, line)
        return task.done.result()
    finally:
        task.cancel()


def _result(answer: dict[str, Any], whole: bool) -> CallToolResult:
    """Return the document, its headline, and the terminal's tables for a person who watches the agent."""
    document = document_of(answer["result"], whole)
    for_people = Annotations(audience=["user"])
    return CallToolResult(
        content=[
            TextContent(text=headline(answer, document)),
            TextContent(text=answer["markdown"], annotations=for_people),
        ],
        structured_content=document,
    )
