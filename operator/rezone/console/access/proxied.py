"""The console in a cluster, behind a proxy that signs people in: each request is its user's own.

The proxy passes the user's bearer token on (`Authorization`), and the console sends it to the API
server with whatever it asks for that request. So the API server decides who that is and what they
may do, a header that somebody has made up opens nothing, and the console itself has no rights: a
request without a token gets no answer and reaches nobody.

The proxy is in the same pod: the console listens on the pod's loopback alone, where tokens need no
TLS. What other sites can make a browser send is refused as by `guard`, against the one name by
which people open the console.
"""

import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rezone.console.access.guard import (
    HttpGuard,
    Refusal,
    answer_refused,
    bare_refusal,
    site_refusal,
    write_refusal,
)

TOKEN_LENGTH_MAX: Final = 16_384
REQUESTS_EACH_MAX: Final = 24
"""Requests of one token under way: live pages, and a few besides; others find room then."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
_ORIGIN: Final = re.compile(
    r"https://[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?(:[1-9][0-9]{0,4})?"
)
_caller: ContextVar[str] = ContextVar("caller")


class NobodyError(RuntimeError):
    """Raised when something is asked of the API server outside of a user's request."""


def caller_token() -> str:
    """Return the token of the user whose request is answered. Raises NobodyError."""
    try:
        return _caller.get()
    except LookupError:
        raise NobodyError("there is no user whose request this is") from None


@dataclass(frozen=True)
class Proxied:
    """By which name people open the console, such as https://rezone.example.com.

    `origin` becomes what browsers send: in small letters, and without the port 443. Raises
    ValueError for what is no origin. Tokens in the clear would be everybody's: only https.
    """

    origin: str
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        """Check the origin, and write it as browsers do."""
        if not _ORIGIN.fullmatch(self.origin):
            raise ValueError(f"{self.origin!r} is no origin such as https://rezone.example.com")
        object.__setattr__(self, "origin", self.origin.lower().removesuffix(":443"))

    @property
    def host(self) -> str:
        """The Host of requests: the name, with the port where that is not 443."""
        return self.origin.removeprefix("https://")

    def form_token(self) -> str:
        """Return what the forms of the user have, whose request is answered."""
        return self._digest("form")

    def user(self) -> str:
        """Return what stands for the token of the request in counts: the token is not kept."""
        return self._digest("user")

    def _digest(self, use: str) -> str:
        told = f"{use} {caller_token()}".encode()
        return hmac.new(self._key, told, hashlib.sha256).hexdigest()


def token_of(headers: Headers) -> str | None:
    """Return the bearer token of a request, None without exactly one that can be one."""
    given = headers.getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(" ")
    plain = len(token) <= TOKEN_LENGTH_MAX and _TOKEN.fullmatch(token) is not None
    return token if scheme.lower() == "bearer" and plain else None


class ProxiedGuard(HttpGuard):
    """Lets through what has a token and comes from the console's own pages."""

    def __init__(self, app: ASGIApp, *, proxied: Proxied) -> None:
        super().__init__(app)
        self._proxied = proxied
        self._under_way: Counter[str] = Counter()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        token = token_of(headers)
        refused = self._refusal(scope, headers, token)
        if refused is not None or token is None:
            await answer_refused(refused or _NOBODY)(scope, receive, send)
            return
        reset = _caller.set(token)
        try:
            await self._answer_one(scope, receive, send)
        finally:
            _caller.reset(reset)

    async def _answer_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a user's request, unless too many of theirs are not answered yet."""
        user = self._proxied.user()
        if self._under_way[user] >= REQUESTS_EACH_MAX:
            await answer_refused(_TOO_MANY)(scope, receive, send)
            return
        self._under_way[user] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[user] -= 1
            if not self._under_way[user]:
                # Users come and go, and their tokens too.
                del self._under_way[user]

    def _refusal(
        self, scope: Scope, headers: Mapping[str, str], token: str | None
    ) -> Refusal | None:
        if headers.get("host", "").lower() != self._proxied.host:
            return Refusal(
                HTTPStatus.MISDIRECTED_REQUEST, f"this console answers to {self._proxied.host}"
            )
        if token is None:
            return _NOBODY
        changes, refused = bare_refusal(scope)
        refused = refused or site_refusal(headers, navigation=not changes)
        if refused is None and changes:
            refused = write_refusal(headers, self._proxied.origin)
        return refused


_NOBODY: Final = Refusal(
    HTTPStatus.UNAUTHORIZED, "the proxy before this console has passed no token of a user on"
)
_TOO_MANY: Final = Refusal(
    HTTPStatus.TOO_MANY_REQUESTS, "too many requests of yours are under way; close some pages"
)
