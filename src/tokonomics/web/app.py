"""Define the routes: the page, the catalogue, answers, jobs, uploads, reports; documented by OpenAPI.

``make_app`` builds the application around one ``Service``, behind ``safety.Gate``.
"""

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from tokonomics import __version__
from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.worker import WHOLE, ours
from tokonomics.report.blocks import Section
from tokonomics.web import meter, pages, safety
from tokonomics.web.pages import accuracy
from tokonomics.web.safety import (
    Gate,
    LoginSessions,
    RefusalOut,
    allowed_hosts,
    is_loopback,
    of_validation,
    problem_response,
    refusal_of,
)
from tokonomics.web.service import Job, Service, Settings, TooManyOfYours
from tokonomics.web.uploads import TooMuch, TooSlow
from tokonomics.web.verbs import PageVerb, apis_json, catalogue_json, find_verb, prices_as_of, verbs
from tokonomics.workers import Busy

API = "/api/v1"
_MEANINGS = {
    400: "The body cannot be read.",
    404: "There is no such thing.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "An input cannot be used; it says which, why, and what to do.",
    429: "This client asks for too much at once.",
    503: "The server has as much work as it takes on.",
}
_OF_A_BODY = (400, 408, 413, 415, 422, 429, 503)
_STATUSES = (
    (TooManyOfYours, 429, 2), (Busy, 503, 5), (TooSlow, 408, None), (TooMuch, 413, None), (meter.NoLedger, 404, None),
)  # fmt: skip
"""For each kind of error (the first match counts): its HTTP status, and the seconds before another try."""
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
Id = Annotated[str, Path(min_length=1, max_length=64, pattern="^[A-Za-z0-9_-]+$")]
Charts = Annotated[bool, Query(description="Whether the charts are drawn as well.")]
Parts = Annotated[
    Sequence[Literal["result", "sections", "text", "markdown", "charts"]],
    Query(max_length=5, description="The parts that are wanted; without it all of them. Repeat it."),
]


class ChartOut(BaseModel):
    """A Vega-Lite spec, as ``--chart`` saves it."""

    name: str
    spec: dict[str, Any]


class AnswerOut(BaseModel):
    """What a verb answers: ``result`` is what ``--json`` prints. Parts that were not asked for are left out."""

    verb: str
    inputs: dict[str, Any]
    command: str = Field(description="The line that asks the same of the command line.")
    title: str
    headline: str = Field(description="What it comes to, in one line.")
    result: Any = None
    sections: list[Section] = Field([], description="The description: lines, facts, tables, bars and files.")
    text: str = Field("", description="What the terminal shows.")
    markdown: str = Field("", description="The same for a pull request, a wiki or a chat.")
    rows: str = Field(description="The list within the result that has the rows, such as ranked; empty where none has.")
    charts: list[ChartOut] = []
    plays: dict[str, Any] | None = Field(None, description="A simulated run over time with its texts, where asked for.")
    found: bool = Field(description="False where nothing does what was asked: exit code 1 of the command line.")
    notes: list[str] = Field(description="What the command line says beside the answer, such as rows left out.")
    seconds: float
    made: str
    version: str


class JobIn(BaseModel):
    """Long work: a verb and its inputs, as for answers."""

    model_config = ConfigDict(extra="forbid")
    verb: str = Field(max_length=40, examples=["plan"])
    inputs: dict[str, Any]


class ReportIn(BaseModel):
    """The answer to be put into one file: that of a finished job, or of a quick verb."""

    model_config = ConfigDict(extra="forbid")
    job: str | None = Field(default=None, max_length=64)
    verb: str | None = Field(default=None, max_length=40)
    inputs: dict[str, Any] = Field(default_factory=dict)


class JobOut(BaseModel):
    """A job."""

    id: str
    state: Literal["running", "answer", "failed", "cancelled"]


