"""The entry point: `rezone operator`, `data-node`, `local`, `demo`, and what people look with.

Subcommands are imported when they are called: a data node starts without Kopf, and the operator
without Spark.
"""

import importlib
import importlib.util
from typing import Any, NamedTuple

import click


class _Place(NamedTuple):
    """Where a command is, and the extras of the package that bring what it imports.

    Those of `checkout` are in the sources alone: the package that is installed has no cluster.
    """

    module: str
    attribute: str
    extras: str = "operator"
    checkout: bool = False

    @property
    def here(self) -> bool:
        """Whether this installation has the command."""
        package = self.module.removesuffix(".commands")
        return not self.checkout or importlib.util.find_spec(package) is not None


_ALL_EXTRAS = "operator,data-node,spark"
_COMMANDS = {
    "operator": _Place("rezone.cli.run", "operator"),
    "data-node": _Place("rezone.cli.run", "data_node", "data-node"),
    "local": _Place("rezone.local.commands", "local", _ALL_EXTRAS, checkout=True),
    "certificate": _Place("rezone.cli.certificate", "certificate"),
    "check": _Place("rezone.cli.check", "check"),
    "completion": _Place("rezone.cli.completion", "completion"),
    "console": _Place("rezone.cli.console", "console", "operator,console"),
    "demo": _Place("rezone.cli.demo", "demo", _ALL_EXTRAS, checkout=True),
    "export": _Place("rezone.cli.jobs.commands", "export"),
    "explain-wait": _Place("rezone.cli.show", "explain_wait"),
    "job": _Place("rezone.cli.jobs.commands", "job"),
    "load": _Place("rezone.cli.jobs.commands", "load"),
    "login": _Place("rezone.cli.login", "login"),
    "maintenance": _Place("rezone.cli.maintenance", "maintenance"),
    "map": _Place("rezone.cli.show", "partition_map"),
    "migrate": _Place("rezone.cli.migrate", "migrate"),
    "progress": _Place("rezone.cli.show", "progress"),
    "report": _Place("rezone.cli.show", "report"),
    "streams": _Place("rezone.cli.show", "streams"),
    "support-bundle": _Place("rezone.cli.bundle.command", "support_bundle"),
    "top": _Place("rezone.cli.show", "top"),
    "verify": _Place("rezone.cli.jobs.commands", "verify"),
    "what-if": _Place("rezone.cli.show", "what_if"),
    "zones": _Place("rezone.cli.show", "zones"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(name for name, place in _COMMANDS.items() if place.here)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a command, imported now; one that only says so where its extras are missing."""
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        if not place.here:
            return _refusing(cmd_name, "Not here: it is in a checkout of the sources alone.")
        try:
            command: Any = getattr(importlib.import_module(place.module), place.attribute)
        except ModuleNotFoundError as error:
            return _not_installed(cmd_name, place.extras, error)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place.module}.{place.attribute} is no command")
        return command


def _not_installed(name: str, extras: str, error: ModuleNotFoundError) -> click.Command:
    """Return what stands for a command that an installation for clients alone cannot run.

    Raises the error when it is a module of our own that is missing.
    """
    if str(error.name).partition(".")[0] == "rezone":
        raise error
    return _refusing(name, f"Not here: {error.name} is missing; install rezone[{extras}].")


def _refusing(name: str, said: str) -> click.Command:
    """Return a command that takes anything, and only says why it is not here."""
    anything = {"ignore_unknown_options": True}

    @click.command(name, help=said, add_help_option=False, context_settings=anything)
    @click.argument("_arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(_arguments: tuple[str, ...]) -> None:
        raise click.ClickException(said)

    return refuse


@click.group(cls=LazyGroup)
@click.version_option(package_name="rezone")
def main() -> None:
    """Partitioned, replicated tables on Kubernetes that are moved while they are in use."""


if __name__ == "__main__":
    main(prog_name="rezone")
