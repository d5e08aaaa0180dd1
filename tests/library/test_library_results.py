"""How a result shows itself: a line, the terminal's view, a table for notebooks, a frame, a chart, a file."""

import pickle
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest
from tests.command import Call

import tokonomics as tk
from tokonomics.errors import BadInput, UnknownName
from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.fleet import FleetResult
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.predict import CurveResult, FitResult, PredictResult
from tokonomics.questions.result import Result, frame_of
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import CapacityResult, SimulateResult
from tokonomics.questions.traffic import TraceResult

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
KINDS: tuple[type[Result], ...] = (
    BreakevenResult, CapacityResult, CurveResult, FitResult, FleetResult, LeversResult, PlanResult, PredictResult,
    SimulateResult, TraceResult,
)  # fmt: skip
MADE: dict[str, Callable[[], Result]] = {
    "fit": lambda: tk.fit("llama-3.1-8b", gpu="H100"),
    "predict": lambda: tk.predict("llama-3.1-8b", gpu="H100"),
    "curve": lambda: tk.curve("llama-3.1-8b", gpu="H100"),
    "trace": lambda: tk.trace("azure-code"),
    "simulate": lambda: tk.simulate("llama-3.1-8b", gpu="H100", trace="azure-conv", requests=1000, slo="ttft_p99=0.01"),
    "capacity": lambda: tk.capacity("llama-3.1-8b", gpu="H100", input=500, output=50, slo="ttft_p99=1"),
    "plan": lambda: tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, gpu="L4,H100", quick=True),
    "nothing": lambda: tk.plan("llama-3.1-70b", rate=5, input=1000, output=300, gpu="T4", gpus=1, quick=True),
    "breakeven": lambda: tk.breakeven(
        api="openai:gpt-4o", input=1000, output=1000, replica_tokens_per_second=2400, usd_per_hour=2.21, replica_gpus=4,
        max_utilization=0.7,
    ),
    "levers": lambda: tk.levers("llama-3.1-8b", gpu="H100", rate=2, input=500, output=50, usd_per_hour=2.0,
                                without=["hardware", "speculation", "disaggregation", "tiers", "autoscale"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Callable[[str], Result]:
    kept: dict[str, Result] = {}

    def find(name: str) -> Result:
        if name not in kept:
            kept[name] = MADE[name]()
        return kept[name]

    return find


class Tags(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.mark.parametrize("name", MADE)
def test_a_result_is_one_line_and_its_table_is_whole(name: str, made: Callable[[str], Result]) -> None:
    result = made(name)
    assert "\n" not in repr(result)
    assert repr(result) == f"<{type(result).__name__}: {result.headline()}>"
    assert len(repr(result)) < 250
    page = Tags()
    page.feed(result._repr_html_())
    assert page.open == []
    if name != "nothing":
        assert page.cells, "facts or a table"
        assert result.to_frame().columns


FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


@pytest.mark.parametrize("name", MADE)
def test_a_notebook_shows_the_figures_that_printing_shows(name: str, made: Callable[[str], Result]) -> None:
    result = made(name)
    page = Tags()
    page.feed(result._repr_html_())
    assert set(FIGURE.findall(str(result))) <= set(FIGURE.findall(" ".join(page.texts)))


VIEWS = {
    "fit": "predict llama-3.1-8b --fit --gpu H100",
    "trace": "trace azure-code",
    "plan": "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --gpu L4,H100 --quick",
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_printed_result_is_what_a_terminal_shows(name: str, made: Callable[[str], Result], tokonomics: Call) -> None:
    assert str(made(name)) == tokonomics(*VIEWS[name].split()).stdout.rstrip()


@pytest.mark.parametrize("name", MADE)
def test_a_result_survives_a_file_and_another_process(name: str, made: Callable[[str], Result]) -> None:
    result = made(name)
    read = type(result).model_validate_json(result.to_json())
    assert read == result
    assert read.to_json() == result.to_json()
    assert str(read) == result.headline()
    carried = pickle.loads(pickle.dumps(result))
    assert carried == result
    assert carried.command == result.command
    assert carried.to_frame().equals(result.to_frame())
    with pytest.raises(BadInput, match="has no chart"):
        carried.chart()


def test_what_others_wrote_is_text_in_the_page_and_never_markup(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>&\"'"
    prices = tmp_path / "offers.csv"
    pl.read_csv(OFFERS).with_columns(instance=pl.lit(evil)).write_csv(prices)
    plan = tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, quick=True, offers=str(prices))
    for shown in (plan, PlanResult.model_validate_json(plan.to_json())):
        page = shown._repr_html_()
        assert "<img" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#x27;" in page


def test_a_row_of_the_frame_is_a_candidate_with_units_in_its_names(made: Callable[[str], Result]) -> None:
    plan = made("plan")
    assert isinstance(plan, PlanResult)
    assert plan.best is not None
    frame = plan.to_frame()
    assert len(frame) == len(plan.ranked)
    first = frame.row(0, named=True)
    assert first["usd_per_month"] == plan.best.usd_per_month == frame["usd_per_month"].min()
    assert first["usd_per_mtok_blended"] == plan.best.usd_per_mtok.blended
    assert first["tpot_mean_s"] == plan.best.tpot_s.mean
    assert first["price_date"] == plan.best.price_date
    assert len(plan.to_frame("rejected")) == len(plan.rejected)
    with pytest.raises(UnknownName, match="Did you mean ranked"):
        plan.to_frame("rankd")


def test_parts_of_a_simulation_are_frames(made: Callable[[str], Result]) -> None:
    simulation = made("simulate")
    assert isinstance(simulation, SimulateResult)
    assert simulation.to_frame().shape[0] == 1
    assert {"slo", "timeline"} <= set(simulation.frames())
    lines = simulation.to_frame("timeline")
    assert lines["at_s"].to_list() == [each.at_s for each in simulation.timeline]
    assert "ttft_p99 missed" in repr(simulation)


CHARTED = ("curve", "trace", "simulate", "capacity", "plan", "breakeven", "levers")


@pytest.mark.parametrize("name", CHARTED)
def test_a_chart_is_altairs_and_draws_itself(name: str, made: Callable[[str], Result]) -> None:
    result = made(name)
    drawn = result.chart()
    assert isinstance(drawn, alt.TopLevelMixin)
    assert drawn.to_dict()
    assert [result.chart(chart).to_dict() is not None for chart in result.charts()] == [True] * len(result.charts())
    with pytest.raises(UnknownName, match="unknown chart"):
        result.chart("bils")


def _public(kind: type) -> Iterator[str]:
    return (name for name in vars(kind) if not name.startswith("_"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_figure_hides_a_way_to_look_at_it(kind: type[Result]) -> None:
    assert not set(kind.model_fields) & set(_public(Result))
    assert kind.__doc__


@pytest.mark.parametrize("name", MADE)
def test_a_column_of_a_latency_says_its_unit(name: str, made: Callable[[str], Result]) -> None:
    bare = {"ttft", "tpot", "e2e", "latency", "price", "cost", "memory", "duration"}
    for column in made(name).to_frame().columns:
        assert column not in bare
        if re.match(r"ttft|tpot|e2e|decode_step|prefill_(?!replicas)", column):
            assert column.endswith("_s"), column


def test_a_frame_flattens_figures_and_leaves_lists_of_nouns_out() -> None:
    rows = [
        {
            "a": 1, "ttft_s": {"p99": 0.5}, "rate_per_s": {"low": 1.0}, "bill": {"usd": 2.0},
            "lines": [{"x": 1}], "n": [],
        },
        {"a": 2.5, "ttft_s": {"p99": None}, "rate_per_s": {"low": 2.0}, "bill": None, "lines": [], "n": []},
    ]  # fmt: skip
    frame = frame_of(rows)
    assert frame.columns == ["a", "ttft_p99_s", "rate_per_s_low", "bill_usd"]
    assert frame.rows() == [(1.0, 0.5, 1.0, 2.0), (2.5, None, 2.0, None)]
    assert frame_of([]).is_empty()
    assert frame_of([{"price_date": "2026-11-15", "date": None}]).schema["price_date"] == pl.Date


def test_texts_of_a_result_name_arguments_and_its_document_names_flags() -> None:
    found = tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, max_price=0.01, quick=True)
    assert [blame.constraint for blame in found.blame] == ["max_price=0.01"]
    assert [blame["constraint"] for blame in found.plain()["blame"]] == ["--max-price 0.01"]
