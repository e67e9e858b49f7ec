"""The faults of chaos runs: that each does what it says, tells how often, and ends.

Each test runs in a process of its own in new namespaces, as the runs do.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.chaos import apart
from e2e.chaos.cases import CASES, in_storms
from e2e.chaos.fault import Fault, Flapping, Together
from e2e.chaos.network import Loss, packets, ruleset
from e2e.chaos.network import apart as taken_apart
from e2e.chaos.shim import FIELDS, Control, build_shim, environment
from e2e.chaos.shimmed import syncs_slow
from e2e.chaos.soak import round_of, soak_cases
from e2e.chaos.storm import AT_ONCE_MAX, plan
from e2e.chaos.world import ZONE, ZONE_PATH, World
from e2e.kind.places import default_places

pytestmark = pytest.mark.proves("NW-07")
ROOT = Path(__file__).parents[2]


def test_a_cut_loses_packets_in_both_directions() -> None:
    """One direction alone is another fault."""
    assert taken_apart(["127.0.0.2"], ["127.0.0.3", "127.0.0.4"]) == (
        Loss(("127.0.0.2",), ("127.0.0.3", "127.0.0.4")),
        Loss(("127.0.0.3", "127.0.0.4"), ("127.0.0.2",)),
    )


def test_rules_name_addresses_port_and_share() -> None:
    """A rule that matches too much cuts what is to go on."""
    text = ruleset("t", [Loss(("127.0.0.2",), ("127.0.0.3",), share=0.05, port=7)])

    assert (
        "ip saddr { 127.0.0.2 } ip daddr { 127.0.0.3 } "
        "tcp dport 7 numgen random mod 1000 < 50 counter drop"
    ) in text


def test_all_rules_of_a_fault_are_counted() -> None:
    """A fault whose second rule alone bites would count as one that does nothing."""
    rules = [{"rule": {"expr": [{"match": {}}, {"counter": {"packets": n}}]}} for n in (0, 3)]

    assert packets({"nftables": [{"table": {}}, *rules]}) == 3


class Noted(Fault):
    """Notes what is asked of it."""

    def __init__(self, bites: int = 1) -> None:
        self.deeds: list[str] = []
        self._bites = bites

    async def begin(self) -> None:
        """Note it."""
        self.deeds.append("begin")

    async def heal(self) -> None:
        """Note it."""
        self.deeds.append("heal")

    async def bites(self) -> int:
        """Return what was given."""
        return self._bites


async def test_what_flaps_is_healed_in_the_end() -> None:
    """A cut that stays behind spoils every fault after it."""
    noted = Noted()
    flapping = Flapping(noted, random.Random(1), 0.0, 0.001)
    await flapping.begin()
    async with asyncio.timeout(10):
        while len(noted.deeds) < 6:  # noqa: ASYNC110 - the subject tells nobody
            await asyncio.sleep(0)

    await flapping.heal()

    assert noted.deeds[:4] == ["begin", "heal", "begin", "heal"]
    assert noted.deeds[-1] == "heal"


async def test_together_each_has_to_bite() -> None:
    """One of two faults that does nothing makes the other one's test of both a lie."""
    assert await Together([Noted(3), Noted(0)]).bites() == 0


def test_a_storm_is_repeated_by_its_seed() -> None:
    """A storm that failed could not be played again."""
    first, again, other = (plan(random.Random(n), in_storms(), 240) for n in (1, 1, 2))

    assert first == again
    assert first != other
    assert len(first) > 10


@pytest.mark.parametrize("seed", range(20))
def test_a_storm_ends_and_is_bearable(seed: int) -> None:
    """More faults at once than two leave no quorum; one that outlasts the storm is not healed."""
    events = plan(random.Random(seed), in_storms(), 240)

    assert max(event.end for event in events) <= 240
    for event in events:
        at_once = [each for each in events if each.begin <= event.begin < each.end]
        assert len(at_once) <= AT_ONCE_MAX


def test_what_must_be_prepared_for_is_no_part_of_storms() -> None:
    """A storm prepares nothing: such a fault would not be there."""
    assert {"disk-full", "etcd-restored"} <= CASES.keys() - in_storms().keys()


def test_a_soak_is_repeated_by_its_seed_and_has_what_storms_cannot_have() -> None:
    """A soak that failed could not be played again; disks would never be full in one."""
    rounds = [round_of(7, number, 3600) for number in range(1, 21)]
    assert rounds == [round_of(7, number, 3600) for number in range(1, 21)]
    assert rounds != [round_of(8, number, 3600) for number in range(1, 21)]
    prepared = [each.prepared for each in rounds if each is not None]
    names = [each.name for each in prepared if each is not None]
    assert set(names[:3]) == CASES.keys() - in_storms().keys()
    # What a soak promises: kills, freezes, outages, clock steps, and what people do meanwhile.
    killed_and_stopped = {"node-killed", "node-stopped", "operator-killed", "operator-stopped"}
    outages = {"api-killed", "api-stopped", "etcd-stopped", "clock-back", "clocks-30d"}
    people = {"resharded", "leader-moved", "cancelled", "drained", "scaled"}
    assert killed_and_stopped | outages | people <= soak_cases().keys()
    assert {"disk-full", "etcd-restored"} <= set(names)
    last = round_of(7, 1, 50)
    assert last is not None
    assert last.storm_seconds == 50
    assert round_of(7, 1, 29) is None


@pytest.fixture(scope="module")
def shim() -> Path:
    """Build the library; skip where faults cannot be made."""
    try:
        apart.find_system_programs()
        apart.check_machine()
    except apart.UnfitMachineError as error:
        pytest.skip(str(error))
    return build_shim(default_places().programs)


