"""Watches leaders move: RegionMigrations, for their gaps, and who leads by the route table."""

import time

from rezone.cli.demo.cluster import NAMESPACE, DemoCluster, Json
from rezone.cli.demo.gaps import LeaderMove
from rezone.cli.demo.traffic import Traffic
from rezone.domain.routing.route_shards import decode_shard
from rezone.kube.api.names import COMPONENT_LABEL, ROUTES, ZONE_LABEL
from rezone.wire.layouts import index_of

_ROUTES = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
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


class LeaderWatcher:
    """Collects who led each partition in which leader epoch, while it runs."""

    def __init__(self, cluster: DemoCluster, zone: str) -> None:
        self.leaders: dict[tuple[int, int], int] = {}
        self._cluster = cluster
        self._labels = f"{ZONE_LABEL}={zone},{COMPONENT_LABEL}={ROUTES}"

    async def run(self) -> None:
        """Watch until cancelled."""
        async for event, item in self._cluster.api.follow(_ROUTES, labelSelector=self._labels):
            for shard in item["items"] if event == "SYNC" else [item]:
                self.note(shard)

    def note(self, shard: Json) -> None:
        """Enter the records of a ConfigMap of the route table."""
        for partition, record in decode_shard(shard.get("data") or {}).items():
            self.leaders[index_of(partition), record.leader_epoch] = record.leader
