"""GPUs: the names people use find them, and the figures are the published, dense ones."""

from contextlib import suppress
from datetime import date
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.there import refused

from tokonomics.catalog import gpus
from tokonomics.catalog.engines import find_engine, start_times
from tokonomics.catalog.entries import spellings, user_path
from tokonomics.catalog.gpus import ADD_A_GPU, Gpu, MigProfile, all_gpus, find_gpu, fit_together, mig_profiles, slice_of
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, UnknownName
from tokonomics.physics.deployment import deploy
from tokonomics.physics.intervals import known_speed
from tokonomics.types import Speed
from tokonomics.units import GIB

NAMES = {
    # The price data (data/gpu_offers.csv); those that it calls as we do:
    **{name: name for name in (
        "A10", "A100-40GB", "A100-80GB", "A10G", "A40", "A6000", "B200", "B300", "GH200", "H100-NVL", "H100-PCIe",
        "H100-SXM", "H200", "L4", "L40", "L40S", "MI300X", "RTX3090", "RTX4090", "RTX5090", "RTX4000-Ada",
        "RTX6000-Ada", "RTXPRO6000", "T4", "V100-32GB",
    )},
    "H100-MEGA": "H100-SXM", "T4g": "T4", "V100": "V100-16GB",
    # The kernel timings (data/kernels).
    "a100_sxm": "A100-80GB", "h100_sxm": "H100-SXM", "h200_sxm": "H200", "l40s": "L40S", "b200_sxm": "B200",
    "b300_sxm": "B300", "gb200": "GB200", "gb300": "GB300", "rtx_pro_6000_server": "RTXPRO6000",
    # nvidia-smi and rocm-smi.
    "NVIDIA H100 80GB HBM3": "H100-SXM", "H100 80GB HBM3": "H100-SXM", "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL", "NVIDIA A100-SXM4-80GB": "A100-80GB", "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB-PCIe", "NVIDIA A100-PCIE-40GB": "A100-40GB-PCIe", "Tesla T4": "T4",
    "Tesla V100-SXM2-16GB": "V100-16GB", "Tesla V100-SXM2-32GB": "V100-32GB", "NVIDIA L4": "L4", "NVIDIA H200": "H200",
    "NVIDIA B200": "B200", "NVIDIA B300 SXM6 AC": "B300", "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GeForce RTX 4090": "RTX4090", "NVIDIA RTX A6000": "A6000", "NVIDIA RTX 6000 Ada Generation": "RTX6000-Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000", "AMD Instinct MI300X": "MI300X",
    "NVIDIA RTX 5000 Ada Generation": "RTX5000-Ada", "NVIDIA GeForce RTX 3080": "RTX3080",
    "NVIDIA GeForce RTX 3080 Ti": "RTX3080Ti", "NVIDIA GeForce RTX 3090 Ti": "RTX3090Ti",
    "AMD Instinct MI250": "MI250", "AMD Radeon RX 7900 XTX": "RX7900XTX",
    # What people type.
    "h100": "H100-SXM", "a100": "A100-80GB", "a100-40gb": "A100-40GB", "rtx 4090": "RTX4090", "4090": "RTX4090",
    "gaudi 3": "Gaudi3",
}  # fmt: skip


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the test's own catalogue is to be written."""
    path = tmp_path / "mine.toml"
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(path))
    return path


@pytest.mark.parametrize(("name", "key"), NAMES.items())
def test_the_names_people_use_find_the_gpu(name: str, key: str) -> None:
    assert find_gpu(name).key == key


def test_the_catalogue_is_broad_and_no_two_gpus_share_a_spelling() -> None:
    for one, other in combinations(all_gpus(), 2):
        assert not spellings(one) & spellings(other), (one.key, other.key)
    assert len(all_gpus()) >= 25
    assert {gpu.vendor for gpu in all_gpus()} == {"nvidia", "amd", "intel", "apple", "google", "aws"}


@pytest.mark.parametrize(("typo", "meant"), [("H10O-SXM", "H100-SXM"), ("RTX409", "RTX4090"), ("MI30X", "MI300X")])
def test_an_unknown_gpu_suggests_the_nearest_and_says_how_to_add_one(typo: str, meant: str) -> None:
    with pytest.raises(UnknownName) as caught:
        find_gpu(typo)
    assert meant in str(caught.value)
    assert ADD_A_GPU.format(path=user_path()) in str(caught.value)


