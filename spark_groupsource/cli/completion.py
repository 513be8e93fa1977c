"""The ``groupsource completion`` command: scripts for the completion of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from spark_groupsource.cli.commands import command

_SHELLS = ("bash", "zsh", "fish")


@command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Prints the script that completes commands and options in a shell.

    Write eval "$(groupsource completion bash)" in ~/.bashrc, or the same with zsh in ~/.zshrc; for fish, write
    groupsource completion fish | source in ~/.config/fish/config.fish.
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "groupsource", "_GROUPSOURCE_COMPLETE").source())
