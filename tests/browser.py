"""A real headless Chromium: Debian's, driven by its own chromedriver through Selenium.

`hack/prerequisites.sh tests` installs both where it can; `make test` calls it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

T = TypeVar("T")

ADVICE = "as root: apt-get install chromium chromium-driver"
WAIT_SECONDS = 60.0
TABS_MAX = 60
SIZE = (1040, 860)
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # Chromium's own does not work for root; the pages are ours
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    # Whatever a page, or the browser itself, would load from elsewhere fails.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--force-prefers-reduced-motion",
)


def require_browser() -> tuple[str, str]:
    """Return the programs' paths. Skips the test where they are missing; in CI it fails."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    if os.environ.get("CI"):
        pytest.fail(f"Chromium is missing; {ADVICE}")
    pytest.skip(f"Chromium is missing; {ADVICE}")


@contextlib.contextmanager
def open_browser(directory: Path) -> Iterator[Browser]:
    """Start a browser with a profile in a directory, and end it with its driver."""
    binary, driver = require_browser()
    options = ChromeOptions()
    options.binary_location = binary
    for each in (*_OPTIONS, f"--user-data-dir={directory / 'profile'}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = ChromeService(executable_path=driver, log_output=str(directory / "driver.log"))
    # Selenium would ask a proxy of the environment for its driver on localhost.
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NO_PROXY", "localhost,127.0.0.1")
        patched.setenv("no_proxy", "localhost,127.0.0.1")
        chrome = Chrome(options=options, service=service)
        try:
            chrome.set_window_size(*SIZE)
            chrome.set_page_load_timeout(WAIT_SECONDS)
            yield Browser(chrome)
        finally:
            chrome.quit()


class Browser:
    """What the tests do with a browser; each wait is bounded."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome

    def open(self, address: str) -> None:
        """Go to a page."""
        self.chrome.get(address)

    def text(self, selector: str = "body") -> str:
        """Return the text of an element as a person sees it, empty where it is not there."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def html(self, selector: str) -> str:
        """Return what an element consists of."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerHTML ?? ''", selector)
        )

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script of the test in the page."""
        return self.chrome.execute_script(script, *arguments)

    def until(self, look: Callable[[], T], what: str) -> T:
        """Return what `look` returns once it is true."""
        wait: WebDriverWait[Chrome] = WebDriverWait(self.chrome, WAIT_SECONDS, poll_frequency=0.05)
        return wait.until(lambda _: look(), f"{what}; the page: {self.text()[:2000]}")

    def until_text(self, selector: str, text: str) -> None:
        """Wait until an element's text has a part."""
        self.until(lambda: text in self.text(selector), f"{text!r} never came to {selector}")

    def mark(self) -> None:
        """Mark the page, to tell later that it was not loaded again."""
        self.run("window.rezoneMark = true")

    @property
    def marked(self) -> bool:
        """Whether the page is still the one that was marked."""
        return bool(self.run("return window.rezoneMark === true"))

    def tab_to(self, name: str) -> None:
        """Press Tab until the element of an id has the focus, as who has no mouse does."""
        for _ in range(TABS_MAX):
            ActionChains(self.chrome).send_keys(Keys.TAB).perform()
            if self.run("return document.activeElement?.id") == name:
                return
        raise AssertionError(f"{name} cannot be reached by the keyboard: {self.text()[:2000]}")

    def press_enter(self) -> None:
        """Press Enter where the focus is."""
        ActionChains(self.chrome).send_keys(Keys.ENTER).perform()

    def click(self, selector: str) -> None:
        """Click an element."""
        self.chrome.find_element(By.CSS_SELECTOR, selector).click()

    def complaints(self) -> list[str]:
        """Return what the browser has complained about: scripts, policies, missing files."""
        logged: list[dict[str, Any]] = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]  # Selenium's
        return [each["message"] for each in logged if each["level"] == "SEVERE"]

    def screenshot(self, name: str) -> None:
        """Keep a picture of the page for the docs, where REZONE_SCREENSHOTS names a directory."""
        directory = os.environ.get("REZONE_SCREENSHOTS")
        if directory:
            self.chrome.save_screenshot(str(Path(directory) / f"{name}.png"))
