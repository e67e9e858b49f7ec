"""The faults by name: what each does to a zone in use, and for how long."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from e2e.chaos.changes import Cancelled, LeaderMoved, drained, resharded, scaled
from e2e.chaos.fault import Fault, Flapping
from e2e.chaos.network import Cut, Loss, apart
from e2e.chaos.processes import Killed, Stopped
from e2e.chaos.restored import Restored
from e2e.chaos.shimmed import clocks_off, syncs_fail, syncs_slow
from e2e.chaos.volumes import FullDisk
from e2e.chaos.world import World

_DAY_SECONDS = 86_400.0

Make = Callable[[World, random.Random], Awaitable[Fault]]


@dataclass(frozen=True)
class Case:
    """A fault with its name and the seconds it lasts.

    `storms`: whether it may come together with others; what must be prepared for may not.
    """

    name: str
    what: str
    seconds: float
    make: Make
    storms: bool = True


def _case(name: str, what: str, seconds: float, *, storms: bool = True) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        CASES[name] = Case(name, what, seconds, make, storms)
        return make

    return add


CASES: dict[str, Case] = {}
"""The faults that are played alone, and in storms where they may come with others."""


# --- the network ---------------------------------------------------------------------------------


async def _leader_and_peers(world: World) -> tuple[str, list[str]]:
    leader = await world.busiest()
    addresses = {number: node.address for number, node in world.nodes().items()}
    return addresses.pop(leader), list(addresses.values())


def _clients(world: World) -> list[str]:
    return [client.address for client in world.clients]


@_case("node-from-all", "a leader hears and reaches nobody", 12)
async def _node_from_all(world: World, _rng: random.Random) -> Fault:
    leader, peers = await _leader_and_peers(world)
    return Cut(apart([leader], [*peers, *_clients(world), world.operator().address]))


@_case("leader-from-peers", "a leader hears clients and operator, no peer", 12)
async def _leader_from_peers(world: World, _rng: random.Random) -> Fault:
    leader, peers = await _leader_and_peers(world)
    return Cut(apart([leader], peers))


@_case("node-from-peers-long", "the same for 60 s", 60, storms=False)
async def _node_from_peers_long(world: World, rng: random.Random) -> Fault:
    return await _leader_from_peers(world, rng)


@_case("nothing-in", "nothing reaches a leader from its peers", 12)
async def _nothing_in(world: World, _rng: random.Random) -> Fault:
    leader, peers = await _leader_and_peers(world)
    return Cut([Loss(tuple(peers), (leader,))])


@_case("nothing-out", "nothing reaches its peers from a leader", 12)
async def _nothing_out(world: World, _rng: random.Random) -> Fault:
    leader, peers = await _leader_and_peers(world)
    return Cut([Loss((leader,), tuple(peers))])


@_case("halves", "two and three nodes do not hear each other", 15)
async def _halves(world: World, rng: random.Random) -> Fault:
    addresses = [node.address for node in world.nodes().values()]
    rng.shuffle(addresses)
    return Cut(apart(addresses[:2], addresses[2:]))


@_case("bridge", "two and two nodes hear each other only by the fifth", 12)
async def _bridge(world: World, rng: random.Random) -> Fault:
    addresses = [node.address for node in world.nodes().values()]
    rng.shuffle(addresses)
    return Cut(apart(addresses[:2], addresses[3:]))


@_case("flapping", "a leader loses its peers again and again, for 0.2 to 2.5 s", 15)
async def _flapping(world: World, rng: random.Random) -> Fault:
    leader, peers = await _leader_and_peers(world)
    return Flapping(Cut(apart([leader], peers)), rng, 0.2, 2.5)


def _operator_from(count: int) -> None:
    @_case(f"operator-from-{count}", f"the operator does not hear {count} of 5 nodes", 15)
    async def _make(world: World, _rng: random.Random) -> Fault:
        nodes = world.nodes()
        cut = [nodes[number].address for number in (await world.by_leaders())[:count]]
        return Cut(apart([world.operator().address], cut))


for _count in (5, 4, 3, 2, 1):
    _operator_from(_count)


@_case("clients-from-leader", "no client hears a leader", 12)
async def _clients_from_leader(world: World, _rng: random.Random) -> Fault:
    leader, _ = await _leader_and_peers(world)
    return Cut(apart(_clients(world), [leader]))


@_case("operator-from-api", "nothing reaches the API server from the operator", 25)
async def _operator_from_api(world: World, _rng: random.Random) -> Fault:
    # The port alone: the kubelet, which probes the operator, has the same address.
    return Cut([Loss((world.operator().address,), ("127.0.0.1",), port=world.api_port())])


def _loss(percent: int) -> None:
    @_case(f"loss-{percent}", f"{percent} % of all packets between nodes and clients are lost", 15)
    async def _make(world: World, _rng: random.Random) -> Fault:
        nodes = tuple(node.address for node in world.nodes().values())
        everybody = (*nodes, *_clients(world), world.operator().address)
        return Cut([Loss(everybody, everybody, percent / 100)])


for _percent in (1, 5, 20):
    _loss(_percent)


# --- disks ---------------------------------------------------------------------------------------


@_case("disk-fails", "every sync of a leader's node fails with EIO", 20)
async def _disk_fails(world: World, _rng: random.Random) -> Fault:
    return syncs_fail([world.nodes()[await world.busiest()].control], errno.EIO)


def _slow(milliseconds: int) -> None:
    what = f"every sync of a leader's node takes {milliseconds} ms longer"

    @_case(f"disk-slow-{milliseconds}", what, 20)
    async def _make(world: World, _rng: random.Random) -> Fault:
        return syncs_slow([world.nodes()[await world.busiest()].control], milliseconds)


for _milliseconds in (50, 500, 4000):
    _slow(_milliseconds)


@_case("disk-full", "the disk of a leader's node has no space", 30, storms=False)
async def _disk_full(world: World, _rng: random.Random) -> Fault:
    return FullDisk(world, await world.busiest())


# --- clocks --------------------------------------------------------------------------------------


def _clock(name: str, what: str, nodes: int, seconds: float) -> None:
    @_case(name, what, 8)
    async def _make(world: World, _rng: random.Random) -> Fault:
        known = world.nodes()
        chosen = (await world.by_leaders())[:nodes]
        return clocks_off([known[number].control for number in chosen], seconds)


_clock("clock-2s", "the clock of a leader's node is 2 s ahead", 1, 2.0)
_clock("clock-back", "the clock of a leader's node is an hour behind", 1, -3600.0)
_clock("clocks-30d", "the clocks of three nodes are 30 days ahead", 3, 30 * _DAY_SECONDS)


# --- processes -----------------------------------------------------------------------------------


@_case("node-killed", "a leader's node is killed", 10)
async def _node_killed(world: World, _rng: random.Random) -> Fault:
    return Killed([world.nodes()[await world.busiest()].process])


@_case("node-stopped", "a leader's node does not run", 12)
async def _node_stopped(world: World, _rng: random.Random) -> Fault:
    return Stopped([world.nodes()[await world.busiest()].process])


@_case("operator-killed", "the operator is killed", 10)
async def _operator_killed(world: World, _rng: random.Random) -> Fault:
    return Killed([world.operator().process])


@_case("operator-stopped", "the operator does not run", 30)
async def _operator_stopped(world: World, _rng: random.Random) -> Fault:
    return Stopped([world.operator().process])


@_case("api-killed", "kube-apiserver and etcd are killed", 10)
async def _api_killed(world: World, _rng: random.Random) -> Fault:
    return Killed([world.part("kube-apiserver"), world.part("etcd")])


@_case("api-stopped", "kube-apiserver does not run", 20)
async def _api_stopped(world: World, _rng: random.Random) -> Fault:
    return Stopped([world.part("kube-apiserver")])


@_case("etcd-stopped", "etcd does not run", 20)
async def _etcd_stopped(world: World, _rng: random.Random) -> Fault:
    return Stopped([world.part("etcd")])


@_case("etcd-restored", "etcd is put back from a copy, controllers are restarted", 30, storms=False)
async def _etcd_restored(world: World, _rng: random.Random) -> Fault:
    return Restored(world, await world.busiest())


async def _scaled(world: World, _rng: random.Random) -> Fault:
    return scaled(world)


async def _drained(world: World, rng: random.Random) -> Fault:
    return drained(world, rng)


async def _resharded(world: World, _rng: random.Random) -> Fault:
    return resharded(world)


async def _leader_moved(world: World, rng: random.Random) -> Fault:
    return LeaderMoved(world, rng)


CHANGES = {
    case.name: case
    for case in (
        Case("scaled", "a data node more, and one less", 40, _scaled),
        Case("drained", "a Kubernetes node is closed, and opened again", 30, _drained),
        Case("resharded", "half as many partitions again, and as before", 40, _resharded),
        Case("leader-moved", "a person moves a leader", 5, _leader_moved),
    )
}
"""What people do in storms."""


async def _cancelled(world: World, _rng: random.Random) -> Fault:
    return Cancelled(world)


SOAK_CHANGES = {
    case.name: case
    for case in (Case("cancelled", "a rebalance is asked for, and cancelled", 20, _cancelled),)
}
"""What people do in the storms of a soak besides; storms by themselves keep to their seeds."""


def in_storms() -> dict[str, Case]:
    """Return what storms are made of."""
    return {name: case for name, case in {**CASES, **CHANGES}.items() if case.storms}
