"""Requests drawn from ServeGen's clients have the rates, rhythms and lengths it states."""

import json
from math import gamma, sqrt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokonomics.errors import BadInput, UnknownName
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.recognise import DescribesClients
from tokonomics.traffic.servegen import servegen_trace

QUANTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")
CHANCES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999])


def table(folder: Path, *windows: tuple[str, int, int, float, str, float], lengths: tuple[int, ...] = (0, 1)) -> Path:
    """Arrivals as given; prompts of client ``c`` uniform between 100(c+1) and 100(c+2) tokens, answers half of it."""
    names = ("model", "client", "t_s", "rate_rps", "family", "p1")
    columns = dict(zip(names, zip(*windows, strict=True), strict=True))
    path = folder / "x_arrivals.parquet"
    pl.DataFrame(columns).with_columns(cv=pl.lit(1.0), p2=pl.lit(9.0)).write_parquet(path)
    rows = []
    for model in sorted(set(columns["model"])):
        for client in lengths:
            for field, share in (("input_tokens", 1.0), ("output_tokens", 0.5)):
                values = share * 100 * (client + 1 + CHANCES)
                rows.append(
                    {"model": model, "client": client, "window_start_s": 0, "field": field}
                    | dict(zip(QUANTILES, values.tolist(), strict=True))
                )
    pl.DataFrame(rows).write_parquet(folder / "x_lengths.parquet")
    return path


def test_every_window_has_as_many_requests_as_its_rate_says(tmp_path: Path) -> None:
    path = table(
        tmp_path, ("m", 0, 0, 2.0, "Gamma", 1.0), ("m", 0, 600, 0.0, "", 0.0), ("m", 0, 1200, 0.5, "Weibull", 0.4)
    )
    trace = servegen_trace(path)
    assert len(trace) == 1200 + 300
    times = trace.arrival_s
    assert (times < 600).sum() == 1200
    assert ((times > 600) & (times < 1199)).sum() == 0
    assert trace.tenants == ("client 0",)
    uneven = servegen_trace(table(tmp_path, ("m", 0, 0, 1.0, "Gamma", 1e-4), ("m", 1, 0, 1.0, "Weibull", 1e-3)))
    assert len(uneven) == 1200
    assert np.isfinite(uneven.arrival_s).all()
    assert uneven.duration_s <= 600


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.25), ("Gamma", 4.0), ("Weibull", 0.6), ("Weibull", 2.0)])
def test_gaps_are_as_uneven_as_the_family_and_shape_say(tmp_path: Path, family: str, shape: float) -> None:
    trace = servegen_trace(table(tmp_path, ("m", 0, 0, 200.0, family, shape)))
    gaps = np.diff(trace.arrival_s)
    weibull = sqrt(gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1)
    expected = 1 / sqrt(shape) if family == "Gamma" else weibull
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05)
    assert trace.duration_s == pytest.approx(600, rel=0.01)


def test_clients_keep_their_own_lengths(tmp_path: Path) -> None:
    trace = servegen_trace(table(tmp_path, ("m", 0, 0, 20.0, "Gamma", 1.0), ("m", 1, 0, 20.0, "Gamma", 1.0)))
    assert trace.tenant is not None
    for client, mean in ((0, 150), (1, 250)):
        prompts = trace.input_tokens[trace.tenant == client]
        answers = trace.output_tokens[trace.tenant == client]
        assert prompts.min() >= mean - 50
        assert prompts.max() <= mean + 50
        # Uniform on 100 tokens: the mean of 12,000 is off by 0.26 in one standard error.
        assert prompts.mean() == pytest.approx(mean, abs=1.5)
        assert answers.mean() == pytest.approx(mean / 2, abs=1)


def test_a_client_without_lengths_borrows_and_the_trace_says_so(tmp_path: Path) -> None:
    windows = [("m", client, 0, rate, "Gamma", 1.0) for client, rate in ((0, 30.0), (1, 10.0), (2, 20.0))]
    trace = servegen_trace(table(tmp_path, *windows))
    assert "1 of 3 clients with lengths of the others" in trace.source
    assert trace.tenant is not None
    borrowed = trace.input_tokens[trace.tenant == 2]
    # Three in four requests like the client that is three times as busy.
    assert (borrowed < 200).mean() == pytest.approx(0.75, abs=0.02)


def test_scale_and_seed(tmp_path: Path) -> None:
    path = table(tmp_path, *(("m", 0, 600 * window, 0.01, "Gamma", 1.0) for window in range(1000)))
    whole, again, other = (servegen_trace(path, seed=seed) for seed in (0, 0, 1))
    assert len(whole) == 6000
    assert whole.arrival_s.tolist() == again.arrival_s.tolist()
    assert whole.arrival_s.tolist() != other.arrival_s.tolist()
    # 0.6 requests a window on average: the quiet are not rounded away.
    assert len(servegen_trace(path, scale=0.1)) == pytest.approx(600, abs=80)


