"""Brings a zone's pods and all they need to the API server, and observes them.

Service and budget are applied server-side with the full intent. Pods and claims are created when
absent and otherwise left alone: nearly all of a pod is immutable, and when one is replaced is for
`domain.observed.rollout` to decide.

Order matters once: the budget is applied before a pod is created, so that a growing zone is never
less protected than before.

Concurrency: stateless but for the memory of what was applied last; one store per process.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from rezone.domain.observed.maintenance import ANNOTATION
from rezone.domain.zone.data_nodes import KubeNode
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ExistsError,
    ForbiddenError,
    ForeignObjectError,
    InvalidTemplateError,
    MissingError,
)
from rezone.kube.api.kinds import (
    Kind,
    Manifest,
    Node,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    Service,
)
from rezone.kube.api.names import NODE_ID_LABEL, TEMPLATE_HASH, is_owned, require_owned
from rezone.kube.nodes.data_node import (
    PodSettings,
    build_claim,
    build_disruption_budget,
    build_pod,
    build_service,
    claim_name,
    pod_name,
    selector,
    template_hash,
)
from rezone.kube.nodes.template import fingerprint
from rezone.kube.tls.certificates import Certificates
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeStatus
from rezone.wire.messages import NodeId

LOOK_AGAIN_SECONDS = 60.0
REMEMBERED_MAX = 4096
_QUOTA = "exceeded quota"


@dataclass(frozen=True)
class _Applied:
    """What was applied last: its fingerprint, when it was seen to stand, and its version then."""

    content: str
    seen: float
    version: str


@dataclass(frozen=True, kw_only=True)
class PodView:
    """A data node's pod as it is seen now.

    `waiting` says why it does not run (unschedulable, image, crash loop), "" when it does;
    `outdated`: it was made from an older template.
    """

    node_id: NodeId
    name: str
    uid: str
    phase: str
    ready: bool
    ip: str = ""
    node_name: str = ""
    deleting: bool = False
    port: int = 7400
    restarts: int = 0
    outdated: bool = False
    waiting: str = ""

    @property
    def address(self) -> str:
        """Return "host:port" for peers and clients, "" while the pod has no address."""
        return f"{self.ip}:{self.port}" if self.ip else ""


@dataclass(frozen=True, kw_only=True)
class NodeInfo(KubeNode):
    """A Kubernetes node; `schedulable` is false only while cordoned, `ready` by its kubelet."""

    ready: bool


class PodStore:
    """Ensures and observes the pods of zones."""

    def __init__(
        self,
        kube: Kube,
        settings: PodSettings,
        *,
        certificates: Certificates | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._certificates = certificates
        self._settings = settings
        self._monotonic = monotonic
        self._applied: dict[tuple[str, str], _Applied] = {}
        self._checked: set[tuple[str, str]] = set()

    async def ensure(
        self,
        zone: DistributionZone,
        nodes: Sequence[DataNodeStatus],
        *,
        degraded: bool = False,
        present: Sequence[PodView] | None = None,
        awaited: Collection[NodeId] = (),
    ) -> tuple[NodeId, ...]:
        """Bring all that exactly these data nodes need, and their pods; return the new ones.

        `awaited` are further nodes that hold replicas: no pod is made for them now, but the budget
        counts them.

        `present` is this pass's observation, read here when absent. A pod under deletion keeps its
        name, so its successor is made by a later pass. With a node selector each pod is pinned to
        its `node_name`. Nothing is deleted here.

        Raises ForeignObjectError when a name is held by another owner, InvalidTemplateError or
        InvalidWriteError when no pod can be made of the zone's podTemplate, UnavailableError.
        """
        pods = await self.observe_pods(zone) if present is None else present
        there = {each.node_id for each in pods}
        unplaced = {each.node_id for each in pods if not each.node_name}
        # A pod about to go still counts, or in its last moments one more could be evicted.
        count = len(there.union(awaited, (node.id for node in nodes)))
        await self._ensure_shared(zone, count, degraded=degraded)
        if self._certificates is not None:
            await self._certificates.ensure(zone, there.union(node.id for node in nodes))
        pinned = zone.spec.data_nodes.node_selector is not None
        created = []
        for node in nodes:
            # An unplaced pod may wait for its claim: one that was there has gone since.
            if node.id in there - unplaced:
                continue
            await self._ensure_claim(zone, node.id)
            if node.id in there:
                continue
            place = node.node_name if pinned else ""
            pod = build_pod(zone, node.id, self._settings, pinned_to=place)
            if await self._create(Pod, pod, zone):
                created.append(node.id)
        return tuple(created)

    async def delete_data_node(
        self,
        zone: DistributionZone,
        node: NodeId,
        *,
        keep_claim: bool = False,
    ) -> bool:
        """Delete a data node's pod and, with its data, its claim; False when all was gone already.

        The caller makes sure that nothing is assigned to the node. Raises ForeignObjectError.
        """
        namespace, name = zone.metadata.namespace, zone.metadata.name
        deleted = await self._delete(Pod, namespace, pod_name(name, node), zone)
        if keep_claim:
            return deleted
        claim = await self._delete(PersistentVolumeClaim, namespace, claim_name(name, node), zone)
        return deleted or claim

    async def delete_pod(self, zone: DistributionZone, node: NodeId, uid: str) -> bool:
        """Delete this very pod of a data node, not its successor; False when it was gone.

        Its claim stays, and a later pass makes the pod again. Raises ForeignObjectError.
        """
        namespace, name = zone.metadata.namespace, pod_name(zone.metadata.name, node)
        found = await self._kube.find(Pod, namespace, name)
        if found is None or found["metadata"]["uid"] != uid:
            return False
        return await self._delete(Pod, namespace, name, zone)

    def template_of(self, zone: DistributionZone) -> str:
        """Return the hash of the template that pods shall have, "" when it cannot be used."""
        try:
            return template_hash(zone, self._settings)
        except InvalidTemplateError:
            return ""

    async def check_template(self, zone: DistributionZone, present: Sequence[PodView]) -> None:
        """Check that the template is good for a pod, before one that runs is given up for it.

        The API server is asked by a dry run when a pod is outdated, and once per template.
        Raises InvalidTemplateError; other errors mean that it is not known.
        """
        expected = template_hash(zone, self._settings)
        outdated = next((pod for pod in present if pod.outdated), None)
        checked = (zone.metadata.uid, expected)
        if outdated is None or checked in self._checked:
            return
        pod = build_pod(zone, outdated.node_id, self._settings)
        pod["metadata"]["name"] = f"{outdated.name}-check"
        try:
            await self._kube.create(Pod, pod, dry_run=True)
        except ForbiddenError as error:
            # Quotas come last, so all else is well; and one pod goes before one is made.
            if _QUOTA not in str(error):
                raise
        if len(self._checked) >= REMEMBERED_MAX:
            self._checked.clear()
        self._checked.add(checked)

    async def observe_pods(self, zone: DistributionZone) -> tuple[PodView, ...]:
        """Return the pods that belong to this very zone, by data node id."""
        meta = zone.metadata
        found = await self._kube.list(Pod, meta.namespace, labels=selector(meta.name))
        expected = self.template_of(zone)
        port = self._settings.port
        views = [
            view_of(each, expected, port)
            for each in found
            if is_owned(each, zone) and _is_data_node(each)
        ]
        return tuple(sorted(views, key=lambda view: view.node_id))

    async def nodes(self) -> dict[str, NodeInfo]:
        """Return the Kubernetes nodes by name."""
        infos = [node_of(each) for each in await self._kube.list(Node)]
        return {each.name: each for each in infos}

    async def _ensure_shared(
        self,
        zone: DistributionZone,
        data_nodes: int,
        *,
        degraded: bool,
    ) -> None:
        budget = build_disruption_budget(zone, data_nodes=data_nodes, degraded=degraded)
        await self._apply(PodDisruptionBudget, budget, zone)
        await self._apply(Service, build_service(zone, self._settings), zone)

    async def _apply(
        self,
        kind: Kind,
        manifest: Manifest,
        zone: DistributionZone,
    ) -> None:
        """Apply, unless the same stands already; refuse to take over a foreign object.

        What was applied is looked at again after a while and applied again only if it has
        changed since: a zone at rest costs the API server no write.
        """
        meta = manifest["metadata"]
        key = (kind.name, f"{meta['namespace']}/{meta['name']}/{zone.metadata.uid}")
        content, now = fingerprint(manifest), self._monotonic()
        last = self._applied.get(key)
        same = last is not None and last.content == content
        if last is not None and same and now - last.seen < LOOK_AGAIN_SECONDS:
            return
        if last is None or same:
            found = await self._kube.find(kind, meta["namespace"], meta["name"])
            if found is not None:
                require_owned(found, zone)
                if last is not None and found["metadata"]["resourceVersion"] == last.version:
                    self._applied[key] = replace(last, seen=now)
                    return
        stored = await self._kube.apply(kind, manifest)
        if len(self._applied) >= REMEMBERED_MAX:
            self._applied.clear()
        self._applied[key] = _Applied(content, now, stored["metadata"]["resourceVersion"])

    async def _ensure_claim(self, zone: DistributionZone, node: NodeId) -> None:
        claim = build_claim(zone, node)
        if claim is None:
            return
        meta = claim["metadata"]
        found = await self._kube.find(PersistentVolumeClaim, meta["namespace"], meta["name"])
        if found is None:
            await self._create(PersistentVolumeClaim, claim, zone)
        else:
            require_owned(found, zone)

    async def _create(
        self,
        kind: Kind,
        manifest: Manifest,
        zone: DistributionZone,
    ) -> bool:
        """Return whether the object was created now; one of the zone that is there is fine."""
        try:
            await self._kube.create(kind, manifest)
        except ExistsError:
            meta = manifest["metadata"]
            found = await self._kube.find(kind, meta["namespace"], meta["name"])
            if found is None:
                named = f"{kind.name} {meta['namespace']}/{meta['name']}"
                raise ForeignObjectError(f"{named} was there a moment ago", going=True) from None
            require_owned(found, zone)
            return False
        return True

    async def _delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        zone: DistributionZone,
    ) -> bool:
        try:
            require_owned(await self._kube.get(kind, namespace, name), zone)
        except MissingError:
            return False
        return await self._kube.delete(kind, namespace, name)


def _is_data_node(pod: Manifest) -> bool:
    """Return whether a pod names its data node: labels can be changed by whoever may patch pods."""
    text: str = pod["metadata"]["labels"].get(NODE_ID_LABEL, "")
    return text.isascii() and text.isdigit()


def view_of(pod: Manifest, expected_hash: str, port: int) -> PodView:
    """Return what matters of a pod; none is outdated while no template can be used ("")."""
    meta, status = pod["metadata"], pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = _condition(status, "Ready").get("status") == "True"
    return PodView(
        node_id=int(meta["labels"][NODE_ID_LABEL]),
        name=meta["name"],
        uid=meta["uid"],
        phase=status.get("phase") or "Pending",
        ready=ready,
        ip=status.get("podIP") or "",
        node_name=pod["spec"].get("nodeName") or "",
        port=port,
        deleting="deletionTimestamp" in meta,
        restarts=sum(int(each.get("restartCount") or 0) for each in statuses),
        outdated=expected_hash not in {"", (meta.get("annotations") or {}).get(TEMPLATE_HASH)},
        waiting="" if ready else _waiting(status, statuses),
    )


def node_of(node: Manifest) -> NodeInfo:
    """Return what matters of a Kubernetes node."""
    meta, status = node["metadata"], node.get("status") or {}
    return NodeInfo(
        name=meta["name"],
        schedulable=not node.get("spec", {}).get("unschedulable", False),
        ready=_condition(status, "Ready").get("status") == "True",
        maintenance=(meta.get("annotations") or {}).get(ANNOTATION, ""),
        labels=dict(meta.get("labels") or {}),
    )


def _waiting(status: Manifest, containers: Sequence[Manifest]) -> str:
    for each in containers:
        state = (each.get("state") or {}).get("waiting")
        if state:
            return f"{state.get('reason', '')}: {state.get('message', '')}".strip(": ")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}".strip(": ")
    return ""


def _condition(status: Manifest, kind: str) -> Manifest:
    found = (each for each in status.get("conditions") or () if each.get("type") == kind)
    return next(found, {})
