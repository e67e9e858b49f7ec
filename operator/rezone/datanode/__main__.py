"""`python -m rezone.datanode`: the data node's process, with limits of what its server receives."""

import sys

from rezone.wire.transport import receive_limits

receive_limits.load_or_end()

from rezone.datanode.process import main  # noqa: E402 - brings Flight, before which limits must be

if __name__ == "__main__":
    sys.exit(main())
