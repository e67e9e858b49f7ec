"""Streaming queries that end, and what a zone's change feed tells while a test goes on."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rezone.client import TableClient


class Followed(Counter[tuple[int, str]]):
    """How often each id and value has come, and the token behind that."""

    token = ""


@contextlib.contextmanager
def following(client: TableClient) -> Iterator[Followed]:
    """Count the changes of each id and value from now on, in a thread, as logs are cut."""
    found = Followed()
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        with client.changes() as feed:
            while not ended.is_set():
                found.update((r["id"], r["value"]) for r in feed.poll(0.1).changes.to_pylist())
                if feed.token is not None:
                    found.token = feed.token
                    begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(20)
        yield found
    finally:
        ended.set()
        thread.join()


def finish(writer: Any, checkpoint: Path) -> None:
    """Run a query over all that is there.

    Again where Spark has given a Python worker its 10 s, which on a busy machine may not be enough.
    """
    for _ in range(5):
        started = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = started.start()
        try:
            assert query.awaitTermination(240)
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
    pytest.fail("no Python worker has come up in time")
