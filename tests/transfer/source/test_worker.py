"""What a Python worker of Spark does once."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rezone.transfer.source import worker

AT_ONCE = ["collect", "freeze"]


@pytest.mark.parametrize(
    ("started_by", "expected"),
    [("pyspark.daemon", 2 * AT_ONCE), ("pytest", []), (None, [])],
)
def test_only_a_worker_keeps_its_modules_out_of_collections_once_they_are_there(
    started_by: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a driver had in cycles would stay in its memory for ever; so would that of each task."""
    called: list[str] = []
    main = SimpleNamespace(__spec__=started_by and SimpleNamespace(name=started_by))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(gc, "collect", lambda: called.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    worker._settle.cache_clear()
    try:
        worker.settle_worker()
        worker.settle_worker()
        assert called == expected[:2], "each task of a worker leaves something for ever"
        monkeypatch.setitem(sys.modules, "imported-by-a-task", ModuleType("imported-by-a-task"))
        worker.settle_worker()
        worker.settle_worker()
    finally:
        worker._settle.cache_clear()
    assert called == expected
