"""Numbers that nobody expects: no thread ends of them, and nothing stays counted as under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from besieged_node import P, besieged_node, row, write_request

from rezone.wire.messages import (
    Message,
    OriginalId,
    OwnWrites,
    ProducerOpen,
    ReadRequest,
    TransactionBegin,
    TransactionEnd,
    TransactionTimes,
)

UNDER_WAY = "rezone_data_node_requests_under_way"

pytestmark = pytest.mark.slow

ID = "5" * 32
HUGE, LEAST = (1 << 64) - 1, -(1 << 63)


def hostile(number: int) -> list[Message]:
    """Return requests with a number in each place."""
    times = TransactionTimes(number, number)
    own = OwnWrites(ID, times, number)
    return [
        write_request(1, sequence=number),
        write_request(1, producer_epoch=number),
        write_request(1, answers_seen=number),
        write_request(1, transaction=times),
        write_request(1, original_ids=(OriginalId(number, number, b""),)),
        write_request(number),
        TransactionBegin(opaque=1, partition=number),
        TransactionEnd(opaque=1, partition=P, transaction=ID, sequence=number, commit=True),
        TransactionEnd(opaque=1, partition=P, transaction=ID, begun_in=number),
        ProducerOpen(opaque=1, partition=P, producer_id=ID, opening=ID, known_epoch=number),
        ReadRequest(opaque=1, partition=P, as_of=number),
        ReadRequest(opaque=1, partition=P, max_age_ms=number),
        ReadRequest(opaque=1, partition=P, own=own),
    ]


@pytest.mark.proves("TR-03")
def test_no_number_ends_a_thread_or_stays_under_way(tmp_path: Path) -> None:
    """A partition would never be looked after again, or copies would give way for ever."""
    with besieged_node(tmp_path) as node, node.honest() as table:
        node.write(table)
        for number in (-1, LEAST, HUGE):
            for message in hostile(number):
                with node.rude(window=1 << 20) as rude:
                    stream = rude.open_data_channel()
                    rude.send(stream, message, row())
                    rude.until(rude.answered, 1.0)
        node.write(table)
        assert node.health() == 200
        node.c.until("nothing is under way", lambda: node.metric(UNDER_WAY) == 0, 10)
        assert node.metric("rezone_data_node_unexpected_errors_total") == 0
        assert "Traceback" not in (node.node.directory / "log.txt").read_text()
