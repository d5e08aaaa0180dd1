"""doctor says what is there, what is old and what is broken, and nothing of whose machine it is."""

import csv
import datetime as dt
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.command import Call

from tokonomics.catalog.offers import COLLECTED, SNAPSHOT
from tokonomics.questions import doctor

TODAY = dt.date(2026, 11, 15)


def seen(tokonomics: Call, code: int = 0) -> dict[str, dict[str, Any]]:
    done = tokonomics("doctor", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["works"] is (code == 0)
    return {check["name"]: check for check in found["checks"]}


def test_a_fresh_installation_works(tokonomics: Call) -> None:
    checks = seen(tokonomics)
    assert {check["state"] for check in checks.values()} == {"ok", "note"}
    shown = tokonomics("doctor")
    assert shown.returncode == 0
    assert "All that is needed works." in shown.stdout
    assert all(name in shown.stdout for name in checks)


def test_prices_are_as_old_as_their_file_says(tokonomics: Call) -> None:
    ages = []
    for prices in (SNAPSHOT, COLLECTED):
        with prices.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) for _ in row["region"].split("|")]
        ages += [(TODAY - dt.date.fromisoformat(row["date"])).days for row in rows]
    found = seen(tokonomics)["GPU prices"]
    assert found["facts"] == {
        "offers": len(ages),
        "newest_days": min(ages),
        "oldest_days": max(ages),
        "stale": sum(age > 90 for age in ages),
    }
    assert "offers --refresh" in found["fix"]


