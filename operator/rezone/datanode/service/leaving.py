"""How a data node leaves: it asks to be relieved, and serves until it is.

A stop is planned, so nobody shall notice it. The node says in its report that it leaves; the
coordinator has its leaders hand over to in-sync replicas. It says so in its acks as well; leaders
propose it out of their in-sync sets while it still acks, so that no write waits for it. When no
partition would miss it any more it stops.

It does not wait for ever: not longer than `leave_ms_max`, not when nobody has read its report for
`leave_unread_ms_max`, and not after a second signal. What it still leads is then failed over as
after a crash, and nothing acknowledged is lost. An operator that restarts, or fails over, is back
before that: a drain or an update often stops it together with a data node. Where the zone is
deleted nobody will ever read it again; that is told (`ZoneDeleted`), and nothing is waited for.

Rows that it alone has in sync are lost with it where its disk goes with its pod. For those it
waits through a coordinator's silence: another one may come and take a replica into the set.
"""

from collections.abc import Callable

import structlog

from rezone.datanode.node.node import DataNode

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.02


def leave(node: DataNode, hurried: Callable[[float], bool]) -> bool:
    """Wait until the node may stop; returns whether it is missed nowhere.

    `hurried` waits so many seconds at most and says whether there is no more time.
    """
    settings, clock = node.settings, node.clock
    begun = clock.monotonic()
    silence = settings.leave_unread_ms_max / 1000
    node.leave()
    while node.is_needed:
        waited = clock.monotonic() - begun
        unread = not node.board.is_read(silence)
        futile = unread and not node.holds_alone
        if futile or waited > settings.leave_ms_max / 1000 or hurried(LOOK_SECONDS):
            _log.warning(
                "leaving without being relieved",
                node=node.node_id,
                waited_seconds=round(waited, 3),
                coordinator=not unread,
                holds_alone=node.holds_alone,
            )
            return False
    waited = clock.monotonic() - begun
    _log.info("relieved", node=node.node_id, waited_seconds=round(waited, 3))
    return True
