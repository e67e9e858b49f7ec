"""An object store as a process of its own, on loopback, behind a proxy that can break."""

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tcp_proxy import Proxy

from rezone.local.tools import find_tools

BUCKET = "lake"


class ObjectStore:
    """What speaks S3; `proxy` is between it and whoever asks."""

    def __init__(self, address: str) -> None:
        self.proxy = Proxy(address)

    def uri(self, path: str) -> str:
        """Return a path in the store as users of Spark write it."""
        where = f"endpoint_override={self.proxy.address}&scheme=http&region=eu-west-1"
        return f"s3a://{BUCKET}/{path}?{where}"


@contextlib.contextmanager
def object_store(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Run a store with an empty bucket, of which this process has the keys."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # This store, like some others, takes no checksums behind the content.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    program = str(find_tools(["gofakes3"])["gofakes3"])
    log = directory / "store.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [program, "-backend", "memory", "-host", "127.0.0.1:0", "-initialbucket", BUCKET],
            stdout=out,
            stderr=out,
        ) as process,
    ):
        try:
            store = ObjectStore(f"127.0.0.1:{_port(log, process)}")
            try:
                yield store
            finally:
                store.proxy.close()
        finally:
            process.kill()


def _port(log: Path, process: subprocess.Popen[bytes]) -> str:
    pause = threading.Event()
    for _ in range(300):
        if found := re.search(r"port: (\d+)", log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()
        pause.wait(0.1)
    raise AssertionError(log.read_text())
