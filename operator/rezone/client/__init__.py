"""The table client: rows in and out of a zone, with a route cache that corrects itself."""

from rezone.client.lookups import IndexPage
from rezone.client.producer import OpenedProducer
from rezone.client.reads import AgedRows, ReadTime
from rezone.client.settings import (
    ClientSettings,
    OutcomeUnknownError,
    StaleRowsError,
    TransactionOutcomeUnknownError,
)
from rezone.client.table import TableClient
from rezone.client.transactions import Transaction, TransactionCommit
from rezone.client.writes import PartitionWrite

__all__ = [
    "AgedRows",
    "ClientSettings",
    "IndexPage",
    "OpenedProducer",
    "OutcomeUnknownError",
    "PartitionWrite",
    "ReadTime",
    "StaleRowsError",
    "TableClient",
    "Transaction",
    "TransactionCommit",
    "TransactionOutcomeUnknownError",
]
