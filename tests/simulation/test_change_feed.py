"""Change feeds over failovers and re-shardings, by many seeds."""

from __future__ import annotations

import pytest

from simulation.clients.following import Followed
from simulation.clients.following_copies import FollowedCopies
from simulation.clients.named_feeds import NamedFeedCopies, NamedFeedCutOver
from simulation.scenarios.runs import seeds


@pytest.mark.proves("CF-01", "CF-02")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_each_change_comes_once_and_in_order(seed: int) -> None:
    """Some order of failovers around a seal would lose a change, or bring it twice.

    Or tell a row before a change that a backfill is still to bring, or that was not applied.
    """
    run = Followed(seed)
    run.run()
    assert run.counts["feed rows"] > 0, run.counts


FOUND = (5,)
"""One that began at a follower passed what that one had not applied yet."""


@pytest.mark.proves("CF-01", "CF-02")
@pytest.mark.parametrize("seed", sorted({*seeds()[::10], *FOUND}))
def test_each_change_comes_once_from_replicas_that_are_copied(seed: int) -> None:
    """A log that begins with a copy would be taken for all of it, or a torn transaction come."""
    FollowedCopies(seed).run()


@pytest.mark.proves("CF-02", "CF-04")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_a_named_feed_outlives_the_copies_of_all_replicas(seed: int) -> None:
    """Its log would go with the last replica that was not copied, and it begins with a snapshot."""
    NamedFeedCopies(seed).run()


@pytest.mark.proves("CF-02", "CF-04")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_a_named_feed_that_rests_over_a_cut_over_goes_on(seed: int) -> None:
    """The new partitions would have what is written since they began to pull, and no more."""
    run = NamedFeedCutOver(seed)
    run.run()
    assert run.counts["feed rows"] > 0, run.counts
