"""TLS both ways: where a process's certificate comes from, and how new files are taken.

A directory holds `ca.crt`, `tls.crt` and `tls.key`, as a Secret of type kubernetes.io/tls does
that cert-manager or the operator wrote. `ca.crt` may hold several authorities, which is how one is
replaced by another. Files are looked at again once a second, when somebody asks; new ones that
cannot be used are left alone, and the old ones are kept.

Without REZONE_TLS_DIRECTORY a process speaks plaintext. With it, it never does: files that are
missing at the start end the process.

Concurrency: safe from any thread.
"""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, Self

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import SubjectAlternativeName

from rezone.wire.errors import ForbiddenError
from rezone.wire.transport.identity import Identity

_log = structlog.get_logger(__name__)

DIRECTORY_VARIABLE = "REZONE_TLS_DIRECTORY"
AUTHORITY, CERTIFICATE, KEY = FILES = ("ca.crt", "tls.crt", "tls.key")
LOOK_SECONDS = 1.0
HOSTS_BELOW = "svc"
"""Where the host names are that a certificate may have: Services of Kubernetes."""


# Parts of a certificate, or a request for one, are read when asked for, and refused only then.
UNREADABLE_CERTIFICATE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class TlsFilesError(ValueError):
    """Raised when files are missing, do not belong together, or are no certificates."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """One certificate with its key and the authorities to trust, all in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes
    name: str
    fault: str
    not_before: datetime
    not_after: datetime

    @classmethod
    def parse(cls, authority: bytes, certificate: bytes, key: bytes) -> Self:
        """Return the files as a value; TlsFilesError unless they can be used together."""
        try:
            x509.load_pem_x509_certificates(authority)
            leaf = x509.load_pem_x509_certificates(certificate)[0]
            public = load_pem_private_key(key, password=None).public_key()
            belongs = public == leaf.public_key()
            found = cls(
                authority=authority,
                certificate=certificate,
                key=key,
                name=first_name(leaf),
                fault=fault_of(leaf),
                not_before=leaf.not_valid_before_utc,
                not_after=leaf.not_valid_after_utc,
            )
        except UNREADABLE_CERTIFICATE as error:
            raise TlsFilesError(f"not a certificate, key and authority in PEM: {error}") from error
        if not belongs:
            raise TlsFilesError("the key does not belong to the certificate")
        return found

    @property
    def identity(self) -> Identity | None:
        """Who the certificate stands for."""
        return Identity.parse(self.name)

    def require_valid(self, now: datetime) -> None:
        """Raise ForbiddenError when no data node takes the certificate, by its names or times."""
        if self.fault:
            raise ForbiddenError(
                f"no data node takes the certificate of {self.name or 'nobody'}: {self.fault}; "
                "see docs/operate/security.md on names",
            )
        if now > self.not_after:
            raise ForbiddenError(
                f"the certificate of {self.name or 'nobody'} has expired on {self.not_after}; "
                "see docs/operate/security.md on renewing it",
            )


class TlsSource(Protocol):
    """Where a process takes its files from; another object each time they have changed."""

    def current(self) -> TlsFiles:
        """Return the newest files."""
        ...


class TlsDirectory:
    """The files of a directory; TlsFilesError when they cannot be used at the start."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._files = self._read()
        self._look_at = clock() + LOOK_SECONDS

    def current(self) -> TlsFiles:
        """Return the newest files that can be used."""
        with self._lock:
            now = self._clock()
            if now >= self._look_at:
                self._look_at = now + LOOK_SECONDS
                self._look()
            return self._files

    def _look(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        try:
            self._files = self._read()
        except TlsFilesError as error:
            # Half written, perhaps: looked at again, and the present ones still hold.
            _log.warning(
                "new TLS files cannot be used", directory=str(self._path), error=str(error)
            )
            return
        self._stamp = stamp
        _log.info("new TLS files", name=self._files.name, not_after=str(self._files.not_after))

    def _place(self) -> Path:
        # The kubelet swaps all files of a Secret at once by this link: read behind it, or two
        # files could be of two versions.
        versions = self._path / "..data"
        return versions.resolve() if versions.is_symlink() else self._path

    def _stamp_now(self) -> tuple[object, ...]:
        place = self._place()
        try:
            found = [(place / name).stat() for name in FILES]
        except OSError:
            return ()
        return (place, *((s.st_ino, s.st_mtime_ns, s.st_size) for s in found))

    def _read(self) -> TlsFiles:
        place = self._place()
        try:
            authority, certificate, key = ((place / name).read_bytes() for name in FILES)
        except OSError as error:
            raise TlsFilesError(f"{self._path} needs {', '.join(FILES)}: {error}") from error
        return TlsFiles.parse(authority, certificate, key)


def tls_from_environment(environment: Mapping[str, str] = os.environ) -> TlsDirectory | None:
    """Return the files of REZONE_TLS_DIRECTORY, None (plaintext) when it is not set."""
    directory = environment.get(DIRECTORY_VARIABLE, "")
    return TlsDirectory(Path(directory)) if directory else None


def first_name(certificate: x509.Certificate) -> str:
    """Return a certificate's first alternative name, which is the one gRPC gives to a server."""
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return next(map(name_text, names), "")


def fault_of(certificate: x509.Certificate) -> str:
    """Return what data nodes refuse a certificate for, whatever its role; empty for nothing.

    `anchors` has them do so: beside a URI such a name could be taken for a role.
    """
    if list(certificate.subject):
        return "it has a subject, and all names must be alternative names"
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it has no alternative name"
    if names.get_values_for_type(x509.RFC822Name):
        return "it has an e-mail address"
    hosts = names.get_values_for_type(x509.DNSName)
    strange = [h for h in hosts if h != HOSTS_BELOW and not h.endswith(f".{HOSTS_BELOW}")]
    return f"it has the host name {strange[0]}, and only Services may be named" if strange else ""


def name_text(name: x509.GeneralName) -> str:
    """Return an alternative name as `Identity.parse` reads it.

    Roles are URIs alone. A DNS name, an e-mail address or anything else that is written as one gets
    its kind in front, and is nobody.
    """
    text = str(name.value)
    if isinstance(name, x509.UniformResourceIdentifier):
        return text if "://" in text else f"URI:{text}"
    if isinstance(name, x509.DNSName) and "/" not in text:
        return text
    return f"{type(name).__name__}:{text}"


def utc_now() -> datetime:
    """Return the time that certificates are valid by."""
    return datetime.now(UTC)


def explained(text: str, *, encrypted: bool) -> str:
    """Return what gRPC says of a broken connection, with what that means for TLS.

    A server that refuses a certificate just hangs up: under TLS 1.3 the client has finished its
    handshake by then, and gRPC sends no alert.
    """
    if "Peer name" in text or "handshake failed" in text:
        return f"the node's certificate is not one of this zone's: {text}"
    if "Socket closed" not in text:
        return text
    if encrypted:
        return (
            "the node has hung up in the TLS handshake, as it does on a certificate that its "
            f"authority did not sign or that has expired: {text}"
        )
    return f"the node has hung up; if it speaks TLS, {DIRECTORY_VARIABLE} must be set: {text}"
