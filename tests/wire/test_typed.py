"""Decoders that many threads need for the first time at once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rezone.wire.errors import UNREADABLE
from rezone.wire.messages.resharding import StreamStart
from rezone.wire.typed import from_builtins, from_json, from_msgpack

OPERATOR = Path(__file__).parents[2] / "operator"
FIRST_USES = """
import sys, threading
import msgspec
from rezone.wire.typed import from_builtins, from_json, from_msgpack

sys.setswitchinterval(1e-6)
KINDS, THREADS = 60, 8
value = {**{f"field{n}": {"a": 1, "b": "x"} for n in range(6)}, "last": [1]}
ways = (
    lambda kind: from_msgpack(msgspec.msgpack.encode(value), kind),
    lambda kind: from_json(msgspec.json.encode(value), kind),
    lambda kind: from_builtins(value, kind),
)
for way in ways:
    for _ in range(KINDS):
        inner = msgspec.defstruct("Inner", [("a", int), ("b", str)])
        fields = [(f"field{n}", inner) for n in range(6)]
        kind = msgspec.defstruct("Outer", [*fields, ("last", list[int])])
        barrier, found = threading.Barrier(THREADS), []
        def use():
            barrier.wait()
            found.append(way(kind).last)
        threads = [threading.Thread(target=use) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[1]] * THREADS, found
"""


@pytest.mark.proves("TR-03")
def test_threads_that_use_a_type_for_the_first_time_do_not_end_the_process() -> None:
    """A data node died by SIGSEGV when tasks of a job came to several partitions at once.

    With `msgspec.msgpack.decode(data, type=kind)` and its like this ends by that signal each time.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USES],
        env={"PYTHONPATH": str(OPERATOR)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_what_is_none_of_a_kind_is_refused() -> None:
    """Bytes of another release, or damaged ones, would be taken for a record."""
    refused: list[Callable[[], object]] = [
        lambda: from_msgpack(b"\xc1", StreamStart),
        lambda: from_json(b"{", StreamStart),
        lambda: from_json(b"{}", StreamStart),
        lambda: from_builtins({}, StreamStart),
    ]
    for each in refused:
        with pytest.raises(UNREADABLE):
            each()
    assert from_json(b'"7"', int, strict=False) == 7
