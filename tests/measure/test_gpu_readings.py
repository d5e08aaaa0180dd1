"""GPUs by NVML and by a DCGM exporter: what they say, what they do not, and the electricity that follows."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.measure.faulty import Fault, FaultyPage, faulty_page

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.measure.meter.readings import (
    GpuReading,
    NoGpuSeen,
    dcgm_gpus,
    electricity_usd,
    joules_used,
    physical_gpus,
    read_dcgm_page,
    read_nvml,
)


class FakeNvml:
    """As pynvml behaves: functions of a handle, bytes or text for names, an exception class for what is not there."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: dict[str, Any], broken: bool = False) -> None:
        self.gpus, self.broken, self.open = gpus, broken, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        if not self.gpus[index]:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]

    def __getattr__(self, name: str) -> Any:
        def get(handle: dict[str, Any]) -> Any:
            if handle[name.removeprefix("nvmlDeviceGet")] is None:
                raise self.NVMLError("Not Supported")
            return handle[name.removeprefix("nvmlDeviceGet")]

        return get


def gpu(**changed: Any) -> dict[str, Any]:
    return {
        "UUID": "GPU-1", "Name": "NVIDIA H200", "UtilizationRates": SimpleNamespace(gpu=37, memory=12),
        "PowerUsage": 412_500, "TotalEnergyConsumption": 7_200_000_000,
        "MemoryInfo": SimpleNamespace(used=100 * 2**30, total=141 * 2**30, free=41 * 2**30), **changed,
    }  # fmt: skip


def test_nvml_milliwatts_millijoules_and_percent_become_watts_joules_and_a_share() -> None:
    nvml = FakeNvml(gpu())
    (reading,) = read_nvml(100.0, nvml)
    assert (reading.power_w, reading.energy_j) == (412.5, 7_200_000.0)
    assert reading.utilization == pytest.approx(0.37)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (100 * 2**30, 141 * 2**30)
    assert (reading.uuid, reading.name, reading.at, reading.labels["gpu"]) == ("GPU-1", "NVIDIA H200", 100.0, "0")
    assert nvml.open == 0


def test_what_a_gpu_does_not_support_is_unknown_and_the_rest_is_read() -> None:
    """Before Volta there is no energy counter; a MIG GPU has no utilisation; some need a privilege for power."""
    old = gpu(TotalEnergyConsumption=None, UtilizationRates=None, PowerUsage=None, UUID=b"GPU-2", Name=b"Tesla T4")
    (reading,) = read_nvml(0.0, FakeNvml(old))
    assert (reading.uuid, reading.name) == ("GPU-2", "Tesla T4"), "old releases answer in bytes"
    assert (reading.energy_j, reading.utilization, reading.power_w) == (None, None, None)
    assert reading.memory_used_bytes == 100 * 2**30


def test_a_lost_gpu_stays_in_the_list_and_does_not_hide_the_others() -> None:
    lost, well = read_nvml(0.0, FakeNvml({}, gpu(UUID="GPU-2")))
    assert "lost" in lost.name
    assert lost.power_w is None
    assert well.power_w == 412.5


@pytest.mark.parametrize("nvml", [FakeNvml(broken=True), FakeNvml()], ids=["no driver", "no device"])
def test_a_machine_without_gpus_says_so(nvml: FakeNvml) -> None:
    with pytest.raises(NoGpuSeen):
        read_nvml(0.0, nvml)
    assert nvml.open == 0


DCGM_LABELS = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:04:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"'


def dcgm(more: str = ',hostname="node-1"', **values: str) -> str:
    """The lines of one GPU."""
    labels = DCGM_LABELS + more
    return "".join(f"{name}{{{labels}}} {value}\n" for name, value in values.items())


def page(*lines: str) -> str:
    counter = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    return f"# HELP {counter} Total energy consumption since boot (in mJ).\n# TYPE {counter} counter\n" + "".join(lines)


def test_a_dcgm_page_is_read_in_its_own_units() -> None:
    text = page(
        dcgm(
            DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION="123456789", DCGM_FI_DEV_POWER_USAGE="350.25",
            DCGM_FI_DEV_GPU_UTIL="98", DCGM_FI_DEV_FB_USED="70000", DCGM_FI_DEV_FB_FREE="10000",
            DCGM_FI_PROF_DRAM_ACTIVE="0.61", DCGM_FI_PROF_PIPE_TENSOR_ACTIVE="0.22",
        )
    )  # fmt: skip
    (reading,) = read_dcgm_page(text, 5.0)
    assert reading.energy_j == pytest.approx(123_456.789)
    assert reading.power_w == 350.25
    assert reading.utilization == pytest.approx(0.98)
    assert reading.memory_total_bytes == 80_000 * 1024 * 1024
    assert (reading.dram_active, reading.tensor_active) == (0.61, 0.22)
    assert reading.name == "NVIDIA H100 80GB HBM3"
    assert reading.labels == {"hostname": "node-1", "gpu": "0"}


