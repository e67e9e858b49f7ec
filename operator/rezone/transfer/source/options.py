"""The options of the data source, read and checked once on the driver."""

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rezone.client import Filter, TableClient
from rezone.transfer.source.worker import settle_worker
from rezone.wire.codec.filters import FilterTerms
from rezone.wire.errors import UNREADABLE
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import TlsDirectory, tls_from_environment
from rezone.wire.typed import from_msgpack

COUNT_MAX = (1 << 63) - 1
"""The most that a number in an option may be: Spark has no larger ones."""

_DIGITS_MAX = 100

MAX_STALENESS_SECONDS = "10"
"""How old rows of followers may be when the option does not say it."""


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """The options, read and checked once on the driver."""

    bootstrap: tuple[str, ...]
    zone: str | None
    as_of: int | None
    max_staleness_seconds: float | None
    anywhere: bool
    delete: bool
    tls_directory: str | None
    columns: tuple[str, ...]
    limit: int | None
    rows: Filter | None
    staging: str | None
    overwrite_name: str | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Return the options of a source or sink; ValueError names the one that is wrong."""
        bootstrap = _names(options.get("bootstrap", ""))
        if not bootstrap:
            raise ValueError('option "bootstrap" is missing: "host:port" of a data node')
        operation = options.get("operation", "upsert")
        if operation not in ("upsert", "delete"):
            raise ValueError(f'option "operation" is {operation!r}, not "upsert" or "delete"')
        read_from = options.get("readFrom", "leaders")
        if read_from not in ("leaders", "any"):
            raise ValueError(f'option "readFrom" is {read_from!r}, not "leaders" or "any"')
        as_of, staleness = options.get("asOf"), options.get("maxStalenessSeconds")
        if staleness and (as_of or read_from != "any"):
            raise ValueError('option "maxStalenessSeconds" needs "readFrom" "any", and no "asOf"')
        if read_from == "any" and not as_of:
            staleness = staleness or MAX_STALENESS_SECONDS
        return cls(
            bootstrap,
            options.get("zone"),
            int(as_of) if as_of else None,
            float(staleness) if staleness else None,
            read_from == "any",
            operation == "delete",
            options.get("tlsDirectory"),
            _names(options.get("columns", "")),
            count_option(options, "limit"),
            decode_filter(options["filter"]) if options.get("filter") else None,
            options.get("stagingDirectory"),
            options.get("overwriteName"),
        )

    def connect(self, address: str) -> NodeClient:
        """Return a client of one data node, with the certificate that the options say."""
        return NodeClient(address, tls=self._tls or tls_from_environment())

    @property
    def _tls(self) -> TlsDirectory | None:
        return TlsDirectory(Path(self.tls_directory)) if self.tls_directory else None

    def client(self) -> TableClient:
        """Return a client of the zone; ValueError when its nodes serve another one."""
        settle_worker()  # before there is a client, which is garbage when it is closed
        client = TableClient(self.bootstrap, tls=self._tls)
        if self.zone and client.config.zone != self.zone:
            found = client.config.zone
            client.close()
            raise ValueError(
                f"the nodes at {self.bootstrap} serve zone {found!r}, not {self.zone!r}"
            )
        return client


def encode_filter(rows: Filter) -> str:
    """Return a filter as the text of an option."""
    return base64.b64encode(msgspec.msgpack.encode(rows.terms)).decode()


def decode_filter(text: str) -> Filter:
    """Return the filter in an option; ValueError when it is none."""
    try:
        data = base64.b64decode(text, validate=True)
        return Filter(from_msgpack(data, FilterTerms))
    except (binascii.Error, *UNREADABLE) as error:
        raise ValueError(f'option "filter" is none that `read_table` has made: {error}') from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def count_option(options: Mapping[str, str], name: str, least: int = 0) -> int | None:
    """Return the number in an option, None without it; ValueError when it is none from `least`."""
    text = options.get(name)
    if not text:
        return None
    # Not what is longer: Python refuses to read it, and would not name the option.
    fits = text.isdecimal() and len(text) <= _DIGITS_MAX
    if not fits or not least <= int(text) <= COUNT_MAX:
        raise ValueError(f"option {name!r} is {text!r}, not a number from {least} to {COUNT_MAX}")
    return int(text)
