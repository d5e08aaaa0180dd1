"""The probe's fit finds the curves of a made-up machine again, says how well, and refuses what it cannot use."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.there import there
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput
from tokonomics.measure.measurements import Measurement, read_measurements
from tokonomics.measure.probe import shapes
from tokonomics.measure.probe.fit_profile import check_timings, profile_from, shrunken
from tokonomics.measure.probe.timings import PROBE, SECTIONS, why_not, write
from tokonomics.measure.validate import ScoredPrediction, predict
from tokonomics.physics.attention_kernels import DecodeCurve, PrefillCurve, Work, decode_time, prefill_time
from tokonomics.physics.calibration import read_profile, using
from tokonomics.physics.matrix_kernels import GemmCurve, LinkCurve, all_reduce_seconds, gemm_seconds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBED = BENCHMARKS / "results" / "h200-profile.json"
GPU = find_gpu("H200")
PEAK, BANDWIDTH = GPU.peak_flops(Precision.bf16), GPU.bandwidth_bytes_per_s
TRUE_GEMM = GemmCurve(4e-6, 5e-6, 5e3, 0.8, 0.7, 20, 100, 60, 2, 0.1)
TRUE_DECODE = DecodeCurve(6e-6, 0.8e-6, 100, 3e-6, 6e4, 0.7, 0.3, 2, 16, 8, 1e11)
TRUE_PREFILL = PrefillCurve(6e-6, 0.4, 200, 64, 0.5, 8e-9, 0.8, 3, 2)
TRUE_LINK = LinkCurve(8e-6, 0.5, 1.2)
LAYER_S = 20e-6


def heads_work(heads: shapes.Heads) -> Work:
    return Work(heads.kv_heads, heads.heads / heads.kv_heads, 4.0 * heads.head_dim, 4.0 * heads.head_dim)


def product_s(m: float, n: float, k: float) -> float:
    return float(gemm_seconds(TRUE_GEMM, np.array(m), n, k, PEAK, BANDWIDTH, 2.0, 0.0))


def decode_s(curve: DecodeCurve, heads: shapes.Heads, batch: int, context: int) -> float:
    return float(decode_time(curve, BANDWIDTH, PEAK, np.array(batch), np.array(context), heads_work(heads)))


def prefill_s(curve: PrefillCurve, heads: shapes.Heads, tokens: int, past: int = 0, prompts: int = 1) -> float:
    sizes = (np.array(tokens), np.array(past), heads_work(heads), None, float(prompts))
    return float(prefill_time(curve, BANDWIDTH, PEAK, *sizes))


def link_s(curve: LinkCurve, size: float) -> float:
    return float(all_reduce_seconds(curve, 2, np.array(float(size)), GPU.link_among(2)))


def machine(noise: float = 0.0) -> dict[str, Any]:
    """What a machine with known curves would have timed."""
    chance = np.random.default_rng(1)

    def us(seconds: float) -> float:
        return seconds * 1e6 * float(np.exp(noise * chance.standard_normal()))

    def attention(heads: shapes.Heads, batch: int, sizes: dict[str, int], seconds: float) -> dict[str, float]:
        shape = {"heads": heads.heads, "kv_heads": heads.kv_heads, "head_dim": heads.head_dim, "batch": batch}
        return shape | sizes | {"us": us(seconds)}

    gemm = [
        {"dtype": "bf16", "m": m, "n": n, "k": k, "heat": 0.0, "us": us(product_s(m, n, k))}
        for m, n, k in shapes.matrix_points(quick=False)
    ]
    decode = [
        attention(heads, batch, {"context": context}, decode_s(TRUE_DECODE, heads, batch, context))
        for heads, batch, context in shapes.decode_points(quick=False, most_bytes=18e9)
    ]
    prefill = [
        attention(heads, many, {"tokens": tokens, "past": past}, prefill_s(TRUE_PREFILL, heads, tokens, past, many))
        for heads, many, tokens, past in shapes.prompt_points(quick=False, most_bytes=40e9)
    ]
    links = [{"gpus": 2, "bytes": size, "us": us(link_s(TRUE_LINK, size))} for size in shapes.MESSAGES]
    layers = []
    for name, shape in shapes.STACKS.items():
        for batch in shape.batches:
            *own, head = (product_s(batch, n, k) for n, k in shape.products)
            # Norms, rotary embedding, activation and residual, through memory at the share that a copy reaches.
            moved = batch * (8.0 * shape.hidden + 2 * shape.qkv + 3 * shape.intermediate) * 2.0
            layer = sum(own) + moved / (0.8 * BANDWIDTH) + LAYER_S
            layers.append(
                {"kind": "decode_no_attention", "model": name, "batch": batch, "ctx": 16}
                | {"ms": (shape.layers * layer + head) * 1e3, "layers": shape.layers, "hidden": shape.hidden}
                | {"qkv": shape.qkv, "heads": shape.heads, "head_dim": shape.head_dim}
                | {"intermediate": shape.intermediate, "vocab": shape.vocab}
            )
    return {
        "kind": "tokonomics probe timings", "schema_version": 1, "made": "2026-11-15",
        "machine": {"device": "NVIDIA H200", "gpus": 2, "torch": "2.11"},
        "memory": [{"kind": "copy", "bytes": 1e9, "us": 1.0, "bytes_per_s": 0.8 * BANDWIDTH}], "gemm": gemm,
        "launch": [{"kind": "in a graph", "us": 1.5}, {"kind": "by the host", "us": 7.5}],
        "decode_attention": decode, "prefill_attention": prefill, "all_reduce": links, "layers": layers, "check": [],
    }  # fmt: skip


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels of the profile that the verb fits on timings made elsewhere."""
    folder = tmp_path_factory.mktemp("probe")
    write(machine(noise=0.02), folder / "timings.json")
    out = folder / "mine.json"
    said = CliRunner().invoke(app, ["probe", "--from", str(folder / "timings.json"), "--out", str(out), "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["kernels"]["gpu"] == "H200"
    assert read_profile(out).gpus == ("H200",)
    return read_profile(out).kernels


def test_matrix_products_of_a_known_machine_are_found_within_3_percent(fitted: Any) -> None:
    curve = GemmCurve(*fitted.gemm.curve)
    # Sizes between those that were timed.
    for m, n, k in [(1, 5000, 5000), (48, 14336, 4096), (300, 4096, 14336), (3000, 6000, 4096)]:
        found = float(gemm_seconds(curve, np.array(m), n, k, PEAK, BANDWIDTH, 2.0, 0.0))
        assert found == pytest.approx(product_s(m, n, k), rel=0.03)


def test_attention_of_a_known_machine_is_found_within_5_percent(fitted: Any) -> None:
    curve = DecodeCurve(*fitted.decode["grouped/128"].curve)
    for batch, context in [(2, 1000), (24, 3000), (96, 1000), (192, 3000)]:
        true_s = decode_s(TRUE_DECODE, shapes.DECODE, batch, context)
        assert decode_s(curve, shapes.DECODE, batch, context) == pytest.approx(true_s, rel=0.05)
    prompts = PrefillCurve(*fitted.prefill["grouped/128"].curve)
    for tokens in (700, 3000, 12000):
        true_s = prefill_s(TRUE_PREFILL, shapes.DECODE, tokens)
        assert prefill_s(prompts, shapes.DECODE, tokens) == pytest.approx(true_s, rel=0.05)


def test_what_lies_between_kernels_and_the_link_are_found(fitted: Any) -> None:
    assert fitted.layer_s == pytest.approx(LAYER_S, rel=0.25)  # what is left of ten times as much
    assert fitted.launch_s == pytest.approx(7.5e-6)  # as the host launched, not as a graph did
    link = LinkCurve(*fitted.all_reduce[2].curve)
    for size in (2e4, 3e6, 1e8):
        assert link_s(link, size) == pytest.approx(link_s(TRUE_LINK, size), rel=0.05)
    assert fitted.memory == pytest.approx(0.8)


def test_the_error_it_reports_is_that_of_shapes_it_did_not_see(fitted: Any) -> None:
    assert 0 < fitted.gemm.held_out < fitted.gemm.rows
    # Timings were spread by 2 %: the median size of a normal error is two thirds of its deviation.
    assert 0.005 < fitted.gemm.median_error < 0.03
    # A few good hits do not make an interval narrow.
    assert shrunken([0.0, 0.0], 0.2) > 0.15
    assert shrunken([0.01] * 1000, 0.2) < 0.03
    assert shrunken([0.5] * 4, 0.1) > 0.25


def test_held_out_models_are_timed_at_sizes_that_the_probe_times_nowhere() -> None:
    # No context of the probe is a whole number of tiles.
    assert all(context % 16 for context in (*shapes.DECODE_CONTEXTS, *shapes.OTHER_CONTEXTS))
    timed = {(batch, context) for _, batch, context in shapes.decode_points(False, 1e18)}
    timed |= {load for shape in shapes.CHECK.values() for load in shape.loads}
    assert not timed & {load for shape in shapes.HELD_OUT.values() for load in shape.loads}
    assert "validate" in SECTIONS
    assert "validate" not in PROBE
    assert sum(SECTIONS[name].seconds for name in PROBE) < 300


def test_timings_that_cannot_be_used_say_why() -> None:
    timed = machine()
    unknown = {"device": "Quantum 9000", "gpus": 1}
    for spoilt in ({"gemm": timed["gemm"][:5]}, {"machine": unknown}, {"machine": None}):
        with pytest.raises(BadInput, match=r"timings\.json"):
            profile_from(timed | spoilt, "test", "timings.json")


def test_the_committed_profile_is_what_its_timings_say() -> None:
    kept = read_profile(PROBED)
    assert kept.kernels
    timings = {"made": kept.made.isoformat(), "machine": there(kept.machine).model_dump(), **kept.timings}
    again = profile_from(timings, kept.command, "again")
    assert again.kernels
    for one, other in (
        (again.kernels.gemm, kept.kernels.gemm),
        (again.kernels.decode["grouped/128"], kept.kernels.decode["grouped/128"]),
    ):
        assert one
        assert other
        # Least squares in another build of numpy ends a little elsewhere along a flat valley: times count, see below.
        assert one.rows == other.rows
        assert one.median_error == pytest.approx(other.median_error, rel=0.2)


@pytest.mark.parametrize(
    ("file", "decode"), [("h200_more_steps.json", 0.05), ("h200_held_out_steps.json", 0.03)], ids=["tiles", "between"]
)
def test_steps_of_the_h200_are_predicted_from_its_profile(file: str, decode: float) -> None:
    """Contexts between tiles are those of served requests; at whole tiles PyTorch's kernel takes a faster path."""
    rows = [row for row in read_measurements(BENCHMARKS / "data" / file) if isinstance(row, Measurement)]
    errors: dict[str, list[float]] = {}
    with using(read_profile(PROBED)):
        for row in rows:
            said = predict(row)
            assert isinstance(said, ScoredPrediction)
            errors.setdefault(row.mode.value, []).append(abs(said.error))
    assert np.median(errors["decode_step"]) <= decode
    assert np.median(errors["prefill_step"]) <= 0.03


def test_a_machine_without_torch_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert why_not()
    (tmp_path / "other.json").write_text('{"rows": []}')
    for given in ([], ["--from", str(tmp_path / "other.json")]):  # a file without timings
        said = CliRunner().invoke(app, ["probe", *given, "--out", str(tmp_path / "mine.json")])
        assert isinstance(said.exception, BadInput)
    assert not (tmp_path / "mine.json").exists()


@pytest.mark.parametrize("section", SECTIONS)
def test_no_number_of_the_timings_is_none_whoever_reads_it(section: str) -> None:
    """A profile keeps what no fit reads as well, and a file with NaN in it is no JSON."""
    fields = ("m", "n", "k", "us", "ms", "bytes_per_s", "gpus", "bytes", "hidden", "intermediate", "qkv", "vocab")
    row = dict.fromkeys((*fields, "heads", "kv_heads", "head_dim", "batch", "context", "tokens", "past", "layers"), 1)
    check_timings({section: [row, row]}, "t.json")
    for spoilt in (float("nan"), float("inf"), [1.0], {"us": 1.0}):
        with pytest.raises(BadInput, match=f"row 2 of '{section}': 'beside'"):
            check_timings({section: [row, row | {"beside": spoilt}]}, "t.json")
