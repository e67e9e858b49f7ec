"""A disk that is full: a data node's volume on a file system of a fixed size."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from e2e.chaos.fault import Fault
from e2e.chaos.world import World
from e2e.kind.command import run

_SPARE_BYTES = 256 << 20
_LEFT_BYTES = 1 << 20
_FULL_BYTES = 2 << 20
_BLOCK = b"\0" * (1 << 20)


class FullDisk(Fault):
    """One data node's disk has no space; it has again when that is over."""

    def __init__(self, world: World, node: int) -> None:
        self._world = world
        self._node = node
        self._volume = Path()
        self._ballast = Path()

    async def prepare(self) -> None:
        """Move the volume to a file system of its own; that restarts the data node's process.

        The mount ends with the run's namespace.
        """
        self._volume = await self._world.volume(self._node)
        self._ballast = self._volume / "ballast"
        agent = self._world.part("agent")
        # It would start the process again before its volume is in place.
        agent.signal(signal.SIGSTOP)
        try:
            node = self._world.nodes()[self._node].process
            node.signal(signal.SIGKILL)
            await asyncio.to_thread(node.wait, 10.0)
            await asyncio.to_thread(self._mount)
        finally:
            agent.signal(signal.SIGCONT)

    def _mount(self) -> None:
        if os.path.ismount(self._volume):
            return
        copy = self._volume.with_name(f"{self._volume.name}.copy")
        shutil.copytree(self._volume, copy)
        used = sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
        size = f"size={used + _SPARE_BYTES}"
        run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self._volume])
        shutil.copytree(copy, self._volume, dirs_exist_ok=True)
        shutil.rmtree(copy)

    async def begin(self) -> None:
        """Fill the disk but for a few rows."""
        with self._ballast.open("wb") as file:
            while self._free() > _LEFT_BYTES + len(_BLOCK):
                file.write(_BLOCK)
                file.flush()

    async def heal(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    async def bites(self) -> int:
        """Return whether the disk is full; the node may have made some room."""
        return int(self._free() < _FULL_BYTES)

    def _free(self) -> int:
        found = os.statvfs(self._volume)
        return found.f_bavail * found.f_frsize
