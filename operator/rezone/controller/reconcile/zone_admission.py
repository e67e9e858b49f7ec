"""Zones and templates that are not taken: neither keeps the partitions from being looked after."""

from collections.abc import Sequence
from datetime import datetime

from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.observed.rollout import NOTHING
from rezone.domain.zone.status import Obstacle, ZoneHealth, zone_conditions
from rezone.kube.api.errors import ForbiddenError, InvalidWriteError, KubeError
from rezone.kube.nodes.pods import PodStore, PodView
from rezone.resources.conditions import Reason
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

_ALL = "*"


def is_refused(zone: DistributionZone, settings: CoordinatorSettings) -> bool:
    """Return whether the zone may not be in the operator's own namespace.

    Its pods would be beside the authority's key and the operator's account. One that has data nodes
    was taken once, by an earlier version or setting: its rows are looked after.
    """
    if not settings.namespace or zone.metadata.namespace != settings.namespace:
        return False
    if {_ALL, zone.metadata.name} & set(settings.zones_in_own_namespace):
        return False
    return zone.status is None or not zone.status.data_nodes


def refused_status(zone: DistributionZone, now: datetime) -> DistributionZoneStatus:
    """Return the status of a zone that is refused, and of which nothing is made."""
    status = zone.status or DistributionZoneStatus()
    message = (
        f"{zone.metadata.namespace} is the operator's own namespace: make the zone in another one, "
        "or name it in the chart's zonesInReleaseNamespace (docs/operate/security.md)"
    )
    conditions = zone_conditions(
        status.conditions,
        ZoneHealth(partitions=0, led=0, in_sync=0, ready_nodes=0, wanted_nodes=0),
        stalled=(Reason.NAMESPACE_REFUSED, message),
        obstacle=None,
        rebalancing="",
        paused=False,
        rollout=NOTHING,
        volumes=None,
        generation=zone.metadata.generation,
        now=now,
    )
    return status.model_copy(
        update={"conditions": conditions, "observed_generation": zone.metadata.generation}
    )


async def template_obstacle(
    pods: PodStore, zone: DistributionZone, present: Sequence[PodView]
) -> Obstacle | None:
    """Return why no pod can be made of the zone's podTemplate, or why that is not known."""
    try:
        await pods.check_template(zone, present)
    except (InvalidWriteError, ForbiddenError) as error:
        return Obstacle(reason=Reason.INVALID_TEMPLATE, message=str(error))
    except KubeError as error:
        return Obstacle(reason=Reason.INVALID_TEMPLATE, message=str(error), lasting=False)
    return None
