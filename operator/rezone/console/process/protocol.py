"""HTTP of the console's page with a deadline for each request, for which uvicorn has no setting.

It ends connections that have had an answer and are idle. One that never asks, or sends a byte of
its request now and then, would keep its place among the few that there may be for ever.

Concurrency: all of it belongs to the event loop's thread.
"""

import asyncio
from typing import Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_SECONDS: Final = 20.0


class DeadlineProtocol(H11Protocol):
    """Cuts a connection off whose next request has not come as a whole in time, body included."""

    request_seconds = REQUEST_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; nothing is waited for any more."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self.request_seconds, self._give_up)

    def _give_up(self) -> None:
        # A request that came as a whole is answered, for as long as that takes: streams may last.
        asked = cast("RequestResponseCycle | None", self.cycle)  # None before the first
        if asked is None or asked.response_complete or asked.more_body:
            self.transport.abort()
