"""What an export has in its directory: a plan while it goes on, a manifest once it is whole.

_manifest.json                      what was exported, as of when, and all files
part-00000-of-00064-as-of-1764000000000000.parquet
                                    the rows of an even range of hashes, by row id
_rezone/plan.json                   while it goes on: what the parts are
_rezone/parts/part-...json          a part that is done
"""

from typing import Annotated

import msgspec

from rezone.transfer.bulk.directory import HIDDEN, Directory, note_in
from rezone.wire.codec.schema import TableSchema
from rezone.wire.ranges import Count

FORMAT = 1
MANIFEST = "_manifest.json"
PLAN = f"{HIDDEN}/plan.json"
PARTS_MAX = 65_536

PartName = Annotated[
    str, msgspec.Meta(pattern=r"\Apart-[0-9]{1,9}-of-[0-9]{1,9}-as-of-[0-9]{1,20}\.parquet\Z")
]
"""No path: whoever can write notes of an export names no file outside of it."""


class ExportPlan(msgspec.Struct, frozen=True, rename="camel"):
    """What is exported, and into how many parts."""

    zone: str
    zone_uid: str
    as_of: Count
    table: TableSchema
    parts: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)]
    format: int = FORMAT


class ExportedPart(msgspec.Struct, frozen=True, rename="camel"):
    """A file that is whole: its rows, the digest of these, its bytes, and those of the rows."""

    name: PartName
    rows: Count
    digest: str
    file_bytes: Count
    row_bytes: Count


class ExportManifest(msgspec.Struct, frozen=True, rename="camel"):
    """An export that is whole."""

    zone: str
    zone_uid: str
    as_of: Count
    table: TableSchema
    rows: Count
    digest: str
    file_bytes: Count
    parts: list[ExportedPart]
    format: int = FORMAT


def part_name(index: int, plan: ExportPlan) -> str:
    """Return the name of a part's file; two exports have no file of one name."""
    return f"part-{index:05}-of-{plan.parts:05}-as-of-{plan.as_of}.parquet"


def check_plan(directory: Directory, plan: ExportPlan) -> None:
    """Raise ValueError when a directory's plan is another's, or gone: that export has ended."""
    content = directory.noted(PLAN)
    if content is None or note_in(content, ExportPlan) != plan:
        raise ValueError(f"another job exports into {directory.uri}: run it again when that ends")


def manifest_of(directory: Directory) -> ExportManifest | None:
    """Return the manifest of an export, None where there is no export.

    Raises ValueError where an export is not whole, or the manifest cannot be read.
    """
    content = directory.noted(MANIFEST)
    if content is not None:
        return note_in(content, ExportManifest)
    if directory.noted(PLAN) is not None:
        raise ValueError(f"the export in {directory.uri} is not whole: run it again until it ends")
    return None
