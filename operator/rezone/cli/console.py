"""`rezone console`: the web page, on this machine, with the rights of the user's own kubeconfig."""

import asyncio
import socket
from typing import Final

import click

from rezone.console.app import Console, ConsoleSettings
from rezone.console.guard import LOGIN
from rezone.console.server import ADDRESS, ConsoleServer, listen
from rezone.kube.client import KubeSettings, connect
from rezone.kube.errors import KubeError

PORT: Final = 8790
FIELD_MANAGER: Final = "rezone-console"


@click.command("console")
@click.option("--namespace", "-n", help="Whose zones to list; default: the context's namespace.")
@click.option("--all-namespaces", "-A", is_flag=True, help="List the zones of all namespaces.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="The port on 127.0.0.1; 0: any that is free.",
)
def console(namespace: str | None, *, all_namespaces: bool, port: int) -> None:
    """Serve a web page about zones and what moves in them, until it is interrupted.

    It reads and changes objects with the rights of your kubeconfig. It listens on this machine
    alone, and answers to the browser that has opened the printed link.
    """
    if namespace is not None and all_namespaces:
        raise click.UsageError("--all-namespaces lists all: leave --namespace out")
    try:
        with listen(port) as listener:
            asyncio.run(_serve(listener, namespace, all_namespaces=all_namespaces))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot listen on {ADDRESS}:{port}: {error}") from error
    except KeyboardInterrupt:
        click.echo("")


async def _serve(listener: socket.socket, namespace: str | None, *, all_namespaces: bool) -> None:
    port = listener.getsockname()[1]
    async with await connect(settings=KubeSettings(field_manager=FIELD_MANAGER)) as kube:
        shown = None if all_namespaces else namespace or kube.namespace
        settings = ConsoleSettings(port=port, namespace=shown)
        click.echo(f"Open http://{ADDRESS}:{port}{LOGIN}?key={settings.session.key}")
        click.echo("Who has this link acts with your rights. Ctrl+C ends the console.")
        await ConsoleServer(Console(kube, settings)).serve(sockets=[listener])
