"""Read over HTTP for the meter: an engine's own metrics page, or raw samples from a Prometheus.

A page that is late, too large, cut off, an error or not metrics is a missed reading: it is reported and counted, and
the next one is tried as usual. The path is found once: as given, or where engines have it.

A Prometheus is anything with its HTTP API (Thanos, Mimir, VictoriaMetrics). Values are queried by range selectors
(``metric[5m]``), which give each sample with the time of its scrape; a plain instant query would give the time of the
query with a number that is up to five minutes old.
"""

import asyncio
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit, urlunsplit

from tokonomics.addresses import host_of, shown_address, split_address
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.meter import engines
from tokonomics.measure.meter.readings import Clock, Counted, Missed, Reading, body_of
from tokonomics.measure.meter.step_log import StepLog

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 20_000_000  # a vLLM page has 50 KB, that of a large data-parallel server perhaps a hundred times more
TIMEOUT_S = 10.0
CONNECT_S = 3.0  # a live host accepts within milliseconds; a dead one must not block others for long
AT_ONCE = 64  # pages read at the same time (our choice), so that a thousand servers do not need a thousand connections
_ASK_MODEL_TIMES = 3
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_PATHS = ("/metrics", "/prometheus/metrics")
AUTHORIZATION = "TOKONOMICS_METER_AUTHORIZATION"
SET_AUTHORIZATION = f"Set {AUTHORIZATION}, such as 'Bearer …'."


def address_of(text: str) -> str:
    """Return a server's address in its one form: under two names its tokens would count twice."""
    parts = split_address(text if "://" in text else f"http://{text.strip()}")
    if parts is None:
        raise BadInput(f"'{shorten(text)}' is not an address", where="URL", fix="Such as http://localhost:8000")
    if parts.username or parts.password or parts.query:
        said = "an address with a password or a query would be written to the ledger, with any key in it"
        raise BadInput(said, where="URL", fix=f"Leave it out; a key goes into {AUTHORIZATION}.")
    path = parts.path.rstrip("/")
    for ending in ("/v1", *reversed(_PATHS)):
        path = path.removesuffix(ending)
    usual = parts.port in (None, {"http": 80, "https": 443}[parts.scheme])
    host = host_of(parts) if usual else f"{host_of(parts)}:{parts.port}"
    return urlunsplit((parts.scheme, host, path, "", ""))


def on_loopback(address: str) -> str:
    """Return the address with one name for this machine, whichever of the usual ones is used."""
    parts = urlsplit(address)
    if parts.hostname not in _OWN_NAMES:
        return address
    return urlunsplit(parts._replace(netloc=f"localhost:{parts.port}" if parts.port else "localhost"))


def authorization() -> dict[str, str]:
    """Return the header that a server may need; only from the environment, so that no list of processes shows it."""
    value = os.environ.get(AUTHORIZATION)
    return {"Authorization": value} if value else {}


