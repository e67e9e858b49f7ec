"""The data node as a process: `rezone data-node`, or `python -m rezone.datanode`.

Concurrency: the main thread waits for SIGTERM or SIGINT; everything else has its own threads. On
the signal the node has others take its place (`leaving`), a second one cuts that short. Then it
answers what waits, makes everything durable and the process ends at once: calls still open are
cut by its end, which is what their other sides are made for. With
REZONE_TLS_DIRECTORY it speaks TLS both ways, and never anything else. REZONE_NODE_* variables
set its limits (`settings`).
"""

import argparse
import faulthandler
import functools
import gc
import ipaddress
import logging
import os
import sys
from pathlib import Path

import structlog

from rezone.datanode.node.node import DataNode
from rezone.datanode.observing.health import HealthServer
from rezone.datanode.observing.stacks import thread_stacks
from rezone.datanode.service.leaving import leave
from rezone.datanode.service.listener import Listener
from rezone.datanode.service.server import node_identity
from rezone.datanode.service.stop_signals import StopSignals
from rezone.datanode.settings import NodeSettings
from rezone.storage.copies.trial import try_files
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.store_config import StoreConfig
from rezone.wire.transport.callers import raise_limit
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.receive_limits import EXIT_USAGE, LIBRARY, ReceiveLimitsError, are_kept
from rezone.wire.transport.tls import tls_from_environment

_log = structlog.get_logger(__name__)

SWITCH_INTERVAL_SECONDS = 0.0002
"""Python's default of 5 ms would let one busy thread delay every frame by as much."""


def run(
    node_id: int,
    data_dir: Path,
    listen: str,
    health_port: int,
    *,
    settings: NodeSettings | None = None,
    store_config: StoreConfig | None = None,
    ready_file: Path | None = None,
) -> int:
    """Run a data node until SIGTERM or SIGINT; return the exit code.

    `listen` is "host:port", port 0 any free one. `ready_file`, if given, gets the two ports
    ("flight health") once the node serves. Without `settings` they are those of the environment.
    """
    settings = settings or NodeSettings.from_environment()
    leave_pandas_out()
    raise_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    stop = StopSignals(thread_stacks)
    tls = tls_from_environment()
    if tls is None:
        if not (settings.plaintext_anywhere or is_loopback(listen)):
            _log.error(
                "without TLS only on loopback; REZONE_NODE_PLAINTEXT_ANYWHERE=true allows it"
            )
            return EXIT_USAGE
        _log.warning("without TLS: everybody who can connect may do everything", node=node_id)
    else:
        node_identity(tls.current(), node_id)  # before any thread runs that would outlive an error
    connect = functools.partial(NodeClient, tls=tls)
    node = DataNode(
        node_id, data_dir, settings=settings, store_config=store_config, connect=connect
    )
    node.open()
    settle_memory()
    server = Listener(node, listen, tls)
    require_limits()
    health = HealthServer(node, listen.rpartition(":")[0], health_port)
    _log.info("serving", node=node_id, port=server.port, health_port=health.port)
    if ready_file is not None:
        partial = ready_file.with_suffix(".tmp")
        partial.write_text(f"{server.port} {health.port}\n")
        partial.rename(ready_file)
    stop.wait()
    _log.info("leaving", node=node_id)
    leave(node, hurried=stop.wait)
    _log.info("stopping", node=node_id)
    # Stopping loses nothing if it is cut short, and a node that hangs there must say where: its
    # threads' stacks go into the log, and the process ends with 1.
    faulthandler.dump_traceback_later(node.settings.stop_ms_max * 3 / 1000, exit=True)
    node.close()
    health.close()
    # Not a return through the interpreter's end: Flight would wait for open channels there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def require_limits() -> None:
    """End the process when its server should keep limits and does not; say when there are none."""
    try:
        if not are_kept():
            _log.warning("what callers send has no limit but memory", missing=LIBRARY)
    except ReceiveLimitsError as error:
        _log.error("cannot serve", error=str(error))
        os._exit(EXIT_USAGE)  # other threads run already


def is_loopback(listen: str) -> bool:
    """Whether an address "host:port" can be reached from this machine alone."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def settle_memory() -> None:
    """Keep what the libraries have made out of all later garbage collections.

    It is never garbage. A full collection looked at all of it, with every thread of the node
    standing still for 50 ms and more: the longest gaps between two writes.
    """
    gc.collect()
    gc.freeze()


class _WithoutPandas:
    """Finds no pandas, whether it is installed or not; an entry of `sys.meta_path`."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Find nothing. Raises ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a data node converts nothing to pandas", name=fullname)


def leave_pandas_out() -> None:
    """Pull no pandas, which pyarrow does, where it is installed, for its first array of a list.

    A new leader's first write would wait 180 ms for it, and the process would have 48 MB more.
    """
    sys.meta_path.insert(0, _WithoutPandas())


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="rezone data-node", description="Run one data node.")
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--listen", default="0.0.0.0:7400", help="host:port of Flight")
    parser.add_argument("--health-port", type=int, default=7401)
    parser.add_argument("--ready-file", type=Path, default=None)
    parser.add_argument("--replica-lag-ms-max", type=int, default=None)
    parser.add_argument(
        "--file-snapshot-bytes-min",
        type=int,
        default=CheckpointLimits().bytes_min,
        help="partitions of fewer bytes are copied as rows, larger ones as files",
    )
    given = parser.parse_args(arguments)
    checkpoints = CheckpointLimits(bytes_min=given.file_snapshot_bytes_min)
    lag_ms = given.replica_lag_ms_max
    settings = NodeSettings.from_environment(
        **({} if lag_ms is None else {"replica_lag_ms_max": lag_ms})
    )
    return run(
        given.node_id,
        given.data_dir,
        given.listen,
        given.health_port,
        settings=settings,
        store_config=StoreConfig(
            checkpoints=checkpoints, try_files=try_files if settings.files_tried else None
        ),
        ready_file=given.ready_file,
    )
