"""The certificates of an installation, kept in Secrets: the operator's authority issues them.

The authority is one Secret beside the operator: `tls.crt` and `tls.key` sign, `ca.crt` is what
all parts trust, which may be more than one authority while one replaces another. Each zone has
a Secret for each of its data nodes, with its name (decision 0435), and one for its copy jobs. They
are issued again when two thirds of their life are over, when they are gone or cannot be used, and
when the authority's Secret has changed. The operator's own certificate is only in its memory.

Concurrency: used by the tasks of one event loop; `source` may be read from any thread.
"""

import asyncio
import base64
import enum
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ConflictWriteError, ExistsError, InvalidWriteError
from rezone.kube.api.kinds import Manifest, Secret
from rezone.kube.api.names import labels_of, owner_reference, require_owned
from rezone.kube.tls.authority import LIFETIME, Authority, PublicKey, is_issued_by, renew_at
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import NodeId
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    TlsFiles,
    TlsFilesError,
    TlsSource,
    utc_now,
)

_log = structlog.get_logger(__name__)

AUTHORITY_SECRET = "rezone-authority"  # noqa: S105 - the name of one
LOOK_AGAIN = timedelta(minutes=1)
_CERTIFICATES = "certificates"
_TYPE = "kubernetes.io/tls"
_AT_ONCE = 8
_OWN = ("", "")
_LIKE_ANOTHER = re.compile(rf"-({'|'.join(Role)}|{Role.DATA_NODE}-\d+)$")


class NodeNames(enum.StrEnum):
    """Whether certificates say which data node they are of; `mixed` is on the way from or to."""

    OWN = "own"
    MIXED = "mixed"
    SHARED = "shared"


def secret_name(zone: str, role: Role, node: NodeId | None = None) -> str:
    """Return the name of a zone's Secret for a data node, all of them, or its copy jobs.

    A zone whose name ends as such a name does would have another one's Secret for all its data
    nodes: theirs is named with a dot, which no zone's name has.
    """
    if node is not None:
        return f"{zone}-{role}-{node}-tls"
    if role is not Role.DATA_NODE:
        return f"{zone}-{role}-tls"
    return f"{zone}.tls" if _LIKE_ANOTHER.search(zone) else f"{zone}-tls"


@dataclass(frozen=True)
class Issuer:
    """An authority that signs, and everything that is trusted besides."""

    authority: Authority
    trusted: bytes

    def issue(self, identity: Identity, now: datetime, lifetime: timedelta = LIFETIME) -> TlsFiles:
        """Return a new certificate."""
        made = self.authority.issue(identity, now, lifetime)
        return TlsFiles.parse(self.trusted, made.certificate, made.key)

    def accepts(self, files: TlsFiles, identity: Identity, now: datetime) -> bool:
        """Return whether a certificate can stay as it is."""
        return (
            files.identity == identity
            and files.authority == self.trusted
            and is_issued_by(files, self.authority)
            and now < renew_at(files)
        )


class Certificates(Protocol):
    """Where the parts of an installation get their certificates from."""

    @property
    def source(self) -> TlsSource:
        """The operator's own."""
        ...

    async def ensure(self, zone: DistributionZone, nodes: Collection[NodeId]) -> None:
        """See to it that the Secrets of the zone and its data nodes are there."""
        ...


class ProvidedCertificates:
    """Somebody else fills all Secrets, cert-manager for one."""

    def __init__(self, source: TlsSource) -> None:
        self.source = source

    async def ensure(self, zone: DistributionZone, nodes: Collection[NodeId]) -> None:
        """Do nothing: pods wait for the Secrets they mount."""
        del zone, nodes


