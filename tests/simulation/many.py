"""Many seeds of all storms, on all processors: `make seeds SEEDS=1000`.

A seed is a run of its own in one process of several, so neither what ran before it nor what runs
beside it changes what it does. A failing one is told at once, with how to repeat it alone; at
the end stands how many seeds of each storm a processor does in a minute, and how often the storm
has made each fault. A storm fails, too, when many seeds have not reached what it is for.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import structlog

from simulation import (
    coverage,
    test_restored,
    test_shared_appends,
    test_shared_calls,
    test_transaction_storms,
)
from simulation.clients import conditional, producing
from simulation.clients.following import Followed
from simulation.clients.following_copies import FollowedCopies
from simulation.loop import VirtualLoop
from simulation.scenarios import cuts, deletions, maintained, runs, slow_disks
from simulation.storms import overwriting
from simulation.storms.closed_times import ClosedTimes
from simulation.storms.copy_storm import CopyStorm
from simulation.storms.cut_over import CutOver
from simulation.storms.data_plane import DataPlane
from simulation.storms.failing_disks import FailingDisks
from simulation.storms.half_open import HalfOpen
from simulation.storms.indexed import Indexed
from simulation.storms.wrong_clocks import WrongClocks
from simulation.test_torn_logs import TornLogs

Counts = collections.Counter[str]


def _counted(made: DataPlane) -> Counts:
    made.run()
    return made.counts


STORMS: dict[str, Callable[[int], Counts]] = {
    "test_storms": lambda seed: runs.storm(seed).counts,
    "test_crash_matrix": lambda seed: runs.pair(seed).counts,
    "test_transaction_storms": test_transaction_storms.storm,
    "test_change_feed": lambda seed: _counted((Followed, FollowedCopies)[seed % 2](seed)),
    "test_closed_times": lambda seed: _counted(ClosedTimes(seed)),
    "test_conditional_storms": conditional.storm,
    "test_copy_storms": lambda seed: _counted(CopyStorm(seed)),
    "test_cut_over": lambda seed: _counted(CutOver(seed)),
    "test_cuts": cuts.storm,
    "test_deletions": lambda seed: deletions.storm(seed).counts,
    "test_failing_disks": lambda seed: _counted(FailingDisks(seed)),
    "test_half_open": lambda seed: _counted(HalfOpen(seed)),
    "test_indexed": lambda seed: _counted(Indexed(seed)),
    "test_maintenance": maintained.storm,
    "test_overwrite_storms": overwriting.storm,
    "test_producer_storms": producing.storm,
    "test_restored": lambda seed: test_restored.went_back(seed).counts,
    "test_shared_appends": test_shared_appends.storm,
    "test_shared_calls": test_shared_calls.storm,
    "test_slow_disks": slow_disks.storm,
    "test_torn_logs": lambda seed: _counted(TornLogs(seed)),
    "test_wrong_clocks": lambda seed: _counted(WrongClocks(seed)),
}
"""What a seed is run by, under the name of the test module that runs it alone."""

SHARES: Mapping[str, float] = {
    "test_indexed": 1 / 2,  # like `test_torn_logs`
    "test_torn_logs": 1 / 2,  # like `test_indexed`
    "test_change_feed": 1 / 2,  # 1 s a seed; `test_cut_over` with somebody who follows
    "test_conditional_storms": 1 / 2,  # 2 s a seed; like `test_producer_storms`
    "test_cuts": 1 / 2,  # 2.5 s a seed; few choices: 18 kinds of cuts
    "test_deletions": 1 / 2,  # 2 s a seed
    "test_failing_disks": 1 / 2,  # like `test_slow_disks`
    "test_slow_disks": 1 / 2,  # like `test_failing_disks`
    "test_maintenance": 1 / 2,  # 1 s a seed; one scenario
    "test_overwrite_storms": 1 / 5,  # 3 to 15 s a seed, the most of all
    "test_producer_storms": 1 / 2,  # 1 s a seed; the storms of copies and cut-overs have the rest
    "test_restored": 1 / 2,  # 1 s a seed
    "test_shared_appends": 1 / 2,  # those of `test_producer_storms`, whose writes wait for jobs
    "test_shared_calls": 1 / 2,  # 5 s a seed
    "test_transaction_storms": 1 / 2,  # 2 to 5 s a seed
}
"""The part of the seeds that a storm has when all storms are run, and why not all of them."""

PROGRESS_SEEDS = 200

SEED_SECONDS_MAX = 600
"""How long a seed may take, by the clock: a hundred times what one does on a loaded machine."""


class Outcome(NamedTuple):
    """What came of a seed, in so many seconds of a processor; `error` is empty for nothing.

    `simulated_seconds` is how much time has passed in it.
    """

    storm: str
    seed: int
    seconds: float
    error: str = ""
    counts: Counts = collections.Counter()  # noqa: RUF012 - nobody changes it
    simulated_seconds: float = 0.0


def run(storm: str, seed: int, storms: Mapping[str, Callable[[int], Counts]] = STORMS) -> Outcome:
    """Run one seed; whatever it raises is its outcome."""
    before, began, error, counts = time.process_time(), VirtualLoop.passed_seconds, "", Counts()
    try:
        counts = storms[storm](seed)
    except Exception:  # noqa: BLE001 - that is what the seed has found
        error = traceback.format_exc()
    seconds, simulated = time.process_time() - before, VirtualLoop.passed_seconds - began
    return Outcome(storm, seed, seconds, error, counts, simulated)


def run_limited(storm: str, seed: int) -> Outcome:
    """Run one seed, in a process that `_begin` has begun; one that hangs says where."""
    signal.alarm(SEED_SECONDS_MAX)
    try:
        return run(storm, seed)
    finally:
        signal.alarm(0)


def failure(outcome: Outcome) -> str:
    """Return what is told of a seed that has failed."""
    return (
        f"{outcome.error}FAILED {outcome.storm}, seed {outcome.seed}; alone:\n"
        f"  REZONE_SIMULATION_SEED={outcome.seed} .venv/bin/python -m pytest "
        f"tests/simulation/{outcome.storm}.py"
    )


def by_storm(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes of each storm, in the order of their names."""
    found: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.storm):
        found[outcome.storm].append(outcome)
    return found


