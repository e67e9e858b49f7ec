"""How large a frame of a channel may be; apart, as Flight must not be there for it yet."""

from typing import Final

FRAME_BYTES_MAX: Final = 64 << 20
