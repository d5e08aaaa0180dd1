"""The action on pull requests, as a runner would start it: a made repository, and GitHub's API on loopback."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "cost-diff"
HOURS_PER_MONTH = 730
OFFERS = """provider,region,instance,gpu,gpus,usd_per_hour,vcpus,memory_gb,date,source
ours,us,one,{gpu},1,{price},16,128,2026-10-01,a quote
"""
SCENARIO = """model = "llama-3.1-8b"
rate = 1
input = 500
output = 100
offers = "{offers}"
quick = true
"""


@dataclass
class Forge:
    """GitHub's comments of one pull request."""

    url: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    refuses: int = 0

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.refuses and method != "GET":
            return self.refuses, {"message": "Resource not accessible by integration"}
        if method == "GET":
            page = int(path.rpartition("page=")[2])
            return 200, self.comments[100 * (page - 1) : 100 * page]
        if method == "POST":
            assert path == "/repos/us/app/issues/7/comments"
            self.comments.append({"id": 1000 + len(self.comments), "user": {"type": "Bot"}, **body})
            return 201, self.comments[-1]
        (found,) = [comment for comment in self.comments if path == f"/repos/us/app/issues/comments/{comment['id']}"]
        found.update(body)
        return 200, found


@pytest.fixture
def forge() -> Iterator[Forge]:
    made = Forge()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            made.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
            status, told = made.answer(self.command, self.path, body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _reply  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Repository:
    """A repository with a pull request: what it is against, and what it changes."""

    folder: Path
    base: str = ""

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, **files: str | None) -> str:
        for name, text in files.items():
            path = self.folder / name.replace("__", "/").replace("_toml", ".toml").replace("_csv", ".csv")
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "repository"
    folder.mkdir()
    made = Repository(folder)
    made.git("init", "-q", "-b", "main")
    made.base = made.commit(
        dear_csv=OFFERS.format(gpu="H100-SXM", price=4), cheap_csv=OFFERS.format(gpu="H100-SXM", price=3),
        plans__chat_toml=SCENARIO.format(offers="../cheap.csv"), pyproject_toml="[project]\nname = 'app'\n",
    )  # fmt: skip
    return made


