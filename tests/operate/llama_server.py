"""``llama-server`` as a command for CI: llama.cpp's own server (``xllamacpp``) with a tiny random Llama.

    python -m tests.operate.llama_server --port 8080 --threads 2 --parallel 8 --batch-size 256 --ubatch-size 128

The flags are llama.cpp's, in its spelling, and what it makes of them is its own doing (seen in build 11549): a
``--ubatch-size`` above ``--batch-size`` is clamped to it, and so is a ``--batch-size`` above ``--ctx-size``; a
``--batch-size`` below ``--parallel`` ends the process at its start (an assertion: status −6), and more than 256 slots
or a port in use make it end with status 1. Threads of 0 or less are all cores. Two checks are of llama.cpp's parser,
which this command does without: 0 slots and a model that is no file. The context is split between the slots.

Three faults take the place of the engine: ``--fail-with 500`` answers completions with that status, ``--die-after N``
answers N completions and ends with status 1 at the next, and ``--hang`` says for ever that it loads its model, as
llama.cpp does while it does so. SIGTERM and SIGINT end all of them with status 0, and cut off what is being answered:
this build stops only when the clients of its streams have left, which it feeds no longer.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from tests.measure.tiny_llama import LAYERS, WIDTH, server_settings, write_model

DIES_WITH = 1


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The flags; those after ``--model`` are not llama.cpp's."""
    parser = argparse.ArgumentParser("llama_server", allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-t", "--threads", type=int, default=-1)
    parser.add_argument("-tb", "--threads-batch", type=int, help="as many as --threads if nobody says so")
    parser.add_argument("-np", "--parallel", type=int, default=-1, help="slots; -1: llama.cpp takes 4 of one cache")
    parser.add_argument("-b", "--batch-size", type=int, default=2048)
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512)
    parser.add_argument("-c", "--ctx-size", type=int, default=0, help="tokens of all slots; 0: what the model has")
    parser.add_argument("-lv", "--verbosity", type=int, default=3, help="of the log; 4 says what became of the flags")
    parser.add_argument("-m", "--model", type=Path, help="a random one if nobody names a file")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the random model")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the random model; a head has 16 of it")
    faults = parser.add_mutually_exclusive_group()
    faults.add_argument("--fail-with", type=int, metavar="STATUS")
    faults.add_argument("--die-after", type=int, metavar="REQUESTS")
    faults.add_argument("--hang", action="store_true")
    asked = parser.parse_args(words)
    if asked.parallel == 0:
        parser.error("invalid value for --parallel: 0")
    if asked.model is not None and not asked.model.is_file():
        parser.error(f"failed to open the model {asked.model}")
    return asked


def engine(asked: argparse.Namespace, model: Path) -> Any:
    """llama.cpp's server."""
    import xllamacpp

    params = server_settings(model, asked.port)
    cores = len(os.sched_getaffinity(0))
    threads = asked.threads if asked.threads > 0 else cores
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads if asked.threads_batch is None else max(1, asked.threads_batch)
    params.n_parallel, params.n_ctx = asked.parallel, asked.ctx_size
    params.n_batch, params.n_ubatch = asked.batch_size, asked.ubatch_size
    params.verbosity = asked.verbosity
    return xllamacpp.Server(params)


class Faulty(BaseHTTPRequestHandler):
    """Answers as a server would that is about to fail; ``asked`` says how."""

    protocol_version = "HTTP/1.1"
    asked: argparse.Namespace
    answers = count(1)

    def do_GET(self) -> None:
        if self.asked.hang:
            self._loading()
        elif self.path.endswith("/models"):
            self._say(200, {"object": "list", "data": [{"id": "tiny"}]})
        elif self.path == "/health":
            self._say(200, {"status": "ok"})
        else:
            self._say(404, {"error": {"message": "File Not Found", "code": 404}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.asked.hang:
            self._loading()
        elif self.asked.fail_with is not None:
            self._say(self.asked.fail_with, {"error": {"message": "out of memory", "code": self.asked.fail_with}})
        elif next(self.answers) <= self.asked.die_after:
            self._stream(body)
        else:
            sys.stderr.write("out of memory\n")
            sys.stderr.flush()
            os._exit(DIES_WITH)

    def _loading(self) -> None:
        self._say(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})

    def _say(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(document).encode())

    def _stream(self, body: dict[str, Any]) -> None:
        """As many tokens as were asked for, at once; a byte of the prompt is a token."""
        text = "".join(said["content"] for said in body["messages"]) if "messages" in body else body["prompt"]
        wanted = int(body["max_tokens"])
        one = {"choices": [{"index": 0, "delta": {"content": "x"}, "text": "x", "finish_reason": None}]}
        last = {"choices": [], "usage": {"prompt_tokens": len(text.encode()) + 1, "completion_tokens": wanted}}
        lines = [*[json.dumps(one)] * wanted, json.dumps(last), "[DONE]"]
        self._send(200, "text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Nothing: the caller counts."""


def faulty(asked: argparse.Namespace) -> ThreadingHTTPServer:
    """A plain server in place of llama.cpp's."""
    server = ThreadingHTTPServer(("127.0.0.1", asked.port), type("Asked", (Faulty,), {"asked": asked}))
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def started(asked: argparse.Namespace, random_model: Path) -> Any:
    """The running server or what stands in for it, as long as somebody holds it."""
    if asked.hang or asked.fail_with is not None or asked.die_after is not None:
        return faulty(asked)
    if asked.model is None:
        write_model(random_model, asked.layers, asked.width)
    return engine(asked, asked.model or random_model)


def main() -> int:
    """Serve until told to end; the status if it cannot."""
    asked = arguments()
    ends = {signal.SIGTERM, signal.SIGINT}
    os.environ["GGML_NO_BACKTRACE"] = "1"  # else an assertion that fails starts a debugger, where there is one
    # Threads inherit this: no signal is lost while the server starts, and only this thread hears it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with TemporaryDirectory() as folder:
        try:
            _server = started(asked, Path(folder) / "tiny.gguf")
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"error: {error}\n")
            return DIES_WITH
        signal.sigwait(ends)
    sys.stderr.flush()
    os._exit(0)  # while the server is held: see above


if __name__ == "__main__":
    sys.exit(main())
