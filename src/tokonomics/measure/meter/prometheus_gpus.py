"""What the GPUs of a whole fleet draw, from the Prometheus that scrapes their DCGM exporters already."""

import time
from collections.abc import Callable, Sequence

import aiohttp

from tokonomics.errors import TokonomicsError
from tokonomics.measure.meter.gpu import DCGM_NAMES, dcgm_readings
from tokonomics.measure.meter.prometheus_api import PrometheusApi
from tokonomics.measure.meter.prometheus_source import selector_of
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.scrape import authorization

NEWEST_WITHIN_S = 120.0
"""A GPU whose newest sample is older is not there any more: exporters are scraped every 15 to 60 s."""


class PrometheusGpuSource:
    """The GPUs that a Prometheus knows; ``why`` says why the last reading gave none."""

    def __init__(
        self, url: str, match: str | None = None, timeout_s: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.why: str | None = None
        self._api = PrometheusApi(url, headers=authorization(), timeout_s=timeout_s)
        self._selector = selector_of(DCGM_NAMES, match)
        self._clock = clock

    async def gpus(self) -> Sequence[GpuReading]:
        """The newest sample of each series; the time of all of them is that of the newest."""
        self.why = None
        try:
            async with aiohttp.ClientSession() as session:
                answer = await self._api.raw_samples(session, self._selector, NEWEST_WITHIN_S, self._clock())
        except TokonomicsError as error:
            self.why = str(error)
            return []
        newest = [(series.labels, series.samples[-1]) for series in answer.series if series.samples]
        if not newest:
            self.why = f"{self._api.shown}: no GPU of a DCGM exporter in the last {NEWEST_WITHIN_S:g} s"
            return []
        at = max(sample_at for _, (sample_at, _) in newest)
        return dcgm_readings(((labels["__name__"], labels, value) for labels, (_, value) in newest), at)
