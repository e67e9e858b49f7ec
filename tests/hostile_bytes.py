"""Bytes that were good once and were changed on purpose: what parsers of outside bytes are given.

`make test` gives each parser some of them, always the same; `.ci/run` hundreds, and `make fuzz` as
many as somebody has time for. Hypothesis keeps in `.hypothesis` what has failed on a machine; what
was a fault of ours stays with its test as an `@example`.
"""

from __future__ import annotations

import faulthandler
import os
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("REZONE_FUZZ_EXAMPLES", "100"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

SECONDS = 60
"""No bytes of this size keep a parser so long, however slow the machine: it would never end."""


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
    any_bytes = st.binary(max_size=200)
    return changed(list(samples)) | any_bytes if samples else any_bytes


class Parser(NamedTuple):
    """What reads outside bytes: good ones, and the exceptions by which it refuses all others.

    `faults` are bytes that were a fault of ours once.
    """

    read: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...]
    faults: tuple[bytes, ...] = ()

    def fuzz(self) -> None:
        """Give it changed bytes; raises what is no refusal.

        Ends the process, and says where it was, when something is read without end: who waits for a
        thread of a library cannot be interrupted.
        """

        @fuzzed
        @given(hostile(*self.samples))
        def refuse(data: bytes) -> None:
            self._take_or_refuse(data)

        for each in self.faults:
            self._take_or_refuse(each)
        refuse()

    def _take_or_refuse(self, data: bytes) -> None:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            with suppress(*self.refusals):
                self.read(data)
        finally:
            faulthandler.cancel_dump_traceback_later()


def entered(parsers: Iterable[Parser]) -> set[CodeType]:
    """Return the functions that are entered while parsers read what is good."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    for parser in parsers:
        for sample in parser.samples:
            before = sys.getprofile()
            sys.setprofile(note)
            try:
                parser.read(sample)
            finally:
                sys.setprofile(before)
    return found