def test_refreshed_prices_are_told_from_the_shipped_ones(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path.home() / "prices"
    folder.mkdir()
    header, row = "provider,region,instance,gpu,gpus,usd_per_hour,date,source", "aws,us,p5,H100,8,50,2026-11-10,mine"
    (folder / "offers.csv").write_text(f"{header}\n{row}\n", encoding="utf-8")
    prices = seen(tokonomics)["GPU prices"]
    assert prices["state"] == "ok"
    assert prices["seen"] == "1 offer refreshed, in ~/prices/offers.csv, 5 to 5 days old"


@pytest.mark.parametrize(
    ("name", "text", "check"), [("catalog.toml", "[gpus\n", "catalogue"), ("profile.json", "{}", "profile")]
)
def test_a_broken_file_of_ones_own_is_named(
    tokonomics: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, check: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG" if check == "catalogue" else "TOKONOMICS_PROFILE", str(tmp_path / name))
    broken = seen(tokonomics, code=1)[check]
    assert broken["state"] == "broken"
    assert name in broken["facts"]["where"]


def test_a_ledger_that_is_none_is_broken_and_kept(tokonomics: Call) -> None:
    from tokonomics.measure.meter.ledger_file import default_ledger

    path = default_ledger()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, but 100 bytes of something else".ljust(100))
    broken = [name for name, check in seen(tokonomics, code=1).items() if check["state"] == "broken"]
    assert broken in (["meter"], ["ledger"])
    assert path.read_bytes().startswith(b"not a database")


def test_a_ledger_of_another_shape_is_no_traceback(tokonomics: Call) -> None:
    from tokonomics.measure.meter.ledger_file import APPLICATION, SCHEMA, default_ledger

    path = default_ledger()
    path.parent.mkdir(parents=True)
    book = sqlite3.connect(path)
    book.execute(f"PRAGMA application_id={APPLICATION}")
    book.execute(f"PRAGMA user_version={SCHEMA}")
    book.execute("CREATE TABLE marks (target TEXT)")
    book.commit()
    book.close()
    assert "Move it away" in seen(tokonomics, code=1)["meter"]["fix"]


def test_a_package_that_does_not_import_is_broken(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "a_package_that_nobody_wrote"))
    checks = seen(tokonomics, code=1)
    assert checks["a_package_that_nobody_wrote"]["state"] == "broken"
    assert "numpy" in checks["packages"]["facts"]


def test_a_check_that_fails_does_not_hide_the_others(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise() -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("tokonomics.catalog.api_hosts.list_apis", surprise)
    checks = seen(tokonomics, code=1)
    assert checks["api prices"]["seen"] == "ZeroDivisionError: of all things"
    assert checks["machine"]["state"] == "ok"


def test_memory_is_what_work_may_take(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a container its own, not the machine's; and a limit that was stated, right or wrong."""
    monkeypatch.setattr(doctor, "given_bytes", lambda: 8e9)
    monkeypatch.setattr(doctor, "available_bytes", lambda: 3e9)
    assert "8 GB of memory, 3 GB free" in seen(tokonomics)["machine"]["seen"]
    monkeypatch.setenv("TOKONOMICS_MEMORY", "2G")
    assert seen(tokonomics)["machine"]["facts"]["allowed_bytes"] == 2_000_000_000
    monkeypatch.setenv("TOKONOMICS_MEMORY", "lots")
    wrong = seen(tokonomics, code=1)["machine"]
    assert (wrong["state"], wrong["fix"]) == ("broken", "Such as 8G or 500M.")


def test_gpus_of_this_machine_are_found_in_the_catalogue(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [SimpleNamespace(name="NVIDIA H100 80GB HBM3"), SimpleNamespace(name="NVIDIA Abacus")]
    monkeypatch.setattr("tokonomics.measure.meter.readings.read_nvml", lambda at: cards[:1])
    assert seen(tokonomics)["GPU here"]["seen"].startswith("NVIDIA H100 80GB HBM3: H100")
    monkeypatch.setattr("tokonomics.measure.meter.readings.read_nvml", lambda at: cards[1:])
    assert seen(tokonomics)["GPU here"]["state"] == "note"


def test_nothing_tells_whose_machine_it_is(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path.home() / "my" / "catalog.toml"
    own.parent.mkdir()
    own.write_text("", encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(own))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    for done in (tokonomics("doctor"), tokonomics("doctor", "--json")):
        assert "~/my/catalog.toml" in done.stdout
        assert str(Path.home()) not in done.stdout
        assert "sk-very-secret" not in done.stdout


def test_completion_is_found_where_the_installer_puts_it(tokonomics: Call) -> None:
    assert seen(tokonomics)["completion"]["state"] == "note"
    script = Path.home() / ".zfunc" / "_tokonomics"
    script.parent.mkdir()
    script.write_text("", encoding="utf-8")
    assert seen(tokonomics)["completion"]["seen"] == "installed for zsh"


def test_code_of_other_versions_is_counted(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "tokonomics"
    monkeypatch.setattr("tokonomics.serving.compiled.code_folder", lambda: home / "compiled-now")
    for name in ("compiled-now", "compiled-before", "compiled-long-ago"):
        (home / name).mkdir(parents=True)
        (home / name / "loop.nbi").write_bytes(bytes(3_000_000))
    simulator = seen(tokonomics)["simulator"]
    assert simulator["facts"] == {"other_versions": 2, "other_bytes": 6_000_000}
    assert "2 other versions, 6 MB" in simulator["seen"]
    assert str(home / "compiled-*") in simulator["fix"]


def test_a_folder_counts_as_writable_when_a_file_was_written(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    folder = seen(tokonomics)["cache folder"]
    assert folder["state"] == "note"
    assert "cannot be written" in folder["seen"]
    assert "No space left on device" in folder["seen"]


def test_little_room_is_noted(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(tokonomics)["cache folder"]["state"] == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    folder = seen(tokonomics)["cache folder"]
    assert folder["state"] == "note"
    assert "0 B free" in folder["seen"]
    assert folder["fix"]


def test_extras_are_installed_as_the_readme_says() -> None:
    root = Path(__file__).parents[2]
    files = [*(root / "src").rglob("*.py"), *(root / "docs").glob("*.md"), root / "README.md"]
    assert [file.name for file in files if "tokonomics[" in file.read_text(encoding="utf-8")] == []
