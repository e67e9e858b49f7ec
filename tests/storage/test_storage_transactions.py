"""Write intents in a partition's storage: apply, roll back, copy, restart, collect, forget."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_kit import (
    FORMS,
    Transactor,
    Writer,
    batch_versions,
    config,
    copy_directory,
    rid,
    stored_rows,
    stored_versions,
)

from rezone.storage.budget import Tally
from rezone.storage.engines.base import FLAG_INTENT, TIME_MAX
from rezone.storage.log.entry import Entry
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.store import PartitionStore
from rezone.storage.transactions.intents import Intent
from rezone.storage.transactions.transactions import ENDED_BYTES, TransactionTable
from rezone.wire.copying.ticket import ticket_for
from rezone.wire.messages import EngineKind

T1, T2 = b"1" * 16, b"2" * 16


@contextlib.contextmanager
def opened(path: Path, form: str = "rows", **changes: Any) -> Iterator[PartitionStore]:
    """Open a store that sends in a form, and close it after use."""
    engine, bytes_min = FORMS[form]
    checkpoints = CheckpointLimits(bytes_min=bytes_min, join_seconds=0.0)
    store = PartitionStore.open(path, config(engine, checkpoints=checkpoints, **changes))
    try:
        yield store
    finally:
        store.close()


def apply(store: PartitionStore) -> None:
    """Take everything as committed, and apply it."""
    store.note_committed(store.log_end)
    store.apply_to(store.log_end)


def copy(source: PartitionStore, target: PartitionStore) -> None:
    """Copy a snapshot as its source sends it."""
    ticket = ticket_for(0, [target.incoming.state()], reader="r", batch_bytes=300)
    with source.outgoing.open(ticket) as snapshot:
        loader: Any = target.incoming.begin(snapshot.header, "a")
        for item in snapshot:
            loader.write(item.batch, item.mark)
        loader.finish(snapshot.trailer)


def follow(source: PartitionStore, target: PartitionStore) -> None:
    """Follow the source's log to its end."""
    while data := source.read(target.log_end, 1 << 20):
        target.append(data)
    apply(target)


def known(store: PartitionStore) -> list[tuple[bytes, bool, list[bytes]]]:
    """Return every transaction a store knows: whether it is open, and then its rows."""
    with store.transactions() as table:
        found = {r.transaction: table.get(r.transaction) for r in table.export(store.log_end)}
    return [
        (name, t.is_open, t.row_ids if t.is_open else [])
        for name, t in sorted(found.items())
        if t is not None
    ]


def holder(store: PartitionStore, row: bytes) -> bytes | None:
    """Return who has an intent on a row."""
    with store.transactions() as table:
        return table.holder([row])


def intents_of(
    store: PartitionStore, transaction: bytes, row_ids: Iterable[bytes]
) -> dict[bytes, Intent]:
    """Return the intents of a transaction that is open."""
    with store.transactions() as table:
        found = table.get(transaction)
    assert found is not None
    return store.reader.intents(found, row_ids)


