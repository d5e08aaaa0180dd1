"""Put changed files on a new branch of a git checkout, and open a pull request or write a patch.

The user's branch, index and files stay as they are: the commit is made in a worktree of its own, in a temporary folder,
from the commit that is checked out. Nothing is pushed unless the command-line tool of the hosting service is there to
open the request, and never by force; nothing is merged or applied. Only these commands run: ``git rev-parse``,
``show``, ``worktree``, ``branch``, ``add``, ``diff``, ``commit``, ``format-patch``, ``remote get-url`` and, if a
request is opened, ``push`` of the new branch to origin, then ``gh pr create`` or ``glab mr create``.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import write_text
from tokonomics.types import Noun

_PATIENCE_S = 120.0  # for a push or a hook (our choice)
_HOSTS = {"gh": "GitHub", "glab": "GitLab"}


class OpenedChange(Noun):
    """A proposal as a branch, a pull request or a patch."""

    name: str
    title: str
    body: str
    files: tuple[str, ...]  # in the checkout, from its root
    branch: str | None = None  # None: only a patch was asked for
    url: str | None = None  # of the pull request
    patch: str | None = None  # the files that were written instead
    body_file: str | None = None
    said: str | None = None  # why no request was opened


def root_of(folder: Path) -> Path:
    """Return the root of the checkout that a folder is in; refuse if it is in none."""
    return Path(_git(folder, "rev-parse", "--show-toplevel"))


def committed(root: Path, file: Path) -> str | None:
    """Return a file's text as of the commit that is checked out; None if it is not in it."""
    with suppress(BadInput, ValueError):
        return _git(root, "show", f"HEAD:{file.resolve().relative_to(root.resolve()).as_posix()}") + "\n"
    return None


def open_change(
    root: Path, name: str, title: str, body: str, files: Mapping[str, str], *, only_patch: bool, patches: Path
) -> OpenedChange:
    """Commit files, by their paths from the root, to a new branch; open a request, or write a patch into ``patches``.

    ``name`` becomes that of the branch and of the patch.
    """
    branch = None if only_patch else f"tokonomics/{name}"
    made = OpenedChange(name=name, title=title, body=body, files=tuple(files), branch=branch)
    with _worktree(root, branch) as tree:
        for path, text in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            write_text(tree / path, text, path)
        _git(tree, "add", "--", *files)
        if not _git(tree, "diff", "--cached", "--name-only"):
            raise BadInput("the checkout has these files as proposed already", field="open_")
        _git(tree, "commit", "--quiet", "-m", title, "-m", "Proposed by tokonomics levers.")
        if branch is not None:
            tool = _tool(root)
            why = _no_tool() if tool is None else None
            if tool is not None:
                url, why = _requested(tree, tool, branch, title, body)
                if url is not None:
                    return made.model_copy(update={"url": url})
            made = made.model_copy(update={"said": why})
        patch = _git(tree, "format-patch", "-1", "--stdout", "HEAD") + "\n"
    written = {"patch": (f"{name}.patch", patch), "body_file": (f"{name}.md", body)}
    for file, text in written.values():
        write_text(patches / file, text, option("open_", file))
    return made.model_copy(update={field: file for field, (file, _) in written.items()})


@contextmanager
def _worktree(root: Path, branch: str | None) -> Iterator[Path]:
    """Check the present commit out into a temporary folder, on a new branch or none; undo a branch that failed."""
    with TemporaryDirectory(prefix="tokonomics-") as folder:
        tree = Path(folder) / "tree"
        on = ["--detach"] if branch is None else ["-b", branch]
        _git(root, "worktree", "add", "--quiet", *on, str(tree), "HEAD")
        done = False
        try:
            yield tree
            done = True
        finally:
            with suppress(BadInput):
                _git(root, "worktree", "remove", "-f", str(tree))
            if branch is not None and not done:
                with suppress(BadInput):
                    _git(root, "branch", "--quiet", "-D", branch)


def _tool(root: Path) -> str | None:
    """Return the hosting service's tool on this machine: glab for an origin whose address says GitLab, else gh."""
    try:
        origin = _git(root, "remote", "get-url", "origin")
    except BadInput:
        return None
    order = ("glab", "gh") if "gitlab" in origin.lower() else ("gh", "glab")
    return next((tool for tool in order if shutil.which(tool)), None)


def _no_tool() -> str:
    return "neither gh nor glab is here with a remote named origin"


def _requested(tree: Path, tool: str, branch: str, title: str, body: str) -> tuple[str | None, str | None]:
    """Push the branch and open the request; return its address, or why there is none."""
    with TemporaryDirectory(prefix="tokonomics-") as folder:
        file = Path(folder) / "body.md"
        write_text(file, body, "body")
        words = {
            "gh": ["gh", "pr", "create", "--head", branch, "--title", title, "--body-file", str(file)],
            "glab": ["glab", "mr", "create", "--yes", "--source-branch", branch, "--title", title],
        }
        try:
            _git(tree, "push", "--quiet", "origin", branch)
            said = _run([*words[tool], *(["--description", body] if tool == "glab" else [])], tree)
        except BadInput as error:
            return None, error.what
    addresses = [word for word in said.split() if "://" in word]
    return (addresses or [said or _HOSTS[tool]])[-1], None


def _git(folder: Path, *words: str) -> str:
    return _run(["git", *words], folder)


def _run(words: list[str], folder: Path) -> str:
    """Return what a command prints; if it fails, its own last sentence is the error."""
    # No prompts: nobody may be there to answer. Variables of a hook that we run in would name another checkout.
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GH_PROMPT_DISABLED": "1", "LC_ALL": "C"}
    of_hooks = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    env = {name: value for name, value in os.environ.items() if name not in of_hooks}
    try:
        done = subprocess.run(
            words, cwd=folder, env=env | quiet, capture_output=True, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise BadInput(f"{words[0]} is not on this machine", field="open_", fix="Install it.") from None
    except subprocess.TimeoutExpired:
        raise BadInput(f"{' '.join(words[:2])} takes longer than {_PATIENCE_S:.0f} s", field="open_") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "failed")
        raise BadInput(f"{words[0]}: {shorten(said, 200)}", field="open_")
    return done.stdout.rstrip("\n")
