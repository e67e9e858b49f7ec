"""Where an operator dies: before or after one of the deeds by which it changes the outside.

A deed has a name in words: `RebalanceTask Planned` (a state is entered, and stored unless the pass
has gone further), `create RegionMigration`, `authorize` and `lead` (a route record with, or
without, an authorized takeover), `authorize seal` and `note seal`, `create layout` and `delete
layout`, `call Takeover`, `create SparkApplication`, before it `intend SparkApplication` (its name
is stored), later `find SparkApplication RUNNING`.
What the end is, is said by whoever hands it over: tasks that are cancelled, or a process that is
killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rezone.domain.model.world import RouteChange, SparkView
from rezone.kube.api.client import Kube
from rezone.kube.api.names import AnyObject
from rezone.kube.jobs.spark import Owner, SparkStore
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import O, StatusStore
from rezone.resources.machine_status import MachineStatus
from rezone.resources.model import Model
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import LeaderAndIsr, Message, PartitionId
from rezone.wire.transport.flight import NodeClient


@dataclasses.dataclass(frozen=True)
class CrashPoint:
    """The first time that a deed of this name is about to be done; or has been, and answered."""

    deed: str
    after: bool


class Crash:
    """What ends an operator at a point."""

    def __init__(self, point: CrashPoint, end: Callable[[], Any]) -> None:
        self._point = point
        self._end = end

    @contextlib.contextmanager
    def around(self, *deeds: str) -> Iterator[None]:
        """End before or after what is done inside, if it is one of these deeds that was chosen."""
        hit = self._point.deed in deeds
        if hit and not self._point.after:
            self._end()
        yield
        if hit:
            self._end()


def entered(obj: AnyObject, new: Model) -> set[str]:
    """Return the states that a machine's write stands for: the one it stores, and those before it.

    Data nodes go on while no operator lives: what the next one finds may lead it through a state
    at once.
    """
    if not isinstance(new, MachineStatus):
        return set()
    known = obj.status.history if obj.status is not None else ()
    return {new.state, *(line.state for line in new.history if line not in known)}


class CrashingStore(StatusStore):
    """Stores states, and makes children, until the crash point is reached."""

    def __init__(self, kube: Kube, crash: Crash) -> None:
        super().__init__(kube)
        self._crash = crash

    async def write_status(self, obj: O, new_status: Model) -> O:
        """Store the status."""
        deeds = [f"{type(obj).__name__} {state}" for state in entered(obj, new_status)]
        if isinstance(obj, RebalanceTask) and isinstance(new_status, RebalanceTaskStatus):
            known = obj.status.spark_application if obj.status is not None else ""
            if new_status.spark_application != known:
                deeds.append("intend SparkApplication")
        with self._crash.around(*deeds):
            return await super().write_status(obj, new_status)

    async def create(self, obj: O, owner: AnyObject | None = None) -> O:
        """Make the object."""
        with self._crash.around(f"create {type(obj).__name__}"):
            return await super().create(obj, owner)


class CrashingRoutes(RouteStore):
    """Changes route records until the crash point is reached."""

    def __init__(self, kube: Kube, zone: DistributionZone, crash: Crash) -> None:
        super().__init__(kube, zone)
        self._crash = crash

    async def change(self, changes: Sequence[RouteChange]) -> frozenset[PartitionId]:
        """Change the records."""
        deeds = {"lead" if c.state.next_leader is None else "authorize" for c in changes}
        deeds |= {"authorize seal" for c in changes if c.state.sealing}
        deeds |= {"note seal" for c in changes if c.state.sealed}
        with self._crash.around(*deeds):
            return await super().change(changes)

    async def create(self, records: Sequence[LeaderAndIsr], generation: int = 0) -> None:
        """Write the records of a layout."""
        with self._crash.around("create layout"):
            await super().create(records, generation)

    async def delete(self, generation: int) -> None:
        """Delete the records of a layout."""
        with self._crash.around("delete layout"):
            await super().delete(generation)


class CrashingSpark(SparkStore):
    """Starts, looks at and ends SparkApplications until the crash point is reached."""

    def __init__(self, *args: Any, crash: Crash) -> None:
        super().__init__(*args)
        self._crash = crash

    async def ensure(self, *args: Any, **options: Any) -> bool:
        """Make the SparkApplication and its plan."""
        with self._crash.around("create SparkApplication"):
            return await super().ensure(*args, **options)

    async def ensure_backfill(self, *args: Any, **options: Any) -> bool:
        """Make the SparkApplication of a re-sharding."""
        with self._crash.around("create SparkApplication"):
            return await super().ensure_backfill(*args, **options)

    async def state(self, owner: Owner, name: str) -> SparkView:
        """Return the SparkApplication's state; whoever dies here has heard it and noted nothing."""
        found = await super().state(owner, name)
        with self._crash.around(f"find SparkApplication {found.state}"):
            return found

    async def delete(self, owner: Owner, name: str) -> bool:
        """Delete the SparkApplication and its plan."""
        with self._crash.around("delete SparkApplication"):
            return await super().delete(owner, name)


class CrashingClient(NodeClient):
    """Calls a data node until the crash point is reached."""

    def __init__(self, *args: Any, crash: Crash, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crash = crash

    def call(self, request: Message, *args: Any, **options: Any) -> Any:
        """Call the data node."""
        with self._crash.around(f"call {type(request).__name__}"):
            return super().call(request, *args, **options)
