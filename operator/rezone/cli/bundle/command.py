"""`rezone support-bundle`: writes the archive and says what is not in it."""

import asyncio
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from rezone.cli.bundle.archive import Archive
from rezone.cli.bundle.collect import Collector, Wanted
from rezone.cli.look.output import document, output_option
from rezone.cli.look.text import text_of
from rezone.cli.look.views import BundleFile, SupportBundle
from rezone.kube.api.client import connect
from rezone.kube.api.errors import KubeError

RESERVED_BYTES = 4 << 20
"""What the list of the bundle's contents may take, besides the limit."""


@click.command("support-bundle")
@click.argument("zone", required=False, default="")
@click.option("--namespace", "-n", help="The zones' namespace; default: the context's.")
@click.option(
    "--operator-namespace", default="", help="Where the operator runs; default: look in all."
)
@click.option(
    "--file",
    "-f",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive; default: rezone-support-NAMESPACE-TIME.tar.gz. It must not exist.",
)
@click.option(
    "--max-mib",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Its most MiB, unpacked.",
)
@click.option(
    "--seconds",
    type=click.IntRange(5, 3600),
    default=120,
    show_default=True,
    help="How long it may take.",
)
@output_option
def support_bundle(
    *,
    zone: str,
    namespace: str | None,
    operator_namespace: str,
    path: Path | None,
    max_mib: int,
    seconds: int,
    output: str,
) -> None:
    """Write an archive for who helps you: of ZONE, or of all zones of the namespace.

    Objects, route tables, logs, metrics, streams and stacks, without secrets and rows. It reads
    with your rights, changes nothing, and says what it could not read.
    """
    now = datetime.now(UTC)

    async def run() -> SupportBundle:
        async with await connect() as kube:
            place = namespace or kube.namespace
            wanted = Wanted(
                namespace=place,
                zone=zone,
                operator_namespace=operator_namespace,
                seconds=float(seconds),
            )
            root = f"rezone-support-{place}-{now:%Y%m%dT%H%M%SZ}"
            file = path or Path(f"{root}.tar.gz")
            limit = (max_mib << 20) + RESERVED_BYTES
            with Archive(file, root=root, bytes_max=limit, now=now) as archive:
                collector = Collector(kube, wanted, archive, reserved_bytes=RESERVED_BYTES)
                await collector.run()
                made = SupportBundle(
                    file=str(file),
                    version=version("rezone"),
                    time=now,
                    namespace=place,
                    zone=zone,
                    files=tuple(BundleFile(name=n, bytes=s) for n, s in archive.sizes.items()),
                    unread=tuple(collector.unread),
                )
                archive.add("bundle.json", document(made, "json").encode())
            return made

    try:
        made = asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write the bundle: {error}") from error
    click.echo(text_of(made) if output == "text" else document(made, output))
