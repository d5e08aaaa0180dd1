"""Connections that ask for nothing: closed after a while, and never so many that others find no place.

uvicorn counts every connection against its limit and waits for a first request for ever. Here a connection that has
never made a request is closed after ``SILENT_S``, one that has made its last after ``KEPT_S``, and where one address
holds ``MOST_OF_ONE`` the one of them that has been silent longest gives way to the newest.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENT_S = 10.0
"""For the headers of a first request to arrive."""
KEPT_S = 60.0
"""Between two requests: a browser that meets a closing connection with a new request shows an error."""
MOST_OF_ONE = 64
"""Connections of one address: a browser opens six for each window."""
MOST = 400
"""Of all addresses."""


class Connection(H11Protocol):
    """uvicorn's own, with a clock and a count."""

    _seen: object = None
    _clock: asyncio.TimerHandle | None = None
    since = 0.0
    """When it was made."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        who = self.client[0] if self.client else None
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        of_this = [other for other in others if other.client and other.client[0] == who]
        if len(of_this) >= MOST_OF_ONE:
            idle = [other for other in of_this if not other.is_busy]
            given_up = min(idle, key=lambda other: other.since, default=self)
            given_up.transport.abort()
            self.connections.discard(given_up)  # not when the loop comes to it: more may arrive before
        self.since = self.loop.time()
        self._clock = self.loop.call_later(SILENT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._clock:
            self._clock.cancel()
        super().connection_lost(exc)

    @property
    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        if self.cycle is None:
            self.transport.abort()  # it never asked for anything
            return
        if not self.is_busy and self.cycle is self._seen and self.loop.time() - self.since > KEPT_S:
            self.transport.close()
            return
        if self.cycle is not self._seen or self.is_busy:
            self.since = self.loop.time()
        self._seen = self.cycle
        self._clock = self.loop.call_later(SILENT_S, self._look)
