"""The write gap at planned takeovers between in-sync replicas of a running zone.

    PYTHONPATH=operator:benchmarks python benchmarks/failures/leader_move.py [--moves 200]
        [--peer-moves 40] [--indexes 1]

Every partition has a writer of its own that sends its next write a pause after the last answer,
a short one while the partition's leader moves. The gap of a move is the longest time between two
answers around it, pause included; the usual spacing beside it is the median then. Nodes are
processes of their own, all writes are acknowledged by all replicas' disks. On an otherwise idle
machine, or the figures are noise.

Beside it, in the same run and with the same loop around one write: etcd's move-leader (three
members, written to by one member's JSON gateway) and a manual failover of Redis Cluster (a master
with one replica). Their values are as large as a write's rows. A peer that is not on this machine
is left out, and said to be.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness.leaders import NotHereError, Peer, etcd, redis
from harness.pausing_writers import (
    AROUND_SECONDS,
    Writer,
    WriterFailedError,
    spaces_ms,
    writers,
)
from harness.zone import Zone, batch_of, percentile, running_zone, settle

from rezone.datanode.process import SWITCH_INTERVAL_SECONDS, settle_memory
from rezone.wire.codec.schema import Index
from rezone.wire.messages import Role

_ROW_BYTES = 150
_INDEXES = (Index("by_amount", ("amount",)), Index("by_name", ("name", "amount")))


class Move(NamedTuple):
    """One takeover: its longest gap, the usual spacing, and from the call to the new leader."""

    gap_ms: float
    usual_ms: float
    call_to_lead_ms: float


def move(zone: Zone, partition: int, writer: Writer) -> Move:
    """Hand one partition over to the next in-sync replica."""
    coordinator = zone.coordinator
    record = coordinator.records[partition]
    at = record.replicas.index(record.leader)
    candidate = record.replicas[(at + 1) % len(record.replicas)]
    record = coordinator.authorise(partition, candidate)
    settle(AROUND_SECONDS)
    begun = time.monotonic()
    coordinator.takeover(partition)

    def leads() -> bool:
        report = zone.replica(candidate, partition)
        return (
            report is not None
            and report.role is Role.LEADER
            and report.leader_epoch == record.next_epoch
        )

    zone.wait(f"node {candidate} leads", leads)
    led = time.monotonic()
    spaces = spaces_ms(writer, begun)
    coordinator.settle()
    zone.wait("followers stream", lambda: zone.streaming(partition))
    return Move(max(spaces), statistics.median(spaces), (led - begun) * 1000)


def rezone_moves(given: argparse.Namespace) -> list[Move]:
    """Move leaders in turn."""
    moves: list[Move] = []
    with (
        running_zone(
            given.nodes, given.partitions, given.replicas, indexes=_INDEXES[: given.indexes]
        ) as zone,
        writers(zone, given) as made,
    ):
        for number in range(given.moves):
            writer = made[number % len(made)]
            writer.hurry(given.moving_pause_ms / 1000)
            moves.append(move(zone, number % len(made), writer))
            writer.pause_seconds = given.pause_ms / 1000
    return moves


def peer_moves(peer: Peer, given: argparse.Namespace) -> list[Move]:
    """Move a peer's leader, to and fro."""
    value = bytes(given.rows * _ROW_BYTES)
    writer = Writer(lambda _: peer.write(value), given.moving_pause_ms / 1000)
    moves: list[Move] = []
    enough = time.monotonic() + given.peer_seconds
    try:
        while len(moves) < given.peer_moves and time.monotonic() < enough:
            settle(AROUND_SECONDS)
            begun = peer.move()
            led = time.monotonic()
            spaces = spaces_ms(writer, begun)
            moves.append(Move(max(spaces), statistics.median(spaces), (led - begun) * 1000))
    finally:
        writer.stop()
    return moves


def show(name: str, moves: list[Move]) -> float:
    """Print the distribution of the gaps; return their median."""
    gaps = [one.gap_ms for one in moves]
    usual = statistics.median(one.usual_ms for one in moves)
    added = statistics.median(one.gap_ms - one.usual_ms for one in moves)
    figures = "".join(f"{percentile(gaps, share):9.1f}" for share in (0.5, 0.9, 0.99))
    print(f"{len(moves):6}{figures}{max(gaps):9.1f}{usual:9.1f}{added:9.1f}  {name}", flush=True)
    return percentile(gaps, 0.5)


def main() -> None:
    """Move leaders here and there, and print the distributions side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--peer-moves", type=int, default=40, help="0 for none")
    parser.add_argument("--peer-seconds", type=float, default=120.0, help="then no more moves")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4, help="rows of one write")
    parser.add_argument("--indexes", type=int, default=0, choices=range(3), help="of the table")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="a writer's usual pause")
    parser.add_argument("--moving-pause-ms", type=float, default=1.0, help="while it moves")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    # pyarrow imports pandas with the first array: not after this, or its objects are collected in
    # the middle of a move, which takes 12 ms and more.
    batch_of([0], 0)
    settle_memory()
    print("write gap of a leader move, ms, pause included; usual: median time between two writes;")
    print("added: median of what a move's gap is longer than its usual time")
    print(" moves   median      90%      99%  longest    usual    added")
    moves = rezone_moves(given)
    own = show(f"Rezone, {given.nodes} nodes, {given.replicas} replicas, all synced", moves)
    for start in (etcd, redis) if given.peer_moves else ():
        try:
            with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as peer:
                median = show(peer.name, peer_moves(peer, given))
        except NotHereError as error:
            print(f"left out: {error}")
            continue
        except (WriterFailedError, OSError) as error:
            print(f"left out, it has broken: {error}")
            continue
        failed = f"; {peer.given_up} more moves were given up by it" if peer.given_up else ""
        print(f"{'':6}{median / own:9.1f}  times Rezone's median{failed}")
    led = statistics.median(one.call_to_lead_ms for one in moves)
    print(f"Rezone: {led:.1f} ms from the call to the coordinator's news of the new leader, median")


if __name__ == "__main__":
    main()
