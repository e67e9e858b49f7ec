"""Health over HTTP: /healthz, /readyz, /metrics (Prometheus), /statistics, /load (JSON), /stacks.

Concurrency: a thread per request, daemon; only reads.
"""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.memory import MemoryCollector
from rezone.datanode.node.node import DataNode
from rezone.datanode.observing.bounded_http import BoundedHTTPServer
from rezone.datanode.observing.copymetrics import CopyCollector
from rezone.datanode.observing.diskmetrics import DiskCollector
from rezone.datanode.observing.limits import LimitCollector
from rezone.datanode.observing.load import client_load
from rezone.datanode.observing.readiness import unready_reason
from rezone.datanode.observing.requestmetrics import RequestCollector
from rezone.datanode.observing.reshard_metrics import ReshardCollector
from rezone.datanode.observing.stacks import thread_stacks
from rezone.datanode.observing.transactionmetrics import TransactionCollector
from rezone.datanode.scheduling.error_log import REFUSED, UNEXPECTED
from rezone.datanode.service.statistics import node_statistics
from rezone.wire.messages import NodeStatistics, Role
from rezone.wire.messages.loads import ClientLoad
from rezone.wire.transport import receive_limits

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 10.0
"""Who has connected must send a request within this time, and take the answer."""


class NodeCollector(Collector):
    """The node's metrics; labels are bounded: roles and directions, never partitions."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        partitions = self._node.partitions()
        roles = GaugeMetricFamily(
            "rezone_data_node_partitions", "Replicas on this node by role.", labels=["role"]
        )
        for role in Role:
            roles.add_metric([role.value], sum(p.role is role for p in partitions))
        yield roles
        failed = sum(bool(p.failure) for p in partitions)
        yield GaugeMetricFamily("rezone_data_node_failed_partitions", "Failed replicas.", failed)
        clock = self._node.clock
        yield GaugeMetricFamily(
            "rezone_data_node_clock_offset_seconds",
            "How far the clock is ahead of the time of the other data nodes.",
            clock.offset_micros / 1e6,
        )
        newest = max((p.store.last_commit_time for p in partitions), default=0)
        yield GaugeMetricFamily(
            "rezone_data_node_times_ahead_seconds",
            "How far the newest row's time lies ahead of the data node's.",
            max(0, newest - clock.micros()) / 1e6,
        )
        damaged = sum(bool(p.damage.reason) for p in partitions)
        yield GaugeMetricFamily(
            "rezone_data_node_corrupted_partitions", "Replicas that have found damage.", damaged
        )
        yield GaugeMetricFamily(
            "rezone_data_node_pending_bytes", "Writes not yet answered.", self._node.budget.used
        )
        lag = sum(max(0, p.store.log_end - p.store.applied) for p in partitions)
        yield GaugeMetricFamily("rezone_data_node_apply_lag_rows", "Log rows not yet applied.", lag)
        lag = sum(p.store.indexer.lag_rows for p in partitions)
        yield GaugeMetricFamily(
            "rezone_data_node_index_lag_rows", "Applied rows not yet in the indexes.", lag
        )
        size = sum(p.store.indexer.entry_bytes for p in partitions)
        yield GaugeMetricFamily("rezone_data_node_index_bytes", "Bytes of index entries.", size)
        rows = sum(p.upkeep.sizes[0] for p in partitions)
        yield GaugeMetricFamily("rezone_data_node_mvcc_versions", "Row versions, estimated.", rows)
        yield GaugeMetricFamily(
            "rezone_data_node_requests_under_way",
            "Requests of clients not answered yet.",
            self._node.foreground.under_way,
        )
        cut_off = self._node.unread.cut_off
        for name, what, total in (
            ("refused", "Requests and connections refused for who their caller is.", REFUSED.total),
            ("unexpected_errors", "Exceptions that nobody expects; see the log.", UNEXPECTED.total),
            ("cut_off", "Connections ended because nobody read what was sent.", cut_off),
        ):
            counted = CounterMetricFamily(f"rezone_data_node_{name}", what)
            counted.add_metric([], total)
            yield counted
        yield GaugeMetricFamily(
            "rezone_data_node_receive_limits",
            "1 when what callers send is limited before it is decoded, 0 without that library.",
            receive_limits.are_kept(),
        )
        size = sum(p.upkeep.sizes[1] for p in partitions)
        yield GaugeMetricFamily("rezone_data_node_stored_bytes", "Bytes of engine and log.", size)
        streams = GaugeMetricFamily(
            "rezone_data_node_streams", "Replication streams by direction.", labels=["direction"]
        )
        producing = [s for c in self._node.links.producers() for s in c.statistics()]
        consuming = [
            s for c in self._node.links.consumers() for s in c.statistics().values() if s.active
        ]
        streams.add_metric(["out"], len(producing))
        streams.add_metric(["in"], len(consuming))
        yield streams
        yield GaugeMetricFamily(
            "rezone_data_node_data_channels", "Clients connected.", self._node.data_channels()
        )


def registry_of(node: DataNode) -> CollectorRegistry:
    """Return all metrics of a node."""
    registry = CollectorRegistry()
    for collector in (
        NodeCollector,
        RequestCollector,
        LimitCollector,
        CopyCollector,
        DiskCollector,
        ReshardCollector,
        MemoryCollector,
        TransactionCollector,
    ):
        registry.register(collector(node))
    registry.register(node.threads.lag)
    return registry


class HealthServer:
    """Serves the node's health at `host:port`; port 0 is any free one."""

    def __init__(self, node: DataNode, host: str, port: int) -> None:
        registry = registry_of(node)

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers one request."""

            timeout = REQUEST_SECONDS

            def do_GET(self) -> None:
                """Answer by path, if who asked still waits: a probe hangs up on a late answer."""
                code, kind, body = _answer(node, registry, self.path)
                with contextlib.suppress(ConnectionError):
                    self.send_response(code)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Keep the log free of probes."""

        self._server = BoundedHTTPServer((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _answer(node: DataNode, registry: CollectorRegistry, path: str) -> tuple[int, str, bytes]:
    pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
        "/healthz": lambda: _probe("" if node.threads.alive else "the node hangs"),
        "/readyz": lambda: _probe(unready_reason(node)),
        "/metrics": lambda: (200, METRICS_TYPE, generate_latest(registry)),
        "/statistics": lambda: _json(node_statistics(node.node_id, node.links)),
        "/load": lambda: _json(client_load(node)),
        "/stacks": lambda: _text(200, thread_stacks()),
    }
    page = pages.get(path.partition("?")[0])
    return page() if page is not None else _text(404, f"try {', '.join(pages)}")


def _probe(reason: str) -> tuple[int, str, bytes]:
    return _text(503 if reason else 200, reason or "ok")


def _json(found: NodeStatistics | ClientLoad) -> tuple[int, str, bytes]:
    return 200, "application/json", msgspec.json.encode(found)


def _text(code: int, text: str) -> tuple[int, str, bytes]:
    return code, "text/plain; charset=utf-8", f"{text}\n".encode()
