"""Start a user's inference server, wait until it answers, and end it with all its processes.

Between us and the server stands a guard, a small process in a session of its own. It starts the server in another
session, keeps the last part of its output, and ends it when we say so or when we have ended, however that happened:
first SIGTERM, then SIGKILL. On Linux the guard adopts orphans, so it also finds processes that left the server's group;
elsewhere it finds the group alone. The guard writes the log, not we: a server that says much does not slow a load test.

    starting           SIGTERM, grace             SIGKILL
    ───────► answers ─────────────────► left? ──────────────► nothing is left, and the port is free
"""

import multiprocessing
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import FileIO
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokonomics.addresses import BenchTarget, shown_address
from tokonomics.errors import BadInput, TokonomicsError, shorten
from tokonomics.files import make_folder
from tokonomics.workers import how_it_ended, our_python, polite_end

GRACE_S = 20.0  # between SIGTERM and SIGKILL (our choice): answers in flight may end, memory of GPUs is given back
MOST_LOG_BYTES = 32_000_000  # of a server's output on disk (our choice); the newest half of it at least is kept
_ENDED_S = 30.0  # for the system to end killed processes: it first takes back the memory of their GPUs
_FREE_S = 5.0  # for the port to be free afterwards
_POLL_S = 0.2  # between two looks, our choice
_ANSWER_S = 2.0  # for one answer about health
_SHOWN_LINES = 8
_LINE_CHARACTERS = 400
_TAIL_BYTES = 65_536
_PIPE_READS = 16  # of 64 KiB: as much as a pipe of Linux can hold (pipe-max-size, proc(5))

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OF_A_SHELL = {"&&", "||", "|", ";", "&", "<", ">", ">>", "2>&1", "2>", "&>"}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[@-~]")
_CAUSE = re.compile(r"\b[A-Za-z_][\w.]*(?:Error|Exception): \S")
"""A line that says why a Python program ended. vLLM's last line is only "See root cause above" (vllm#26898)."""

_NO_DOOR = (401, 403, 404, 405)  # ``/health`` is unknown or needs a key
_UP = (200, 401, 403)  # a list of models that needs a key is served as well

Told = Callable[[str], None]


class BadCommand(BadInput):
    """Raised when the command that starts a server cannot be run: no set of flags would do better."""


class ServerFailed(TokonomicsError):
    """Raised when a server did not become ready, or could not be ended."""


@contextmanager
def running(
    command: str,
    target: BenchTarget,
    log: Path,
    *,
    patience_s: float = 900.0,
    grace_s: float = GRACE_S,
    doing: Told | None = None,
) -> Iterator["RunningServer"]:
    """Run the server in the block, from when it answers; its output goes to ``log``, and before that to ``log``.1.

    No shell reads the command; it may begin with assignments such as ``CUDA_VISIBLE_DEVICES=0``.
    """
    words, environment = read_command(command)
    _check_free(target)
    with polite_end(), closing(RunningServer(words, environment, target, log, grace_s)) as server:
        server._wait_until_ready(patience_s, doing or (lambda line: None))
        yield server
    if server._left:
        numbers = ", ".join(str(abs(pid)) for pid in sorted(server._left))
        raise ServerFailed(f"processes of the server could not be ended: {numbers}")
    if _holder(target):
        said = f"{_place(target)} is still in use after the server was ended"
        raise ServerFailed(said, fix="A command such as docker run -d leaves the server to others: run it in front.")


