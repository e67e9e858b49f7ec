"""One account of what requests hold before they are answered: by connection, identity and node.

Whatever a request waits for, its bytes stay in memory for as long. Other limits are of what it
waits for (pending writes of a partition, waiting reads); this one is of who asks, so that one
connection cannot take what others need, nor one identity by many connections.

Concurrency: thread-safe; a request costs two short holds of one lock.
"""

import threading

from rezone.datanode.settings import NodeSettings


class HeldBytes:
    """The account of a node."""

    def __init__(self, settings: NodeSettings) -> None:
        self.limit = settings.requests_bytes_node_max
        self.used = 0
        self._connection_max = settings.requests_bytes_connection_max
        self._identity_max = settings.requests_bytes_identity_max
        self._lock = threading.Lock()
        self._identities: dict[str, int] = {}

    def connection(self, identity: str) -> "HeldByConnection":
        """Open the account of a connection."""
        return HeldByConnection(self, identity)

    def take(self, connection: "HeldByConnection", size: int) -> bool:
        """Take bytes if they stay within all limits; a request that is alone may be larger."""
        with self._lock:
            used, of_identity = connection.used, self._identities.get(connection.identity, 0)
            if (
                (used and used + size > self._connection_max)
                or (of_identity and of_identity + size > self._identity_max)
                or (self.used and self.used + size > self.limit)
            ):
                return False
            self._add(connection, size)
            return True

    def give(self, connection: "HeldByConnection", size: int) -> None:
        """Give bytes back; those of a connection that has ended have been given."""
        with self._lock:
            self._add(connection, -min(size, connection.used))

    def _add(self, connection: "HeldByConnection", size: int) -> None:
        connection.add(size)
        self.used += size
        of_identity = self._identities.get(connection.identity, 0) + size
        if of_identity:
            self._identities[connection.identity] = of_identity
        else:
            self._identities.pop(connection.identity, None)


class HeldByConnection:
    """What the requests of one connection hold."""

    def __init__(self, node: HeldBytes, identity: str) -> None:
        self.identity = identity
        self.used = 0
        self._node = node

    def take(self, size: int) -> bool:
        """Take bytes; whether there is room."""
        return self._node.take(self, size)

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._node.give(self, size)

    def add(self, size: int) -> None:
        """Count bytes, fewer below 0; by the node's account, which holds its lock."""
        self.used += size

    def close(self) -> None:
        """Give back what is left: nobody waits for it."""
        self._node.give(self, self.used)
