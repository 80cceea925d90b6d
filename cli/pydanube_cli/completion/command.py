"""`danube completion SHELL` prints a shell's script; `danube --install-completion` puts it where the shell finds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from pydanube_core.errors import InvalidArgument

from pydanube_cli.command import Common, command
from pydanube_cli.completion.scripts import SCRIPTS, install


@command(
    examples=["danube completion bash", "danube completion fish > ~/.config/fish/completions/danube.fish"]
)
def completion(
    *,
    common: Common,
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Whose script.")
    ],
) -> None:
    """Print the completion script of a shell: words, flags, and names of topics, subscriptions … from the broker.

    `danube --install-completion` puts it where the shell finds it.
    """
    sys.stdout.write(SCRIPTS[shell])


def install_completion(words: Sequence[str]) -> int:
    """`danube --install-completion [SHELL]`; without SHELL, that of $SHELL."""
    named = words[0] if words else Path(os.environ.get("SHELL", "")).name
    if named not in SCRIPTS or len(words) > 1:
        raise InvalidArgument(
            f"--install-completion {named or '…'}: name one of bash, zsh, fish", field="shell", value=named
        )
    shell = cast("Literal['bash', 'zsh', 'fish']", named)
    for path in install(shell, home=Path.home(), env=os.environ):
        print(f"wrote {path}")
    print(f"{shell} completes danube from its next start on")
    return 0