class EngineSource:
    """One engine, read from its own metrics page."""

    discovers = False
    warnings: Sequence[str] = ()

    def __init__(
        self,
        address: str,
        session: "aiohttp.ClientSession",
        clock: Clock,
        labels: Mapping[str, str] | None = None,
        at_once: asyncio.Semaphore | None = None,
        asks_build: bool = False,
        steps: StepLog | None = None,
    ) -> None:
        """With ``asks_build``, a server is asked for its version whenever another process answers."""
        self._steps = steps
        self.name, self.labels, self._session, self._clock = address, labels or {}, session, clock
        self._at_once = at_once or asyncio.Semaphore(AT_ONCE)
        self._page: str | None = None
        self._finder: re.Pattern[str] = engines.FINDER
        self._model, self._asked_model = "", 0
        self._engine, self._tokens = "", 0.0
        self._asks_build, self._build, self._build_of = asks_build, "", -1.0

    async def read(self) -> Sequence[Reading]:
        async with self._at_once:
            readings = self._readings(*await self._get(self._page)) if self._page else await self._first()
            if self._asks_build:
                readings = await self._with_build(readings)
            if self._steps is not None:
                readings = self._steps.beside(readings)
            if len(readings) > 1 or readings[0].model:
                return readings
            engine, tokens = readings[0].engine, readings[0].total(Counted.input_total)
            if engine != self._engine or tokens < self._tokens:
                # Another process may serve another model: under the old name its tokens would count again later.
                self._model, self._asked_model = "", 0
            self._engine, self._tokens = engine, tokens
            if not self._model and self._asked_model < _ASK_MODEL_TIMES:
                self._asked_model += 1
                self._model = await self._ask_model()
            return [replace(readings[0], model=self._model)]

    async def _first(self) -> Sequence[Reading]:
        """Return the readings from the first path where an engine has its page, and keep the path."""
        pages = [f"{self.name}{path}" for path in _PATHS] + ([self.name] if urlsplit(self.name).path else [])
        misses: list[Missed] = []
        for page in pages:
            try:
                readings = self._readings(*await self._get(page))
            except Missed as miss:
                misses.append(miss)
                if miss.where == "refused":
                    break
                continue
            self._page = page
            words = [engine for engine in engines.ENGINES if engine.name == readings[0].engine]
            self._finder = engines.finder(engines.wanted_names(words))
            return readings
        raise next((miss for miss in misses if isinstance(miss, engines.UnknownEngine)), misses[0])

    async def _with_build(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Add the version of the server to what it states of itself."""
        started = readings[0].started or 0.0
        if started != self._build_of:
            self._build_of, self._build = started, ""
            where = next((words.build for words in engines.ENGINES if words.name == readings[0].engine), ())
            if where:
                page, field = where
                with suppress(Missed, ValueError, KeyError, TypeError):
                    text, _ = await self._get(f"{self.name}{page}", metrics=False)
                    self._build = shorten(str(json.loads(text)[field]), 80)
        if not self._build:
            return readings
        return [replace(reading, states={**reading.states, "version": self._build}) for reading in readings]

    async def _ask_model(self) -> str:
        """Return the name of the only model of a server whose metrics do not state it."""
        try:
            text, _ = await self._get(f"{self.name}/v1/models", metrics=False)
            (only,) = json.loads(text)["data"]
            return shorten(str(only["id"]), 200)
        except (Missed, ValueError, KeyError, TypeError):
            return ""

    def _readings(self, page: str, server_at: float | None) -> Sequence[Reading]:
        samples = engines.samples_of(page, self._finder)
        if self._finder is not engines.FINDER and all(sample.name == engines.STARTED for sample in samples):
            # Another engine is at this address; any page may state when a process started.
            self._finder = engines.FINDER
            samples = engines.samples_of(page, engines.FINDER)
        found = () if samples else engines.prefixes_of(page[:20_000])
        readings = engines.readings_of(samples, self.name, self._clock.wall(), self.labels, found)
        if not readings:
            raise Missed("the page has no figures of the engine yet")
        return [replace(reading, server_at=server_at) for reading in readings]

    async def _get(self, page: str, metrics: bool = True) -> tuple[str, float | None]:
        """Return the text, and the time by the server's clock if it states it."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S)
        accept = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        try:
            async with self._session.get(page, timeout=timeout, headers=accept, allow_redirects=False) as response:
                if response.status != 200:
                    raise Missed(f"answers {response.status} at {urlsplit(page).path}", fix=_switches(response.status))
                if metrics and response.content_type in ("text/html", "application/json", "text/event-stream"):
                    raise Missed(f"answers {response.content_type} at {urlsplit(page).path}, not metrics")
                text = (await body_of(response, MOST_BYTES)).decode()
        except TimeoutError:
            raise Missed(f"no answer in {TIMEOUT_S:g} s", where="refused") from None
        except aiohttp.ClientConnectorError as error:
            raise Missed(f"cannot be reached: {error.strerror or error.os_error}", where="refused") from None
        except UnicodeDecodeError:
            raise Missed("the page is not text") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Missed(f"the answer broke off: {shorten(str(error) or type(error).__name__)}") from None
        try:
            return text, parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError, OverflowError):
            return text, None


def _switches(status: int) -> str | None:
    if status in (401, 403):
        return SET_AUTHORIZATION
    off = [f"{words.name}: {words.switch}" for words in engines.ENGINES if "on" not in words.switch.split()]
    return f"Its metrics may be off: {'; '.join(off)}" if status in (404, 501) else None


# Our choice: ten minutes of a thousand replicas, 15 series each, scraped every 15 s are 600,000 samples, 20 MB of JSON.
# More is queried in smaller pieces.
MAX_ANSWER_BYTES = 100_000_000
_TIMEOUT_S = 30.0


class Series(NamedTuple):
    """One time series: labels with ``__name__``, and (time, value) pairs as scraped, oldest first."""

    labels: Mapping[str, str]
    samples: list[tuple[float, float]]


class QueryAnswer(NamedTuple):
    """Series, and the server's warnings about them."""

    series: list[Series]
    warnings: list[str]


class PrometheusAway(Missed):
    """Raised if it does not answer, or not in time: worth another try, unlike a refused query."""


class TooManySamples(TokonomicsError):
    """Raised if it refuses to load that much at once."""


