"""A file is written whole or not at all: also by two at once, on a full disk, and where nothing may be written."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.kill.test_killed_writers import ROOT
from tests.kill.writers import WRITERS

from tokonomics.errors import BadInput
from tokonomics.files import ABANDONED_S, whole, write_text

NOBODY = 65534
FILES = [writer for writer in WRITERS if writer.name not in ("ledger", "library", "sweep")]
"""The ledger holds back what it cannot write (tests/measure), the page's library is kept only where it can be."""


def test_a_file_that_was_there_keeps_its_permissions_and_a_new_one_gets_the_usual(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.txt", tmp_path / "new.txt"
    kept.write_text("old")
    kept.chmod(0o640)
    before = os.umask(0o022)
    try:
        write_text(kept, "new", "kept")
        write_text(new, "new", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["a" * 251 + ".txt", "🙂" * 60 + ".txt", "a." + "🙂" * 60])
def test_a_name_as_long_as_the_system_allows_is_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "all of it", "--out")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "all of it")]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o200])
def test_nobody_may_read_the_unfinished_file_who_may_not_read_the_old_one(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    path.chmod(mode)
    before = os.umask(0)
    try:
        with whole(path, "file") as unfinished:
            others = stat.S_IRWXG | stat.S_IRWXO
            assert unfinished.stat().st_mode & others == mode & others
            unfinished.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_stays_a_link_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "target.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new", "link")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_links_that_go_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(BadInput, match="cannot be written"):
        write_text(tmp_path / "one", "new", "one")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through", "pipe")
    reader.join()
    assert heard == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail() -> None:
        with whole(path, "file") as unfinished:
            unfinished.write_text("ne")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_next_writer_removes_what_a_killed_one_left_long_ago_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    left, young, other, named = (
        tmp_path / name
        for name in (".file.0123456789ab.part.txt", ".file.ba9876543210.part.txt", ".other.0123456789ab.part.txt",
                     ".file.of-mine.part.txt")
    )  # fmt: skip
    for each in (left, young, other, named):
        each.write_text("half")
    long_ago = time.time() - 2 * ABANDONED_S
    for each in (left, other, named):
        os.utime(each, (long_ago, long_ago))
    write_text(path, "new", "file")
    assert set(tmp_path.iterdir()) == {path, young, other, named}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_systems_error_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"tokonomics.files.os.{call}", refuse)
    with pytest.raises(BadInput, match=f"cannot be written: {os.strerror(number)}"):
        write_text(path, "new", "file")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, sys
from pathlib import Path
from tests.kill.writers import BY_NAME
from tokonomics.errors import BadInput
for name in sys.argv[2:]:
    writer, folder = BY_NAME[name], Path(sys.argv[1]) / name
    folder.mkdir()
    writer.write(folder, 1)
    before = sorted(each for each in folder.rglob("*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
    try:
        writer.write(folder, 2)
        print(f"{name}: no refusal")
    except BadInput as refusal:
        reasons = ("File too large", "the disk did not take all of it")
        if not any(f"cannot be written: {why}" in str(refusal) for why in reasons):
            print(f"{name}: {refusal}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if writer.found(folder) != 1 or before != sorted(folder.rglob("*")):
        print(f"{name}: {before} became {sorted(folder.rglob('*'))}")
"""


@pytest.mark.slow
def test_where_no_more_can_be_written_every_writer_says_so_and_the_old_file_stays(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: a write that begins well and then fails."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    names = [file.name for file in FILES]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), *names],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def open_to_all(folder: Path) -> None:
    """A way down to it for whoever has no rights: how many folders there are is pytest's affair."""
    for above in folder.parents:
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & 0o001:
            above.chmod(0o755)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o666, 0o555), (0o444, 0o777)])
def test_where_writing_is_not_allowed_the_old_file_stays(tmp_path: Path, file_mode: int, folder_mode: int) -> None:
    """A copy of this process gives up its rights, which is for good."""
    path = tmp_path / "file.txt"
    path.write_text("old")
    path.chmod(file_mode)
    open_to_all(tmp_path)
    tmp_path.chmod(folder_mode)
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        try:
            write_text(path, "new", "file")
        except BadInput as refused:
            os._exit(0 if os.strerror(errno.EACCES) in refused.what else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tmp_path.chmod(0o755)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


BOTH = """
import sys
from pathlib import Path
from tokonomics.files import write_text
for _ in range(200):
    write_text(Path(sys.argv[1]), sys.argv[2] * 100_000, "file")
"""


@pytest.mark.slow
def test_of_two_that_write_at_once_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "a" * 100_000, "file")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    writers = [subprocess.Popen([sys.executable, "-c", BOTH, str(path), letter], env=env) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"a" * 100_000, "b" * 100_000}
    assert list(tmp_path.iterdir()) == [path]


TWO_METERS = """
import sys
from pathlib import Path
from tests.kill.writers import tick
from tokonomics.errors import BadInput
try:
    for turn in range(1, 40):
        tick(Path(sys.argv[1]), turn)
    print("wrote")
    sys.stdin.read()  # holds the ledger until the other has been refused, however slowly that one starts
except BadInput as refusal:
    assert "another meter is writing to this ledger" in str(refusal)
    print("refused")
"""


@pytest.mark.slow
def test_of_two_meters_on_one_ledger_one_writes_and_the_other_is_refused(tmp_path: Path) -> None:
    from tests.kill.writers import booked

    from tokonomics.measure.meter.ledger import Ledger

    (tmp_path / "meter.db.lock").write_text("somebody's own notes")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with Ledger(tmp_path / "meter.db"):
        command = [sys.executable, "-c", TWO_METERS, str(tmp_path)]
        env = {**os.environ, "PYTHONPATH": path}
        late = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert late.stdout == "refused\n", late.stderr
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    while all(each.poll() is None for each in both):
        time.sleep(0.05)
    assert sorted(each.communicate()[0] for each in both) == ["refused\n", "wrote\n"]
    assert booked(tmp_path) == 39
    assert (tmp_path / "meter.db.lock").read_text() == "somebody's own notes"


def test_every_writer_of_the_product_goes_through_one_module() -> None:
    """Nothing else opens a file to write it: a new writer is added to files.py's users, and to the kill tests."""
    allowed = {
        "files.py": "the one",
        "measure/meter/ledger_file.py": "its lock; SQLite writes the rest",
        "measure/probe/kernels.py": "between processes of one probe, in a temporary folder",
        "cli/main.py": "the null device",
        "sweep/store.py": "its lock",
        "operate/server.py": "what a started server says, as it comes",
        "web/uploads.py": "as they arrive, in a folder that goes with the server",
        "web/pages.py": "into the unfinished file that whole gives",
        "measure/meter/bill.py": "likewise",
        "report/charts/__init__.py": "likewise",
        "machine_code.py": "likewise",
    }
    source = ROOT / "src" / "tokonomics"
    words = (
        ".write_text(", ".write_bytes(", '.open("w', '.open("a', '.open("x', "os.replace(", "mkstemp(",
        "NamedTemp",
    )  # fmt: skip
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if any(word in file.read_text() for word in words) or 'open(os.devnull, "w")' in file.read_text()
    }
    assert found <= set(allowed), found - set(allowed)
