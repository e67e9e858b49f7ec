"""Rates of clients from two counts of a data node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.domain.observed.client_load import interval_of, quantile, rates_of
from rezone.wire.messages.loads import ClientLoad, RequestLoad

pytestmark = pytest.mark.proves("OB-04")

NONE = RequestLoad(ok=(0, 0, 0))
BEFORE = ClientLoad(
    process_id="1-a", seconds=100.0, bounds_micros=(1000, 10_000), reads=NONE, writes=NONE
)
AFTER = msgspec.structs.replace(
    BEFORE,
    seconds=102.0,
    reads=RequestLoad(ok=(60, 40, 0), failed=4),
    writes=RequestLoad(ok=(0, 0, 10)),
    copied_bytes=6_000_000,
    write_throttled_seconds=1.0,
)


def test_rates_are_what_lies_between_two_counts() -> None:
    """`rezone top` would show what happened since the data node began, or by another unit."""
    interval = interval_of(BEFORE, AFTER)
    assert interval is not None
    rates = rates_of([interval])
    assert rates is not None
    assert (rates.reads.ok_per_second, rates.reads.failed_per_second) == (50.0, 2.0)
    # 50 of 60 requests into the bucket that ends at a millisecond.
    assert rates.reads.p50_seconds == pytest.approx(0.001 * 50 / 60)
    assert rates.reads.p99_seconds == pytest.approx(0.001 + 0.009 * 39 / 40)
    assert rates.writes.p50_seconds == 0.01  # at least: the last bucket has no end
    assert rates.copied_bytes_per_second == 3_000_000
    assert rates.write_throttled == 0.5
    both = rates_of([interval, interval])
    assert both is not None
    assert both.reads.ok_per_second == 100.0
    assert both.reads.p50_seconds == rates.reads.p50_seconds


@pytest.mark.parametrize(
    "after",
    [
        msgspec.structs.replace(AFTER, process_id="1-b"),
        msgspec.structs.replace(AFTER, seconds=100.0),
        msgspec.structs.replace(AFTER, seconds=99.0),
        msgspec.structs.replace(AFTER, bounds_micros=(1000, 20_000)),
        msgspec.structs.replace(AFTER, reads=RequestLoad(ok=(1,))),
    ],
)
def test_counts_that_do_not_belong_together_have_no_rate(after: ClientLoad) -> None:
    """A restart, or an answer that makes no sense, would show as a burst or end the command."""
    assert interval_of(BEFORE, after) is None


def test_nothing_answered_has_no_duration() -> None:
    """A zone at rest would divide by nothing, or claim to answer in no time."""
    assert quantile((0, 0, 0), (1000, 10_000), 0.5) is None
    assert rates_of([]) is None


@given(buckets=st.lists(st.integers(0, 10**6), min_size=1, max_size=8), share=st.floats(0.01, 1.0))
def test_a_quantile_lies_in_a_bucket_that_has_it(buckets: list[int], share: float) -> None:
    """The p99 could be lower than the p50, or beyond all bounds."""
    bounds = [10 ** (i + 1) for i in range(len(buckets) - 1)]
    found = quantile(buckets, bounds, share)
    assert (found is None) == (sum(buckets) == 0)
    if found is not None:
        assert 0 <= found <= (bounds[-1] if bounds else 0) / 1e6
        half = quantile(buckets, bounds, share / 2)
        assert half is not None
        assert half <= found
