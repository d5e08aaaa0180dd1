"""The rules we ship: Prometheus takes them, they ask only for what our page has, and they fire when they should."""

import re
from pathlib import Path
from subprocess import run
from typing import Any

import yaml
from tests.measure.real_prometheus import needs_promtool

from tokonomics.measure.meter.exposition import FAMILIES, text_of, write_files

CASES = Path(__file__).parent / "alert_cases.yml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text_of("tokonomics-rules.yml"))["groups"] for rule in group["rules"]]


@needs_promtool
def test_prometheus_takes_the_rules_and_the_scrape_configuration(tmp_path: Path) -> None:
    write_files(tmp_path)
    for kind, name in (("rules", "tokonomics-rules.yml"), ("config", "prometheus-scrape.yml")):
        checked = run(["promtool", "check", kind, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert f"{len(rules())} rules found" in checked.stdout


@needs_promtool
def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """The cases and the figures they expect are in alert_cases.yml."""
    write_files(tmp_path)
    (tmp_path / "cases.yml").write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    tested = run(["promtool", "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_that_fires() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    fires = {each["alertname"] for case in cases for each in case["alert_rule_test"] if each["exp_alerts"]}
    assert fires == {rule["alert"] for rule in rules() if "alert" in rule}


def test_rules_ask_only_for_metrics_that_we_expose_or_record() -> None:
    known = {family.name for family in FAMILIES} | {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for rule in rules() for name in re.findall(r"\bllm[_:][a-zA-Z0-9_:]+", rule["expr"])}
    assert asked <= known


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "description"}
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
