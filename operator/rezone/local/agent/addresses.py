"""Addresses of this machine for pods and nodes: every pod listens on one of its own."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from pathlib import Path

from rezone.local.errors import LocalError
from rezone.local.processes import write_atomically

# Nodes sit beside the pods' range, so that no pod ever gets a node's address.
_NODES = ipaddress.IPv4Network("127.60.0.0/16")
PODS = ipaddress.IPv4Network("127.64.0.0/10")


class Addresses:
    """Gives each owner (a pod's uid, a node's name) an address and remembers it over restarts.

    The first choice follows from the name, so that the same pod of a StatefulSet tends to get the
    same address, and from the cluster's own directory, because clusters side by side share the
    loopback range and know nothing of each other. One in use is never given twice.
    """

    def __init__(self, path: Path, pods: ipaddress.IPv4Network = PODS) -> None:
        self._path = path
        self._pods = pods
        self._by_owner: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def for_pod(self, uid: str, name: str) -> str:
        """Return the address of a pod, given on the first call."""
        return self._take(f"pod/{uid}", name, self._pods)

    def for_node(self, name: str) -> str:
        """Return the address of a node, given on the first call."""
        return self._take(f"node/{name}", name, _NODES)

    def release_pod(self, uid: str) -> None:
        """Give a pod's address back; only when nothing of it runs any more."""
        if self._by_owner.pop(f"pod/{uid}", None) is not None:
            self._save()

    def keep_pods(self, uids: set[str]) -> None:
        """Give back the addresses of all pods but these."""
        stale = [o for o in self._by_owner if o.startswith("pod/") and o[4:] not in uids]
        for owner in stale:
            del self._by_owner[owner]
        self._save()

    def _take(self, owner: str, name: str, network: ipaddress.IPv4Network) -> str:
        known = self._by_owner.get(owner)
        if known is not None:
            return known
        used = set(self._by_owner.values())
        digest = hashlib.sha256(f"{self._path.resolve()}:{name}".encode()).digest()
        start = int.from_bytes(digest[:8])
        usable = network.num_addresses - 2
        for step in range(usable):
            address = str(network.network_address + 1 + (start + step) % usable)
            if address not in used:
                self._by_owner[owner] = address
                self._save()
                return address
        raise LocalError(f"all addresses of {network} are in use")

    def _save(self) -> None:
        write_atomically(self._path, json.dumps(self._by_owner))
