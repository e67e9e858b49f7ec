"""A run of the suite ends, and says where it was, also when a test or what is behind it hangs."""

import faulthandler
import os
import sys
from collections.abc import Generator, Iterator

import pytest

HANG_SECONDS_MAX = 120.0
"""How long a test is waited for behind its timeout, whose exception reaches no call of a library.

As long for its fixtures: both timeouts of plugins are off once a test has failed.
"""

FINISH_SECONDS_MAX = 900.0
"""How long the end of a run is waited for: pytest deletes files, beside what others do."""

_terminal = pytest.StashKey[int]()
_exit_code = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what is written to on the terminal: a running test has another file in its place."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[_terminal] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Say in time where a test hangs, and end the run."""
    marker = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout")
    timeout = float(item.config.getini("timeout") if given is None else given)
    timeout = float(marker.args[0]) if marker else timeout
    if timeout:
        _end_within(timeout + HANG_SECONDS_MAX, item.config)
    else:
        faulthandler.cancel_dump_traceback_later()
    return (yield)


def pytest_exception_interact(node: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Say at once why a test failed: its report is lost if its fixtures hang then."""
    if call.excinfo:
        why, *_ = call.excinfo.exconly().splitlines()
        os.write(node.config.stash[_terminal], f"\n{node.nodeid}: {why}\n".encode())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Say where a test's fixtures hang, and end the run."""
    _end_within(HANG_SECONDS_MAX, item.config)
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember how the run has ended, and say in time where its end hangs.

    The limit of the last test's fixtures would end it otherwise.
    """
    session.config.stash[_exit_code] = exitstatus
    _end_within(FINISH_SECONDS_MAX, session.config)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process without a return through the interpreter's end.

    Flight waits there for the last channel to each server, and a test that has failed keeps both
    ends of some; threads would be waited for, too.
    """
    if (code := config.stash.get(_exit_code, None)) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_within(seconds: float, config: pytest.Config) -> None:
    """Have the process end then with the stacks of all threads, whatever they do."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_terminal])
