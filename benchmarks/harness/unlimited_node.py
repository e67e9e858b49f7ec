"""A data node without what the boundary checks of each request, for a comparison of their cost.

Left as they are: ranges of numbers, which are in the decoders; one answer to each request, and
sends behind locks, which are how the code is built; whose an id is, which plaintext does not ask.
`boundary.py` counts those alone.
"""

import sys
from collections.abc import Iterator
from typing import Any

from rezone.datanode.process import main
from rezone.datanode.replication.sent_frames import SentFrames
from rezone.datanode.scheduling.held import HeldByConnection
from rezone.datanode.scheduling.on_way import OnWay
from rezone.datanode.scheduling.unread import Peer
from rezone.datanode.service.guard import Guard
from rezone.datanode.service.intake import Intake
from rezone.wire.codec import bodies


def nothing(*_: object) -> None:
    """Check nothing."""


def always(*_: object) -> bool:
    """Let through."""
    return True


def never(_: object) -> bool:
    """Find nothing."""
    return False


def nobody(*_: object) -> Iterator[str]:
    """Cut off nobody."""
    return iter(())


WITHOUT: dict[Any, dict[str, Any]] = {
    Guard: {"check": nothing, "require": nothing},
    HeldByConnection: {"take": always, "give": nothing, "close": nothing},
    OnWay: {"sent": nothing, "read": nothing, "has_room": always},
    Peer: {"sends": nothing, "trusted": True},
    Intake: {"taken": lambda *_: nothing, "count": nobody},
    SentFrames: {"sent": nothing, "asked": nothing, "granted": nothing, "read": nothing},
    bodies: {"is_compressed": never, "require_valid": nothing},
}

if __name__ == "__main__":
    for owner, names in WITHOUT.items():
        for name, instead in names.items():
            if not hasattr(owner, name):
                raise SystemExit(f"{owner} has no {name} any more")
            setattr(owner, name, instead)
    sys.exit(main())
