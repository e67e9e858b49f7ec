"""Whose a producer or a transaction is: its key in the log is made of the id and its owner's name.

Who knows an id that another identity uses finds nothing by it, as for an id that nobody has used
(docs/decisions/0375). So nothing has to be kept or replicated: the key alone says whose it is, at
every leader, in copies, and in the partitions of the next layout. No id can be told from its key.

Concurrency: any thread may ask.
"""

import hashlib
import uuid

import msgspec

from rezone.storage.state.producers import uuid_bytes
from rezone.wire.errors import InvalidRowError
from rezone.wire.messages import OwnWrites

_ID_BYTES = 16


def log_key(what: str, text: str) -> bytes:
    """Return the 16 bytes of an id in the log; InvalidRowError names it when it is no UUID."""
    try:
        return uuid_bytes(text)
    except ValueError as error:
        raise InvalidRowError(f"{what} {text!r} is not a UUID") from error


class Owner:
    """An identity by the name in its certificate; without one, in plaintext, ids are keys."""

    def __init__(self, name: str = "") -> None:
        self._secret = hashlib.blake2b(name.encode()).digest() if name else b""
        self._last = ("", b"")

    def key(self, what: str, text: str) -> bytes:
        """Return the 16 bytes of an id of this owner; InvalidRowError when it is no UUID."""
        known, key = self._last
        if text != known:
            key = log_key(what, text)
            if self._secret:
                key = hashlib.blake2b(key, digest_size=_ID_BYTES, key=self._secret).digest()
            # Most callers ask for the same one again.
            self._last = text, key
        return key

    def own(self, writes: OwnWrites | None) -> OwnWrites | None:
        """Return whose intents a read of this owner's sees, by the key in place of the id."""
        if writes is None or not self._secret:
            return writes
        key = uuid.UUID(bytes=self.key("transaction", writes.transaction))
        return msgspec.structs.replace(writes, transaction=key.hex)


NOBODY = Owner()
"""Who has no certificate: all who speak plaintext."""
