"""Files of a certificate: read together, taken again when they change, never half."""

from __future__ import annotations

import base64
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rezone.kube.tls.authority import Authority, renew_at
from rezone.wire.errors import ForbiddenError
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import (
    DIRECTORY_VARIABLE,
    FILES,
    LOOK_SECONDS,
    TlsDirectory,
    TlsFiles,
    TlsFilesError,
    name_text,
    tls_from_environment,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
AUTHORITY = Authority.create(NOW)
WRITER = Identity(Role.WRITER, "shop", "accounts")


def fill(directory: Path, files: TlsFiles) -> None:
    """Write files one by one, as a person does."""
    directory.mkdir(exist_ok=True)
    for name, content in zip(FILES, (files.authority, files.certificate, files.key), strict=True):
        (directory / name).write_bytes(content)


def opened(directory: Path) -> TlsDirectory:
    """Return a directory that is looked at on every call."""
    ticks = itertools.count(0, 2 * LOOK_SECONDS)
    return TlsDirectory(directory, clock=lambda: next(ticks))


def test_new_files_are_taken_and_the_same_ones_are_not(tmp_path: Path) -> None:
    """A connection would be made again all the time, or never."""
    first, second = (AUTHORITY.issue(WRITER, NOW) for _ in range(2))
    fill(tmp_path, first)
    source = opened(tmp_path)
    taken = source.current()
    assert taken == first
    assert source.current() is taken
    fill(tmp_path, second)
    assert source.current() == second


def test_files_that_do_not_belong_together_are_left_until_they_do(tmp_path: Path) -> None:
    """A writer of three files is seen between the second and the third."""
    first, second = (AUTHORITY.issue(WRITER, NOW) for _ in range(2))
    fill(tmp_path, first)
    source = opened(tmp_path)
    (tmp_path / "tls.crt").write_bytes(second.certificate)
    assert source.current() == first
    (tmp_path / "tls.key").write_bytes(second.key)
    assert source.current() == second
    (tmp_path / "ca.crt").unlink()
    assert source.current() == second


def test_the_files_are_not_looked_at_more_than_once_a_second(tmp_path: Path) -> None:
    """Every call to a node would read the disk."""
    fill(tmp_path, AUTHORITY.issue(WRITER, NOW))
    time = [0.0]
    source = TlsDirectory(tmp_path, clock=lambda: time[0])
    first = source.current()
    fill(tmp_path, AUTHORITY.issue(WRITER, NOW))
    assert source.current() is first
    time[0] = LOOK_SECONDS
    assert source.current() is not first


def test_a_process_told_to_speak_tls_never_speaks_anything_else(tmp_path: Path) -> None:
    """A missing Secret would turn a zone's encryption off, silently."""
    assert tls_from_environment({}) is None
    with pytest.raises(TlsFilesError, match=r"needs ca\.crt, tls\.crt, tls\.key"):
        tls_from_environment({DIRECTORY_VARIABLE: str(tmp_path)})
    fill(tmp_path, AUTHORITY.issue(WRITER, NOW))
    found = tls_from_environment({DIRECTORY_VARIABLE: str(tmp_path)})
    assert found is not None
    assert found.current().identity == WRITER


def test_certificates_say_who_they_are_and_when_to_renew_them() -> None:
    """A certificate would expire before anybody thinks of it."""
    for identity in (WRITER, Identity(Role.OPERATOR), Identity(Role.DATA_NODE, "a", "b")):
        files = AUTHORITY.issue(identity, NOW, timedelta(days=90))
        assert files.identity == identity
        assert NOW + timedelta(days=59) < renew_at(files) <= NOW + timedelta(days=60)
        files.require_valid(NOW + timedelta(days=89))
        with pytest.raises(ForbiddenError, match="has expired on 2030-04-01"):
            files.require_valid(NOW + timedelta(days=91))


@pytest.mark.parametrize("uri", ["rezone://operator", WRITER.uri])
def test_only_a_uri_stands_for_a_role(uri: str) -> None:
    """An authority that checks URIs would sign the same text as a DNS name or an address."""
    assert Identity.parse(name_text(x509.UniformResourceIdentifier(uri))) is not None
    others: tuple[x509.GeneralName, ...] = (
        x509.DNSName(uri),
        x509.RFC822Name(f"{uri.replace(':', '').replace('/', '')}@example"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, uri)])),
        x509.UniformResourceIdentifier("accounts.shop.svc"),
    )
    for name in others:
        assert Identity.parse(name_text(name)) is None
    assert Identity.parse(name_text(x509.DNSName("accounts.shop.svc"))) is not None


@pytest.mark.proves("TR-03")
def test_a_certificate_of_a_version_that_is_none_is_refused() -> None:
    """Cryptography has an exception of its own for it: whoever looks at files would end by it."""
    files = AUTHORITY.issue(WRITER, NOW)
    end = "-----END CERTIFICATE-----"
    leaf = files.certificate.decode().split(end, 1)[0]
    first, *lines = leaf.strip().splitlines()
    version = b"\xa0\x03\x02\x01"
    der = base64.b64decode("".join(lines)).replace(version + b"\x02", version + b"\x06", 1)
    wrong = "\n".join([first, base64.b64encode(der).decode(), end, ""]).encode()
    with pytest.raises(TlsFilesError, match="version"):
        TlsFiles.parse(files.authority, wrong, files.key)
