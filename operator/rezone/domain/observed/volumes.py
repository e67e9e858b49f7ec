"""How the volumes of a zone grow: which claims are asked for more, and how far that has come.

A person raises `storage.volumeClaimTemplate.size`; claims are patched, and the storage class's
driver does the rest, usually under the running pod. A claim grows only while it is bound, and never
back. Volumes that are larger already, by hand or by a driver that rounds up, are as good.
"""

import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction

from rezone.wire.messages import NodeId

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?)(m|[kMGTPE]|[KMGTPE]i)?")
_UNITS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity such as 1.5Gi, rounded up; ValueError for what is none."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is not a quantity of bytes")
    number, unit = found.groups(default="")
    return -int(-Fraction(number) * _UNITS[unit] // 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Volume:
    """A data node's claim as it is seen: what was asked for, and what the volume has.

    `trouble` is what hinders the driver, in words; `infeasible`: it cannot grow this volume.
    """

    node: NodeId
    requested_bytes: int
    capacity_bytes: int
    bound: bool
    trouble: str = ""
    infeasible: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth:
    """How many of the volumes have the size, and why not all; `refused`: a person must act."""

    size: str
    grown: int
    total: int
    waits: str = ""
    refused: bool = False

    @property
    def text(self) -> str:
        """Return the whole in words."""
        told = f"{self.grown} of {self.total} volumes have {self.size}"
        return f"{told}; {self.waits}" if self.waits else told


def to_grow(size: str, volumes: Sequence[Volume]) -> tuple[NodeId, ...]:
    """Return the data nodes whose claims are to be asked for `size`."""
    wanted = bytes_of(size)
    return tuple(v.node for v in volumes if v.bound and v.requested_bytes < wanted)


def growth(size: str, volumes: Sequence[Volume], refusal: str = "") -> Growth | None:
    """Return how far the volumes are, None when all have `size`; `refusal` is the API server's.

    A claim that is not bound has no volume yet: it is neither grown nor waited for.
    """
    wanted = bytes_of(size)
    there = [v for v in volumes if v.bound]
    short = [v for v in there if v.capacity_bytes < wanted]
    if not short:
        return None
    troubled = next((f"data node {v.node}: {v.trouble}" for v in short if v.trouble), "")
    return Growth(
        size=size,
        grown=len(there) - len(short),
        total=len(there),
        waits=refusal or troubled,
        refused=bool(refusal) or any(v.infeasible for v in short),
    )
