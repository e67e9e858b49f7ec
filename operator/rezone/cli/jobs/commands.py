"""The commands of bulk jobs; all go one way: submit, follow, say the end."""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from rezone.cli.jobs.follow import FAILED, end_of, follow, say_line
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError
from rezone.kube.api.kinds import SparkApplication
from rezone.kube.api.names import LABEL_CHARS_MAX
from rezone.kube.jobs.bulk_jobs import (
    OTHER_TLS_PATH,
    Means,
    Volume,
    bootstrap_of,
    bulk_job,
    view_of,
)
from rezone.kube.jobs.spark import SparkSettings, SparkStore
from rezone.kube.stored.store import StatusStore
from rezone.resources.zone import DistributionZone


class NotRunError(click.ClickException):
    """What keeps a job from its result; 1 is that of a result that a person has to look at."""

    exit_code = FAILED


C = TypeVar("C", bound=Callable[..., Any])

_NAME_TAIL_CHARS = 37
_RANDOM_BYTES = 2
"""For the kind, the time and the ends that Spark puts behind a name."""


def _volume(
    _context: click.Context, _option: click.Parameter, given: Sequence[str]
) -> list[Volume]:
    found = []
    for each in given:
        claim, _, path = each.partition(":")
        if not claim or not path.startswith("/"):
            raise click.BadParameter(f"{each!r} is not CLAIM:/PATH")
        found.append(Volume(claim, path))
    return found


_COMMON = (
    click.option("--namespace", "-n", help="The zone's namespace; default: the context's."),
    click.option(
        "--image", envvar="REZONE_SPARK_IMAGE", required=True, help="Rezone's Spark image."
    ),
    click.option(
        "--service-account", default="rezone-spark", show_default=True, help="The driver's."
    ),
    click.option(
        "--executors", type=click.IntRange(1), default=2, show_default=True, help="How many."
    ),
    click.option("--tls-secret", default="", help="Secret with the certificate to show the zone."),
    click.option(
        "--env-secret", default="", help="Secret whose keys become variables: of a store."
    ),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        callback=_volume,
        metavar="CLAIM:/PATH",
        help="A volume claim that driver and executors have; may be repeated.",
    ),
    click.option("--wait/--no-wait", default=True, help="Show the job until it ends."),
    click.option(
        "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True
    ),
)


def _common(command: C) -> C:
    for option in reversed(_COMMON):
        command = option(command)
    return command


def _flags(**given: object) -> list[str]:
    """Return the arguments of options that are given."""
    found: list[str] = []
    for name, value in given.items():
        if value is not None:
            found += [f"--{name.replace('_', '-')}", str(value)]
    return found


@click.command("verify")
@click.argument("zone")
@click.option("--with-zone", help="Compare with this zone.")
@click.option("--with-namespace", help="The namespace of that zone; default: the same.")
@click.option(
    "--with-tls-secret", default="", help="Secret with the certificate to show that zone."
)
@click.option("--with-parquet", metavar="URI", help="Compare with an export, or any Parquet files.")
@click.option("--with-digests", metavar="URI", help="Compare with what --save has written.")
@click.option("--replicas", is_flag=True, help="Compare the replicas of each partition.")
@click.option("--save", metavar="URI", help="Write the digests to a file.")
@click.option(
    "--as-of", type=int, help="Microseconds since 1970; default: now, or that of the other."
)
@click.option("--with-as-of", type=int, help="The same of the other zone.")
@click.option("--ranges", type=click.IntRange(1, 65_536), help="How many ranges have digests.")
@_common
def verify(
    *,
    zone: str,
    with_zone: str | None,
    with_namespace: str | None,
    with_tls_secret: str,
    with_parquet: str | None,
    with_digests: str | None,
    replicas: bool,
    save: str | None,
    as_of: int | None,
    with_as_of: int | None,
    ranges: int | None,
    **common: Any,
) -> None:
    """Count and digest the rows of ZONE as of one time, and compare them with others.

    Exit code: 0 the same, 1 different, 2 not compared.
    """
    others = (with_zone, with_parquet, with_digests, replicas or None)
    if sum(each is not None for each in others) > 1:
        raise click.UsageError(
            "compare with one of --with-zone, --with-parquet, --with-digests, --replicas"
        )
    if replicas and save:
        raise click.UsageError("--save is for the digests of a zone, not of its --replicas")
    flags = ["--replicas"] if replicas else []
    flags += _flags(
        with_parquet=with_parquet,
        with_digests=with_digests,
        save=save,
        as_of=as_of,
        with_as_of=with_as_of,
        ranges=ranges,
    )

    async def arguments(kube: Kube, namespace: str) -> list[str]:
        if with_zone is None:
            return flags
        other = await StatusStore(kube).read(
            DistributionZone, with_namespace or namespace, with_zone
        )
        tls = OTHER_TLS_PATH if with_tls_secret else None
        more = _flags(
            with_bootstrap=bootstrap_of(other), with_zone=with_zone, with_tls_directory=tls
        )
        return [*flags, *more]

    _run("verify", zone, arguments, other_tls_secret=with_tls_secret, **common)


