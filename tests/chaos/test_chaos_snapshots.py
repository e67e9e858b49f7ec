"""What the checker of snapshot isolation allows, and each anomaly that it finds."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.chaos.history import Outcome
from e2e.chaos.snapshots import Seen, read_transactions, violations

pytestmark = pytest.mark.proves("TR-01")

A, B = 1, 2


def seen(
    read_time: int,
    commit_time: int | None,
    reads: dict[int, int],
    writes: dict[int, int],
    *,
    at: tuple[int, int] = (0, 1_000),
    outcome: Outcome = Outcome.OK,
) -> Seen:
    """Return a transaction; `at` is when it began and ended on the clock of the machine."""
    return Seen(1, reads, writes, read_time, at[0], at[1], outcome, commit_time)


FIRST = seen(10, 20, {A: 0, B: 0}, {A: 1, B: 2})


def test_transactions_that_follow_each_other_are_right() -> None:
    """A checker that finds fault with what is right would be switched off."""
    second = seen(20, 30, {A: 1, B: 2}, {A: 3})
    third = seen(29, 29, {A: 1, B: 2}, {})

    assert violations([FIRST, second, third]) == []


@pytest.mark.parametrize(
    ("anomaly", "other"),
    [
        ("a transaction seen in part", seen(25, 25, {A: 1, B: 0}, {})),
        ("an older snapshot than its read time", seen(25, 25, {A: 0}, {})),
        ("a version from after its read time", seen(15, 25, {A: 1}, {})),
        ("a value that nobody has committed", seen(25, 25, {A: 99}, {})),
        ("a lost update", seen(15, 25, {}, {A: 3})),
        ("an acknowledged commit after its read time", seen(15, 15, {A: 0}, {}, at=(2_000, 3_000))),
    ],
)
def test_each_anomaly_is_found(anomaly: str, other: Seen) -> None:
    """Evidence of a checker that never says no would say nothing."""
    (found,) = violations([FIRST, other])

    assert found.startswith(f"key {B if 'in part' in anomaly else A}:"), anomaly


def test_write_skew_is_allowed() -> None:
    """Two that read both keys and write one each do not conflict: snapshots promise no more."""
    left = seen(20, 30, {A: 1, B: 2}, {A: 3})
    right = seen(20, 31, {A: 1, B: 2}, {B: 4})

    assert violations([FIRST, left, right]) == []


def test_rows_of_an_aborted_transaction_are_never_seen() -> None:
    """Whoever was told that nothing was applied would find its rows all the same."""
    aborted = seen(20, None, {}, {A: 5}, outcome=Outcome.FAILED)
    reader = seen(40, 40, {A: 5}, {})

    assert len(violations([FIRST, aborted, reader])) == 1
    assert violations([FIRST, aborted]) == []


def test_a_transaction_of_unknown_end_may_have_happened_or_not() -> None:
    """The checker would find fault with each timeout, or believe any value of a lost answer."""
    unknown = seen(20, None, {}, {A: 5}, outcome=Outcome.UNKNOWN)
    found, missed = seen(40, 40, {A: 5}, {}), seen(40, 40, {A: 1}, {})
    too_early = seen(20, 20, {A: 5}, {})
    overwritten = seen(45, 50, {A: 5}, {A: 6})
    later = seen(60, 60, {A: 5}, {})

    assert violations([FIRST, unknown, found]) == []
    assert violations([FIRST, unknown, missed]) == []
    assert len(violations([FIRST, unknown, too_early])) == 1
    assert len(violations([FIRST, unknown, overwritten, later])) == 1


def history(rng: random.Random, count: int) -> list[Seen]:
    """Return transactions that one after the other change a few rows."""
    rows: dict[int, int] = {}
    found, time = [], 0
    for number in range(1, count):
        reads = {key: rows.get(key, 0) for key in rng.sample(range(8), 3)}
        writes = {key: number * 10 + key for key in rng.sample(sorted(reads), rng.randrange(3))}
        read_time, time = time, time + rng.randrange(1, 5)
        rows |= writes
        at = (number * 2, number * 2 + 1)
        found.append(seen(read_time, time, reads, writes, at=at))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_any_changed_read_of_a_long_history_is_found(seed: int) -> None:
    """A rule that holds for three transactions only would find nothing in a run of an hour."""
    rng = random.Random(seed)
    transactions = history(rng, 200)
    assert violations(transactions) == []

    place = rng.randrange(100, len(transactions))
    reads = dict(transactions[place].reads)
    key = rng.choice(sorted(reads))
    earlier = [each.writes.get(key, 0) for each in transactions[: place // 2]]
    reads[key] = rng.choice([value for value in earlier if value != reads[key]] or [777])
    transactions[place] = replace(transactions[place], reads=reads)

    assert violations(transactions) != []


def test_what_clients_have_recorded_is_read(tmp_path: Path) -> None:
    """A transaction without an answer would not be there, or a line cut short would end the run."""
    begun = {"client": 3, "read_time": 10, "begin_ns": 1, "reads": {"1": 0}, "writes": {"1": 5}}
    lines = [
        json.dumps({"op": 1, **begun}),
        json.dumps({"op": 1, "end_ns": 9, "outcome": "ok", "commit_time": 12}),
        json.dumps({"op": 2, **begun}),
    ]
    (tmp_path / "transactions-3.jsonl").write_text("\n".join(lines) + '\n{"op": 3, "cli')

    done, unknown = read_transactions(tmp_path)

    assert done == Seen(3, {1: 0}, {1: 5}, 10, 1, 9, Outcome.OK, 12)
    assert unknown == Seen(3, {1: 0}, {1: 5}, 10, 1)
