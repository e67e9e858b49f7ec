"""Who may ask the console, and who is refused: requests straight to the application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from rezone.console.access.guard import HEADERS, Guard, Session, cookie_name, host_refusal

SESSION = Session(key="key", cookie="cookie", form_token="token")  # noqa: S106 - of a test
COOKIE = {"cookie": f"{cookie_name(8790)}=cookie"}
HOST = {"host": "127.0.0.1:8790"}
OURS = {**HOST, **COOKIE, "sec-fetch-site": "same-origin"}
FORM = {
    **OURS,
    "origin": "http://127.0.0.1:8790",
    "content-type": "application/x-www-form-urlencoded",
}


async def asked(
    headers: dict[str, str], path: str = "/", *, method: str = "GET", kind: str = "http"
) -> list[Message]:
    """Ask the guard, and return what it sends; behind it everything is answered."""
    guard = Guard(PlainTextResponse("within"), session=SESSION, cookie=cookie_name(8790))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await guard(scope, receive, send)
    return sent


async def status(headers: dict[str, str], path: str = "/", *, method: str = "GET") -> int:
    """Return the status of an answer."""
    return int((await asked(headers, path, method=method))[0]["status"])


def without(headers: dict[str, str], *names: str) -> dict[str, str]:
    """Return headers without some."""
    return {name: value for name, value in headers.items() if name not in names}


async def test_the_session_s_browser_is_answered() -> None:
    """The guard would refuse everybody."""
    assert await status(OURS) == 200
    assert await status(FORM, method="POST") == 200
    assert await status({**FORM, "host": "localhost:1", "origin": "http://localhost:1"}) == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8790", "127.0.0.1.evil.example", "localhost.evil.example:1"],
)
async def test_a_foreign_name_of_this_machine_is_refused(host: str) -> None:
    """A page of a name that resolves to 127.0.0.1 (DNS rebinding) would read all pages."""
    assert await status({**OURS, "host": host}) == 421
    assert await status({**OURS, "host": host}, "/login") == 421
    assert await status({**OURS, "host": host}, "/static/console.js") == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:80", "[::1]:8790", "[::1]"])
def test_the_names_of_loopback_are_ours(host: str) -> None:
    """Who reaches the console by another usual name would be refused."""
    assert host_refusal(host) is None


@pytest.mark.parametrize("cookie", ["", "cookie", "rezone-console-8790=other", "x=cookie"])
async def test_without_the_session_nothing_is_shown(cookie: str) -> None:
    """Other users of the machine, who reach the port too, would act with the user's rights."""
    assert await status({**OURS, "cookie": cookie}) == 401
    assert await status({**FORM, "cookie": cookie}, method="POST") == 401
    assert await status(HOST, "/login") == 200


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "https://127.0.0.1:8790", "http://127.0.0.1:9999"]
)
async def test_a_form_of_another_site_is_refused(origin: str) -> None:
    """A page elsewhere, or of another port of this machine, would approve plans."""
    assert await status({**FORM, "origin": origin}, method="POST") == 403
    assert await status(without(FORM, "origin"), method="POST") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_reads_nothing(site: str) -> None:
    """Another site could tell by an image's size or a frame what the console shows."""
    assert await status({**OURS, "sec-fetch-site": site}) == 403
    assert await status({**FORM, "sec-fetch-site": site}, method="POST") == 403


async def test_only_forms_and_plain_methods_are_taken() -> None:
    """Scripts elsewhere send JSON and other methods without the browser asking first."""
    assert await status({**FORM, "content-type": "text/plain"}, method="POST") == 415
    assert await status(FORM, method="DELETE") == 405
    assert await status(OURS, "/" + "x" * 3000) == 414
    assert await asked(OURS, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("headers", [OURS, {}], ids=["answered", "refused"])
async def test_every_answer_forbids_frames_foreign_scripts_and_storing(
    headers: dict[str, str],
) -> None:
    """A page elsewhere could lay the approve button under another one (clickjacking)."""
    sent: Iterable[tuple[bytes, bytes]] = (await asked(headers))[0]["headers"]
    found = {name.decode(): value.decode() for name, value in sent}
    assert HEADERS.items() <= found.items()
    assert "frame-ancestors 'none'" in found["content-security-policy"]
    assert "unsafe" not in found["content-security-policy"]


def test_sessions_differ() -> None:
    """The link of an earlier run would open a later one."""
    first, second = Session.fresh(), Session.fresh()
    secrets = {first.key, first.cookie, first.form_token, second.key, second.cookie}
    assert len(secrets) == 5
    assert min(map(len, secrets)) >= 40
