"""Cuts as somebody sees them: the operator from some data nodes, a leader from its peers, a bridge.

A zone of five nodes is written to while a network is cut that tells nobody. What is measured is
the longest time in which a partition had no acknowledged write, in simulated seconds; clients reach
all nodes. How often leaders change is counted as well.

`storm` runs one of these cuts, which begins and ends at a moment that a seed chooses.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Iterable
from itertools import combinations

from rezone.wire.messages import NodeId, PartitionId
from simulation.cluster.world import Order, World
from simulation.nodes.network import Network
from simulation.scenarios.scenarios import Start, at_rest

START = Start(partitions=5, replicas=3, nodes=5)
NODES = (0, 1, 2, 3, 4)
CUT_SECONDS = 15.0
LOOKED_SECONDS = 20.0
"""For so long after a cut has begun gaps count."""

RUN_SECONDS_MAX = 300.0
FLAP_SECONDS = (0.2, 2.5)
REST_SECONDS = 5.0
"""A zone rests for so long before it is cut; in a storm for up to `REST_SECONDS_MAX`."""

REST_SECONDS_MAX = 8.0

Cut = Callable[[Network], None]
When = Callable[[World], bool]


@dataclasses.dataclass
class Seen:
    """What a run has shown: per partition its longest gap, and how often its leader changed."""

    gaps: dict[PartitionId, float] = dataclasses.field(default_factory=dict)
    changes: dict[PartitionId, int] = dataclasses.field(default_factory=dict)
    led_by: dict[PartitionId, NodeId] = dataclasses.field(default_factory=dict)
    reasons: set[str] = dataclasses.field(default_factory=set)
    healed_seconds: float = 0.0

    @property
    def longest(self) -> float:
        """The longest gap of any partition."""
        return max(self.gaps.values())


class Watch:
    """Measures a run from the moment that the cut begins."""

    def __init__(self, world: World) -> None:
        self.seen = Seen()
        self._world = world
        self._begun = world.loop.time()
        self._last = dict.fromkeys(world.checks.routes, self._begun)
        self._epochs = {p: r.leader_epoch for p, r in world.checks.routes.items()}
        self.seen.led_by = {p: r.leader for p, r in world.checks.routes.items()}
        self.seen.gaps = dict.fromkeys(self._last, 0.0)
        self.seen.changes = dict.fromkeys(self._last, 0)
        world.acknowledged = self.acknowledged

    def acknowledged(self, partition: PartitionId) -> None:
        """Note that a client was told that its write is safe."""
        self._last[partition] = self._world.loop.time()

    def look(self, world: World) -> None:
        """Look at gaps, leaders and conditions; called in every step, so that none is long."""
        now = world.loop.time()
        world.disturbed()
        if now - self._begun > LOOKED_SECONDS:
            return
        for partition, last in self._last.items():
            self.seen.gaps[partition] = max(self.seen.gaps[partition], now - last)
            epoch = world.checks.routes[partition].leader_epoch
            self.seen.changes[partition] += epoch != self._epochs[partition]
            self._epochs[partition] = epoch
        status = world.zone().status
        if status is not None:
            self.seen.reasons |= {c.reason for c in status.conditions}


def run_cut(
    begin: Callable[[World], None],
    seed: int = 1,
    *,
    after_seconds: float = REST_SECONDS,
    seconds: float = CUT_SECONDS,
) -> Seen:
    """Let `begin` break a zone at rest, heal it after a while; all must be as it was then."""
    with World(seed, at_rest(START)) as world:
        watches: list[Watch] = []

        def cut(world: World) -> None:
            watches.append(Watch(world))
            world.each_step = watches[0].look
            begin(world)
            world.loop.call_later(seconds, world.network.heal)

        begun = _after(after_seconds)
        over = _after(LOOKED_SECONDS)
        world.orders = [Order(begun, cut), Order(over, _let_go)]
        world.run(RUN_SECONDS_MAX)
        return watches[0].seen


def _after(seconds: float) -> When:
    since: list[float] = []

    def when(world: World) -> bool:
        since[:] = since or [world.loop.time()]
        return world.loop.time() - since[0] >= seconds

    return when


def _let_go(world: World) -> None:
    world.each_step = lambda _: None


# --- the cuts ------------------------------------------------------------------------------------


def operator_from(nodes: Iterable[NodeId]) -> Callable[[World], None]:
    """Cut the operator off from these nodes, in both directions."""
    return lambda world: world.network.isolated.update(nodes)


def operator_from_idle(node: NodeId) -> Callable[[World], None]:
    """Cut the operator off from a node in a zone that nobody writes to."""

    def begin(world: World) -> None:
        operator_from((node,))(world)
        world.pause_writes(CUT_SECONDS)

    return begin


def operator_hears_none_of(nodes: Iterable[NodeId]) -> Callable[[World], None]:
    """Lose what these nodes say to the operator; what it says to them arrives."""
    return lambda world: world.network.unreported.update(nodes)


def node_from_peers(node: NodeId) -> Callable[[World], None]:
    """Cut a node off from all others, but neither from the operator nor from clients."""
    return lambda world: world.network.silent.update(
        frozenset((node, other)) for other in NODES if other != node
    )


def node_from_all(node: NodeId) -> Callable[[World], None]:
    """Cut a node off from all others and from the operator."""

    def begin(world: World) -> None:
        node_from_peers(node)(world)
        world.network.isolated.add(node)

    return begin


def nothing_reaches(node: NodeId) -> Callable[[World], None]:
    """Lose all that its peers send a node; what it says arrives."""
    return lambda world: world.network.lossy.update((o, node) for o in NODES if o != node)


def nobody_hears(node: NodeId) -> Callable[[World], None]:
    """Lose all that a node sends its peers; what they say arrives."""
    return lambda world: world.network.lossy.update((node, o) for o in NODES if o != node)


def halves(one: Iterable[NodeId], bridge: NodeId | None = None) -> Callable[[World], None]:
    """Cut the nodes into two groups; a bridge is in both."""
    first = {*one} - {bridge}
    second = {*NODES} - first - {bridge}
    links = [frozenset((a, b)) for a in first for b in second]
    return lambda world: world.network.silent.update(links)


def flapping(seed: int) -> Callable[[World], None]:
    """Cut a node off from its peers and let it hear them again, over and over."""
    rng = random.Random(f"flapping {seed}")
    node = rng.choice(NODES)
    links = [frozenset((node, other)) for other in NODES if other != node]

    def begin(world: World) -> None:
        end = world.loop.time() + CUT_SECONDS

        def flip(*, cut: bool) -> None:
            silent = world.network.silent
            (silent.update if cut else silent.difference_update)(links)
            seconds = rng.uniform(*FLAP_SECONDS)
            if world.loop.time() + seconds < end:
                world.loop.call_later(seconds, lambda: flip(cut=not cut))

        flip(cut=True)

    return begin


def hangs(node: NodeId) -> Callable[[World], None]:
    """Stop a process as SIGSTOP does: its connections stand."""
    return lambda world: world.network.hung.add(node)


def stalls(node: NodeId) -> Callable[[World], None]:
    """Let a node answer nobody and do nothing for what it leads, but say that it is there."""
    return lambda world: world.network.stalled.add(node)


def dies(node: NodeId) -> Callable[[World], None]:
    """Kill a node's process; it is back after the cut's time."""
    return lambda world: world.kubelet.kill(node, CUT_SECONDS)


def of_each(kind: Callable[[NodeId], Callable[[World], None]]) -> list[Callable[[World], None]]:
    """Return a cut at each node."""
    return [kind(node) for node in NODES]


def subsets(count: int) -> list[tuple[NodeId, ...]]:
    """Return all ways to choose so many nodes."""
    return list(combinations(NODES, count))


KINDS: dict[str, list[Callable[[World], None]]] = {
    **{f"operator from {k} of 5": [operator_from(s) for s in subsets(k)] for k in range(1, 6)},
    **{
        f"operator does not hear {k} of 5": [operator_hears_none_of(s) for s in subsets(k)]
        for k in (1, 3, 4)
    },
    "a node from its peers": of_each(node_from_peers),
    "a node from all": of_each(node_from_all),
    "nothing reaches a node": of_each(nothing_reaches),
    "nobody hears a node": of_each(nobody_hears),
    "halves": [halves(s) for s in subsets(2)],
    "bridge": [halves(s, b) for s, b in (((0, 1), 2), ((0, 3), 1), ((2, 4), 0), ((1, 2), 4))],
    "flapping": [flapping(seed) for seed in range(6)],
    "a process hangs": of_each(hangs),
    "a leader stalls": of_each(stalls),
    "a process dies": of_each(dies),
}


# --- what is right -------------------------------------------------------------------------------

ONE_WAY_SECONDS_MAX = 6.0
"""An end that is not heard closes after 2 s; what it was promised until then lasts for 2 s more."""

STALLED_SECONDS_MAX = 10.0
"""The simulation's followers wait for 6 s, as its leaders do for followers that owe an ack."""

