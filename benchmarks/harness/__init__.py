"""What benchmarks of whole nodes share; no benchmark itself, so `make bench` does not run it.

The coordinator's part is the tests' own, so their directories can be imported from.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "datanode"))

from replica_cluster import ProcessNode

# What is measured is the process that users start.
ProcessNode.loaded = False
