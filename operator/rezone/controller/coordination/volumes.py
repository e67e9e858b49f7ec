"""Brings the volumes of a zone to the size that its spec asks for.

Claims are looked at when a process sees a size for the first time, every few seconds while they
grow, and now and then after that: what has the size costs the API server nearly nothing.

Concurrency: runs in the zone's pass.
"""

import dataclasses

import structlog

from rezone.domain.observed.volumes import Growth, growth, to_grow
from rezone.kube.api.errors import (
    ConflictWriteError,
    ForbiddenError,
    InvalidWriteError,
    MissingError,
)
from rezone.kube.nodes.claims import ClaimStore
from rezone.resources.zone import DistributionZone

log = structlog.get_logger(__name__)

GROWING_SECONDS = 5.0
GROWN_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class SeenVolumes:
    """What was seen of a zone's volumes, and when by the loop's clock; without growth all fit."""

    size: str
    looked_at: float
    growth: Growth | None

    def is_due(self, size: str, now: float) -> bool:
        """Return whether to look again."""
        pause = GROWN_SECONDS if self.growth is None else GROWING_SECONDS
        return size != self.size or now - self.looked_at >= pause


async def grow_volumes(
    claims: ClaimStore, zone: DistributionZone, seen: SeenVolumes | None, now: float
) -> SeenVolumes | None:
    """Ask for more room where it is missing and return what is seen; None without volumes.

    What the API server refuses is in the growth: it is no reason to leave the partitions alone.
    Raises UnavailableError and UnknownOutcomeError.
    """
    template = zone.spec.storage.volume_claim_template
    if template is None:
        return None
    size = template.size
    if seen is not None and not seen.is_due(size, now):
        return seen
    try:
        volumes = await claims.observe(zone)
    except ForbiddenError as error:
        unknown = Growth(size=size, grown=0, total=0, waits=str(error), refused=True)
        return SeenVolumes(size, now, unknown)
    refusal = ""
    for node in to_grow(size, volumes):
        log.info("growing volume", node=node, size=size)
        try:
            await claims.grow(zone, node, size)
        except (ForbiddenError, InvalidWriteError) as error:
            refusal = refusal or f"data node {node}: {error}"
        except (ConflictWriteError, MissingError):
            continue  # somebody was faster: the next look tells
    return SeenVolumes(size, now, growth(size, volumes, refusal))
