"""Verify: a zone has the same rows after a migration, while it is written.

ORDERS is an address of a data node, DIGESTS a file. STEP is "before" or "after": run it once before
leaders are moved (`rezone migrate`) and once after, within the zone's version retention. In a
cluster: `rezone verify orders --save DIGESTS`, then `rezone verify orders --with-digests DIGESTS`.
"""

import os
import sys

from rezone.transfer import verify_job

what = "--save" if os.environ["STEP"] == "before" else "--with-digests"
code = verify_job.main(
    ["--bootstrap", os.environ["ORDERS"], what, os.environ["DIGESTS"], "--keep-context"]
)
if code:
    sys.exit("The rows differ." if code == 1 else "The rows could not be compared.")
