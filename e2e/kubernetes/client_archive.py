"""The client's program as one file: what it needs of the sources and no image has goes with it.

Images are made of the wheel, which leaves the demo out (decision 0388), and the client's traffic
and proof are the demo's.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from rezone.cli import demo

NAME = "client.zip"

_SOURCE = Path(__file__).with_name("client_pod.py")
_DEMO = ("gaps", "ledger", "operations", "proof", "table", "traffic")
# The package `rezone.cli` is the image's; what the archive has of it is found by its path.
_START = """\
import sys
from pathlib import Path

import rezone.cli

rezone.cli.__path__.append(str(Path(__file__).parent / "rezone" / "cli"))

import client_pod

if __name__ == "__main__":
    client_pod.serve()
"""


def client_archive() -> bytes:
    """Return an archive that Python runs, with the demo's traffic and proof in it."""
    files = {"__main__.py": _START, _SOURCE.name: _SOURCE.read_text()}
    # The demo's own package imports its command, which needs a checkout.
    files["rezone/cli/demo/__init__.py"] = ""
    for module in _DEMO:
        source = Path(demo.__path__[0], f"{module}.py")
        files[f"rezone/cli/demo/{module}.py"] = source.read_text()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()
