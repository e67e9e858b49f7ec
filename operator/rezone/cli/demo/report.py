"""What the demo found, and how it is printed."""

import dataclasses
import statistics
from collections.abc import Sequence

import click

from rezone.cli.demo.gaps import Gap
from rezone.cli.demo.history import History
from rezone.cli.demo.proof import Proof


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One rebalance: its moves against the least possible, and its bulk copy."""

    name: str
    moves: int
    moves_lower_bound: int
    leader_moves: int
    copied_bytes: int
    copy_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoReport:
    """Everything the demo measured and proved."""

    rows_loaded: int
    load_seconds: float
    tasks: tuple[TaskResult, ...]
    gaps: tuple[Gap, ...]
    writes: int
    reads: int
    traffic_problems: tuple[str, ...]
    proof: Proof
    map_before: str
    map_after: str
    history: History

    @property
    def kept(self) -> bool:
        """Whether nothing was lost, doubled or refused."""
        return not self.proof.problems and not self.traffic_problems


PROBLEMS_SHOWN = 10


def show(report: DemoReport) -> None:
    """Print the report."""
    click.echo("\nPartition map before:\n" + report.map_before)
    click.echo("\nPartition map after:\n" + report.map_after)
    click.echo(
        f"\nLoaded {report.rows_loaded:,} rows in {report.load_seconds:.1f} s "
        f"({report.rows_loaded / report.load_seconds:,.0f} rows/s, on 3 replicas' disks)"
    )
    for task in report.tasks:
        _show_task(task)
    _show_gaps(report.gaps)
    _show_proof(report)


def _show_task(task: TaskResult) -> None:
    rate = task.copied_bytes / task.copy_seconds / 1e6 if task.copy_seconds else 0.0
    click.echo(
        f"Rebalance {task.name}: {task.moves} moves (least possible {task.moves_lower_bound}), "
        f"{task.leader_moves} leaders moved, {task.copied_bytes / 1e6:,.0f} MB copied at "
        f"{rate:,.0f} MB/s, {task.seconds:.1f} s in all"
    )


def _show_gaps(gaps: Sequence[Gap]) -> None:
    click.echo(
        "Write gap of each leader move: between the last write that the old leader answered and\n"
        "the first one of the new leader; beside it the longest and the usual (median) time\n"
        "between any two writes from when the move was seen until a second after it:"
    )
    for gap in gaps:
        move = gap.move
        click.echo(
            f"  partition {move.partition:>4}  data node {move.source} -> {move.target}  "
            f"{gap.handover_ms:7.1f} ms   longest {gap.longest_ms:7.1f} ms   usual "
            f"{gap.usual_ms:6.1f} ms"
        )
    if gaps:
        handovers = [gap.handover_ms for gap in gaps]
        click.echo(f"  median {statistics.median(handovers):.1f} ms, most {max(handovers):.1f} ms")


def _show_proof(report: DemoReport) -> None:
    proof = report.proof
    click.echo(
        f"Rows: {proof.rows_total:,} in the zone, {proof.rows_expected:,} loaded or acknowledged; "
        f"{proof.rows_checked:,} written rows read back"
    )
    click.echo(
        f"Row changes: {proof.offsets_total:,} logged, {proof.offsets_expected:,} acknowledged, "
        f"{proof.offsets_unknown} without an answer"
    )
    click.echo(
        f"Replicas: {proof.replicas_compared} copies have their leader's digest"
        if not proof.problems
        else "Replicas: see below"
    )
    click.echo(f"Traffic: {report.writes:,} writes and {report.reads:,} reads answered")
    for problem in (*proof.problems, *report.traffic_problems)[:PROBLEMS_SHOWN]:
        click.secho(f"  PROBLEM {problem}", fg="red")
    if report.kept:
        click.secho("Every acknowledged write is there exactly once.", fg="green", bold=True)
    else:
        click.secho("The promise was NOT kept.", fg="red", bold=True)
