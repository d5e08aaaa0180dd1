"""Every test runs on a fixed day, away from the user's own files, and without a network.

Only the simulator's machine code is kept from run to run, in ``.pytest_cache/xdg``: it takes half a minute to compile.
``tokonomics`` calls the command in this process, ``tokonomics_process`` as a user's shell would; both answer with
what a shell sees: exit code, standard output, standard error.

Laws are tried on the same cases in every run, so that a run says something about the change and not about luck, and a
slow machine fails none of them. ``EXPLORE=20`` tries twenty times as many, new ones in every run (``make explore``),
and runs what is marked ``explore``, which is left out otherwise: ``tests/explore.py``.
"""

import gc
import io
import itertools
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from tests.explore import EXPLORE

COLOUR_SWITCHES = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TERMINAL_WIDTH")
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens there, so a child process that asks for the internet is refused at once."""

# Said before a test module is imported: compiled functions ask where their code is kept when they are defined.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "xdg")

settings.register_profile("tokonomics", derandomize=not EXPLORE, deadline=None)
settings.load_profile("tokonomics")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if _is_wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _is_wanted(item)])
    # First, so that one of several workers has them all, with one server and one browser: others take its last tests.
    items[:] = sorted(wanted, key=lambda item: "test_browser_" not in item.nodeid)
    if EXPLORE:
        for law in {_law(item) for item in items if hasattr(_law(item), "hypothesis")}:
            # Hypothesis has no public way to ask for more cases than a law asks for itself.
            asked = law._hypothesis_internal_use_settings
            law._hypothesis_internal_use_settings = settings(asked, max_examples=EXPLORE * asked.max_examples)


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: not to be looked through for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # as the command has it


def _is_wanted(item: pytest.Item) -> bool:
    is_left_out = item.get_closest_marker("explore") is not None
    if not EXPLORE:
        return not is_left_out
    return is_left_out or hasattr(_law(item), "hypothesis") or item.get_closest_marker("law") is not None


def _law(item: pytest.Item) -> Any:
    function = getattr(item, "obj", None)
    return getattr(function, "__func__", function)


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A folder that nobody has used; pytest would look through all that there are to find it a number."""
    base, numbers = tmp_path_factory.mktemp("folders"), itertools.count()

    def made() -> Path:
        folder = base / str(next(numbers))
        folder.mkdir()
        return folder

    return made


@pytest.fixture(autouse=True)
def _a_fixed_day_and_no_files_of_the_user(monkeypatch: pytest.MonkeyPatch, new_folder: Callable[[], Path]) -> None:
    home = new_folder()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-11-15")
    monkeypatch.setenv("TOKONOMICS_CACHE", str(home / "prices"))
    for kind in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    monkeypatch.delenv("TOKONOMICS_CATALOG", raising=False)
    for switch in COLOUR_SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")


def _forget_simulations() -> None:
    """Where what simulates is not loaded, nothing was simulated."""
    if (attempt := sys.modules.get("tokonomics.sizing.attempt")) is not None:
        attempt.forget_simulations()


@pytest.fixture(scope="module", autouse=True)
def _other_files_simulated_nothing() -> None:
    """No file of tests is answered from what another one simulated; within one, that saves a sixth of the time."""
    _forget_simulations()


@pytest.fixture
def simulated_anew() -> Iterator[None]:
    """For a test that changes the simulator: no other test's simulations answer it, and its own answer no other."""
    _forget_simulations()
    yield
    _forget_simulations()


@pytest.fixture(scope="session", autouse=True)
def _verbs_are_put_together_once() -> Iterator[None]:
    """Typer does so at every call, which is most of one that answers quickly (55 of 58 ms)."""
    from typer import Typer, main, testing

    put_together = main.get_command
    made: dict[tuple[int, int, int], tuple[Typer, Any]] = {}

    def once(app: Typer) -> Any:
        verbs = (id(app), len(app.registered_commands), len(app.registered_groups))
        if verbs not in made:
            made[verbs] = app, put_together(app)  # the app as well: no other gets its number
        return made[verbs][1]

    with patch.object(main, "get_command", once), patch.object(testing, "_get_command", once):
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_simulator_is_compiled(request: pytest.FixtureRequest) -> None:
    """Done before the verbs that simulate are tested: the first one to run would say on standard error that it does."""
    simulating = ("simulate", "capacity", "fleet", "plan", "diff", "test_any_")
    if any(word in item.nodeid for item in request.session.items for word in simulating):
        from tokonomics.catalog.engines import find_engine
        from tokonomics.catalog.gpus import find_gpu
        from tokonomics.catalog.load_models import find_model
        from tokonomics.physics.deployment import deploy
        from tokonomics.serving.simulator import simulate
        from tokonomics.traffic.trace import make_trace

        simulate(deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm")), make_trace([0.0], [9], [9]))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine answers; anything else fails the test, whatever the code under test catches."""

    def local(address: object) -> bool:
        host = address[0] if isinstance(address, tuple) else address
        return isinstance(host, str | bytes | None) and host in (
            None, "", "localhost", "::1", "127.0.0.1", b"localhost",
        )  # fmt: skip

    def guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
        def to(sock: socket.socket, address: object) -> Any:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and not local(address):
                pytest.fail(f"a test tried to reach the network: {address}")
            return connect(sock, address)

        return to

    look_up = socket.getaddrinfo

    def local_look_up(host: Any, *args: Any, **options: Any) -> Any:
        if not local(host):
            pytest.fail(f"a test tried to look up {host!r} on the network")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
    monkeypatch.setattr(socket, "getaddrinfo", local_look_up)


@pytest.fixture(scope="session")
def tokonomics() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The installed command, entry point included, run in this process: quick enough for thousands of calls.

    ``env`` adds to the test's environment, ``encoding`` is that of the terminal.
    """
    from typer import main as typer_main

    from tokonomics.__main__ import app
    from tokonomics.cli import main as cli

    verbs = typer_main.get_command(app)
    application = cache(cli.application)  # makes the options of a verb, which takes as long as most refusals

    def call(
        *args: str | Path, env: dict[str, str] | None = None, encoding: str = "utf-8"
    ) -> subprocess.CompletedProcess[str]:
        command = ["tokonomics", *map(str, args)]
        # As the interpreter opens them: output is strict about what it can encode, errors are not.
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
        err = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="", errors="backslashreplace")
        code: object = 0
        built = patch.object(typer_main, "get_command", return_value=verbs)
        known = patch.object(cli, "application", application)
        around = patch.dict(os.environ, env or {})
        with built, known, around, patch.object(sys, "argv", command), redirect_stdout(out), redirect_stderr(err):
            try:
                cli.run()
            except SystemExit as stop:
                code = stop.code or 0
            except Exception:
                traceback.print_exc(file=err)
                code = 1
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        assert isinstance(code, int), f"exit with {code!r} prints it and exits with 1"
        return subprocess.CompletedProcess(command, code, *texts)

    return call


@pytest.fixture
def tokonomics_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python -m tokonomics`` with its own interpreter; ``env`` adds to the test's environment."""

    def call(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        proxies = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": "127.0.0.1,localhost"}
        return subprocess.run(
            [sys.executable, "-m", "tokonomics", *map(str, args)],
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, **proxies, **(env or {})},
            timeout=600,
            check=False,
        )

    return call
