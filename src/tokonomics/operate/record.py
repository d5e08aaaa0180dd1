"""Keep what a search for flags measured, load by load, in one file that can be checked: the certificate.

The file is written after every load, so that a search that is interrupted goes on from its last load. It holds what was
asked, on which machine and engine, each trial with the times of all of its requests, and a digest over all of that.
``checked`` computes every figure again from those times.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, ValidationError

from tokonomics import __version__
from tokonomics.errors import BadInput, from_validation, option, shorten
from tokonomics.files import write_text
from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.replay_rate import PlayedRate, held_rate
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.types import Noun

Kept = TypeVar("Kept", bound="Sealed")

_PLACES = 5  # of a time in seconds: a hundredth of a millisecond


class ReplayedRequests(Noun):
    """The requests of a load, each with when it was due and its latencies; None if it has none, or failed."""

    sent_s: tuple[float, ...]
    ttft_s: tuple[float | None, ...]
    tpot_s: tuple[float | None, ...]
    e2e_s: tuple[float | None, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


class TrialLoad(Noun):
    """One replay on the engine at a rate."""

    rate: PositiveFloat
    late: NonNegativeFloat | None  # the worst target's delivered ÷ promised; None if requests failed
    failed: NonNegativeInt
    again: str | None = None  # why it does not count and was played again
    requests: ReplayedRequests

    def lateness(self, slos: tuple[Slo, ...]) -> float:
        """Compute from its requests how late it is; a request that failed is later than any target."""
        rows = self.requests
        failed = [each is None for each in rows.e2e_s]
        worst = 0.0
        for slo in slos:
            taken = zip(getattr(rows, f"{slo.latency}_s"), failed, strict=True)
            known = [math.inf if gone else value for value, gone in taken if gone or value is not None]
            spread = _statistic(known, slo.statistic)
            worst = max(worst, math.inf if spread is None else spread / slo.seconds)
        return worst


def _statistic(values: Sequence[float], name: str) -> float | None:
    """Return a mean or percentile of values, some of which may be infinite; None of none."""
    if not values:
        return None
    if name == "mean":
        return math.fsum(values) / len(values) if math.isfinite(max(values)) else math.inf
    ordered, place = sorted(values), float(name[1:]) / 100 * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (high - low) * (place - math.floor(place))


class FlagTrial(Noun):
    """A flag set on the engine: what it held, or why it could not be measured."""

    flags: FlagSet
    words: str  # as they were given to the engine
    checkpoint: str = ""  # what stood for {model} in the command
    predicted: PositiveFloat | None  # requests a second in simulation; None if nothing was simulated
    gpus: int = 1
    ready_s: NonNegativeFloat | None = None  # from start to the first answer
    loads: tuple[TrialLoad, ...] = ()
    failed: str | None = None  # why there is no rate: a server that died, hung or refused
    finished: bool = False
    engine: dict[str, Any] = Field(default_factory=dict)  # what the server says of itself

    @property
    def counted(self) -> tuple[PlayedRate, ...]:
        return tuple(
            PlayedRate(load.rate, math.inf if load.late is None else load.late)
            for load in self.loads
            if load.again is None
        )

    @property
    def rate(self) -> float:
        """Return the highest rate that met the targets; 0 if it failed or held none."""
        return 0.0 if self.failed else held_rate(self.counted)


class TuneQuestion(Noun):
    """What a search is for: another question is another search."""

    model: str
    gpu: str | None
    engine: str
    server: str  # the command that starts it, or its address
    setup: str  # what the simulator takes it for; empty if nothing is simulated
    slos: str
    traffic: str  # digest of the requests that are replayed
    requests: int
    axes: dict[str, tuple[str, ...]]
    gpus: int


class Sealed(Noun):
    """What was measured, kept in a file with a digest over everything else in it."""

    digest: str = ""

    def sealed(self) -> Self:
        """Return it with its digest."""
        return self.model_copy(update={"digest": self.digest_now()})

    def digest_now(self) -> str:
        return digest_of(self.model_dump(mode="json"))


class Record(Sealed):
    """A search for flags: the question, the machine, and every trial."""

    kind: Literal["tokonomics tune"] = "tokonomics tune"
    version: str = __version__
    made: datetime
    question: TuneQuestion
    machine: dict[str, Any] = Field(default_factory=dict)
    usd_per_gpu_hour: PositiveFloat | None = None
    price_from: str | None = None
    shares_prefixes: bool = False  # prompts had tokens in common, or were turns of a session
    tokens_per_request: PositiveFloat
    trials: tuple[FlagTrial, ...] = ()
    proposed: FlagSet | None = None  # what the user is to start the server with next, if it is not ours to start
    stopped: str | None = None  # why no further set is tried

    def usd_per_mtok(self, rate: float, gpus: int = 1) -> float | None:
        """Return what a million tokens cost at a rate of requests; None without a price or a rate."""
        from tokonomics.money.cost import cost

        if self.usd_per_gpu_hour is None or rate <= 0:
            return None
        return cost(self.usd_per_gpu_hour, rate * self.tokens_per_request, gpus=gpus).usd_per_mtok


def digest_of(document: dict[str, Any]) -> str:
    """Return the digest of everything in a certificate but its digest."""
    said = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def requests_of(point: LoadPoint) -> ReplayedRequests:
    """Return the requests of a measured load, times rounded."""

    def column(name: str) -> tuple[float | None, ...]:
        values = [getattr(record, name) for record in point.records]
        return tuple(None if value is None else round(value, _PLACES) for value in values)

    return ReplayedRequests(
        sent_s=tuple(round(record.sent_s, _PLACES) for record in point.records),
        ttft_s=column("ttft_s"),
        tpot_s=column("tpot_s"),
        e2e_s=column("e2e_s"),
        input_tokens=tuple(record.input_tokens for record in point.records),
        output_tokens=tuple(record.output_tokens for record in point.records),
    )


def save_record(record: Sealed, path: Path) -> None:
    """Write it at once or not at all."""
    write_text(path, json.dumps(record.sealed().model_dump(mode="json")) + "\n", option("out", shorten(path.name)))


def read_record(path: Path, field: str = "out") -> Record:
    """Read a certificate; raise ``BadInput`` if it is not one or was changed by hand."""
    return read_sealed(path, Record, field)


def read_sealed(path: Path, kind: type[Kept], field: str | None = None) -> Kept:
    """Read what ``save_record`` wrote; raise ``BadInput`` if it is of another kind or was changed by hand."""
    try:
        text = path.read_bytes()
        record = kind.model_validate_json(text)
    except ValidationError as error:
        raise from_validation(error, str(path)) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path), field=field) from None
    if record.digest != digest_of(json.loads(text)):  # as it stands there: an older version wrote fewer fields
        raise BadInput("was changed after it was written: its digest is that of other content", where=str(path))
    return record


def disagreements(record: Record) -> tuple[str, ...]:
    """Compute every load's lateness again from its requests; return what does not follow from them."""
    slos = parse_slos(record.question.slos)
    found = []
    for number, trial in enumerate(record.trials, 1):
        for load in trial.loads:
            late, rows = load.lateness(slos), load.requests
            if load.failed != sum(each is None for each in rows.e2e_s):
                found.append(f"trial {number} at {load.rate:g}/s says that {load.failed} requests failed")
            span_s = max(rows.sent_s) - min(rows.sent_s) if rows.sent_s else 0.0
            if span_s > 0 and not 0.5 < (len(rows.sent_s) - 1) / span_s / load.rate < 2:
                found.append(
                    f"trial {number} says {load.rate:g}/s, its requests came at {len(rows.sent_s) / span_s:.4g}"
                )
            said = math.inf if load.late is None else load.late
            if not (late == said or math.isclose(late, said, rel_tol=1e-3)):
                found.append(
                    f"trial {number} at {load.rate:g}/s says {said:.4g} of its targets, its requests {late:.4g}"
                )
    return tuple(found)
