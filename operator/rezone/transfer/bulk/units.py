"""Runs the units of a bulk job: each is a task of one Spark job, and may run more than once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rezone.transfer.bulk.progress import Counted, Phase, Tell, told

U = TypeVar("U")
R = TypeVar("R")

Task = Callable[[U], tuple[R, Counted]]
"""Does a unit; safe to repeat and to run twice at a time."""


class Runner(Protocol):
    """Does all units of a phase and returns what each has given, in their order."""

    def __call__(self, phase: Phase, units: Sequence[U], task: Task[U, R]) -> list[R]:
        """Raise what a unit has failed with at its last attempt."""


class SparkRunner:
    """Runs units on executors, and tells how far they are."""

    def __init__(self, context: Any, tells: Sequence[Tell]) -> None:
        self._context = context
        self._tells = tells

    def __call__(self, phase: Phase, units: Sequence[U], task: Task[U, R]) -> list[R]:
        """See Runner."""
        from pyspark import AccumulatorParam  # noqa: PLC0415 - a wrong argument needs no Spark

        class Sum(AccumulatorParam):  # type: ignore[misc]
            def zero(self, value: Counted) -> Counted:
                del value
                return Counted()

            def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802 - Spark's
                return value1.plus(value2)

        if not units:
            return []
        counted = self._context.accumulator(Counted(), Sum())

        def run(mine: Iterator[U]) -> Iterator[R]:
            for each in mine:
                result, done = task(each)
                counted.add(done)
                yield result

        with told(phase, lambda: counted.value, self._tells):
            found: list[R] = (
                self._context.parallelize(units, len(units)).mapPartitions(run).collect()
            )
        return found
