"""The command `rezone console`: what it refuses, and says before it serves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rezone.cli.console import console
from rezone.cli.main import main

_WITHOUT_EXTRA = """
import sys
sys.modules["starlette"] = None  # as if it were not installed
from rezone.cli.main import main
main(sys.argv[1:], prog_name="rezone")
"""


def called(*arguments: str, kubeconfig: str = "/nowhere") -> Result:
    """Call the command; it comes to an end because there is no cluster."""
    return CliRunner().invoke(console, list(arguments), env={"KUBECONFIG": kubeconfig})


def test_who_lacks_the_extra_is_told_which() -> None:
    """A traceback about a foreign module does not say what to install."""
    command = [sys.executable, "-c", _WITHOUT_EXTRA, "console"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "starlette" in done.stderr
    assert "is missing; install rezone[operator,console]." in done.stderr


def test_contradictions_and_missing_configurations_are_said() -> None:
    """The console would list other zones than were asked for, or end in a traceback."""
    assert called("-A", "-n", "shop").exit_code == 2
    done = called("--port", "0")
    assert done.exit_code == 1
    assert "no usable Kubernetes configuration" in done.output
    assert "Open http" not in done.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """A second console would end in a traceback, or share the port with the first one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = called("--port", str(port), kubeconfig=str(tmp_path / "none"))
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.output


def test_no_option_makes_it_listen_elsewhere() -> None:
    """It has no TLS: on another address the session's cookie would pass in plain text."""
    shown = CliRunner().invoke(main, ["console", "--help"])
    assert shown.exit_code == 0
    options = {word.rstrip(",.:;") for word in shown.output.split() if word.startswith("--")}
    in_cluster = {"--origin", "--api-server", "--api-ca", "--health-address"}
    assert options - in_cluster == {"--namespace", "--all-namespaces", "--port", "--help"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--origin", "http://a.example", "-A"], "is no origin"),
        (["--origin", "https://a.example"], "name the zones by -n or -A"),
        (["--origin", "https://a.example", "-A", "--api-ca", "none"], "no certificate authority"),
        (["--origin", "https://a.example", "-A", "--api-server", "http://a"], "is not https"),
    ],
)
def test_what_would_let_tokens_go_in_the_clear_is_refused(words: list[str], says: str) -> None:
    """Users' tokens would go in plain text, or to whoever answers at the API server's address."""
    done = CliRunner().invoke(main, ["console", "--port", "0", *words])
    assert done.exit_code != 0
    assert says in done.output