class IssuedCertificates:
    """The operator issues; `start` first. It is the `source` of the operator's own."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        *,
        secret: str = AUTHORITY_SECRET,
        names: NodeNames = NodeNames.OWN,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._secret = secret
        self._names = names
        self._clock = clock
        self._issuer: Issuer | None = None
        self._own: TlsFiles | None = None
        self._look_at: dict[tuple[str, str], datetime] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    @property
    def source(self) -> TlsSource:
        """The operator's own certificate."""
        return self

    def current(self) -> TlsFiles:
        """Return the operator's newest certificate."""
        if self._own is None:
            raise TlsFilesError("the operator has not read its authority yet")
        return self._own

    async def start(self) -> None:
        """Read the authority, or make it."""
        await self._load()

    async def read(self) -> bool:
        """Read the authority and renew the operator's own certificate; False when there is none."""
        found = await self._kube.find(Secret, self._namespace, self._secret)
        if found is not None:
            self._take(found)
        return found is not None

    async def ensure(self, zone: DistributionZone, nodes: Collection[NodeId]) -> None:
        """Bring the zone's Secrets to the API server, and renew what is due.

        Raises ForeignObjectError when a Secret of that name is somebody else's.
        """
        now = self._clock()
        if now >= self._look_at.get(_OWN, now):
            await self._load()
            # What is due is looked at without an entry, and zones that are gone need none.
            self._look_at = {key: at for key, at in self._look_at.items() if at > now}
        due = {(zone.metadata.uid, each.uri): each for each in self._identities(zone, nodes)}
        due = {key: each for key, each in due.items() if now >= self._look_at.get(key, now)}
        looks = (self._look(key, zone, each, now) for key, each in due.items())
        for failed in await asyncio.gather(*looks, return_exceptions=True):
            if failed is not None:
                raise failed

    def _identities(self, zone: DistributionZone, nodes: Collection[NodeId]) -> Iterator[Identity]:
        """Yield who has a Secret."""
        namespace, name = zone.metadata.namespace, zone.metadata.name
        yield Identity(Role.TRANSFER, namespace, name)
        if self._names is not NodeNames.OWN:
            yield Identity(Role.DATA_NODE, namespace, name)
        if self._names is not NodeNames.SHARED:
            yield from (Identity(Role.DATA_NODE, namespace, name, node) for node in nodes)

    async def _look(
        self, key: tuple[str, str], zone: DistributionZone, identity: Identity, now: datetime
    ) -> None:
        async with self._at_once:
            await self._ensure_secret(zone, identity, now)
        self._look_at[key] = now + LOOK_AGAIN

    def certify(self, identity: Identity, key: PublicKey, lifetime: timedelta) -> bytes:
        """Return a certificate for a client's own key, and behind it what the client must trust."""
        issuer = self._ready_issuer()
        return issuer.authority.certify(identity, key, self._clock(), lifetime) + issuer.trusted

    def _ready_issuer(self) -> Issuer:
        if self._issuer is None:
            raise TlsFilesError("the operator has not read its authority yet")
        return self._issuer

    async def _load(self) -> None:
        found = await self._kube.find(Secret, self._namespace, self._secret)
        if found is None:
            found = await self._create_authority(self._clock())
        self._take(found)

    def _take(self, authority: Manifest) -> None:
        now = self._clock()
        issuer = issuer_of(authority)
        own = Identity(Role.OPERATOR)
        if issuer != self._issuer:
            self._look_at.clear()
        if self._own is None or not issuer.accepts(self._own, own, now):
            self._own = issuer.issue(own, now)
        self._issuer = issuer
        self._look_at[_OWN] = now + LOOK_AGAIN

    async def _create_authority(self, now: datetime) -> Manifest:
        authority = Authority.create(now)
        files = (authority.certificate, authority.certificate, authority.key)
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self._secret,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/name": "rezone"},
            },
            "type": _TYPE,
            "data": _encoded(*files),
        }
        try:
            made = await self._kube.create(Secret, manifest)
        except ExistsError:
            return await self._kube.get(Secret, self._namespace, self._secret)
        _log.info("made an authority", secret=f"{self._namespace}/{self._secret}")
        return made

    async def _ensure_secret(
        self, zone: DistributionZone, identity: Identity, now: datetime
    ) -> None:
        issuer = self._ready_issuer()
        name = secret_name(zone.metadata.name, identity.role, identity.node)
        found = await self._kube.find(Secret, zone.metadata.namespace, name)
        if found is not None:
            require_owned(found, zone)
            if _usable(found, issuer, identity, now):
                return
        files = issuer.issue(identity, now)
        data = _encoded(files.authority, files.certificate, files.key)
        try:
            if found is None:
                await self._kube.create(Secret, _manifest(zone, name, data))
            else:
                await self._kube.replace(Secret, {**found, "data": data})
        except ConflictWriteError:
            _log.info("somebody else was first", secret=name)  # looked at again by the next pass
            return
        _log.info("issued a certificate", secret=name, not_after=str(files.not_after))


def issuer_of(secret: Manifest) -> Issuer:
    """Return the authority in a Secret; InvalidWriteError when it cannot sign."""
    try:
        authority, certificate, key = _decoded(secret)
        # The same checks as for any other certificate: PEM, and a key that belongs to it.
        TlsFiles.parse(authority, certificate, key)
    except (KeyError, ValueError) as error:
        meta = secret["metadata"]
        raise InvalidWriteError(
            f"Secret {meta.get('namespace')}/{meta['name']} holds no authority: {error}"
        ) from error
    return Issuer(Authority(certificate, key), authority)


def _usable(secret: Manifest, issuer: Issuer, identity: Identity, now: datetime) -> bool:
    try:
        return issuer.accepts(TlsFiles.parse(*_decoded(secret)), identity, now)
    except (KeyError, ValueError):
        return False


def _manifest(zone: DistributionZone, name: str, data: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": zone.metadata.namespace,
            "labels": labels_of(zone.metadata.name, _CERTIFICATES),
            "ownerReferences": [owner_reference(zone)],
        },
        "type": _TYPE,
        "data": data,
    }


def _encoded(authority: bytes, certificate: bytes, key: bytes) -> dict[str, str]:
    files = {AUTHORITY: authority, CERTIFICATE: certificate, KEY: key}
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def _decoded(secret: Manifest) -> tuple[bytes, bytes, bytes]:
    data = secret["data"]
    authority, certificate, key = (
        base64.b64decode(data[name]) for name in (AUTHORITY, CERTIFICATE, KEY)
    )
    return authority, certificate, key
