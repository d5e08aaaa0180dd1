"""Set the APIs that sell a model beside a plan of it: what they charge for its requests, and how fast they answer.

How fast an API answers is known only if the user measured it (``bench --api host:model --save``).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.benchmark_run import ApiLatency, api_latency, slos_at
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import ApiBeside, api_bills, cheapest_api
from tokonomics.planner.parsing import listed
from tokonomics.planner.plan import Question, Study
from tokonomics.questions.inputs import MeasuredApis
from tokonomics.questions.requests.buy import CompareRequest, PlanRequest
from tokonomics.traffic.slo import Slo


def latencies_of(request: MeasuredApis | PlanRequest) -> dict[str, ApiLatency]:
    """Return measured latencies by ``host:model``; empty if no files are given.

    For a plan, files may also be load tests of the user's own machines: those are no APIs, and are passed over.
    """
    if not request.measured:
        return {}
    from tokonomics.measure.importers.recognise import read_runs

    found: dict[str, ApiLatency] = {}
    for name in request.measured:
        run = read_runs([Path(name)])
        if run.api is None and isinstance(request, PlanRequest):
            continue
        made = api_latency(run, shorten(Path(name).name))
        if made.api in found:
            raise BadInput(f"{made.api} is measured by two files", field="measured", fix="Give one of them.")
        found[made.api] = made
    return found


def hosts_beside(
    request: PlanRequest | CompareRequest,
    question: Question,
    asked: str,
    fleet_usd_per_month: float | None,
    latencies: Mapping[str, ApiLatency],
    cached_share: float | None = None,
) -> tuple[tuple[ApiCost, ...], ApiBeside | None]:
    """Return what each host of the model charges for the question's requests, and the cheapest beside the fleet."""
    slos = question.slos
    measured = {name: _meets(latency, slos) for name, latency in latencies.items()}
    missed = [name for name, met in measured.items() if slos and met is False]
    charged = partial(api_bills, question.model, asked, question.load, batch=request.offline, cached_share=cached_share)
    bills = charged()
    # A host's other price counts where the cheapest is of an API that misses the SLO.
    usable = charged(without=missed) if missed else bills
    beside = cheapest_api(
        usable,
        question.load.workload.tokens_per_month,
        fleet_usd_per_month,
        region=listed(request.region, "region") or (),
        has_slo=bool(slos),
        measured=measured,
        missed=missed,
    )
    return bills, beside


def api_of_study(
    request: PlanRequest, study: Study, asked: str, latencies: Mapping[str, ApiLatency] | None = None
) -> ApiBeside | None:
    """Return the cheapest API beside the pick of a study, if the model is sold as one."""
    best = study.plan.best
    usd = best.usd_per_month if best else None
    return hosts_beside(request, study.question, asked, usd, latencies or {})[1]


def _meets(latency: ApiLatency, slos: tuple[Slo, ...]) -> bool | None:
    """Tell whether an API's measured latency meets every SLO; None if it misses none, and says nothing of some."""
    judged = [(slo.measured_s, slo.met) for slo in slos_at(latency, slos)]
    if any(seconds is not None and not met for seconds, met in judged):
        return False
    return None if any(seconds is None for seconds, _ in judged) else True
