"""Readings from an engine's own metrics page, over HTTP.

A page that is late, too large, cut off, of another kind or an error is a missed reading: it is reported and counted,
and the next one is tried as usual. The path is found once: as given, or where engines have it.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.addresses import host_of, split_address
from tokonomics.measure.meter import engines
from tokonomics.measure.meter.readings import Clock, Counted, Missed, Reading

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 20_000_000  # a vLLM page has 50 KB; of a large data-parallel server perhaps a hundred times that
TIMEOUT_S = 10.0
CONNECT_S = 3.0  # a host that is there accepts within milliseconds; one that is not must not hold a place for long
AT_ONCE = 64  # pages read at the same time: a choice, so that a thousand servers do not open a thousand connections
_ASK_MODEL_TIMES = 3
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_PATHS = ("/metrics", "/prometheus/metrics")
AUTHORIZATION = "TOKONOMICS_METER_AUTHORIZATION"
SET_AUTHORIZATION = f"Set {AUTHORIZATION}, such as 'Bearer …'."


def address_of(text: str) -> str:
    """A server's address as the meter writes it."""
    parts = split_address(text if "://" in text else f"http://{text.strip()}")
    if parts is None:
        raise BadInput(f"'{shorten(text)}' is not an address", where="URL", fix="Such as http://localhost:8000")
    if parts.username or parts.password:
        fix = f"Set {AUTHORIZATION} to the header's value instead."
        raise BadInput("an address with a password would be written to the ledger", where="URL", fix=fix)
    if parts.query:
        fix = f"Leave out what follows the question mark; a key goes into {AUTHORIZATION}."
        said = "an address with a query would be written to the ledger, and may hold a key"
        raise BadInput(said, where="URL", fix=fix)
    path = parts.path.rstrip("/")
    for ending in ("/v1", *reversed(_PATHS)):
        # One server must have one name, or its tokens would count twice.
        path = path.removesuffix(ending)
    usual = parts.port in (None, {"http": 80, "https": 443}[parts.scheme])
    host = host_of(parts) if usual else f"{host_of(parts)}:{parts.port}"
    return urlunsplit((parts.scheme, host, path, "", ""))


def on_loopback(address: str) -> str:
    """An address with one name for this machine, whichever of the usual it is called by."""
    parts = urlsplit(address)
    if parts.hostname not in _OWN_NAMES:
        return address
    return urlunsplit(parts._replace(netloc=f"localhost:{parts.port}" if parts.port else "localhost"))


def authorization() -> dict[str, str]:
    """The header that a server may want; from the environment alone, so that it is in no list of processes."""
    value = os.environ.get(AUTHORIZATION)
    return {"Authorization": value} if value else {}


class EngineSource:
    discovers = False
    warnings: Sequence[str] = ()

    def __init__(
        self,
        address: str,
        session: "aiohttp.ClientSession",
        clock: Clock,
        labels: Mapping[str, str] | None = None,
        at_once: asyncio.Semaphore | None = None,
    ) -> None:
        self.name, self.labels, self._session, self._clock = address, labels or {}, session, clock
        self._at_once = at_once or asyncio.Semaphore(AT_ONCE)
        self._page: str | None = None
        self._finder: re.Pattern[str] = engines.FINDER
        self._model, self._asked_model = "", 0
        self._engine, self._tokens = "", 0.0

    async def read(self) -> Sequence[Reading]:
        async with self._at_once:
            readings = self._readings(*await self._get(self._page)) if self._page else await self._first()
            if len(readings) > 1 or readings[0].model:
                return readings
            engine, tokens = readings[0].engine, readings[0].total(Counted.input_total)
            if engine != self._engine or tokens < self._tokens:
                # Another process, which may serve another model: its tokens under the old name would count again later.
                self._model, self._asked_model = "", 0
            self._engine, self._tokens = engine, tokens
            if not self._model and self._asked_model < _ASK_MODEL_TIMES:
                self._asked_model += 1
                self._model = await self._ask_model()
            return [replace(readings[0], model=self._model)]

    async def _first(self) -> Sequence[Reading]:
        """The readings of the first place where an engine has its page; the place is kept."""
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

    async def _ask_model(self) -> str:
        """The name of the only model of a server whose metrics do not say it."""
        try:
            text, _ = await self._get(f"{self.name}/v1/models", metrics=False)
            (only,) = json.loads(text)["data"]
            return shorten(str(only["id"]), 200)
        except (Missed, ValueError, KeyError, TypeError):
            return ""

    def _readings(self, page: str, server_at: float | None) -> Sequence[Reading]:
        samples = engines.samples_of(page, self._finder)
        if self._finder is not engines.FINDER and all(sample.name == engines.STARTED for sample in samples):
            # Another engine has come to this address; when a process started, any page may tell.
            self._finder = engines.FINDER
            samples = engines.samples_of(page, engines.FINDER)
        found = () if samples else engines.prefixes_of(page[:20_000])
        readings = engines.readings_of(samples, self.name, self._clock.wall(), self.labels, found)
        if not readings:
            raise Missed("the page has no figures of the engine yet")
        return [replace(reading, server_at=server_at) for reading in readings]

    async def _get(self, page: str, metrics: bool = True) -> tuple[str, float | None]:
        """The text, and the time by the server's clock."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S)
        accept = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        try:
            async with self._session.get(page, timeout=timeout, headers=accept, allow_redirects=False) as response:
                if response.status != 200:
                    raise Missed(f"answers {response.status} at {urlsplit(page).path}", fix=_switches(response.status))
                if metrics and response.content_type in ("text/html", "application/json", "text/event-stream"):
                    raise Missed(f"answers {response.content_type} at {urlsplit(page).path}, not metrics")
                body = bytearray()
                async for piece in response.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise Missed(f"the page is larger than {MOST_BYTES // 10**6} MB")
        except TimeoutError:
            raise Missed(f"no answer in {TIMEOUT_S:g} s", where="refused") from None
        except aiohttp.ClientConnectorError as error:
            raise Missed(f"cannot be reached: {error.strerror or error.os_error}", where="refused") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Missed(f"the answer broke off: {shorten(str(error) or type(error).__name__)}") from None
        try:
            return body.decode(), _told_time(response.headers.get("Date"))
        except UnicodeDecodeError:
            raise Missed("the page is not text") from None


def _told_time(date: str | None) -> float | None:
    """Unix seconds of a Date header."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None


def _switches(status: int) -> str | None:
    if status in (401, 403):
        return SET_AUTHORIZATION
    off = [f"{words.name}: {words.switch}" for words in engines.ENGINES if "on" not in words.switch.split()]
    return f"Its metrics may be off: {'; '.join(off)}" if status in (404, 501) else None