BOUNDS = {
    "a node from its peers": 3.0,
    "a node from all": 3.3,
    "nothing reaches a node": ONE_WAY_SECONDS_MAX,
    "nobody hears a node": ONE_WAY_SECONDS_MAX,
    "halves": 3.0,
    "bridge": 3.0,
    "flapping": 4.5,
    "a process hangs": 3.3,
    "a process dies": 3.3,
    "a leader stalls": STALLED_SECONDS_MAX,
}
"""The longest gaps that are right: promises last for 2 s, and silent followers are missed 2.5 s."""

OPERATOR = [kind for kind in KINDS if kind not in BOUNDS]
OPERATOR_GAP_SECONDS_MAX = 1.0
TOLD_AFTER_SECONDS = 10.0
"""A zone says within this time that its operator does not reach some node."""

MOVES_MAX = 1
FLAPPING_MOVES_MAX = 3


def check(kind: str, seen: Seen, seconds: float = CUT_SECONDS) -> None:
    """Assert that a cut of so many seconds had no longer gaps and moves than are right."""
    said = f"{kind}, {seconds:.3f} s: {seen}"
    if kind in OPERATOR:
        assert seen.longest < OPERATOR_GAP_SECONDS_MAX, said
        assert not any(seen.changes.values()), said
        told = seen.reasons & {"NotReached", "OperatorCutOff"}
        assert told or seconds < TOLD_AFTER_SECONDS, said
    else:
        assert seen.longest < BOUNDS[kind], said
        most = FLAPPING_MOVES_MAX if kind == "flapping" else MOVES_MAX
        assert max(seen.changes.values()) <= most, said


OWN_END = frozenset({"flapping", "a process dies"})
"""Cuts that end by themselves, after `CUT_SECONDS`."""


def storm(seed: int) -> collections.Counter[str]:
    """Run a cut of the kind that is the seed's turn; returns what has happened."""
    rng = random.Random(f"cuts {seed}")
    kind = list(KINDS)[seed % len(KINDS)]
    begin = flapping(seed) if kind == "flapping" else rng.choice(KINDS[kind])
    seconds = CUT_SECONDS if kind in OWN_END else rng.uniform(1.0, CUT_SECONDS)
    after = rng.uniform(REST_SECONDS, REST_SECONDS_MAX)
    seen = run_cut(begin, seed, after_seconds=after, seconds=seconds)
    check(kind, seen, seconds)
    counts = collections.Counter(dict.fromkeys(KINDS, 0))
    counts[kind] += 1
    counts["leaders moved"] = sum(seen.changes.values())
    return counts
