"""A partition whose rows a person has given up begins again, on real disks."""

import shutil
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Client, cluster

from rezone.wire.errors import ConflictError, StaleEpochError
from rezone.wire.messages import FIRST_PARTITION_EPOCH, Ack, BeginEmpty, Role

P = 0


def test_an_empty_partition_takes_writes_and_others_roll_back_to_it(tmp_path: Path) -> None:
    """A partition that has lost all its disks would be gone for ever, or have two histories."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        k.put(P, {b"old": b"1"})
        node = c.nodes[1]
        node.stop()
        shutil.rmtree(node.directory)
        node.start()
        c.configure()
        c.send(P, c.records[P])
        assert c.report(1, P).needs_snapshot
        c.nodes[0].stop()
        with pytest.raises(ConflictError, match="not copied"):
            c.change(P, leader=1, leader_epoch=2, isr=(1,))
        record = c.records[P]
        begin = BeginEmpty(fence=c.fence(), partition=P, state=record)
        for _ in range(2):
            assert c.call(1, begin) == Ack()
        assert c.report(1, P).role is Role.LEADER
        k.put(P, {b"new": b"2"})
        c.nodes[0].start()
        c.wait_up(0)
        c.send(P, record, 0)
        c.until("node 0 follows", lambda: c.report(0, P).last_epoch == record.leader_epoch)
        assert k.get(P, [b"old", b"new"]) == {b"new": b"2"}
        k.close()


def test_rows_that_are_there_are_not_given_up(tmp_path: Path) -> None:
    """A late or mistaken call would empty a replica that others count on."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        k.close()
        record = c.records[P]
        c.call(0, BeginEmpty(fence=c.fence(), partition=P, state=record))  # it leads: done
        with pytest.raises(ConflictError, match="node 0 leads"):
            c.call(1, BeginEmpty(fence=c.fence(), partition=P, state=record))
        c.change(P, isr=(0, 1))
        with pytest.raises(StaleEpochError, match="are behind"):
            c.call(1, BeginEmpty(fence=c.fence(), partition=P, state=record))
        later = record.__class__(
            leader=1,
            leader_epoch=9,
            isr=(1,),
            replicas=(0, 1),
            coordinator_epoch=record.coordinator_epoch,
            partition_epoch=99,
        )
        with pytest.raises(ConflictError, match="has rows"):
            c.call(1, BeginEmpty(fence=c.fence(), partition=P, state=later))
        assert c.report(0, P).log_end_offset == c.report(1, P).log_end_offset == 1


@pytest.mark.proves("B-08")
def test_a_first_record_of_a_later_epoch_begins_the_partition_again(tmp_path: Path) -> None:
    """A new partition that is filled again would keep rows that its source gave up.

    A late call of before must not bring them back, nor may a repeat delete what came after.
    """
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        k.put(P, {b"old": b"1"})
        before = c.records[P]
        assert before.partition_epoch > FIRST_PARTITION_EPOCH
        again = msgspec.structs.replace(
            before, leader=1, leader_epoch=7, partition_epoch=FIRST_PARTITION_EPOCH
        )
        c.send(P, again)
        for node in (0, 1):
            with pytest.raises(StaleEpochError, match="are behind"):
                c.send(P, before, node)
        c.records[P] = again
        c.change(P, isr=(0, 1))  # the second epoch: all replicas are open
        k.put(P, {b"new": b"2"})
        c.send(P, c.records[P])
        with pytest.raises(StaleEpochError, match="are behind"):
            c.send(P, again)
        assert k.get(P, [b"old", b"new"]) == {b"new": b"2"}
        c.until("node 0 has it", lambda: c.report(0, P).log_end_offset == 1)
        k.close()
