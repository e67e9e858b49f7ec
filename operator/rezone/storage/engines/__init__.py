"""Storage engines: one small interface, RocksDB and Memory behind it."""

from pathlib import Path

from rezone.storage.engines.base import Engine
from rezone.storage.engines.memory import MemoryEngine
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.wire.messages import EngineKind


def open_engine(kind: EngineKind, directory: Path, settings: RocksSettings) -> Engine:
    """Open or create the engine of one partition in `directory`."""
    if kind is EngineKind.MEMORY:
        return MemoryEngine()
    return RocksEngine(directory, settings)
