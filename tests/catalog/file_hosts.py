"""Servers on loopback with the files that a test gives them, and what each was asked."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body; a status of 0 hangs up."""
MISSING: Answer = (404, {"X-Error-Code": "EntryNotFound"}, b"Entry not found")


@dataclass
class Host:
    """What one server has, by path (a text alone is a page), and what it was asked with."""

    url: str = ""
    files: dict[str, Answer | str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def file_host() -> Iterator[Host]:
    host = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host.asked.append((self.path, self.headers.get("Authorization")))
            found = host.files.get(self.path, MISSING)
            status, headers, body = (200, {}, found.encode()) if isinstance(found, str) else found
            if not status:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    host.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
