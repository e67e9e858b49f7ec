"""What the console shows of zones and rebalances: the view models and the pictures."""

from __future__ import annotations

import re

import pytest
from console_objects import (
    AFTER,
    BEFORE,
    PLAN,
    planned_status,
    records_of,
    replicated,
    task_of,
    zone_of,
)
from hypothesis import given
from hypothesis import strategies as st

from rezone.console.actions import (
    WORDS,
    Action,
    ActionRefusedError,
    action_patch,
    possible_actions,
)
from rezone.console.pages import STATIC_FOLDER, Pages
from rezone.console.reading import ObservedZone
from rezone.console.views import maps
from rezone.console.views.partitions import (
    OVERVIEW_CELLS_MAX,
    PAGE_PARTITIONS,
    Health,
    overview_of,
    page_count,
    page_in,
    rows_of,
)
from rezone.console.views.tasks import Standing, task_view
from rezone.console.views.zones import PAGE_NODES, Shown, zone_view
from rezone.domain.routing.route_records import RouteRecords
from rezone.report.words import bytes_text, seconds_text
from rezone.resources.copy_progress import CopiesProgress, RepairProgress
from rezone.resources.machine_status import SparkCopies, WaitedFor, WaitingReason
from rezone.resources.migration import (
    MigrationState,
    RegionMigration,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.model import ObjectMeta
from rezone.resources.task import (
    PartitionGap,
    TaskProgress,
    TaskState,
    TaskType,
    WriteUnavailability,
)

ZONE_SECTIONS = ("head", "tasks", "jobs", "map", "nodes")


def test_a_partition_says_who_holds_it_and_how_it_is() -> None:
    """A person would take a learner for a replica that has all rows, or miss a lost quorum."""
    first, second, third = records_of(((0, 1, 2),) * 3)
    copying = replicated(second, replicas=(0, 1, 2, 3))
    lost = replicated(third, isr=(0,), hot_standby_replica=1)
    rows = rows_of([first, copying, lost], ((0, 1, 2), (0, 1, 3), (0, 1, 2)), min_in_sync=2)
    assert [row.health for row in rows] == [
        Health.IN_SYNC,
        Health.CATCHING_UP,
        Health.BELOW_MINIMUM,
    ]
    assert [row.moves for row in rows] == [False, True, False]
    assert [row.learners for row in rows] == [(), (3,), (1, 2)]
    assert [row.leader for row in rows] == [0, 0, 0]


@given(count=st.integers(0, 1500), asked=st.integers(-10, 10**6))
def test_the_overview_and_the_pages_have_each_partition_once(count: int, asked: int) -> None:
    """A partition would be on no page, or a page that does not exist would be asked for."""
    record = records_of(((0, 1),))[0]
    rows = rows_of([record] * count, (), min_in_sync=1)
    cells = overview_of(rows)
    assert len(cells) <= OVERVIEW_CELLS_MAX
    assert [i for cell in cells for i in range(cell.first, cell.last + 1)] == [*range(count)]
    assert all(cell.page == cell.first // PAGE_PARTITIONS for cell in cells)
    assert 0 <= page_in(asked, count) < page_count(count)
    assert count <= page_count(count) * PAGE_PARTITIONS < count + PAGE_PARTITIONS + (not count)


def test_a_plan_is_shown_before_and_after_with_how_far_each_partition_is() -> None:
    """Who approves a plan would not see what it moves, nor later what is left."""
    records = records_of(BEFORE)
    view = task_view(task_of(planned_status()), records)
    assert [(each.index, each.added, each.removed, each.why) for each in view.changed] == [
        (0, (3,), (1,), "Balance"),
        (3, (), (), "leader only"),
    ]
    assert [each.leader_moves for each in view.changed] == [False, True]
    assert [each.standing for each in view.changed] == [Standing.WAITING, Standing.SWITCHING]
    records[0] = replicated(records[0], replicas=(0, 1, 3))
    assert task_view(task_of(planned_status()), records).changed[0].standing is Standing.COPYING
    records[0] = replicated(records[0], replicas=(0, 3), isr=(0, 3))
    assert task_view(task_of(planned_status()), records).changed[0].standing is Standing.DONE


def test_a_plan_that_cannot_be_read_or_is_not_there_is_said() -> None:
    """The page of a task with a damaged status would be an error instead of a page."""
    status = planned_status().model_copy(update={"source": "0,0"})
    assert "cannot be read" in task_view(task_of(status)).problem
    assert task_view(task_of()).problem == "There is no plan yet."
    resharded = planned_status(BEFORE, AFTER + AFTER)
    view = task_view(task_of(resharded, type=TaskType.RESHARD, revision=1))
    assert (view.layouts, view.changed_count) == ((4, 8), 0)


@given(
    rows=st.lists(st.permutations(range(5)).map(lambda p: tuple(p[:3])), min_size=1, max_size=90),
    data=st.data(),
)
def test_all_changed_partitions_of_a_plan_are_on_its_pages(
    rows: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """A move would be approved that no page has shown."""
    after = [data.draw(st.sampled_from([row, row[::-1], (9, *row[1:])])) for row in rows]
    status = planned_status(tuple(rows), tuple(after))
    pages = task_view(task_of(status)).pages
    shown = [p for page in range(pages) for p in task_view(task_of(status), page=page).changed]
    changed = [i for i, (old, new) in enumerate(zip(rows, after, strict=True)) if old != new]
    assert [each.index for each in shown] == changed
    for each in shown:
        assert {*each.before} - {*each.removed} | {*each.added} == {*each.after}


@pytest.mark.parametrize(
    ("state", "spec", "offered"),
    [
        (TaskState.PLANNED, {}, ["approve", "suspend", "cancel"]),
        (TaskState.PLANNED, {"approved_plan": PLAN}, ["suspend", "cancel"]),
        (TaskState.TRANSFERRING, {}, ["suspend", "cancel"]),
        (TaskState.TRANSFERRING, {"suspend": True}, ["resume", "cancel"]),
        (TaskState.TRANSFERRING, {"cancel": True}, []),
        (TaskState.CANCELLING, {}, []),
        (TaskState.SUCCEEDED, {}, []),
    ],
)
def test_only_what_a_task_can_do_is_offered(
    state: TaskState, spec: dict[str, object], offered: list[str]
) -> None:
    """A person would be offered a cancel of what has ended, or no approval of what waits."""
    task = task_of(planned_status().model_copy(update={"state": state}), **spec)
    assert [action.value for action in possible_actions(task)] == offered


def test_a_patch_asks_for_what_the_person_saw_and_nothing_else() -> None:
    """Another plan would be approved than the one on the page, or another task of its name."""
    task = task_of(planned_status())
    patch = action_patch(task, Action.APPROVE, uid="task-uid", plan=PLAN)
    assert patch == {"metadata": {"uid": "task-uid"}, "spec": {"approvedPlan": PLAN}}
    patch = action_patch(task, Action.CANCEL, uid="task-uid")
    assert patch["spec"] == {"cancel": True}
    with pytest.raises(ActionRefusedError, match=f"you looked at older, it is {PLAN} now"):
        action_patch(task, Action.APPROVE, uid="task-uid", plan="older")
    with pytest.raises(ActionRefusedError):
        action_patch(task, Action.APPROVE, uid="another", plan=PLAN)
    with pytest.raises(ActionRefusedError):
        action_patch(task, Action.RESUME, uid="task-uid")


def test_a_leader_transfer_is_cancelled_until_it_has_ended() -> None:
    """A cancel would be offered that the operator cannot carry out any more."""
    going = RegionMigration(
        metadata=ObjectMeta(name="m", uid="u"),
        spec=RegionMigrationSpec(zone_name="orders", partition=0),
    )
    assert action_patch(going, Action.CANCEL, uid="u")["spec"] == {"cancel": True}
    ended = going.model_copy(
        update={"status": RegionMigrationStatus(state=MigrationState.SUCCEEDED)}
    )
    assert possible_actions(ended) == ()
    with pytest.raises(ActionRefusedError):
        action_patch(ended, Action.CANCEL, uid="u")


def test_the_map_shows_who_leaves_and_who_comes() -> None:
    """The picture would say that nothing moves while a partition does."""
    rows = rows_of(records_of(BEFORE[:1]), AFTER[:1], min_in_sync=1)
    drawn = maps.matrix(rows, (0, 1, 3))
    assert "partition 0, node 0: leader<" in drawn
    assert "partition 0, node 1: follower, leaves<" in drawn
    assert "partition 0 shall come to node 3<" in drawn
    assert drawn.count("<rect") == 3


@pytest.mark.proves("OB-03")
def test_a_zone_of_16384_partitions_on_1000_nodes_has_a_small_page() -> None:
    """The page of the largest zone would be megabytes, sent again whenever something moves."""
    topology = tuple(((i % 1000), (i + 1) % 1000, (i + 2) % 1000) for i in range(16_384))
    zone = zone_of(topology, nodes=1000)
    routes = RouteRecords(records_of(topology))
    view = zone_view(zone, routes, Shown(partitions=200, nodes=3))
    assert (view.page, view.pages, len(view.rows)) == (200, 256, PAGE_PARTITIONS)
    assert (view.nodes[0].node.id, len(view.nodes)) == (150, PAGE_NODES)
    assert len(view.overview) == OVERVIEW_CELLS_MAX
    seen = ObservedZone(zone, routes)
    sections = Pages().sections(
        "zone", ZONE_SECTIONS, view=view, seen=seen, jobs=(), address="/zones/s/o"
    )
    sizes = {name: len(html) for name, html in sections.items()}
    assert sum(sizes.values()) < 200_000, sizes


def test_what_an_object_says_is_never_markup() -> None:
    """Who may write a zone's status, or name a node, would run scripts with a person's rights."""
    evil = '"><script>alert(1)</script>'
    zone = zone_of(BEFORE)
    assert zone.status is not None
    nodes = [node.model_copy(update={"pod_name": evil}) for node in zone.status.data_nodes]
    said = [each.model_copy(update={"message": evil}) for each in zone.status.conditions]
    status = zone.status.model_copy(
        update={"data_nodes": tuple(nodes), "conditions": tuple(said), "current_task": evil}
    )
    zone = zone.model_copy(update={"status": status})
    task = task_of(planned_status().model_copy(update={"waiting_for": evil}))
    seen = ObservedZone(zone, RouteRecords(records_of(BEFORE)), evil, (task,))
    view = zone_view(zone, seen.routes, Shown(), evil)
    pages = Pages()
    sections = pages.sections(
        "zone", ZONE_SECTIONS, view=view, seen=seen, jobs=(), address="/zones/s/o"
    )
    names = ("head", "actions", "progress", "plan", "history")
    sections |= pages.sections(
        "task",
        names,
        view=task_view(task),
        actions=possible_actions(task),
        words=WORDS[type(task)],
        splits=None,
        address="/tasks/s/o",
    )
    html = "".join(sections.values())
    assert html.count("alert(1)") > 5
    assert "<script" not in html
    assert not re.search(r"<[^>]+ (style|on\w+)=", html), "the policy allows no such attributes"


def test_the_overview_tells_healths_by_shape_and_text() -> None:
    """Who does not see colours would not find the partition that refuses writes."""
    first, second, third = records_of(((0, 1, 2),) * 3)
    records = [first, replicated(second, replicas=(0, 1, 2, 3)), replicated(third, isr=(0,))]
    cells = overview_of(rows_of(records, ((0, 1, 2),) * 3, min_in_sync=2))
    drawn = maps.overview(cells, "/zones/s/o")
    shapes = re.findall(
        r"<(rect|circle) [^>]*?(?:height=\"(\d+)\")? class=\"([^\"]*)\"><title>", drawn
    )
    assert shapes == [("rect", "9", "ok"), ("rect", "5", "behind moving"), ("circle", "", "bad")]
    assert "1: catching up, 1 moving<" in drawn


STYLE = (STATIC_FOLDER / "console.css").read_text()
PAIRS = [
    ("text", "ground"),
    ("text", "raised"),
    ("soft", "ground"),
    ("soft", "raised"),
    ("link", "ground"),
    ("ground", "link"),
    ("bad", "ground"),
    ("text", "bad-ground"),
    ("on-mark", "ok"),
    ("on-mark", "standby"),
    ("on-follower", "follower"),
]


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("above", "below"), PAIRS)
def test_text_has_contrast(scheme: int, above: str, below: str) -> None:
    """Who sees little contrast could not read it (WCAG 2.1, 1.4.3: at least 4.5 to 1)."""
    found = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6})", found))
    light, dark = sorted((_luminance(colours[above]), _luminance(colours[below])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_quantities_are_short() -> None:
    """Numbers of many digits cannot be compared at a glance."""
    shown = [bytes_text(n) for n in (0, 999, 1000, 5_430_000, 54_300_000, 999_600_000, 10**18)]
    assert shown == ["0 B", "999 B", "1.0 kB", "5.4 MB", "54 MB", "1.0 GB", "1000 PB"]
    assert [seconds_text(n) for n in (None, 59, 61, 3661, 90_000)] == [
        "–",  # noqa: RUF001 - a dash is meant
        "59 s",
        "1 min 1 s",
        "1 h 1 min",
        "1 d 1 h",
    ]


@pytest.mark.proves("OB-03", "SP-10")
def test_a_rebalance_says_how_many_rows_it_has_copied_and_how_uneven_they_are() -> None:
    """Who looks at a slow rebalance would not see that one copy has most of the bytes."""
    progress = TaskProgress(rows_total=4000, rows_done=1500, skew_percent=320)
    told = planned_status().model_copy(update={"progress": progress})
    for status, skew in (
        (told, "the largest copy has 3.20 times the bytes of the mean one"),
        (planned_status(), "unknown"),
    ):
        view = task_view(task_of(status))
        found = Pages().sections("task", ("progress",), view=view, splits=None)
        text = " ".join(re.sub(r"<[^>]*>", " ", found["progress"]).split())
        assert f"Skew {skew}" in text
        assert ("Rows 1,500 of about 4,000" in text) == (status is told), text


def words_of(section: str) -> str:
    """Return the text of a section as a person reads it."""
    return " ".join(re.sub(r"<[^>]*>", " ", section).split())


@pytest.mark.proves("OB-03", "SP-10")
def test_repairs_and_the_copy_of_a_leader_transfer_say_how_far_they_are() -> None:
    """Who looks at a zone that refills a data node would see that nothing moves."""
    repairs = RepairProgress(
        copies_total=9,
        copies_done=4,
        data_nodes=(2, 5),
        rows_total=40,
        rows_done=15,
        seconds_left=7,
    )
    zone = zone_of(BEFORE)
    assert zone.status is not None
    status = zone.status.model_copy(update={"repair_progress": repairs})
    for told, shown in ((status, True), (zone.status, False)):
        seen = ObservedZone(
            zone=zone.model_copy(update={"status": told}), routes=RouteRecords(records_of(BEFORE))
        )
        text = words_of(Pages().sections("zone", ("tasks",), seen=seen)["tasks"])
        assert ("Data nodes 2, 5 Copies 4 of 9" in text) == shown
        assert ("Rows 15 of about 40 Skew unknown" in text) == shown
    copy = RegionMigrationStatus(
        state=MigrationState.OPEN_CANDIDATE,
        copies=SparkCopies(attempt=1, application="m-move-1"),
        copy_progress=CopiesProgress(rows_total=40, rows_done=15, seconds_left=7),
    )
    migration = RegionMigration(
        metadata=ObjectMeta(name="m", namespace="shop"),
        spec=RegionMigrationSpec(zone_name="orders", partition=0),
        status=copy,
    )
    found = Pages().sections("migration", ("head",), migration=migration, address="/x")
    text = words_of(found["head"])
    assert "Rows 15 of about 40 Rate 0 B/s Time left 7 s It travels by Spark, m-move-1" in text


@pytest.mark.proves("OB-03", "OB-05")
def test_an_ended_rebalance_says_what_it_waited_for_and_cost_writers() -> None:
    """Who looks at the page afterwards would have to ask for the report besides."""
    waits = (
        WaitedFor(reason=WaitingReason.COPYING, seconds=5),
        WaitedFor(reason=WaitingReason.LIMIT, seconds=130),
    )
    gap = PartitionGap(partition=3, milliseconds=8)
    cost = WriteUnavailability(
        transfers=2, total_milliseconds=9, max_milliseconds=8, longest=(gap,)
    )
    told = {"state": TaskState.SUCCEEDED, "waits": waits, "write_unavailability": cost}
    for changes, shown in (({}, False), (told, True)):
        task = task_of(planned_status().model_copy(update=changes))
        found = Pages().sections("task", ("progress",), view=task_view(task), splits=None)
        text = " ".join(re.sub(r"<[^>]*>", " ", found["progress"]).split())
        assert ("Has waited for Limit 2 min 10 s, Copying 5 s" in text) == shown, text
        stopped = "by 2 leader transfers, for at most 8 ms (partition 3)"
        assert (stopped in text) == shown
    resharded = task_of(planned_status().model_copy(update=told), type=TaskType.RESHARD, revision=1)
    found = Pages().sections("task", ("progress",), view=task_view(resharded), splits=None)
    assert "by 2 cut-overs, for" in found["progress"]
