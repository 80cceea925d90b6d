"""The declaration of one flag of a command that takes a value."""

from __future__ import annotations

from typing import Any

import typer


def option(*words: str) -> Any:
    """Declare a flag for `Annotated`: its names, what it takes, and what it is for."""
    *names, takes, help = words
    return typer.Option(*names, metavar=takes, help=help)
