"""What is shipped is named, what is installed is locked and may be used, and nobody calls home."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.release.licences import COMPATIBLE, installed, locked

import tokonomics
from tokonomics import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tokonomics.__file__).parent

GUARDED = """
import importlib, pkgutil, socket, sys

def refuse(*asked, **options):
    raise SystemExit(f"asked the network: {asked}")

def connect(sock, address):
    if sock.family != socket.AF_UNIX:
        refuse(address)

socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""
ON_A_GPU = ("probe.kernels", "probe.transformer")
"""What runs where PyTorch is, which is no dependency: `probe` imports it after it has looked for one."""
IMPORT_ALL = f"""
import tokonomics
for module in pkgutil.walk_packages(tokonomics.__path__, "tokonomics."):
    if not module.name.endswith({("__main__", *ON_A_GPU)}):
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("tokonomics.")]))
"""
RUN = """
from tokonomics.__main__ import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["tokonomics", *line.split()]
    try:
        main()
    except SystemExit as left:
        if left.code:
            sys.exit(f"{line}: {left.code}")
"""
OFFLINE = """\
plan llama-3.1-8b --gpu L4 --rate 1 --input 500 --output 100 --quick
predict --fit llama-3.1-8b --gpu L4
predict llama-3.1-8b --gpu L4 --batch 4
trace azure-conv
simulate --model llama-3.1-8b --gpu L4 --trace azure-conv --to 1m
models llama-3.1
gpus L4
offers --gpu L4
apis gpt-4o --host openai
cost --gpu H100 --gpus 8 --purchase-usd 250k --years 4 --usd-per-kwh 0.12 --host-watts 4600
--doctor
--version
"""
"""A verb of each package; that no other one asks is seen by every other test, which the same guard surrounds
(conftest.py): here it is the interpreter's own, from before the first import."""


def guarded(script: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """In an interpreter in which every way out ends the process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", GUARDED + script],
        input=typed,
        capture_output=True, encoding="utf-8", timeout=600, check=False, env=dict(os.environ),
    )  # fmt: skip


def test_no_module_warns_or_asks_the_network_when_it_is_imported() -> None:
    done = guarded(IMPORT_ALL)
    assert (done.returncode, done.stderr) == (0, "")
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert int(done.stdout) >= len(modules) - 1 - len(ON_A_GPU)


def test_the_guard_sees_who_asks() -> None:
    done = guarded("import urllib.request; urllib.request.urlopen('http://example.invalid')")
    assert done.returncode == 1
    assert "asked the network" in done.stderr


@pytest.mark.slow
def test_no_verb_asks_the_network_unasked() -> None:
    done = guarded(RUN, typed=OFFLINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"tokonomics {__version__}" in done.stdout


def test_all_shipped_data_is_named_in_notice() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    shipped = [
        path
        for path in PACKAGE.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix not in (".py", ".pyi", ".md")
        and path.name != "py.typed"
    ]
    pages = [path for path in shipped if "page" in path.parts]
    assert len(pages) > 20
    assert "src/tokonomics/web/page/" in notice
    # Names that change with every build are named by their folder and ending.
    missing = [
        path.name
        for path in shipped
        if path not in pages
        and not re.search(rf"\b{re.escape(path.name)}\b", notice)
        and f"{path.parent.relative_to(ROOT).as_posix()}/*{path.suffix}" not in notice
    ]
    assert missing == []


def test_nothing_on_the_page_was_copied_from_elsewhere() -> None:
    """What NOTICE says of the page: written here, no library among it."""
    for path in (PACKAGE / "web" / "page").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
            assert not re.search(r"@license|sourceMappingURL|Copyright \(c\)", text, re.I), path.name


def test_every_dependency_may_be_used_with_apache_2() -> None:
    terms = installed()
    assert len(terms) > 40
    assert {name: said for name, said in terms.items() if not COMPATIBLE.search(said)} == {}


@pytest.mark.parametrize("lock", ["run.lock", "dev.lock"])
def test_every_locked_package_has_hashes(lock: str) -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text(encoding="utf-8").strip())
    assert len(blocks) > 40
    for block in blocks:
        assert re.match(r"[\w.\-]+==\S+", block), block.splitlines()[0]
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_lock_holds_every_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=!~\[; ]", each)[0].lower().replace("_", "-") for each in project["dependencies"]}
    assert names <= locked().keys()


def test_the_changelog_begins_with_what_is_unreleased_then_this_version() -> None:
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert next(heading for heading in headings if heading != "Unreleased") == __version__
    assert "Unreleased" not in headings[1:]