def read_command(
    command: str, what: str = "the start command", example: str = "vllm serve MODEL {flags}"
) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command, and the environment with the assignments in front of it."""
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise BadCommand(f"{what} cannot be read: {problem}") from None
    environment = dict(os.environ)
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words:
        raise BadCommand(f"{what} names no program", fix=f"Write for example '{example}'.")
    if shells := _OF_A_SHELL.intersection(words):
        said = f"'{min(shells)}' means something to a shell, and no shell reads the command"
        raise BadCommand(said, fix="Put the line into a script, or write bash -c 'exec …'.")
    return [os.path.expanduser(word) for word in words], environment  # noqa: PTH111 - never raises


class RunningServer:
    """A running server and its output; ``started_s`` tells how long it took until it was ready."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], target: BenchTarget, log: Path, grace_s: float
    ) -> None:
        self._target, self._log, self._grace_s = target, log, grace_s
        self._old_log = _make_empty(log)
        self._told: dict[str, Any] = {}
        self._left: set[int] = set()
        self.pid, self.started_s = 0, 0.0
        self._mark = log.open("rb")
        self._line, there = multiprocessing.Pipe()
        with there:
            self._guard = subprocess.Popen(
                our_python(__name__, f"guard({there.fileno()})"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl+C is for us to answer
            )
        with suppress(OSError):  # it has died, and is found to be gone
            self._line.send((list(words), dict(environment), str(log), str(self._old_log), MOST_LOG_BYTES, grace_s))

    @property
    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        self._listen()
        return not {"ended", "left", "gone"} & self._told.keys()

    def ended_as(self) -> str | None:
        """Return how the server ended by itself, with the cause that its log gives; None if it did not."""
        how = self._how()
        return how and f"the server {how}; its log says: {self._cause() or 'nothing'}"

    def log_tail(self, lines: int = 20) -> list[str]:
        """Return the last lines of the output, also after the server has ended."""
        text = (_end_of(self._old_log) + _end_of(self._log))[-_TAIL_BYTES:]
        whole = text if len(text) < _TAIL_BYTES else text.partition(b"\n")[2]
        return _lines(whole)[-lines:]

    def mark(self) -> None:
        """Remember how far the log goes; it is first marked when the server is ready."""
        self._mark.close()
        self._mark = self._log.open("rb")
        self._mark.seek(0, os.SEEK_END)

    def log_lines_since_mark(self) -> list[str]:
        """Return the lines written since the mark, within the block; of very many the newest.

        The marked file is kept open, so that it is known again under its other name, and its number is not reused.
        """
        place, text, marked = self._mark.tell(), self._mark.read(), os.fstat(self._mark.fileno())
        if not _is_same(self._log, marked):
            text = text + self._mark.read() if _is_same(self._old_log, marked) else _bytes_of(self._old_log)
            text += _bytes_of(self._log)
        self._mark.seek(place)
        return _lines(text)

    def close(self) -> None:
        """End the server and all its processes, and wait until its port is free."""
        try:
            with suppress(OSError):
                self._line.send("end")
            with suppress(subprocess.TimeoutExpired):  # it writes to a disk that does not answer
                self._guard.wait(self._grace_s + _ENDED_S + _ANSWER_S)
            self._guard.kill()
            self._guard.wait()
            self._listen()
            if "left" in self._told:
                self._left = self._told["left"]
            elif self.pid:  # somebody killed the guard
                self._left = end_family(self.pid, None, self._grace_s, lambda: time.sleep(_POLL_S / 4))
        finally:
            self._line.close()
            self._mark.close()
        until = time.monotonic() + _FREE_S
        while self.pid and _holder(self._target) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _wait_until_ready(self, patience_s: float, doing: Told) -> None:
        began, said_s = time.monotonic(), -1
        while not {"began", "failed", "gone"} & self._told.keys():
            self._listen(_ANSWER_S)
        if "failed" in self._told:
            raise BadCommand(self._told["failed"])
        self.pid = self._told.get("began", 0)
        while True:
            if how := self._how():
                raise ServerFailed(f"the server {how} before it was ready", fix=self._excerpt())
            asked, status = _health(self._target, min(_ANSWER_S, patience_s))
            self.started_s = time.monotonic() - began
            if not asked:
                self.mark()
                return
            if self.started_s > patience_s:
                late = f"after {patience_s:g} s the server"
                what = f"answers HTTP {status} to {asked}" if isinstance(status, int) else f"does not answer: {status}"
                raise ServerFailed(f"{late} {what}", where=shown_address(self._target.url), fix=self._excerpt())
            if int(self.started_s) > said_s:
                said_s = int(self.started_s)
                doing(f"the server starts: {said_s} s, at most {patience_s:.0f} s")
            self._listen(_POLL_S)

    def _listen(self, timeout_s: float = 0.0) -> None:
        """Take in what the guard said; wait for it for at most the time given."""
        try:
            while self._line.poll(timeout_s):
                kind, content = self._line.recv()
                self._told[kind], timeout_s = content, 0.0
        except (EOFError, OSError):
            self._told["gone"] = True

    def _how(self) -> str | None:
        """Return how the server ended by itself."""
        self._listen()
        if "ended" in self._told:
            code = self._told["ended"]
            return f"{'was ' * (code < 0)}{how_it_ended(code)}"
        return "lost the process that guards it" if "gone" in self._told and "left" not in self._told else None

    def _cause(self) -> str | None:
        """Return the first line that names an error since the mark, or the last one written."""
        lines = self.log_tail(_TAIL_BYTES) if self._mark.closed else self.log_lines_since_mark() or self.log_tail(1)
        return next((line for line in lines if _CAUSE.search(line)), lines[-1] if lines else None)

    def _excerpt(self) -> str:
        """Return the end of the log, and the cause if it stands further up."""
        last, cause = self.log_tail(_SHOWN_LINES), self._cause()
        if not last:
            return f"It wrote nothing into its log ({self._log})."
        first = [] if cause in last else [f"Its first error: {cause}"]
        return "\n    ".join([*first, f"Its log ({self._log}) ends with:", *last])


def _make_empty(log: Path) -> Path:
    """Make the log an empty file; return the name of the older one that it becomes when it has grown."""
    old = log.with_name(f"{log.name}.1")
    make_folder(log.parent, str(log))
    try:
        old.unlink(missing_ok=True)
        log.write_bytes(b"")
    except OSError as problem:
        raise BadInput(f"cannot be written: {problem.strerror or problem}", where=str(log)) from None
    return old


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it is being renamed, or has no older part
        return b""


def _end_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return opened.read()
    except OSError:
        return b""


def _is_same(file: Path, marked: os.stat_result) -> bool:
    try:
        return os.path.samestat(file.stat(), marked)
    except OSError:
        return False


def _lines(text: bytes) -> list[str]:
    """Return the lines that say something, as they may be shown."""
    plain = (
        _COLOUR.sub("", line).expandtabs().rstrip() for line in re.split(r"[\r\n]+", text.decode(errors="replace"))
    )
    return [shorten(line, _LINE_CHARACTERS) for line in plain if line]


def _place(target: BenchTarget) -> str:
    host, port = _host_and_port(target)
    return f"port {port} on {host}"


def _host_and_port(target: BenchTarget) -> tuple[str, int]:
    parts = urlsplit(target.url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _check_free(target: BenchTarget) -> None:
    """Refuse a port that somebody listens on: some engines would share it without a word (SO_REUSEPORT)."""
    try:
        socket.getaddrinfo(*_host_and_port(target))
    except (OSError, UnicodeError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise BadInput(f"the host of {shown_address(target.url)} is not known: {why}") from None
    if holder := _holder(target):
        fix = "Stop what runs there, or name another port in the command and in the address."
        raise BadCommand(f"{_place(target)} is in use: {holder}", fix=fix)


def _holder(target: BenchTarget) -> str | None:
    """Return what listens on the port; None if it is free."""
    try:
        socket.create_connection(_host_and_port(target), _ANSWER_S).close()
    except OSError:
        return None
    asked, status = _health(target, _ANSWER_S)
    if not asked:
        return "a server is ready there"
    return f"it answers HTTP {status}" if isinstance(status, int) else "something listens there"


def _health(target: BenchTarget, timeout_s: float) -> tuple[str | None, int | str]:
    """Return the path that shows that the server is not ready, None if it is, and its status or why there is none.

    A server that has ``/health`` is judged by it: llama.cpp's lists its models while it still loads them.
    """
    parts = urlsplit(target.models_url)
    base = re.sub(r"(/v[^/]*)?/models$", "", parts.path)
    secure = parts.scheme == "https"
    status: int | str = ""
    for path, ready in ((f"{base}/health", (200, 204)), (parts.path, _UP)):
        line = (HTTPSConnection if secure else HTTPConnection)(*_host_and_port(target), timeout=timeout_s)
        try:
            line.request("GET", f"{path}?{parts.query}" if parts.query else path)
            status = line.getresponse().status
        except (OSError, HTTPException, ValueError) as problem:
            return path, getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        finally:
            line.close()
        if status in ready:
            return None, status
        if status not in _NO_DOOR:
            break
    return path, status


def guard(line_number: int) -> None:
    """Start the server that we are sent, keep its output, and end it when told to or when nobody is there to tell."""
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(polite, lambda number, frame: None)  # unlike SIG_IGN, the server does not inherit this
    _adopt_orphans()
    line = Connection(line_number)
    words, environment, log, old_log, most_bytes, grace_s = line.recv()

    def say(kind: str, content: object) -> None:
        with suppress(OSError):  # nobody is there to hear it
            line.send((kind, content))

    try:
        output = _Output(log, old_log, most_bytes)
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as problem:  # a word with a zero byte is a ValueError
        say("failed", f"cannot run {shorten(words[0])}: {getattr(problem, 'strerror', None) or problem}")
        return
    output.pipes = [process.stdout]
    try:
        say("began", process.pid)
        while not output.keep(_POLL_S, line):
            if process.returncode is None and process.poll() is not None:
                output.keep_rest()
                say("ended", process.returncode)
    finally:
        left = end_family(process.pid, os.getpid(), grace_s, lambda: (output.keep(_POLL_S / 4), process.poll()))
        output.keep_rest()
        say("left", left)


class _Output:
    """What a server writes, and the log of it, which becomes the older one once it has half of what may be kept."""

    def __init__(self, log: str, old_log: str, most_bytes: int) -> None:
        self.pipes: list[Any] = []
        self._log, self._old_log, self._half = log, old_log, most_bytes // 2
        self._file, self._bytes = self._opened(), 0

    def keep(self, timeout_s: float, *lines: Connection) -> bool:
        """Wait for output and keep it; tell whether a line has something to say, and stop waiting if so."""
        ready = wait([*self.pipes, *lines], timeout_s)
        for pipe in self.pipes:
            if pipe in ready:
                if text := os.read(pipe.fileno(), _TAIL_BYTES):
                    self._write(text)
                else:
                    self.pipes = []
        return any(line in ready for line in lines)

    def keep_rest(self) -> None:
        """Keep what the pipe holds, after the server has ended; a child of it may go on writing."""
        for _ in range(_PIPE_READS):
            self.keep(0.0)

    def _write(self, text: bytes) -> None:
        with suppress(OSError):  # a full disk must not stop the server
            if self._bytes and self._bytes + len(text) > self._half:
                Path(self._log).replace(self._old_log)
                self._file.close()
                self._file, self._bytes = self._opened(), 0
            self._bytes += self._file.write(text)

    def _opened(self) -> FileIO:
        return FileIO(self._log, "a")


def end_family(leader: int, guard: int | None, grace_s: float, pause: Callable[[], object]) -> set[int]:
    """End all that the server started, and return the processes that are left: none, if all goes well."""
    left = _family(leader, guard)
    _tell(left, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while (left := _family(leader, guard)) and time.monotonic() < until:
        pause()
    until = time.monotonic() + _ENDED_S
    while left and time.monotonic() < until:
        _tell(left, signal.SIGKILL)
        pause()
        left = _family(leader, guard)
    return left


def _tell(processes: set[int], message: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, message)


def _family(leader: int, guard: int | None) -> set[int]:
    """Return the living processes of the leader's session and those that descend from them or from the guard.

    Without /proc it is the leader's process group, a negative number as kill(2) has it.
    """
    if sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, 0)
            return {-leader}
        return set()
    children: dict[int, list[int]] = {}
    found = [guard] if guard else []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, _, session = stat.read_bytes().rpartition(b")")[2].split()[:4]
            if state not in (b"Z", b"X"):
                pid = int(stat.parent.name)
                children.setdefault(int(parent), []).append(pid)
                found += [pid] if int(session) == leader else []
    family = set(found)
    while found:
        fresh = [pid for pid in children.get(found.pop(), ()) if pid not in family]
        family.update(fresh)
        found += fresh
    return family - {guard}


def _adopt_orphans() -> None:
    """Let processes whose parent has ended become our children, so that none is lost. Linux alone can do that."""
    if sys.platform == "linux":
        import ctypes

        pr_set_child_subreaper = 36  # of <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
