"""The errors of the local cluster.

LocalError
  +-- MissingToolError    something to install first; the message says how
  +-- StartError          a process of the cluster did not come up; the message ends with its log
  +-- LaunchError         a Spark driver was refused, and would be again
  +-- ApiError            the API server refused; carries its status code and reason
        +-- UnreachableError  it gave no answer
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class LocalError(Exception):
    """Base of what this package raises on purpose; the message is for the person at the shell."""


class MissingToolError(LocalError):
    """A prerequisite is not on this machine."""


class StartError(LocalError):
    """A process of the cluster ended or was not ready within its deadline."""


class LaunchError(LocalError):
    """A Spark driver cannot be started as its application asks; the message says why."""


class ApiError(LocalError):
    """The API server answered a request with a failure."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether the object does not exist (any more)."""
        return self.code == 404  # noqa: PLR2004 - HTTP's own number

    @property
    def conflict(self) -> bool:
        """Whether it exists already or another version or uid of it does."""
        return self.code == 409  # noqa: PLR2004 - HTTP's own number


class UnreachableError(ApiError):
    """The API server gave no answer; a write may have happened."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(0, "Unreachable", f"the API server at {server} does not answer: {why}")

    def __str__(self) -> str:
        """Return the message alone: there was no answer with a code."""
        return self.message


@contextlib.contextmanager
def told_in_a_line() -> Iterator[None]:
    """End this process with an error's message, where a traceback would tell no more."""
    try:
        yield
    except LocalError as error:
        sys.exit(str(error))
