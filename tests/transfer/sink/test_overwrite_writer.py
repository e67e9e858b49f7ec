"""The writer of an overwrite, called as Spark calls it: names, refusals and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from overwriting_kit import OverwritingOperator
from replica_cluster import Coordinator
from secure_cluster import SecureCoordinator, of_zone, secure_cluster

from rezone.client import TableClient
from rezone.transfer.copying.overwriting import Overwriting
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import InvalidRowError, NotReadyError
from rezone.wire.messages import ZoneConfig
from rezone.wire.transport.identity import Role

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
OLD = [{"id": n, "value": f"old {n}"} for n in range(50)]


def begin(bootstrap: str, staging: Path, **options: str) -> Any:
    """Return the writer of a job, as Spark's planner asks for it."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer.sink.overwrite_writer import OverwriteWriter  # noqa: PLC0415
    from rezone.transfer.source.options import SourceOptions  # noqa: PLC0415 - imports pyspark

    given = {"bootstrap": bootstrap, "stagingDirectory": str(staging), **options}
    return OverwriteWriter.begin(SourceOptions.read({k: v for k, v in given.items() if v}))


def job(bootstrap: str, staging: Path, rows: list[dict[str, Any]], **options: str) -> None:
    """Run a job of two tasks, one of which had an attempt that does not count."""
    writer = begin(bootstrap, staging, **options)
    batches = [pa.RecordBatch.from_pylist(rows[n::2]) for n in range(2) if rows[n::2]]
    try:
        writer.write(iter([pa.RecordBatch.from_pylist([{"id": 77, "value": "lost"}])]))
        messages = [writer.write(iter([batch])) for batch in batches]
        writer.commit([*messages, writer.write(iter([])), None])
    except BaseException:
        writer.abort([])
        raise


def new_rows(count: int, value: str = "new") -> list[dict[str, Any]]:
    """Return rows."""
    return [{"id": n, "value": f"{value} {n}"} for n in range(count)]


def content(zone: Coordinator) -> list[dict[str, Any]]:
    """Return all rows of the zone."""
    with TableClient(list(zone.peers.values())) as table:
        found: list[dict[str, Any]] = table.scan().sort_by("id").to_pylist()
    return found


def gives_up(*_: object) -> None:
    """Do what a driver does that has waited for too long."""
    raise NotReadyError("the overwrite has not begun")


@pytest.fixture
def filled(zone: Coordinator) -> Coordinator:
    """Give the zone with old rows."""
    zone.watch()
    with TableClient(list(zone.peers.values())) as table:
        table.write(OLD)
    return zone


@pytest.mark.proves("SP-05")
def test_a_name_is_of_the_same_rows_and_used_once(
    filled: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two jobs would be mixed, or a job be told that its rows are there."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer.sink.zone_overwrite import OverwriteRefusedError  # noqa: PLC0415

    at, staging = filled.nodes[0].address, tmp_path / "staging"
    with OverwritingOperator(filled) as operator:
        job(at, staging, new_rows(30), overwriteName="nightly")
        assert content(filled) == new_rows(30)
        notes = [path for path in staging.rglob("*") if path.is_file()]
        assert notes == [staging / "overwrite-nightly/note.json"]
        with TableClient(list(filled.peers.values())) as table:
            table.write([{"id": 1, "value": "others"}])
        job(at, staging, new_rows(30)[::-1], overwriteName="nightly")  # it is done
        assert content(filled)[1]["value"] == "others"
        with pytest.raises(OverwriteRefusedError, match="begun with other rows"):
            job(at, staging, new_rows(3), overwriteName="nightly")
        with pytest.raises(InvalidRowError, match="null"):
            job(at, staging, [{"id": None, "value": "a"}])
        with pytest.raises(ValueError, match="one key"):
            job(at, staging, [*new_rows(3), *new_rows(1)])
        with monkeypatch.context() as patch:
            patch.setattr(Overwriting, "run", gives_up)
            with pytest.raises(OverwriteRefusedError, match="Run the job again"):
                job(at, staging, new_rows(4))
        assert len(operator.asked) == 1
        job(at, staging, new_rows(5))
        with pytest.raises(OverwriteRefusedError, match="was overwritten again since"):
            job(at, staging, new_rows(30), overwriteName="nightly")
        job(at, staging, new_rows(6), overwriteName="other")
        (staging / "overwrite-other/note.json").unlink()
        with pytest.raises(OverwriteRefusedError, match="its rows are not known here"):
            job(at, staging, new_rows(6), overwriteName="other")
        assert content(filled) == new_rows(6)
    assert len(operator.asked) == 3
    assert [path.name for path in staging.rglob("*") if path.is_file()] == ["note.json"]


@pytest.mark.proves("SP-05")
def test_what_cannot_be_overwritten_is_refused_before_a_task_runs(
    filled: Coordinator, tmp_path: Path
) -> None:
    """A job would run for hours, and then learn that it cannot end."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer.sink.zone_overwrite import asked_name  # noqa: PLC0415

    at, staging = filled.nodes[0].address, tmp_path / "staging"
    options = {
        'needs the option "stagingDirectory"': {"stagingDirectory": ""},
        'no mode."overwrite"': {"operation": "delete"},
        'option "overwriteName" is': {"overwriteName": "../else"},
        "serve zone 'z', not 'other'": {"zone": "other"},
    }
    for text, given in options.items():
        with pytest.raises(ValueError, match=text):
            begin(at, staging, **given)
    before = filled.config
    name = asked_name("again", str(staging))
    configs: dict[str, dict[str, Any]] = {
        "being re-sharded.*run the job again": {"next_partitions": 3},
        "being overwritten by mine.*run the job again": {
            "next_partitions": 2,
            "next_filled_by": "mine",
        },
        'was cancelled.*another "overwriteName"': {"cancelled_overwrite": name},
    }
    for text, changes in configs.items():
        filled.config = msgspec.structs.replace(before, **changes)
        filled.configure()
        with pytest.raises(ValueError, match=text):
            begin(at, staging, overwriteName="again")
    assert not staging.exists()
    assert content(filled) == OLD


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureCoordinator]:
    """Yield a zone that speaks TLS, with a row."""
    with secure_cluster(tmp_path / "nodes", 2, 1, table=TABLE) as c:
        c.create(0, (0, 1))
        c.watch()
        with TableClient(c.addresses(), tls=c.pki.source("client", of_zone(Role.WRITER))) as table:
            table.write([{"id": 1, "value": "old"}])
        yield c


@pytest.mark.proves("SP-05")
def test_an_overwrite_needs_the_certificate_of_copy_jobs(
    secure: SecureCoordinator, tmp_path: Path
) -> None:
    """A writer's could bring rows past the log; and that of copy jobs not be enough."""
    at = ",".join(secure.addresses())
    for role in (Role.READER, Role.WRITER, Role.ADMIN):
        with pytest.raises(ValueError, match="-transfer-tls"):
            begin(at, tmp_path, tlsDirectory=str(secure.pki.issue(role.value, of_zone(role))))
    tls = str(secure.pki.issue("transfer", of_zone(Role.TRANSFER)))
    with OverwritingOperator(secure):
        job(at, tmp_path / "staging", new_rows(9), tlsDirectory=tls)
    reader = secure.pki.source("reader", of_zone(Role.READER))
    with TableClient(secure.addresses(), tls=reader) as table:
        assert table.scan().sort_by("id").to_pylist() == new_rows(9)
