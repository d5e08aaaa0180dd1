"""Connections that keep the server waiting: closed after a while, and never so many that others find no place.

uvicorn counts every connection against its limit and waits for a first request for ever. Here a connection that has
never made a request is closed after ``SILENT_S``, one that has made its last after ``KEPT_S``, and where one address
holds ``MOST_OF_ONE`` the one of them that has been waited for longest gives way to the newest: silent, or with a body
that is still on its way. How long a body may take, its readers say (``safety.BODY_S``, ``UploadLimits``).
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENT_S = 10.0  # for the headers of a first request to arrive
KEPT_S = 60.0  # between two requests: a browser that meets a closing connection with a new request shows an error
MOST_OF_ONE = 64  # connections of one address: a browser opens six for each window
MOST = 400  # of all addresses


class Connection(H11Protocol):
    """uvicorn's own, with a clock and a count."""

    _clock: asyncio.TimerHandle | None = None
    since = 0.0  # when it was made, or when its last request began; later where that took long

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        who = self.client[0] if self.client else None
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        of_this = [other for other in others if other.client and other.client[0] == who]
        if len(of_this) >= MOST_OF_ONE:
            waited_for = [other for other in of_this if not other.is_worked_for]
            given_up = min(waited_for, key=lambda other: other.since, default=self)
            given_up.transport.abort()
            self.connections.discard(given_up)  # not when the loop comes to it: more may arrive before
        self.since = self.loop.time()
        self._clock = self.loop.call_later(SILENT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._clock:
            self._clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last:
            self.since = self.loop.time()

    @property
    def is_worked_for(self) -> bool:
        """Whether its request is here, whole, and has no whole answer yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _look(self) -> None:
        if self.cycle is None:
            self.transport.abort()  # it never asked for anything
            return
        if self.is_worked_for:
            self.since = self.loop.time()
        elif self.cycle.response_complete and self.loop.time() - self.since > KEPT_S:
            self.transport.close()
            return
        self._clock = self.loop.call_later(SILENT_S, self._look)
