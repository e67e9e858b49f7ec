"""The entry point: `rezone operator`, `data-node`, `local`, `demo`, and what people look with.

Subcommands are imported when they are called: a data node starts without Kopf, and the operator
without Spark.
"""

import importlib
from typing import Any

import click

_COMMANDS = {
    "operator": ("rezone.cli.run", "operator"),
    "data-node": ("rezone.cli.run", "data_node"),
    "local": ("rezone.local.commands", "local"),
    "certificate": ("rezone.cli.certificate", "certificate"),
    "check": ("rezone.cli.check", "check"),
    "demo": ("rezone.cli.demo", "demo"),
    "login": ("rezone.cli.login", "login"),
    "map": ("rezone.cli.show", "partition_map"),
    "migrate": ("rezone.cli.migrate", "migrate"),
    "progress": ("rezone.cli.show", "progress"),
    "streams": ("rezone.cli.show", "streams"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a command, imported now."""
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, attribute = place
        command: Any = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is no command")
        return command


@click.group(cls=LazyGroup)
@click.version_option(package_name="rezone")
def main() -> None:
    """Partitioned, replicated tables on Kubernetes that are moved while they are in use."""


if __name__ == "__main__":
    main(prog_name="rezone")
