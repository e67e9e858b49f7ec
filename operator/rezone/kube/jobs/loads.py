"""Rates of clients, asked from the data nodes through the API server with the user's own rights.

Their page /load is read by `pods/proxy`. All of it is bounded: how many are asked at a time, how
long, how much of an answer is read; what an answer says is checked. A data node that has not
answered is left alone for a while, so that one that hangs does not slow the others' rates down.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rezone.domain.observed.client_load import ClientRates, Interval, interval_of, rates_of
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ForbiddenError, KubeError
from rezone.kube.api.kinds import Pod
from rezone.kube.nodes.data_node import PodSettings
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState
from rezone.wire.errors import UNREADABLE
from rezone.wire.messages import NodeId
from rezone.wire.messages.loads import ClientLoad
from rezone.wire.typed import from_json

ANSWER_BYTES_MAX: Final = 16_384
ASKED_AT_A_TIME_MAX: Final = 8
NODES_MAX: Final = 256
"""Data nodes whose rates are known; those of the others are unknown."""
ASK_SECONDS_MAX: Final = 1.0
LEFT_ALONE_SECONDS: Final = 120.0
"""Longer than the console pauses after a look that has waited for a node (`console.events`)."""
WINDOW_SECONDS: Final = 1.0
WINDOW_SECONDS_MAX: Final = 120.0
_POD: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A pod's name becomes a part of a path of the API server."""
_PORT: Final = PodSettings.health_port


@dataclass(frozen=True)
class ZoneRates:
    """The rates of a zone and of its data nodes; `unknown` says why some are missing."""

    zone: ClientRates | None = None
    nodes: Mapping[NodeId, ClientRates] = field(default_factory=dict)
    unknown: str = ""


NO_RATES: Final = ZoneRates()


class RateReader:
    """The rates of one zone, from one look to the next."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._last: dict[NodeId, ClientLoad] = {}
        self._last_time = -WINDOW_SECONDS_MAX
        self._alone_until: dict[NodeId, float] = {}
        self._unknown = ""

    async def rates(self, zone: DistributionZone, *, wait: bool) -> ZoneRates:
        """Return the rates since the last look; the first has none, and `wait` looks twice."""
        if self._clock() - self._last_time >= WINDOW_SECONDS_MAX:
            await self._look(zone)
            if not wait or not self._last:
                return ZoneRates(unknown=self._unknown)
            await asyncio.sleep(WINDOW_SECONDS)
        before = self._last
        await self._look(zone)
        found = {
            node: interval
            for node, load in self._last.items()
            if node in before and (interval := interval_of(before[node], load)) is not None
        }
        return _zone_rates(found, self._unknown)

    async def _look(self, zone: DistributionZone) -> None:
        """Read the counts of all data nodes that are active."""
        self._unknown = ""
        now = self._clock()
        asked = self._to_ask(zone, now)
        found: dict[NodeId, ClientLoad] = {}
        refused: dict[NodeId, str] = {}
        open_asks: set[NodeId] = set()
        waiting = iter(asked)

        async def work() -> None:
            for node, pod in waiting:
                if len(refused) >= ASKED_AT_A_TIME_MAX and not found:
                    return  # the API server refuses this user: so it would be with all
                open_asks.add(node)
                try:
                    found[node] = await self._ask(zone.metadata.namespace, pod)
                except ForbiddenError as error:
                    refused[node] = str(error)
                except (KubeError, ValueError) as error:
                    self._leave_alone(node, str(error))
                open_asks.discard(node)

        try:
            async with asyncio.timeout(ASK_SECONDS_MAX), asyncio.TaskGroup() as group:
                for _ in range(min(ASKED_AT_A_TIME_MAX, len(asked))):
                    group.create_task(work())
        except TimeoutError:
            for node in open_asks:
                self._leave_alone(node, "it has not answered in time")
        self._note_refused(refused, some_answered=bool(found))
        self._last, self._last_time = found, now

    def _to_ask(self, zone: DistributionZone, now: float) -> list[tuple[NodeId, str]]:
        """Return the data nodes that are active and not left alone, with their pods."""
        nodes = zone.status.data_nodes if zone.status is not None else ()
        return [
            (each.id, each.pod_name)
            for each in nodes
            if each.state is DataNodeState.ACTIVE
            and _POD.fullmatch(each.pod_name)
            and self._alone_until.get(each.id, now) <= now
        ][:NODES_MAX]

    def _note_refused(self, refused: Mapping[NodeId, str], *, some_answered: bool) -> None:
        """Leave nodes alone that have refused by themselves; the API server refuses all alike."""
        for node, why in refused.items():
            self._unknown = why
            if some_answered:
                self._leave_alone(node, why)

    def _leave_alone(self, node: NodeId, why: str) -> None:
        self._unknown = f"data node {node}: {why}"[:500]
        self._alone_until[node] = self._clock() + LEFT_ALONE_SECONDS

    async def _ask(self, namespace: str, pod: str) -> ClientLoad:
        """Return the counts of a data node. Raises KubeError, and ValueError for no such answer."""
        found = await self._kube.text(
            Pod, namespace, f"{pod}:{_PORT}", "proxy/load", bytes_max=ANSWER_BYTES_MAX
        )
        return load_of(found.content)


def load_of(content: bytes) -> ClientLoad:
    """Return what a data node has answered. Raises ValueError when it is none of that."""
    try:
        return from_json(content, ClientLoad)
    except UNREADABLE as error:
        raise ValueError(f"its answer cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError("its answer cannot be read") from error


def _zone_rates(found: Mapping[NodeId, Interval], unknown: str) -> ZoneRates:
    each = {node: rates_of([interval]) for node, interval in found.items()}
    return ZoneRates(
        zone=rates_of(list(found.values())),
        nodes={node: rates for node, rates in each.items() if rates is not None},
        unknown=unknown,
    )
