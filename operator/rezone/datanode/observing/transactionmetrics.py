"""Metrics of transactions on the partitions that a node has."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode


class TransactionCollector(Collector):
    """Sums over the node's partitions; a counter falls when a replica leaves, as at a restart."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        partitions = self._node.partitions()
        count = size = 0
        for partition in partitions:
            with partition.store.transactions() as table:
                count += table.open_count
                size += table.open_bytes
        yield GaugeMetricFamily(
            "rezone_data_node_open_transactions", "Open transactions, of followers too.", count
        )
        yield GaugeMetricFamily(
            "rezone_data_node_open_intents_bytes", "Writes of open transactions.", size
        )
        yield CounterMetricFamily(
            "rezone_data_node_transaction_conflicts",
            "Writes of transactions that were refused because of another writer.",
            sum(partition.transacting.conflicts for partition in partitions),
        )
        yield CounterMetricFamily(
            "rezone_data_node_transaction_intent_conflicts",
            "Plain writes that were refused because a transaction had written the row.",
            sum(partition.producing.locked for partition in partitions),
        )
        yield CounterMetricFamily(
            "rezone_data_node_transactions_refused",
            "Writes of transactions that were refused because of a limit.",
            sum(partition.transacting.over_limit for partition in partitions),
        )
        yield CounterMetricFamily(
            "rezone_data_node_transactions_expired",
            "Transactions that the leader has aborted because they were too old.",
            sum(partition.transacting.expired for partition in partitions),
        )
