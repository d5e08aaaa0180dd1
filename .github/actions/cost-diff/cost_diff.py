"""What the changed scenario files of a pull request do to the bill: one comment, kept up to date, and a threshold.

Both sides are planned with the same tool and prices: the files as they are, and as they were at the base commit (in a
worktree of its own, so that logs and price lists beside them are those of then). The comment begins with a marker, by
which the next run finds it again; only comments of bots are taken for ours, since anybody can write the marker.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = "<!-- tokonomics cost-diff -->"
LONGEST = 60_000  # characters; GitHub takes 65,536 (docs.github.com, "Create an issue comment")
PER_PAGE = 100  # the most that GitHub gives
TIMEOUT_S = 30


class Refused(Exception):
    """Why there is no answer, in words for the log."""


@dataclass(frozen=True)
class Change:
    """One scenario: dollars a month before and after, where there is one, and its part of the comment."""

    path: str
    before: float
    after: float
    text: str


def main() -> int:
    try:
        return _told()
    except Refused as refused:
        escaped = str(refused).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        _say(f"::error::{escaped}")
        _withdraw(str(refused))
        return 2


def _withdraw(why: str) -> None:
    """An older comment no longer holds: it says why there is none. Indented, the reason is text whatever is in it."""
    if os.environ.get("COMMENT", "true") != "true":
        return
    said = "\n".join(f"    {line}" for line in why.splitlines())
    try:
        _publish(f"{MARKER}\n### Cost of this change: not known\n\n{said}\n", any_changes=False)
    except (Refused, OSError) as error:
        _say(f"::warning::the comment is not up to date: {type(error).__name__}")


def _told() -> int:
    base = _base()
    changes = _changes(base, os.environ.get("SCENARIOS", "*.toml").split("\n"))
    before, after = (sum(getattr(change, side) for change in changes) for side in ("before", "after"))
    text = comment(changes, before, after)
    _append("GITHUB_STEP_SUMMARY", text)
    _append("GITHUB_OUTPUT", f"change-usd-per-month={after - before:.2f}")
    if os.environ.get("COMMENT", "true") == "true":
        _publish(text, any_changes=bool(changes))
    return _verdict(before, after, os.environ.get("FAIL_ABOVE", ""))


def comment(changes: list[Change], before: float, after: float) -> str:
    """The sum first, then every scenario."""
    if not changes:
        return f"{MARKER}\n### Cost of this change\n\nNo scenario file is changed.\n"
    total = f"{_usd(before)} → {_usd(after)} a month ({_usd(after - before, signed=True)})"
    parts = [f"#### {_code(change.path)}\n\n{change.text}" for change in changes]
    text = f"{MARKER}\n### Cost of this change: {total}\n\n" + "\n\n".join(parts)
    return _cut(text) if len(text) > LONGEST else f"{text}\n"


def _cut(text: str) -> str:
    """The first lines; what they leave open is closed."""
    kept = text[:LONGEST].rpartition("\n")[0]
    fence = "\n```" if len(re.findall(r"^```", kept, re.MULTILINE)) % 2 else ""
    hidden = "\n</details>" * max(0, kept.count("<details>") - kept.count("</details>"))
    return f"{kept}{fence}\n{hidden}\n\n… cut\n"


def _changes(base: str, patterns: list[str]) -> list[Change]:
    chosen = [pattern.strip() for pattern in patterns if pattern.strip()]
    listed = _git("diff", "--name-status", "--no-renames", "-z", base, "HEAD", "--", *chosen).split("\0")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder) / "base"
        _git("worktree", "add", "--quiet", "--detach", str(then), base)
        try:
            for status, path in zip(listed[::2], listed[1::2], strict=False):
                change = _change(status, path, then)
                if change:
                    found.append(change)
        finally:
            _git("worktree", "remove", "--force", str(then))
    return found


def _change(status: str, path: str, then: Path) -> Change | None:
    """One file; None for TOML that is no scenario on either side, such as a project's own settings."""
    old, new = then / path, Path.cwd() / path
    was, read = status != "A" and _is_scenario(_toml(old)), None if status == "D" else _toml(new)
    if was and status != "D" and read is None:
        raise Refused(f"{path}: was a scenario and cannot be read as TOML any more")
    now = _is_scenario(read)
    if not was and not now:
        return None
    if not now:
        bill = _plan(old)
        return Change(path, bill, 0.0, f"Removed: {_usd(bill)} a month less.")
    if not was:
        bill = _plan(new)
        return Change(path, 0.0, bill, f"New: {_usd(bill)} a month.")
    made = json.loads(_tokonomics("plan", str(old), "--against", str(new), "--format", "json"))
    before, after = (float(made[side]["plan"]["usd_per_month"]) for side in ("before", "after"))
    return Change(path, before, after, made["comment"])


