"""Which data nodes give way because of their disks."""

from __future__ import annotations

import pytest

from rezone.domain.observed.disks import slow_nodes


@pytest.mark.parametrize(
    ("slow_ms", "sync_ms", "slow"),
    [
        ({0: 500, 1: 0, 2: 0}, {0: 500, 1: 3, 2: 4}, {0}),
        ({0: 500, 1: 450, 2: 0}, {0: 500, 1: 450, 2: 4}, {0, 1}),
        ({0: 500, 1: 450, 2: 600}, {0: 500, 1: 450, 2: 600}, set()),
        ({0: 500, 1: 0, 2: 0}, {0: 500, 1: 400, 2: 300}, set()),
        ({0: 500}, {0: 500}, set()),
        ({0: 500, 1: 0}, {0: 500, 1: 0}, set()),
    ],
    ids=["one", "two", "all", "others are about to be", "alone", "nothing is known of others"],
)
@pytest.mark.proves("NW-04")
def test_slow_nodes_are_those_that_others_do_better_than(
    slow_ms: dict[int, int], sync_ms: dict[int, int], slow: set[int]
) -> None:
    """Leaders would leave a node for one that is as slow, and come back."""
    assert slow_nodes(slow_ms, sync_ms) == slow
