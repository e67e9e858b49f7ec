"""The errors of the local cluster.

LocalError
  +-- MissingToolError    something to install first; the message says how
  +-- StartError          a process of the cluster did not come up; the message ends with its log
  +-- LaunchError         a Spark driver was refused, and would be again
  +-- ApiError            the API server refused; carries its status code and reason
"""

from __future__ import annotations


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

    @property
    def not_found(self) -> bool:
        """Whether the object does not exist (any more)."""
        return self.code == 404  # noqa: PLR2004 - HTTP's own number

    @property
    def conflict(self) -> bool:
        """Whether it exists already or another version or uid of it does."""
        return self.code == 409  # noqa: PLR2004 - HTTP's own number
