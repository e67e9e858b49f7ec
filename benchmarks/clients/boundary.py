"""What the boundary's checks of one request take, as a share of the processor time of a request.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/boundary.py [--seconds 5]
        [--clients 1 16 64]

Each check is called alone, on what a client of one zone sends, and counted in processor time of
its thread: the least of some rounds, so that other work on the machine adds nothing. All of a check
is counted, also what a request took in its place before there was one; of ranges of numbers, what
decoding takes above decoding without them. A request's own time is that of all data nodes together
for one row by one call: three processes, all replicas on disk, without TLS.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
from harness.closed_loop import run
from harness.stores import RezoneStore
from harness.zone import batch_of, running_zone
from small_ops import calls_of, operation

from rezone.client import ClientSettings
from rezone.datanode.node.asked import Asked
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS
from rezone.datanode.replication.sent_frames import SentFrames
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.held import HeldBytes
from rezone.datanode.scheduling.on_way import OnWay
from rezone.datanode.scheduling.requests import Operation, Request
from rezone.datanode.scheduling.unread import Unread
from rezone.datanode.service.guard import Guard
from rezone.datanode.service.intake import Intake
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.datanode.writing.owner import Owner
from rezone.storage.budget import Tally
from rezone.wire import messages
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.codec.ipc_header import is_compressed
from rezone.wire.messages import Message, ReadRequest, WriteRequest, WriteResult
from rezone.wire.transport.callers import Passed
from rezone.wire.transport.identity import Identity, Role

CALLS = 20_000
ROUNDS = 9
FOLLOWERS = 2
SIZE = 1_200

Check = Callable[[], object]


class Cost(NamedTuple):
    """A check, and the microseconds that it takes of a read and of a write."""

    name: str
    read: float
    write: float


def micros(check: Check) -> float:
    """Return the processor time of one call: the least of some rounds, less that of a call."""

    def nothing() -> None:
        pass

    return max(0.0, _least(check) - _least(nothing))


def _least(check: Check) -> float:
    found = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for _ in range(CALLS):
            check()
        found.append((time.thread_time() - begun) / CALLS * 1e6)
    return min(found)


def without_ranges(kind: type[Message]) -> Any:
    """Return a decoder of the same message, whose numbers may be any."""
    fields = [
        (field.name, int if "ge=" in str(field.type) else field.type, field.default)
        if field.default is not msgspec.NODEFAULT
        else (field.name, int if "ge=" in str(field.type) else field.type)
        for field in msgspec.structs.fields(kind)
    ]
    plain = msgspec.defstruct(kind.__name__, fields, tag=kind.__name__, frozen=True, kw_only=True)
    return msgspec.msgpack.Decoder(plain)


def ranges(request: Message) -> float:
    """Return what the ranges of a message's numbers add to reading it."""
    data = messages.encode(request)
    plain = without_ranges(type(request))
    ranged = msgspec.msgpack.Decoder(type(request))
    return max(0.0, micros(lambda: ranged.decode(data)) - micros(lambda: plain.decode(data)))


def costs() -> list[Cost]:
    """Return what each check takes."""
    write = WriteRequest(opaque=7, partition=1, producer_id="5" * 32, sequence=9, answers_seen=3)
    read = ReadRequest(opaque=7, partition=1, answers_seen=3)
    return [
        Cost("ranges of numbers", ranges(read), ranges(write)),
        both("who may ask", _asking(write)),
        both("bytes that requests hold", _holding()),
        both("one answer to each request", _answering()),
        both("answers that are not read", _unread_answers()),
        both("who does not read", _sending()),
        both("sends without a lock", _scope),
        both("what was sent and is not taken", _taking()),
        Cost("what followers wait to send", 0.0, FOLLOWERS * micros(_unsent())),
        Cost("compressed bodies", micros(_compressed()), micros(_compressed())),
        Cost("whose ids", 0.0, micros(_owned(write))),
        Cost("frames that a follower has not read", 0.0, FOLLOWERS * micros(_frames())),
    ]


