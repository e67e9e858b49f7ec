"""A zone's partitions are changed while each of the old ones has a writer.

    PYTHONPATH=operator:benchmarks python benchmarks/moves/resharding.py [--mb 100] [--partitions 4]
        [--more 6]

Nodes are processes of their own, each partition is on three of them. First how fast rows of about
150 bytes come to the new partitions, beside how fast the same rows were written by a client before:
both go through the log to every replica. Then what the writers keep of their writes per second
while partitions are backfilled, and while they follow the old ones. Then the cut-overs, one after
the other: the longest time between two answers around each, pause included, as for a leader's move.
Then a new zone that was made with as many partitions as this one has now, with the same writers: a
write of several rows goes to more partitions than before, whichever way there came to be so many.
On an otherwise idle machine, or the figures are noise.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from harness.pausing_writers import Writer, spaces_ms, writers, writes_of
from harness.zone import Zone, ids_by_partition, percentile, running_zone, settle
from resharding_kit import ask_to_seal, overlaps_of, reshard

from rezone.datanode.process import SWITCH_INTERVAL_SECONDS
from rezone.wire import layouts
from rezone.wire.errors import NotEnoughReplicasError, NotReadyError
from rezone.wire.messages import ReshardProgress, SealState

_ROW_BYTES = 150
_AROUND_SECONDS = 0.05
_WINDOW_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 0.002


def reshard_progress(zone: Zone, new: layouts.Layout) -> list[ReshardProgress]:
    """Return how far each reshard stream is; of those that nobody tells of, nothing."""
    found = []
    for partition in new.ids:
        leader = zone.coordinator.records[partition].leader
        report = zone.replica(leader, partition)
        found += list(report.reshard_progress) if report is not None else []
    return found


def backfilled(zone: Zone, new: layouts.Layout) -> bool:
    """Whether all ranges are backfilled and follow."""
    found = reshard_progress(zone, new)
    return len(found) == len(overlaps_of(zone.coordinator)) and all(
        each.backfilled and each.lag_rows == 0 for each in found
    )


def rate(made: Sequence[Writer], begun: float, ended: float) -> float:
    """Return all writers' writes per second between two moments."""
    return sum(sum(begun < at <= ended for at in one.acks) for one in made) / (ended - begun)


def window(made: Sequence[Writer]) -> float:
    """Return the writes per second from now on for a while."""
    begun = time.monotonic()
    settle(_WINDOW_SECONDS)
    return rate(made, begun, time.monotonic())


def cut_over(zone: Zone, partition: int, writer: Writer) -> list[float]:
    """Seal one partition as the operator does; return the times between answers, in ms."""
    c = zone.coordinator
    record = c.change(partition, sealing=True)
    settle(_AROUND_SECONDS)
    while True:
        begun = time.monotonic()
        try:
            ask_to_seal(c, partition)
        except (NotReadyError, NotEnoughReplicasError):
            settle(_ASK_AGAIN_SECONDS)
        else:
            break

    def is_sealed() -> bool:
        report = zone.replica(record.leader, partition)
        return report is not None and report.seal is SealState.SEALED

    zone.wait(f"partition {partition} is sealed", is_sealed)
    c.change(partition, sealing=False, sealed=True)
    return spaces_ms(writer, begun)


def made_so(given: argparse.Namespace) -> float:
    """Return the writes per second in a zone that had so many partitions from the start."""
    with running_zone(3, given.more, 3) as zone, zone.client() as client:
        keys = ids_by_partition(given.partitions, given.rows)
        made = [Writer(writes_of(client, ids), given.pause_ms / 1000) for ids in keys]
        try:
            settle(1.0)
            return window(made)
        finally:
            for writer in made:
                writer.stop()


def main() -> None:
    """Load, backfill, follow, cut over; print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--more", type=int, default=6, help="partitions afterwards")
    parser.add_argument("--rows", type=int, default=4, help="rows of one write")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="a writer's pause")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    rows = given.mb * 10**6 // _ROW_BYTES
    with running_zone(3, given.partitions, 3) as zone:
        begun = time.monotonic()
        zone.load(rows)
        loaded = given.mb / (time.monotonic() - begun)
        with writers(zone, given) as made:
            settle(1.0)
            alone = window(made)
            begun = time.monotonic()
            new = reshard(zone.coordinator, given.more)
            zone.wait("all ranges are backfilled", lambda: backfilled(zone, new))
            ended = time.monotonic()
            during, following = rate(made, begun, ended), window(made)
            spaces = [
                cut_over(zone, partition, writer)
                for partition, writer in zip(range(given.partitions), made, strict=True)
            ]
            after = window(made)
    speed = given.mb / (ended - begun)
    print(f"{given.partitions} partitions of {given.mb} MB to {given.more}, 3 replicas")
    print(f"written by a client {loaded:6.1f} MB/s, backfilled {speed:6.1f}: {speed / loaded:.2f}")
    rates = (during, following, after, made_so(given))
    kept = (f"{each:.0f} ({each / alone:.0%})" for each in rates)
    print(
        "writes/s alone {:.0f}, filling {}, following {}, after {}, in a zone made so {}".format(
            alone, *kept
        )
    )
    gaps = [max(each) for each in spaces]
    usual = statistics.median(statistics.median(each) for each in spaces)
    print(
        f"write gap of a cut-over: median {percentile(gaps, 0.5):.1f} ms, longest "
        f"{max(gaps):.1f}; usual {usual:.1f}"
    )


if __name__ == "__main__":
    main()
