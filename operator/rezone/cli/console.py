"""`rezone console`: the web page, with the rights of whoever looks at it.

On a person's machine it has their kubeconfig. With `--origin` it is in a cluster, behind a proxy
that signs people in, and has the token of whoever asks.
"""

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rezone.console.access.guard import LOGIN
from rezone.console.access.proxied import Proxied, caller_token
from rezone.console.app import Console, ConsoleSettings
from rezone.console.events import EventSettings
from rezone.console.process.health import HealthPort
from rezone.console.process.server import ADDRESS, ConsoleServer, listen
from rezone.kube.api.client import KubeSettings, connect, connect_for_callers
from rezone.kube.api.errors import KubeError

PORT: Final = 8790
FIELD_MANAGER: Final = "rezone-console"
AUTHORITY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
STREAMS_OF_MANY_MAX: Final = 96
_KUBE: Final = KubeSettings(field_manager=FIELD_MANAGER)


@dataclass(frozen=True, kw_only=True)
class _Cluster:
    """Where the console is, in a cluster; `health` is the address of its health port, or empty."""

    proxied: Proxied
    api_server: str
    api_ca: Path
    health: str


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
@click.option(
    "--origin",
    help="In a cluster, behind a proxy in the same pod: the https:// name by which people open it. "
    "Acts with the bearer token of each request alone.",
)
@click.option("--api-server", help="With --origin: the API server; default: the pod's.")
@click.option(
    "--api-ca",
    type=click.Path(path_type=Path),
    default=AUTHORITY,
    show_default=True,
    help="With --origin: the certificate authority of the API server.",
)
@click.option(
    "--health-address", default="", help="With --origin: HOST:PORT that answers /healthz."
)
def console(
    namespace: str | None,
    *,
    all_namespaces: bool,
    port: int,
    origin: str | None,
    api_server: str | None,
    api_ca: Path,
    health_address: str,
) -> None:
    """Serve a web page about zones and what moves in them, until it is interrupted.

    It reads and changes objects with the rights of your kubeconfig. It listens on this machine
    alone, and answers to the browser that has opened the printed link.
    """
    if namespace is not None and all_namespaces:
        raise click.UsageError("--all-namespaces lists all: leave --namespace out")
    cluster = _cluster(origin, api_server, api_ca, health_address) if origin is not None else None
    if cluster is not None and namespace is None and not all_namespaces:
        raise click.UsageError("--origin has no context: name the zones by -n or -A")
    try:
        with listen(port) as listener:
            if cluster is not None:
                asyncio.run(_serve_many(listener, namespace, cluster))
            else:
                asyncio.run(_serve(listener, namespace, all_namespaces=all_namespaces))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot listen on {ADDRESS}:{port}: {error}") from error
    except KeyboardInterrupt:
        click.echo("")


def _cluster(origin: str, api_server: str | None, api_ca: Path, health: str) -> _Cluster:
    """Return where the console is. Raises UsageError for an origin that is none."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    name = f"[{host}]" if ":" in host else host
    default = f"https://{name}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
    if health and not health.rpartition(":")[2].isdecimal():
        raise click.UsageError(f"--health-address {health!r} is not HOST:PORT")
    try:
        proxied = Proxied(origin)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return _Cluster(proxied=proxied, api_server=api_server or default, api_ca=api_ca, health=health)


async def _serve(listener: socket.socket, namespace: str | None, *, all_namespaces: bool) -> None:
    port = listener.getsockname()[1]
    async with await connect(settings=_KUBE) as kube:
        shown = None if all_namespaces else namespace or kube.namespace
        settings = ConsoleSettings(port=port, namespace=shown)
        click.echo(f"Open http://{ADDRESS}:{port}{LOGIN}?key={settings.session.key}")
        click.echo("Who has this link acts with your rights. Ctrl+C ends the console.")
        await ConsoleServer(Console(kube, settings)).serve(sockets=[listener])


async def _serve_many(listener: socket.socket, namespace: str | None, cluster: _Cluster) -> None:
    port = listener.getsockname()[1]
    settings = ConsoleSettings(
        port=port,
        namespace=namespace,
        proxied=cluster.proxied,
        events=EventSettings(streams_max=STREAMS_OF_MANY_MAX),
    )
    async with contextlib.AsyncExitStack() as stack:
        connection = connect_for_callers(cluster.api_server, cluster.api_ca, caller_token, _KUBE)
        kube = await stack.enter_async_context(connection)
        if cluster.health:
            host, _, number = cluster.health.rpartition(":")
            await stack.enter_async_context(HealthPort(host.strip("[]"), int(number)))
        click.echo(f"Behind a proxy: {ADDRESS}:{port} answers for {cluster.proxied.origin}")
        await ConsoleServer(Console(kube, settings)).serve(sockets=[listener])
