"""What the seeds of a storm must have reached together: without it they would prove nothing.

`make seeds`, which CI runs, asks it of every storm with many seeds. Which seed reaches an event
changes with every change of the product, so a storm that misses one is given more seeds first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

SEEDS_MIN = 20
"""Fewer seeds may miss what one of seven reaches, and who runs so few looks for something else."""

MORE_SEEDS = 40
"""An event that one of seven seeds reaches is missed by these, too, once in 500 times."""

REACHED: Mapping[str, Collection[str]] = {
    # Followers who never lag, begin again or read what was pulled.
    "test_change_feed": (
        *("feed changes", "feed more", "feed ended", "feed by reshard streams"),
        "feed counted",
        *("feed NotReady", "feed NotLeader", "feed FeedTruncated", "feed begun again"),
        *("ReadOlderLog", "acknowledged", "feed refused by a copy"),
        "Committed",
    ),
    "test_closed_times": (
        *("starts", "damaged bounds", "recovered bounds", "late applies"),
        *("past", "closed", "written"),
    ),
    # All conditional writes succeed at the first attempt.
    "test_conditional_storms": (*("conditional: applied", "conditional: mismatch", "resharded"),),
    # Writers never outrun a scan (SS-07), no rows are early (SS-03), sources are never behind.
    "test_copy_storms": (
        *("rows", "files", "went on", "resumed", "failed", "compared", "alike"),
        *("died", "receivers died", "carriers died", "broken streams", "broken puts"),
        *("waits for room", "waits for early rows", "early"),
        *("indexed", "with open transactions", "backfilled", "Committed", "Aborted"),
        *("joined", "late applies", "of late sources", "of what is not committed"),
    ),
    # Nobody is sent on, or no seal is taken back.
    "test_cut_over": (
        *("source", "target", "resharded", "read", "past"),
        *("BeginReshard", "ReshardBackfill", "ReshardCatchUp", "late"),
        *("denied", "compared", "late applies", "put off", "measured"),
    ),
    "test_failing_disks": ("faults", "failed", "failures", "written", "died"),
    "test_half_open": ("silences", "half-open", "written", "healed"),
    "test_indexed": (
        *("written", "tables", "died", "takeovers", "indexed takeovers"),
        *("left ahead", "lagged", "early takeovers"),
        *("compared", "past lookups", "read", "past", "late applies"),
    ),
    # Nobody overwrites, or no driver dies.
    "test_overwrite_storms": (
        *("overwritten", "as of, old", "as of, new", "as of: VersionsExpired"),
        *("driver died", "driver refused", "overwrites cancelled"),
        *("feed FeedTruncated", "kill", "operator dies"),
    ),
    # Nobody is fenced, or nobody is sent on by a seal.
    "test_producer_storms": (
        *("opened", "late openings", "fenced", "named writes", "late writes"),
        *("resharded", "rows", "files"),
    ),
    # Each write is alone.
    "test_shared_appends": ("in one wake", "in one append", "refused in part"),
    # Each call is alone.
    "test_shared_calls": (
        *("shared requests", "shared repeats", "acknowledged calls", "resharded"),
        *("InvalidRowError", "OutcomeUnknownError", "ProducerFencedError"),
    ),
    "test_slow_disks": ("stalled", "written"),
    "test_wrong_clocks": (
        *("set", "wrong starts", "pairs", "damaged bounds", "recovered bounds"),
        *("past", "ages", "written", "written while wrong"),
    ),
}
"""The events of each storm, by the names that its runs count them by."""


def missing(storm: str, counts: Mapping[str, int]) -> list[str]:
    """Return which events of a storm were counted by none of its seeds."""
    return [event for event in REACHED.get(storm, ()) if not counts.get(event)]