class PrometheusApi:
    """A Prometheus by its checked address, queried within ``async with``; ``shown`` leaves out what may be secret."""

    session: "aiohttp.ClientSession"

    def __init__(self, url: str) -> None:
        parts = split_address(url)
        if parts is None:
            fix = "Write such as http://localhost:9090."
            raise BadInput("is not the address of a Prometheus", field="prometheus", fix=fix)
        if parts.username and authorization():
            said = f"has a password, and {AUTHORIZATION} is set as well"
            raise BadInput(said, field="prometheus", fix="Leave out one of them.")
        # People paste the address of a page; the API is next to it.
        path = parts.path.rstrip("/").removesuffix("/api/v1/query").removesuffix("/graph").removesuffix("/query")
        address = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self._query_url, self.shown = f"{address}/api/v1/query", shown_address(address)

    async def __aenter__(self) -> Self:
        import aiohttp

        self.session = aiohttp.ClientSession(headers=authorization(), timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def raw_samples(self, selector: str, window_s: float, until_s: float) -> QueryAnswer:
        """Return samples of the selected series in the ``window_s`` before ``until_s``, without NaN and infinity."""
        query = f"{selector}[{max(1, math.ceil(window_s * 1000))}ms]"
        result, warnings = await self._query(query, until_s, "matrix")
        series = []
        for line in result:
            try:
                samples = [(float(at), float(text)) for at, text in line.get("values", ())]
            except (TypeError, ValueError, OverflowError):
                raise self._not_prometheus("a sample in its answer is no pair of a time and a number") from None
            series.append(Series(self._labels(line), [sample for sample in samples if all(map(math.isfinite, sample))]))
        return QueryAnswer(series, warnings)

    async def living(self, selector: str, at_s: float) -> list[Mapping[str, str]]:
        """Return the labels of series that are not stale: a target's series end with its next missed scrape."""
        result, _ = await self._query(selector, at_s, "vector")
        return [self._labels(series) for series in result]

    async def _query(self, query: str, at_s: float, kind: str) -> tuple[list[dict[str, Any]], list[str]]:
        answer = self._checked(*await self._ask({"query": query, "time": f"{at_s:.3f}"}))
        data, warnings = answer.get("data"), answer.get("warnings")
        if not isinstance(data, dict) or data.get("resultType") != kind or not isinstance(data.get("result"), list):
            raise self._not_prometheus(f"its answer has no {kind}")
        if not all(isinstance(series, dict) for series in data["result"]):
            raise self._not_prometheus("a series in its answer has no labels")
        said = warnings if isinstance(warnings, list) else []
        return data["result"], [shorten(str(warning), 300) for warning in said]

    def _labels(self, series: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the labels of a series; replace half characters, which JSON can hold but no ledger or screen."""
        labels = series.get("metric")
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise self._not_prometheus("a series in its answer has no labels")
        return {_whole_characters(name): _whole_characters(value) for name, value in labels.items()}

    async def _ask(self, form: dict[str, str]) -> tuple[int, bytes]:
        """Send a POST, because a list of names is too long for an address; some proxies only allow GET."""
        import aiohttp

        try:
            async with self.session.post(self._query_url, data=form) as response:
                if response.status != 405:
                    return response.status, await self._body(response)
            async with self.session.get(self._query_url, params=form) as response:
                return response.status, await self._body(response)
        except TimeoutError:
            raise PrometheusAway(f"did not answer within {_TIMEOUT_S:g} s", where=self.shown) from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            reason = shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__, 160)
            raise PrometheusAway(f"cannot be reached: {reason}", where=self.shown) from None

    async def _body(self, response: "aiohttp.ClientResponse") -> bytes:
        try:
            return await body_of(response, MAX_ANSWER_BYTES)
        except Missed as error:
            raise TooManySamples(error.what, where=self.shown) from None

    def _checked(self, status: int, body: bytes) -> dict[str, Any]:
        """Return the answer's document; pass on the server's own error message."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
            if status in (401, 403):
                raise BadInput(f"refuses us: status {status}", where=self.shown, fix=SET_AUTHORIZATION)
            said = f"'{shorten(' '.join(body[:400].decode(errors='replace').split()), 80)}'"
            if status < 500:
                raise self._not_prometheus(f"status {status}: {said}")
        elif answer["status"] == "success" and status == 200:
            return answer
        else:
            said = shorten(str(answer.get("error") or answer.get("errorType") or "no reason given"), 300)
            if "too many samples" in said:
                raise TooManySamples(f"says: {said}", where=self.shown)
            if status < 500 or status == 501:
                raise BadInput(f"refuses the query: {said}", where=self.shown, fix=f"Check {option('query')}.")
        raise PrometheusAway(f"answered status {status}: {said}", where=self.shown)

    def _not_prometheus(self, why: str) -> BadInput:
        fix = "Expected the address under which /api/v1/query answers, such as http://localhost:9090."
        return BadInput(f"is not a Prometheus: {why}", where=self.shown, fix=fix)


def _whole_characters(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
