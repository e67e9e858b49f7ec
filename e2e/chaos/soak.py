"""A soak: storms one after the other for as long as is asked for, each from a whole zone.

Between storms comes what a storm cannot have, because it must be prepared for: a full disk, an etcd
that is put back from a copy. Everything follows from the seed. A storm also re-shards, moves
leaders by hand, and cancels rebalances.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from e2e.chaos.cases import CASES, SOAK_CHANGES, Case, in_storms
from e2e.chaos.run import Run
from e2e.kind.command import say

STORM_SECONDS = 240.0
SHORTEST_STORM_SECONDS = 30.0


class Round(NamedTuple):
    """One round: a fault that is prepared for, in every second one, and a storm."""

    prepared: Case | None
    storm_seconds: float
    seed: str


def round_of(seed: int, number: int, left_seconds: float) -> Round | None:
    """Return the round of this number, from 1; None when there is no time for a storm."""
    prepared = sorted(name for name, case in CASES.items() if not case.storms)
    # One after the other, so that an hour has each of them.
    random.Random(f"{seed}:soak").shuffle(prepared)
    turn = number // 2 % len(prepared)
    chosen = CASES[prepared[turn]] if number % 2 == 0 else None
    left = left_seconds - (chosen.seconds if chosen is not None else 0.0)
    if left < SHORTEST_STORM_SECONDS:
        return None
    return Round(chosen, min(left, STORM_SECONDS), f"{seed}:soak:{number}:storm")


def soak_cases() -> dict[str, Case]:
    """Return what the storms of a soak are made of."""
    return {**in_storms(), **SOAK_CHANGES}


async def soak(run: Run, seed: int, seconds: float) -> None:
    """Play rounds until the time is over; healing counts, and may make it longer by one round."""
    end = time.monotonic() + seconds
    number = 1
    while (played := round_of(seed, number, end - time.monotonic())) is not None:
        say(f"round {number}, {(end - time.monotonic()) / 60:.0f} min left")
        if played.prepared is not None:
            await run.alone(played.prepared, f" in round {number}")
        rng = random.Random(played.seed)
        await run.storm(played.storm_seconds, soak_cases(), rng, f"storm {number}")
        number += 1
