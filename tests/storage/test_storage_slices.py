"""Calls that hold the interpreter are short: slices by rows, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_kit import Writer, config, rid

from rezone.storage.store import PartitionStore

ROWS_MAX = 10


def note_slices(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with the rows of each write to the engine."""
    sizes: list[int] = []
    apply = store.engine.apply

    def noting(puts: list[tuple[bytes, bytes]], *rest: object) -> None:
        sizes.append(len(puts))
        apply(puts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store.engine, "apply", noting)
    return sizes


def test_slices_of_small_rows_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of rows of 100 bytes would hold up every thread for 5 to 10 ms."""
    slices = config(apply_slice_rows=ROWS_MAX, apply_slice_bytes=1 << 20)
    store = PartitionStore.open(tmp_path / "p", slices)
    writer = Writer(store)
    sizes = note_slices(store, monkeypatch)
    for number in range(7):
        end = writer.write({rid(100 + 4 * number + i): b"small" for i in range(4)})
    end = writer.write({rid(i): b"of one entry" for i in range(45)})
    store.apply_to(end)
    assert sum(sizes) == 7 * 4 + 45
    assert max(sizes) <= ROWS_MAX
    # Entries are put together as far as that goes.
    assert len(sizes) <= 4 + 5
    assert store.applied == end
    store.close()
