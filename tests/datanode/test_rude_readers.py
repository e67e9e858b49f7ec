"""Clients that do not read: they lose their connection, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path

import pytest
from besieged_node import Besieged, besieged_node, row, write_request
from rude_client import RudeClient
from secure_cluster import of_zone

from rezone.client import TableClient
from rezone.wire.messages import Message
from rezone.wire.transport.identity import Identity, Role

pytestmark = pytest.mark.slow

CHANNELS = 6
"""More than the node has threads for its partitions' jobs."""

HONEST_SECONDS_MAX = 3.0
"""An honest write may meet a connection that is cut off; each of them in turn would be longer."""


def requests_of(attack: str) -> Message:
    """Return a request, of which many are sent."""
    number = next(_numbers)
    seen = number if attack == "claims" else 0
    if attack == "repeats":
        return write_request(number, producer_id="5" * 32)
    return write_request(number, answers_seen=seen)


_numbers = itertools.count(1)


def attack_with(rude: RudeClient, attack: str) -> None:
    """Send requests whose answers are never read."""
    stream = rude.open_data_channel()
    for _ in range(100):
        rude.send(stream, requests_of(attack), row(b"repeated" if attack == "repeats" else b"rude"))


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("attack", ["claims", "repeats", "refused"])
def test_who_reads_no_answers_stops_nobody_else(tmp_path: Path, attack: str) -> None:
    """Its answers would block the threads and locks that all clients of the node need."""
    who: Identity = of_zone(Role.READER if attack == "refused" else Role.WRITER)
    with (
        besieged_node(tmp_path, unread_ms_max="2000") as node,
        node.honest() as table,
        contextlib.ExitStack() as stack,
    ):
        node.write(table)
        rudes = [stack.enter_context(node.rude(who)) for _ in range(CHANNELS)]
        for rude in rudes:
            attack_with(rude, attack)
        assert longest_write(node, table) < HONEST_SECONDS_MAX
        assert node.health() == 200
        assert all(rude.is_cut_off(10) for rude in rudes), "it could come with more, for ever"
        assert node.metric("rezone_data_node_cut_off_total") == CHANNELS
        node.write(table)


def longest_write(node: Besieged, table: TableClient) -> float:
    """Make some honest writes; return how long the longest has taken."""
    longest = 0.0
    for _ in range(20):
        begun = time.monotonic()
        node.write(table)
        longest = max(longest, time.monotonic() - begun)
    return longest
