"""`bucketwire completion SHELL`: what a shell needs to complete commands, options and targets."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_KINDS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_KINDS)))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash  echo 'eval "$(bucketwire completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(bucketwire completion zsh)"' >> ~/.zshrc
    fish  bucketwire completion fish > ~/.config/fish/completions/bucketwire.fish
    """
    # click's own source() runs the machine's bash to ask for its version; the script is all that is wanted.
    made = _KINDS[shell](click.get_current_context().find_root().command, {}, "bucketwire", "_BUCKETWIRE_COMPLETE")
    click.echo(made.source_template % made.source_vars())
