"""An executor without threads, for whatever is told to do something beside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class AtOnce(Executor):
    """Has done each job when it is given: what comes of it then does not depend on threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do the job."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as any executor does
            future.set_exception(error)
        return future
