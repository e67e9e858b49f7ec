"""The benchmark of leader moves ends, whatever becomes of the peers that it runs."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


class BrokenPeer:
    """A peer whose connection breaks with the first write after its leader has moved."""

    name = "broken"
    given_up = 0

    def __init__(self) -> None:
        self._moved = False

    def write(self, value: bytes) -> None:
        """Acknowledge until the leader has moved."""
        del value
        if self._moved:
            raise BrokenPipeError(32, "Broken pipe")

    def move(self) -> float:
        """Have the connection break."""
        self._moved = True
        return 0.0


@pytest.fixture
def peer_moves(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Give the benchmark's function, imported as a run of it imports it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(Path(__file__).parent / "datanode")
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        monkeypatch.delitem(sys.modules, name)
    import leader_move  # noqa: PLC0415 - from the path that was put there

    found: Callable[..., Any] = leader_move.peer_moves
    monkeypatch.delitem(sys.modules, "leader_move")
    return found


def test_a_peer_that_breaks_ends_its_part(peer_moves: Callable[..., Any]) -> None:
    """The benchmark waited for ever for writes of a thread that had died of a broken connection."""
    given = argparse.Namespace(rows=1, moving_pause_ms=1.0, peer_moves=3, peer_seconds=60.0)

    with pytest.raises(Exception, match="Broken pipe"):
        peer_moves(BrokenPeer(), given)
