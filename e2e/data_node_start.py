"""What a data node's process says until it serves, and what it measures then."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ANYWHERE = ("--listen=127.0.0.1:0", "--health=127.0.0.1:0")
"""The options by which the system chooses its ports."""

ANSWER_SECONDS = 30.0


class Start(NamedTuple):
    """The lines of its log, the last of which tells that it serves, and those of its metrics."""

    told: list[dict[str, Any]]
    metrics: list[str]


def start_of(command: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Start a data node, ask for its metrics once it serves, and have it leave.

    Raises KeyError when it ends without having served.
    """
    told: list[dict[str, Any]] = [{}]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            for line in node.stdout:
                told.append(json.loads(line))
                if told[-1]["event"] == "serving":
                    break
            port = told[-1]["health_port"]
            asking = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
            with contextlib.closing(asking):
                asking.request("GET", "/metrics")
                metrics = asking.getresponse().read().decode().splitlines()
        finally:
            node.terminate()
    return Start(told, metrics)
