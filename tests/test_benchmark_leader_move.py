"""The benchmark of leader moves ends, whatever becomes of the peers that it runs."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

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


class TimedOutPeer(BrokenPeer):
    """A peer whose connection gives no answer any more: each later read of it fails at once."""

    def move(self) -> float:
        """Fail as a socket's file does after a timeout: with an OSError of no other kind."""
        raise OSError("cannot read from timed out object")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the benchmark's module, imported as a run of it imports it."""
    for folder in (BENCHMARKS, BENCHMARKS / "failures"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(Path(__file__).parent / "datanode")
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        monkeypatch.delitem(sys.modules, name)
    import leader_move  # noqa: PLC0415 - from the path that was put there

    monkeypatch.delitem(sys.modules, "leader_move")
    return leader_move


def test_a_peer_that_breaks_ends_its_part(benchmark: ModuleType) -> None:
    """The benchmark waited for ever for writes of a thread that had died of a broken connection."""
    given = argparse.Namespace(rows=1, moving_pause_ms=1.0, peer_moves=3, peer_seconds=60.0)

    with pytest.raises(Exception, match="Broken pipe"):
        benchmark.peer_moves(BrokenPeer(), given)


@pytest.mark.parametrize("peer", [BrokenPeer, TimedOutPeer])
def test_the_benchmark_ends_when_a_peer_breaks(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    peer: Callable[[], BrokenPeer],
) -> None:
    """It says which part is left out and ends. Else the figures of an hour end in a traceback."""

    @contextlib.contextmanager
    def start(directory: Path) -> Iterator[BrokenPeer]:
        del directory
        yield peer()

    monkeypatch.setattr(benchmark, "rezone_moves", lambda _: [benchmark.Move(5.0, 3.0, 4.0)])
    monkeypatch.setattr(benchmark, "settle_memory", lambda: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(benchmark, "etcd", start)
    monkeypatch.setattr(benchmark, "redis", start)
    monkeypatch.setattr(sys, "argv", ["leader_move.py"])

    benchmark.main()

    assert capsys.readouterr().out.count("left out, it has broken") == 2
