"""An inference server on loopback that behaves as told: ``engine.py PORT BEHAVIOUR``.

It does what the path it is asked for says: ``/die/3``, ``/say/LINES/WORD``.
"""

import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn

BEHAVIOUR = sys.argv[2]
HEALTH = {"listed": [404], "failing": [500], "loading": [503, 503, 200], "locked": [401]}.get(BEHAVIOUR, [200])
MODELS = {"failing": 500, "locked": 401}.get(BEHAVIOUR, 200)
asked = 0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - its log


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        global asked
        match self.path.split("/")[1:]:
            case ["health"]:
                status = HEALTH[min(asked, len(HEALTH) - 1)]
                asked += 1
                say(f"health {status}")
            case ["v1", "models"]:
                status = MODELS
            case ["die", code]:
                crash(int(code))
            case ["say", lines, word]:
                for number in range(int(lines)):
                    say(f"{word} {number}")
                status = 200
            case _:
                status = 404
        self.send_response(status)
        self.end_headers()

    def log_message(self, *written: object) -> None:
        pass


def crash(code: int) -> NoReturn:
    """End as vLLM does: the cause stands far above the last line."""
    say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    for number in range(30):
        say(f"  frame {number}")
    say("RuntimeError: see root cause above")
    os._exit(code)


def child(*steps: str) -> None:
    """Fork a process that outlives a polite end; a step says how far it goes away from us."""
    if os.fork():
        return
    if "orphan" in steps and os.fork():
        os._exit(0)
    if "session" in steps:
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"child {os.getpid()}")
    while True:
        time.sleep(60)


def main() -> None:
    say(f"engine {os.getpid()} says {os.environ.get('ENGINE_SAYS')}")
    if BEHAVIOUR == "broken":
        say("ValueError: max_num_batched_tokens (512) is smaller than max_num_seqs (1024)")
        sys.exit(3)
    if BEHAVIOUR == "crashing":
        crash(1)
    if BEHAVIOUR == "silent":
        silent = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        silent.listen(1)
        signal.pause()
    if BEHAVIOUR.startswith("forks"):
        child(*BEHAVIOUR.split("-"))
    if BEHAVIOUR == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


main()
