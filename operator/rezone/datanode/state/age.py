"""How long ago a time is, as far as a node can tell.

A time that lies ahead has no age: it was given by a clock that was wrong, and rows may have come at
any moment since. Up to what clocks may differ by, and a node that has crashed may be ahead
(`clock_bound`), it counts as just now. Nor has a time that another node's clock gave while this
one's has not been compared with any: a node that gives times alone follows other leaders'
partitions, too.
"""

from rezone.datanode.state.replica_state import ReplicaState
from rezone.wire.messages import AGE_UNKNOWN_MS


def age_ms_of(replica: ReplicaState, as_of: int) -> int:
    """Return for how many milliseconds a time has been over; AGE_UNKNOWN_MS when that is not known.

    NotReadyError while the node does not know the time.
    """
    clock = replica.clock
    micros = clock.time() - as_of
    lies_ahead = micros < -(clock.offset_max + replica.settings.clock_bound_ahead_ms * 1_000)
    if lies_ahead or not is_comparable(replica):
        return AGE_UNKNOWN_MS
    return max(0, micros) // 1_000


def is_comparable(replica: ReplicaState) -> bool:
    """Return whether the times of a replica's rows can be compared with this node's time."""
    return replica.leads or replica.clock.is_compared
