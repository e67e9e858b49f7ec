"""The limits of a data node, and the clock it lives by; values only, safe from any thread."""

import os
import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

import msgspec

from rezone.wire.typed import from_builtins


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
    """Every limit of a data node, with its unit; docs/settings.yaml has the meanings."""

    protocol: str = "InSyncReplicas"
    tracing_endpoint: str = ""
    replica_lag_ms_max: int = 10_000
    replica_gone_ms_max: int = 500
    heartbeat_ms: int = 750
    channel_silent_ms_max: int = 2_000
    reopen_ms_min: int = 500
    reopen_ms_max: int = 10_000
    disk_reserve_bytes: int = 1 << 30
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
    unfinished_bytes_max: int = 192 << 20
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
    follower_log_bytes_max: int = 128 << 20
    follower_pause_ms_max: int = 900_000
    copy_handover_ms: int = 60_000
    hold_ms_max: int = 1_000
    reads_held_max: int = 10_000
    reads_held_bytes_max: int = 16 << 20
    producers_bytes_max: int = 64 << 20
    lease_ms: int = 2_000
    clock_bound_ahead_ms: int = 3_000
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
    inline_rows_max: int = 200
    reshard_chunk_bytes: int = 1 << 20
    reshard_threads: int = 2
    reshard_poll_ms: int = 500
    reshard_linger_ms: int = 250
    reshard_mark_rows: int = 20_000
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
    leave_unread_ms_max: int = 30_000
    coordinator_silent_ms_max: int = 3_000
    plaintext_anywhere: bool = False
    shared_names_accepted: bool = False
    files_tried: bool = True

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
            return from_builtins({**values, **given}, cls, strict=False)
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
