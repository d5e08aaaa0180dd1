"""Raw samples out of a Prometheus, or anything that speaks its HTTP API (Thanos, Mimir, VictoriaMetrics).

Values are asked for by range selectors (``metric[5m]``): they give each sample with the time at which it was scraped,
where a plain instant query would put the time of the query beside a number that is up to five minutes old.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlunsplit

import aiohttp

from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.addresses import shown_address, split_address
from tokonomics.measure.meter.readings import Missed
from tokonomics.measure.meter.scrape import AUTHORIZATION, SET_AUTHORIZATION, authorization

MAX_ANSWER_BYTES = 100_000_000
"""A choice: ten minutes of a thousand replicas, 15 series each, scraped every 15 s are 600,000 samples, 20 MB of JSON.

More is asked for in smaller pieces.
"""
_TIMEOUT_S = 30.0


class Series(NamedTuple):
    """One time series: labels with ``__name__``, and (time, value) pairs as scraped, oldest first."""

    labels: Mapping[str, str]
    samples: list[tuple[float, float]]


class QueryAnswer(NamedTuple):
    """Series, and what the server says may be wrong with them."""

    series: list[Series]
    warnings: list[str]


class PrometheusAway(Missed):
    """It does not answer, or not in time: worth another try, unlike a query that it refuses."""


class TooManySamples(TokonomicsError):
    """It refuses to load as much at once."""


class PrometheusApi:
    """A Prometheus by its checked address, asked within ``async with``; ``shown`` leaves out what may be secret."""

    session: aiohttp.ClientSession

    def __init__(self, url: str) -> None:
        parts = split_address(url)
        if parts is None:
            fix = "Write such as http://localhost:9090."
            raise BadInput("is not the address of a Prometheus", field="prometheus", fix=fix)
        if parts.username and authorization():
            said = f"has a password, and {AUTHORIZATION} is set as well"
            raise BadInput(said, field="prometheus", fix="Leave out one of them.")
        # People paste the address of a page; the API lies beside it.
        path = parts.path.rstrip("/").removesuffix("/api/v1/query").removesuffix("/graph").removesuffix("/query")
        address = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self._query_url, self.shown = f"{address}/api/v1/query", shown_address(address)

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(headers=authorization(), timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def raw_samples(self, selector: str, window_s: float, until_s: float) -> QueryAnswer:
        """Samples of the series selected in the ``window_s`` before ``until_s``."""
        query = f"{selector}[{max(1, math.ceil(window_s * 1000))}ms]"
        result, warnings = await self._query(query, until_s, "matrix")
        return QueryAnswer([Series(self._labels(line, named=True), self._samples(line)) for line in result], warnings)

    async def living(self, selector: str, at_s: float) -> list[Mapping[str, str]]:
        """Labels of the series that are not stale: those of a target that is gone end with its next missed scrape."""
        result, _ = await self._query(selector, at_s, "vector")
        return [self._labels(series) for series in result]

    async def _query(self, query: str, at_s: float, kind: str) -> tuple[list[dict[str, Any]], list[str]]:
        answer = self._checked(*await self._ask({"query": query, "time": f"{at_s:.3f}"}))
        data, warnings = answer["data"], answer.get("warnings")
        if data.get("resultType") != kind:
            other = shorten(str(data.get("resultType")))
            raise self._not_prometheus(f"it answered with a {other} where a {kind} was due")
        said = warnings if isinstance(warnings, list) else []
        return data["result"], [shorten(str(warning), 300) for warning in said]

    def _labels(self, series: object, named: bool = False) -> Mapping[str, str]:
        """The labels of a series; half a character, which JSON can hold and no book or screen, is replaced."""
        labels = series.get("metric") if isinstance(series, dict) else None
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise self._not_prometheus("a series in its answer has no labels")
        if named and "__name__" not in labels:
            raise self._not_prometheus("a series in its answer has no name")
        return {_whole_characters(name): _whole_characters(value) for name, value in labels.items()}

    def _samples(self, series: Mapping[str, Any]) -> list[tuple[float, float]]:
        """Its samples; NaN and infinity are no counts and left out."""
        try:
            samples = [(float(at), float(text)) for at, text in series.get("values", ())]
        except (TypeError, ValueError, OverflowError):
            raise self._not_prometheus("a sample in its answer is no pair of a time and a number") from None
        return [(at, value) for at, value in samples if math.isfinite(at) and math.isfinite(value)]

    async def _ask(self, form: dict[str, str]) -> tuple[int, bytes]:
        """POST, since a list of names outgrows an address; some proxies in front of it only let GET pass."""
        try:
            async with self.session.post(self._query_url, data=form) as response:
                if response.status != 405:
                    return response.status, await self._body(response)
            async with self.session.get(self._query_url, params=form) as response:
                return response.status, await self._body(response)
        except TimeoutError:
            raise PrometheusAway(f"did not answer within {_TIMEOUT_S:g} s", where=self.shown) from None
        except aiohttp.ClientConnectorError as error:
            raise PrometheusAway(f"cannot be reached: {error.os_error.strerror or error}", where=self.shown) from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            reason = shorten(str(error) or type(error).__name__, 160)
            raise PrometheusAway(f"cannot be reached: {reason}", where=self.shown) from None

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 20):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise TooManySamples(f"sent more than {MAX_ANSWER_BYTES // 10**6} MB", where=self.shown)
        return bytes(body)

    def _checked(self, status: int, body: bytes) -> dict[str, Any]:
        """The answer's document; what the server itself says is wrong is passed on."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
            if status in (401, 403):
                raise BadInput(f"refuses us: status {status}", where=self.shown, fix=SET_AUTHORIZATION)
            opening = shorten(" ".join(body[:400].decode(errors="replace").split()), 80)
            if status >= 500:
                raise PrometheusAway(f"answered status {status}: '{opening}'", where=self.shown)
            raise self._not_prometheus(f"status {status}: '{opening}'")
        if answer["status"] == "error" or status != 200:
            said = shorten(str(answer.get("error") or answer.get("errorType") or "no reason given"), 300)
            if "too many samples" in said:
                raise TooManySamples(f"says: {said}", where=self.shown)
            if status >= 500 and status != 501:
                raise PrometheusAway(f"answered status {status}: {said}", where=self.shown)
            raise BadInput(f"refuses the query: {said}", where=self.shown, fix=f"Check {option('query')}.")
        if not isinstance(answer.get("data"), dict) or not isinstance(answer["data"].get("result"), list):
            raise self._not_prometheus("its answer has no data")
        return answer

    def _not_prometheus(self, why: str) -> BadInput:
        fix = "Expected the address under which /api/v1/query answers, such as http://localhost:9090."
        return BadInput(f"is not a Prometheus: {why}", where=self.shown, fix=fix)


def _whole_characters(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
