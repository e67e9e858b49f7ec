"""Writes and point reads of single rows by 1, 16 and 64 clients, and etcd's in the same run.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/small_ops.py [--clients 1 16 64]
        [--seconds 5] [--calls-max 1 256] [--no-etcd] [--apart] [--asyncio]

Three data nodes are processes of their own, all replicas are on disk. The clients are threads of
one process with one `TableClient`, and each has one operation under way; `--calls-max` is how many
calls may share a request, 1 for none. With `--apart` each thread has a `TableClient` of its own
instead, as pods have: nothing is shared before the leader. With `--asyncio` the clients are
coroutines of one event loop with one `AsyncTableClient`; so many as 2,048 are one program that
does not wait for each row. Reads are linearizable. Processor time is that of one operation, in
microseconds: of the client's process, and of the three nodes together.

etcd has three members that sync their logs. Its clients are threads as well, each with a
connection of its own to one of the members' JSON gateways, which costs its members more than gRPC:
compare rates by their ratio, and with the load that is printed.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from harness.closed_loop import AsyncOperation, Figures, Operation, run, run_in_loop
from harness.leaders import NotHereError
from harness.stores import RezoneStore, Store, StoreClient, etcd_store
from harness.zone import SCHEMA, running_zone

from rezone.client import ClientSettings
from rezone.client.aio import AsyncTableClient
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS

_KEYS = 10_000
_STEP = 7919
_FIRST = 1013
_PAYLOAD = "x" * 70

Show = Callable[[str, int, Figures], None]
"""Prints the figures of writes or reads by so many clients."""


def operation(call: Callable[[int], object], first: int) -> Operation:
    """Return what calls with one key after the other."""
    turns = itertools.count(first)
    return lambda: call(next(turns) * _STEP % _KEYS)


def calls_of(client: StoreClient) -> dict[str, Callable[[int], object]]:
    """Return what a client can do with a key."""
    return {"writes": lambda number: client.put(number, _PAYLOAD), "reads": client.get}


def measure(store: Store, given: argparse.Namespace, told: Show) -> None:
    """Run writes, then reads, by each number of clients."""
    for count in given.clients:
        with store.clients(count) as clients:
            for kind in ("writes", "reads"):
                operations = [
                    operation(calls_of(client)[kind], index * _FIRST)
                    for index, client in enumerate(clients)
                ]
                told(kind, count, run(operations, given.seconds, store.cpu))


async def measure_in_loop(store: RezoneStore, given: argparse.Namespace, told: Show) -> None:
    """Run writes, then reads, by each number of coroutines."""
    names = SCHEMA.names

    def writing(client: AsyncTableClient, turns: Iterator[int]) -> AsyncOperation:
        def put() -> Awaitable[object]:
            number = next(turns) * _STEP % _KEYS
            values = (number, f"row-{number}", number, _PAYLOAD)
            return client.put(**dict(zip(names, values, strict=True)))

        return put

    def reading(client: AsyncTableClient, turns: Iterator[int]) -> AsyncOperation:
        return lambda: client.get(next(turns) * _STEP % _KEYS)

    for count in given.clients:
        async with store.in_loop() as client:
            for kind, made in (("writes", writing), ("reads", reading)):
                turns = [itertools.count(index * _FIRST) for index in range(count)]
                operations = [made(client, each) for each in turns]
                told(kind, count, await run_in_loop(operations, given.seconds, store.cpu))


def show(name: str, clients: int, figures: Figures, peer: Figures | None) -> None:
    """Print one line; `peer`: what etcd has done with as many clients."""
    line = (
        f"{name:<26}{clients:8}{figures.rate:10,.0f}{figures.median_ms:9.1f}"
        f"{figures.slowest_ms:9.1f}{figures.client_us:10,.0f}{figures.servers_us:10,.0f}"
    )
    if peer is not None:
        line += f"{figures.rate / peer.rate:9.2f}{figures.servers_us / peer.servers_us:9.2f}"
    print(f"{line}   load {os.getloadavg()[0]:.1f}", flush=True)


Peers = dict[tuple[str, int], Figures]


def etcd_figures(given: argparse.Namespace) -> Peers:
    """Run etcd's part, and print it."""
    peers: Peers = {}

    def told(kind: str, clients: int, figures: Figures) -> None:
        peers[kind, clients] = figures
        show(f"etcd, {kind}", clients, figures, None)

    with tempfile.TemporaryDirectory() as directory, etcd_store(Path(directory)) as store:
        measure(store, given, told)
    return peers


def own_figures(given: argparse.Namespace, peers: Peers) -> None:
    """Run the zone's part, and print it."""

    def telling(what: str) -> Show:
        return lambda kind, clients, figures: show(
            f"{kind}, {what}", clients, figures, peers.get((kind, clients))
        )

    with running_zone(3, given.partitions, 3) as zone:
        if given.apart:
            measure(RezoneStore(zone, apart=True), given, telling("apart"))
            return
        if given.asyncio:
            asyncio.run(measure_in_loop(RezoneStore(zone), given, telling("asyncio")))
            return
        for calls_max in given.calls_max:
            settings = ClientSettings(shared_calls_max=calls_max)
            measure(RezoneStore(zone, settings), given, telling(f"{calls_max} a request"))


def main() -> None:
    """Measure etcd, then a zone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--calls-max", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--no-etcd", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--asyncio", action="store_true")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    print("rates are operations a second; the last two: times etcd's rate, times its members' CPU")
    print(f"{'':26} clients      rate   median     99 % client us  nodes us     rate      CPU")
    peers: Peers = {}
    if not given.no_etcd:
        try:
            peers = etcd_figures(given)
        except NotHereError as error:
            print(f"left out: {error}")
    own_figures(given, peers)


if __name__ == "__main__":
    main()
