"""What the receiving half of a copy asks of its surroundings, so that nothing imports upward.

`incoming` is the `CopyTarget` of the loaders that it begins; the partition's store is the
`ReceivingStore` of `incoming`.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, Protocol

from rezone.storage.engines.base import Engine
from rezone.storage.state.meta import CopyMeta, PartitionMeta

Lock = AbstractContextManager[object]
NO_LOCK: Final[Lock] = nullcontext()
"""Of a store that no job applies to meanwhile."""


class CopyTarget(Protocol):
    """Where a loader brings what it receives; `loader` is the one that asks."""

    @property
    def engine(self) -> Engine:
        """The engine that rows go to."""

    def check(self, loader: object) -> None:
        """Raise ConflictError when another attempt, a reset or the end has fenced the loader."""

    def going_on(self, loader: object) -> AbstractContextManager[None]:
        """Let no other attempt begin inside; raise as `check` does."""

    def update_meta(self, **changes: Any) -> None:
        """Persist progress."""

    def finish_rows(self, loader: object, copy: CopyMeta) -> None:
        """Take over the rows that the loader has brought."""

    def try_files(self, loader: object, copy: CopyMeta) -> None:
        """Have the files tried; without any lock. CorruptionError: the copy starts over."""

    def finish_files(self, loader: object, copy: CopyMeta) -> None:
        """Open the files that the loader has brought; CorruptionError starts the copy over."""

    def drop(self, loader: object) -> None:
        """Forget a loader that was given up."""


class ReceivingStore(Protocol):
    """The store of the partition that receives."""

    @property
    def meta(self) -> PartitionMeta:
        """What the partition has persisted of itself."""

    def update_meta(self, **changes: Any) -> PartitionMeta:
        """Persist changes of the meta, and return it."""

    def reset(self) -> None:
        """Make the partition empty; its copy starts over."""

    def open_engine_in(self, directory: Path) -> Engine:
        """Open an engine of this partition's kind."""

    def forget_damaged(self) -> None:
        """Remove what was quarantined as damaged: the partition is whole again."""
