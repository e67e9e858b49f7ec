"""The limits of a data node, and the clock it lives by; values only, safe from any thread."""

import os
import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

import msgspec


class Clock(Protocol):
    """Where a node takes its time from; tests hand in one they move by hand."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def micros(self) -> int:
        """Return microseconds since 1970 in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def micros(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return time.time_ns() // 1000


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of a data node.

    - `protocol`: the replication protocol of the groups, by its name in `protocol.PROTOCOLS`.
    - `replica_lag_ms_max`: how long an in-sync replica may owe an ack before its leader proposes
      it out of the set; longer than `channel_silent_ms_max` and `lease_ms` together, for a leader
      that nobody hears is replaced by then, and cannot be when it is alone in its set;
      `replica_gone_ms_max`: how long one whose stream has broken may take to come back, while
      enough others are in sync.
    - `heartbeat_ms`: after so long without other frames the ends of a replication channel send
      heartbeats; `channel_silent_ms_max`: an end that has heard nothing for so long gives the other
      one up, and a follower connects anew; a stream request without an answer is asked again.
    - `reopen_ms_min`, `reopen_ms_max`: a replica that has failed, because of its disk or otherwise,
      is opened anew after the first pause, and after one twice as long each time that fails.
    - `disk_reserve_bytes`: with less free space than this a node's leaders hand over, and nobody
      counts on its replicas; with half of it, it takes no more rows. 0: no reserve.
    - `disk_well_ms`: a disk whose syncs were slow counts as slow until they have done well for so
      long.
    - `fetch_bytes_max`: the credit a follower gives per stream: bytes sent and not yet durable.
    - `frame_bytes_max`: log bytes in one frame; small enough that streams share a channel fairly.
    - `pending_bytes_*_max`: writes appended and not yet committed, or held; over it a write gets
      OverloadedError.
    - `answers_bytes_max`: answers of the node that clients have not taken; over it requests of such
      clients are not read.
    - `requests_bytes_connection_max`, `requests_bytes_identity_max`, `requests_bytes_node_max`:
      requests of clients that are not answered yet, by who has sent them; over it OverloadedError.
    - `unread_ms_max`: who takes nothing of an answer, or of what a follower is sent, for so long is
      cut off; longer for large ones, by a second for each MiB.
    - `stream_unread_ms_max`: the same for a snapshot, scan or lookup, whose reader may work on each
      batch for long.
    - `stranger_ms_max`: who has connected must have made a call that was let in after so long;
      `strangers_address_max`: so many of one address may be without; `descriptors_reserved`: so
      many are kept for the node's own files, a quarter of all at most.
    - `block_cache_bytes`, `write_buffers_bytes`: of all RocksDB engines of the node together, for
      what was read and for rows that are not in files yet.
    - `log_tails_bytes_max`: the newest entries of all logs, for followers.
    - `snapshots_max`: snapshots that are read at a time, in either form; one more waits up to
      `snapshot_wait_ms_max` and gets OverloadedError then.
    - `paced_bytes_max`: writes that wait for a replica to catch up; the same over it. They are
      slowed to `catch_up_percent_max` of what it takes, measured over `catch_up_window_ms`, but
      to no less than `catch_up_rows_min` rows per second (B-16).
    - `kept_log_bytes_max`: the log may grow to this for copies that will need it; over it writers
      are slowed to that floor. `copy_handover_ms`: how long a copy that has left may take until
      its receiver streams. `maintenance_log_bytes_max`: how much log each replica keeps for one
      whose node is in maintenance, which is copied if it needs more than that when it is back.
    - `hold_ms_max`: how long writes (during a takeover) and reads (before the leader's first
      commit, or without leases) are held in place of refused; `reads_held_max`: how many reads by
      key of one partition; `reads_held_bytes_max`: of the node.
    - `producers_bytes_max`: what is remembered of producers, shared evenly by the node's
      partitions; while so many have written within a minute leaders refuse those that are new.
    - `lease_ms`: for how long a follower promises its leader not to commit as a later leader, which
      is how long commits wait after a leader was lost; 0: leaders confirm each read with their
      in-sync replicas. `clock_drift_percent`: by how much the monotonic clocks of two nodes may
      differ in speed; nodes must not be suspended. `told_ahead_ms`: after a crash a node's rows get
      times that are ahead of its clock by at most so much; twice as often it writes a few bytes.
    - `clock_offset_ms_max`: a node whose time is further from that of most others gives no times.
    - `takeover_rows_max`: at most this many rows may be missing at the candidate when the old
      leader dies (DCP-06); `takeover_timeout_ms`: how long it may take to get there;
      `takeover_quiet_ms`: then it dies when no write waits for its answer, but no later.
    - `transaction_ms_max`: a transaction older than that is aborted, whoever leads by then; the
      same on all nodes. `transactions_open_max`, `open_intents_bytes_max`: of a partition at a
      time; `open_intents_bytes_node_max`: of the node, at which its leaders refuse more;
      `transaction_bytes_max`: of one transaction, as its intents stand in the log;
      `ended_transactions_bytes_max`: of the node, for what is remembered of those that are over,
      half of it shared evenly by its partitions: over both, leaders let no new ones begin.
    - `standby_lag_rows_max`: at most this many rows may wait to be applied in `iss` (HS-08).
    - `apply_interval_ms`, `apply_rows_max`: a follower applies when either is reached.
    - `index_interval_ms`, `index_rows_max`: indexes follow what is applied when either is reached;
      lookups and the candidate of a takeover do not wait for that.
    - `lookup_rows_max`: at most so many rows are looked up by an index at once.
    - `collect_percent_max`: the share of the time that old versions are collected for; a slice of a
      pass is followed by a rest.
    - `scrub_seconds`: every replica is read through for damage once in this time, at the same share
      of it; 0: never.
    - `commit_interval_ms`: how late a follower may hear of a commit offset when no entries follow.
    - `report_pause_ms`: how late the coordinator may hear of a change of a replica's state;
      `progress_interval_ms`: of progress.
    - `leisure_rows_max`: a thread that waits for frames does a partition's work itself when at
      most this many rows are to be applied, and leaves more to the workers.
    - `import_chunk_bytes`: of a partition of the layout before, how much is asked for at once while
      a zone is re-sharded; `import_threads`: how many such requests for rows a node has under way;
      with 0 it imports nothing.
      `import_poll_ms`: how long a node waits for news of the logs that it follows meanwhile;
      `import_linger_ms`: and for more of them, so that many entries make one append, which is one
      sync at each replica; not while half of `takeover_rows_max` wait. A seal does not wait.
      `import_mark_rows`: after so many rows of which none are its own a new partition notes how far
      it has read a log, so that the log before that can go.
    - `plaintext_anywhere`: without TLS the node may be reached from other machines.
    - `connections_max`, `replication_connections_max`, `streams_max`: DCP-13's limits.
    - `leave_ms_max`: how long a node that shall stop serves until others have taken its place; a
      pod's grace period must be longer. `coordinator_silent_ms_max`: it does not wait when nobody
      has asked for its report for so long, unless it alone has a partition in sync.
    """

    protocol: str = "InSyncReplicas"
    replica_lag_ms_max: int = 10_000
    replica_gone_ms_max: int = 500
    heartbeat_ms: int = 750
    channel_silent_ms_max: int = 3_000
    reopen_ms_min: int = 500
    reopen_ms_max: int = 10_000
    disk_reserve_bytes: int = 64 << 20
    disk_well_ms: int = 30_000
    fetch_bytes_max: int = 8 << 20
    frame_bytes_max: int = 1 << 20
    pending_bytes_partition_max: int = 64 << 20
    pending_bytes_node_max: int = 128 << 20
    answers_bytes_max: int = 32 << 20
    requests_bytes_connection_max: int = 96 << 20
    requests_bytes_identity_max: int = 144 << 20
    requests_bytes_node_max: int = 192 << 20
    unread_ms_max: int = 10_000
    stream_unread_ms_max: int = 600_000
    stranger_ms_max: int = 10_000
    strangers_address_max: int = 64
    descriptors_reserved: int = 256
    block_cache_bytes: int = 64 << 20
    write_buffers_bytes: int = 128 << 20
    log_tails_bytes_max: int = 64 << 20
    snapshots_max: int = 8
    snapshot_wait_ms_max: int = 60_000
    paced_bytes_max: int = 8 << 20
    catch_up_percent_max: int = 70
    catch_up_window_ms: int = 500
    catch_up_rows_min: int = 1_000
    kept_log_bytes_max: int = 8 << 30
    maintenance_log_bytes_max: int = 2 << 30
    copy_handover_ms: int = 60_000
    hold_ms_max: int = 1_000
    reads_held_max: int = 10_000
    reads_held_bytes_max: int = 16 << 20
    producers_bytes_max: int = 64 << 20
    lease_ms: int = 2_000
    told_ahead_ms: int = 3_000
    clock_drift_percent: int = 2
    clock_offset_ms_max: int = 500
    takeover_rows_max: int = 1_000
    takeover_timeout_ms: int = 5_000
    takeover_quiet_ms: int = 20
    transaction_ms_max: int = 60_000
    transactions_open_max: int = 1_000
    transaction_bytes_max: int = 4 << 20
    open_intents_bytes_max: int = 16 << 20
    open_intents_bytes_node_max: int = 32 << 20
    ended_transactions_bytes_max: int = 64 << 20
    standby_lag_rows_max: int = 1_000
    apply_interval_ms: int = 300
    apply_rows_max: int = 20_000
    index_interval_ms: int = 300
    index_rows_max: int = 5_000
    lookup_rows_max: int = 10_000
    leisure_rows_max: int = 200
    import_chunk_bytes: int = 1 << 20
    import_threads: int = 2
    import_poll_ms: int = 500
    import_linger_ms: int = 250
    import_mark_rows: int = 20_000
    commit_interval_ms: int = 100
    report_pause_ms: int = 20
    progress_interval_ms: int = 100
    tick_interval_ms: int = 20
    trim_interval_ms: int = 5_000
    collect_percent_max: int = 5
    scrub_seconds: int = 86_400
    connections_max: int = 10_000
    replication_connections_max: int = 1_000
    streams_max: int = 1_024
    reconnect_ms_min: int = 20
    reconnect_ms_max: int = 1_000
    worker_threads: int = 4
    stop_ms_max: int = 3_000
    leave_ms_max: int = 60_000
    coordinator_silent_ms_max: int = 3_000
    plaintext_anywhere: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that no time, size or share can be."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            most = 100 if "_percent" in name else float("inf")
            if isinstance(value, int) and not 0 <= value <= most:
                raise ValueError(f"{variable_of(name)}={value}: must be 0 to {most}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **given: Any) -> Self:
        """Return the settings that REZONE_NODE_* variables name, `given` ones as they are.

        ValueError names a variable that is none of these, or has no value of its kind.
        """
        names = {variable_of(name): name for name in cls.__struct_fields__}
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if not variable.startswith(VARIABLE_PREFIX):
                continue
            if variable not in names:
                raise ValueError(f"{variable}: a data node has no such setting")
            values[names[variable]] = text
        try:
            return msgspec.convert({**values, **given}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{VARIABLE_PREFIX}*: {error}") from error


def heard_seconds_max(settings: NodeSettings) -> float:
    """Return for how long a peer that says nothing still counts as heard (NW-02).

    Until the promises to it are over no other leader commits; who is given up is not heard.
    """
    silent_ms_max = settings.channel_silent_ms_max
    return min(settings.lease_ms or silent_ms_max, silent_ms_max) / 1000


VARIABLE_PREFIX = "REZONE_NODE_"


def variable_of(name: str) -> str:
    """Return the environment variable that a setting is read from."""
    return f"{VARIABLE_PREFIX}{name.upper()}"
