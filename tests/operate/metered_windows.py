"""A ledger of servers whose traffic is known: windows as a meter keeps them, and what a twin said of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.spans import BEYOND, PaidTime, WatchedSpan
from tokonomics.measure.meter.state import MeterTally
from tokonomics.measure.meter.windows import ServedWindow
from tokonomics.operate.learn import ForecastBand, TwinWindow, WindowFigure

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HOUR_S = 3600.0
MONDAY = 1_762_732_800.0
"""2025-11-10, 00:00 UTC: a Monday."""
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, BEYOND)
"""vLLM's own bounds for lengths."""


def lognormal(mean: float, sigma: float, number: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, number)
    return np.maximum(1.0, np.round(drawn))


def counted_in(lengths: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[float, float]:
    places = np.searchsorted(TOKENS, lengths, side="left")
    return {bound: float(np.count_nonzero(places == place)) for place, bound in enumerate(TOKENS)}


@dataclass(frozen=True)
class KnownServers:
    """Equal servers that share a rate which is known for every hour; each hour is a window."""

    rate: Callable[[float], float]  # requests a second of all servers, by unix time
    servers: int = 2
    usd_per_hour: float = 3.0
    input_tokens: float = 1000.0
    output_tokens: float = 300.0
    hit_share: float = 0.0
    seed: int = 0
    unseen: Mapping[float, float] = field(
        default_factory=dict
    )  # share of an hour in which nobody watched, by its start
    states: dict[str, str] = field(default_factory=dict)

    def windows(self, start: float, hours: int) -> list[ServedWindow]:
        rng = np.random.default_rng(self.seed)
        return [
            self._window(server, start + hour * HOUR_S, rng) for hour in range(hours) for server in range(self.servers)
        ]

    def _window(self, server: int, start: float, rng: np.random.Generator) -> ServedWindow:
        number = int(rng.poisson(self.rate(start) / self.servers * HOUR_S))
        inputs = lognormal(self.input_tokens, 0.8, number, int(rng.integers(2**31)))
        outputs = lognormal(self.output_tokens, 0.5, number, int(rng.integers(2**31)))
        gap_s = self.unseen.get(start, 0.0) * HOUR_S
        tokens = float(inputs.sum() + outputs.sum())
        sums = MeterTally(
            seconds=HOUR_S, busy_s=HOUR_S - gap_s, gap_s=gap_s, usd=self.usd_per_hour,
            input_total=float(inputs.sum()), input_cached=self.hit_share * float(inputs.sum()),
            output=float(outputs.sum()), answered=number, ttft_s=0.1 * number, ttft_count=number,
            unseen_tokens=tokens * gap_s / HOUR_S,
        )  # fmt: skip
        return ServedWindow(
            target=f"http://gpu{server}:8000", model=MODEL, engine="vllm", start=start, sums=sums, states=self.states,
            tpot_s=0.02 * number, tpot_count=number,
            buckets={Counted.input_buckets: counted_in(inputs), Counted.output_buckets: counted_in(outputs)},
        )  # fmt: skip


def span_of(window: ServedWindow) -> PaidTime:
    names = ("seconds", "usd", "busy_s", "input_total", "input_cached", "output", "answered")
    sums = {name: getattr(window.sums, name) for name in names}
    return PaidTime(
        target=window.target, model=window.model, engine=window.engine, watched=WatchedSpan.seen, start=window.start,
        usd_per_hour=window.sums.usd, server_s=window.sums.seconds, **sums,
    )  # fmt: skip


def scored(window: ServedWindow, off: float, factors: Mapping[str, float] | None = None) -> TwinWindow:
    """Return what a twin said of a window, each figure being off by the same share."""
    band = ForecastBand(low=0.5, mid=1.0, high=2.0)
    figure = WindowFigure(measured=1.0 + off, forecast=band, given=band)
    return TwinWindow(
        target=window.target, model=window.model, start=window.start, is_over=True, factors=dict(factors or {}),
        figures={"tpot_s": figure, "tokens_per_s": figure},
    )  # fmt: skip


def ledger_of(
    path: Path, windows: list[ServedWindow], off: float | None = None, factors: Mapping[str, float] | None = None
) -> Path:
    """Write a ledger of these windows; with ``off``, a twin has scored each of them."""
    with Ledger(path) as book:
        assert book.record(map(span_of, windows), [], None, windows) is None
        if off is not None:
            said = [scored(window, off, factors) for window in windows]
            rows = {(one.target, one.model, one.start): one.model_dump_json(exclude_defaults=True) for one in said}
            assert book.keep_forecasts(rows) is None
    return path
