"""Whether the pyarrow of this Python heeds a library of limits: try.py LIBRARY; 0 when it does."""

import contextlib
import ctypes
import sys
from typing import Any

library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
library.rezone_limits_of_servers(1 << 20, 128)
library.rezone_limits_of_unpacking(ctypes.c_int64(1 << 10))

import pyarrow as pa  # noqa: E402 - the library is to be there before it
from pyarrow import flight  # noqa: E402

KEPT = 1
refused = []


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Reads what it is sent, and notes for what it has no memory."""

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Read all."""
        try:
            reader.read_all()
        except MemoryError as error:
            refused.append(error)


batch = pa.record_batch({"zeros": pa.array([bytes(1 << 20)])})
packed = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
with (
    Server("grpc://127.0.0.1:0") as server,
    contextlib.suppress(flight.FlightError, pa.ArrowException),
    flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
):
    sender, _ = client.do_put(flight.FlightDescriptor.for_path("x"), batch.schema, packed)
    sender.write_batch(batch)
    sender.close()
sys.exit(library.rezone_limits_state() != KEPT or not refused)
