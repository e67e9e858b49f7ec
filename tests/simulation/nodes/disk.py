"""A machine's disk: real files below a directory, and what a crash would leave of them.

The product's syncs all go through `rezone.storage.disk.syncing`; `Disks` takes the place of its
functions, and each `TrackedDisk` notes what they made durable. All else is the file system's own:
whatever was written is there for every reader until the machine crashes. Then

- of a file that has grown since it was synced, the end is cut at any byte, and any sector of what
  is left behind that may never have been written, and be zeros;
- of one that was written over, each sector is the old or the new one;
- of a directory that was not synced since a name in it was made, renamed or removed, either all
  the old names are there or all the new ones. That is less than POSIX allows.

A process that is killed leaves all files as they are, synced or not: a machine may crash later.

A disk can be told to fail (`error`): every write and sync of a file is refused with that number.
What a failed sync was to make durable is lost then, though it can be read until the machine
crashes: no later sync makes it durable, unless it was written again.

A disk can be told to be slow (`sync_seconds`, infinity for one that does not answer): the node has
its jobs wait for that long where they sync.

A disk can be told to end its machine at some sync from now on: either the sync is done then, or
it is not, and whoever asked for it is dead in either case (`MachineDiedError`).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from rezone.storage.disk import syncing
from rezone.wire.messages import PartitionId

SECTOR_BYTES = 512
_PWRITE = os.pwrite
_MADE_ANEW = frozenset({".tmp", ".sst"})
UNWRITTEN_CHANCE = 0.1
"""How likely a sector that was never synced was never written."""


class MachineDiedError(BaseException):
    """Raised in a process whose machine dies: nothing of it goes on."""

    def __init__(self, disk: TrackedDisk) -> None:
        super().__init__(f"the machine of {disk.root.name} dies")
        self.disk = disk


class Found(NamedTuple):
    """A name in a directory: which file it is, by its inode."""

    inode: int
    is_directory: bool


Names = dict[str, Found]
Content = dict[Path, bytes | None]
"""Files and directories, parents first; None for a directory."""


class TrackedDisk:
    """The files below `root`; inodes are held open, so that their numbers are not given again.

    `whole_chance` is how likely a file that has grown keeps all of its length in a crash, whatever
    of its sectors was written: cut anywhere, it nearly always ends within what was written last.
    `room` is how many replicas with rows it has room for, None for any number. `spoils` is how many
    of the next copies to it are wrong, `spoiled` are the partitions of those: their digests tell.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.room: int | None = None
        self.spoils = 0
        self.spoiled: set[PartitionId] = set()
        self.dies_in = 0
        self.error = 0
        self.sync_seconds = 0.0
        self.failures = 0
        self._lost: dict[int, bytes] = {}
        self.whole_chance = 0.0
        self.unwritten_chance = UNWRITTEN_CHANCE
        self._rng = rng
        self._held: dict[int, int] = {}
        self._files: dict[int, bytes] = {}
        self._names: dict[int, Names] = {}
        root.mkdir(parents=True)
        self._settle()

    # --- syncs ---------------------------------------------------------------------------------

    def synced(self, descriptor: int) -> None:
        """Note that a file or a directory was synced; the machine may die before or after.

        OSError while the disk fails.
        """
        if self.error:
            self._lose(descriptor)
            self.fail()
        dies = self.dies_in == 1
        self.dies_in = max(1, self.dies_in - 1) if self.dies_in else 0
        if dies and self._rng.random() < 0.5:
            raise MachineDiedError(self)
        self._note(descriptor)
        if dies:
            raise MachineDiedError(self)

    def _lose(self, descriptor: int) -> None:
        """Note what a failed sync has lost of a file that is appended to: others are made again."""
        found, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISREG(found.st_mode) and path.suffix not in _MADE_ANEW:
            self._hold(descriptor, found.st_ino)
            self._lost[found.st_ino] = self._content(found.st_ino)

    def written(self, descriptor: int, position: int) -> None:
        """Note that a file is written from a position on: what was lost from there on is not."""
        inode = os.fstat(descriptor).st_ino
        if inode in self._lost:
            self._lost[inode] = self._lost[inode][:position]

    def fail(self) -> None:
        """Refuse something, if the disk fails."""
        if self.error:
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error), str(self.root))

    def _hold(self, descriptor: int, inode: int) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)

    def _note(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._hold(descriptor, found.st_ino)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = self._listed(found.st_ino)
        else:
            self._files[found.st_ino] = self._without_lost(found.st_ino)

    def _without_lost(self, inode: int) -> bytes:
        """Return what a sync makes durable of a file: not what an earlier one has lost."""
        content, durable = self._content(inode), len(self._files.get(inode, b""))
        lost = self._lost.get(inode)
        if lost is None:
            return content
        gone = lost[durable:]
        if not gone or content[durable : len(lost)] != gone:
            del self._lost[inode]  # it was cut
            return content
        return content[:durable] + bytes(len(gone)) + content[len(lost) :]

    def _listed(self, inode: int) -> Names:
        """Return the names in a directory, and hold what they stand for."""
        names: Names = {}
        with os.scandir(f"/proc/self/fd/{self._held[inode]}") as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                number = entry.inode()
                if number not in self._held:
                    self._held[number] = os.open(entry.path, os.O_RDONLY)
                names[entry.name] = Found(number, entry.is_dir())
        return names

    def _content(self, inode: int) -> bytes:
        descriptor = self._held[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def _settle(self) -> None:
        """Take everything that is there for durable."""
        self.close()
        self._files, self._names, self._lost = {}, {}, {}
        root = os.open(self.root, os.O_RDONLY)
        self._held[os.fstat(root).st_ino] = root
        left = [os.fstat(root).st_ino]
        while left:
            inode = left.pop()
            self._names[inode] = names = self._listed(inode)
            for found in names.values():
                if found.is_directory:
                    left.append(found.inode)
                else:
                    self._files[found.inode] = self._content(found.inode)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}

    # --- ends ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process: what it wrote stays."""
        self.dies_in = 0

    def crash(self) -> None:
        """End the machine."""
        self.kill()
        left = dict(self._left(self.root.stat().st_ino, Path()))
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.fill(left)

    # --- images --------------------------------------------------------------------------------

    def content(self) -> Content:
        """Return all there is, durable or not."""
        found: Content = {}
        for path in sorted(self.root.rglob("*")):
            found[path.relative_to(self.root)] = None if path.is_dir() else path.read_bytes()
        return found

    def fill(self, content: Content) -> None:
        """Make an empty disk have this, durably."""
        for path, data in content.items():
            if data is None:
                (self.root / path).mkdir()
            else:
                (self.root / path).write_bytes(data)
        self._settle()

    def _left(self, inode: int, at: Path) -> Iterator[tuple[Path, bytes | None]]:
        """Yield what is left of a directory, None for one in it, parents first."""
        new, old = self._listed(inode), self._names.get(inode, {})
        names = new if new == old or self._rng.random() < 0.5 else old
        for name, found in names.items():
            if found.is_directory:
                yield at / name, None
                yield from self._left(found.inode, at / name)
            else:
                durable = self._files.get(found.inode, b"")
                chances = self.whole_chance, self.unwritten_chance
                written = self._content(found.inode)
                yield at / name, torn(durable, written, self._rng, *chances)


def torn(
    durable: bytes,
    written: bytes,
    rng: random.Random,
    whole_chance: float = 0.0,
    unwritten_chance: float = UNWRITTEN_CHANCE,
) -> bytes:
    """Return what a crash leaves of a file of which some content was made durable."""
    if durable == written:
        return durable
    if not written.startswith(durable):
        pick = rng.choice
        sectors = range(0, len(written), SECTOR_BYTES)
        padded = durable.ljust(len(written), b"\0")
        mixed = b"".join(pick((padded, written))[at : at + SECTOR_BYTES] for at in sectors)
        return mixed[: pick((len(durable), len(written)))]
    # Nothing is drawn where it is not asked for: runs of other storms are what they were.
    whole = whole_chance > 0 and rng.random() < whole_chance
    left = bytearray(written if whole else written[: rng.randint(len(durable), len(written))])
    for at in range(0, len(left), SECTOR_BYTES):
        start, end = max(at, len(durable)), min(at + SECTOR_BYTES, len(left))
        if start < end and rng.random() < unwritten_chance:
            left[start:end] = bytes(end - start)
    return bytes(left)


class Disks:
    """The disks of all machines of a run, below one directory; to be used as a context."""

    def __init__(self, root: Path, names: list[str], rng: random.Random) -> None:
        self._root = root
        self._above = f"{root}/"
        self._rng = rng
        self.of: dict[str, TrackedDisk] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> TrackedDisk:
        """Add a machine's disk, which is empty."""
        seed = self._rng.getrandbits(64)
        disk = self.of[name] = TrackedDisk(self._root / name, random.Random(seed))
        return disk

    def remove(self, disk: TrackedDisk) -> None:
        """Take a disk away with all that was on it."""
        del self.of[disk.root.name]
        disk.close()
        shutil.rmtree(disk.root)

    @contextlib.contextmanager
    def tracked(self) -> Iterator[None]:
        """Have all syncs of this process be those of these disks."""
        written = mock.patch.object(os, "pwrite", self._pwrite)
        with written, mock.patch.multiple(syncing, sync_data=self._synced, sync_file=self._synced):
            try:
                yield
            finally:
                for disk in self.of.values():
                    disk.close()

    def _pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        if any(disk.failures or disk.error for disk in self.of.values()):
            disk = self._disk_of(descriptor)
            disk.fail()
            disk.written(descriptor, position)
        return _PWRITE(descriptor, data, position)

    def _synced(self, descriptor: int) -> None:
        self._disk_of(descriptor).synced(descriptor)

    def _disk_of(self, descriptor: int) -> TrackedDisk:
        # At every sync: `Path` would cost more than all the rest of it.
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        machine, _, _ = path.removeprefix(self._above).partition("/")
        return self.of[machine]


def memory_directory() -> str | None:
    """Return a directory in memory where the system has one: disks are simulated, not tried."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - its own directory in it
