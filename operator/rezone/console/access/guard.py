"""Who may ask the console for anything: the first thing that each request meets.

The console acts with its user's rights on a port that all of the machine, and every page in the
user's browser, can reach. So a request needs
  - a Host that is this machine's loopback: else a foreign name that resolves to it (DNS rebinding)
    would make the console a part of that name's origin;
  - the session's cookie, which only who has the link with the key gets: other users of the machine
    have not got it, and other sites' requests do not carry it (SameSite=Strict);
  - for what changes anything, an Origin that is the console's own, and the form's token.
Answers may be framed by nobody, run no script but the console's own, and are stored nowhere.
"""

import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rezone.report.page import STYLE_SOURCE

KEY_BYTES: Final = 32
LOGIN: Final = "/login"
STATIC: Final = "/static/"
ADDRESS_LENGTH_MAX: Final = 2048
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_READS: Final = frozenset({"GET", "HEAD"})
_FORM: Final = "application/x-www-form-urlencoded"

HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {STYLE_SOURCE}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # "no-referrer" would take the Origin from the console's own forms, too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Session:
    """The secrets of one run of the console: of the link, of the cookie, and of forms."""

    key: str
    cookie: str
    form_token: str

    @classmethod
    def fresh(cls) -> "Session":
        """Return a session that nobody knows."""
        return cls(*(secrets.token_urlsafe(KEY_BYTES) for _ in range(3)))


@dataclass(frozen=True)
class Refusal:
    """Why a request gets no answer."""

    status: HTTPStatus
    why: str


def same(given: str, wanted: str) -> bool:
    """Return whether two secrets are equal, in a time that does not tell how equal they are."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def cookie_name(port: int) -> str:
    """Return the cookie's name: consoles on several ports share a browser's cookies."""
    return f"rezone-console-{port}"


def host_refusal(host: str) -> Refusal | None:
    """Return why a Host is not ours, None when it is loopback by its usual names."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or host.endswith("]"):
        name = host
    if name.lower() in _LOOPBACK:
        return None
    why = "this console answers to 127.0.0.1, localhost and [::1] alone"
    return Refusal(HTTPStatus.MISDIRECTED_REQUEST, why)


def write_refusal(headers: Mapping[str, str], origin: str) -> Refusal | None:
    """Return why a request that changes something is not from one of our own pages."""
    if headers.get("origin") != origin:
        return Refusal(HTTPStatus.FORBIDDEN, "the request comes from another site")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only forms are taken")
    return None


def site_refusal(headers: Mapping[str, str], *, navigation: bool = False) -> Refusal | None:
    """Return why a browser says that another site asks; browsers that say nothing may go on.

    `navigation`: a link elsewhere may open a page, as that of whoever has signed the user in.
    """
    if headers.get("sec-fetch-site", "none") in {"same-origin", "none"}:
        return None
    if navigation and headers.get("sec-fetch-mode") == "navigate":
        return None
    return Refusal(HTTPStatus.FORBIDDEN, "the request comes from another site")


class HttpGuard(ABC):
    """Lets HTTP alone through, and puts headers on all answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(scope, receive, send_with_headers(send))

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or refuse it."""


class Guard(HttpGuard):
    """Lets requests of the session through."""

    def __init__(self, app: ASGIApp, *, session: Session, cookie: str) -> None:
        super().__init__(app)
        self._session = session
        self._cookie = cookie

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope)
        answer = self._app if refused is None else answer_refused(refused)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        host, method, path = headers.get("host", ""), str(scope["method"]), str(scope["path"])
        refused = host_refusal(host)
        changes, bare = bare_refusal(scope)
        if refused is not None or bare is not None:
            return bare or refused
        if method in _READS and (path == LOGIN or path.startswith(STATIC)):
            return None
        refused = site_refusal(headers)
        if refused is None and changes:
            refused = write_refusal(headers, f"http://{host}")
        return refused or self._session_refusal(headers)

    def _session_refusal(self, headers: Headers) -> Refusal | None:
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        given = [value for name, _, value in pairs if name == self._cookie]
        if any(same(value, self._session.cookie) for value in given):
            return None
        why = "open the link that `rezone console` has printed"
        return Refusal(HTTPStatus.UNAUTHORIZED, why)


def bare_refusal(scope: Scope) -> tuple[bool, Refusal | None]:
    """Return whether a request changes anything, and why its address or method will not do."""
    method = str(scope["method"])
    changes = method not in _READS
    if len(str(scope["path"])) + len(scope["query_string"]) > ADDRESS_LENGTH_MAX:
        return changes, Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
    if changes and method != "POST":
        why = "only GET, HEAD and POST are answered"
        return changes, Refusal(HTTPStatus.METHOD_NOT_ALLOWED, why)
    return changes, None


def send_with_headers(send: Send) -> Send:
    """Return what sends an answer with the headers that all have."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


def answer_refused(refused: Refusal) -> ASGIApp:
    """Return the answer to a request that is refused."""
    return PlainTextResponse(f"{refused.why}\n", refused.status)
