"""What is looked after at a replica now and then: its log's length, old versions, damage, sizes.

Concurrency: `keep_house` runs in the node's house thread, `collect` and `scrub` in its collecting
one.
"""

from rezone.datanode.replication.damage import Damage
from rezone.datanode.state.expiry import collected_before
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.pacing import WritePacer
from rezone.storage.upkeep.collector import Collector
from rezone.storage.upkeep.scrub import Scrubber

_COLLECT_PAUSE_SHARE = 0.1
"""The pause between two collections, as a share of the retention that garbage outlives anyway."""


class Upkeep:
    """The upkeep of one replica; `sizes` are estimates of its versions and bytes.

    `feed_log_bytes` is what is kept of the log beyond its retention because of named feeds.
    """

    def __init__(self, replica: ReplicaState, damage: Damage, pacer: WritePacer) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._damage = damage
        self._pacer = pacer
        self.sizes = (0, 0)
        self.feed_log_bytes = 0
        settings, clock = replica.settings, replica.clock
        self._collector = Collector(
            replica.store,
            pause_seconds=lambda: max(
                settings.trim_interval_ms / 1000,
                replica.config.version_retention_seconds * _COLLECT_PAUSE_SHARE,
            ),
            clock=clock.monotonic,
        )
        self.scrubber = Scrubber(
            replica.store,
            replica.partition_id,
            interval_seconds=settings.scrub_seconds,
            clock=clock.monotonic,
        )

    def keep_house(self) -> None:
        """Trim the log, estimate the size; have files merged while there is room."""
        replica = self._replica
        if replica.closed or replica.failure or self._damage.given_up:
            return
        retained, keep_from, floor = (
            self._log_retention_bytes(),
            self._log_needed_from(),
            self._floor(),
        )
        replica.store.trim(retained, keep_from if floor is None else min(keep_from, floor))
        replica.store.outgoing.expire()
        sizes = replica.store.sizes()
        self.sizes = (sizes.versions, sizes.engine_bytes + sizes.log_bytes)
        held = floor is not None and floor <= replica.store.log_start
        self.feed_log_bytes = max(0, sizes.log_bytes - retained) if held else 0
        replica.store.engine.look_at_room()

    def _floor(self) -> int | None:
        """Return from where named feeds hold the log; they hold none where the disk is nearly full.

        Room is made before writes are refused: the feed is told, and begins with a snapshot.
        """
        replica = self._replica
        tight = replica.services.space.is_within(replica.store.log_file_bytes)
        return None if tight else replica.log_floor

    def _log_retention_bytes(self) -> int:
        """Return how much log stays that nobody has a claim to.

        More while a replica's node is in maintenance: it left the in-sync set, and shall catch up
        by the log. Followers keep it as well, for one of them may lead by then.
        """
        replica = self._replica
        config, settings = replica.config, replica.settings
        if set(config.maintenance).isdisjoint(replica.record.replicas):
            return config.log_retention_bytes
        return max(config.log_retention_bytes, settings.maintenance_log_bytes_max)

    @entry
    def _log_needed_from(self) -> int:
        """Return from where on the log must stay, and note whether that is more than it may be.

        Who is in sync always gets what it lacks. Copies and those that catch up after one have
        their claim too, up to twice the limit: over the limit writers are slowed, so that it
        takes long to get there.
        """
        replica = self._replica
        settings, state = replica.settings, replica.leadership
        keep_from = replica.positions.committed
        claims = [*replica.store.outgoing.floors(settings.copy_handover_ms / 1000)]
        if state is not None:
            keep_from = min([keep_from, *state.needed_offsets()])
            claims += state.catching_up().values()
            claims += replica.reshard_targets.claims()
        size = replica.store.log_bytes
        self._pacer.look_at_log(full=bool(claims) and size > settings.kept_log_bytes_max)
        if size > 2 * settings.kept_log_bytes_max:
            return keep_from
        return min([keep_from, *claims])

    def collect(self) -> bool:
        """Collect one slice of old versions, if due; whether there is more."""
        replica = self._replica
        if replica.closed or replica.failure or self._damage.given_up:
            return False
        return self._collector.step(collected_before(replica))

    def scrub(self) -> bool:
        """Read one slice through for damage, if due; whether there is more."""
        replica = self._replica
        if replica.closed or replica.failure or replica.store.meta.needs_snapshot:
            return False
        return self.scrubber.step()
