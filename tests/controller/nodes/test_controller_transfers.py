"""What receivers are told of copies that Spark may begin: who, how fast, and how often again."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rezone.controller.effects import transfers
from rezone.controller.effects.transfers import ADMISSION_SECONDS, Transfers
from rezone.domain.model import world
from rezone.domain.model.world import Copy
from rezone.domain.observed.copy_watch import CopyWatch
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import Ack, AdmitCopies, AdmittedCopy, Fence

FENCE = Fence(coordinator_epoch=3, revision=7)
COPIES = [Copy(partition=p, source=0, targets=(1, 2) if p == 0 else (2,)) for p in range(3)]


class Told:
    """The data nodes 1 and 2: what each was told, and whether it answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, AdmitCopies]] = []
        self.fails = False

    def get(self, node: int) -> Any:
        """Return the node as its monitor does."""

        def call(request: AdmitCopies, _reply: type[Ack], *, timeout_seconds: float) -> Ack:
            assert timeout_seconds == 4.0
            if self.fails:
                raise NotReadyError("no answer")
            self.calls.append((node, request))
            return Ack()

        async def answer(_executor: object, asked: Any) -> Any:
            return asked()

        return SimpleNamespace(client=SimpleNamespace(call=call), answer=answer)

    def taken(self) -> dict[int, AdmitCopies]:
        """Return what was told since the last time, by node."""
        calls, self.calls = dict(self.calls), []
        return calls


class Clock:
    """The event loop's clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        loop = SimpleNamespace(time=lambda: self.now)
        fake = SimpleNamespace(get_running_loop=lambda: loop, gather=asyncio.gather)
        monkeypatch.setattr(transfers, "asyncio", fake)


def make(nodes: Told, rate: int = 0) -> Transfers:
    """Return the transfers of a zone with this rate."""
    coordinator = SimpleNamespace(settings=SimpleNamespace(call_timeout_seconds=4.0), executor=None)
    rebalance = SimpleNamespace(max_bytes_per_second=rate)
    zone = SimpleNamespace(spec=SimpleNamespace(rebalance=rebalance))
    runtime = SimpleNamespace(monitor=nodes, admissions={}, copy_watch=CopyWatch())
    return Transfers(cast("Any", coordinator), cast("Any", zone), cast("Any", runtime))


@pytest.mark.proves("B-03")
async def test_every_receiver_hears_what_may_begin_and_what_has_to_wait() -> None:
    """Each node is told of its own copies, and the rate is shared by all that may begin.

    Spark's copies would take the zone's rate each, or none would know of a pause.
    """
    nodes = Told()
    sender = make(nodes, rate=900)
    action = world.AdmitCopies(admitted=tuple(COPIES[:2]), held=(COPIES[2],))
    await sender.admit(action, FENCE)
    told = nodes.taken()
    assert (told[1].admitted, told[1].held) == ((AdmittedCopy(0, 300),), ())
    assert (told[2].admitted, told[2].held) == ((AdmittedCopy(0, 300), AdmittedCopy(1, 300)), (2,))
    assert {request.fence for request in told.values()} == {FENCE}
    assert {request.seconds for request in told.values()} == {ADMISSION_SECONDS}

    await sender.admit(world.AdmitCopies(admitted=(), held=tuple(COPIES)), FENCE)
    told = nodes.taken()
    assert (told[1].admitted, told[1].held) == ((), (0,))
    assert (told[2].admitted, told[2].held) == ((), (0, 1, 2))


@pytest.mark.proves("B-03", "ZR-13")
async def test_it_is_said_again_in_time_and_not_in_each_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same is repeated before it ends, and at once where it was not heard.

    An admission would end while its copy waits for Spark, or each pass would call all nodes.
    """
    clock, nodes = Clock(monkeypatch), Told()
    sender = make(nodes)
    action = world.AdmitCopies(admitted=(COPIES[0],), held=())
    nodes.fails = True
    await sender.admit(action, FENCE)
    nodes.fails = False
    await sender.admit(action, FENCE)
    assert set(nodes.taken()) == {1, 2}
    clock.now += 1.0
    await sender.admit(action, FENCE)
    assert not nodes.taken()
    clock.now += ADMISSION_SECONDS / 2
    await sender.admit(action, FENCE)
    assert set(nodes.taken()) == {1, 2}
