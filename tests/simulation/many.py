"""Many seeds of all storms, on all processors: `make seeds SEEDS=1000`.

A seed is a run of its own in one process of several, so neither what ran before it nor what runs
beside it changes what it does. A failing one is told at once, with how to repeat it alone; at
the end stands how many seeds of each storm a processor does in a minute.
"""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from types import FrameType
from typing import NamedTuple

import structlog

from simulation import runs, test_transaction_storms
from simulation.closed_times import ClosedTimes
from simulation.copy_storm import CopyStorm
from simulation.cut_over import CutOver
from simulation.indexed import Indexed
from simulation.test_torn_logs import TornLogs

STORMS: dict[str, Callable[[int], object]] = {
    "test_storms": runs.storm,
    "test_crash_matrix": runs.pair,
    "test_transaction_storms": test_transaction_storms.storm,
    "test_closed_times": lambda seed: ClosedTimes(seed).run(),
    "test_copy_storms": lambda seed: CopyStorm(seed).run(),
    "test_cut_over": lambda seed: CutOver(seed).run(),
    "test_indexed": lambda seed: Indexed(seed).run(),
    "test_torn_logs": lambda seed: TornLogs(seed).run(),
}
"""What a seed is run by, under the name of the test module that runs it alone."""


PROGRESS_SEEDS = 200

SEED_SECONDS_MAX = 600
"""How long a seed may take, by the clock: a hundred times what one does on a loaded machine."""


class Outcome(NamedTuple):
    """What came of a seed, in so many seconds of a processor; `error` is empty for nothing."""

    storm: str
    seed: int
    seconds: float
    error: str = ""


def run(storm: str, seed: int, storms: Mapping[str, Callable[[int], object]] = STORMS) -> Outcome:
    """Run one seed; whatever it raises is its outcome."""
    before, error = time.process_time(), ""
    try:
        storms[storm](seed)
    except Exception:  # noqa: BLE001 - that is what the seed has found
        error = traceback.format_exc()
    return Outcome(storm, seed, time.process_time() - before, error)


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


def rates(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a table: how many seeds there were of each storm, and what one costs."""
    by_storm: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        by_storm[outcome.storm].append(outcome)
    rows = [f"{'':<24} {'seeds':>7} {'failed':>7} {'ms each':>8} {'seeds a minute':>15}"]
    for storm, seeds in sorted(by_storm.items()):
        each = sum(outcome.seconds for outcome in seeds) / len(seeds)
        failed = sum(bool(outcome.error) for outcome in seeds)
        rows.append(
            f"{storm:<24} {len(seeds):>7} {failed:>7} {each * 1000:>8.0f} {60 / each:>15.0f}"
        )
    return rows


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
    parser.add_argument("--seeds", type=int, default=1000, help="how many of each storm")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--storms", nargs="+", choices=sorted(STORMS), default=sorted(STORMS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    # Each begins anew: a fork would have the locks of this one's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, context, _begin) as pool:
        futures: list[Future[Outcome]] = [
            pool.submit(run_limited, storm, seed)
            for seed in range(given.first, given.first + given.seeds)
            for storm in given.storms
        ]
        try:
            for future in as_completed(futures):
                outcomes.append(future.result())
                if outcomes[-1].error:
                    print(failure(outcomes[-1]), flush=True)  # noqa: T201 - a command
                if len(outcomes) % PROGRESS_SEEDS == 0:
                    print(f"{len(outcomes)} of {len(futures)} seeds", flush=True)  # noqa: T201
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    print(*rates(outcomes), sep="\n")  # noqa: T201 - a command
    return int(any(outcome.error for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
