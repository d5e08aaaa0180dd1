"""Answer what several models cost on several GPUs, and what changes between two scenarios: ``compare`` and ``diff``."""

from pathlib import Path

from pydantic import Field

from tokonomics.errors import BadInput, UnknownName
from tokonomics.measure.benchmark_run import ApiLatency
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import ApiBeside, share_of_api
from tokonomics.planner.compare import Comparison, parse_quality
from tokonomics.planner.compare import compare as side_by_side
from tokonomics.planner.compare import diff as plan_diff
from tokonomics.planner.parsing import listed
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.api_beside import api_of_study, hosts_beside, latencies_of
from tokonomics.questions.load import cases_of, load_of, questions_of, say_not_tried
from tokonomics.questions.plan import questions_in, studied
from tokonomics.questions.request import SILENT, Listener, parameters_of
from tokonomics.questions.requests.buy import CompareRequest, DiffRequest, PlanRequest
from tokonomics.questions.result import Result
from tokonomics.questions.results import OneNoun
from tokonomics.questions.scenario import read_request
from tokonomics.questions.serving import say_if_compiling
from tokonomics.sizing.load import Load


class CompareResult(Result, Comparison):
    """Several models on several GPUs, side by side, and what APIs charge for the same requests."""

    apis: dict[str, tuple[ApiCost, ...]] = Field(default_factory=dict)
    """By model: its cheapest hosts, and the measured ones."""
    api_beside: dict[str, ApiBeside] = Field(default_factory=dict)
    """By model: its cheapest API, beside its cheapest GPU."""
    best: Candidate | None = None
    """The pick of the cheapest pair per token; at a recent price, if that costs little more."""
    latencies: dict[str, ApiLatency] = Field(default_factory=dict)
    """How fast the measured APIs answer, by name."""

    @property
    def is_found(self) -> bool:
        return bool(self.gpus)


DIFF_FORMATS = ("github", "gitlab", "json")


def diff(request: DiffRequest, listener: Listener = SILENT) -> OneNoun:
    """Return the inputs that differ, the pick of each side, and what the change saves."""
    if request.format is not None and request.format not in DIFF_FORMATS:
        raise UnknownName("format", request.format, DIFF_FORMATS, fix=f"Formats: {', '.join(DIFF_FORMATS)}.")
    paths = (Path(request.model), Path(request.against))
    when = (" before", " after") if paths[0].name == paths[1].name else ("", "")
    sides, apis = [], list[ApiBeside | None]()
    for path, then in zip(paths, when, strict=True):
        asked = read_request(path, PlanRequest, "plan")
        if len(cases_of(asked)) > 1 or len(asked.model) > 1:
            raise BadInput("is compared with one model and without ranges", where=str(path))
        (study,) = studied(questions_in(asked, listener), listener)
        sides.append((f"{path.name}{then}", _words(asked), study.plan))
        apis.append(api_of_study(asked, study, asked.model[0], latencies_of(asked)))
    return OneNoun(noun=plan_diff(*sides, apis=(apis[0], apis[1])))


_NOT_COMPARED = {"top", "why", "explain", "deploy", "deploy_to", "quote", "profile"}


def _words(request: PlanRequest) -> dict[str, object]:
    """Return the scenario's values for the planner, by key."""
    return {
        parameter.key: getattr(request, name)
        for name, parameter in parameters_of(PlanRequest).items()
        if name not in _NOT_COMPARED
    }


def compare(request: CompareRequest, listener: Listener = SILENT) -> CompareResult:
    """Return the dollars per million tokens of every pair, side by side."""
    if len(cases_of(request)) > 1:
        raise BadInput("a range is for plan", field="rate, input, output")
    questions = questions_of(request, not request.simulate, listener)
    scores = parse_quality(request.quality or (), [question.model.key for question in questions])
    if request.simulate:
        say_if_compiling(listener)
    for question in questions:
        say_not_tried(question, listener)
    listener.doing("comparing")
    latencies, share = latencies_of(request), _cached_share(request, questions[0].load)
    found = side_by_side(questions, scores, listener.doing)
    picks = sorted((cell.pick for cell in found.cells if cell.pick), key=lambda pick: pick.usd_per_mtok.blended)
    apis: dict[str, tuple[ApiCost, ...]] = {}
    beside: dict[str, ApiBeside] = {}
    for question, asked in zip(questions, listed(request.model, "model") or (), strict=True):
        key = question.model.key
        usd = min((pick.usd_per_month for pick in picks if pick.model == key), default=None)
        bills, api = hosts_beside(request, question, asked, usd, latencies, share)
        if bills:
            apis[key] = tuple(bill for place, bill in enumerate(bills) if place < _HOSTS or bill.name in latencies)
        if api:
            beside[key] = api
    best = picks[0] if picks else None
    return CompareResult(**dict(found), apis=apis, api_beside=beside, latencies=latencies, best=best)


_HOSTS = 2  # number of the cheapest hosts to show beside a model's hardware; `breakeven` shows all


def _cached_share(request: CompareRequest, load: Load) -> float:
    """Return the share of a log's prompts that hosts read from their caches, at its own pace, which decides that."""
    paceless = request.model_copy(update={"rate": None, "tokens_per_month": None})
    return share_of_api(load if request.trace is None or request == paceless else load_of(paceless), None)
