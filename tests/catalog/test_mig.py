"""MIG slices: which fit together, against all layouts by hand and NVIDIA's own figures."""

from itertools import combinations_with_replacement, product

import pytest

from tokonomics.catalog.engines import find_engine, start_times
from tokonomics.catalog.gpus import MigProfile, find_gpu, fit_together, mig_profiles, slice_of
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.intervals import known_speed
from tokonomics.types import Speed
from tokonomics.units import GIB

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
    # vLLM pull 48337, one A100 (PCIe 4): Qwen3 0.6B and 8B with LoRA, 0.08 and 22 GiB asleep, wake in 1.22 and 2.19 s.
    for gibibytes, seconds in ((0.08, 1.22), (22, 2.19)):
        assert times.wake_s(gibibytes * GIB, find_gpu("A100-80GB")) == pytest.approx(seconds, rel=0.02)
    assert times.cold_s(16e9) == 180 + 16
