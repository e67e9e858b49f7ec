"""Spark Connect: its server as a process, a client as another one, and real data nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replica_cluster import Coordinator, free_port
from spark_processes import OPERATOR, SparkProcess

from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.mark.long
@pytest.mark.proves("SP-09")
def test_a_client_of_spark_connect_reads_writes_looks_up_and_streams(
    zone: Coordinator, tmp_path: Path
) -> None:
    """A thin client has no SparkContext: what reaches for one fails there alone."""
    pytest.importorskip("pyspark.sql")
    pytest.importorskip("grpc")
    port = free_port()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    server = SparkProcess(
        tmp_path / "server.log",
        "spark-submit",
        *("--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(text for name, value in given.items() for text in ("--conf", f"{name}={value}")),
        "spark-internal",
        env={"SPARK_DAEMON_MEMORY": "700m"},  # --driver-memory does nothing here
    )
    try:
        server.says(r"(Spark Connect server started)")
        client = subprocess.run(
            [
                *(sys.executable, str(CLIENT), f"sc://127.0.0.1:{port}"),
                *(zone.nodes[0].address, str(tmp_path)),
            ],
            env={**os.environ, "PYTHONPATH": OPERATOR},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        server.kill()
    assert client.returncode == 0, client.stderr[:2000]
    found = json.loads(client.stdout.splitlines()[-1])
    assert found == {"pushed": 20, "table": 5, "lookup": 5, "stream": 200}
