"""What is typed after --over becomes points, in one way only; and a point's id changes with everything it rests on."""

import math
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.errors import BadInput
from tokonomics.questions.scenario import swept_keys
from tokonomics.sweep.points import (
    MOST_POINTS,
    Listed,
    Ranged,
    Tried,
    base_values,
    combined,
    digests,
    drawn,
    grid,
    point_id,
    points_of,
    read_over,
    verb_for,
)

KEYS = ("gpu", "tp", "rate", "slo", "input", "arrivals", "max_price")
WORDS = st.text("abcdefghijklmnop0123456789.", min_size=1, max_size=6).filter(lambda text: ".." not in text)


def test_one_text_may_hold_several_keys() -> None:
    together = read_over(["gpu=H100,H200,tp=1,2,4,rate=5"], KEYS)
    apart = read_over(["gpu=H100,H200", "tp=1,2,4", "rate=5"], KEYS)
    assert together == apart
    assert together["tp"] == Listed(("1", "2", "4"))


def test_semicolons_part_values_that_hold_commas() -> None:
    found = read_over(["slo=ttft_p99=1,tpot_p99=50ms;ttft_p99=2"], KEYS)
    assert found == {"slo": Listed(("ttft_p99=1,tpot_p99=50ms", "ttft_p99=2"))}
    assert read_over(["input=lognormal:mean=800,p99=6000;"], KEYS) == {
        "input": Listed(("lognormal:mean=800,p99=6000",))
    }


def test_a_hyphen_is_an_underscore() -> None:
    assert list(read_over(["max-price=2,3"], KEYS)) == ["max_price"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slo=ttft_p99=1,tpot_p99=50ms", "semicolons"),
        ("gpo=H100", "Did you mean gpu"),
        ("gpu=H100,,H200", "empty"),
        ("gpu=H100,H100", "twice"),
        ("gpu=H100,gpu=H200", "twice"),
        ("gpu", "names no key"),
        ("rate=50..1", "rise"),
        ("rate=1..50,60..70", "range and a list"),
        ("rate=0..5:log", "above 0"),
        ("rate=1..5:exp", "log"),
    ],
)
def test_what_could_be_misread_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_over([text], KEYS)
    assert said in str(refused.value)


@settings(deadline=None)  # a busy machine is no mistake
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), st.lists(WORDS, min_size=1, max_size=4, unique=True), min_size=1))
def test_a_grid_is_every_combination_once(lists: dict[str, list[str]]) -> None:
    over = read_over([f"{key}={';'.join(values)};" for key, values in lists.items()], KEYS)
    made = [tuple(point.items()) for point in grid(over)]
    assert len(set(made)) == len(made) == math.prod(map(len, lists.values()))
    assert all(value in lists[key] for point in made for key, value in point)


def test_too_many_points_are_refused_with_their_number() -> None:
    over = {key: Listed(tuple(map(str, range(400)))) for key in ("rate", "input")}
    with pytest.raises(BadInput, match=r"400 × 400 = 160,000 points; at most 100,000"):
        grid(over)
    with pytest.raises(BadInput, match="at most"):
        next(drawn(over, MOST_POINTS + 1, 0))


def test_a_range_needs_a_random_search() -> None:
    with pytest.raises(BadInput, match="drawn") as refused:
        grid({"rate": Ranged(1, 50, False, True)})
    assert "--random" in str(refused.value)


@settings(deadline=None)  # a busy machine is no mistake
@given(st.integers(0, 2**31), st.booleans())
def test_drawn_values_lie_between_the_ends(seed: int, by_ratio: bool) -> None:
    over = {"rate": Ranged(1, 50, by_ratio, True), "max_price": Ranged(0.5, 4, by_ratio, False)}
    for point in drawn(over, 20, seed):
        assert point["rate"] == str(int(point["rate"]))
        assert 1 <= int(point["rate"]) <= 50
        assert 0.5 <= float(point["max_price"]) <= 4


def test_half_of_a_log_range_lies_below_its_geometric_middle() -> None:
    """Of 2,000 draws from 1..10000:log, the share below 100 is 0.5 within five standard deviations."""
    made = [float(point["rate"]) for point in drawn({"rate": Ranged(1, 10_000, True, False)}, 2_000, 1)]
    assert abs(sum(value < 100 for value in made) / len(made) - 0.5) < 5 * 0.5 / math.sqrt(len(made))


