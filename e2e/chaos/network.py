"""Packets that are lost between addresses, by nftables in a network namespace of our own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.chaos.fault import Fault
from e2e.kind.command import run

_FAMILY = "ip"
_PER_MILLE = 1000
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Loss:
    """Packets from some addresses to others are lost: all or a share, to any port or to one."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    share: float = 1.0
    port: int | None = None

    def rule(self) -> str:
        """Return the rule that loses them and counts how many."""
        some = "" if self.port is None else f"tcp dport {self.port} "
        some += "" if self.share >= 1 else f"numgen random mod {_PER_MILLE} < {self.per_mille} "
        return (
            f"ip saddr {{ {', '.join(self.sources)} }} ip daddr {{ {', '.join(self.targets)} }} "
            f"{some}counter drop"
        )

    @property
    def per_mille(self) -> int:
        """How many of a thousand packets are lost."""
        return round(self.share * _PER_MILLE)


def apart(some: Iterable[str], others: Iterable[str], share: float = 1.0) -> tuple[Loss, Loss]:
    """Return the losses that take two groups apart, both ways."""
    one, two = tuple(some), tuple(others)
    return Loss(one, two, share), Loss(two, one, share)


def ruleset(table: str, losses: Sequence[Loss]) -> str:
    """Return what `nft -f` makes a fault's own table of.

    Packets are lost where they come in: what sends them must not learn of it.
    """
    rules = "\n".join(f"    {loss.rule()}" for loss in losses)
    return (
        f"table {_FAMILY} {table} {{\n  chain lost {{\n"
        f"    type filter hook input priority 0; policy accept;\n{rules}\n  }}\n}}\n"
    )


def packets(listing: dict[str, Any]) -> int:
    """Return how many packets a table's rules have lost, from what `nft -j list table` says."""
    rules = [item["rule"]["expr"] for item in listing["nftables"] if "rule" in item]
    return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


class Cut(Fault):
    """Losses between addresses, for as long as it lasts."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self._losses = losses
        self._table = f"chaos_{next(_numbers)}"
        self._lost = 0
        self._there = False

    async def begin(self) -> None:
        """Begin to lose packets."""
        run(["nft", "-f", "-"], text=ruleset(self._table, self._losses))
        self._there = True

    async def heal(self) -> None:
        """Lose no more."""
        if self._there:
            self._lost = await self.bites()
            self._there = False
            run(["nft", "delete", "table", _FAMILY, self._table])

    async def bites(self) -> int:
        """Return how many packets were lost, also by earlier times of the same cut."""
        if not self._there:
            return self._lost
        listing = json.loads(run(["nft", "-j", "list", "table", _FAMILY, self._table]))
        return self._lost + packets(listing)
