"""How far a zone's indexes are: one that was added is built by each replica on its own.

Lookups by it are answered where the leader has built it. A follower that cannot be heard is not
counted: it learns of the index when it comes back. A leader that cannot is one that lacks it:
otherwise an operator that has just started would say that all is done.
"""

from collections.abc import Iterator

from rezone.domain.model.world import ZoneView
from rezone.wire.codec.schema import IndexId
from rezone.wire.messages import ReplicaReport

_PERCENT_STEP = 10
"""Told in such steps: what is written to a status must not change with each report."""


def indexing(view: ZoneView) -> str:
    """Return which indexes are being built and how far that is, in words; empty when none is."""
    if not view.indexes:
        return ""
    reports = list(_reports(view))
    said = []
    for index, name in view.indexes.items():
        percents = [_percent_of(report, index) for report in reports]
        built = sum(percent == 100 for percent in percents)  # noqa: PLR2004 - all of it
        if built < len(percents):
            percent = sum(percents) // len(percents) // _PERCENT_STEP * _PERCENT_STEP
            said.append(f"{name}: {built} of {len(percents)} replicas have it, {percent} % is done")
    return "; ".join(said)


def _reports(view: ZoneView) -> Iterator[ReplicaReport | None]:
    for partition, record in view.routes.items():
        if record.sealed:
            continue  # nobody looks anything up there any more
        for node in record.replicas:
            report = view.report(partition, node)
            if report is not None or node == record.leader:
                yield report


def _percent_of(report: ReplicaReport | None, index: IndexId) -> int:
    if report is None:
        return 0
    if report.index is not None and index in report.index.built:
        return 100
    return next((build.percent for build in report.index_builds if build.index == index), 0)