def both(name: str, check: Check) -> Cost:
    """Return the cost of a check that reads and writes have alike."""
    taken = micros(check)
    return Cost(name, taken, taken)


def _asking(request: Message) -> Check:
    here = Identity(Role.DATA_NODE, "shop", "accounts", 0)
    guard = Guard(here, Identity(Role.WRITER, "shop", "accounts").uri)
    return lambda: guard.check(request)


def _holding() -> Check:
    account = HeldBytes(NodeSettings()).connection("writer")
    node = account._node  # noqa: SLF001 - as a channel gives back

    def hold() -> None:
        account.take(SIZE)
        node.give(account, SIZE)

    return hold


def _answering() -> Check:
    result = WriteResult(opaque=7, end_offset=1, commit_time=1)
    taken = Request(Operation.WRITE, 0.0, SIZE)

    def answer() -> None:
        with Asked("WriteRequest", 7, taken, lambda *_: None) as asked:
            asked.answer(result)

    return answer


def _unread_answers() -> Check:
    on_way, seen = OnWay(), [0]

    def look() -> None:
        on_way.read(seen[0])
        seen[0] += 1
        if on_way.has_room(SIZE):
            on_way.sent(SIZE)

    return look


def _sending() -> Check:
    peer = Unread(SystemClock(), 1, cast("Any", None)).peer("writer", lambda: None)

    def send() -> None:
        if peer.trusted:
            peer.sends(SIZE)
            time.monotonic()

    return send


def _scope() -> None:
    with inline_sends.scope():
        inline_sends.note(_nothing)


def _nothing() -> None:
    pass


def _compressed() -> Check:
    body = to_ipc(batch_of([1], 1))
    reader = pa.BufferReader(pa.py_buffer(body))
    pa.ipc.read_schema(pa.ipc.read_message(reader))
    header = memoryview(pa.ipc.read_message(reader).metadata)
    return lambda: is_compressed(header)


def _owned(request: WriteRequest) -> Check:
    owner = Owner("writer")
    return lambda: owner.key("producer", request.producer_id)


def _taking() -> Check:
    intake, passed, address = Intake(1 << 30), [0], "127.0.0.1:1"
    taken = intake.taken(address)

    def take() -> None:
        taken(SIZE)
        passed[0] += SIZE
        if passed[0] % (1000 * SIZE) == 0:  # it is counted once a second
            list(intake.count({address: Passed(passed[0], passed[0])}, 0.0))

    return take


def _unsent() -> Check:
    tally = Tally(1 << 20)

    def send() -> None:
        tally.add(SIZE)
        tally.remove(SIZE)

    return send


def _frames() -> Check:
    frames = SentFrames()

    def send() -> None:
        frames.sent(SIZE)
        frames.read(frames.total)

    return send


def main() -> None:
    """Measure the checks, then requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    found = costs()
    print(f"{'us of a request':<38}{'read':>8}{'write':>8}")
    for cost in [*found, Cost("all", sum(c.read for c in found), sum(c.write for c in found))]:
        print(f"{cost.name:<38}{cost.read:8.2f}{cost.write:8.2f}")
    checks = {"reads": sum(c.read for c in found), "writes": sum(c.write for c in found)}
    with running_zone(3, 8, 3) as zone:
        store = RezoneStore(zone, ClientSettings(shared_calls_max=1))
        for count in given.clients:
            with store.clients(count) as clients:
                for kind in ("writes", "reads"):
                    operations = [
                        operation(calls_of(client)[kind], index * 1_013)
                        for index, client in enumerate(clients)
                    ]
                    taken = run(operations, given.seconds, store.cpu).servers_us
                    share = 100 * checks[kind] / taken
                    print(
                        f"{kind} by {count}: nodes {taken:,.0f} us, checks {share:.2f} %   "
                        f"load {os.getloadavg()[0]:.1f}"
                    )


if __name__ == "__main__":
    main()