def test_the_five_lines_the_message_offers_do_add_a_gpu(catalogue: Path) -> None:
    catalogue.write_text("\n".join(line.strip() for line in ADD_A_GPU.format(path=catalogue).splitlines()[1:]))
    assert find_gpu("my gpu").bandwidth_bytes_per_s == 3.35e12


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_every_row_is_sane_and_sourced(gpu: Gpu) -> None:
    assert all((gpu.source, gpu.date, gpu.year))
    assert gpu.watts or gpu.vendor in ("apple", "google", "aws")  # who state none of their chips
    computer = gpu.unified_memory  # a GPU beside the CPU, with its memory
    assert (0.1e12 if computer else 0.28e12) <= gpu.bandwidth_bytes_per_s <= 10e12
    assert all((4e12 if computer else 50e12) <= rate <= 20e15 for rate in gpu.flops.values())
    # As marketed, less ECC, up to the same number of binary gigabytes.
    assert 0.99 <= gpu.memory_bytes / (gpu.memory_gb * 1e9) <= 2**30 / 1e9
    assert (0.66 if computer else 0.95) * gpu.memory_bytes <= gpu.usable_bytes <= gpu.memory_bytes
    assert 16e9 <= gpu.pcie_bytes_per_s <= 128e9
    assert gpu.pcie_bytes_per_s < gpu.link_bytes_per_s or gpu.fast_link_gpus == 1
    assert gpu.fast_link_gpus <= gpu.gpus_per_node
    # A byte of HBM or GDDR has never cost less than 5 nor more than 60 watts per 100 GB/s of board power.
    assert gpu.watts is None or 5 <= gpu.watts / (gpu.bandwidth_bytes_per_s / 1e11) <= 60
    assert Gpu.model_validate_json(gpu.model_dump_json()) == gpu


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_rates_are_dense_not_sparse(gpu: Gpu) -> None:
    """Halving the bits at most doubles the rate (rounded figures: 2 %); a sparse figure among dense ones breaks it.

    And fewer bits are never slower.
    """
    wide = gpu.peak_flops(Precision.bf16)
    assert gpu.peak_flops(Precision.fp32) <= wide
    assert all(gpu.peak_flops(precision) >= wide for precision in Precision if precision is not Precision.fp32)
    if "bf16" in gpu.flops and "fp16" in gpu.flops:
        assert gpu.flops["bf16"] == gpu.flops["fp16"]
    assert gpu.flops.get("fp8", 0) <= 2.03 * wide
    geforce = "GeForce" in gpu.name  # Halved for FP32 sums; integer sums and FP4 are not.
    assert gpu.flops.get("int8", 0) <= (4 if geforce else 2) * 1.015 * wide
    assert gpu.flops.get("fp4", 0) <= (8 if geforce else 6) * 1.01 * wide


# The table of the seed article (tokens-per-dollar.txt): VRAM, FP16 TFLOP/s, TB/s.
@pytest.mark.parametrize(
    ("name", "memory_gb", "tflops", "tb_per_s"),
    [("H100 SXM", 80, 989, 3.35), ("A100 80GB", 80, 312, 2.0), ("L4", 24, 121, 0.3), ("T4", 16, 65, 0.32)],
)
def test_the_seed_table_agrees(name: str, memory_gb: float, tflops: float, tb_per_s: float) -> None:
    gpu = find_gpu(name)
    assert gpu.memory_gb == memory_gb
    assert gpu.flops["fp16"] / 1e12 == pytest.approx(tflops, rel=0.01)
    assert gpu.bandwidth_bytes_per_s / 1e12 == pytest.approx(tb_per_s, rel=0.02)


def test_the_a10g_is_not_an_a10() -> None:
    """The seed table gives the A10G the A10's 125 TFLOP/s; NVIDIA's A10G datasheet says 70 dense."""
    assert find_gpu("A10").flops["fp16"] == 125e12
    assert find_gpu("A10G").flops["fp16"] == 70e12
    assert find_gpu("A10G").bandwidth_bytes_per_s == find_gpu("A10").bandwidth_bytes_per_s == 600e9


@pytest.mark.parametrize(
    ("name", "mib"),
    [("H100-SXM", 81_559), ("A100-80GB", 81_920), ("H200", 143_771), ("L4", 23_034), ("T4", 15_360), ("L40S", 46_068)],
)
def test_reported_memory_is_what_nvidia_smi_prints(name: str, mib: int) -> None:
    gpu = find_gpu(name)
    assert gpu.memory_reported
    assert gpu.memory_bytes == mib * 2**20


@pytest.mark.parametrize(
    ("name", "gib"), [("H200", 139.72), ("L40S", 44.42), ("A100-80GB", 79.15), ("RTX5090", 31.37), ("A40", 44.35)]
)
def test_usable_memory_is_what_engines_log_as_total(name: str, gib: float) -> None:
    assert find_gpu(name).usable_bytes / 2**30 == pytest.approx(gib, abs=0.005)


