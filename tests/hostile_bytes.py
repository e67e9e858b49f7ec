"""Bytes that were good once and were changed on purpose: what parsers of outside bytes are given.

`make test` gives each parser some of them, always the same; `.ci/run` hundreds, and `make fuzz` as
many as somebody has time for. Hypothesis keeps in `.hypothesis` what has failed on a machine; what
was a fault of ours stays with its test as an `@example`.
"""

from __future__ import annotations

import os
import struct

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("REZONE_FUZZ_EXAMPLES", "100"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def changed(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Return bytes that were good once: some set, some cut out, some put in, the end cut off."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            number = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
            data[place : place + 4] = struct.pack("<I", number)
        elif kind == 2:
            del data[place : place + draw(st.integers(1, 16))]
        elif kind == 3:
            data[place:place] = draw(st.binary(max_size=16))
        else:
            del data[place:]
    return bytes(data)


def hostile(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes of any kind, most of them near to good ones."""
    return changed(list(samples)) | st.binary(max_size=200)
