"""An inference server whose speed follows from its flags: ``python -m tests.operate.slotted --port 8080 --slots 4``.

A request holds one of the slots for as long as ``SERVICE_S`` says, so a server of N slots serves N ÷ that a second: 40,
80, 160, 120 and 40. Prompts are counted in words. It notes its start in a file, and fails as its flags say.
"""

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Semaphore
from typing import Any

SERVICE_S = {1: 0.025, 2: 0.025, 4: 0.025, 8: 8 / 120, 16: 0.4}
STARTED = time.time()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("slotted", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=1, choices=SERVICE_S)
    parser.add_argument("--book", type=Path, required=True, help="where it notes its starts")
    parser.add_argument("--context", type=int, default=4096, help="tokens of a request, at most")
    parser.add_argument("--mute-context", action="store_true", help="say it only to requests that are longer")
    parser.add_argument("--fail-with", type=int, metavar="STATUS")
    parser.add_argument("--dies-with", type=int, metavar="SLOTS", help="after 20 answers, if it has so many slots")
    parser.add_argument("--stalls-with", type=int, metavar="SLOTS", help="never answer, if it has so many slots")
    parser.add_argument("--refuses", type=int, metavar="SLOTS", help="end at once, if it has so many slots")
    parser.add_argument("--hang", action="store_true", help="load for ever")
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = 1 << 16, True  # head and body at once: no wait of 40 ms for an acknowledgement
    asked: argparse.Namespace
    free: Semaphore
    answers = count(1)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(503 if self.asked.hang else 200, b"{}")
        elif self.path == "/metrics":
            self._send(200, f"process_start_time_seconds {STARTED!r}\n".encode())
        elif self.path == "/version":
            self._send(200, b'{"version": "1.2.3"}')
        elif self.path == "/v1/models":
            limit = {} if self.asked.mute_context else {"max_model_len": self.asked.context}
            self._send(200, json.dumps({"data": [{"id": "slotted", **limit}]}).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = sum(len(said["content"].split()) for said in body["messages"])
        tokens = int(body["max_tokens"])
        if self.asked.fail_with:
            return self._send(self.asked.fail_with, b'{"error": {"message": "out of memory"}}')
        if words + tokens > self.asked.context:
            said = f"maximum context length is {self.asked.context} tokens"
            return self._send(400, json.dumps({"error": {"message": said}}).encode())
        if self.asked.stalls_with == self.asked.slots:
            time.sleep(3600)
        with self.free:
            time.sleep(SERVICE_S[self.asked.slots])
        if self.asked.dies_with == self.asked.slots and next(self.answers) > 20:
            sys.stderr.write("RuntimeError: illegal memory access\n")
            sys.stderr.flush()
            os._exit(9)
        return self._send(200, _stream(words, tokens), "text/event-stream")

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def _stream(words: int, tokens: int) -> bytes:
    one: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    last = {"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": tokens}}
    lines = [*[json.dumps(one)] * tokens, json.dumps(last), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main() -> None:
    asked = arguments()
    with asked.book.open("a") as book:
        book.write(f"{asked.slots}\n")
    if asked.refuses == asked.slots:
        sys.exit("ValueError: no kernel for so many slots")
    told = {"asked": asked, "free": Semaphore(asked.slots)}
    Server(("127.0.0.1", asked.port), type("Told", (Handler,), told)).serve_forever()


main()
