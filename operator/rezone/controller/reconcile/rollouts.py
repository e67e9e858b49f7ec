"""Puts together what a rolling update depends on; `observed.rollout` decides, the pass acts."""

from collections.abc import Sequence
from datetime import datetime

from rezone.domain.model.world import ZoneView
from rezone.domain.observed import rollout
from rezone.domain.observed.maintenance import kept_ids
from rezone.domain.observed.rollout import RolloutDecision, SeenPod, Situation
from rezone.kube.nodes.pods import PodView
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState, DataNodeStatus, DistributionZoneStatus
from rezone.wire.messages import EngineKind

_GIVEN_UP = frozenset({DataNodeState.DRAINING, DataNodeState.LOST})


def decide_rollout(
    zone: DistributionZone,
    status: DistributionZoneStatus,
    pods: Sequence[PodView],
    view: ZoneView,
    *,
    tasks: Sequence[RebalanceTask],
    template_hash: str,
    refused: bool = False,
    now: datetime,
) -> RolloutDecision:
    """Return what becomes of the zone's rolling update in this pass."""
    storage = zone.spec.storage
    kept = {node.id: node for node in status.data_nodes if node.state not in _GIVEN_UP}
    # Pods of nodes that are given up go anyway.
    theirs = tuple(_seen(p, kept[p.node_id], view) for p in pods if p.node_id in kept)
    if status.rollout is None and not any(pod.outdated for pod in theirs):
        return rollout.NOTHING  # most passes: what follows looks at every partition
    return rollout.decide(
        status.rollout,
        Situation(
            template_hash=template_hash,
            strategy=zone.spec.data_nodes.update_strategy,
            nodes=frozenset(kept),
            pods=theirs,
            lagging=rollout.lagging_nodes(view),
            counted=rollout.counted_nodes(view),
            sole=rollout.sole_holders(view),
            ephemeral=storage.volume_claim_template is None or storage.engine is EngineKind.MEMORY,
            rebalancing=view.pending is not None,
            maintenance=kept_ids(status.data_nodes),
            paused=zone.spec.paused,
            refused=refused,
            tasks=frozenset(task.metadata.name for task in tasks),
        ),
        now,
        zone.metadata.name,
    )


def _seen(pod: PodView, node: DataNodeStatus, view: ZoneView) -> SeenPod:
    answers = view.nodes.get(node.id)
    return SeenPod(
        node=node.id,
        uid=pod.uid,
        outdated=pod.outdated,
        deleting=pod.deleting,
        serving=answers is not None and answers.reachable and not answers.leaving,
        failure_domain=node.failure_domain,
        # Without its message, which counts seconds: every change would be a write.
        waiting=pod.waiting.partition(":")[0],
    )
