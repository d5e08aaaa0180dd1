"""``tokonomics sweep`` as it is typed: the answers of the verb, one row for each point, kept through every end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.command import Call, refusal

import tokonomics.__main__  # registers the verb  # noqa: F401
from tokonomics.sweep import crew
from tokonomics.sweep.points import base_values
from tokonomics.sweep.store import MANIFEST
from tokonomics.sweep.study import prepared

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
CHAT = 'model = "llama-3.1-8b"\nrate = 5\ninput = 1000\noutput = 300\nslo = "ttft_p99=1,tpot_p99=50ms"\nquick = true\n'
CHAT += f'offers = "{OFFERS}"\n'
LONG = 'model = "llama-3.1-8b"\ngpu = "H100"\ninput = 500\noutput = 200\nrequests = 40000\n'
"""Simulated in about a second a point: long enough to be interrupted."""


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.toml"
    path.write_text(CHAT)
    return path


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "results.parquet")


def plain(text: str) -> Any:
    return json.loads(text)


def test_a_sweep_gives_the_plans_of_the_command_line_whoever_computes_them(tokonomics: Call, chat: Path) -> None:
    over, folder = ["--over", "gpu=H100,L4", "--over", "rate=5,20", "--json"], chat.parent / "two.sweep"
    done = tokonomics("sweep", chat, *over, "--jobs", 1)
    both = tokonomics("sweep", chat, *over, "--jobs", 2, "--into", folder)
    assert (done.returncode, both.returncode) == (0, 0), done.stderr
    found = rows(chat.with_suffix(".sweep"))
    assert found.drop("seconds").equals(rows(folder).drop("seconds"))
    assert found.select("over_gpu", "over_rate").rows() == [("H100", 5), ("H100", 20), ("L4", 5), ("L4", 20)]
    for row in found.to_dicts():
        alone = tokonomics("plan", chat, "--gpu", row["over_gpu"], "--rate", row["over_rate"], "--top", 10, "--json")
        assert plain(row["answer"]) == plain(alone.stdout)
        best = plain(alone.stdout)["best"]
        assert (row["usd_per_month"], row["usd_per_mtok"]) == (best["usd_per_month"], best["usd_per_mtok"]["blended"])
        assert (row["gpu"], row["replicas"]) == (best["gpu"], best["replicas"])
    said = plain(done.stdout)
    assert said["best"][0]["usd_per_mtok"] == found["usd_per_mtok"].min()
    assert {each["over_rate"] for each in said["best"]} == {5, 20}
    assert [each["value"] for each in said["values"]["gpu"]] == ["H100", "L4"]


def test_a_list_of_one_is_that_one_in_a_sweep_too(chat: Path) -> None:
    chat.write_text("model = ['llama-3.1-8b']\ngpu = ['H100']\ntp = [2]\n", encoding="utf-8")
    base, unused, profile = base_values(chat, "fit")
    assert (base, unused, profile) == ({"model": "llama-3.1-8b", "gpu": "H100", "tp": 2}, [], None)


def test_what_cannot_be_answered_is_a_row_with_its_reason(tokonomics: Call, chat: Path) -> None:
    done = tokonomics("sweep", chat, "--verb", "predict", "--over", "gpu=H100,H999,T4", "--over", "tp=1")
    assert done.returncode == 0, done.stderr
    found = rows(chat.with_suffix(".sweep"))
    assert found["status"].to_list() == ["ok", "refused", "refused"]
    assert "unknown GPU 'H999'" in found["error"][1]
    assert found["error"][2]
    assert "unknown GPU 'H999'" in done.stdout


def test_want_of_memory_can_be_done_again(tokonomics: Call, chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--verb", "simulate", "--over", "gpu=H100", "--over", "requests=500", "--jobs", 1, "--json"]
    monkeypatch.setenv("TOKONOMICS_MEMORY", "100K")
    tokonomics("sweep", chat, *flags)
    found = rows(chat.with_suffix(".sweep"))
    assert found["status"].to_list() == ["failed"]
    assert "TOKONOMICS_MEMORY allows" in found["error"][0]
    monkeypatch.delenv("TOKONOMICS_MEMORY")
    done = tokonomics("sweep", chat, *flags, "--retry-failed")
    assert done.returncode == 0, done.stderr
    assert rows(chat.with_suffix(".sweep"))["status"].to_list() == ["ok"]


@pytest.mark.parametrize(
    "said", [{}, {"ground": None}, {"ground": {"day": 5}}, {"ground": {}}, {"ground": {"day": "soon"}}]
)
def test_a_manifest_without_its_ground_is_refused(tokonomics: Call, chat: Path, said: Any) -> None:
    (folder := chat.with_suffix(".sweep")).mkdir()
    (folder / MANIFEST).write_text(json.dumps({"schema": 1, **said}))
    assert "--fresh" in refusal(tokonomics, "sweep", chat, "--over", "gpu=H100", "--dry-run", "--json")
    assert tokonomics("sweep", chat, "--over", "gpu=H100", "--dry-run", "--json", "--fresh").returncode == 0


def test_workers_share_what_is_free_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB are free, four fifths of it may be used: 4 GB for each of two; sixteen would not get a gigabyte each."""
    monkeypatch.setattr(crew, "available_bytes", lambda: 10e9)
    assert crew.memory_share(2) == 4_000_000_000
    assert 16 * crew.memory_share(16) <= 8e9
    monkeypatch.setattr(crew, "cores", lambda: 16)
    assert crew.most_workers() == 8
    monkeypatch.setattr(crew, "cores", lambda: 2)
    assert crew.most_workers() == 2
    monkeypatch.setattr(crew, "available_bytes", lambda: 0.0)
    assert crew.most_workers() == 1


