"""The blocks of docs/agents.md: how the server is added, its tools, and a call with its answer."""

import json
from typing import Any

from tokonomics.guarded.worker import answer
from tokonomics.mcp.serve import HOST, PATH, PORT
from tokonomics.mcp.server import INSTRUCTIONS, Toolbox, document_of, headline, work_of

CALL = ("fit", {"model": "llama-3.1-70b", "gpu": "H100", "tp": 4, "context": "32k"})


def stdio_config() -> str:
    return _json({"mcpServers": {"tokonomics": {"command": "tokonomics", "args": ["mcp"]}}})


def http_config() -> str:
    return _json({"mcpServers": {"tokonomics": {"type": "http", "url": f"http://{HOST}:{PORT}{PATH}"}}})


def tools_table() -> str:
    """Every tool, what it answers and what must be said."""
    toolbox = Toolbox()
    lines = ["| tool | answers | must be given |", "|---|---|---|"]
    for name, verb in toolbox.verbs().items():
        needed = ", ".join(f"`{input}`" for input, parameter in toolbox.inputs(verb).items() if parameter.required)
        lines.append(f"| `{name}` | {verb.summary} | {needed or '–'} |")
    return "\n".join(lines)


def instructions() -> str:
    """What the server tells every agent that connects."""
    return f"```text\n{INSTRUCTIONS}\n```"


def called() -> str:
    """A call and its answer, as the agent reads it."""
    tool, arguments = CALL
    toolbox = Toolbox()
    verb = toolbox.find(tool)
    made = answer(work_of(verb, toolbox.asked(verb, arguments)), lambda line: None)
    document = document_of(made["result"], whole=False)
    result = {"content": [{"type": "text", "text": headline(made, document)}], "structuredContent": document}
    return f"{_json({'name': tool, 'arguments': arguments})}\n\n{_json(result)}"


def _json(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
