"""Clients that do not read: they lose their connection, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path

import pytest
from besieged_node import Besieged, P, besieged_node, row, write_request
from rude_client import RudeClient, flight_data
from secure_cluster import of_zone

from rezone.client import TableClient
from rezone.wire.messages import Message, OpenConnection, StreamRequest
from rezone.wire.transport.identity import Identity, Role

pytestmark = pytest.mark.slow

CHANNELS = 6
"""More than the node has threads for its partitions' jobs."""

ASKED = 2_000
"""Answers to so many requests for streams do not fit into the smallest window."""

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


@pytest.mark.proves("TR-03")
def test_a_follower_that_reads_nothing_is_waited_for_by_its_channel_s_own_thread(
    tmp_path: Path,
) -> None:
    """It asks for streams again and again, and its window fills with frames without entries.

    These were not counted: the thread that ticks for all partitions of the node could wait a second
    for a follower that is dead. A thread that others need is back after one; this one waits for
    five.
    """
    peer = of_zone(Role.DATA_NODE, node=1)
    with (
        besieged_node(tmp_path, unread_ms_max="5000", channel_silent_ms_max="60000") as node,
        node.rude(peer, window=1 << 16) as rude,
    ):
        stream = rude.open("DoExchange", flight_data(path="replication"))
        rude.send(stream, OpenConnection(name="1->0", node=1, zone_uid=node.c.config.zone_uid))
        for opaque in range(ASKED):
            rude.send(
                stream,
                StreamRequest(
                    opaque=opaque,
                    partition=P,
                    high_offset=0,
                    partition_uuid="",
                    leader_epoch=1,
                ),
            )
        assert rude.is_cut_off(30)
        (told,) = [each for each in node.log() if each["event"].startswith("cut off")]
        assert told["seconds"] >= 5, "a thread that others need has waited for it"
