"""How soon an engine serves: from an order, from a disk, or from the host's memory.

    cold start = machine + image + engine + weights ÷ the disk's bytes a second
    wake       = a fixed time + weights ÷ what vLLM reaches of PCIe; asleep, the weights lie in the host's memory

One row each in ``data/start_times.toml``, with source and date: the one place that fleets, autoscaling and models that
share a GPU read them from.
"""

import datetime
import tomllib
from functools import cache
from pathlib import Path

from pydantic import PositiveFloat

from tokonomics.catalog.gpus import Gpu
from tokonomics.types import Noun

_SHIPPED = Path(__file__).parent / "data" / "start_times.toml"


class StartTime(Noun):
    """One figure and where it is from."""

    value: PositiveFloat
    source: str
    date: datetime.date


class StartTimes(Noun):
    """The figures of the file, by name."""

    machine_s: StartTime
    image_s: StartTime
    engine_s: StartTime
    network_disk_bytes_per_s: StartTime
    sleep_fixed_s: StartTime
    sleep_share_of_pcie: StartTime
    wake_fixed_s: StartTime
    wake_share_of_pcie: StartTime
    asleep_bytes: StartTime

    @property
    def ready_s(self) -> float:
        """From the order to an engine that loads weights."""
        return self.machine_s.value + self.image_s.value + self.engine_s.value

    def cold_s(self, weight_bytes: float) -> float:
        """From the order to the first answer, from a network disk: the disks of a machine just ordered are empty."""
        return self.ready_s + weight_bytes / self.network_disk_bytes_per_s.value

    def wake_s(self, weight_bytes: float, gpu: Gpu) -> float:
        """Until an engine whose weights lie in the host's memory serves."""
        return self.wake_fixed_s.value + weight_bytes / (self.wake_share_of_pcie.value * gpu.pcie_bytes_per_s)

    def sleep_s(self, weight_bytes: float, gpu: Gpu) -> float:
        """Until its weights are in the host's memory, from the second time on."""
        return self.sleep_fixed_s.value + weight_bytes / (self.sleep_share_of_pcie.value * gpu.pcie_bytes_per_s)


@cache
def start_times() -> StartTimes:
    """The shipped figures."""
    return StartTimes.model_validate(tomllib.loads(_SHIPPED.read_text(encoding="utf-8")))
