"""Answer what a new build of a server changes: which part of a step, by how much, and what that costs: ``guard``.

Each side is a fingerprint in a file, or a server that is measured now; two servers are measured in turns.
"""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from tokonomics.addresses import split_address, target
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, TokonomicsError, UnknownName, option, shorten
from tokonomics.files import check_path
from tokonomics.money.cost import cost
from tokonomics.operate.fingerprint import PROBES, Fingerprint, ProbedServer, fingerprints
from tokonomics.operate.guard import BuildChange, ToldChange, compare
from tokonomics.operate.guard_price import held_rates
from tokonomics.operate.record import read_sealed, save_record
from tokonomics.operate.trial import requests_for, server_facts
from tokonomics.physics.deployment import Deployment
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import GuardRequest
from tokonomics.questions.result import Result
from tokonomics.questions.serving import fleet_of, price_of, say_if_compiling
from tokonomics.questions.traffic import traffic_of
from tokonomics.questions.tune_answer import bounds
from tokonomics.questions.tune_asked import replica_of, waited_targets
from tokonomics.traffic.workload import lengths_text
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_MONTH, TOKENS_PER_MTOK, percent

FORMATS = ("github",)


class BuildMark(Noun):
    """One side: where its fingerprint is from, and what was measured."""

    name: str  # a file, or an address
    kept: str | None = None  # the file that it was kept in
    mark: Fingerprint


class BuildPrice(Noun):
    """What a change costs on the user's traffic: the highest rate of one replica under the SLOs, and its dollars."""

    model: str
    gpu: str
    slos: str
    traffic: str
    before_rate: float
    after_rate: float
    ratio: float | None  # of dollars, after ÷ before, with its interval; None if one side meets the SLOs at no rate
    low: float | None
    high: float | None
    before_usd_per_mtok: float | None
    after_usd_per_mtok: float | None
    before_usd_per_month: float | None  # at the traffic's own rate, on replicas as full as the SLOs allow
    after_usd_per_month: float | None
    price_from: str | None
    calibrated: str
    left_out: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()  # what was asked for is not what the fingerprints are of

    def is_dearer(self, tolerance: float) -> bool:
        never = self.before_rate > 0 and self.after_rate <= 0
        return never or (self.low is not None and self.low > 1 + tolerance)


class GuardResult(Result):
    """Two builds side by side, or the fingerprint of one."""

    ROWS: ClassVar[str] = "change.probes"

    old: BuildMark
    new: BuildMark | None = None
    change: BuildChange | None = None
    price: BuildPrice | None = None

    @property
    def is_found(self) -> bool:
        change = self.change
        return change is None or not (change.is_worse or (self.price and self.price.is_dearer(change.tolerance)))

    @property
    def lost(self) -> tuple[ToldChange, ...]:
        return self.change.lost if self.change else ()

    def headline(self) -> str:
        if self.change is None:
            return f"{self.old.name}: {len(self.old.mark.probes)} probes"
        said = f"{percent(self.change.typical - 1)} in the median"
        if self.change.deciding:
            first = self.change.deciding[0]
            said = f"{first.what}, {percent(first.low - 1)} to {percent(first.high - 1)}"
        if self.change.terms:
            said = self.change.terms[0].said
        return f"{self.change.verdict}: {said}"


def guard(request: GuardRequest, listener: Listener = SILENT) -> GuardResult:
    """Fingerprint the servers, compare the two builds, and price the change if the traffic is given."""
    if request.format is not None and request.format not in FORMATS:
        raise UnknownName("format", request.format, FORMATS, fix=f"Formats: {', '.join(FORMATS)}.")
    names = [request.old] if request.new is None else [request.old, request.new]
    sides = _sides(request, names, listener)
    if len(sides) == 1:
        return GuardResult(old=sides[0])
    old, new = sides
    change = compare(old.mark, new.mark, request.tolerance)
    return GuardResult(old=old, new=new, change=change, price=_price(request, old.mark, new.mark, change, listener))


