"""A change that a leader is asked to append: the request, and its rows as the log holds them."""

from dataclasses import dataclass, field
from typing import Any

from rezone.datanode.writing.owner import NOBODY, Owner
from rezone.storage.log.entry import NO_DIGEST
from rezone.wire.messages import ProducerOpen, TransactionEnd, WriteRequest

Change = WriteRequest | TransactionEnd | ProducerOpen
"""What asks a leader to append an entry."""


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows as a log entry holds them, and what they weigh in the limits on pending bytes.

    `digest` tells them, as they were sent, from others; `owner` is who sent them.
    """

    rows: Any
    size: int
    digest: bytes = field(default=NO_DIGEST, kw_only=True)
    owner: Owner = field(default=NOBODY, kw_only=True)