def test_nobody_sees_intents_until_they_are_committed_all_at_once(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A read would see rows of an open transaction, or a part of a committed one."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    with opened(tmp_path / "p", form) as store:
        Writer(store).write({rid(1): b"old", rid(2): b"gone", rid(3): b"kept"})
        tx = Transactor(store)
        tx.intend(T1, {rid(1): b"a", rid(2): None})
        tx.intend(T1, {rid(1): b"b", rid(9): b"new"})
        tx.intend(T2, {rid(4): b"never"})
        apply(store)
        before = store.applied_time
        rows = {rid(1): b"old", rid(2): b"gone", rid(3): b"kept"}
        assert stored_rows(store) == dict(sorted(rows.items()))
        digest = store.reader.digest(before)
        assert (holder(store, rid(9)), holder(store, rid(4))) == (T1, T2)
        tx.commit(T1)
        tx.abort(T2)
        apply(store)
        after = {rid(1): b"b", rid(3): b"kept", rid(9): b"new"}
        assert stored_rows(store) == dict(sorted(after.items()))
        assert stored_rows(store, as_of=before) == dict(sorted(rows.items()))
        assert store.reader.digest(before) == digest
        assert holder(store, rid(9)) is None
        assert known(store) == [(T1, False, []), (T2, False, [])]
        assert store.producer(T1, 0)[1] is None, "a writer's place is taken by a transaction"


@pytest.mark.proves("SS-02")
@pytest.mark.parametrize("commits", [True, False])
def test_open_intents_travel_and_end_by_the_log(
    tmp_path: Path, form: str, *, commits: bool
) -> None:
    """A receiver could not commit at its own time what was open when it was copied."""
    with opened(tmp_path / "s", form) as source, opened(tmp_path / "t", form) as target:
        Writer(source).write({rid(k): b"old" for k in range(40)})
        tx = Transactor(source)
        tx.intend(T1, {rid(k): b"new%d" % k for k in range(10, 50)})
        tx.intend(T2, {rid(0): b"x"})
        apply(source)
        tx.abort(T2)
        apply(source)
        with source.outgoing.open_rows("r", batch_bytes=300) as snapshot:
            sent = [version for item in snapshot for version in batch_versions(item)]
        assert sorted(sent) == stored_versions(source)
        assert sum(flag == FLAG_INTENT for _, _, flag, _ in sent) == 41
        copy(source, target)
        assert known(target) == known(source)
        row_ids = [rid(k) for k in range(10, 50)]
        assert intents_of(target, T1, row_ids) == intents_of(source, T1, row_ids)
        tx.commit(T1) if commits else tx.abort(T1)
        apply(source)
        follow(source, target)
        assert stored_rows(target) == stored_rows(source)
        assert stored_rows(target).get(rid(45)) == (b"new45" if commits else None)
        assert known(target) == known(source) == [(T1, False, []), (T2, False, [])]


def test_a_copy_can_lead_and_commit_what_was_open(tmp_path: Path, form: str) -> None:
    """A transaction would end with its leader, if a copied replica follows that one."""
    with opened(tmp_path / "s", form) as source, opened(tmp_path / "t", form) as target:
        Transactor(source).intend(T1, {rid(k): b"v%d" % k for k in range(30)})
        apply(source)
        copy(source, target)
        Transactor(target).intend(T1, {rid(30): b"v30"})
        apply(target)
        Transactor(target).commit(T1)
        apply(target)
        assert stored_rows(target) == dict(sorted({rid(k): b"v%d" % k for k in range(31)}.items()))


@pytest.mark.proves("SS-03")
def test_rows_with_intents_are_sent_once_while_they_are_written(tmp_path: Path, form: str) -> None:
    """A snapshot would send an intent and its commit, or a row of both states."""
    with opened(tmp_path / "s", form) as source:
        tx = Transactor(source)
        Writer(source).write({rid(k): b"old" for k in range(60)})
        tx.intend(T1, {rid(k): b"new" for k in range(0, 60, 2)})
        apply(source)
        expected = stored_versions(source)
        with source.outgoing.open_rows("r", batch_bytes=300) as snapshot:
            sent = batch_versions(next(snapshot))
            tx.intend(T2, {rid(k): b"other" for k in range(1, 60, 2)})
            apply(source)
            sent += batch_versions(next(snapshot))
            tx.commit(T1)
            apply(source)
            sent += [version for item in snapshot for version in batch_versions(item)]
        assert sorted(sent) == expected
        assert len(sent) == len(set(sent))


@pytest.mark.proves("DCP-05")
@pytest.mark.parametrize("committed", [True, False])
def test_a_rollback_opens_again_what_had_ended(
    tmp_path: Path, kind: EngineKind, *, committed: bool
) -> None:
    """After a change of leader a transaction would stay committed on some replicas only."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    with opened(tmp_path / "p", form) as store:
        tx = Transactor(store)
        first = tx.intend(T1, {rid(1): b"a", rid(2): b"b"})
        second = tx.intend(T1, {rid(2): b"c"})
        store.note_committed(first)
        store.apply_to(store.log_end)  # a standby: ahead of what is committed
        intents = {first: intents_of(store, T1, [rid(1), rid(2)])}
        tx.commit(T1) if committed else tx.abort(T1)
        store.apply_to(store.log_end)
        assert holder(store, rid(1)) is None
        store.truncate(second)
        assert known(store) == [(T1, True, sorted([rid(1), rid(2)]))]
        assert (stored_rows(store), holder(store, rid(1))) == ({}, T1)
        assert intents_of(store, T1, [rid(1), rid(2)]) == intents[first]
        store.truncate(first)
        assert intents_of(store, T1, [rid(2)])[rid(2)].value == b"b"
        tx.commit(T1)
        apply(store)
        assert stored_rows(store) == dict(sorted({rid(1): b"a", rid(2): b"b"}.items()))


def test_a_rollback_of_what_is_not_applied_forgets_it(tmp_path: Path, kind: EngineKind) -> None:
    """Rows would be locked by intents that no log has, or a repeat be taken for done."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    with opened(tmp_path / "p", form) as store:
        tx = Transactor(store)
        kept = tx.intend(T1, {rid(1): b"a"})
        tx.intend(T1, {rid(2): b"b"})
        tx.intend(T2, {rid(3): b"c"})
        store.truncate(kept)
        assert known(store) == [(T1, True, [rid(1)])]
        assert (holder(store, rid(1)), holder(store, rid(2)), holder(store, rid(3))) == (
            T1,
            None,
            None,
        )


def test_an_end_that_was_not_applied_at_a_rollback_is_forgotten_once(
    tmp_path: Path, kind: EngineKind
) -> None:
    """The replica would stop following its leader when it forgets the transaction again."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    with opened(tmp_path / "p", form, transaction_seconds_max=0.0) as store:
        tx = Transactor(store)
        tx.intend(T1, {rid(1): b"a"})
        apply(store)
        end = tx.abort(T1)
        tx.intend(T2, {rid(2): b"b"})
        store.truncate(end)
        apply(store)
        for _ in range(2):
            Writer(store).write({rid(3): b"c"})
            apply(store)
        assert known(store) == []


def test_an_entry_may_be_applied_before_its_append_is_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that is quick would fail, or take an old entry for news of a transaction."""
    with opened(tmp_path / "s") as source, opened(tmp_path / "t") as standby:
        tx = Transactor(source)
        tx.intend(T1, {rid(1): b"a"})
        apply(source)
        tx.commit(T1)
        apply(source)
        noted = TransactionTable.note

        def apply_first(table: TransactionTable, entries: Iterable[Entry]) -> None:
            monkeypatch.undo()
            standby.apply_to(2)
            noted(table, entries)

        monkeypatch.setattr(TransactionTable, "note", apply_first)
        standby.append(source.read(0, 1 << 20))
        assert known(standby) == known(source) == [(T1, False, [])]
        assert stored_rows(standby) == {rid(1): b"a"}
        with standby.transactions() as table:
            assert [record.sequence for record in table.export(standby.log_end)] == [1, 2]


@pytest.mark.parametrize("applied", [True, False])
def test_a_restart_keeps_what_is_open_and_what_has_ended(tmp_path: Path, *, applied: bool) -> None:
    """A transaction would be lost with its leader's process, or commit twice."""
    with opened(tmp_path / "p") as store:
        tx = Transactor(store)
        tx.intend(T1, {rid(1): b"a"})
        tx.intend(T2, {rid(2): b"b"})
        store.apply_to(store.log_end)
        if applied:
            store.flush()
        tx.commit(T2)
        tx.intend(T1, {rid(3): b"c"})
        store.sync()
        expected = known(store)
        copy_directory(tmp_path / "p", tmp_path / "crashed")
    with opened(tmp_path / "crashed") as store:
        assert known(store) == expected
        assert (holder(store, rid(2)), holder(store, rid(3))) == (None, T1)
        apply(store)
        Transactor(store).commit(T1)
        apply(store)
        rows = {rid(1): b"a", rid(2): b"b", rid(3): b"c"}
        assert stored_rows(store) == dict(sorted(rows.items()))


def test_intents_are_collected_when_their_end_is_committed(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Dead intents would fill the disk, or a live one would be gone when its commit needs it."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    with opened(tmp_path / "p", form) as store:

        def intents() -> list[bytes]:
            found = store.collect(TIME_MAX, b"", 1 << 20)
            assert found.cursor is None
            return [row for row, _, flag, _ in stored_versions(store) if flag == FLAG_INTENT]

        tx = Transactor(store)
        tx.intend(T1, {rid(1): b"a"})
        committed = tx.intend(T2, {rid(2): b"b"})
        store.note_committed(committed)
        store.apply_to(store.log_end)
        assert sorted(intents()) == sorted([rid(1), rid(2)])
        end = tx.commit(T2)
        store.apply_to(store.log_end)
        assert sorted(intents()) == sorted([rid(1), rid(2)]), "its commit may be undone"
        store.note_committed(end)
        assert intents() == [rid(1)]
        assert stored_rows(store) == {rid(2): b"b"}


def test_what_has_ended_is_remembered_for_as_long_as_a_repeat_may_come(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A repeat would open a transaction again, or the table of those that are over would grow."""
    form = "memory" if kind is EngineKind.MEMORY else "rows"
    micros, over = 100, Tally(1 << 30)
    limits = {"transaction_seconds_max": micros / 1e6, "ended_transactions": over}
    with opened(tmp_path / "p", form, **limits) as store:
        tx = Transactor(store)
        tx.intend(T1, {rid(1): b"a"})
        apply(store)
        tx.abort(T1)
        apply(store)
        ended, writer = store.applied_time, Writer(store)
        while store.applied_time <= ended + micros:
            assert known(store) == [(T1, False, [])]
            writer.write({rid(2): b"x"})
            apply(store)
        assert known(store) == []
        assert over.used == 0
        assert not any(name.startswith(b"t") for name in store.engine.state())


class History:
    """Random entries, some of transactions, and what they mean."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.entries: list[tuple[int, str, bytes, dict[bytes, bytes | None]]] = []
        self.names = 0

    def state(self) -> tuple[dict[bytes, bytes], dict[bytes, dict[bytes, bytes | None]]]:
        """Return the visible rows, and the intents of open transactions."""
        rows: dict[bytes, bytes | None] = {}
        open_: dict[bytes, dict[bytes, bytes | None]] = {}
        for _, what, name, changes in self.entries:
            if what == "plain":
                rows.update(changes)
            elif what == "intend":
                open_.setdefault(name, {}).update(changes)
            else:
                ended = open_.pop(name)
                rows.update(ended if what == "commit" else {})
        return {row: value for row, value in sorted(rows.items()) if value is not None}, open_

    def step(self, store: PartitionStore) -> None:
        """Append one entry that fits the state."""
        tx, chance = Transactor(store), self.random
        _, open_ = self.state()
        held = {row for rows in open_.values() for row in rows}
        what = chance.choice(["plain", "intend", "intend", "commit", "abort"])
        name = chance.choice(sorted(open_)) if open_ and chance.random() < 0.8 else b""
        if what in ("commit", "abort") and not name:
            what = "plain"
        if what == "intend" and not name:
            self.names += 1
            name = self.names.to_bytes(16, "big")
        free = [rid(k) for k in range(30) if rid(k) not in held - set(open_.get(name, ()))]
        rows = {
            row: None if chance.random() < 0.2 else b"%d" % chance.randrange(1000)
            for row in chance.sample(free, min(len(free), chance.randrange(1, 5)))
        }
        if what == "plain":
            rows = {row: value for row, value in rows.items() if row not in held}
        if not rows:
            return
        store.apply_to(store.log_end)
        if what == "plain":
            end = Writer(store).write(rows)
        elif what == "intend":
            end = tx.intend(name, rows)
        else:
            end = tx.commit(name) if what == "commit" else tx.abort(name)
        self.entries.append((end, what, name, rows))

    def roll_back(self, store: PartitionStore) -> None:
        """Cut some entries off the end; never committed ones."""
        keep = self.random.randrange(len(self.entries) + 1)
        offset = self.entries[keep - 1][0] if keep else 0
        if max(store.log_start, store.committed) <= offset:
            del self.entries[keep:]
            store.truncate(offset)

    def check(self, store: PartitionStore) -> None:
        """Compare rows, open transactions, their rows and what their commits would write."""
        store.apply_to(store.log_end)
        rows, open_ = self.state()
        assert stored_rows(store) == rows
        assert {name: ids for name, is_open, ids in known(store) if is_open} == {
            name: sorted(changes) for name, changes in open_.items()
        }
        for name, changes in open_.items():
            intents = intents_of(store, name, changes)
            assert {r: None if i.op else i.value for r, i in intents.items()} == changes


@pytest.mark.proves("DCP-05", "SS-02")
@pytest.mark.parametrize("seed", range(8))
def test_any_history_with_rollbacks_copies_restarts_and_collections(
    tmp_path: Path, form: str, seed: int
) -> None:
    """Some order of these would lose an intent, or leave one of a transaction that is over."""
    history = History(seed)
    chance = history.random
    engine, bytes_min = FORMS[form]
    checkpoints, ended = CheckpointLimits(bytes_min=bytes_min, join_seconds=0.0), Tally(1 << 30)
    path = tmp_path / "0"
    settings = config(engine, checkpoints=checkpoints, ended_transactions=ended)
    store = PartitionStore.open(path, settings)
    try:
        for step in range(120):
            history.step(store)
            match chance.randrange(24):
                case 0 | 1:
                    history.roll_back(store)
                case 2 | 3:
                    store.note_committed(chance.randint(store.committed, store.log_end))
                case 4:
                    store.collect(chance.randint(0, store.applied_time), b"", 1 << 20)
                case 5 if form != "memory":
                    store.close()
                    store = PartitionStore.open(path, settings)
                case 6:
                    store.apply_to(store.log_end)
                    path = tmp_path / str(step + 1)
                    target = PartitionStore.open(path, settings)
                    copy(store, target)
                    store.close()
                    store = target
                case _:
                    continue
            history.check(store)
            over = sum(not is_open for _, is_open, _ in known(store))
            assert ended.used == over * ENDED_BYTES
        history.check(store)
    finally:
        store.close()
    assert ended.used == 0
