"""Answer what the user's machine can run (``can-run``): which models, how fast, for how many users, at what cost."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokonomics.catalog.engines import all_engines, engine_for
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.offers import MAX_GPUS
from tokonomics.errors import BadInput, option
from tokonomics.money.own_hardware import Power, Purchase
from tokonomics.physics.curves import PowerCurve, power_of
from tokonomics.planner.can_run import CanRun, OwnMachine, shortlist
from tokonomics.planner.can_run import can_run as what_runs
from tokonomics.planner.parsing import dollars, gpu_filter, listed
from tokonomics.questions.cost import kept_machine
from tokonomics.questions.deployment import require_writer, targets_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import CanRunRequest, PlanRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.traffic import lengths_of
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.lengths import draw_lengths
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import plural

DEFAULT_PACE = Slo(latency=Latency.tpot, statistic="p99", seconds=0.05)
"""20 tokens/s for each user if no SLO is given: nearly four times as fast as people read (238 words a minute,
Brysbaert 2019, doi:10.1016/j.jml.2019.104047; four tokens make three words, OpenAI, "What are tokens")."""


class CanRunResult(Result, CanRun):
    """What the user's own machine can run, largest model first, and what does not fit."""

    ROWS = "runs"

    gpu_power: PowerCurve | None = None  # what each of its GPUs draws; None: unknown, or no dollars wanted
    shortlist: Any = beside()  # for a catalogue: the rows that a person would look at first
    not_counted: Any = beside()  # inputs of a plan that have no meaning on the user's own machine
    longest_request: Any = beside()
    """Tokens of the longest request in a plan's traffic; servers are started for it if they can hold it."""

    @property
    def is_found(self) -> bool:
        return bool(self.runs)

    def headline(self) -> str:
        machine, tokens = f"{self.gpus}×{self.gpu}", f"{self.context:,} tokens"
        if not self.runs:
            only = f"{self.too_large[0].model} does not fit" if len(self.too_large) == 1 else ""
            return f"{machine}: {only or 'none of these models fits'} with {tokens} of context"
        fits, largest = len({row.model for row in self.runs}), self.runs[0]
        of, fit = plural(fits + len(self.too_large), "model"), "fits" if fits == 1 else "fit"
        up_to = f"{largest.name} at {largest.weights} ({plural(largest.users, 'user')})"
        return f"{machine}: {fits} of {of} {fit} with {tokens}, up to {up_to}"


def can_run(request: CanRunRequest, listener: Listener = SILENT, longest: int = 0) -> CanRunResult:
    """Size every model of the catalogue, or every layout of named ones, on a machine; serve up to ``longest``."""
    gpu = find_gpu(request.gpu)
    engine = engine_for(gpu, request.engine)
    if engine.hardware_of(gpu.architecture) is None:
        others = [other.key for other in all_engines() if other.hardware_of(gpu.architecture)]
        fix = f"These engines do: {', '.join(others)}." if others else None
        raise BadInput(
            f"{engine.key} does not run on {gpu.architecture} GPUs such as {gpu.key}", field="engine", fix=fix
        )
    if request.gpus > MAX_GPUS:
        raise BadInput(f"must be at most {MAX_GPUS:,}, got {request.gpus:,}", field="gpus")
    names = listed(request.model, "model")
    models = [model for model in all_models() if not model.is_encoder]
    if names is not None:
        models = [find_model(name) for name in dict.fromkeys(names)]
        for model in models:
            require_writer(model)
            if "context" in request.given() and request.context > model.max_context:
                what = f"sequences of {request.context:,} tokens exceed {model.name}'s {model.max_context:,} of context"
                fix = f"{model.max_context:,} is the most; or name a model with a longer context."
                raise BadInput(what, field="input, output" if longest else "context", fix=fix)
    slos = targets_of(request)
    if any(slo.latency is Latency.e2e for slo in slos):
        listener.note("only SLOs on TTFT and on the time per token count here: an answer has no length of its own")
    if not any(slo.latency is Latency.tpot for slo in slos):
        slos = (*slos, DEFAULT_PACE)
    machine = OwnMachine(gpu, request.gpus, engine, _power(request))
    weights = _precisions(request.weights, WEIGHT_PRECISIONS, "weights")
    kv = _precisions(request.kv, KV_PRECISIONS, "kv")
    listed_all = names is not None
    found = what_runs(
        models, machine, request.context, slos, weights=weights, kv=kv, every_layout=listed_all, longest=longest
    )
    first = None if listed_all else shortlist(found.runs, models)
    return CanRunResult(**dict(found), gpu_power=power_of(gpu) if machine.power else None, shortlist=first)


def _precisions(texts: Sequence[str] | None, known: Sequence[Precision], field: str) -> tuple[Precision, ...] | None:
    named = listed(texts, field)
    return tuple(parse_precision(name, known, field) for name in named) if named else None


def on_own_machine(request: PlanRequest, listener: Listener = SILENT) -> CanRunResult:
    """Answer a plan for the user's own machine: every layout of its models, for sequences of its mean length."""
    names, number = gpu_filter(request.gpu, request.gpus)
    engines = listed(request.engine, "engine") or []
    for field, given in (("gpu", names or []), *([("engine", engines)] if engines else [])):
        if len(given) != 1:
            fix = f"Such as {option('gpu', 'H200')} {option('gpus', 8)} {option('engine', 'vllm')}."
            raise BadInput(f"a machine of one's own has one, got {', '.join(given) or 'none'}", field=field, fix=fix)
    asked = {name: value for name, value in request.given().items() if name in CanRunRequest.model_fields}
    asked |= {"gpu": (names or [])[0], "gpus": number or 1, "engine": engines[0] if engines else None}
    lengths, longest = {"input", "output"} & set(request.given()), 0
    if len(lengths) == 2:
        drawn = draw_lengths(*lengths_of(request), ENOUGH_REQUESTS, np.random.default_rng(request.seed))
        asked["context"] = math.ceil(sum(side.mean() for side in drawn))
        longest = int(np.sum(drawn, axis=0, dtype=np.int64).max())
    left = sorted(set(request.given()) - set(asked) - lengths - {"own"})
    found = can_run(CanRunRequest(**asked), listener, longest)
    return found.model_copy(update={"not_counted": tuple(left), "longest_request": longest})


def _power(request: CanRunRequest) -> Power | Purchase | None:
    """Return the cost of keeping the machine; None if no dollars are wanted."""
    bought = {"purchase_usd": dollars(request.purchase_usd, "purchase_usd"), "years": request.years}
    drawn = {"usd_per_kwh": request.usd_per_kwh, "host_watts": request.host_watts, "pue": request.pue}
    given = {name: value for name, value in {**bought, **drawn}.items() if value is not None}
    if not given:
        return None
    needed = ("usd_per_kwh", *(bought if set(bought) & set(given) else ()))
    missing = [name for name in needed if name not in given]
    if missing:
        such_as = {"usd_per_kwh": 0.3, "purchase_usd": 2500, "years": 3}
        fix = f"Such as {' '.join(option(name, such_as[name]) for name in missing)}."
        raise BadInput(f"{'is' if len(missing) == 1 else 'are'} missing", field=", ".join(missing), fix=fix)
    kind = Purchase if "years" in given else Power
    return kept_machine(kind, {"gpus": request.gpus, "host_watts": 0.0, "pue": 1.0, **given})
