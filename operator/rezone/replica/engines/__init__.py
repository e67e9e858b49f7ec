"""Storage engines: one small interface, RocksDB and Memory behind it."""

from pathlib import Path

from rezone.replica.engines.base import Engine
from rezone.replica.engines.memory import MemoryEngine
from rezone.replica.engines.rocks import RocksEngine
from rezone.replica.engines.rocks_settings import RocksSettings
from rezone.wire.messages import EngineKind


def open_engine(kind: EngineKind, directory: Path, settings: RocksSettings) -> Engine:
    """Open or create the engine of one partition in `directory`."""
    if kind is EngineKind.MEMORY:
        return MemoryEngine()
    return RocksEngine(directory, settings)
