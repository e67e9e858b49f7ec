"""What a chaos run concludes from what its clients recorded, and that its checker can say no."""

import json
from pathlib import Path

import pytest
from e2e.chaos.history import NEVER_NS, Histories, Operation, Outcome, longest_gaps
from e2e.chaos.linear import build_checker, check, lines_for_checker
from e2e.chaos.report import Row, table

from rezone.local.errors import MissingToolError

pytestmark = pytest.mark.proves("NW-07")
SECOND = 1_000_000_000


def operation(
    *,
    write: bool = True,
    value: int = 1,
    call: float = 0,
    end: float = 1,
    key: int = 7,
    partition: int = 0,
    outcome: Outcome = Outcome.OK,
) -> Operation:
    """Return an operation of client 1; times in seconds."""
    return Operation(
        client=1,
        partition=partition,
        key=key,
        write=write,
        value=value,
        call_ns=int(call * SECOND),
        return_ns=int(end * SECOND),
        outcome=outcome,
    )


def acknowledged(*times: float, partition: int = 0) -> list[Operation]:
    """Return writes that were acknowledged at these seconds."""
    return [operation(end=time, partition=partition) for time in times]


def test_a_gap_is_counted_beyond_the_fault() -> None:
    """A partition that is dead when the fault ends, or was just before it, would look well."""
    writes = acknowledged(0, 9, 11, 12, 30, 31)

    assert longest_gaps(writes, 1, 10 * SECOND, 20 * SECOND) == [18]


def test_gaps_outside_of_a_fault_are_not_its_own() -> None:
    """The fault before it would be counted twice."""
    writes = acknowledged(0, 9, 11, 12, 21, 22, 40)

    assert longest_gaps(writes, 1, 10 * SECOND, 22 * SECOND) == [9]


def test_a_partition_without_any_write_has_the_longest_gap() -> None:
    """Nothing acknowledged at all must not read as no gap."""
    writes = acknowledged(*range(31), partition=0)
    unknown = [operation(end=15, partition=1, outcome=Outcome.UNKNOWN)]

    assert longest_gaps([*writes, *unknown], 2, 10 * SECOND, 20 * SECOND) == [1, 10]


def record(path: Path, *items: dict[str, object], rest: str = "") -> None:
    """Append what a client would write."""
    with path.open("a") as file:
        file.write("".join(json.dumps(item) + "\n" for item in items) + rest)


def called(number: int, **other: object) -> dict[str, object]:
    """Return the line that an operation begins with."""
    known = {"op": number, "client": 1, "partition": 0, "key": 7, "write": True, "value": number}
    return {**known, "call_ns": number * SECOND, **other}


def ended(number: int, outcome: Outcome) -> dict[str, object]:
    """Return the line that an operation ends with."""
    return {"op": number, "return_ns": (number + 1) * SECOND, "outcome": outcome, "error": ""}


def test_histories_are_read_as_they_grow(tmp_path: Path) -> None:
    """A line that is half written would be lost, or taken twice, when it is whole."""
    path = tmp_path / "client-1.jsonl"
    histories = Histories(tmp_path)
    record(path, called(1), ended(1, Outcome.OK), called(2), rest='{"op": 2, "return_ns": 3')
    assert [each.value for each in histories.ended()] == [1]

    record(path, rest='000000000, "outcome": "ok", "error": ""}\n')
    assert [(each.value, each.return_ns) for each in histories.ended()] == [
        (1, 2 * SECOND),
        (2, 3 * SECOND),
    ]


def test_what_has_not_ended_may_still_take_effect(tmp_path: Path) -> None:
    """A write that a killed client had under way, or whose answer never came, is read later."""
    record(tmp_path / "client-1.jsonl", called(1), called(2), ended(2, Outcome.UNKNOWN), rest='{"o')

    found = Histories(tmp_path).all()

    assert {(each.value, each.outcome, each.return_ns) for each in found} == {
        (1, Outcome.UNKNOWN, NEVER_NS),
        (2, Outcome.UNKNOWN, NEVER_NS),
    }


def test_only_what_says_something_is_checked() -> None:
    """A refused write never was, and a read without an answer says nothing."""
    told = lines_for_checker(
        [
            operation(value=1),
            operation(value=2, outcome=Outcome.UNKNOWN),
            operation(value=3, outcome=Outcome.FAILED),
            operation(value=4, write=False, outcome=Outcome.FAILED),
        ]
    )

    assert [json.loads(line)["value"] for line in told.splitlines()] == [1, 2]


@pytest.fixture(scope="module")
def program() -> Path:
    """Build the checker, or find it; skip where there is no Go."""
    try:
        return build_checker()
    except MissingToolError as error:
        pytest.skip(str(error))


class TestChecker:
    """Porcupine, as the runs use it."""

    def verdict(self, program: Path, tmp_path: Path, *operations: Operation) -> tuple[int, ...]:
        """Return the rows that have impossible histories."""
        found = check(program, operations, tmp_path)
        assert found.undecided == ()
        assert found.operations == len(operations)
        return found.illegal

    def test_a_lost_write_is_found(self, program: Path, tmp_path: Path) -> None:
        """An acknowledged write that is not read afterwards: the worst that can happen."""
        write = operation(value=5, call=1, end=2)
        read = operation(write=False, value=0, call=3, end=4)
        other = operation(key=8, value=6)

        assert self.verdict(program, tmp_path, write, read, other) == (7,)
        assert (tmp_path / "row-7.html").exists()

    def test_a_stale_read_is_found(self, program: Path, tmp_path: Path) -> None:
        """Two reads that see the newer value before the older one."""
        history = [
            operation(value=1, call=0, end=1),
            operation(value=2, call=2, end=9),
            operation(write=False, value=2, call=3, end=4),
            operation(write=False, value=1, call=5, end=6),
        ]

        assert self.verdict(program, tmp_path, *history) == (7,)

    def test_a_write_of_unknown_end_may_come_late_or_never(
        self, program: Path, tmp_path: Path
    ) -> None:
        """Taken for acknowledged, or for refused, it would make false alarms."""
        unknown = Operation(1, 0, 7, True, 5, 0, NEVER_NS, Outcome.UNKNOWN)  # noqa: FBT003
        never = Operation(1, 0, 7, True, 6, 0, NEVER_NS, Outcome.UNKNOWN)  # noqa: FBT003
        before = operation(write=False, value=0, call=1, end=2)
        behind = operation(write=False, value=5, call=3, end=4)

        assert self.verdict(program, tmp_path, unknown, never, before, behind) == ()


def test_the_table_tells_what_is_not_whole() -> None:
    """A zone that never healed must not look as one that healed at once."""
    rows = [
        Row("a", "b", 12.2, 9, [0.1, 3.06], 80.4, 2.2, 1.2, told=["X", "Y"], restarts=1),
        Row("c", "d", 12.2, 9, [0.1, 0.1], 80.4, whole_seconds=None),
    ]

    assert table(rows).splitlines()[2:] == [
        "| a: b | 12 | 9 | 80 | 3.1 0.1 | 1 | 2 | 1 | X, Y |",
        "| c: d | 12 | 9 | 80 | 0.1 0.1 | **not** | **not** | 0 |  |",
    ]