def test_memory_nobody_reported_is_taken_at_its_least() -> None:
    gpu = find_gpu("MI325X")
    assert not gpu.memory_reported
    assert gpu.memory_bytes == gpu.usable_bytes == 256_000_000_000


def test_the_driver_reserve_is_of_the_order_seen_on_known_cards() -> None:
    kept = [
        (gpu.memory_bytes - gpu.visible_bytes) / 2**30
        for gpu in all_gpus()
        if gpu.visible_bytes and gpu.vendor == "nvidia"
    ]
    assert len(kept) >= 10
    assert min(kept) < gpus.DRIVER_RESERVE_BYTES / 2**30 < max(kept) + 0.1


def test_weights_without_math_of_their_own_run_in_sixteen_bits() -> None:
    a100, h100, t4, b200 = (find_gpu(name) for name in ("A100", "H100", "T4", "B200"))
    assert a100.peak_flops(Precision.fp8) == a100.peak_flops(Precision.bf16) == 312e12
    assert a100.peak_flops(Precision.int8) == 624e12
    assert h100.peak_flops(Precision.fp8) == 1978.9e12
    assert h100.peak_flops(Precision.int4) == h100.peak_flops(Precision.nvfp4) == h100.peak_flops(Precision.bf16)
    assert b200.peak_flops(Precision.nvfp4) == 9000e12
    assert "bf16" not in t4.flops
    assert t4.peak_flops(Precision.bf16) == 65e12
    assert find_gpu("B300").peak_flops(Precision.int8) == find_gpu("B300").peak_flops(Precision.bf16)


def test_links_are_one_directional_and_end_where_the_bridge_does() -> None:
    h100, nvl, l40s = find_gpu("H100"), find_gpu("H100-NVL"), find_gpu("L40S")
    assert h100.link_bytes_per_s == h100.link_among(8) == 450e9
    assert nvl.link_among(2) == 300e9
    assert nvl.link_among(4) == nvl.pcie_bytes_per_s == 64e9
    assert l40s.fast_link_bytes_per_s is None
    assert l40s.link_bytes_per_s == l40s.link_among(2) == 32e9
    assert find_gpu("GB200").link_among(72) == 900e9


ROW = {"architecture": '"hopper"', "memory_gb": "100", "bandwidth_bytes_per_s": "3e12", "flops": "{ bf16 = 500e12 }"}


def table(key: str, fields: dict[str, str]) -> str:
    return "\n".join([f"[gpus.{key}]", *(f"{field} = {value}" for field, value in fields.items())])


def test_a_users_gpu_is_found_among_the_others(catalogue: Path) -> None:
    catalogue.write_text(table("X1", ROW | {"aliases": '["Acme X-One"]'}))
    gpu = find_gpu("acme x one")
    assert gpu.key == gpu.name == "X1"
    assert (gpu.vendor, gpu.memory_bytes) == ("nvidia", 100_000_000_000)
    assert gpu in all_gpus()
    assert find_gpu("H100") in all_gpus()


def test_a_users_row_replaces_the_figures_of_ours_and_keeps_its_names(catalogue: Path) -> None:
    catalogue.write_text(table("h100", ROW))
    gpu = find_gpu("NVIDIA H100 80GB HBM3")
    assert (gpu.key, gpu.bandwidth_bytes_per_s) == ("H100-SXM", 3e12)
    assert not gpu.memory_reported
    assert gpu.source == "your catalogue"
    assert [each.key for each in all_gpus()].count("H100-SXM") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"memory_gb": ""}, "memory_gb"),
        ({"memory_gb": "inf"}, "memory_gb"),
        ({"memory_gb": '"lots"'}, "memory_gb"),
        ({"memory_gb": "0"}, "memory_gb"),
        ({"memory_bytes": "80"}, "80 is not 100 GB"),
        ({"visible_bytes": "200_000_000_000"}, "exceeds memory_bytes"),
        ({"bandwidth_bytes_per_s": "3000"}, "bandwidth_bytes_per_s"),
        ({"bandwith_bytes_per_s": "3e12"}, "Did you mean bandwidth_bytes_per_s"),
        ({"flops": "{ fp8 = 1e15 }"}, "16-bit rate"),
        ({"flops": "{ bf16 = 500 }"}, "flops.bf16"),
        ({"flops": "{ bf17 = 5e14 }"}, "flops.bf17"),
        ({"flops": "5e14"}, "flops"),
        ({"architecture": '"hoper"'}, "architecture"),
        ({"fast_link_bytes_per_s": "450e9"}, "go together"),
        ({"aliases": '["H100"]'}, "H100-SXM, already goes by one of its names"),
        ({"date": '"soon"'}, "date"),
    ],
)
def test_a_bad_row_names_its_file_table_and_field(catalogue: Path, change: dict[str, str], complaint: str) -> None:
    catalogue.write_text(table("X1", {field: value for field, value in (ROW | change).items() if value}))
    caught = refused(find_gpu, "H100")
    assert f"{catalogue} [gpus.X1]" in str(caught)
    assert complaint in str(caught)


