"""The meter's screen fits a terminal, and says what it does not know."""

import pytest
from tests.measure.meter_states import group, state

from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import MeterTally
from tokonomics.report.blocks import View, sections
from tokonomics.report.meter_view import end, line, live
from tokonomics.report.terminal import as_text

WIDTH = 120


def drawn(view: View) -> str:
    return as_text(sections(view), columns=WIDTH)


def test_the_price_now_leads_and_each_server_has_its_row() -> None:
    said = drawn(live(state(group())))
    # 7.20 $ over 3 M tokens in and 1 M out.
    assert said.splitlines()[0].startswith("$1.80 per million tokens now")
    row = next(row for row in said.splitlines() if "gpu1:8000" in row)
    assert "busy" in row
    assert "12+2" in row, "running and waiting"
    assert "40 %" in row, "1200 idle of 3000 watched seconds"


def test_a_long_name_and_many_figures_fit_a_terminal() -> None:
    wide = group(target="http://inference-7f9c.prod:8000", model="meta-llama/Llama-3.3-70B-Instruct-FP8", kv_share=0.9)
    said = drawn(live(state(wide, group())))
    assert "Llama-3.3-70B" in said
    assert "paid" in said
    assert "…" not in said.splitlines()[2]
    assert all(len(row) <= WIDTH for row in said.splitlines())


def test_a_hundred_servers_are_twenty_rows_and_their_sum() -> None:
    many = tuple(group(target=f"http://gpu{place}:8000") for place in range(100))
    said = drawn(live(state(*many)))
    assert sum("gpu" in row and ":8000" in row for row in said.splitlines()) == 20
    assert "all 100 (80 not shown)" in said


@pytest.mark.parametrize("seconds", [0.0, 15.0])
def test_before_there_is_a_price_none_is_made_up(seconds: float) -> None:
    nothing = MeterTally(seconds=seconds, idle_s=seconds, usd=seconds * 0.001, idle_usd=seconds * 0.001)
    quiet = group(now=nothing, hour=nothing, today=nothing, total=nothing, running=None, waiting=None, kv_share=None)
    unknown = state(quiet)
    said = drawn(live(unknown))
    assert ("no tokens now" if seconds else "the next one gives a price") in said
    assert "now –/Mtok" in line(unknown)
    assert "–/Mtok" in drawn(end(unknown))


def test_gpus_show_what_they_say_and_no_more() -> None:
    gpus = (GpuReading(at=0.0, uuid="GPU-1", name="NVIDIA H200", power_w=412.0, utilization=0.97),)
    said = drawn(live(state(group(), gpus=gpus, energy_j=3.6e6, electricity_usd=0.12)))
    row = next(row for row in said.splitlines() if "H200" in row)
    assert "97 %" in row
    assert "412 W" in row
    assert "–" in row
    assert "The GPUs drew 1 kWh since the meter started, $0.120 of electricity." in said


def test_what_went_wrong_is_on_the_screen_and_in_the_pipe() -> None:
    odd = state(group(up=False, said="answers 500"), notes=("http://gpu1:8000: answers 500",))
    assert "answers 500" in drawn(live(odd))
    assert "0/1 server up" in line(odd)
    assert "answers 500" in line(odd)
