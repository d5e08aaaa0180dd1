"""Read the user's command that starts a server, and fill in flags, checkpoint and port."""

import re
import shlex
import socket
from collections.abc import Sequence

from tokonomics.addresses import BenchTarget, target
from tokonomics.operate.server import BadCommand

_PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "llama-server": "llama.cpp", "llama_server": "llama.cpp",
             "trtllm-serve": "tensorrt-llm"}  # fmt: skip
_PORTS = {"vllm": 8000, "sglang": 30_000, "llama.cpp": 8080, "tensorrt-llm": 8000}
"""Where each listens unless told otherwise: their own help texts."""


def engine_in(words: Sequence[str]) -> str:
    """Return the engine that a command starts, by the name of its program or module; vLLM if none is known."""
    for word in words:
        for part in re.split(r"[/.]", word):
            if part in _PROGRAMS:
                return _PROGRAMS[part]
    return "vllm"


def template(command: str) -> list[str]:
    """Return the words of a command in which a word of its own says where flags go."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadCommand(f"the start command cannot be read: {error}") from None
    if "{flags}" not in words:
        where = "within a word" if "{flags}" in command else "nowhere"
        fix = "Write {flags} at its end, as a word of its own."
        raise BadCommand(f"the start command says {where} where flags go", fix=fix)
    return words


def filled(command: str, flags: Sequence[str], engine: str, checkpoint: str) -> tuple[BenchTarget, str]:
    """Return where the server will listen, and its command with flags, model and port filled in."""
    words = template(command)
    given = re.search(r"--port[= ](\d+)", command)
    port = int(given[1]) if given else _PORTS.get(engine, 8000)
    if "{port}" in command:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    whole: list[str] = []
    for word in words:
        filled_in = word.replace("{port}", str(port)).replace("{model}", checkpoint)
        whole += list(flags) if word == "{flags}" else [filled_in]
    return target(f"http://127.0.0.1:{port}"), shlex.join(whole)
