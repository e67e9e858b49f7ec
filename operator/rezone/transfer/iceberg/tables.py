"""Tables of Iceberg catalogs, and commits to them that are made once.

A table is named CATALOG.NAMESPACE.TABLE. What a catalog is, pyiceberg reads from its variables
(`PYICEBERG_CATALOG__<CATALOG>__URI` and so on) or its file; no command line has a password.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

ATTEMPTS = 5
PAUSE_SECONDS = 0.5
"""Before a commit is tried again, times the attempt: somebody else has committed meanwhile."""

FOOTERS_AT_ONCE = 16


class TableName(NamedTuple):
    """A catalog, and the name of a table in it."""

    catalog: str
    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name in CATALOG.NAMESPACE.TABLE. Raises ValueError."""
        catalog, *identifier = text.split(".")
        if len(identifier) < 2 or not all((catalog, *identifier)):  # noqa: PLR2004 - see above
            raise ValueError(f"{text!r} is no CATALOG.NAMESPACE.TABLE")
        return cls(catalog, tuple(identifier))

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.identifier))


class IcebergTable:
    """A table of a catalog, which need not be there yet."""

    def __init__(self, name: str) -> None:
        """Take a name; ValueError for one of another form, without pyiceberg, and no catalog."""
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra
            from pyiceberg.utils.config import Config  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ValueError("pyiceberg is not there: pip install 'rezone[iceberg]'") from error
        self.name = TableName.parse(name)
        # As it is configured by now: pyiceberg itself has looked when it was imported.
        given = Config().get_catalog_config(self.name.catalog)
        if not given:
            raise ValueError(
                f"there is no catalog {self.name.catalog!r}: set "
                f"PYICEBERG_CATALOG__{self.name.catalog.upper()}__URI, by a Secret (--env-secret)"
            )
        self._catalog = load_catalog(self.name.catalog, **given)

    def load(self) -> Any:
        """Return the table as it is now, None without it."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        try:
            return self._catalog.load_table(self.name.identifier)
        except NoSuchTableError:
            return None

    def load_or_create(self, schema: Any, key: Sequence[str] = ()) -> Any:
        """Return the table; a new one has an Arrow schema, and these columns as its key."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415 - an extra

        if (found := self.load()) is not None:
            return found
        self._catalog.create_namespace_if_not_exists(self.name.identifier[:-1])
        try:
            table = self._catalog.create_table(self.name.identifier, schema)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self.name.identifier)
        with table.transaction() as transaction:
            mapping = table.schema().name_mapping.model_dump_json()
            # Files have names of columns, not Iceberg's numbers of them.
            transaction.set_properties({"schema.name-mapping.default": mapping})
            if key:
                with transaction.update_schema() as update:
                    update.set_identifier_fields(*key)
        return table

    def commit_once(
        self,
        load: Callable[[], Any],
        is_made: Callable[[Any], bool],
        stage: Callable[[Any, Any], None],
    ) -> Any:
        """Commit what `stage` puts into a transaction, if it is not made; return the table.

        `load` gives the table as it is, `is_made` says whether it has the commit already. Both are
        asked again when somebody else has committed, and when nobody knows how a commit ended.
        """
        from pyiceberg.exceptions import (  # noqa: PLC0415 - an extra
            CommitFailedException,
            CommitStateUnknownException,
            ValidationException,
        )

        attempt = 1
        while True:
            table = load()
            if is_made(table):
                return table
            # In memory only: pyiceberg would commit again without asking whether it is made.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with table.transaction() as transaction:
                    stage(transaction, table)
            except (CommitFailedException, CommitStateUnknownException, ValidationException):
                if attempt == ATTEMPTS:
                    raise
                time.sleep(PAUSE_SECONDS * attempt)
                attempt += 1
            else:
                return table


def data_files(transaction: Any, io: Any, paths: Sequence[str]) -> list[Any]:
    """Return Parquet files as files of a table. Raises ValueError when their columns do not fit."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415 - an extra

    def read(path: str) -> Any:
        return parquet_file_to_data_file(io, transaction.table_metadata, path)

    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "rezone-footers") as pool:
        return list(pool.map(read, paths))
