"""`bucketwire completion SHELL`: the completion script of a shell."""

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
    # click's own source() runs bash to check its version; only the script is needed.
    complete = _KINDS[shell](click.get_current_context().find_root().command, {}, "bucketwire", "_BUCKETWIRE_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
    if shell == "bash":  # which otherwise takes the colons of `type:name` and of ARNs for ends of words
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}")