def rates(storms: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return a table: how many seeds there were of each storm, and what one costs."""
    rows = [f"{'':<24} {'seeds':>7} {'failed':>7} {'ms each':>8} {'seeds a minute':>15}"]
    for storm, seeds in storms.items():
        each = sum(outcome.seconds for outcome in seeds) / len(seeds)
        failed = sum(bool(outcome.error) for outcome in seeds)
        rows.append(
            f"{storm:<24} {len(seeds):>7} {failed:>7} {each * 1000:>8.0f} {60 / each:>15.0f}"
        )
    return rows


def _counts(seeds: Iterable[Outcome]) -> dict[str, int]:
    found = Counts()
    for outcome in seeds:
        found.update(outcome.counts)  # a sum would leave out what never was
    return dict(sorted(found.items()))


def reached(storms: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return a line for each storm: how often what has happened in it, 0 for what never has."""
    return [
        f"{storm}: {', '.join(f'{what} {count}' for what, count in _counts(seeds).items())}"
        for storm, seeds in storms.items()
    ]


def report(storms: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, Any]]:
    """Return for each storm what `make evidence` reads, as JSON has it."""
    return {
        storm: {
            "seeds": len(seeds),
            "failed": sum(bool(outcome.error) for outcome in seeds),
            "simulated_seconds": sum(outcome.simulated_seconds for outcome in seeds),
            "counts": _counts(seeds),
        }
        for storm, seeds in storms.items()
    }


def chosen(storms: Sequence[str], first: int, count: int) -> list[tuple[str, int]]:
    """Return the seeds to run of these storms; of all storms, as many as `SHARES` leaves."""
    shares = SHARES if set(storms) == set(STORMS) else {}
    return [
        (storm, first + number)
        for number in range(count)
        for storm in storms
        if number < max(1, round(count * shares.get(storm, 1)))
    ]


def unreached(storms: Mapping[str, Sequence[Outcome]]) -> dict[str, list[str]]:
    """Return what storms of many seeds are for, and none of their seeds has reached."""
    missed = {
        storm: coverage.missing(storm, _counts(seeds))
        for storm, seeds in storms.items()
        if len(seeds) >= coverage.SEEDS_MIN
    }
    return {storm: events for storm, events in missed.items() if events}


def more(storms: Mapping[str, Sequence[Outcome]], first: int) -> list[tuple[str, int]]:
    """Return the further seeds, from `first` on, of storms that have missed what they are for."""
    return [
        (storm, first + number)
        for storm in unreached(storms)
        for number in range(coverage.MORE_SEEDS)
    ]


def _run_all(pool: ProcessPoolExecutor, seeds: Sequence[tuple[str, int]]) -> Iterator[Outcome]:
    """Yield the outcome of each seed as it comes, and tell of failures and of progress."""
    futures: list[Future[Outcome]] = [pool.submit(run_limited, *each) for each in seeds]
    for number, future in enumerate(as_completed(futures), start=1):
        outcome = future.result()
        if outcome.error:
            print(failure(outcome), flush=True)  # noqa: T201 - a command
        if number % PROGRESS_SEEDS == 0:
            print(f"{number} of {len(futures)} seeds", flush=True)  # noqa: T201
        yield outcome


def _begin() -> None:
    """Write no logs: nobody reads those of seeds that pass, and others are repeated alone."""
    # Who is interrupted is the process that waits: it has this one end with its seed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _hangs)
    gc.freeze()  # modules stay: no collection need look at them
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _hangs(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"the seed has not ended within {SEED_SECONDS_MAX} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds of storms; the exit code says whether all have passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many of each, or its share")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--storms", nargs="+", choices=sorted(STORMS), default=sorted(STORMS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--report", type=Path, help="where the results go as JSON")
    given = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    # Each begins again: a fork would have the locks of this one's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, context, _begin) as pool:
        try:
            outcomes.extend(_run_all(pool, chosen(given.storms, given.first, given.seeds)))
            missed = more(by_storm(outcomes), given.first + given.seeds)
            outcomes.extend(_run_all(pool, missed))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    storms = by_storm(outcomes)
    print(*reached(storms), *rates(storms), sep="\n")  # noqa: T201 - a command
    if given.report is not None:
        given.report.write_text(json.dumps(report(storms)))
    never = unreached(storms)
    for storm, events in never.items():
        print(f"FAILED {storm}: its seeds never reached {', '.join(events)}")  # noqa: T201
    return int(bool(never) or any(outcome.error for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
