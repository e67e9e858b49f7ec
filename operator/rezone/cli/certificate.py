"""`rezone certificate`: a client's certificate, signed by the authority of an installation.

Whoever may read the authority's Secret may sign; nobody else is asked.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import click

from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError
from rezone.kube.api.kinds import Secret
from rezone.kube.tls.authority import LIFETIME
from rezone.kube.tls.certificates import AUTHORITY_SECRET, issuer_of
from rezone.resources import NAMESPACE
from rezone.wire.transport.identity import CLIENT_ROLES, Identity, Role
from rezone.wire.transport.tls import FILES, TlsFiles, utc_now

KEY_MODE = 0o600

Command = Callable[..., None]


def client_options(role_help: str) -> Callable[[Command], Command]:
    """Return what adds the zone, the role in it and the directory of a client's certificate."""
    options = (
        click.argument("zone"),
        click.option("--namespace", "-n", help="The zone's namespace; default: the context's."),
        click.option(
            "--role",
            type=click.Choice([role.value for role in CLIENT_ROLES]),
            default=Role.READER.value,
            show_default=True,
            help=role_help,
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="A directory for ca.crt, tls.crt and tls.key.",
        ),
    )

    def add(command: Command) -> Command:
        # The last decorator is applied first.
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command("certificate")
@client_options("What its holder may do.")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=LIFETIME.days,
    show_default=True,
    help="How long it is good for.",
)
@click.option(
    "--authority",
    default=f"{NAMESPACE}/{AUTHORITY_SECRET}",
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="The Secret that signs.",
)
def certificate(
    *, zone: str, namespace: str | None, role: str, out: Path, days: int, authority: str
) -> None:
    """Issue a certificate for a client of ZONE."""

    async def run() -> TlsFiles:
        async with await connect() as kube:
            identity = Identity(Role(role), namespace or kube.namespace, zone)
            return await issue(kube, authority, identity, timedelta(days=days))

    try:
        files = asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    write(out, files)
    click.echo(f"{files.name}, good until {files.not_after:%Y-%m-%d}: REZONE_TLS_DIRECTORY={out}")


async def issue(kube: Kube, authority: str, identity: Identity, lifetime: timedelta) -> TlsFiles:
    """Return a certificate that the authority in the Secret "namespace/name" has signed."""
    place, _, name = authority.partition("/")
    return issuer_of(await kube.get(Secret, place, name)).issue(identity, utc_now(), lifetime)


def write(directory: Path, files: TlsFiles) -> None:
    """Write the three files; the key is for its owner alone."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = (files.authority, files.certificate, files.key)
    for name, content in zip(FILES, contents, strict=True):
        path = directory / name
        path.touch(KEY_MODE)
        path.write_bytes(content)
