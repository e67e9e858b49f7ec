"""Notices watches that tell nothing, by what they have told and what the API server has.

A watch fails without an error in more than one way: Kopf watches what an API server lists when it
is asked once, which is nothing of ours while that server starts; and a watch that goes on at a
version which is yet to come, as after etcd was put back to an earlier day, is sent nothing before
that version. Each leaves a process that looks healthy and hears of no change.
"""

from collections.abc import Mapping

from rezone.controller.work.keys import ObjectKey


class DeafWatchError(Exception):
    """Raised when the watches have not told of an object's change from one look to the next."""


class WatchCheck:
    """Compares at each look; two looks must be further apart than a watch takes to connect."""

    def __init__(self) -> None:
        self._behind: dict[ObjectKey, str | None] = {}

    def look(self, told: Mapping[ObjectKey, str], stored: Mapping[ObjectKey, str]) -> None:
        """Take resourceVersions as the watches told them, and as read after that.

        Raises DeafWatchError when objects had other versions than were told at the last look, and
        nothing was told since of any of these.
        """
        last = self._behind
        self._behind = {
            key: told.get(key) for key, version in stored.items() if told.get(key) != version
        }
        # Some of them told: a first list takes long where there are many objects.
        if any(told.get(key) != version for key, version in last.items()):
            return
        if missed := sorted(last.keys() & self._behind.keys()):
            kind, namespace, name = missed[0]
            raise DeafWatchError(
                f"{len(missed)} objects have changed without a word, such as {kind}"
                f" {namespace}/{name} after version {last[missed[0]] or 'none'}"
            )