class UploadOut(BaseModel):
    """A kept file, and what it was found to be."""

    model_config = ConfigDict(extra="allow")
    id: str
    name: str
    bytes: int
    kind: Literal["config", "certificate", "benchmark", "trace", "unknown"]
    table: dict[str, Any] | None = Field(
        default=None,
        description="Of a table whose columns are not known: its columns, the first rows, and the fields to name.",
    )


def make_app(settings: Settings | None = None, service: Service | None = None) -> Gate:
    """Return the application behind its gate; the caller closes ``.service`` at the end."""
    settings = settings or Settings()
    service = service or Service(settings)
    sessions = LoginSessions(settings.token)

    app = FastAPI(
        title="tokonomics", version=__version__, openapi_url=f"{API}/openapi.json", docs_url=None, redoc_url=None,
        description="What every million LLM tokens costs. Each answer is that of the command line's verb.",
    )  # fmt: skip
    app.state.service = service
    _handle_problems(app)
    _add_page(app, sessions)
    _add_catalogue(app)
    _add_accuracy(app, service)
    for verb in verbs().values():
        _add_answers(app, service, verb)
    _add_jobs(app, service)
    _add_uploads(app, service)
    _add_report(app, service)
    _add_meter(app, meter.Watched(settings.ledger))
    hosts = allowed_hosts(settings.host, settings.names)
    return Gate(app, hosts, sessions, service=service, any_ip=not is_loopback(settings.host))


def _add_meter(app: FastAPI, watched: meter.Watched) -> None:
    @app.get(f"{API}/meter", responses=_refusals(404, 422), tags=["meter"], summary="What tokens cost now and did")
    def read() -> dict[str, Any]:
        return watched.state()

    @app.get(
        f"{API}/meter/events",
        responses=_EVENTS | _refusals(404, 422, 503),
        response_class=StreamingResponse,
        tags=["meter"],
        summary="The same, whenever the ledger grows",
    )
    def events() -> Response:
        watched.state()  # a broken ledger becomes an error response, not a stream that breaks off
        return meter.Watching(watched)


def _client(request: Request) -> str:
    return request.client.host if request.client else "?"


def _gone(request: Request) -> Callable[[], Awaitable[object]]:
    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    return left


