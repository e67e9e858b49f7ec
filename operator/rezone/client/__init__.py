"""The table client: rows in and out of a zone, with a route cache that corrects itself."""

from rezone.client.feed.feed import ChangeBatch, ChangeFeed, SnapshotAndChanges
from rezone.client.feed.token import FeedTokenError
from rezone.client.operations.conditional import VersionedRow
from rezone.client.operations.filters import Filter, col
from rezone.client.operations.lookups import IndexPage
from rezone.client.operations.producer import OpenedProducer
from rezone.client.operations.reads import AgedRows, ReadTime
from rezone.client.operations.replicas import PartitionReplicas
from rezone.client.operations.selections import Selection
from rezone.client.operations.sequenced import Sequenced
from rezone.client.operations.transactions import Transaction, TransactionCommit
from rezone.client.operations.writes import PartitionWrite
from rezone.client.settings import (
    ClientSettings,
    OutcomeUnknownError,
    StaleRowsError,
    TransactionOutcomeUnknownError,
    VersionMismatchError,
)
from rezone.client.table import TableClient

__all__ = [
    "AgedRows",
    "ChangeBatch",
    "ChangeFeed",
    "ClientSettings",
    "FeedTokenError",
    "Filter",
    "IndexPage",
    "OpenedProducer",
    "OutcomeUnknownError",
    "PartitionReplicas",
    "PartitionWrite",
    "ReadTime",
    "Selection",
    "Sequenced",
    "SnapshotAndChanges",
    "StaleRowsError",
    "TableClient",
    "Transaction",
    "TransactionCommit",
    "TransactionOutcomeUnknownError",
    "VersionMismatchError",
    "VersionedRow",
    "col",
]
