"""Another site in the same real browser: it can neither frame the console nor forge its forms."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import Browser, open_browser
from console_process import ConsoleProcess

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

PAGE = """<!DOCTYPE html><title>hostile</title><body>
<iframe id="frame" src="{console}/"></iframe>
<form id="form" method="post" action="{console}/tasks/default/orders-7/approve">
<input name="token" value="guessed"><input name="plan" value="p"><input name="uid" value="u">
</form>
<script>
window.read = fetch("{console}/", {{credentials: "include"}}).then(
  () => "read", () => "refused");
</script>
"""


@pytest.fixture
def console(crds: Path) -> Iterator[ConsoleProcess]:
    """Run the console."""
    with ConsoleProcess(crds) as process:
        yield process


@pytest.fixture
def hostile(console: ConsoleProcess) -> Iterator[str]:
    """Serve a page of another origin on this machine; return its address."""
    body = PAGE.format(console=console.address).encode()

    class Handler(BaseHTTPRequestHandler):
        """Answers everything with the page."""

        def do_GET(self) -> None:
            """Answer."""
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="Thread-hostile")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.proves("OB-03")
def test_another_site_can_neither_frame_read_nor_forge(
    console: ConsoleProcess, hostile: str, tmp_path: Path
) -> None:
    """A page that the user has open beside the console would approve plans with the user's rights.

    It is of another port of the same host, so the browser sends the cookie along: the strongest
    position that another site can have.
    """
    with open_browser(tmp_path) as browser:
        browser.open(console.link)
        browser.until_text("h1", "Zones")
        browser.open(hostile)
        assert browser.run("return window.read") == "refused"
        assert "is blocked" in _framed(browser)
        browser.run("document.getElementById('form').submit()")
        browser.until_text("body", "the request comes from another site")
        browser.open(console.address)
        browser.until_text("h1", "Zones")


def _framed(browser: Browser) -> str:
    """Return the heading that the frame of the hostile page shows: the console's, or Chromium's."""
    browser.chrome.switch_to.frame("frame")
    try:
        return browser.text("h1")
    finally:
        browser.chrome.switch_to.default_content()
