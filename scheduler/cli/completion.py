"""`paceline completion`: prints the script with which a shell completes commands, options and names."""

import click
from click.shell_completion import get_completion_class

#: The variable in which the script passes the incomplete words; click derives it from the name of the program.
VARIABLE = "_PACELINE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Bash and zsh: add `eval "$(paceline completion bash)"` to ~/.bashrc, or with zsh to ~/.zshrc. Fish: save the output as
    ~/.config/fish/completions/paceline.fish.
    """
    from scheduler.cli import paceline

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(paceline, {}, "paceline", VARIABLE).source())
