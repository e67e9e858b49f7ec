"""Views as plain text: for pipes, for terminals that draw nothing, and for people who read logs."""

from collections.abc import Callable, Sequence
from typing import Any

from rezone.cli.look.explain import Explanation
from rezone.cli.look.views import (
    CopiesRow,
    LayoutRow,
    MovedPartition,
    PartitionMap,
    PartitionRow,
    Progress,
    RatesRow,
    RepairsRow,
    RequestRow,
    SupportBundle,
    TaskRow,
    Top,
    TransferCopyRow,
    WhatIf,
    ZoneList,
    ZoneRow,
)
from rezone.domain.routing.partition_map import WIDTH_DEFAULT, Mark, picture
from rezone.report.compared import ComparedRow, compared_tasks, compared_transfers
from rezone.report.document import Document
from rezone.report.task import Asked, StateSpan, TaskReport, TransferRow, WaitSpan, WriteOutage
from rezone.report.transfer import TransferReport
from rezone.report.words import bytes_text

GAP = "   "


def clean(text: str) -> str:
    """Return a text of the API server without what a terminal would take as an order."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def text_of(view: Document, width: int = WIDTH_DEFAULT) -> str:
    """Return a view as text; `width` is that of partition maps alone. TypeError for no view."""
    for kind, write in _WRITERS.items():
        if isinstance(view, kind):
            return clean("\n".join(write(view, width)))
    raise TypeError(f"no text for {type(view).__name__}")


def task_line(row: TaskRow) -> str:
    """Return one line about a task: how far it is, how fast, how long still, and why it waits.

    What a re-sharding moves are the ranges that old and new partitions have in common, and what
    follows is how many old partitions have cut over.
    """
    moves, leaders = ("ranges", "cut over") if row.type == "Reshard" else ("moves", "leaders")
    parts = [
        f"{row.name}: {row.state}",
        f"{moves} {row.moves_done}/{row.moves_total}",
        f"{leaders} {row.leader_moves_done}/{row.leader_moves_total}",
        *_copied(row),
    ]
    return _waiting(parts, row.waiting_for)


def transfer_copy_line(row: TransferCopyRow) -> str:
    """Return one line about the copy of a leader transfer."""
    parts = [f"{row.name}: {row.state}", f"partition {row.partition}", *_copied(row)]
    return _waiting(parts, row.waiting_for)


def repairs_line(row: RepairsRow) -> str:
    """Return one line about the copies that a zone makes by itself."""
    nodes = ", ".join(map(str, row.data_nodes))
    of = f"repairs of data node{'s' if len(row.data_nodes) > 1 else ''} {nodes}"
    return ", ".join([f"{of}: copies {row.copies_done}/{row.copies_total}", *_copied(row)])


def beside_tasks(view: Progress) -> list[str]:
    """Return a line for all that is made beside tasks: copies, and indexes that are built."""
    lines = [transfer_copy_line(row) for row in view.transfers]
    lines += [repairs_line(view.repairs)] if view.repairs is not None else []
    return lines + [f"index {each}" for each in view.indexes]


def _copied(row: CopiesRow) -> list[str]:
    """Return how far copies are, how fast, and how long they still take."""
    parts = [
        f"{row.rows_done:,} of {row.rows_total:,} rows",
        f"{row.bytes_done / 1e6:,.0f} of {row.bytes_total / 1e6:,.0f} MB",
        f"{row.bytes_per_second / 1e6:,.0f} MB/s",
    ]
    if row.skew_percent is not None:
        parts.append(f"skew {skew(row)}")
    if row.seconds_left is not None:
        parts.append(f"{row.seconds_left} s left")
    return parts


def _waiting(parts: list[str], waiting_for: str) -> str:
    return ", ".join([*parts, f"({waiting_for})"] if waiting_for else parts)


def skew(row: CopiesRow) -> str:
    """Return how often the largest copy has the bytes of the mean one, "-" while unknown."""
    return "-" if row.skew_percent is None else f"{row.skew_percent / 100:.2f}"


def zone_lines(view: ZoneList, _width: int = 0) -> list[str]:
    """Return a line for each zone under a header."""
    if not view.items:
        return ["there is no zone"]
    header = ("NAMESPACE", "NAME", "READY", "REASON", "PARTITIONS", "NODES", "TASK")
    return columns([header, *(zone_cells(row) for row in view.items)])


def zone_cells(row: ZoneRow) -> tuple[str, ...]:
    """Return what the columns of a zone hold."""
    return (
        row.namespace,
        row.name,
        row.ready,
        row.reason or "-",
        f"{row.partitions_ready}/{row.partitions}",
        f"{row.ready_data_nodes}/{row.data_nodes}",
        row.current_task or "-",
    )


def progress_lines(view: Progress, _width: int = 0) -> list[str]:
    """Return a line for each task, and for what is made beside them."""
    lines = [task_line(row) for row in view.tasks] + beside_tasks(view)
    return lines or [f"zone {view.zone} has no RebalanceTask"]


def map_lines(view: PartitionMap, width: int = WIDTH_DEFAULT) -> list[str]:
    """Return the map of a zone, and that of the layout to come while it is re-sharded."""
    if not view.layouts:
        return [f"zone {view.zone} has no partitions yet"]
    maps = [layout_picture(layout, width) for layout in view.layouts]
    titles = layout_titles(view)
    if not titles:
        return maps
    return [line for pair in zip(titles, maps, strict=True) for line in pair]


def layout_titles(view: PartitionMap) -> list[str]:
    """Return what stands over the maps: nothing when there is one layout."""
    if len(view.layouts) == 1:
        return []
    old, new = (layout.partitions for layout in view.layouts[:2])
    sealed = sum(row.sealed for row in old)
    return [
        f"{sealed} of {len(old)} partitions have cut over to {len(new)} new ones\n",
        "new layout\n",
    ]


def layout_picture(layout: LayoutRow, width: int = WIDTH_DEFAULT) -> str:
    """Return the picture of one layout."""
    return picture([_marks(row) for row in layout.partitions], width=width)


def _marks(row: PartitionRow) -> dict[int, Mark]:
    return {node: _mark(row, node) for node in row.replicas}


def _mark(row: PartitionRow, node: int) -> Mark:
    if node == row.leader:
        return Mark.LEADER
    if node in row.hot_standbys:
        return Mark.HOT_STANDBY
    return Mark.FOLLOWER if node in row.in_sync else Mark.LEARNER


def top_lines(view: Top, _width: int = 0) -> list[str]:
    """Return the zone in one line, its tasks, and a table of its data nodes."""
    lines = [headline(view.zone), *(task_line(row) for row in view.tasks), ""]
    lines += [*columns(rate_cells(view)), *unknown_rates(view), ""]
    header = ("NODE", "STATE", "LEADERS", "FOLLOWERS", "LEARNERS", "DOMAIN", "HOST")
    cells = [
        (
            str(row.id),
            row.state + (f" (maintenance: {row.maintenance})" if row.maintenance else ""),
            *(str(count) for count in (row.leaders, row.followers, row.learners)),
            row.failure_domain or "-",
            row.node or "-",
        )
        for row in view.nodes
    ]
    return lines + columns([header, *cells])


RATE_HEADER = ("READ/S", "P50", "P99", "WRITE/S", "P50", "P99", "FAIL/S", "COPY MB/S", "THROTTLED")


def rate_cells(view: Top) -> list[tuple[str, ...]]:
    """Return the table of rates: the zone's, and each data node's; unknown ones are "?"."""
    rows = [("NODE", *RATE_HEADER), ("all", *_rates(view.rates))]
    return rows + [(str(row.id), *_rates(row.rates)) for row in view.nodes]


def _rates(found: RatesRow | None) -> tuple[str, ...]:
    if found is None:
        return ("?",) * len(RATE_HEADER)
    failed = found.reads.failed_per_second + found.writes.failed_per_second
    copied = found.copied_bytes_per_second / 1e6
    return (
        *_requests(found.reads),
        *_requests(found.writes),
        f"{failed:,.0f}" if failed >= 1 or not failed else f"{failed:.1f}",
        f"{copied:,.1f}",
        f"{found.write_throttled:,.1f}",
    )


def _requests(found: RequestRow) -> tuple[str, str, str]:
    times = (found.p50_milliseconds, found.p99_milliseconds)
    half, most = ("-" if each is None else f"{each:,.1f} ms" for each in times)
    return f"{found.per_second:,.0f}", half, most


def unknown_rates(view: Top) -> list[str]:
    """Return a line that says why rates are missing, none where all are known."""
    return [f"rates are unknown: {view.rates_unknown}"] if view.rates_unknown else []


def headline(row: ZoneRow) -> str:
    """Return a zone in one line."""
    told = "ready" if row.ready == "True" else f"not ready: {row.reason}"
    under = f", {row.under_replicated} under-replicated" if row.under_replicated else ""
    return (
        f"zone {row.namespace}/{row.name}: {told}, partitions {row.partitions_ready}/"
        f"{row.partitions} in sync{under}, data nodes {row.ready_data_nodes}/{row.data_nodes}"
    )


def explanation_lines(view: Explanation, _width: int = 0) -> list[str]:
    """Return why something waits, what has to happen, and what a person can do."""
    return [f"{label}: {said}" for label, said in explanation_parts(view)]


def explanation_parts(view: Explanation) -> list[tuple[str, str]]:
    """Return the labelled parts of an explanation, without those that are empty."""
    name = f"{view.object_kind} {view.namespace}/{view.name}"
    if not view.waiting:
        said = f"{name} waits for nothing; its state is {view.state}"
        return [("Waits", said), *([("It says", view.why)] if view.why else [])]
    waits = f"{name}, in state {view.state}"
    if view.since_seconds is not None:
        waits += f" for {duration(view.since_seconds)}"
    parts = [
        ("Waits", waits),
        ("Why", view.why if view.why.startswith(view.reason) else f"{view.reason}: {view.why}"),
        ("Needs", view.needs),
        ("You can", view.can_do),
        ("Without you", "it does not go on: a person must act" if view.person_must_act else ""),
        ("Gives up", _deadline(view.deadline_seconds)),
        *((fact.about[:1].upper() + fact.about[1:], fact.says) for fact in view.facts),
    ]
    return [(label, said) for label, said in parts if said]


def _deadline(seconds: int | None) -> str:
    if seconds is None:
        return ""
    return f"in {duration(seconds)}" if seconds > 0 else "now: its deadline has passed"


OUTAGES_SHOWN = 5


def report_lines(view: TaskReport, _width: int = 0) -> list[str]:
    """Return a report: what was planned and done, the states, who asked, leader transfers."""
    state = view.state
    if view.seconds is not None:
        took = duration(view.seconds)
        state += f" after {took}" if view.ended else f", begun {took} ago"
    what = ("ranges", "cut over") if view.type == "Reshard" else ("moves", "leaders")
    rate = view.bytes_per_second
    rows = [
        ("", "PLANNED", "DONE"),
        (what[0], str(view.moves_planned), str(view.moves_done)),
        (what[1], str(view.leader_moves_planned), str(view.leader_moves_done)),
        ("MB", f"{view.bytes_planned / 1e6:,.0f}", f"{view.bytes_done / 1e6:,.0f}"),
        ("MB/s", "-", f"{rate / 1e6:,.1f}" if rate is not None else "-"),
        ("time", duration(view.seconds_planned), duration(view.seconds or 0)),
    ]
    lines = [
        f"task {view.namespace}/{view.name} of zone {view.zone} ({view.type}): {state}",
        *([f"{view.reason}: {view.message}"] if view.message else []),
        *([f"copied by Spark: {view.by_spark}"] if view.by_spark else []),
        *(
            [f"{view.copies_dropped} copies differed and were made again"]
            * (view.copies_dropped > 0)
        ),
        "",
        *columns(rows),
    ]
    figures = view.figures
    if figures is not None and figures.served_percent_mean is not None:
        lines.append(
            f"the busiest data node served clients for {figures.served_percent_mean} % of the "
            f"time meanwhile, {figures.served_percent_max} % at most"
        )
    lines += _compared_lines(compared_tasks(view), view.before.name if view.before else "")
    lines += _spent_lines(view.states, view.waits)
    stopping = "cut-overs" if view.type == "Reshard" else "leader transfers"
    lines += _outage_lines(view.write_unavailability, stopping)
    lines += _asked_lines(view.asked)
    moved = [_transfer_cells(row) for row in view.transfers]
    header = ("TRANSFER", "PARTITION", "FROM", "TO", "STATE", "TIME", "NO WRITES", "ERROR")
    return lines + (["", *columns([header, *moved])] if moved else [])


def transfer_report_lines(view: TransferReport, _width: int = 0) -> list[str]:
    """Return the report of a leader transfer."""
    nodes = ("?" if node is None else str(node) for node in (view.from_node, view.to_node))
    took = "" if view.seconds is None else f" after {duration(view.seconds)}"
    stopped = view.write_unavailable_milliseconds
    by_whom = f"by the rebalance {view.task}" if view.task else "by a person"
    copied = f"by Spark: {view.by_spark}" if view.by_spark else "from data node to data node"
    if view.bytes_done is not None:
        copied += f", {bytes_text(view.bytes_done)}, {view.rows_done:,} rows"
    lines = [
        f"leader transfer {view.namespace}/{view.name} of zone {view.zone}: {view.state}{took}",
        f"partition {view.partition}, from data node {' to '.join(nodes)}",
        *([f"{view.reason}: {view.message}"] if view.message else []),
        *([view.error] if view.error else []),
        *([f"unclean election: {view.recovery}"] if view.recovery else []),
        f"asked for {by_whom}",
        f"writes stopped for {'an unknown time' if stopped is None else f'{stopped} ms'}",
        *([f"the new leader's replica was copied {copied}"] if view.copied else []),
    ]
    lines += _compared_lines(compared_transfers(view), view.before.name if view.before else "")
    return lines + _spent_lines(view.states, view.waits) + _asked_lines(view.asked)


def _compared_lines(rows: Sequence[ComparedRow], before: str) -> list[str]:
    if not rows:
        return []
    return ["", *columns([("", before, "THIS ONE"), *rows])]


def _spent_lines(states: Sequence[StateSpan], waits: Sequence[WaitSpan]) -> list[str]:
    """Return how long each state took, and what was waited for."""
    spans = [(span.state, duration(span.seconds), span.message) for span in states]
    lines = ["", *columns([("STATE", "TIME", "WHY"), *spans])] if spans else []
    found = [(each.reason, duration(each.seconds)) for each in waits]
    return lines + (["", *columns([("WAITED FOR", "TIME"), *found])] if found else [])


def _asked_lines(found: Sequence[Asked]) -> list[str]:
    asked = [(a.field, a.value, a.manager, str(a.time or "-")) for a in found]
    return ["", *columns([("ASKED", "VALUE", "BY", "AT"), *asked])] if asked else []


def _transfer_cells(row: TransferRow) -> tuple[str, ...]:
    nodes = ("-" if node is None else str(node) for node in (row.from_node, row.to_node))
    took = "-" if row.seconds is None else duration(row.seconds)
    stopped = row.write_unavailable_milliseconds
    gap = "-" if stopped is None else f"{stopped} ms"
    return (row.name, str(row.partition), *nodes, row.state, took, gap, row.error)


def _outage_lines(found: WriteOutage | None, what: str) -> list[str]:
    """Return for how long transfers or cut-overs have stopped writes, and where longest."""
    if found is None:
        return []
    mean = found.total_milliseconds / found.transfers
    named = ", ".join(
        f"partition {each.partition} {each.milliseconds} ms"
        for each in found.longest[:OUTAGES_SHOWN]
    )
    longest = f"at most {found.max_milliseconds} ms ({named})"
    told = f"writes stopped by {found.transfers} {what}: {mean:.0f} ms each, {longest}"
    return ["", told]


MOVES_SHOWN = 20


def what_if_lines(view: WhatIf, _width: int = 0) -> list[str]:
    """Return what a plan would do, in short, and the data nodes before and after."""
    name = f"zone {view.namespace}/{view.zone}"
    if not view.possible:
        return [f"{name}: not possible: {view.why_not}"]
    begins = f"from its {view.base} assignment" if view.base else "its first assignment"
    numbers = f"{view.partitions} partitions of {view.replicas} replicas"
    lines = [
        f"{name}: {numbers}, {begins}; nothing is changed",
        _what_moves(view),
        _how_much(view),
    ]
    if view.domain_conflicts:
        lines.append(
            f"{view.domain_conflicts} partitions are less spread over failure domains than they "
            "could be"
        )
    header = ("NODE", "", "REPLICAS", "LEADERS", "DOMAIN")
    cells = [
        (
            str(row.id),
            row.change.lower() or "-",
            f"{row.replicas_before} -> {row.replicas_after}",
            f"{row.leaders_before} -> {row.leaders_after}",
            row.failure_domain or "-",
        )
        for row in view.nodes
    ]
    lines += ["", *columns([header, *cells])]
    lines += ["", *(_move_line(move) for move in view.moves[:MOVES_SHOWN])] if view.moves else []
    if len(view.moves) > MOVES_SHOWN:
        lines.append(f"... and {len(view.moves) - MOVES_SHOWN} more (-o json has them all)")
    return lines


def _what_moves(view: WhatIf) -> str:
    if view.resharding:
        return f"re-sharding: {view.copies} new replicas are built, {view.partitions} cut over"
    if not view.copies and not view.leader_moves:
        return "nothing moves" if view.trigger or not view.base else "no plan is made"
    least = f" (at least {view.copies_lower_bound})"
    leaders = f"{view.leader_moves} leaders move"
    return f"{view.copies} replicas are copied{least}, {leaders} ({view.trigger})"


def _how_much(view: WhatIf) -> str:
    if view.bytes is None or view.seconds is None or view.partition_bytes is None:
        return "bytes and time are not known: say --partition-bytes"
    return (
        f"about {view.bytes / 1e6:,.0f} MB in {duration(view.seconds)}, with "
        f"{view.partition_bytes / 1e6:,.1f} MB a partition ({view.partition_bytes_from})"
    )


def _move_line(move: MovedPartition) -> str:
    added = ", ".join(f"+{node}" for node in move.added)
    removed = ", ".join(f"-{node}" for node in move.removed)
    return f"partition {move.partition}: {' '.join(filter(None, (added, removed)))} ({move.why})"


UNREAD_SHOWN = 20


def bundle_lines(view: SupportBundle, _width: int = 0) -> list[str]:
    """Return where a support bundle is, and what it could not get."""
    size = sum(each.bytes for each in view.files) / 1e6
    lines = [f"{view.file}: {len(view.files)} files, {size:,.1f} MB unpacked"]
    if view.unread:
        lines.append(f"not in it, or not whole: {len(view.unread)}")
    lines += [f"  {each.what}: {each.why}" for each in view.unread[:UNREAD_SHOWN]]
    if len(view.unread) > UNREAD_SHOWN:
        lines.append("  ... bundle.json has them all")
    return lines


def duration(seconds: int) -> str:
    """Return a time span in its two largest units."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with their cells under one another."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return [line.rstrip() for line in lines]


_WRITERS: dict[type[Document], Callable[[Any, int], list[str]]] = {
    ZoneList: zone_lines,
    Progress: progress_lines,
    PartitionMap: map_lines,
    Top: top_lines,
    Explanation: explanation_lines,
    SupportBundle: bundle_lines,
    TaskReport: report_lines,
    TransferReport: transfer_report_lines,
    WhatIf: what_if_lines,
}
