"""What is built is what is in the repository: all of the package, its data and its page, and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

import pytest

from tokonomics import __version__
from tokonomics.serving.compiled import SIMULATOR
from tokonomics.traffic.prefix_reuse import REUSE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tokonomics"

pytestmark = pytest.mark.slow


def build(target: str, source: Path, into: Path) -> Path:
    """With the locked hatchling, in this environment: nothing is downloaded."""
    before = set(into.iterdir()) if into.exists() else set()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)],
        cwd=source, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    (made,) = set(into.iterdir()) - before
    return made


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    ours = {
        f"tokonomics/{path.relative_to(PACKAGE).as_posix()}": sha256(path.read_bytes()).hexdigest()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    built = contents(wheel)
    about = {name for name in built if name.startswith(f"tokonomics-{__version__}.dist-info/")}
    assert {name: digest for name, digest in built.items() if name not in about} == ours
    assert {
        "tokonomics/py.typed", "tokonomics/web/page/index.html", "tokonomics/catalog/data/offers.csv",
        f"tokonomics/serving/{SIMULATOR.shipped.name}", f"tokonomics/traffic/{REUSE.shipped.name}",
    } <= ours.keys()  # fmt: skip
    assert {f"tokonomics-{__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= about


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert contents(build("wheel", source, tmp_path / "again")) == contents(wheel)
    assert {"requirements", "tests", "docs", "benchmarks", "Makefile", "CHANGELOG.md", "SECURITY.md"} <= {
        path.name for path in source.iterdir()
    }


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = Parser().parsestr(archive.read(f"tokonomics-{__version__}.dist-info/METADATA").decode())
        entries = archive.read(f"tokonomics-{__version__}.dist-info/entry_points.txt").decode()
    assert (about["Name"], about["Version"], about["Requires-Python"]) == ("tokonomics", __version__, ">=3.11")
    assert about["License-Expression"] == "Apache-2.0"
    assert "tokonomics = tokonomics.__main__:main" in entries