def test_the_library_has_the_fields_that_are_set_by_place() -> None:
    """An offset written where a delay is read makes another fault than the one asked for."""
    source = (ROOT / "e2e" / "chaos" / "shim.c").read_text()
    block = source.partition("struct control {")[2].partition("};")[0]
    names = [word.strip(" ,;") for word in block.replace("int64_t", "").split()]

    assert tuple(names) == FIELDS


def in_process(shim: Path, file: Path, code: str, address: str = "127.66.0.1") -> Any:
    """Run Python code with the library preloaded; return what it prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment(shim, address, str(file))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_a_clock_is_moved_and_the_monotonic_one_is_not(shim: Path, tmp_path: Path) -> None:
    """Deadlines that moved with the clock would be another fault."""
    control = Control(tmp_path / "control")
    code = "import json, time; print(json.dumps([time.time(), time.monotonic()]))"
    real, steady = in_process(shim, tmp_path / "control", code)
    assert control.get("clocks_moved") == 0

    control.set("clock_offset_ns", -3600 * 10**9)
    moved, steady_then = in_process(shim, tmp_path / "control", code)

    assert -3600 <= moved - real < -3500
    assert 0 < steady_then - steady < 100
    assert control.get("clocks_moved") > 0


async def test_syncs_fail_and_wait_as_told(shim: Path, tmp_path: Path) -> None:
    """A disk that is well after all tests nothing, and must not be counted as bitten."""
    path = tmp_path / "control"
    control = Control(path)
    slow = syncs_slow([control], 20)
    code = """
import json, os, time
begun = time.monotonic()
error = 0
try:
    os.fdatasync(os.open("FILE", os.O_CREAT | os.O_WRONLY))
except OSError as failure:
    error = failure.errno
print(json.dumps([error, time.monotonic() - begun]))
""".replace("FILE", str(tmp_path / "data"))
    assert in_process(shim, path, code)[0] == 0
    await slow.begin()
    assert await slow.bites() == 0
    control.set("sync_errno", 5)

    error, seconds = in_process(shim, path, code)

    assert error == 5
    assert seconds >= 0.02
    assert await slow.bites() == 1
    assert control.get("syncs_failed") == 1
    await slow.heal()
    assert control.get("sync_delay_ms") == 0


def test_connections_come_from_the_given_address(shim: Path, tmp_path: Path) -> None:
    """Rules name addresses: where all come from 127.0.0.1, cuts bite nobody (gRPC: IPv6)."""
    code = """
import json, socket
found = []
for family, target in ((socket.AF_INET, "127.66.0.2"), (socket.AF_INET6, "::ffff:127.66.0.2")):
    with socket.create_server(("127.66.0.2", 0)) as server:
        with socket.socket(family) as client:
            client.connect((target, server.getsockname()[1]))
            connection, peer = server.accept()
            connection.close()
            found.append(peer[0])
print(json.dumps(found))
"""
    assert in_process(shim, tmp_path / "control", code) == ["127.66.0.1", "127.66.0.1"]


_CUT = """
import asyncio, json, socket
from e2e.chaos import apart
from e2e.chaos.network import Cut, Loss

def reached(source, target):
    with socket.create_server((target, 0)) as server, socket.socket() as client:
        client.settimeout(0.3)
        client.bind((source, 0))
        try:
            client.connect(server.getsockname())
        except TimeoutError:
            return False
        return True

async def main():
    apart.raise_loopback()
    cut = Cut([Loss(("127.66.0.1",), ("127.66.0.2",))])
    found = []
    for begin in (cut.begin, cut.heal, cut.begin, cut.heal):
        await begin()
        found.append([reached("127.66.0.1", "127.66.0.2"), reached("127.66.0.3", "127.66.0.2")])
        found[-1].append(await cut.bites())
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.mark.usefixtures("shim")
def test_a_cut_bites_those_that_it_names_until_it_heals() -> None:
    """Rules that match nothing, or stay behind, or lose their count: a run would prove nothing."""
    done = subprocess.run(
        [*apart.unshare(), sys.executable, "-c", _CUT],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    cut, healed, again, at_rest = json.loads(done.stdout)

    assert cut[:2] == again[:2] == [False, True]
    assert healed[:2] == at_rest[:2] == [True, True]
    assert 0 < cut[2] <= healed[2] < again[2] <= at_rest[2]


async def test_who_cancelled_a_re_sharding_asks_for_it_again(tmp_path: Path) -> None:
    """The zone would wait for that for good, and a soak for the zone."""
    zone: dict[str, Any] = {"spec": {"partitions": 8}, "status": {"assignments": {}}}
    asked: list[int] = []

    class Api:
        async def patch(self, path: str, change: dict[str, Any]) -> None:
            assert path == ZONE_PATH
            zone["spec"] |= change["spec"]
            asked.append(change["spec"]["partitions"])

    class Cluster:
        api = Api()

        async def own(self, plural: str, name: str) -> dict[str, Any]:
            assert (plural, name) == ("distributionzones", ZONE)
            return zone

        async def routes(self, name: str) -> tuple[None, ...]:
            assert name == ZONE
            return (None,) * 12

    cluster: Any = Cluster()
    world = World(cluster, tmp_path, tmp_path, 8)
    await world.ask_again()
    assert not asked
    zone["status"]["assignments"]["cancelledPartitions"] = 8
    for _ in range(2):
        # The operator has not seen the first change when it is looked at again.
        await world.ask_again()
        assert asked == [12]
    del zone["status"]["assignments"]["cancelledPartitions"]
    for _ in range(2):
        await world.ask_again()
        assert asked == [12, 8]