def test_a_part_of_the_time(tmp_path: Path) -> None:
    path = table(tmp_path, *(("m", 0, 600 * window, 10.0, "Gamma", 1.0) for window in range(10)))
    trace = servegen_trace(path, start_s=900, end_s=1500)
    assert len(trace) == pytest.approx(6000, rel=0.05)
    assert trace.duration_s <= 600
    for start_s, end_s in ((60_000, 70_000), (10, 5)):
        with pytest.raises(BadInput):
            servegen_trace(path, start_s=start_s, end_s=end_s)


def test_models_are_chosen_by_name(tmp_path: Path) -> None:
    path = table(tmp_path, ("m-large", 0, 0, 1.0, "Gamma", 1.0), ("m-small", 0, 0, 2.0, "Gamma", 1.0))
    assert len(servegen_trace(path, model="m-small")) == 1200
    with pytest.raises(BadInput):  # which of the two?
        servegen_trace(path)
    with pytest.raises(UnknownName):
        servegen_trace(path, model="m-larg")


def published(folder: Path) -> Path:
    """The folders of the ServeGen repository: no header, one file a client, distributions as text."""
    place = folder / "data" / "language" / "m-large"
    place.mkdir(parents=True)
    (place / "chunk-0-trace.csv").write_text("0,1.0,1.2,Gamma,0.8,1.0\n600,0.0,0.0,,0.0,0.0\n")
    (place / "chunk-7-trace.csv").write_text("0,0.0,0.0,,0.0,0.0\n600,2.0,0.9,Weibull,1.1,0.5\n")
    first = {"0": {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{5: 1.0}"}}
    silent, busy = {"input_tokens": "{}", "output_tokens": "{}"}, {"input_tokens": "{7: 1}", "output_tokens": "{0: 1}"}
    second = {"0": silent, "600": busy}
    (place / "chunk-0-dataset.json").write_text(json.dumps(first))
    (place / "chunk-7-dataset.json").write_text(json.dumps(second))
    return folder / "data"


def test_the_published_folders(tmp_path: Path) -> None:
    folder = published(tmp_path)
    for path in (folder, folder / "language" / "m-large"):
        trace = servegen_trace(path)
        assert trace.tenants == ("client 0", "client 7")
        assert trace.tenant is not None
        first = trace.tenant == 0
        assert (first.sum(), (~first).sum()) == (600, 1200)
        assert set(trace.input_tokens[first].tolist()) == {10, 30}
        assert (trace.input_tokens[first] == 10).mean() == pytest.approx(0.25, abs=0.06)
        assert set(trace.input_tokens[~first].tolist()) == {7}
        assert set(trace.output_tokens[~first].tolist()) == {0}


def test_images_add_their_tokens_to_the_prompt(tmp_path: Path) -> None:
    folder = published(tmp_path) / "language" / "m-large"
    images = {"image_count": "{0: 0.5, 2: 0.5}", "image_tokens": "{100: 1}"}
    fields = {"text_tokens": "{10: 1}", "output_tokens": "{5: 1}"} | images
    for client in (0, 7):
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps({"0": fields}))
    assert set(servegen_trace(folder).input_tokens.tolist()) == {10, 210}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("chunk-0-trace.csv", "0,1.0,1.2,Pareto,0.8,1.0\n"),
        ("chunk-0-trace.csv", "a,b,c,d,e,f\n"),
        ("chunk-0-dataset.json", "{"),
        ("chunk-0-dataset.json", "[1]"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{10}", "output_tokens": "{5: 1}"}}'),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{10: -1}", "output_tokens": "{5: 1}"}}'),
        ("chunk-x-trace.csv", "0,1.0,1.2,Gamma,0.8,1.0\n"),
    ],
)
def test_a_broken_folder_is_one_message(tmp_path: Path, file: str, content: str) -> None:
    folder = published(tmp_path) / "language" / "m-large"
    (folder / file).write_text(content)
    with pytest.raises(BadInput):
        servegen_trace(folder)


def test_a_folder_without_chunks_and_a_table_without_lengths(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        servegen_trace(tmp_path)
    path = table(tmp_path, ("m", 0, 0, 1.0, "Gamma", 1.0))
    (tmp_path / "x_lengths.parquet").unlink()
    with pytest.raises(BadInput):
        servegen_trace(path)
    with pytest.raises(DescribesClients):
        open_trace(path)
    with pytest.raises(BadInput, match="600,000,000 requests"):  # more than can be held, refused before it is drawn
        servegen_trace(table(tmp_path, ("m", 0, 0, 1e6, "Gamma", 1.0)))