@pytest.mark.parametrize(
    "blank", ["9223372036854775794", "140737488355328.000000", "140737488355330", "2147483632", "NaN"]
)
def test_dcgms_numbers_for_no_value_are_no_value(blank: str) -> None:
    fields = {
        "DCGM_FI_DEV_GPU_UTIL": "utilization", "DCGM_FI_DEV_POWER_USAGE": "power_w",
        "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active", "DCGM_FI_DEV_FB_USED": "memory_used_bytes",
    }  # fmt: skip
    (reading,) = read_dcgm_page(page(dcgm(more="", **dict.fromkeys(fields, blank))), 0.0)
    assert [getattr(reading, field) for field in fields.values()] == [None] * 4


def test_an_energy_counter_is_blank_only_at_the_top_of_64_bits() -> None:
    """A 700 W board counts past 2^31 mJ in 51 minutes: that is a value."""
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    (long,) = read_dcgm_page(page(dcgm(more="", **{name: str(2**31)})), 0.0)
    assert long.energy_j == pytest.approx(2**31 / 1000)
    (blank,) = read_dcgm_page(page(dcgm(more="", **{name: "9223372036854775794"})), 0.0)
    assert blank.energy_j is None


def test_slices_of_a_mig_gpu_are_told_apart_but_its_energy_counts_once() -> None:
    slices = [
        dcgm(
            more=f',GPU_I_PROFILE="3g.40gb",GPU_I_ID="{each}",hostname="node-1"',
            DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION="5000",
            DCGM_FI_DEV_POWER_USAGE="300",
            DCGM_FI_PROF_GR_ENGINE_ACTIVE=share,
        )
        for each, share in ((1, "0.9"), (2, "0.1"))
    ]
    readings = read_dcgm_page(page(*slices), 0.0)
    assert [(reading.labels["mig_id"], reading.utilization) for reading in readings] == [("1", 0.9), ("2", 0.1)]
    later = [reading.model_copy(update={"energy_j": 9.0, "at": 10.0}) for reading in readings]
    assert joules_used(readings, later) == pytest.approx(4.0)


def test_pods_that_share_a_gpu_are_told_apart_but_its_power_counts_once() -> None:
    shares = [
        dcgm(more=f',Hostname="n",pod="{pod}",namespace="ml",container="vllm"', DCGM_FI_DEV_POWER_USAGE="200")
        for pod in ("a", "b")
    ]
    readings = read_dcgm_page(page(*shares), 0.0)
    assert [reading.labels["pod"] for reading in readings] == ["a", "b"]
    assert readings[0].labels["hostname"] == "n"
    assert len(physical_gpus(readings)) == 1
    # Labels that Prometheus renamed are those of the workload.
    text = dcgm(more=',pod="dcgm-exporter-x",exported_pod="llama-0"', DCGM_FI_DEV_POWER_USAGE="1")
    assert [reading.labels["pod"] for reading in read_dcgm_page(page(text), 0.0)] == ["llama-0"]
    # Old exporters without UUID leave only the index, which repeats on every host.
    text = "".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",Hostname="{host}"}} 100\n' for host in ("a", "b"))
    assert len(physical_gpus(read_dcgm_page(text, 0.0))) == 2


@pytest.mark.parametrize("text", ["node_load1 0.5\n", "<html>", ""])
def test_a_page_without_gpus_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_dcgm_page(text, 0.0)


def known(at: float, **more: Any) -> GpuReading:
    return GpuReading(**({"uuid": "GPU-1", "name": "H100", "at": at} | more))


@pytest.mark.parametrize(
    ("before", "after", "joules"),
    [
        ({"energy_j": 900.0}, {"energy_j": 40.0}, 40.0),  # it began again: what it counted since
        ({"power_w": 100.0}, {"power_w": 300.0}, 200.0 * 60),  # no counter: mean power times time
        ({}, {"uuid": "GPU-2", "energy_j": 5.0}, 0.0),  # seen once
    ],
)
def test_energy_is_what_two_readings_tell(before: dict[str, Any], after: dict[str, Any], joules: float) -> None:
    assert joules_used([known(0.0, **before)], [known(60.0, **after)]) == joules
    assert electricity_usd(1000 * 3600, 0.12) == pytest.approx(0.12)  # a kilowatt for an hour


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.none, Fault.short, Fault.nan)])
def test_an_exporter_that_fails_gives_a_reason_and_then_recovers(fault: Fault) -> None:
    text = page(dcgm(DCGM_FI_DEV_POWER_USAGE="350.25", DCGM_FI_DEV_GPU_UTIL="98"))
    with faulty_page(FaultyPage(lambda: text)) as exporter:
        exporter.fault = fault
        with pytest.raises(TokonomicsError):
            asyncio.run(dcgm_gpus(exporter.url, timeout_s=0.3 if fault in (Fault.slow, Fault.silent) else 10.0))
        exporter.fault = Fault.none
        (reading,) = asyncio.run(dcgm_gpus(exporter.url))
        assert reading.power_w == 350.25
