"""The server: lists the tools, and has a worker answer each call; the MCP SDK is imported here and in ``serve`` alone.

A call that is cancelled, or whose client has gone, loses its worker, which stops the work; a fresh one takes its place.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
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
from tokonomics.errors import TokonomicsError
from tokonomics.guarded.worker import LONG_S, home_in_texts, ours
from tokonomics.mcp.tools import INSTRUCTIONS, Toolbox, described, document_of, headline, work_of
from tokonomics.workers import Broken, Pool, Task

Heard = Callable[[int, str], Any]  # takes the number of lines so far and the last of them; awaited


def make_server(toolbox: Toolbox, pool: Callable[[], Pool]) -> Server[Any]:
    """A server of these tools; ``pool`` gives the workers, which are started at the first call."""
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
                    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=toolbox.asks_others(verb)),
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
    """The answer of a worker; ``heard`` takes its progress. Cancelling ends the work."""
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
    """The document, its headline, and the tables of a screen for whoever looks over the agent's shoulder."""
    document = document_of(answer["result"], whole)
    for_people = Annotations(audience=["user"])
    return CallToolResult(
        content=[
            TextContent(text=headline(answer, document)),
            TextContent(text=answer["markdown"], annotations=for_people),
        ],
        structured_content=document,
    )
