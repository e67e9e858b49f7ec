"""A simulated node whose copies are made by the real copy loop, in both forms, step by step.

Whoever waits in its stores lets the world go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from rezone.datanode.replica.replica import Replica
from rezone.storage.store_config import StoreConfig
from rezone.wire.messages import PullSnapshot
from simulation.nodes.disk import TrackedDisk
from simulation.nodes.node import SimulatedNode
from simulation.nodes.waiting import Beside, Waiting

if TYPE_CHECKING:
    from simulation.nodes.copies import Put


class _Pulls:
    """The copies that a node makes for itself are the world's to move."""

    def __init__(self, start: Callable[[Replica, PullSnapshot], None]) -> None:
        self.start = start

    def step(self) -> None:
        """Need nothing."""

    def end(self) -> None:
        """Need nothing: the world ends them with their node."""


class CopyNode(SimulatedNode):
    """One life of a data node; `limits` are those of its stores.

    `unread` are streams whose reader is gone, `puts` those that it receives. `pull` begins a copy,
    `meanwhile` lets others go on for so many seconds, `endanger` may let a machine die of one of
    the syncs to come.
    """

    def __init__(
        self,
        *args: Any,
        limits: dict[str, Any],
        pull: Callable[[Replica, PullSnapshot], None],
        meanwhile: Callable[[float], None],
        endanger: Callable[[TrackedDisk], None],
        **more: Any,
    ) -> None:
        self.left_unread: list[Generator[Any, None, None]] = []
        self.puts: list[Put] = []
        self._limits = limits
        self._pull = pull
        self._meanwhile = meanwhile
        self._endanger = endanger
        super().__init__(*args, **more)

    def _open_disk(self) -> None:
        super()._open_disk()
        self.pulls = _Pulls(self._pull)  # type: ignore[assignment]

    def store_config(self) -> StoreConfig:
        """Return what the stores have in common."""
        return msgspec.structs.replace(
            super().store_config(),
            **self._limits,
            beside=lambda: Beside(self._rng, self.endanger),
            condition=functools.partial(Waiting, self._meanwhile),
        )

    def endanger(self) -> None:
        """Perhaps die of one of the syncs to come."""
        self._endanger(self.machine)

    def keep_house(self) -> None:
        """Do what the node's slow threads do."""
        for partition in self.partitions():
            partition.upkeep.keep_house()
            partition.upkeep.collect()