def _handle_problems(app: FastAPI) -> None:
    def refused(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, TokonomicsError)
        for kind, status, retry_s in _STATUSES:
            if isinstance(problem, kind):
                return refusal_of(problem, status, retry_s)
        return refusal_of(problem, 500 if type(problem) is TokonomicsError else 422)

    def invalid(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        name = request.url.path.rpartition("/")[2]
        known = tuple(verbs()[name].inputs.model_fields) if name in verbs() else ()
        return refusal_of(of_validation(problem.errors(), known), 422)

    def http(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        said = {404: "there is nothing at this address", 405: "this address does not take that method"}
        response = problem_response(problem.status_code, said.get(problem.status_code, str(problem.detail)))
        response.headers.update(problem.headers or {})
        return response

    def left(_: Request, problem: Exception) -> Response:
        return problem_response(400, "the body broke off")  # nobody reads this, and it is not a bug to log

    def broken(_: Request, problem: Exception) -> Response:
        return refusal_of(ours("".join(traceback.format_exception(problem))), 500)

    app.add_exception_handler(TokonomicsError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(Exception, broken)


def _add_page(app: FastAPI, sessions: LoginSessions) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return pages.index(logged_in=sessions.token is not None)

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str, request: Request) -> Response:
        return pages.static(name, request.headers.get("if-none-match"))

    @app.get("/vega.js", include_in_schema=False)
    def vega(request: Request, v: str = "") -> Response:
        return pages.vega(v, request.headers.get("accept-encoding", ""))

    @app.get("/login", include_in_schema=False)
    def log_in(request: Request) -> Response:
        return safety.login_form(request.url.query)

    @app.get("/login.css", include_in_schema=False)
    def login_style() -> Response:
        return Response(safety.LOGIN_STYLE, media_type="text/css")

    @app.post("/login", include_in_schema=False)
    async def logged_in(request: Request) -> Response:
        return await safety.logged_in(request, sessions)

    @app.post("/logout", include_in_schema=False)
    def log_out(request: Request) -> Response:
        return safety.logged_out(request, sessions)


def _add_catalogue(app: FastAPI) -> None:
    @app.get(f"{API}/catalog", summary="Models, GPUs, engines, providers, regions, samples, presets")
    def catalog() -> Response:
        return Response(catalogue_json(prices_as_of()), media_type="application/json")

    @app.get(f"{API}/catalog/apis", summary="APIs with their prices, per million tokens")
    def apis() -> Response:
        return Response(apis_json(prices_as_of()), media_type="application/json")

    @app.get(f"{API}/verbs", summary="The verbs, their inputs, and which of them take long")
    def listed() -> list[dict[str, Any]]:
        return [
            {
                "name": verb.name,
                "summary": verb.summary,
                "quick_when": verb.quick_when,
                "parameters": [parameter.described() for parameter in verb.parameters.values()],
            }
            for verb in verbs().values()
        ]


def _add_accuracy(app: FastAPI, service: Service) -> None:
    said = Query(max_length=80)

    @app.get(f"{API}/accuracy", summary="How far predictions lie from measurements", responses=_refusals(*_OF_A_BODY))
    async def how_sure(
        request: Request,
        metric: Annotated[str, said] = "",
        engine: Annotated[str, said] = "",
        gpu: Annotated[str, said] = "",
        speed: Annotated[str, said] = "",
        fit: Annotated[str, said] = "",
        files: Annotated[str, Query(max_length=2000, description="Your results: upload:ID, several by commas.")] = "",
        ran_on: Annotated[str, Query(max_length=80, description="The GPU that your results are of.")] = "",
    ) -> Response:
        own = None
        if files:
            verb = find_verb("import")
            given = _given(verb, {"files": files.split(","), **({"gpu": ran_on} if ran_on else {})})
            own = json.loads(await service.answer(verb, given, ["result"], _client(request), _gone(request)))
        asked = {"metric": metric, "engine": engine, "gpu": gpu, "speed": speed, "fit": fit}
        return Response(await asyncio.to_thread(accuracy, asked, own), media_type="application/json")


def _add_answers(app: FastAPI, service: Service, verb: PageVerb) -> None:
    """Add one route for each verb, so that the OpenAPI document has its inputs."""
    if verb.quick_when is False:
        return
    inputs: Any = verb.inputs

    @app.post(
        f"{API}/answers/{verb.name}",
        summary=verb.summary,
        operation_id=f"answer_{verb.name.replace('-', '_')}",
        responses=_refusals(*_OF_A_BODY) | {200: {"model": AnswerOut}},
        tags=["answers"],
    )
    async def answers(given: inputs, request: Request, charts: Charts = True, part: Parts = ()) -> Response:
        values = given.model_dump(mode="json", exclude_unset=True)
        answer = await service.answer(verb, values, _wanted(charts, part), _client(request), _gone(request))
        return Response(answer, media_type="application/json")


def _wanted(charts: bool, parts: Sequence[str] = ()) -> list[str]:
    """Return the parts asked for, or all if none is named; in a fixed order, so that equal requests compare equal."""
    return [part for part in WHOLE if (not parts or part in parts) and (charts or part != "charts")]


def _given(verb: PageVerb, inputs: dict[str, Any]) -> dict[str, Any]:
    try:
        return verb.inputs.model_validate(inputs).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        raise of_validation(error.errors(), tuple(verb.inputs.model_fields)) from None


def _add_jobs(app: FastAPI, service: Service) -> None:
    @app.post(
        f"{API}/jobs", status_code=202, responses=_refusals(*_OF_A_BODY), tags=["jobs"], summary="Start long work"
    )
    async def start(asked: JobIn, request: Request, charts: Charts = True) -> JobOut:
        verb = find_verb(asked.verb)
        job = service.start(verb, _given(verb, asked.inputs), _wanted(charts), _client(request))
        return JobOut(id=job.id, state="running")

    @app.get(f"{API}/jobs/{{id}}", responses=_refusals(404, 422), tags=["jobs"], summary="How a job stands")
    def stands(id: Id) -> JobOut:
        last = _found(service, id).events[-1:]
        state: Any = last[0].name if last and last[0].is_last else "running"
        return JobOut(id=id, state=state)

    @app.get(
        f"{API}/jobs/{{id}}/events",
        responses=_EVENTS | _refusals(404, 422),
        response_class=StreamingResponse,
        tags=["jobs"],
        summary="What a job says: progress, then answer, failed or cancelled",
    )
    async def events(id: Id, last_event_id: Annotated[str | None, Header(max_length=20)] = None) -> Response:
        job = _found(service, id)
        seen = int(last_event_id) + 1 if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
        return StreamingResponse(job.stream(seen), media_type="text/event-stream")

    @app.delete(
        f"{API}/jobs/{{id}}", status_code=204, responses=_refusals(404, 422), tags=["jobs"], summary="Cancel a job"
    )
    def cancel(id: Id) -> None:
        _found(service, id).task.cancel()


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses for the API's document."""
    return {status: {"model": RefusalOut, "description": _MEANINGS[status]} for status in statuses}


def _found(service: Service, id: str) -> Job:
    job = service.jobs.find(id)
    if job is None:
        raise HTTPException(404)
    return job


def _add_uploads(app: FastAPI, service: Service) -> None:
    body = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}

    @app.post(
        f"{API}/uploads",
        status_code=201,
        responses=_refusals(*_OF_A_BODY),
        openapi_extra=body,
        tags=["uploads"],
        summary="Keep a file for a while: a request log, a benchmark's results, a model's config.json",
    )
    async def upload(request: Request, name: Annotated[str, Query(min_length=1, max_length=300)]) -> UploadOut:
        length = request.headers.get("content-length", "")
        said = int(length) if length.isascii() and length.isdigit() else None
        kept = await service.uploads.keep(name, request.stream(), said)
        return UploadOut.model_validate(await service.look(kept, _client(request), _gone(request)))

    @app.get(
        f"{API}/uploads/{{id}}/table",
        responses=_refusals(*_OF_A_BODY),
        tags=["uploads"],
        summary="The columns of a file, its first rows, and a guess at which is what",
    )
    async def table(id: Id, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await service.table(id, _client(request), _gone(request)))
        return found

    @app.delete(
        f"{API}/uploads/{{id}}",
        status_code=204,
        responses=_refusals(404, 422),
        tags=["uploads"],
        summary="Forget a file",
    )
    def forget(id: Id) -> None:
        if not service.uploads.drop(id):
            raise HTTPException(404)


def _add_report(app: FastAPI, service: Service) -> None:
    @app.post(
        f"{API}/report",
        responses=_refusals(404, *_OF_A_BODY) | {200: {"content": {"text/html": {}}}},
        response_class=Response,
        tags=["answers"],
        summary="An answer as one HTML file that opens offline",
    )
    async def report(asked: ReportIn, request: Request) -> Response:
        client, gone = _client(request), _gone(request)
        if (asked.job is None) == (asked.verb is None):
            raise BadInput("give a job or a verb with its inputs", where="body")
        if asked.job is not None:
            last = _found(service, asked.job).events[-1]
            if last.name != "answer":
                raise BadInput("this job has no answer", where="job")
            built = await service.quickly({"work": "report", "answer": json.loads(last.data)}, client, gone)
        else:
            verb = find_verb(asked.verb or "")
            built = await service.report(verb, _given(verb, asked.inputs), client, gone)
        return Response(
            json.loads(built)["html"],
            media_type="text/html",
            headers={"content-disposition": 'attachment; filename="tokonomics.html"'},
        )
