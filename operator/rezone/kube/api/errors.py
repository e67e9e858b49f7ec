"""What a request to the API server can end with.

KubeError
  UnavailableError      nothing was changed; ask again after `retry_after_seconds`
    UnknownOutcomeError   a write that may or may not have happened: the next pass asks
  MissingError          the object (or its kind) is not there
  ConflictWriteError    somebody else wrote first: read again, decide again
    ExistsError           a create found the name taken
  InvalidWriteError     the API server (or we, before it) refuses the content: never retried
    InvalidTemplateError  a template of the zone cannot be used
  ForbiddenError        the operator's rights do not cover the request: somebody must act
    UnauthenticatedError  the token is not, or no more, one of the API server's users
  ForeignObjectError    the name is taken by an object that is not ours: never touched
  UnreadableError       a stored object that this version cannot parse
"""

from typing import Any


class KubeError(Exception):
    """The root of this package's errors."""


class UnavailableError(KubeError):
    """Raised when the API server did not carry the request out; the same request may succeed."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnknownOutcomeError(UnavailableError):
    """Raised when a write was sent and its answer is missing; it may have happened."""


class MissingError(KubeError):
    """Raised when the object or its kind does not exist (404)."""


class ConflictWriteError(KubeError):
    """Raised when the object has changed since it was read (409); nothing was written."""


class ExistsError(ConflictWriteError):
    """Raised when an object of the name exists already (409 AlreadyExists)."""


class InvalidWriteError(KubeError):
    """Raised when the content is refused (400, 413, 422, or in-process); never worth a retry."""


class InvalidTemplateError(InvalidWriteError):
    """Raised when a zone's template sets what it may not, or cannot be; nothing was sent."""


class ForbiddenError(KubeError):
    """Raised when the operator may not do this (401, 403); the message says what is missing."""


class UnauthenticatedError(ForbiddenError):
    """Raised when the API server does not know who asks (401)."""


class ForeignObjectError(KubeError):
    """Raised when a name we need is held by an object of another owner.

    `going` says that this owner was one of ours with the same name: the garbage collector takes the
    object away, and nobody has to do anything.
    """

    def __init__(self, message: str, *, going: bool = False) -> None:
        super().__init__(message)
        self.going = going


class UnreadableError(KubeError):
    """Raised when a stored object does not parse; the message names the field.

    `about` is the object as far as it can be told about: with its metadata alone.
    """

    def __init__(self, message: str, *, about: Any = None) -> None:
        super().__init__(message)
        self.about = about
