"""Watches RegionMigrations pass, so that gaps can be told and their partitions be looked at."""

import time

from rezone.cli.demo.cluster import NAMESPACE, DemoCluster, Json
from rezone.cli.demo.gaps import LeaderMove
from rezone.cli.demo.traffic import Traffic

_PATH = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/regionmigrations"
_ENDS = frozenset({"Succeeded", "RolledBack", "Failed"})


class MoveWatcher:
    """Collects the leader moves that succeed while it runs."""

    def __init__(self, cluster: DemoCluster, traffic: Traffic) -> None:
        self.moves: list[LeaderMove] = []
        self._cluster = cluster
        self._traffic = traffic
        self._seen: dict[str, float] = {}
        self._done: set[str] = set()
        self._partitions: dict[str, int] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async for event, item in self._cluster.api.follow(_PATH):
            objects = item["items"] if event == "SYNC" else [item]
            for each in objects:
                self._note(each, gone=event == "DELETED")
            active = self._partitions.keys() - self._done
            self._traffic.watch_closely(frozenset(self._partitions[name] for name in active))

    def _note(self, item: Json, *, gone: bool) -> None:
        name = item["metadata"]["name"]
        now = time.monotonic()
        self._seen.setdefault(name, now)
        self._partitions[name] = item["spec"]["partition"]
        status = item.get("status") or {}
        state = status.get("state", "")
        if name in self._done or not (gone or state in _ENDS):
            return
        self._done.add(name)
        if state == "Succeeded" and status.get("context"):
            context = status["context"]
            self.moves.append(
                LeaderMove(
                    name=name,
                    partition=context["partition"],
                    source=context["fromNode"],
                    target=context["toNode"],
                    seen_from=self._seen[name],
                    seen_until=now,
                )
            )
