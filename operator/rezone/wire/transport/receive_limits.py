"""Limits of what Flight's servers of a process receive, for which pyarrow has no setting.

A library of `operator/native`, built beside pyarrow's own, has gRPC unpack no gzip, refuse long
messages and take few calls of a connection at a time, and bounds what compressed record batches are
unpacked to (decision 503). It has to be there before Flight is.

Concurrency: `load` and `load_or_end` belong to the main thread, before others begin; the rest is
safe from any.
"""

import ctypes
import importlib.metadata
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

EXIT_USAGE: Final = 2

_KEPT = 1


class ReceiveLimitsError(Exception):
    """The library is of another pyarrow, or cannot be loaded, or was loaded after Flight."""


def load_or_end() -> None:
    """Have the servers of this process keep limits, as `load`, or end it: one line, and code 2."""
    try:
        load()
    except ReceiveLimitsError as error:
        sys.stderr.write(f"rezone data-node: {error}\n")
        raise SystemExit(EXIT_USAGE) from error


def load() -> bool:
    """Have the servers of this process keep limits; whether the library was built.

    Raises ReceiveLimitsError when Flight is there already, or the library is none of this pyarrow.
    """
    path = library_path()
    if not path.exists():
        return False
    if "pyarrow._flight" in sys.modules:
        raise ReceiveLimitsError("Flight was imported before the library of its limits")
    _require_same_arrow(path)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.rezone_limits_of_servers(ctypes.c_int(MESSAGE_BYTES_MAX), ctypes.c_int(CALLS_MAX))
    library.rezone_limits_of_unpacking(ctypes.c_int64(UNPACKED_BYTES_MAX))
    return True


def _require_same_arrow(path: Path) -> None:
    """Look at a library before its functions take the place of Arrow's.

    It stays where it is when pyarrow is replaced, and its classes are those of the headers it had.
    """
    try:
        version = ctypes.CDLL(str(path)).rezone_limits_version
        version.restype = ctypes.c_char_p
        found = version().decode()
    except (OSError, AttributeError) as error:  # of another machine, or older than this function
        found = f"an unknown version ({error})"
    if found != (present := importlib.metadata.version("pyarrow")):
        raise ReceiveLimitsError(
            f"{path} is for pyarrow {found}, and {present} is here: build it again "
            "(operator/native/build.sh), or remove it to serve without limits"
        )


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