def run(repository: Repository, forge: Forge, **inputs: str) -> tuple[int, str, str]:
    """The exit code, what the log says, and the job's summary."""
    event = repository.folder.parent / "event.json"
    event.write_text(json.dumps({"number": 7, "pull_request": {"number": 7, "base": {"sha": repository.base}}}))
    summary, output = repository.folder.parent / "summary.md", repository.folder.parent / "output"
    summary.write_text("")
    output.write_text("")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository.folder.parent),
        "PYTHONPATH": str(ROOT / "src"),
        "GITHUB_API_URL": forge.url,
        "GITHUB_REPOSITORY": "us/app",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
        "TOKEN": "a-token",
        **{name.upper(): value for name, value in inputs.items()},
    }
    command = [sys.executable, "-P", str(ACTION / "cost_diff.py")]
    done = subprocess.run(
        command, cwd=repository.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, summary.read_text() + output.read_text()


def test_one_comment_is_written_and_then_kept_up_to_date(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml=SCENARIO.format(offers="../dear.csv"), pyproject_toml="[project]\nname = 'b'\n")
    forge.comments = [{"id": 5, "user": {"type": "User"}, "body": "<!-- tokonomics cost-diff --> not ours"}]
    code, _, summary = run(repository, forge)
    assert code == 0
    # One machine at $3, then at $4 an hour, for 730 hours a month.
    body = forge.comments[1]["body"]
    assert body.startswith(
        "<!-- tokonomics cost-diff -->\n### Cost of this change: $2,190.00 → $2,920.00 a month (+$730.00)"
    )
    assert "#### `plans/chat.toml`" in body
    # By today's clock: the action asks for the day itself.
    assert re.search(r"> \[!WARNING\]\n> \*\*Costs \$730\.00 a month more \(33 %\); price [\d.]+ \w+ old\.\*\*", body)
    assert "| $ a month | $2,190 | $2,920 | +33 % |" in body
    assert "pyproject" not in body
    assert body in summary
    assert f"change-usd-per-month={1 * HOURS_PER_MONTH:.2f}" in summary
    # The next push finds the comment again, whoever else has written in between.
    repository.commit(dear_csv=OFFERS.format(gpu="H100-SXM", price=2))
    forge.comments[1:1] = [{"id": 10 + place, "user": {"type": "User"}, "body": "hm"} for place in range(150)]
    assert run(repository, forge)[0] == 0
    ours = [comment for comment in forge.comments if comment["user"]["type"] == "Bot"]
    assert len(ours) == 1
    assert "$2,190.00 → $1,460.00 a month (−$730.00)" in ours[0]["body"]
    assert "> [!TIP]" in ours[0]["body"]
    assert [method for method, _, _ in forge.asked if method != "GET"] == ["POST", "PATCH"]
    assert {token for _, _, token in forge.asked} == {"Bearer a-token"}
    assert forge.comments[0]["body"].endswith("not ours")
    assert repository.git("worktree", "list").count("\n") == 0


@pytest.mark.parametrize(("fail_above", "code"), [("30%", 1), ("34%", 0), ("729", 1), ("$730", 0), ("", 0)])
def test_it_fails_above_the_threshold_and_only_then(fail_above: str, code: int) -> None:
    """From $2,190 to $2,920: $730 more, a third."""
    assert script()._verdict(2190.0, 2920.0, fail_above) == code


def test_a_threshold_that_is_none_fails_and_the_comment_is_made(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml=SCENARIO.format(offers="../dear.csv"))
    code, said, _ = run(repository, forge, fail_above="much")
    assert code == 2
    assert "::error::" in said
    assert len(forge.comments) == 1


def test_new_and_removed_scenarios_count(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml=None, new_toml=SCENARIO.format(offers="dear.csv"))
    assert run(repository, forge)[0] == 0
    body = forge.comments[0]["body"]
    assert "New: $2,920.00 a month." in body
    assert "Removed: $2,190.00 a month less." in body


def test_a_scenario_that_is_no_toml_fails_and_the_comment_says_so(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml="model = [\n")
    forge.comments = [{"id": 5, "user": {"type": "Bot"}, "body": "<!-- tokonomics cost-diff -->\n$1 a month"}]
    code, said, _ = run(repository, forge)
    assert code == 2
    assert "plans/chat.toml: was a scenario and cannot be read" in said
    (ours,) = forge.comments
    assert ours["body"].startswith("<!-- tokonomics cost-diff -->\n### Cost of this change: not known")
    assert "    plans/chat.toml: was a scenario" in ours["body"]
    assert "$1 a month" not in ours["body"]


def script() -> Any:
    """The action's program, as a module."""
    found = importlib.util.spec_from_file_location("cost_diff", ACTION / "cost_diff.py")
    assert found
    assert found.loader
    made = importlib.util.module_from_spec(found)
    sys.modules["cost_diff"] = made  # its dataclass looks itself up there
    found.loader.exec_module(made)
    return made


def test_what_it_starts_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a-token")
    assert script()._run([sys.executable, "-c", "import os; print(os.environ.get('TOKEN'))"]).strip() == "None"


def test_a_comment_that_is_cut_leaves_nothing_open() -> None:
    made = script()
    long = "<details>\n<summary>All</summary>\n\n```\n" + "a line of it\n" * 6000 + "```\n</details>\n"
    text = made.comment([made.Change("a.toml", 1.0, 2.0, long)], 1.0, 2.0)
    assert len(text) < 65_536
    assert text.endswith("\na line of it\n```\n\n</details>\n\n… cut\n")


@pytest.mark.explore
def test_a_token_that_may_only_read_costs_the_comment_alone(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml=SCENARIO.format(offers="../dear.csv"))
    forge.refuses = 403
    code, said, summary = run(repository, forge)
    assert code == 0
    assert "::warning::no comment: GitHub answered 403" in said
    assert "+$730.00" in summary
    forge.refuses = 500
    assert run(repository, forge)[0] == 2


def test_nothing_is_said_of_a_pull_request_that_changes_no_scenario(repository: Repository, forge: Forge) -> None:
    repository.commit(pyproject_toml="[project]\nname = 'c'\n")
    code, _, summary = run(repository, forge)
    assert (code, forge.comments) == (0, [])
    assert "No scenario file is changed." in summary


def test_a_scenario_with_a_mistake_is_told_as_one(repository: Repository, forge: Forge) -> None:
    repository.commit(plans__chat_toml='model = "no-such-model"\nrate = 1\ninput = 5\noutput = 5\n')
    code, said, _ = run(repository, forge)
    assert code == 2
    assert re.search(r"::error::.*no-such-model", said)
    assert "\n" not in said.strip()


def test_the_action_is_pinned_and_lets_nothing_of_a_pull_request_into_its_scripts() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert not any("${{" in step.get("run", "") for step in steps)
    installs = [line.split() for step in steps for line in step.get("run", "").splitlines() if " install " in line]
    assert len(installs) == 2
    assert {"--require-hashes", "--only-binary"} <= set(installs[0])
    assert installs[0][-1] == '"$tool/requirements/run.lock"'
    assert {"--no-deps", "--no-build-isolation"} <= set(installs[1])
    read = set(
        re.findall(r"environ(?:\.get\(|\[)[\"']([A-Z_]+)", (ACTION / "cost_diff.py").read_text(encoding="utf-8"))
    )
    given = set(steps[-1]["env"])
    assert given <= read
    assert all(name in given or name.startswith("GITHUB_") for name in read), read
