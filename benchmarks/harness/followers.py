"""Followers for benchmarks: a process whose threads follow the changes of a whole zone, each.

    python -m harness.followers ADDRESS... --feeds N [--from-followers] [--old-rows]

"ready" on standard output once each feed has its first position. When its input gets a line, which
is a commit time in microseconds, each feed goes on until it has all changes up to that time, at
most for `CATCH_UP_SECONDS`. Then a line: the changes that all feeds have taken until that input
came, those that they have taken in all, and seconds of the process's processor time.
"""

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.child import start
from rezone.client import TableClient

CATCH_UP_SECONDS = 30.0
_POLL_SECONDS = 0.2


class Followed(NamedTuple):
    """What the feeds of a process have taken: in time, and in all; and its processor time."""

    in_time: int
    changes: int
    cpu_seconds: float


class Followers:
    """A running process of feeds; `end` ends it."""

    def __init__(
        self,
        addresses: Sequence[str],
        feeds: int,
        *,
        from_followers: bool,
        old_rows: bool,
        nice: int,
    ) -> None:
        arguments = [*addresses, f"--feeds={feeds}"]
        arguments += ["--from-followers"] * from_followers + ["--old-rows"] * old_rows
        self._process = start("followers", arguments, nice=nice)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit("a process of feeds has not begun")

    def end(self, until: int) -> Followed:
        """Let all feeds come to a commit time, and end them."""
        found, _ = self._process.communicate(f"{until}\n", CATCH_UP_SECONDS + 30)
        in_time, changes, seconds = found.split()
        return Followed(int(in_time), int(changes), float(seconds))

    def kill(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def following(
    addresses: Sequence[str],
    feeds: int,
    *,
    from_followers: bool,
    old_rows: bool,
    nice: int = 0,
) -> Iterator[Followers]:
    """Run feeds; none of them is left at the end."""
    followers = Followers(
        addresses, feeds, from_followers=from_followers, old_rows=old_rows, nice=nice
    )
    try:
        yield followers
    finally:
        followers.kill()


class _Feed:
    """One feed, in a thread of its own."""

    def __init__(self, addresses: Sequence[str], *, from_followers: bool, old_rows: bool) -> None:
        self._client = TableClient(addresses)
        self._feed = self._client.changes(from_followers=from_followers, old_rows=old_rows)
        self._feed.poll(CATCH_UP_SECONDS)
        self.changes = 0
        self.until = sys.maxsize
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def _run(self) -> None:
        while self._feed.resolved_time < self.until:
            self.changes += self._feed.poll(_POLL_SECONDS).changes.num_rows

    def join(self, until: float) -> None:
        """Wait until it has come as far as it is to, or it is too late."""
        self._thread.join(max(0.0, until - time.monotonic()))


def main() -> None:
    """Follow until standard input says up to when."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--feeds", type=int, required=True)
    parser.add_argument("--from-followers", action="store_true")
    parser.add_argument("--old-rows", action="store_true")
    given = parser.parse_args()
    feeds = [
        _Feed(given.addresses, from_followers=given.from_followers, old_rows=given.old_rows)
        for _ in range(given.feeds)
    ]
    begun = time.process_time()
    for feed in feeds:
        feed.start()
    print("ready", flush=True)
    until = int(sys.stdin.readline())
    spent = time.process_time() - begun
    in_time = sum(feed.changes for feed in feeds)
    for feed in feeds:
        feed.until = until
    end = time.monotonic() + CATCH_UP_SECONDS
    for feed in feeds:
        feed.join(end)
    print(in_time, sum(feed.changes for feed in feeds), spent, flush=True)


if __name__ == "__main__":
    main()