def test_the_same_command_does_nothing_again_and_another_everything(tokonomics: Call, chat: Path) -> None:
    over = ["--over", "gpu=H100,L4", "--json", "--jobs", 1, "--verb", "predict", "--by", "ttft_s"]
    first = plain(tokonomics("sweep", chat, *over).stdout)
    again = plain(tokonomics("sweep", chat, *over).stdout)
    assert (first["done_before"], again["done_before"]) == (0, 2)
    assert again["best"] == first["best"]
    more = plain(tokonomics("sweep", chat, "--over", "gpu=H100,L4,GH200", *over[2:]).stdout)
    assert (more["done_before"], more["points"]) == (2, 3)
    chat.write_text(CHAT.replace("llama-3.1-8b", "qwen3-8b"))
    assert plain(tokonomics("sweep", chat, *over).stdout)["done_before"] == 0
    assert plain(tokonomics("sweep", chat, *over, "--fresh").stdout)["done_before"] == 0


def test_a_sweep_goes_on_as_if_it_were_the_day_it_began(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(fresh: bool = False) -> Any:
        return prepared(
            chat, ["gpu=H100"], "plan", random=None, seed=0, into=None, limit="9s", profile=None, fresh=fresh
        )

    began = asked()
    (folder := chat.with_suffix(".sweep")).mkdir()
    ground = {**began.ground, "day": "2026-01-02"}
    (folder / MANIFEST).write_text(json.dumps({"schema": 1, "ground": ground}))
    assert asked().ground["day"] == "2026-11-15"  # TOKONOMICS_TODAY says so
    monkeypatch.delenv("TOKONOMICS_TODAY")
    resumed = asked()
    assert resumed.ground["day"] == resumed.environment["TOKONOMICS_TODAY"] == "2026-01-02"
    assert resumed.points[0].id != began.points[0].id
    assert asked(fresh=True).ground["day"] != "2026-01-02"


def test_a_dry_run_shows_the_points_and_writes_nothing(tokonomics: Call, chat: Path) -> None:
    done = tokonomics("sweep", chat, "--over", "gpu=H100,L4", "--over", "rate=5,10,20", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not chat.with_suffix(".sweep").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--over", "gpu=H100", "--verb", "paln"], "plan"),
        (["--over", "gpu=H100", "--verb", "web"], "unknown verb"),
        (["--over", "gpo=H100"], "Did you mean gpu"),
        ([], "--over"),
        (["--over", "rate=1..50"], "--random"),
        (["--over", "gpu=H100", "--limit", "soon"], "--limit"),
        (["--over", "gpu=H100", "--memory", "0"], "--memory"),
        (["--over", "gpu=H100", "--by", "usd_per_moth"], "usd_per_month"),
        (["--over", "gpu=H100", "--chart", "x.doc"], "--chart"),
        (["--over", "gpu=H100", "--into", __file__], "--into"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(tokonomics: Call, chat: Path, flags: list[str], said: str) -> None:
    assert said in refusal(tokonomics, "sweep", chat, *flags)
    assert not (chat.with_suffix(".sweep") / "results.parquet").exists()


def test_without_the_extra_ray_names_it(tokonomics: Call, chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install '.[ray]'" in refusal(tokonomics, "sweep", chat, "--over", "gpu=H100", "--ray", "auto")


def test_a_chart_is_drawn_for_one_key_two_and_three(tokonomics: Call, chat: Path, tmp_path: Path) -> None:
    for number, over in enumerate(
        (["gpu=H100,L4"], ["batch=5,10", "gpu=H100,L4"], ["gpu=H100,L4", "kv=bf16,fp8", "batch=5,9"])
    ):
        flags = [part for text in over for part in ("--over", text)]
        chart = tmp_path / f"{number}.json"
        drawn = ("--verb", "predict", "--by", "ttft_s", "--chart", chart)
        done = tokonomics("sweep", chat, *flags, *drawn, "--jobs", 1, "--fresh")
        assert done.returncode == 0, done.stderr
        spec = plain(chart.read_text())
        (marks,) = spec["datasets"].values()
        assert len(marks) == (2 if number == 0 else 4)


def begun(path: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tokonomics", "sweep", str(path), "--verb", "simulate", *flags]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert made.stderr is not None
    said = []
    for line in made.stderr:
        said.append(line)
        if " points" in line:
            return made
    raise AssertionError("".join(said))


@pytest.mark.explore
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_simulate_sweep_that_is_ended_goes_on_where_it_was(tokonomics: Call, tmp_path: Path, how: int) -> None:
    path = tmp_path / "long.toml"
    path.write_text(LONG)
    flags = ["--over", "rate=1,2,3,4,5,6,7,8", "--json", "--jobs", "2"]
    first = begun(path, *flags)
    first.send_signal(how)
    _, err = first.communicate()
    if how == signal.SIGKILL:
        assert first.returncode == -signal.SIGKILL
    else:
        assert first.returncode == 130
        assert "the same command goes on from there" in err
    done = tokonomics("sweep", path, "--verb", "simulate", *flags)
    assert done.returncode == 0, done.stderr
    assert 1 <= plain(done.stdout)["done_before"] < 8
    whole = tokonomics("sweep", path, "--verb", "simulate", *flags, "--into", tmp_path / "whole.sweep")
    assert plain(whole.stdout)["done_before"] == 0
    assert rows(tmp_path / "long.sweep").drop("seconds").equals(rows(tmp_path / "whole.sweep").drop("seconds"))


@pytest.mark.slow
def test_too_much_memory_or_time_fails_a_point_that_can_be_done_again(tokonomics: Call, tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(LONG)
    flags = ["--verb", "simulate", "--over", "requests=100,4000000", "--over", "rate=5", "--jobs", 1, "--json"]
    tokonomics("sweep", path, *flags, "--memory", 0.1)
    found = rows(tmp_path / "long.sweep")
    assert found["status"].to_list() == ["ok", "failed"]
    assert "memory" in found["error"][1]
    kept = plain(tokonomics("sweep", path, *flags).stdout)
    assert kept["done_before"] == 2
    tokonomics("sweep", path, *flags, "--retry-failed", "--limit", "50ms")
    found = rows(tmp_path / "long.sweep")
    assert found["status"].to_list() == ["ok", "failed"]
    assert "took longer than 0.05 s" in found["error"][1]


def test_a_sweep_without_ray_imports_none(chat: Path) -> None:
    code = "import sys; from tokonomics.__main__ import app; app(sys.argv[1:], standalone_mode=False); "
    code += "print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "sweep", str(chat), "--over", "gpu=H100", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert "ray" not in {name.partition(".")[0] for name in done.stderr.split()}
