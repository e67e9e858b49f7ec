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
    apply, load = store.engine.apply, store.engine.load

    def noting(puts: list[tuple[bytes, bytes]], *rest: object) -> None:
        sizes.append(len(puts))
        apply(puts, *rest)  # type: ignore[arg-type]

    def noting_load(keys: list[bytes], values: list[bytes]) -> None:
        sizes.append(len(keys))
        load(keys, values)

    monkeypatch.setattr(store.engine, "apply", noting)
    monkeypatch.setattr(store.engine, "load", noting_load)
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
    assert len(sizes) <= 4 + 5 + 1, "slices, and the state behind those of one entry"
    assert store.applied == end
    store.close()


def test_a_large_entry_makes_what_its_rows_make_alone(tmp_path: Path) -> None:
    """Kernels make the versions of a large entry; a flag or a time that differs is another row.

    Deletes, empty values and values over a slice's bytes are among the rows.
    """
    rows: dict[bytes, bytes | None] = {rid(n): b"v" * (n % 7) for n in range(40)}
    rows |= {rid(3): None, rid(17): None, rid(20): b"x" * 500}
    found = []
    for rows_max in (ROWS_MAX, 2000):
        slices = config(apply_slice_rows=rows_max, apply_slice_bytes=100 * rows_max)
        store = PartitionStore.open(tmp_path / f"{rows_max}", slices)
        store.apply_to(Writer(store).write(rows))
        chains = store.engine.scan_chains(b"", None, rows_max=99, bytes_max=1 << 20)
        found.append((list(chains.keys), list(chains.values)))
        store.close()
    assert found[0] == found[1]
    assert len(found[0][0]) == len(rows)
