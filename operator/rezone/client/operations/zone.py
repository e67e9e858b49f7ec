"""What a client knows of its zone: the config, the row format, and which partition has a key.

All of it comes with the routes, and all of it may be older than the nodes' own. So a read is made
with what is known, and again with newer routes when those were too old (`with_routes`).

Concurrency: any thread may call.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rezone.client.requests import batches
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.routing.placement import Placement
from rezone.client.settings import ClientSettings
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import NotReadyError, ReshardedError, UnknownIndexError
from rezone.wire.messages import PartitionId, RouteTable, ZoneConfig

R = TypeVar("R")


class Zone:
    """The zone as one client knows it; fetches routes when it must, until the settings' timeout."""

    def __init__(
        self, dispatcher: Dispatcher, settings: ClientSettings, *, clock: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[ZoneConfig, RowCodec] | None = None

    @property
    def config(self) -> ZoneConfig:
        """The zone's config, fetched with the routes when first asked for."""
        if self._dispatcher.config is None:
            self.fetch_routes()
        config = self._dispatcher.config
        assert config is not None  # noqa: S101 - fetching sets it or raises
        return config

    @property
    def is_known(self) -> bool:
        """Whether the config is there, so that asking for it waits for nothing."""
        return self._dispatcher.config is not None

    @property
    def codec(self) -> RowCodec:
        """The row format of the zone's table."""
        config = self.config
        known = self._known
        if known is not None and known[0] is config:
            return known[1]  # a value, replaced as a whole: no lock
        with self._lock:
            known = self._known
            codec = known[1] if known is not None and known[0] == config else None
            self._known = config, codec or RowCodec(config.table, config.limits)
            return self._known[1]

    @property
    def placement(self) -> Placement:
        """Who serves which hash; the codec or the config was asked for before."""
        return self._dispatcher.placement

    def with_routes(self, read: Callable[[RowCodec], R]) -> R:
        """Read with the routes that are known, and again with newer ones if those were too old.

        A partition that was re-sharded meanwhile has left the placement with its answer.
        """
        deadline = self._clock() + self._settings.timeout_seconds
        attempt = 0
        while True:
            codec = self.codec
            try:
                return read(codec)
            except ReshardedError:
                if self._clock() >= deadline:
                    raise
            except UnknownIndexError as error:
                attempt += 1
                if not _may_have_come(error, codec, attempt) or self._clock() >= deadline:
                    raise
                self._dispatcher.pause(attempt)
                self.fetch_routes()

    def fetch_all_routes(self) -> list[RouteTable]:
        """Fetch the routes of each data node that answers; NotReadyError when nobody does."""
        found = self._dispatcher.fetch_all_routes()
        # Whoever answers later than all others knows who these are.
        return found or [self.fetch_routes(), *self._dispatcher.fetch_all_routes()]

    def fetch_routes(self) -> RouteTable:
        """Fetch routes from whoever answers; NotReadyError when nobody does in time."""
        deadline = self._clock() + self._settings.timeout_seconds
        attempt = 0
        while True:
            try:
                return self._dispatcher.fetch_routes()
            except NotReadyError:
                attempt += 1
                if self._clock() >= deadline:
                    raise
                self._dispatcher.pause(attempt)


def partition_of(key: Mapping[str, Any], codec: RowCodec, placement: Placement) -> PartitionId:
    """Return the partition that serves a primary key, by a placement."""
    encoded = encoded_rows(codec, batches.conform([key], codec.key_schema))
    return int(placement.partitions_of(encoded.hashes())[0])


def _may_have_come(error: UnknownIndexError, codec: RowCodec, attempt: int) -> bool:
    """Whether newer routes may bring an answer where older ones brought an error.

    An index may be known to whoever was asked, or to this client, before it is to the other; or
    be known to one as it was defined before.
    """
    named = error.details.get("index")
    return attempt == 1 or any(index.name == named for index in codec.table.indexes)
