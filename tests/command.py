"""The command as the ``tokonomics`` fixture calls it: its answer as data, or the message that it refuses with."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tokonomics.__main__ import app
from tokonomics.errors import TokonomicsError, flag

Call = Callable[..., subprocess.CompletedProcess[str]]


def run(*words: str) -> Result:
    """The command in this process, with whatever it raised."""
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> str:
    """The message of the error that it raised."""
    done = run(*words)
    assert isinstance(done.exception, TokonomicsError), done.output
    return done.exception.message(flag)


def answer(call: Call, *args: str | Path) -> Any:
    """What ``--json`` prints, which has to be JSON by the book."""
    done = call(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def refusal(call: Call, *args: str | Path) -> str:
    """The message, in one line."""
    done = call(*args)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def on_a_terminal(*args: str) -> bytes:
    """What a terminal hears on standard error; a pipe hears nothing there, and both get the same answer."""
    command = [sys.executable, "-m", "tokonomics", *args]
    piped = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=600)
    assert piped.stderr == ""
    seen: list[bytes] = []
    master, slave = pty.openpty()

    def listen() -> None:
        with suppress(OSError):  # what the other end says when it hangs up
            while heard := os.read(master, 65536):
                seen.append(heard)

    listener = threading.Thread(target=listen)
    listener.start()
    env = {**os.environ, "TERM": "xterm"}
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, env=env, check=True, timeout=600)
    os.close(slave)
    listener.join(timeout=600)
    os.close(master)
    assert shown.stdout.decode() == piped.stdout
    return b"".join(seen)
