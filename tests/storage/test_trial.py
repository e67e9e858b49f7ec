"""Files are opened by a process of its own first: what it dies of is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hostile_tables import hostile
from rezone.storage.copies import trial
from rezone.storage.copies.trial import try_files
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.wire.errors import CorruptionError

pytestmark = pytest.mark.proves("TR-03")

ROWS = 2000
SEEDS = 12


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return the directory of an engine with rows in one table."""
    directory = tmp_path / "engine"
    made = RocksEngine(directory, RocksSettings())
    keys = [i.to_bytes(8, "big") + bytes(8) for i in range(ROWS)]
    made.load(keys, [b"v" * 50] * ROWS)
    made.flush()
    made.close()
    return directory


def test_good_files_are_counted_and_opened_afterwards(engine: Path) -> None:
    """A trial that changes what it looks at would spoil every copy."""
    assert try_files(engine, 1) == ROWS
    opened = RocksEngine(engine, RocksSettings())
    assert len(opened.scan_chains(b"", None, rows_max=10 * ROWS, bytes_max=1 << 30).keys) == ROWS
    opened.close()


def test_hostile_tables_end_the_trial_and_nobody_else(engine: Path, tmp_path: Path) -> None:
    """Blocks with right checksums and lengths that lie: some end a process by a bad address.

    Opened by the node itself they would end the node, again after each restart.
    """
    (table,) = engine.glob("*.sst")
    content = table.read_bytes()
    said = []
    for seed in range(SEEDS):
        changed = tmp_path / f"{seed}"
        shutil.copytree(engine, changed)
        (changed / table.name).write_bytes(hostile(content, seed))
        try:
            try_files(changed, 1)
        except CorruptionError as error:
            said.append(error.message)
    assert len(said) >= SEEDS // 2
    assert any("ended with -11" in each for each in said), said


@pytest.mark.parametrize("missing", [1, 60, 5000])
def test_a_table_that_was_cut_is_refused(engine: Path, missing: int) -> None:
    """Its sender may announce it with the size that it has."""
    (table,) = engine.glob("*.sst")
    table.write_bytes(table.read_bytes()[:-missing])
    with pytest.raises(CorruptionError, match="cannot be read"):
        try_files(engine, 1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"),
        ("print('many')", "ended with 0"),
        ("while True: pass", "takes more than"),
        ("import sys; sys.stderr.write('x' * 10_000_000); sys.exit(1)", "ended with 1"),
    ],
)
def test_what_a_trial_may_end_with(
    tmp_path: Path, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that hangs or dies would be waited for, or be taken for a good one."""
    if said.startswith("takes"):
        monkeypatch.setattr(trial, "SECONDS_MIN", 1.0)
    with pytest.raises(CorruptionError, match=said) as error:
        try_files(tmp_path, 1, ("-c", code))
    assert len(error.value.message) < 1000


def test_a_trial_has_limits_and_nothing_of_the_node_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files could read a secret in the environment, or a connection by its descriptor."""
    monkeypatch.setenv("REZONE_SECRET", "secret")
    code = (
        "import os, resource, sys; from rezone.storage.copies.rocks_trial import limit;"
        "limit(int(sys.argv[2]), int(sys.argv[3]));"
        "limits = [resource.getrlimit(n)[0] for n in (resource.RLIMIT_AS, resource.RLIMIT_CPU)];"
        "inherited = {int(n) for n in os.listdir('/proc/self/fd')} - {0, 1, 2, 3};"
        "print(1 if 'REZONE_SECRET' not in os.environ and not inherited"
        " and limits == [int(n) for n in sys.argv[2:]] else (inherited, limits))"
    )
    with (tmp_path / "open").open("w"):
        assert try_files(tmp_path, 1, ("-c", code)) == 1
