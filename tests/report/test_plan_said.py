"""What a plan's screen says beside its figures: legends, marks, savings, memories, images."""

import json
from functools import cache

import pytest
from tests.planner.small_catalogue import OFFERS, SLOS, asked

import tokonomics
from tokonomics.planner.plan import study
from tokonomics.planner.plan_answer import Candidate, Catch, Plan, SetAside
from tokonomics.planner.vary import Headroom
from tokonomics.report.plan_pick_view import _more_kv, set_aside_lines, split_legend, tiers_text
from tokonomics.report.plan_view import _room, ranking
from tokonomics.report.terminal import Terminal
from tokonomics.report.wording import thinking_facts
from tokonomics.serving.class_outcome import in_the_mean
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.workload import USUAL_SHARE, parse_thinking
from tokonomics.units import seconds, seconds_apart

LOAD = load_of_shape(40, "const:1000", "const:300")


@cache
def planned() -> Plan:
    return study(asked(load=LOAD, offers=OFFERS, slos=SLOS)).plan


def row(**changes: object) -> Candidate:
    best = planned().best
    assert best is not None
    return best.model_copy(update=changes)


def text(line: object) -> str:
    return "".join(span.text for span in line.spans)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "limit", "said"),
    [(0.2004, 0.2, "200.4 ms"), (0.20001, 0.2, "200.01 ms"), (0.25, 0.2, "250 ms"), (2.0004, 2.0, "2.0004 s")],
)
def test_a_latency_is_told_from_the_slo_it_misses(value: float, limit: float, said: str) -> None:
    assert seconds_apart(value, limit) == said != seconds(limit)


def test_the_letters_of_a_split_are_explained_and_no_others() -> None:
    said = split_legend([row(tp=2, ep=8, dp=4)])
    assert all(f"{name} = " in said for name in ("TP", "EP", "DP"))
    assert "PP" not in said
    assert split_legend([row(tp=1, pp=1, ep=1, dp=1)]) == ""


def test_the_mark_of_an_old_price_stands_at_the_price_which_is_never_cut() -> None:
    table = ranking([row(price_stale=True), row(price_stale=False)], None)
    place = next(place for place, column in enumerate(table.columns) if column.name == "$/month")
    assert table.columns[place].whole
    old, fresh = (text_of[place][0].text for text_of in table.rows)
    assert old == f"†{fresh}"
    assert "†" not in "".join(cell[0].text for cell in table.rows[0][:place])


def test_what_is_saved_and_how_to_ask_for_it_come_first() -> None:
    cheaper = row(usd_per_month=row().usd_per_month * 0.7, tiers="dram=380@0")
    aside = SetAside(catch=Catch.offload, candidate=cheaper)
    (line,) = set_aside_lines(planned().model_copy(update={"set_aside": (aside,)}))
    said = text(line)
    assert said.startswith("30 % less with ")
    assert "tiers" in said.partition("(")[0]
    assert said.endswith("380 GB of the machine's memory for each replica")


def test_memories_are_told_in_words() -> None:
    assert tiers_text("dram=380@0") == "380 GB of the machine's memory"
    assert tiers_text("dram=200@0,ssd=2000@0") == "200 GB of the machine's memory and 2,000 GB of its SSD"


def test_thinking_says_its_share_and_whose_it_is() -> None:
    usual, given = (parse_thinking(said, reasons=True) for said in (None, "0.5"))
    assert usual is not None
    assert given is not None
    notes = [thinking_facts(in_the_mean(LOAD.trace, each, 0.2, 0.01, 1.0))[0].note for each in (usual, given)]
    assert f"{USUAL_SHARE:.0%}".replace("%", " %") in notes[0]
    assert "ServeGen" in notes[0]
    assert "50 %" in notes[1]
    assert "ServeGen" not in notes[1]


def test_the_headline_of_a_plan_says_which_tokens_are_images() -> None:
    found = tokonomics.plan("qwen3-vl-8b", rate=1, input=200, output=50, images="1x1024x1024", gpu="H100", quick=True)
    asked_for = " ".join(str(found).split("\n\n")[0].split())
    assert "1,024 of every prompt for images (1x1024x1024)" in asked_for


def test_an_output_that_costs_nothing_says_why() -> None:
    found = tokonomics.plan("llama-3.1-8b", rate=1, input="const:1", output="const:1", gpu="L4", provider="runpod")
    assert found.best
    assert found.best.usd_per_mtok.output == 0
    (line,) = (line for line in str(found).splitlines() if line.startswith("output"))
    assert "answers of one token take no decoding" in line


def test_a_plan_says_why_on_screen_and_as_json() -> None:
    found = tokonomics.plan("llama-3.1-8b", rate=5, input=1000, output=300, gpu="H100,A100-80GB", quick=True)
    assert found.best
    why = json.loads(json.dumps(found.plain()))["why"]
    assert why["text"] in " ".join(str(found).split())
    assert found.best is not None
    assert why["pick"]["usd_per_month"] == pytest.approx(found.best.usd_per_month)
    assert found.plain()["best"]["speed"] in ("timed", "scaled", "assumed")


def test_a_pipe_hears_of_long_work_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 65.0, 65.0, 90.0, 130.0, 130.0])
    with Terminal(now=lambda: next(clock)) as terminal:
        for what in ("one", "two", "three", "four"):
            terminal.doing(what)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["two … (65 s)", "four … (130 s)"]


def test_memory_beside_the_gpus_says_whose_it_is_and_how_it_is_shared() -> None:
    said = _more_kv(row(gpus_per_replica=1, gpus_paid=3, instances=1, tiers="dram=380@0"))
    assert "a machine of 3 GPUs has what weights leave of its memory for 3 replicas" in said


@pytest.mark.parametrize("simulated", [True, False])
def test_room_to_grow_that_was_not_simulated_is_no_promise(simulated: bool) -> None:
    room = Headroom(replicas=1, rate=20.0, share=0.5, at_most=21.0, breaks="it falls behind", simulated=simulated)
    fact = repr(_room(room))
    assert ("not simulated" in fact, "bursts leave less" in fact, "≤ +50 %" in fact) == (not simulated,) * 3
