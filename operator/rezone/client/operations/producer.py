"""Who a client is to the leaders it writes to: a producer's id and epoch (Kafka's KIP-98).

Without a name the id is fresh and there is nothing to agree on. Under a name each client gets an
epoch of its own, higher than all before, from the leader of one partition: the one that serves the
hash of the id. A partition that has seen it refuses lower ones, and then the client that has one of
these is done: whatever it still has to send may contradict what the later one has written.

Concurrency: thread-safe.
"""

import threading
import uuid
from typing import NamedTuple

import numpy as np

from rezone.client.operations.zone import Zone
from rezone.client.requests.asking import Requests
from rezone.wire.codec.producers import home_hash, producer_id_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    ConflictError,
    ProducerFencedError,
    RezoneError,
    SequenceReusedError,
)
from rezone.wire.messages import Message, PartitionId, ProducerOpen, ProducerOpened

FINAL_ERRORS = (ProducerFencedError, SequenceReusedError)
"""After one of these a producer writes no more."""


def is_behind(error: BaseException | None) -> bool:
    """Whether a request was refused because a later one of its producer is there."""
    return isinstance(error, ConflictError) and "sequence" in error.details


OPENINGS_MAX = 16
"""So often a client asks for an epoch while others open its name; each refusal is one of these."""


class OpenedProducer(NamedTuple):
    """The id and epoch that each batch of a client carries; epoch 0 without a name."""

    producer_id: str
    producer_epoch: int


class Producer:
    """The producer of one client."""

    def __init__(self, name: str | None, zone: Zone, requests: Requests) -> None:
        self._name = name
        self._zone = zone
        self._requests = requests
        self._opening = threading.Lock()
        self._opening_id = str(uuid.uuid4())
        self._opened = None if name else OpenedProducer(str(uuid.uuid4()), 0)
        self.lost: RezoneError | None = None

    @property
    def opened(self) -> OpenedProducer:
        """Id and epoch, of one that is open."""
        assert self._opened is not None  # noqa: S101 - the caller has opened it
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether `open` waits for nothing."""
        return self._opened is not None

    def open(self) -> OpenedProducer:
        """Return id and epoch; under a name the first call gets an epoch, which takes an answer.

        Raises the error that has ended this producer, or the one that the leader did not answer by.
        """
        if self.lost is not None:
            raise self.lost
        opened = self._opened
        if opened is None:
            with self._opening:
                opened = self._opened = self._opened or self._zone.with_routes(self._open)
        return opened

    def lose(self, error: RezoneError) -> None:
        """Write no more."""
        self.lost = self.lost or error

    def _open(self, codec: RowCodec) -> OpenedProducer:
        assert self._name is not None  # noqa: S101 - else it is open
        del codec
        producer_id = producer_id_of(self._zone.config.zone_uid, self._name)
        home = np.array([home_hash(producer_id)], np.uint64)
        partition: PartitionId = int(self._zone.placement.partitions_of(home)[0])
        known_epoch = asked = 0
        while True:
            asked += 1
            try:
                epoch = self._ask(partition, producer_id, known_epoch)
                return OpenedProducer(producer_id, epoch)
            except ProducerFencedError as error:
                if asked == OPENINGS_MAX:
                    raise
                known_epoch = int(error.details["producer_epoch"])

    def _ask(self, partition: PartitionId, producer_id: str, known_epoch: int) -> int:
        """Return the epoch after one that is known; ProducerFencedError names a newer one."""

        def message(opaque: int) -> Message:
            return ProducerOpen(
                opaque=opaque,
                partition=partition,
                producer_id=producer_id,
                opening=self._opening_id,
                known_epoch=known_epoch,
            )

        answer, _ = self._requests.ask(partition, message)
        if isinstance(answer, RezoneError):
            raise answer
        opened = answer[0]
        assert isinstance(opened, ProducerOpened)  # noqa: S101 - the node answers in kind
        return opened.producer_epoch
