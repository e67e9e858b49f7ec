"""Bytes that were good once and were changed on purpose: what parsers of outside bytes are given.

`make test` gives each parser a hundred of them, in CI always the same. `make fuzz` gives as many as
somebody has time for, new ones each time. Hypothesis keeps in `.hypothesis` what
has failed on a machine; what was a fault of ours stays with its test as one of the `faults`.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import secrets
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from types import CodeType, FrameType
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("REZONE_FUZZ_EXAMPLES", "100"))
IN_CI = bool(os.environ.get("CI"))
"""A change is judged by the same bytes each time; `make fuzz` looks for new ones."""

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100 or IN_CI,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

SECONDS_OF_MANY = EXAMPLES / 2500 if EXAMPLES > 100 else 0.0
"""For how long each parser is given bytes that nobody looks for a smaller form of: those are quick.

0.2 s in CI, 40 s by `make fuzz`.
"""

SECONDS = 60
"""No bytes of this size keep a parser so long, however slow the machine: it would never end."""


NUMBERS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def changed(random: Random, samples: Sequence[bytes]) -> bytes:
    """Return bytes that were good once: some set, some cut out, some put in, the end cut off."""
    data = bytearray(random.choice(samples))
    for _ in range(random.randint(1, 4)):
        place = random.randint(0, len(data))
        kind = random.randrange(5)
        if kind == 0:
            data[place : place + 1] = random.randbytes(1)
        elif kind == 1:
            data[place : place + 4] = struct.pack("<I", random.choice(NUMBERS))
        elif kind == 2:
            del data[place : place + random.randint(1, 16)]
        elif kind == 3:
            data[place:place] = random.randbytes(random.randint(0, 16))
        else:
            del data[place:]
    return bytes(data)


def hostile(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes of any kind, most of them near to good ones."""
    any_bytes = st.binary(max_size=200)
    if not samples:
        return any_bytes
    return st.builds(changed, st.randoms(use_true_random=False), st.just(samples)) | any_bytes


@functools.cache
def seed() -> int:
    """Return `REZONE_FUZZ_SEED`, or a new one, in CI always the same; it is told."""
    given = os.environ.get("REZONE_FUZZ_SEED") or ("1" if IN_CI else "")
    chosen = int(given or secrets.randbits(32))
    sys.stderr.write(f"REZONE_FUZZ_SEED={chosen}\n")
    return chosen


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End the process, and say where it was, when what is within takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


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
            with ending_after(SECONDS):
                self._take_or_refuse(data)

        with ending_after(SECONDS):
            for each in self.faults:
                self._take_or_refuse(each)
        refuse()
        if self.samples and SECONDS_OF_MANY:
            self._give_many()

    def _give_many(self) -> None:
        """Give it changed bytes for `SECONDS_OF_MANY`, by the seed: many times as many as above.

        Raises what is no refusal, with the bytes. A crash comes again by its seed.
        """
        random = Random(seed())
        ends = time.monotonic() + SECONDS_OF_MANY
        with ending_after(SECONDS_OF_MANY + SECONDS):
            while time.monotonic() < ends:
                data = changed(random, self.samples)
                try:
                    self._take_or_refuse(data)
                except Exception as error:
                    error.add_note(f"given {data!r}")
                    raise

    def _take_or_refuse(self, data: bytes) -> None:
        with suppress(*self.refusals):
            self.read(data)


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
