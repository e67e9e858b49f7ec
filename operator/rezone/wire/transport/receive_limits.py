"""Limits of what Flight's servers of a process receive, for which pyarrow has no setting.

A library of `operator/native`, built beside pyarrow's own, has gRPC unpack no gzip, refuse long
messages and take few calls of a connection at a time, and bounds what compressed record batches are
unpacked to (decision 503). It has to be there before Flight is.

Concurrency: `load` belongs to the main thread, before others begin; the rest is safe from any.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Final

from rezone.wire.transport.frame_sizes import FRAME_BYTES_MAX

LIBRARY: Final = "librezone_limits.so"

MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + (1 << 20)
"""A frame of a channel, and what Flight puts around it."""

CALLS_MAX: Final = 128
"""Calls of one connection at a time; gRPC's clients wait with more until others have ended."""

UNPACKED_BYTES_MAX: Final = 64 << 20
"""Of all compressed record batches together; Rezone sends none."""

_KEPT = 1


class ReceiveLimitsError(Exception):
    """The library was built for another Flight, or was loaded after it."""


def load() -> bool:
    """Have the servers of this process keep limits; whether the library was built.

    Raises ReceiveLimitsError when Flight is there already.
    """
    path = library_path()
    if not path.exists():
        return False
    if "pyarrow._flight" in sys.modules:
        raise ReceiveLimitsError("Flight was imported before the library of its limits")
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.rezone_limits_of_servers(ctypes.c_int(MESSAGE_BYTES_MAX), ctypes.c_int(CALLS_MAX))
    library.rezone_limits_of_unpacking(ctypes.c_int64(UNPACKED_BYTES_MAX))
    return True


def library_path() -> Path:
    """Return where the library is when it was built: beside those of pyarrow."""
    found = importlib.util.find_spec("pyarrow")
    if found is None or found.origin is None:
        raise ReceiveLimitsError("pyarrow is not installed")
    return Path(found.origin).with_name(LIBRARY)


def are_kept() -> bool:
    """Whether a server that this process has made keeps the limits.

    Raises ReceiveLimitsError when it should and does not, as Flight is not as it was.
    """
    process = ctypes.CDLL(None)
    if not hasattr(process, "rezone_limits_state"):
        return False
    if process.rezone_limits_state() != _KEPT:
        raise ReceiveLimitsError(f"{LIBRARY} is of another version of pyarrow: build it again")
    return True