def test_a_longer_search_contains_the_shorter_one() -> None:
    over: dict[str, Tried] = {"rate": Ranged(1, 50, False, True), "gpu": Listed(("H100", "H200"))}
    assert list(islice(drawn(over, 80, 7), 30)) == list(drawn(over, 30, 7))
    assert list(drawn(over, 30, 8)) != list(drawn(over, 30, 7))


def test_a_search_of_few_values_ends_with_all_of_them() -> None:
    made = list(drawn({"gpu": Listed(("A", "B")), "tp": Listed(("1", "2"))}, 50, 0))
    assert len({tuple(point.values()) for point in made}) == len(made) == 4


def test_an_id_changes_with_the_ground_the_values_and_the_files(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("one")
    values = {"trace": str(log), "rate": "5"}
    before = point_id("ground", values, digests(values))
    assert before == point_id("ground", dict(reversed(values.items())), digests(values))
    assert before != point_id("other", values, digests(values))
    assert before != point_id("ground", {**values, "rate": "6"}, digests(values))
    log.write_text("two")
    assert before != point_id("ground", values, digests(values))


def test_a_file_behind_a_prefix_counts_too(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("one")
    values = {"input": f"trace:{log}"}
    before = digests(values)
    log.write_text("two")
    assert before
    assert before != digests(values)


def test_a_file_in_a_folder_of_a_folder_counts_too(tmp_path: Path) -> None:
    """As ServeGen's data lies: a folder for each model, and the tables inside it."""
    table = tmp_path / "m-small" / "deep" / "chunk-0-trace.csv"
    table.parent.mkdir(parents=True)
    table.write_text("one")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    values = {"trace": str(tmp_path)}
    before = digests(values)
    assert before
    assert digests(values) == before
    table.write_text("three")
    assert digests(values) != before
    table.write_text("one")
    table.rename(table.with_name("chunk-1-trace.csv"))
    assert digests(values) != before


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "chat.toml"
    path.write_text('model = "llama-3.1-8b"\nrate = 5\ninput = 1000\noutput = 300\nslo = "ttft_p99=1"\n')
    return path


def test_the_verb_is_the_first_that_has_all_keys() -> None:
    assert verb_for(["gpu=H100", "rate=5"]) == "plan"
    assert verb_for(["gpu=H100,H200,tp=1,2,4,rate=5,10,20"]) == ("plan" if "tp" in swept_keys("plan") else "simulate")


def test_the_same_scenario_is_planned_and_simulated(scenario: Path) -> None:
    for verb in ("plan", "simulate"):
        base, unused, _ = base_values(scenario, verb)
        assert not unused
        asked = combined(verb, base, {"rate": "20", "gpu": "H100"})
        assert (asked["rate"], asked["input"], asked["slo"]) == ("20", 1000, "ttft_p99=1")


def test_swept_traffic_replaces_the_traffic_of_the_scenario(scenario: Path) -> None:
    base, _, _ = base_values(scenario, "plan")
    asked = combined("plan", base, {"trace": "azure-conv"})
    assert "input" not in asked
    assert asked["slo"] == "ttft_p99=1"
    assert "rate" not in combined("plan", base, {"tokens_per_month": "2B"})


def test_a_switch_that_is_off_replaces_nothing(scenario: Path) -> None:
    base, _, _ = base_values(scenario, "plan")
    assert combined("plan", base, {"offline": "false"})["slo"] == "ttft_p99=1"
    assert "slo" not in combined("plan", base, {"offline": "true"})


@pytest.mark.parametrize(("key", "text"), [("max_age", "many"), ("max_price", "cheap"), ("quick", "perhaps")])
def test_a_word_for_a_number_is_refused_before_any_work(scenario: Path, key: str, text: str) -> None:
    base, _, _ = base_values(scenario, "plan")
    with pytest.raises(BadInput, match="must be"):
        points_of(iter([{key: text}]), lambda over: combined("plan", base, over), "ground")
