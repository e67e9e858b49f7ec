"""PostgreSQL as Spark reads and writes it by JDBC: the peer of a zone.

The server is one of its own (`peers`); its driver is fetched once by Maven, and kept.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from harness.peers import POSTGRES, Postgres

_DRIVER = "org.postgresql:postgresql:42.7.14"
_JARS = Path.home() / ".cache" / "rezone" / "jars"
_FETCHED_ROWS = 10_000
TABLE = "rows"


def missing() -> str:
    """Say what is not here for this peer; empty when all is."""
    if not (POSTGRES / "postgres").exists():
        return f"no PostgreSQL at {POSTGRES}"
    return "" if _jar().exists() or shutil.which("mvn") else "no Maven, which fetches the driver"


def driver() -> str:
    """Return the path of the driver's jar."""
    if not _jar().exists():
        fetch = ("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={_DRIVER}")
        subprocess.run([*fetch, f"-DoutputDirectory={_JARS}"], check=True)
    return str(_jar())


def _jar() -> Path:
    _, name, version = _DRIVER.split(":")
    return _JARS / f"{name}-{version}.jar"


def serve(directory: Path, columns: str) -> Postgres:
    """Start a server with an empty table of these columns; the caller stops it."""
    if Path("/root") in (directory, *directory.parents):
        raise ValueError("PostgreSQL runs as another user, who reads nothing below /root")
    directory.chmod(0o755)  # of its parent: the server's user passes through
    postgres = Postgres(directory / "postgres")
    postgres.start()
    postgres.sql(f"CREATE TABLE {TABLE} ({columns})")
    return postgres


def url(postgres: Postgres) -> str:
    """Return how Spark finds the server."""
    return f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?reWriteBatchedInserts=true"


PROPERTIES = {
    "driver": "org.postgresql.Driver",
    "user": "bench",
    "fetchsize": str(_FETCHED_ROWS),
    "batchsize": str(_FETCHED_ROWS),
}


def frame(spark: Any, postgres: Postgres, key: str, rows: int, tasks: int) -> Any:
    """Return the table as a DataFrame, cut into even ranges of its numeric key."""
    return spark.read.jdbc(
        url(postgres), TABLE, column=key, lowerBound=0, upperBound=rows, numPartitions=tasks,
        properties=PROPERTIES,
    )  # fmt: skip
