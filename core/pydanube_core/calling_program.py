"""The program behind a call, as it names itself, for the audit. It proves nothing and permits nothing. Pure."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Final

MAX_NAME_CHARS: Final = 64  # of a name and of a version
PERSON: Final = "person"
AGENT: Final = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingProgram:
    """A program.

    Attributes:
        name: such as `claude-code`, of `clientInfo` over MCP. Empty if the program sends none.
        version: its version. Empty if unknown.
        by: `person` or `agent`, the one that decides to make the call. Empty if unknown.
    """

    name: str = ""
    version: str = ""
    by: str = ""

    def cleaned(self) -> CallingProgram:
        """Return it as it is recorded: without control characters, within `MAX_NAME_CHARS`, `by` one of the two."""
        by = self.by if self.by in (PERSON, AGENT) else ""
        return CallingProgram(name=_cleaned(self.name), version=_cleaned(self.version), by=by)


def _cleaned(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:MAX_NAME_CHARS]


@cache
def package_version() -> str:
    """Return the version of this package, `0` in a source tree that is not installed."""
    from pathlib import Path

    for folder in sys.path:
        for found in Path(folder).glob("pydanube-*.dist-info"):
            return found.name.removeprefix("pydanube-").removesuffix(".dist-info")
    # for installations that are no folder. It loads `email`, `csv` and `zipfile`: 15 ms of each command
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pydanube")
    except PackageNotFoundError:
        return "0"


UNNAMED: Final = CallingProgram()

#: of the current call: at the caller if a face calls for another program, and in the admin core
current_program: ContextVar[CallingProgram | None] = ContextVar("current_program", default=None)
