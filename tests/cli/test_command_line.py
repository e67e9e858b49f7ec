"""The command `rezone` itself: what it says where a part of the package is not installed."""

import re
import subprocess
import sys

_WITHOUT_EXTRAS = """
import sys
sys.modules["pydantic"] = None  # as if it were not installed
from rezone.cli.main import main
main(sys.argv[1:], prog_name="rezone")
"""


def _rezone(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own: modules are imported once in each."""
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *arguments]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_help_lists_commands_that_are_not_installed() -> None:
    """Whoever installed the client alone would get a traceback from `rezone --help`."""
    shown = _rezone("--help")

    assert shown.returncode == 0, shown.stderr
    assert re.search(
        r"migrate +Not here: pydantic is missing; install rezone\[operator\]\.", shown.stdout
    )


def test_a_command_that_is_not_installed_says_what_brings_it() -> None:
    """A traceback about a foreign module does not say which extra its user lacks."""
    refused = _rezone("map", "orders", "--namespace", "shop")

    assert refused.returncode == 1
    assert refused.stderr == "Error: Not here: pydantic is missing; install rezone[operator].\n"
