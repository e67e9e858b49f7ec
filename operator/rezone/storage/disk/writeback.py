"""Have the kernel write to the disk what was written to a file, without waiting for it.

Left alone it keeps everything in memory until somebody syncs the file, who then waits for all of
it, and so does every other sync on that disk meanwhile: those of the logs, which clients wait for.
Begun early, the writing goes on beside the network, and the sync finds little to do.

Python has no call for it; this is Linux' own.
"""

import ctypes

_SYNC_FILE_RANGE_WRITE = 2

_sync_file_range = ctypes.CDLL(None).sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def begin_writeback(descriptor: int, at: int, size: int) -> None:
    """Begin to write `size` bytes from `at`; makes nothing durable, and errors wait for the sync.

    Only a hint: where the file system cannot, the sync does it all.
    """
    _sync_file_range(descriptor, at, size, _SYNC_FILE_RANGE_WRITE)
