"""The guards that keep tests on this machine work themselves."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kubernetes_fixture import check_context


def test_foreign_connection_fails_the_test() -> None:
    """A guard that lets one through would let a test talk to somebody's cluster."""
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception, match="not on this machine"):
        sock.connect(("192.0.2.1", 443))
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception):
        sock.connect_ex(("cluster.example.com", 443))


async def test_foreign_connection_of_asyncio_fails_the_test() -> None:
    """The Kubernetes clients all connect through asyncio."""
    with pytest.raises(pytest.fail.Exception):
        await asyncio.open_connection("192.0.2.1", 443)


def test_loopback_is_free() -> None:
    """A guard that refuses everything would be switched off."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())


def test_foreign_context_is_refused(tmp_path: Path) -> None:
    """Tests delete namespaces: the one wrong KUBECONFIG would be enough."""
    path = tmp_path / "kubeconfig"
    path.write_text("current-context: production\n")
    with pytest.raises(pytest.UsageError, match="production"):
        check_context(path)
