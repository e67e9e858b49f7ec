"""`rezone completion`: what lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish", "kubectl")
VARIABLE = "_REZONE_COMPLETE"

# kubectl (1.26 and newer) runs it with the words behind `kubectl rezone`, the last one unfinished.
# It reads a suggestion from each line; 4 says that files are none.
KUBECTL = f"""\
#!/bin/sh
COMP_WORDS="rezone $*" COMP_CWORD=$# {VARIABLE}=bash_complete rezone | sed -n 's/^plain,//p'
echo :4
"""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what lets SHELL complete this command; docs/use/command-line.md says where it goes.

    kubectl is what `kubectl rezone` asks: an executable kubectl_complete-rezone on the PATH.
    """
    if shell == "kubectl":
        click.echo(KUBECTL, nl=False)
        return
    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"click has no completion for {shell}")
    click.echo(made(context.find_root().command, {}, "rezone", VARIABLE).source())
