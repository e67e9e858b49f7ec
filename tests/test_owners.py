"""Each field of an object in a data node is assigned by that object alone, and so is a lock."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA_NODE = ROOT / "operator" / "rezone" / "datanode"

OWN = frozenset({"self", "cls"})


def assignments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines where a field of an object other than `self` is assigned, and which one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from _by_name(node)
            continue
        if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
            continue
        target: ast.expr = node
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute) and not _is_own(target.value):
            yield node.lineno, ast.unparse(target)


def _by_name(call: ast.Call) -> Iterator[tuple[int, str]]:
    """Yield an assignment by `setattr` or `delattr`, which has the same effect."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name in {"setattr", "delattr", "__setattr__", "__delattr__"} and not _is_own(call.args[0]):
        yield call.lineno, f"{ast.unparse(call.args[0])}.{ast.unparse(call.args[1])}"


def _is_own(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in OWN


def foreign(look: Callable[[str], Iterator[tuple[int, str]]]) -> dict[str, list[int]]:
    """Return the lines of all that `look` finds by `module: object.field`."""
    found: dict[str, list[int]] = {}
    modules = sorted(DATA_NODE.rglob("*.py"))
    assert modules, "nothing was looked at"
    for path in modules:
        for line, field in look(path.read_text()):
            found.setdefault(f"{path.relative_to(DATA_NODE)}: {field}", []).append(line)
    return found


def locks(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that name the lock of an object other than `self`, and which one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "lock" and not _is_own(node.value):
            yield node.lineno, ast.unparse(node)


def test_each_field_is_assigned_by_its_owner() -> None:
    """One of several writers would forget the rule that the owner keeps, and no type stops it.

    There are no exceptions: an owner has a method for each change that others may ask for.
    """
    assert foreign(assignments) == {}


def test_a_replica_s_lock_is_taken_by_its_runner() -> None:
    """A step would not do afterwards what it has noted, or do it with the lock (decision 0401).

    Who needs a replica's lock is an `entry`. The state makes the condition `changed` of it, and the
    node has that of its zone while it takes a configuration.
    """
    assert set(foreign(locks)) == {
        "node/node.py: self.zone.lock",
        "state/replica_state.py: self.runner.lock",
    }


@pytest.mark.parametrize(
    "line", ["with replica.lock: pass", "self._replica.lock.acquire()", "lock = found().lock"]
)
def test_a_lock_of_another_is_found(line: str) -> None:
    """One way to take it would pass unseen."""
    assert len(list(locks(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "other.field = 1",
        "self.part.field = 1",
        "other.field += 1",
        "other.field: int = 1",
        "a, (other.field, b) = found",
        "a = other.field = 1",
        "del other.field",
        "other.table[1] = 2",
        "self.part.table[1][2] = 3",
        "for other.field in found: pass",
        "with found as other.field: pass",
        "made().field = 1",
        "setattr(other, 'field', 1)",
        "object.__setattr__(other, 'field', 1)",
    ],
)
def test_an_assignment_from_outside_is_found(line: str) -> None:
    """One form of assignment would pass unseen."""
    assert len(list(assignments(line))) == 1


@pytest.mark.parametrize(
    "line",
    ["self.field = 1", "field = other.field", "self.table[other.key] = 1", "other.method().run()"],
)
def test_an_owner_may_assign(line: str) -> None:
    """The rule would forbid what it is to lead to."""
    assert list(assignments(line)) == []
