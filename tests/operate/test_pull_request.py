"""A change becomes a branch and a request, or a patch; the user's own branch and files stay as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.operate.pull_request import OpenedChange, committed, open_change, root_of

FILES = {"chat.toml": "kv = 'fp8'\n", "deploy/start.sh": "#!/bin/sh\n"}
FAKE = """#!{python}
import json, os, sys
words = sys.argv[1:]
body = open(words[words.index("--body-file") + 1]).read() if "--body-file" in words else None
with open({log!r}, "w") as file:
    json.dump({{"words": words, "body": body, "in": os.getcwd()}}, file)
if {fails}:
    sys.exit("could not create: no permission")
print("https://example.com/team/repo/pull/7")
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def nobody_elses_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs this, and only git itself on the path."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    where = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    (bin_folder / "git").symlink_to(where)
    monkeypatch.setenv("PATH", str(bin_folder))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for name, value in (("user.name", "A User"), ("user.email", "user@example.com")):
        git(folder, "config", name, value)
    (folder / "chat.toml").write_text("kv = 'bf16'\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Begin")
    (folder / "chat.toml").write_text("kv = 'bf16'  # an edit of mine\n")  # not committed, as work in progress is not
    return folder


def with_origin(repo: Path, name: str = "origin.git") -> Path:
    origin = repo.parent / name
    git(repo.parent, "init", "--quiet", "--bare", str(origin))
    git(repo, "remote", "add", "origin", str(origin))
    return origin


def with_tool(repo: Path, tool: str, fails: bool = False) -> Path:
    log = repo.parent / f"{tool}.json"
    path = repo.parent / "bin" / tool
    path.write_text(FAKE.format(python=sys.executable, log=str(log), fails=fails))
    path.chmod(0o755)
    return log


def opened(repo: Path, only_patch: bool = False, patches: Path | None = None) -> OpenedChange:
    return open_change(
        repo, "kv-2026-11-19", "Use fewer bits", "It **saves** money.\n", FILES, only_patch=only_patch,
        patches=patches or repo,
    )  # fmt: skip


def as_it_is(repo: Path) -> tuple[str, ...]:
    """What of a checkout is the user's: the branch, the index, the files and the stash."""
    asked = ("symbolic-ref HEAD", "rev-parse HEAD", "diff", "diff --cached", "stash list", "worktree list")
    return tuple(git(repo, *words.split()) for words in asked)


def test_with_gh_the_branch_is_pushed_and_the_request_opened(repo: Path) -> None:
    origin, log, before = with_origin(repo), with_tool(repo, "gh"), as_it_is(repo)
    made = opened(repo)
    assert made.url == "https://example.com/team/repo/pull/7"
    assert made.patch is None
    said = json.loads(log.read_text())
    assert said["words"][:2] == ["pr", "create"]
    assert said["words"][said["words"].index("--head") + 1] == "tokonomics/kv-2026-11-19"
    assert said["words"][said["words"].index("--title") + 1] == "Use fewer bits"
    assert said["body"] == "It **saves** money.\n"
    for place in (origin, repo):
        assert git(place, "show", "tokonomics/kv-2026-11-19:chat.toml") == "kv = 'fp8'"
        assert git(place, "show", "--name-only", "--format=", "tokonomics/kv-2026-11-19").split() == [*FILES]
    assert git(repo, "rev-parse", "tokonomics/kv-2026-11-19^") == git(repo, "rev-parse", "main")
    assert as_it_is(repo) == before
    assert git(repo, "status", "--short") == "M chat.toml"


def test_an_origin_on_gitlab_takes_glab(repo: Path) -> None:
    with_origin(repo, "gitlab.git")
    others, log = with_tool(repo, "gh"), with_tool(repo, "glab")
    assert opened(repo).url
    said = json.loads(log.read_text())["words"]
    assert said[:2] == ["mr", "create"]
    assert said[said.index("--description") + 1] == "It **saves** money.\n"
    assert not others.exists()


def test_without_a_tool_nothing_is_pushed_and_a_patch_is_written_that_applies(repo: Path) -> None:
    origin, before = with_origin(repo), as_it_is(repo)
    made = opened(repo)
    assert git(origin, "branch") == ""
    assert made.branch == "tokonomics/kv-2026-11-19"
    assert made.said is not None
    assert made.said.startswith("neither gh nor glab")
    assert (repo / str(made.body_file)).read_text() == "It **saves** money.\n"
    assert as_it_is(repo) == before
    git(repo, "stash", "--quiet")  # the edit touches the same line
    git(repo, "apply", "--check", str(made.patch))
    git(repo, "am", "--quiet", str(made.patch))
    assert (repo / "deploy" / "start.sh").read_text() == "#!/bin/sh\n"


def test_a_patch_alone_leaves_no_branch(repo: Path) -> None:
    with_origin(repo)
    with_tool(repo, "gh")
    before, branches = as_it_is(repo), git(repo, "branch")
    made = opened(repo, only_patch=True)
    assert (made.branch, made.url) == (None, None)
    assert git(repo, "branch") == branches
    assert as_it_is(repo) == before
    assert "+kv = 'fp8'" in (repo / str(made.patch)).read_text()


def test_what_the_tool_refuses_is_said_and_the_patch_written(repo: Path) -> None:
    with_origin(repo)
    with_tool(repo, "gh", fails=True)
    made = opened(repo)
    assert made.url is None
    assert made.said == "gh: could not create: no permission"
    assert (repo / str(made.patch)).exists()


def test_a_branch_that_is_there_is_never_overwritten(repo: Path) -> None:
    git(repo, "branch", "tokonomics/kv-2026-11-19")
    there, before = git(repo, "rev-parse", "tokonomics/kv-2026-11-19"), as_it_is(repo)
    with pytest.raises(BadInput, match="already exists"):
        opened(repo)
    assert git(repo, "rev-parse", "tokonomics/kv-2026-11-19") == there
    assert as_it_is(repo) == before


def test_files_that_are_as_proposed_are_no_change(repo: Path) -> None:
    (repo / "deploy").mkdir()
    for name, text in FILES.items():
        (repo / name).write_text(text)
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "As proposed")
    with pytest.raises(BadInput, match="as proposed already"):
        opened(repo)
    assert git(repo, "branch") == "* main"


def test_a_commit_that_a_hook_refuses_leaves_no_branch(repo: Path) -> None:
    hook = repo / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'error: no ticket in the message' >&2\nexit 1\n")
    hook.chmod(0o755)
    before = as_it_is(repo)
    with pytest.raises(BadInput, match="no ticket in the message"):
        opened(repo)
    assert git(repo, "branch") == "* main"
    assert as_it_is(repo) == before


def test_outside_a_checkout_git_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a git repository") as caught:
        root_of(tmp_path)
    assert caught.value.field == "open_"


def test_the_committed_text_is_without_the_users_edits(repo: Path) -> None:
    assert committed(repo, repo / "chat.toml") == "kv = 'bf16'\n"
    assert committed(repo, repo / "none.toml") is None
    assert root_of(repo) == repo.resolve()
