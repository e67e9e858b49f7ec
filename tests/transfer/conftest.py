"""Fakes shared with the client's tests, and nodes with those of replicas."""

import pathlib
import sys

for shared in ("client", "replica"):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / shared))
