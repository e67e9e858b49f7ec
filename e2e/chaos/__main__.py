"""`python -m e2e.chaos`: faults under a zone in use, in namespaces of our own."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from e2e.chaos import apart
from e2e.chaos.cases import CASES, Case
from e2e.chaos.history import Outcome
from e2e.chaos.linear import build_checker, check
from e2e.chaos.report import Report, Row, table
from e2e.chaos.run import Limits, Run, until_whole
from e2e.chaos.shim import build_shim
from e2e.chaos.snapshots import read_transactions, violations
from e2e.chaos.soak import soak
from e2e.chaos.world import NODES, World
from e2e.kind.command import CommandError, say
from e2e.kind.places import default_places
from rezone.cli.demo.cluster import DemoCluster, DemoError
from rezone.domain.machines.resharding_table import GRACE_SECONDS
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.errors import LocalError
from rezone.local.tools import CONTROL_PLANE, find_tools

SHORT = ("leader-from-peers", "disk-fails", "operator-from-4")
_SEED_MAX = 1 << 31


@click.command()
@click.option("--faults", default="all", show_default=True, help="Names, `short`, `all` or `none`.")
@click.option("--seed", type=int, help="Repeats who is hit; a new one if not given.")
@click.option("--partitions", default=8, show_default=True)
@click.option(
    "--whole-seconds", default=120.0, show_default=True, help="How long healing may take."
)
@click.option(
    "--served-seconds", default=60.0, show_default=True, help="How long until all clients write."
)
@click.option("--storm-seconds", default=0.0, help="How long a storm comes behind the faults.")
@click.option("--soak-seconds", default=0.0, help="How long storms come one after the other then.")
@click.option("--report", type=click.Path(path_type=Path), help="Where the results go as JSON.")
@click.option("--or-skip", is_flag=True, help="Succeed where faults cannot be made, and say so.")
def main(
    *,
    faults: str,
    seed: int | None,
    partitions: int,
    whole_seconds: float,
    served_seconds: float,
    storm_seconds: float,
    soak_seconds: float,
    report: Path | None,
    or_skip: bool,
) -> None:
    """Make faults under a zone in use; fail unless all is whole and right after each."""
    cases = _cases(faults)
    if apart.outside():
        try:
            apart.find_system_programs()
            apart.install_packages()
            apart.check_machine()
        except (apart.UnfitMachineError, CommandError) as error:
            if not or_skip:
                raise click.ClickException(str(error)) from error
            say(f"chaos: SKIPPED, no fault was made: {error}")
            return
        _build()
        apart.go_inside([sys.executable, "-m", "e2e.chaos", *sys.argv[1:]])
    seed = random.SystemRandom().randrange(_SEED_MAX) if seed is None else seed
    say(f"SEED={seed}")
    apart.raise_loopback()
    with _state() as state:
        local = LocalCluster(state / "cluster")
        local.up(NODES, report=say)
        # A storm re-shards up to twice, the second time after the first has let its partitions go.
        retained = 2 * GRACE_SECONDS
        limits = Limits(
            whole_seconds, storm_whole=2 * whole_seconds + retained, served=served_seconds
        )
        plan = Plan(cases, seed, partitions, storm_seconds, soak_seconds, limits)
        found = asyncio.run(_run(state, local, plan))
    if report is not None:
        report.write_bytes(msgspec.json.encode(found))
    sys.exit(1 if found.problems else 0)


@dataclass(frozen=True)
class Plan:
    """What a run plays."""

    cases: Sequence[Case]
    seed: int
    partitions: int
    storm_seconds: float
    soak_seconds: float
    limits: Limits


def _cases(faults: str) -> list[Case]:
    chosen = {"all": tuple(CASES), "short": SHORT, "none": ()}.get(faults)
    names = tuple(faults.replace(",", " ").split()) if chosen is None else chosen
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise click.UsageError(f"no such fault: {unknown}; there are {' '.join(CASES)}")
    return [CASES[name] for name in names]


def _build() -> None:
    """Build what is needed while there still is a network."""
    try:
        find_tools([*CONTROL_PLANE, "kubectl"], report=say)
        build_checker()
        build_shim(default_places().programs)
    except (LocalError, CommandError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _state() -> Iterator[Path]:
    """Yield a directory for one run, and remove those of earlier ones.

    Not below /tmp: pods have a volume of their own there.
    """
    root = default_places().root.parent / "chaos"
    root.mkdir(parents=True, exist_ok=True)
    for old in root.iterdir():
        with _locked(old) as free:
            if free:
                shutil.rmtree(old, ignore_errors=True)
    state = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    with _locked(state):
        yield state
        say(f"logs and histories are in {state} until the next run")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Yield whether nobody else holds a directory; it is held for as long."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


async def _run(state: Path, local: LocalCluster, plan: Plan) -> Report:
    # The first process of a namespace gets no signal that it does not ask for.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    kubectl = find_tools(["kubectl"])["kubectl"]
    async with KubeApi(local.kubeconfig) as api:
        cluster = DemoCluster(api, local.kubeconfig, kubectl, local.kubeconfig.parent)
        world = World(cluster, state, build_shim(default_places().programs), plan.partitions)
        await world.make()
        made = await until_whole(world, plan.limits.made)
        if made.whole is None:
            raise DemoError(f"the zone was not made: {made.missing}")
        world.start_clients(plan.seed)
        say(f"the zone is made; it and its clients run in {state}")
        run = Run(world, plan.seed, plan.limits)
        broken = []
        try:
            await _play(run, plan)
        except DemoError as error:
            broken.append(str(error))
        try:
            # Histories are read one after the other: those of clients that go on contradict.
            world.stop_clients()
        except DemoError as error:
            broken.append(str(error))
    return _report(world, plan.seed, run.rows, broken)


async def _play(run: Run, plan: Plan) -> None:
    for case in plan.cases:
        await run.alone(case)
    if plan.storm_seconds:
        await run.storm(plan.storm_seconds)
    if plan.soak_seconds:
        await soak(run, plan.seed, plan.soak_seconds)


def _report(world: World, seed: int, rows: Sequence[Row], broken: Sequence[str]) -> Report:
    """Return what a run has shown, and say it; `broken` is why it has not come to its end."""
    say(f"\n{table(rows)}\n")
    operations = world.histories.all()
    verdict = check(build_checker(), operations, world.state)
    transactions = read_transactions(world.transactions)
    wrong = violations(transactions)
    problems = list(broken)
    problems += [f"{row.name}: {problem}" for row in rows for problem in row.problems]
    problems += [f"row {row} has an impossible history" for row in verdict.illegal]
    problems += [f"row {row} could not be decided" for row in verdict.undecided]
    report = Report(
        seed=seed,
        rows=list(rows),
        operations=verdict.operations,
        acknowledged_writes=sum(each.write and each.outcome is Outcome.OK for each in operations),
        keys=verdict.rows,
        transactions=Counter(str(each.outcome) for each in transactions),
        violations=len(verdict.illegal) + len(wrong),
        problems=[*problems, *wrong],
    )
    say(
        f"{report.operations} operations on {report.keys} rows: {len(verdict.illegal)} rows have "
        f"impossible histories, {len(verdict.undecided)} could not be decided; "
        f"{len(transactions)} transactions, {len(wrong)} violations of snapshot isolation"
    )
    for problem in report.problems:
        say(problem)
    return report


if __name__ == "__main__":
    main()
