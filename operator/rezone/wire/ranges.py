"""The ranges of the numbers in messages: what is out of them is refused before it is a message.

Types for annotations alone; decoding checks them, and nothing else does. A number that one part
never sends would otherwise meet, in some thread of another one, whatever cannot take it.
"""

import sys
from typing import Annotated

from msgspec import Meta

_MOST = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=_MOST)]
"""Offsets, epochs, sizes, numbers of things; times in microseconds since 1970."""

CountOrNone = Annotated[int, Meta(ge=-1, le=_MOST)]
"""The same, or -1 in place of what is not known."""

Unsigned = Annotated[int, Meta(ge=0)]
"""64 bits without a sign, which is what msgpack has at most: hashes of keys, sequences."""

Unsigned32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
"""32 bits without a sign, as the log has them: epochs of producers and leaders."""

Integer = Annotated[int, Meta(ge=-_MOST - 1)]
"""Any number of 64 bits: what an error tells."""

Float = Annotated[float, Meta(ge=-sys.float_info.max)]
"""Any finite number of a column with floats."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
"""How long something lasts."""