@click.command("export")
@click.argument("zone")
@click.argument("to", metavar="URI")
@click.option("--as-of", type=int, help="Microseconds since 1970; default: now.")
@click.option(
    "--files",
    type=click.IntRange(1, 65_536),
    help="How many; default: as many as partitions, at least 8.",
)
@click.option(
    "--iceberg",
    metavar="CATALOG.NAMESPACE.TABLE",
    help="Make the files the content of this Iceberg table.",
)
@_common
def export(
    *,
    zone: str,
    to: str,
    as_of: int | None,
    files: int | None,
    iceberg: str | None,
    **common: Any,
) -> None:
    """Export ZONE as of one time to Parquet files in the directory URI, or to an Iceberg table.

    The same command goes on with one that has not ended. Exit code: 0 whole, 2 not.
    """
    _run("export", zone, _given(_flags(to=to, as_of=as_of, parts=files, iceberg=iceberg)), **common)


@click.command("load")
@click.argument("zone")
@click.argument("source", metavar="[URI]", required=False)
@click.option("--state", metavar="URI", required=True, help="A directory for what is loaded.")
@click.option("--csv", is_flag=True, help="The files are CSV with a header; default: Parquet.")
@click.option(
    "--iceberg", metavar="CATALOG.NAMESPACE.TABLE", help="Load this Iceberg table; without a URI."
)
@click.option("--snapshot", type=click.IntRange(1), help="Its id; default: the table's newest.")
@click.option("--overwrite", is_flag=True, help="Replace all rows of ZONE, by one switch.")
@click.option("--name", help="Loads the same files again under another name.")
@click.option("--refused-max", type=click.IntRange(0), help="Fail when a part has more bad rows.")
@_common
def load(
    *,
    zone: str,
    source: str | None,
    state: str,
    csv: bool,
    iceberg: str | None,
    snapshot: int | None,
    overwrite: bool,
    name: str | None,
    refused_max: int | None,
    **common: Any,
) -> None:
    """Load the files at URI, or a snapshot of an Iceberg table, into ZONE, each row once.

    The same command goes on with a load that has not ended. Exit code: 0 all rows, 1 some were
    refused (with --overwrite ZONE then is as it was), 2 not ended.
    """
    if (source is None) == (iceberg is None) or (csv and iceberg):
        raise click.UsageError("load a URI or --iceberg, one of them")
    if snapshot and not iceberg:
        raise click.UsageError("--snapshot is one of a table: name it with --iceberg")
    flags = _flags(
        **{"csv" if csv else "parquet": source},
        iceberg=iceberg,
        snapshot=snapshot,
        state=state,
        name=name,
        refused_max=refused_max,
    )
    flags += ["--overwrite"] if overwrite else []
    _run("load", zone, _given(flags), **common)


@click.command("job")
@click.argument("name")
@click.option("--namespace", "-n", help="The job's namespace; default: the context's.")
@click.option("--cancel", is_flag=True, help="End it: the same command goes on with it later.")
def job(*, name: str, namespace: str | None, cancel: bool) -> None:
    """Show the bulk job NAME until it ends, or cancel it."""

    async def run(kube: Kube) -> tuple[int, str]:
        place = namespace or kube.namespace
        await view_of(kube, place, name)
        if cancel:
            await kube.delete(SparkApplication, place, name)
            return 0, f"{name} is cancelled"
        return end_of(await follow(kube, place, name, say_line), place)

    code, said = _asked(run)
    click.echo(said)
    raise SystemExit(code)


Arguments = Callable[[Kube, str], Coroutine[Any, Any, list[str]]]


def _given(flags: list[str]) -> Arguments:
    async def arguments(_kube: Kube, _namespace: str) -> list[str]:
        return flags

    return arguments


def _run(
    kind: str,
    zone: str,
    arguments: Arguments,
    *,
    namespace: str | None,
    image: str,
    service_account: str,
    executors: int,
    tls_secret: str,
    env_secret: str,
    volumes: list[Volume],
    wait: bool,
    output: str,
    other_tls_secret: str = "",
) -> None:
    """Submit a job of a zone, follow it, and end with its exit code."""
    means = Means(
        tls_secret=tls_secret,
        other_tls_secret=other_tls_secret,
        env_secret=env_secret,
        volumes=volumes,
    )
    settings = SparkSettings(
        image=image, service_account=service_account, executor_instances=executors
    )

    async def run(kube: Kube) -> tuple[int, str]:
        place = namespace or kube.namespace
        found = await StatusStore(kube).read(DistributionZone, place, zone)
        name = job_name(zone, kind, datetime.now(UTC))
        given = await arguments(kube, place)
        wanted = bulk_job(kind, name, found, given, means)
        if not await SparkStore(kube, settings).submit(name, found, found, wanted):
            raise NotRunError(f"there is a job {name} already: say it again")
        say_line(f"{name} is submitted; `rezone job {name}` shows it, with --cancel it ends")
        if not wait:
            return 0, name
        view = await follow(kube, place, name, say_line)
        code, said = end_of(view, place)
        return code, said if output == "text" else json.dumps(view.result or {"error": said})

    code, said = _asked(run)
    click.echo(said)
    raise SystemExit(code)


def job_name(zone: str, kind: str, now: datetime) -> str:
    """Return the name of a new job's application; Spark puts more behind it for its pods."""
    head = zone[: LABEL_CHARS_MAX - _NAME_TAIL_CHARS].rstrip("-.")
    return f"{head}-{kind}-{now:%Y%m%d%H%M%S}-{secrets.token_hex(_RANDOM_BYTES)}"


def _asked(run: Callable[[Kube], Coroutine[Any, Any, tuple[int, str]]]) -> tuple[int, str]:
    async def connected() -> tuple[int, str]:
        async with await connect() as kube:
            return await run(kube)

    try:
        return asyncio.run(connected())
    except KubeError as error:
        raise NotRunError(str(error)) from error