ODD: st.SearchStrategy[object] = st.sampled_from(
    [None, True, -1, 0, 10**400, float("nan"), float("inf"), "", "\x00", date.max, [], [None], {}, {"": {}}]
)


@given(field=st.sampled_from(sorted(Gpu.model_fields)), odd=ODD)
def test_an_odd_value_gives_a_gpu_or_bad_input_and_nothing_else(field: str, odd: object) -> None:
    row = {"architecture": "ada", "memory_gb": 10, "bandwidth_bytes_per_s": 1e12, "flops": {"bf16": 1e14}, field: odd}
    with pytest.MonkeyPatch.context() as patch, suppress(BadInput):
        patch.setattr(gpus, "user_tables", lambda section: {"X1": row} if section == "gpus" else {})
        assert find_gpu("X1").key == "X1"


# --- MIG slices: which fit together, against all layouts by hand and NVIDIA's own figures -----------------------------

H100 = find_gpu("H100")
PROFILES = {profile.name: profile for profile in mig_profiles(H100)}


def by_hand(profiles: tuple[MigProfile, ...]) -> bool:
    """Every way to place them, one by one."""
    if sum(profile.compute for profile in profiles) > 7:
        return False
    for starts in product(*(profile.starts for profile in profiles)):
        spans = (range(start, start + profile.memory) for profile, start in zip(profiles, starts, strict=True))
        slices = [place for span in spans for place in span]
        if len(slices) == len(set(slices)) and max(slices) < 8:
            return True
    return False


def test_slices_fit_together_as_every_layout_says() -> None:
    for count in range(1, 5):
        for chosen in combinations_with_replacement(PROFILES.values(), count):
            assert fit_together(chosen) == by_hand(chosen), [profile.name for profile in chosen]


def test_of_each_profile_a_gpu_has_as_many_as_nvidias_guide_says() -> None:
    # "Number of instances available" of the guide's tables.
    published = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1}
    for name, most in published.items():
        assert fit_together([PROFILES[name]] * most)
        assert not fit_together([PROFILES[name]] * (most + 1))


MADE = [("4g.40gb", "2g.20gb", "1g.10gb"), ("3g.40gb", "4g.40gb"), ("3g.40gb", "1g.20gb", "1g.10gb")]


@pytest.mark.parametrize("names", MADE)
def test_layouts_that_were_made_on_real_cards_fit(names: tuple[str, ...]) -> None:
    # nvidia-smi mig -cgi 5,14,19 and 3g,4g on A100; 9,15,19 on H100 (public logs).
    assert fit_together([PROFILES[name] for name in names])


def test_a_slice_is_a_smaller_gpu_whose_speed_is_scaled() -> None:
    part = slice_of(H100, PROFILES["3g.40gb"])
    assert part.bandwidth_bytes_per_s == H100.bandwidth_bytes_per_s / 2
    assert part.flops["bf16"] == pytest.approx(H100.flops["bf16"] * 60 / 132)
    # nvidia-smi prints 39.5 GiB.
    assert part.usable_bytes == pytest.approx(39.5 * GIB, rel=0.02)
    llama = find_model("llama-3.1-8b")
    assert known_speed(deploy(llama, part, find_engine("vllm"))) is Speed.scaled
    assert not mig_profiles(find_gpu("L4"))


def test_start_times_give_back_what_was_measured() -> None:
    times = start_times()
    # vLLM pull 58066, one H20 (PCIe 5): seconds to sleep by gigabytes of FP16 weights.
    for gigabytes, seconds in ((16.4, 0.343), (61.1, 1.160)):
        assert times.sleep_s(gigabytes * 1e9, H100) == pytest.approx(seconds, rel=0.05)
    # vLLM pull 48337, one A100 (PCIe 4): Qwen3 0.6B and 8B with LoRA, 0.08 and 22 GiB asleep, wake in 1.22 and 2.19 s;
    # what both took beside their weights is the adapters'.
    a100 = find_gpu("A100-80GB")
    assert times.wake_s(22 * GIB, a100) - times.wake_s(0.08 * GIB, a100) == pytest.approx(2.19 - 1.22, rel=0.02)
    # Llama 3.1 8B in vLLM 0.26, one H200 (PCIe 5), 16.06 GB of weights in 16 bit: 0.37, 0.39 and 0.37 s.
    assert times.wake_s(16.06e9, find_gpu("H200")) == pytest.approx(0.372, rel=0.02)
    assert times.cold_s(16e9) == 180 + 16