def _is_scenario(read: dict[str, Any] | None) -> bool:
    return read is not None and "model" in read


def _toml(path: Path) -> dict[str, Any] | None:
    """What a file says; None where it is no TOML."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _plan(path: Path) -> float:
    best = json.loads(_tokonomics("plan", str(path), "--json")).get("best")
    if not best:
        raise Refused(f"{path.name}: no offer meets its constraints")
    return float(best["usd_per_month"])


def _tokonomics(*words: str) -> str:
    # Not from the folder one stands in: it is the pull request's, and could have a tokonomics of its own.
    return _run([sys.executable, "-P", "-m", "tokonomics", *words])


def _git(*words: str) -> str:
    return _run(["git", *words])


def _run(command: list[str]) -> str:
    # What reads files of the pull request has no need of the token.
    environment = {name: value for name, value in os.environ.items() if name != "TOKEN"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise Refused(f"{' '.join(command[-4:])}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _base() -> str:
    """The commit that is compared with, fetched where a shallow clone has it not; where both are known, their fork."""
    named = os.environ.get("BASE") or str(_event().get("pull_request", {}).get("base", {}).get("sha") or "")
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z._/-]{0,200}", named):
        raise Refused("no base commit: run on pull_request, or set base")
    try:
        _git("cat-file", "-e", f"{named}^{{commit}}")
    except Refused:
        _git("fetch", "--quiet", "--depth=1", "origin", named)
    try:
        return _git("merge-base", named, "HEAD").strip()
    except Refused:
        return _git("rev-parse", f"{named}^{{commit}}").strip()


def _event() -> dict[str, Any]:
    path = os.environ.get("GITHUB_EVENT_PATH")
    return dict(json.loads(Path(path).read_text(encoding="utf-8"))) if path else {}


def _publish(text: str, *, any_changes: bool) -> None:
    """Write the comment, or write it anew; none is begun for a pull request that changes no scenario."""
    event = _event()
    number = event.get("number") or event.get("pull_request", {}).get("number")
    if not isinstance(number, int):
        _say("no pull request: no comment")
        return
    at = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    try:
        ours = _our_comment(f"{at}/{number}/comments")
        if ours is not None:
            _api("PATCH", f"{at}/comments/{ours}", {"body": text})
        elif any_changes:
            _api("POST", f"{at}/{number}/comments", {"body": text})
    except urllib.error.HTTPError as error:
        # A pull request from a fork has a token that may only read: the summary has the table.
        if error.code not in (401, 403, 404):
            raise Refused(f"GitHub answered {error.code}") from None
        _say(f"::warning::no comment: GitHub answered {error.code}; the token needs pull-requests: write")


def _our_comment(path: str) -> int | None:
    page = 1
    while listed := _api("GET", f"{path}?per_page={PER_PAGE}&page={page}"):
        for found in listed:
            if str(found.get("body", "")).startswith(MARKER) and found.get("user", {}).get("type") == "Bot":
                return int(found["id"])
        if len(listed) < PER_PAGE:
            return None
        page += 1
    return None


def _api(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    url = os.environ.get("GITHUB_API_URL", "https://api.github.com") + path
    headers = {
        "Authorization": f"Bearer {os.environ['TOKEN']}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "tokonomics",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with _NO_REDIRECTS.open(request, timeout=TIMEOUT_S) as reply:
        return json.loads(reply.read() or b"null")


class _Stay(urllib.request.HTTPRedirectHandler):
    """The token goes to GitHub's API and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


_NO_REDIRECTS = urllib.request.build_opener(_Stay)


def _verdict(before: float, after: float, fail_above: str) -> int:
    """1 where the bill grows by more than was allowed."""
    more = after - before
    if not fail_above.strip():
        return 0
    found = re.fullmatch(r"\$?([0-9]+(?:\.[0-9]+)?)\s*(%?)", fail_above.strip())
    if not found:
        raise Refused(f"fail-above is '{fail_above}': write 10% or 500")
    most = float(found[1]) * (before / 100 if found[2] else 1)
    if more <= most:
        return 0
    _say(f"::error::the bill grows by {_usd(more)} a month, more than {fail_above.strip()}")
    return 1


def _say(line: str) -> None:
    """A line of the job's log, which GitHub reads where it begins with two colons."""
    sys.stdout.write(f"{line}\n")


def _append(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def _usd(amount: float, *, signed: bool = False) -> str:
    sign = "−" if amount < 0 else "+" if signed else ""
    return f"{sign}${abs(amount):,.2f}"


def _code(text: str) -> str:
    """A file name as it is: a back-tick or a line break in it ends nothing."""
    return "`" + re.sub(r"[`\s]+", " ", text) + "`"


if __name__ == "__main__":
    sys.exit(main())
