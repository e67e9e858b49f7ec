"""What a caller hears of a node whose server ends under its call."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

from rezone.wire.errors import NotReadyError
from rezone.wire.flight import NodeClient
from rezone.wire.messages import Ack, ReportRequest


class EndingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every call as a server does that is shut down meanwhile."""

    def do_action(self, _context: Any, _action: Any) -> Iterator[Any]:
        """End the call."""
        raise flight.FlightCancelledError("the server is shut down")


def test_a_call_that_ends_with_its_server_may_be_made_again() -> None:
    """A renewed certificate, for which servers are replaced, would fail what is asked just then."""
    with EndingServer("grpc://127.0.0.1:0") as server:
        client = NodeClient(f"127.0.0.1:{server.port}")
        with pytest.raises(NotReadyError) as failed:
            client.call(ReportRequest(seen=-1), Ack)
        client.close()
    assert failed.value.details.get("unreachable") == 1
