"""What is done once in each Python worker of Spark: it has one task after another."""

import functools
import gc
import sys

_DAEMON = "pyspark.daemon"
"""What PySpark's workers are forked from."""


def settle_worker() -> None:
    """Keep what a worker has imported out of all later garbage collections.

    PySpark makes a full one after each task and each planning of a query. It looked at some 75,000
    objects of modules, which took longer than all else that a task of few rows does. In no other
    process: what is a driver's may become garbage. Again where a task has imported more, as pyarrow
    does with pandas when it needs that.
    """
    _settle(len(sys.modules))


@functools.cache
def _settle(_modules: int) -> None:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        gc.collect()
        gc.freeze()
