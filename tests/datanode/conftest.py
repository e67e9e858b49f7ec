"""What the tests of a data node get: the order in which its threads take locks is looked at."""

from __future__ import annotations

from lock_order import locks_have_an_order

__all__ = ["locks_have_an_order"]