def _sides(request: GuardRequest, names: Sequence[str], listener: Listener) -> list[BuildMark]:
    """Read the fingerprints that are files, and take those that are addresses."""
    addresses = [name for name in names if split_address(name)]
    if request.out is not None:
        check_path(Path(request.out), "out", (".json",))
        if not addresses:
            raise BadInput("is for a server that is measured, and both sides are files", field="out")
    if len(names) == 1 and addresses and request.out is None:
        fix = f"Name a file, {option('out', 'build-a.json')}, or a second build to compare with."
        raise BadInput("the fingerprint would be lost", fix=fix)
    sides = [None if split_address(name) else BuildMark(name=name, mark=_read(name)) for name in names]
    if not addresses:
        return [side for side in sides if side]
    servers = [ProbedServer(target(name), server_facts(target(name)).get("model_id")) for name in addresses]
    seed = secrets.randbelow(2**31)
    # No more than what the file has is worth measuring of the other.
    known = [[each.probe for each in side.mark.probes] for side in sides if side]
    made = fingerprints(
        servers,
        request.minutes,
        timeout_s=request.timeout,
        seed=seed,
        doing=listener.doing,
        probes=known[0] if known else PROBES,
    )
    left = iter(zip(made, [len(made) - 1 - place > 0 for place in range(len(made))], strict=True))
    return [side or _keep(request, name, *next(left)) for side, name in zip(sides, names, strict=True)]


def _read(name: str) -> Fingerprint:
    path = Path(name)
    if path.suffix.lower() != ".json":
        fix = "Such as build-a.json, or http://localhost:8000."
        raise BadInput(f"'{name}' is neither a fingerprint nor the address of a server", fix=fix)
    return read_sealed(path, Fingerprint)


def _keep(request: GuardRequest, name: str, mark: Fingerprint, is_older: bool) -> BuildMark:
    """Save a fingerprint that was taken, if that is asked for; of two, the older beside the newer."""
    if request.out is None:
        return BuildMark(name=name, mark=mark)
    path = Path(request.out)
    path = path.with_name(f"{path.stem}-old{path.suffix}") if is_older else path
    save_record(mark, path)
    return BuildMark(name=name, kept=str(path), mark=mark)


def _price(
    request: GuardRequest, old: Fingerprint, new: Fingerprint, change: BuildChange, listener: Listener
) -> BuildPrice | None:
    """Simulate both builds on the user's traffic; None if it, the model, the GPU or the targets are not given."""
    if request.model is None and request.gpu is None and request.slo is None:
        return None
    for name in ("model", "gpu", "slo"):
        if getattr(request, name) is None:
            fix = f"Leave out all of {option('model')}, {option('gpu')} and {option('slo')} to compare without a price."
            raise BadInput("is missing: a price takes a model, its GPU, traffic and targets", field=name, fix=fix)
    slos, trace = waited_targets(request), traffic_of(request, listener)
    engine = request.engine or old.engine.get("engine")
    setup = replica_of(request.model_copy(update={"engine": engine}), request.model, request.gpu or "", trace, slos)
    say_if_compiling(listener)
    listener.doing("simulating both builds on your traffic")
    rates = held_rates(setup, old, new, change, request.requests or requests_for(slos))
    rented = price_of(setup.deployment, fleet_of(), request)
    tokens = float(trace.input_tokens.mean() + trace.output_tokens.mean())
    month_mtok = trace.rate * tokens * SECONDS_PER_MONTH / TOKENS_PER_MTOK

    def usd(rate: float) -> float | None:
        return cost(rented[0], rate * tokens).usd_per_mtok if rented and rate > 0 else None

    before, after = usd(rates.before), usd(rates.after)
    both = rates.before > 0 and rates.after > 0 and min(rates.ends) > 0
    return BuildPrice(
        model=setup.deployment.model.key,
        gpu=setup.deployment.gpu.key,
        slos=bounds(slos),
        traffic=lengths_text(trace),
        before_rate=rates.before,
        after_rate=rates.after,
        ratio=rates.before / rates.after if both else None,
        low=1 / max(rates.ends) if both else None,
        high=1 / min(rates.ends) if both else None,
        before_usd_per_mtok=before,
        after_usd_per_mtok=after,
        before_usd_per_month=before and before * month_mtok,
        after_usd_per_month=after and after * month_mtok,
        price_from=rented[1] if rented else None,
        calibrated=rates.calibrated,
        left_out=rates.left_out,
        unlike=tuple(_not_as_asked((old, new), setup.deployment)),
    )


def _not_as_asked(marks: Sequence[Fingerprint], priced: Deployment) -> Iterator[str]:
    """Yield where the model or the engine that is priced is another one than was measured."""
    for served in dict.fromkeys(mark.model for mark in marks):
        try:
            measured = find_model(served).key
        except TokonomicsError:  # a name of the server's own
            yield f"'{shorten(served, 60)}' was measured, and {priced.model.key} is priced: is it the same model?"
            continue
        if measured != priced.model.key:
            yield f"{measured} was measured, and {priced.model.key} is priced"
    for engine in dict.fromkeys(mark.engine.get("engine") for mark in marks):
        if engine and engine != priced.engine.key:
            yield f"{engine} was measured, and {priced.engine.key} is priced"
