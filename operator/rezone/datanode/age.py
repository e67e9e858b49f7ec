"""How long ago a time is, as far as a node can tell.

A time that lies ahead has no age: it was given by a clock that was wrong, and rows may have come at
any moment since. Up to what clocks may differ by, and a node that has crashed may be ahead
(`told`), it counts as just now.
"""

from typing import TYPE_CHECKING

from rezone.wire.messages import AGE_UNKNOWN_MS

if TYPE_CHECKING:
    from rezone.datanode.partition import Partition


def age_ms_of(partition: "Partition", as_of: int) -> int:
    """Return for how many milliseconds a time has been over; AGE_UNKNOWN_MS when that is not known.

    NotReadyError while the node does not know the time.
    """
    clock = partition.clock
    micros = clock.time() - as_of
    if micros < -(clock.offset_max + partition.settings.told_ahead_ms * 1_000):
        return AGE_UNKNOWN_MS
    return max(0, micros) // 1_000
