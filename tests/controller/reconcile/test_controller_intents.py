"""A pass writes its intent first; what could not be written is not done (OP-02)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rezone.controller.reconcile import migration, task, zone
from rezone.controller.work.keys import ObjectKey
from rezone.domain.machines.statuses import Decision
from rezone.kube.api.errors import (
    ConflictWriteError,
    KubeError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.resources.migration import MigrationState, RegionMigration, RegionMigrationStatus
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus, TaskState
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

WAKE_SECONDS = 7.0
METADATA = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1}
OBJECTS: dict[str, Any] = {
    "task": RebalanceTask.parse({"metadata": METADATA, "spec": {"zoneName": "z"}}),
    "migration": RegionMigration.parse(
        {"metadata": METADATA, "spec": {"zoneName": "z", "partition": 1, "target": 1}}
    ),
    "zone": DistributionZone.parse(
        {
            "metadata": METADATA,
            "spec": {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}},
        }
    ),
}


class Pass:
    """A pass of each kind around which all is still; `did` is what it writes, tells and does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.did: list[str] = []
        self.error: KubeError | None = None
        self._kind = kind
        coordinator: Any = SimpleNamespace(
            store=SimpleNamespace(find=self._answer(OBJECTS[kind])),
            write_status=self._write,
            metrics=MagicMock(),
            traces=MagicMock(words=lambda _: {}),
            announcer=SimpleNamespace(announce=lambda *_: self.did.append("told")),
            settings=MagicMock(),
            runtime=MagicMock(),
            kube=None,
        )
        seen = SimpleNamespace(
            zone=None, runtime=MagicMock(), view=SimpleNamespace(routes={0: 1}), is_open=True
        )
        acts = SimpleNamespace(carry_out=self._act)
        for module in (task, migration):
            monkeypatch.setattr(module, "begin_pass", self._answer(seen))
            monkeypatch.setattr(module, "Acts", lambda *_: acts)
        self.reconcile: Callable[[ObjectKey], Awaitable[float | None]]
        match kind:
            case "task":
                status = RebalanceTaskStatus(state=TaskState.AWAITING_REPLICAS)
                tasks = task.TaskReconciler(coordinator)
                monkeypatch.setattr(tasks, "_decide", lambda *_: self._decided(status))
                self.reconcile = tasks.reconcile
            case "migration":
                state = RegionMigrationStatus(state=MigrationState.OPEN_CANDIDATE)
                monkeypatch.setattr(migration, "decide", lambda *_, **__: self._decided(state))
                self.reconcile = migration.MigrationReconciler(coordinator).reconcile
            case _:
                zones = zone.ZoneReconciler(coordinator)
                decided = SimpleNamespace(
                    status=DistributionZoneStatus(replicas=1), wake_seconds=WAKE_SECONDS
                )
                monkeypatch.setattr(zones, "_observe", self._answer(None))
                monkeypatch.setattr(zone, "catch_up", self._answer(None))
                monkeypatch.setattr(zones, "_decide", self._answer(decided))
                monkeypatch.setattr(zones, "_act", self._act)
                self.reconcile = zones.reconcile

    def _decided(self, status: Any) -> Decision[Any]:
        return Decision(status=status, wake_seconds=WAKE_SECONDS)

    @staticmethod
    def _answer(value: Any) -> Callable[..., Awaitable[Any]]:
        async def answer(*_: Any, **__: Any) -> Any:
            return value

        return answer

    async def _write(self, _key: ObjectKey, obj: Any, _status: Any) -> Any:
        self.did.append("written")
        if self.error is not None:
            raise self.error
        return obj

    async def _act(self, *_: Any) -> bool:
        self.did.append("done")
        return True

    async def run(self) -> float | None:
        """Run one pass."""
        return await self.reconcile(ObjectKey(self._kind, "ns", "m"))  # type: ignore[arg-type]


@pytest.fixture(params=OBJECTS)
def one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Return a pass of each kind."""
    return Pass(monkeypatch, request.param)


@pytest.mark.proves("OP-02")
async def test_the_status_is_written_before_anything_is_done(one: Pass) -> None:
    """An operator that dies in between would have done what nobody knows of."""
    await one.run()
    assert one.did == ["written", "told", "done"]


@pytest.mark.proves("OP-02")
async def test_after_a_conflict_another_pass_decides_at_once(one: Pass) -> None:
    """A pass would act on what another writer has decided otherwise."""
    one.error = ConflictWriteError("changed")
    assert await one.run() == 0.0
    assert one.did == ["written"]


@pytest.mark.proves("OP-02")
@pytest.mark.parametrize("error", [UnknownOutcomeError("no answer"), UnavailableError("busy")])
async def test_without_an_answer_the_next_pass_looks_what_stands(
    one: Pass, error: KubeError
) -> None:
    """The intent may not be stored, and then a crash would leave an act that nobody knows of."""
    one.error = error
    with pytest.raises(type(error)):  # the queue runs another pass
        await one.run()
    assert one.did == ["written"]
