"""Nightly load: Parquet files into a zone, each row once, however often this runs.

ORDERS is an address of a data node; INCOMING has the files, STATE is a directory that is kept. In a
cluster the same is `rezone load orders INCOMING --state STATE`.
"""

import os
import sys

from rezone.transfer import load_job

code = load_job.main(
    [
        *("--bootstrap", os.environ["ORDERS"]),
        *("--parquet", os.environ["INCOMING"]),
        *("--state", os.environ["STATE"]),
        "--keep-context",  # the session may be somebody else's
    ]
)
if code == 1:
    sys.stderr.write("Some rows were refused: the last line above and the state say which.\n")
elif code:
    sys.exit("The load has not ended: run it again, and it goes on.")
