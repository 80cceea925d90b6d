"""Command lines of the tests: in this process, or as one of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """How a command line went."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def result(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


Danube = Callable[..., Ran]


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "pydanube_cli.main", *words]
