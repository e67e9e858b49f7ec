"""What a zone's change feed tells while a test goes on."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from rezone.client import TableClient


@contextlib.contextmanager
def following(client: TableClient) -> Iterator[Counter[tuple[int, str]]]:
    """Count the changes of each id and value from now on, in a thread, as logs are cut."""
    found: Counter[tuple[int, str]] = Counter()
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        with client.changes() as feed:
            while not ended.is_set():
                found.update((r["id"], r["value"]) for r in feed.poll(0.1).changes.to_pylist())
                if feed.token is not None:
                    begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(20)
        yield found
    finally:
        ended.set()
        thread.join()
